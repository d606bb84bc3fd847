//! The store as a model: maps behind one lock, every rule written in the plainest way.
//!
//! This is the executable specification of the [store port](crate::store). Other stores are
//! compared with it step by step, so it must stay obviously right: it keeps facts and computes
//! the rest (what is in line, parked, lapsed, counted) by looking at all of them. It must never
//! read a clock, draw a number or wait. It forgets everything when it is dropped, and the cost
//! of a call grows with what it holds: good for tests, for nothing else.

mod claim;
mod life;
mod outbox;
mod paging;
mod queue;
mod records;
mod timetables;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use crate::Json;
use crate::alert::Alert;
use crate::operation::{Operation, OperationState};
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
    /// By order of raising, and whether they were read.
    alerts: BTreeMap<u64, (Alert, bool)>,
    /// Whose turn it is to tell them, until when, and the state he left.
    teller: Option<(String, Timestamp)>,
    tray: Option<String>,
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
        let mut pruned = Pruned::default();

        let rows = self.rows.values();
        let tasks = rows
            .filter_map(|row| Some((row.ended_for_good_at()?, row)))
            .filter(|(at, row)| over(*at, row.kept_for(retention)))
            .map(|(at, row)| (at, row.task.id));
        for id in oldest(tasks, limit, &mut pruned.tasks, &mut pruned.more) {
            self.rows.remove(&id);
        }

        let keys = self.completions.iter();
        let keys = keys.map(|(key, done)| (done.at, key.clone()));
        let keys = keys.filter(|(at, _)| retention.ledger.is_some_and(|keep| over(*at, keep)));
        for key in oldest(keys, limit, &mut pruned.ledger, &mut pruned.more) {
            self.completions.remove(&key);
        }

        let occurrences = self.occurrences.iter();
        let occurrences = occurrences.map(|(number, o)| (o.fired_at.unwrap_or(o.time), *number));
        let occurrences = occurrences.filter(|(at, _)| over(*at, retention.occurrences));
        for number in oldest(occurrences, limit, &mut pruned.occurrences, &mut pruned.more) {
            self.occurrences.remove(&number);
        }

        let audit = self.audit.iter().map(|(number, entry)| (entry.time, *number));
        let audit = audit.filter(|(at, _)| over(*at, retention.audit));
        for number in oldest(audit, limit, &mut pruned.audit, &mut pruned.more) {
            self.audit.remove(&number);
        }

        let operations = self.operations.values();
        let operations = operations
            .filter(|operation| operation.state != OperationState::Running)
            .filter_map(|operation| Some((operation.finished_at?, operation.id)))
            .filter(|(at, _)| over(*at, retention.audit));
        for id in oldest(operations, limit, &mut pruned.operations, &mut pruned.more) {
            self.operations.remove(&id);
        }

        let alerts = self.alerts.iter().map(|(number, (alert, _))| (alert.at, *number));
        let alerts = alerts.filter(|(at, _)| over(*at, retention.alerts));
        for number in oldest(alerts, limit, &mut pruned.alerts, &mut pruned.more) {
            self.alerts.remove(&number);
        }

        let holders = self.rows.values().filter_map(|row| row.held_by.as_ref());
        let busy: BTreeSet<&WorkerId> = holders.map(|holder| &holder.worker).collect();
        let workers = self.workers.values().map(|entry| &entry.worker);
        let workers = workers
            .filter(|worker| over(worker.lease_until, retention.completed))
            .filter(|worker| !busy.contains(&worker.id))
            .map(|worker| (worker.lease_until, worker.id.clone()));
        for id in oldest(workers, limit, &mut pruned.workers, &mut pruned.more) {
            self.workers.remove(&id);
        }
        pruned
    }
}

/// The first `limit` by time, counted, and whether there are more.
fn oldest<T: Ord>(
    over: impl Iterator<Item = (Timestamp, T)>,
    limit: usize,
    count: &mut u64,
    more: &mut bool,
) -> Vec<T> {
    let mut over: Vec<_> = over.collect();
    *more |= over.len() > limit;
    over.sort();
    over.truncate(limit);
    *count = over.len() as u64;
    over.into_iter().map(|(_, what)| what).collect()
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
