//! Figures of the store, and what stands in a task's way. From counters and heads of lanes;
//! nothing here counts history.

use std::collections::BTreeMap;

use matins_core::store::Stats;
use matins_core::task::{Name, State, Task, order_key};
use matins_core::why::Surroundings;
use rusqlite::{Row, params};

use super::error::Res;
use super::lanes::Place;
use super::reader::Reader;
use super::sql::Sql;
use super::time::{ts, us};

/// How late a schedule must be to count as overdue.
const OVERDUE_US: i64 = 60_000_000;

/// Most tasks of a lane that are counted as standing before another one.
const AHEAD_MAX: i64 = 100_000;

impl Reader {
    /// Whether something is due that no claim has put in line yet.
    pub(super) fn is_behind(&self, now: i64) -> Res<bool> {
        Ok(self.one(Sql::DueUnpromoted, params![now], |_| Ok(()))?.is_some())
    }

    pub(super) fn stats(&self, now: i64) -> Res<Stats> {
        let mut stats = Stats::default();
        let counts = self.all(Sql::LaneCounts, params![], |row| {
            let mut counts = [0_i64; 7];
            for (index, count) in counts.iter_mut().enumerate() {
                *count = row.get(1 + index)?;
            }
            Ok((row.get::<_, Name>(0)?, counts))
        })?;
        let surplus = self.surplus()?;
        for (pool, [ready, waiting, running, completed, failed, cancelled, dead]) in counts {
            let states = [
                (State::Pending, ready + waiting),
                (State::Running, running),
                (State::Completed, completed),
                (State::Failed, failed),
                (State::Cancelled, cancelled),
            ];
            for (state, count) in states.into_iter().filter(|(_, count)| *count > 0) {
                stats.tasks.insert((pool.clone(), state), count.cast_unsigned());
            }
            stats.dead_letters += dead.cast_unsigned();
        }
        self.look_at_lines(&surplus, &mut stats)?;
        let overdue =
            self.one(Sql::ScheduleOverdue, params![now - OVERDUE_US], |row| row.get::<_, i64>(0))?;
        stats.schedules_overdue = overdue.unwrap_or(0).cast_unsigned();
        Ok(stats)
    }

    /// Tasks that stand in `ready` although others of their concurrency_key, in other lanes,
    /// come first and leave no room for them.
    fn surplus(&self) -> Res<BTreeMap<i64, (i64, i64)>> {
        let mut surplus = BTreeMap::new();
        if self.one(Sql::LaneSpread, params![], |_| Ok(()))?.is_none() {
            return Ok(surplus);
        }
        let settings = self.settings()?;
        let per_key = |kind: &str| settings.limits.get(kind).map_or(1, |limit| limit.per_key);
        let rivals = self.all(Sql::SlotRivals, params![], |row| {
            let key: (i64, String) = (row.get(0)?, row.get(1)?);
            let place: (i64, i64, i64) = (row.get(2)?, row.get(3)?, row.get(4)?);
            Ok((key, place, row.get::<_, i64>(5)?))
        })?;
        let mut before: Option<((i64, String), i64)> = None;
        for (key, (lane, ord, seq), running) in rivals {
            let used = match &before {
                Some((last, used)) if *last == key => *used,
                _ => running,
            };
            let kind: Option<String> = self.one(Sql::NameText, params![key.0], |row| row.get(0))?;
            if used >= i64::from(per_key(kind.as_deref().unwrap_or_default())) {
                surplus.insert(seq, (lane, ord));
            }
            before = Some((key, used + 1));
        }
        Ok(surplus)
    }

