//! Deleting what nobody has to keep any longer, in steps so short that nobody waits for one.

use std::time::Duration;

use jiff::Timestamp;
use matins_core::store::{Pruned, Retention};
use rusqlite::params;
use uuid::Uuid;

use super::error::{Failure, Res};
use super::lanes::Place;
use super::row::{CANCELLED, COMPLETED};
use super::sql::Sql;
use super::time::us;
use super::tx::Tx;

/// Rows that one transaction deletes.
pub(super) const STEP: usize = 500;

/// How long the turns of an idle concurrency_key are remembered: they matter only to tasks that
/// were due before the last one.
const TURNS_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// A kind of thing that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tasks,
    Ledger,
    Occurrences,
    Audit,
    Operations,
    Workers,
    Alerts,
    Turns,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::Tasks,
        Self::Ledger,
        Self::Occurrences,
        Self::Audit,
        Self::Operations,
        Self::Workers,
        Self::Alerts,
        Self::Turns,
    ];

    pub(super) fn counter(self, pruned: &mut Pruned) -> Option<&mut u64> {
        match self {
            Self::Tasks => Some(&mut pruned.tasks),
            Self::Ledger => Some(&mut pruned.ledger),
            Self::Occurrences => Some(&mut pruned.occurrences),
            Self::Audit => Some(&mut pruned.audit),
            Self::Operations => Some(&mut pruned.operations),
            Self::Workers => Some(&mut pruned.workers),
            Self::Alerts => Some(&mut pruned.alerts),
            Self::Turns => None,
        }
    }
}

/// What has ended up to here may go; without a cutoff, nothing may.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cutoffs {
    completed: Option<i64>,
    cancelled: Option<i64>,
    failed: Option<i64>,
    ledger: Option<i64>,
    occurrences: Option<i64>,
    audit: Option<i64>,
    alerts: Option<i64>,
    turns: Option<i64>,
}

impl Cutoffs {
    pub(super) fn new(retention: &Retention, now: Timestamp) -> Self {
        let before = |kept: Duration| {
            i64::try_from(kept.as_micros()).ok().and_then(|kept| us(now).checked_sub(kept))
        };
        Self {
            completed: before(retention.completed),
            cancelled: before(retention.cancelled),
            failed: before(retention.failed),
            ledger: retention.ledger.and_then(before),
            occurrences: before(retention.occurrences),
            audit: before(retention.audit),
            alerts: before(retention.alerts),
            turns: before(TURNS_KEPT),
        }
    }
}

/// A task whose time is over.
struct Over {
    at: i64,
    seq: i64,
    place: Place,
}

/// A completed task whose time in the ledger is over.
struct KeyOver {
    at: i64,
    seq: i64,
    lane: i64,
    key: String,
    id: Uuid,
}

