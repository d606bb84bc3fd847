//! One question for all who wait: what there may be to do, and who is gone.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::store::{Look, LookRequest, Types};
use matins_core::task::Name;
use tokio_postgres::Row;

use super::PostgresStore;
use super::error::{Failure, Res};
use super::link::Param;
use super::migrate;
use super::row::{self, get};
use super::sql::Sql;
use super::text::{self, Text};
use super::time::At;

/// How long a worker's name must have been free, and its entry untouched, before it is dead.
const DEAD_AFTER: Duration = Duration::from_secs(3);

/// Looks that follow each other more closely do not ask who is gone: that takes a glance at every
/// lock of the server.
const GONE_EVERY: Duration = Duration::from_millis(500);

impl PostgresStore {
    pub(super) async fn look_round(&self, request: &LookRequest) -> Res<Look> {
        let pools: Vec<Text<'_>> = request.pools.iter().map(|pool| Text(pool)).collect();
        let types: Option<Vec<Text<'_>>> = match &request.types {
            Types::Any => None,
            Types::Only(kinds) => Some(kinds.iter().map(|kind| Text(kind)).collect()),
        };
        let (lanes, ords, due) = self.floors.known();
        let due = At(due.unwrap_or(Timestamp::MIN));
        // Without a session that lives as long as the process, the lease tells who is gone.
        let gone = self.control.ear.listens() && self.free().is_due(Instant::now());
        let upkeep = request.upkeep.is_some();
        let lapsed_by = At(request.upkeep.unwrap_or(Timestamp::MIN));
        let now = At(request.now);
        let params: [Param<'_>; 9] =
            [&pools, &types, &lanes, &ords, &due, &gone, &upkeep, &lapsed_by, &now];
        // It reads what others may have locked: what is short must not wait behind it.
        let row = self.work.one(Sql::Look, &params).await?;
        let row = row.ok_or_else(|| Failure::broken("no answer to a look"))?;
        self.check_schema(get(&row, 5)?, get(&row, 6)?)?;
        self.generation.store(get::<i64>(&row, 10)?.cast_unsigned(), Ordering::Relaxed);
        if gone {
            self.judge(&row).await?;
        }
        let waiting: Vec<&str> = get::<Option<_>>(&row, 0)?.unwrap_or_default();
        let later = row::opt_at(&row, 1)?;
        let pools = match later {
            // Whoever claims next puts it in line, in whatever pool.
            Some(due) if due <= request.now => request.pools.clone(),
            _ => waiting.into_iter().map(|pool| Name::from(text::decode(pool))).collect(),
        };
        Ok(Look {
            pools,
            later: later.filter(|later| *later > request.now),
            schedules: row::opt_at(&row, 2)?,
            lapsed: get::<Option<bool>>(&row, 7)?.unwrap_or(false),
            expired: get::<Option<bool>>(&row, 8)?.unwrap_or(false),
            clock: row::opt_at(&row, 9)?,
        })
    }

    /// Of the regime, as the last look saw it; 0: none has.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A schema that has gone beyond what this program can live with is not worked on any more.
    fn check_schema(&self, compatible_from: Option<i32>, version: Option<i32>) -> Res<()> {
        let (Some(compatible_from), Some(version)) = (compatible_from, version) else {
            return Ok(());
        };
        let Some(why) = migrate::outgrown(version, compatible_from) else { return Ok(()) };
        if self.barred.set(why.clone()).is_ok() {
            tracing::error!("this node works no more: {why}");
        }
        Err(Failure::broken(why))
    }

    async fn judge(&self, row: &Row) -> Res<()> {
        let names: Vec<&str> = get::<Option<_>>(row, 3)?.unwrap_or_default();
        let seen: Vec<At> = get::<Option<_>>(row, 4)?.unwrap_or_default();
        let names = names.into_iter().map(|name| text::decode(name).into_owned());
        let dead = self.free().dead(names.zip(seen).collect(), Instant::now());
        for (worker, seen_at) in dead {
            let params: [Param<'_>; 2] = [&Text(&worker), &seen_at];
            if !self.control.rows(Sql::WorkerDied, &params).await?.is_empty() {
                tracing::warn!(worker, "a worker's session is gone and it is not seen any more");
                self.control.ear.tell_lost();
            }
        }
        Ok(())
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Since when names have been found free, and when their workers had last been seen then.
#[derive(Debug, Default)]
pub(super) struct Free {
    names: HashMap<String, (At, Instant)>,
    looked: Option<Instant>,
}

impl Free {
    fn is_due(&self, now: Instant) -> bool {
        self.looked.is_none_or(|at| now.duration_since(at) >= GONE_EVERY)
    }

    /// Those that have been free, and unseen, for long enough.
    fn dead(&mut self, now_free: HashMap<String, At>, now: Instant) -> Vec<(String, At)> {
        self.looked = Some(now);
        self.names.retain(|worker, (seen_at, _)| now_free.get(worker) == Some(seen_at));
        let mut dead = Vec::new();
        for (worker, seen_at) in now_free {
            let (_, since) = self.names.entry(worker.clone()).or_insert((seen_at, now));
            if now.duration_since(*since) >= DEAD_AFTER {
                dead.push((worker, seen_at));
            }
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_dead_when_it_was_free_and_unseen_for_the_whole_time() {
        let (mut free, begin) = (Free::default(), Instant::now());
        let at = |second: i64| At(Timestamp::from_second(second).unwrap());
        let found = |seen: i64| HashMap::from([("w".to_owned(), at(seen))]);
        let after = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        assert!(free.is_due(begin));
        assert!(free.dead(found(1), begin).is_empty());
        assert!(!free.is_due(after(0.4)));
        assert!(free.dead(found(1), after(2.9)).is_empty());
        // It gave a sign of life: its time begins anew.
        assert!(free.dead(found(2), after(3.1)).is_empty());
        assert!(free.dead(HashMap::new(), after(4.0)).is_empty());
        assert!(free.dead(found(2), after(5.0)).is_empty());
        assert_eq!(free.dead(found(2), after(8.0)), [("w".to_owned(), at(2))]);
    }
}