    /// What counts as ready, and when the foremost of it in each pool became due.
    fn look_at_lines(&self, surplus: &BTreeMap<i64, (i64, i64)>, stats: &mut Stats) -> Res<()> {
        let mut foremost: BTreeMap<Name, (i64, i64)> = BTreeMap::new();
        let lanes: Vec<(i64, Name, i64)> = self
            .all(Sql::ReadyLanes, params![], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for (lane, pool, ready) in lanes {
            let extra = surplus.values().filter(|(own, _)| *own == lane).count();
            let ready = ready.cast_unsigned() - extra as u64;
            if ready == 0 {
                continue;
            }
            *stats.ready.entry(pool.clone()).or_default() += ready;
            let heads: Vec<(i64, i64)> =
                self.all(Sql::ReadyHead, params![lane, extra as i64 + 1], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            let head = heads.into_iter().find(|(_, seq)| !surplus.contains_key(seq));
            if let Some(head) = head {
                let first = foremost.entry(pool).or_insert(head);
                *first = (*first).min(head);
            }
        }
        for (pool, (_, seq)) in foremost {
            if let Some(run_at) = self.one(Sql::TaskRunAt, params![seq], |row| row.get(0))? {
                stats.oldest_ready.insert(pool, ts(run_at));
            }
        }
        Ok(())
    }

    pub(super) fn surroundings(&mut self, task: &Task, now: i64) -> Res<Surroundings> {
        let settings = self.settings()?;
        let limit = settings.limits.get(&task.kind);
        let workers: Vec<_> = self
            .workers()?
            .into_iter()
            .filter(|worker| us(worker.lease_until) >= now && worker.types.contains(&task.kind))
            .collect();
        let by_worker: Vec<(Name, u32)> =
            self.all(Sql::RunningByWorker, params![&*task.pool], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let is_live = |name: &Name| workers.iter().any(|worker| worker.id.0 == *name);
        let slots = workers.iter().flat_map(|worker| &worker.pools);
        let spent = self.one(Sql::RateGet, params![&*task.kind], |row| row.get(0))?.map(ts);
        let line = self.line(task, now)?;
        Ok(Surroundings {
            frozen: settings.frozen.as_ref().map(|frozen| frozen.reason.clone()),
            pool_paused: settings.pools.get(&task.pool).is_some_and(|pool| pool.paused),
            ahead: line.ahead,
            workers_for_type: workers.len() as u32,
            pool_busy: by_worker.iter().filter(|(name, _)| is_live(name)).map(|(_, n)| n).sum(),
            pool_size: slots.filter(|(pool, _)| *pool == task.pool).map(|(_, n)| n).sum(),
            rate_limited_until: limit
                .and_then(|limit| limit.rate_limit)
                .filter(|rate| rate.available(spent, ts(now)) == 0)
                .map(|rate| rate.next_at(spent, ts(now))),
            concurrency: match limit.and_then(|limit| limit.concurrency) {
                Some(most) => Some((self.sum(Sql::LanesOfType, params![&*task.kind])?, most)),
                None => None,
            },
            key_parked: line.parked,
            quarantine_busy: self.sum(Sql::QuarantineRunning, params![])? > 0,
            waits_for: None,
            cancel_requested: task.cancel_requested_at.is_some(),
            stuck: false,
            worker: line.worker,
        })
    }

    fn sum(&self, sql: Sql, params: impl rusqlite::Params) -> Res<u32> {
        Ok(self.one(sql, params, |row| row.get(0))?.unwrap_or(0))
    }

    /// Where a task stands.
    fn line(&mut self, task: &Task, now: i64) -> Res<Line> {
        let Some(stored) = self.stored_by_id(task.id)? else { return Ok(Line::default()) };
        let task = &stored.task;
        let worker = self.one(Sql::RunningOfTask, params![stored.seq], |row| row.get(0))?;
        let mut line = Line { worker, ..Line::default() };
        let in_line = task.state == State::Pending && !task.held && us(task.run_at) <= now;
        if !in_line {
            return Ok(line);
        }
        let surplus = self.surplus()?;
        let mut ord = order_key(task.run_at, task.priority);
        if let (Some(key), Some(kind)) = (&task.concurrency_key, self.known_name(&task.kind)?) {
            let own = params![kind, &**key, stored.lane, stored.seq];
            let place: Option<i64> = self.one(Sql::SlotActive, own, |row| row.get(0))?;
            let turned = params![kind, &**key, stored.lane, stored.seq, task.priority];
            let turn: Option<i64> = self.one(Sql::SlotTurned, turned, |row| row.get(0))?;
            line.parked = place.is_none() || surplus.contains_key(&stored.seq);
            ord = place.or(turn.map(|freed| order_key(ts(freed), task.priority))).unwrap_or(ord);
        }
        let id = |row: &Row<'_>| row.get::<_, i64>(0);
        for lane in self.all(Sql::LanesOfPool, params![&*task.pool], id)? {
            let params = params![lane, ord, stored.seq, AHEAD_MAX];
            let before = self.one(Sql::LaneAhead, params, id)?.unwrap_or(0).cast_unsigned();
            let extra = surplus
                .iter()
                .filter(|(seq, (own, place))| *own == lane && (*place, **seq) < (ord, stored.seq));
            line.ahead += before.saturating_sub(extra.count() as u64);
        }
        Ok(line)
    }
}

#[derive(Debug, Default)]
struct Line {
    ahead: u64,
    parked: bool,
    worker: Option<Name>,
}

/// Columns of `lane` in the order of [`Place`], for whoever recounts them.
pub(super) const PLACE_COLUMNS: [(Place, &str); 9] = [
    (Place::Ready, "ready"),
    (Place::Later, "later"),
    (Place::Parked, "parked"),
    (Place::Held, "held"),
    (Place::Running, "running"),
    (Place::Completed, "completed"),
    (Place::Failed, "failed"),
    (Place::Cancelled, "cancelled"),
    (Place::Dead, "dead"),
];