impl Tx<'_> {
    /// Deletes up to `limit` things of a kind. Answers how many there were.
    pub(super) fn prune(&mut self, kind: Kind, cutoffs: &Cutoffs, limit: usize) -> Res<usize> {
        let cutoff = match kind {
            Kind::Tasks => return self.prune_tasks(cutoffs, limit),
            Kind::Ledger => cutoffs.ledger,
            Kind::Occurrences => cutoffs.occurrences,
            Kind::Audit | Kind::Operations => cutoffs.audit,
            Kind::Workers => cutoffs.completed,
            Kind::Alerts => cutoffs.alerts,
            Kind::Turns => cutoffs.turns,
        };
        let Some(cutoff) = cutoff else { return Ok(0) };
        let most = limit as i64;
        match kind {
            Kind::Tasks => Ok(0),
            Kind::Ledger => self.prune_ledger(cutoff, most),
            Kind::Occurrences => self.prune_occurrences(cutoff, most),
            Kind::Audit => self.run(Sql::AuditPrune, params![cutoff, most]),
            Kind::Operations => self.prune_operations(cutoff, limit),
            Kind::Workers => self.run(Sql::WorkerPrune, params![cutoff, most]),
            Kind::Alerts => self.run(Sql::AlertPrune, params![cutoff, most]),
            Kind::Turns => self.run(Sql::TurnPrune, params![cutoff, most]),
        }
    }

    /// Whether something of a kind is left whose time is over.
    pub(super) fn is_more_to_prune(&mut self, kind: Kind, cutoffs: &Cutoffs) -> Res<bool> {
        let (sql, cutoff) = match kind {
            Kind::Tasks => return Ok(!self.tasks_over(cutoffs, 1)?.is_empty()),
            Kind::Ledger => {
                let Some(cutoff) = cutoffs.ledger else { return Ok(false) };
                if !self.keys_over(cutoff, 1)?.is_empty() {
                    return Ok(true);
                }
                (Sql::KeyOld, cutoffs.ledger)
            }
            Kind::Occurrences => (Sql::OccurrenceOld, cutoffs.occurrences),
            Kind::Audit => (Sql::AuditOld, cutoffs.audit),
            Kind::Operations => {
                let Some(cutoff) = cutoffs.audit else { return Ok(false) };
                return Ok(!self.operations_over(cutoff)?.is_empty());
            }
            Kind::Workers => (Sql::WorkerOld, cutoffs.completed),
            Kind::Alerts => (Sql::AlertOld, cutoffs.alerts),
            Kind::Turns => return Ok(false),
        };
        let Some(cutoff) = cutoff else { return Ok(false) };
        Ok(self.one(sql, params![cutoff, 1], |_| Ok(()))?.is_some())
    }

    /// The tasks that have been over for longest.
    fn tasks_over(&mut self, cutoffs: &Cutoffs, limit: usize) -> Res<Vec<Over>> {
        let most = limit as i64;
        let mut over = Vec::new();
        let ended = [
            (COMPLETED, Place::Completed, cutoffs.completed),
            (CANCELLED, Place::Cancelled, cutoffs.cancelled),
        ];
        for (state, place, cutoff) in ended {
            let Some(cutoff) = cutoff else { continue };
            over.extend(self.all(Sql::PruneEnded, params![state, cutoff, most], |row| {
                Ok(Over { at: row.get(0)?, seq: row.get(1)?, place })
            })?);
        }
        if let Some(cutoff) = cutoffs.failed {
            over.extend(self.all(Sql::PruneDismissed, params![cutoff, most], |row| {
                Ok(Over { at: row.get(0)?, seq: row.get(1)?, place: Place::Failed })
            })?);
        }
        over.sort_by_key(|over| (over.at, over.seq));
        over.truncate(limit);
        Ok(over)
    }

    fn prune_tasks(&mut self, cutoffs: &Cutoffs, limit: usize) -> Res<usize> {
        let over = self.tasks_over(cutoffs, limit)?;
        for Over { seq, place, .. } in &over {
            if *place == Place::Failed {
                self.run(Sql::DeadDelete, params![seq])?;
            }
            self.prune_task(*seq, *place)?;
        }
        Ok(over.len())
    }

    fn prune_task(&mut self, seq: i64, place: Place) -> Res<()> {
        type Found = (i64, Uuid, Option<String>, Option<String>, Option<i64>);
        let found: Option<Found> = self.one(Sql::PruneFacts, params![seq], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })?;
        let Some((lane, id, key, result, finished_at)) = found else {
            return Err(Failure::broken(format!("task number {seq} has no row")));
        };
        if let (Some(key), Place::Completed) = (key, place) {
            let kind = self.mem.lanes.get(lane)?.kind_id;
            self.run(Sql::KeyKeep, params![kind, key, id, finished_at, result])?;
        }
        self.run(Sql::AttemptDelete, params![seq])?;
        self.run(Sql::TaskDelete, params![seq])?;
        self.mem.lanes.add(lane, place, -1)
    }

    /// Keys of pruned tasks, then those of tasks that are kept for longer than their keys.
    fn prune_ledger(&mut self, cutoff: i64, limit: i64) -> Res<usize> {
        let pruned = self.run(Sql::KeyPrune, params![cutoff, limit])?;
        let mut freed = 0;
        for over in self.keys_over(cutoff, limit - pruned as i64)? {
            let kind = self.mem.lanes.get(over.lane)?.kind_id;
            freed += self.run(Sql::KeyFree, params![kind, over.key, over.id])?;
            self.run(Sql::SweptSave, params![over.at, over.seq])?;
        }
        Ok(pruned + freed)
    }

    /// Completed tasks not yet swept whose rows are still there.
    fn keys_over(&mut self, cutoff: i64, limit: i64) -> Res<Vec<KeyOver>> {
        let swept = self.one(Sql::SweptLoad, params![], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (at, seq): (i64, i64) = swept.unwrap_or_default();
        self.all(Sql::KeyOver, params![at, seq, cutoff, limit], |row| {
            Ok(KeyOver {
                at: row.get(0)?,
                seq: row.get(1)?,
                lane: row.get(2)?,
                key: row.get(3)?,
                id: row.get(4)?,
            })
        })
    }

    /// Finished operations whose time is over, with that time. They are few.
    fn operations_over(&mut self, cutoff: i64) -> Res<Vec<(i64, Uuid)>> {
        let old: Vec<(Uuid, Option<String>)> =
            self.all(Sql::OperationOld, params![cutoff], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut over = Vec::new();
        for (id, finished_at) in old {
            let finished_at = finished_at.as_deref().map(str::parse).transpose();
            let finished_at = finished_at.map_err(|error: jiff::Error| {
                Failure::broken(format!("operation {id} finished at: {error}"))
            })?;
            over.extend(finished_at.map(us).filter(|at| *at <= cutoff).map(|at| (at, id)));
        }
        over.sort_unstable();
        Ok(over)
    }

    fn prune_operations(&mut self, cutoff: i64, limit: usize) -> Res<usize> {
        let mut over = self.operations_over(cutoff)?;
        over.truncate(limit);
        for (_, id) in &over {
            self.run(Sql::OperationDelete, params![id])?;
        }
        Ok(over.len())
    }

    fn prune_occurrences(&mut self, cutoff: i64, limit: i64) -> Res<usize> {
        let old: Vec<(i64, Uuid, i64, String)> =
            self.all(Sql::OccurrenceOld, params![cutoff, limit], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
        for (number, uid, count, kind) in &old {
            self.run(Sql::OccurrenceDelete, params![number])?;
            if kind == "scheduled" {
                self.run(Sql::SchedulePruned, params![uid, count])?;
            }
        }
        Ok(old.len())
    }
}
