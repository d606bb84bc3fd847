//! The store as a model: maps behind one lock, every rule written in the plainest way.
//!
//! This is the executable specification of the [store port](crate::store). Other stores are
//! compared with it step by step, so it must stay obviously right: it keeps facts and computes
//! the rest (what is in line, parked, lapsed, counted) by looking at all of them. It must never
//! read a clock, draw a number or wait. It forgets everything when it is dropped, and the cost
//! of a call grows with what it holds: good for tests, for nothing else.

mod claim;
mod life;
mod paging;
mod queue;
mod records;
mod timetables;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use crate::Json;
use crate::operation::Operation;
use crate::schedule::{Occurrence, ScheduleState};
use crate::store::{
    AuditEntry, Pruned, Result, Retention, Settings, Store, StoreInfo, Token, Worker,
};
use crate::task::{Attempt, Claim, Name, Task, TaskId, WorkerId};

/// A store that lives as long as its process.
#[derive(Debug)]
pub struct MemoryStore {
    store_id: Uuid,
    model: Mutex<Model>,
}

impl MemoryStore {
    pub fn new(store_id: Uuid) -> Self {
        Self { store_id, model: Mutex::default() }
    }

    /// A panic while the lock was held is a failed test already; the data are still whole
    /// enough to say so.
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All facts of a store.
#[derive(Debug, Default)]
struct Model {
    rows: BTreeMap<TaskId, Row>,
    /// Number given last, to a task accepted, an occurrence or act recorded.
    number: u64,
    /// Fence of the claim made last.
    fence: u64,
    /// Completed keys. Live ones are found among the rows.
    completions: BTreeMap<(Name, Arc<str>), Completion>,
    workers: BTreeMap<WorkerId, WorkerRow>,
    /// State of each type's rate limit.
    spent: BTreeMap<Name, Timestamp>,
    schedules: BTreeMap<String, ScheduleState>,
    /// Dead letters since the last completion, per schedule.
    failures_in_row: BTreeMap<Uuid, u32>,
    /// By order of recording.
    occurrences: BTreeMap<u64, Occurrence>,
    settings: Settings,
    audit: BTreeMap<u64, AuditEntry>,
    operations: BTreeMap<Uuid, Operation>,
    tokens: BTreeMap<String, Token>,
    notes: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Row {
    /// Order of acceptance.
    number: u64,
    task: Task,
    /// When its saturated `concurrency_key` last had a slot freed while it was pending.
    turn: Option<Timestamp>,
    /// Present exactly while the task runs.
    held_by: Option<Holder>,
    attempts: Vec<Attempt>,
}

/// Who runs a task, and with what proof.
#[derive(Debug, Clone)]
struct Holder {
    claim: Claim,
    worker: WorkerId,
    /// A lease of the claim's own; `None`: the worker's covers it.
    lease_until: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Completion {
    task_id: TaskId,
    result: Option<Json>,
    at: Timestamp,
}

#[derive(Debug)]
struct WorkerRow {
    worker: Worker,
    /// Taken away; kept while it has claims, so that they are still known as interrupted.
    retired: bool,
}

impl Model {
    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn prune(&mut self, retention: &Retention, now: Timestamp, limit: usize) -> Pruned {
        let over = |at: Timestamp, keep| crate::lifecycle::later(at, keep) <= now;
        let mut tasks: Vec<(Timestamp, TaskId)> = self
            .rows
            .values()
            .filter_map(|row| Some((row.ended_for_good_at()?, row)))
            .filter(|(at, row)| over(*at, row.kept_for(retention)))
            .map(|(at, row)| (at, row.task.id))
            .collect();
        let mut keys: Vec<(Timestamp, (Name, Arc<str>))> = self
            .completions
            .iter()
            .filter(|(_, done)| retention.ledger.is_some_and(|keep| over(done.at, keep)))
            .map(|(key, done)| (done.at, key.clone()))
            .collect();
        let occurrences: Vec<u64> = self
            .occurrences
            .iter()
            .filter(|(_, o)| over(o.fired_at.unwrap_or(o.time), retention.occurrences))
            .map(|(number, _)| *number)
            .collect();
        let audit: Vec<u64> = self
            .audit
            .iter()
            .filter(|(_, entry)| over(entry.time, retention.audit))
            .map(|(number, _)| *number)
            .collect();
        tasks.sort();
        keys.sort();
        let more = [tasks.len(), keys.len(), occurrences.len(), audit.len()];
        let pruned = Pruned {
            tasks: tasks.len().min(limit) as u64,
            ledger: keys.len().min(limit) as u64,
            occurrences: occurrences.len().min(limit) as u64,
            audit: audit.len().min(limit) as u64,
            more: more.into_iter().any(|count| count > limit),
        };
        for (_, id) in tasks.into_iter().take(limit) {
            self.rows.remove(&id);
        }
        for (_, key) in keys.into_iter().take(limit) {
            self.completions.remove(&key);
        }
        for number in occurrences.into_iter().take(limit) {
            self.occurrences.remove(&number);
        }
        for number in audit.into_iter().take(limit) {
            self.audit.remove(&number);
        }
        pruned
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "memory",
            store_id: self.store_id,
            schema_version: 1,
            location: "memory".to_owned(),
        }
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// Nobody outside this process can change it.
    async fn changed(&self) {
        std::future::pending::<()>().await;
    }

    async fn prune(&self, retention: &Retention, now: Timestamp, limit: usize) -> Result<Pruned> {
        Ok(self.model().prune(retention, now, limit))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
