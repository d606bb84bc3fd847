//! The steps of a task's life that several verbs share: taken in, ended, its key, its overlap.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::{Completion, Model, Row};
use crate::Json;
use crate::alert::of_dead_letter;
use crate::idempotency::{KeyDecision, KeyState, decide};
use crate::store::{Act, AuditEntry, Enqueued, LedgerEntry, Retention};
use crate::task::{NewTask, State, Task, TaskId, order_key};

/// How a task leaves `pending` or `running` for good.
pub(super) enum End {
    Completed { result: Option<Json>, result_dropped_bytes: Option<u64>, deduplicated: bool },
    Failed,
    Cancelled { reason: &'static str },
}

impl Row {
    /// When it reached a state that only time takes it out of. A dead letter waits for ever.
    pub(super) fn ended_for_good_at(&self) -> Option<Timestamp> {
        match self.task.state {
            State::Pending | State::Running => None,
            State::Completed | State::Cancelled => self.task.finished_at,
            State::Failed => self.task.dismissed.as_ref().map(|dismissal| dismissal.at),
        }
    }

    pub(super) fn kept_for(&self, retention: &Retention) -> Duration {
        match self.task.state {
            State::Completed => retention.completed,
            State::Cancelled => retention.cancelled,
            State::Failed | State::Pending | State::Running => retention.failed,
        }
    }

    pub(super) fn is_of_schedule(&self, uid: Uuid) -> bool {
        self.task.origin.as_ref().is_some_and(|origin| origin.schedule_uid == uid)
    }

    /// Live and in the way of the schedule's next task.
    pub(super) fn is_active(&self) -> bool {
        self.task.state.is_live() && !self.task.held
    }

    pub(super) fn in_line(&self, now: Timestamp) -> bool {
        self.task.state == State::Pending && !self.task.held && self.task.run_at <= now
    }

    /// Place in line: its order, but not before the last turn of its key.
    pub(super) fn place(&self) -> (i64, u64) {
        let task = &self.task;
        let own = order_key(task.run_at, task.priority);
        let turn = self.turn.map_or(own, |turn| order_key(turn, task.priority));
        (own.max(turn), self.number)
    }
}

impl Model {
    /// Live tasks hold their keys; completed ones left an entry.
    pub(super) fn ledger_entry(&self, kind: &str, key: &str) -> Option<LedgerEntry> {
        let live = self.rows.values().map(|row| &row.task).find(|task| {
            task.state.is_live()
                && &*task.kind == kind
                && task.execution_key.as_deref() == Some(key)
        });
        if let Some(task) = live {
            let started = if task.state == State::Running { task.started_at } else { None };
            return Some(LedgerEntry {
                kind: kind.into(),
                execution_key: key.into(),
                task_id: task.id,
                state: task.state,
                result: None,
                at: started.unwrap_or(task.created_at),
            });
        }
        self.completions.get(&(kind.into(), key.into())).map(|done| LedgerEntry {
            kind: kind.into(),
            execution_key: key.into(),
            task_id: done.task_id,
            state: State::Completed,
            result: done.result.clone(),
            at: done.at,
        })
    }

    /// The task of a ledger entry: its row, or what the ledger remembers of it. A client may
    /// have used the id again when the row had been pruned.
    pub(super) fn task_of(&self, entry: &LedgerEntry) -> Box<Task> {
        let row = self.rows.get(&entry.task_id).map(|row| &row.task).filter(|task| {
            task.kind == entry.kind && task.execution_key.as_ref() == Some(&entry.execution_key)
        });
        Box::new(row.cloned().unwrap_or_else(|| entry.task()))
    }

    pub(super) fn enqueue(&mut self, new: &NewTask, now: Timestamp) -> Enqueued {
        if let Some(row) = self.rows.get(&new.id) {
            return Enqueued::Existing(Box::new(row.task.clone()));
        }
        let holder = new.execution_key.as_deref().and_then(|key| self.ledger_entry(&new.kind, key));
        let key_state = holder.as_ref().map_or(KeyState::Free, |entry| entry.state.into());
        match (decide(key_state, new.on_duplicate), holder) {
            (KeyDecision::ReturnHolder, Some(holder)) => Enqueued::Existing(self.task_of(&holder)),
            (KeyDecision::Reject, Some(holder)) => Enqueued::Rejected(self.task_of(&holder)),
            (KeyDecision::ReplaceHolder, Some(holder)) => self.replace(holder.task_id, new),
            (KeyDecision::Take, _) | (_, None) => {
                self.insert(new, now);
                Enqueued::Created
            }
        }
    }

    fn insert(&mut self, new: &NewTask, now: Timestamp) {
        let number = self.next_number();
        let task = Task::from_new(new, now);
        let row = Row { number, task, turn: None, held_by: None, attempts: Vec::new() };
        self.rows.insert(new.id, row);
        if let Some(origin) = &new.origin {
            self.release_held(origin.schedule_uid, now);
        }
    }

    fn replace(&mut self, id: TaskId, new: &NewTask) -> Enqueued {
        let Some(row) = self.rows.get_mut(&id) else { return Enqueued::Created };
        row.task.payload = new.payload.clone();
        row.task.concurrency_key.clone_from(&new.concurrency_key);
        row.task.run_at = new.run_at;
        row.task.expires_at = new.expires_at;
        row.turn = None;
        Enqueued::Replaced(Box::new(row.task.clone()))
    }

    /// A task that has ended lets go of what waits for it.
    pub(super) fn end(&mut self, id: TaskId, end: End, at: Timestamp) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        let task = &mut row.task;
        task.finished_at = Some(at);
        task.held = false;
        let uid = task.origin.as_ref().map(|origin| origin.schedule_uid);
        match end {
            End::Completed { result, result_dropped_bytes, deduplicated } => {
                task.state = State::Completed;
                task.deduplicated = deduplicated;
                task.result.clone_from(&result);
                task.result_dropped_bytes = result_dropped_bytes;
                if let (Some(key), false) = (&task.execution_key, deduplicated) {
                    let completion = Completion { task_id: id, result, at };
                    self.completions.insert((task.kind.clone(), key.clone()), completion);
                }
                self.failures_in_row.extend(uid.map(|uid| (uid, 0)));
            }
            End::Failed => {
                task.state = State::Failed;
                let alert = of_dead_letter(task);
                self.raise(alert, false);
                if let Some(uid) = uid {
                    *self.failures_in_row.entry(uid).or_default() += 1;
                }
            }
            End::Cancelled { reason } => {
                task.state = State::Cancelled;
                task.cancel_reason = Some(reason.to_owned());
            }
        }
        if let Some(uid) = uid {
            self.release_held(uid, at);
        }
    }

    /// Lets the first held task of a schedule go on when no active one is left.
    pub(super) fn release_held(&mut self, uid: Uuid, now: Timestamp) {
        if self.rows.values().any(|row| row.is_of_schedule(uid) && row.is_active()) {
            return;
        }
        let held = self.rows.values_mut().filter(|row| row.is_of_schedule(uid) && row.task.held);
        if let Some(first) = held.min_by_key(|row| row.number) {
            first.task.held = false;
            first.task.run_at = first.task.run_at.max(now);
        }
    }

    pub(super) fn audit_act(&mut self, action: &str, target: String, act: &Act) {
        self.record(AuditEntry {
            time: act.at,
            who: act.who.clone(),
            action: action.to_owned(),
            target,
            reason: act.reason.clone(),
        });
    }

    pub(super) fn record(&mut self, entry: AuditEntry) {
        let number = self.next_number();
        self.audit.insert(number, entry);
    }
}
