//! Tasks: accepted, handed out, ended.

use async_trait::async_trait;
use jiff::Timestamp;

use super::life::End;
use super::{Holder, MemoryStore, Model, Row, WorkerRow};
use crate::Json;
use crate::lifecycle::{Next, Settlement};
use crate::store::{
    Act, Cancelled, ClaimBatch, ClaimRequest, Dismissed, Enqueued, Extended, Lapsed, Queue, Result,
    Retried, Settled, Worker,
};
use crate::task::{Claim, Claimed, Dismissal, NewTask, State, TaskId, WorkerId};

impl Model {
    /// The row that a claim may still write about.
    fn standing(&self, claim: &Claim) -> Option<&Row> {
        let row = self.rows.get(&claim.id)?;
        row.held_by.as_ref().is_some_and(|holder| holder.claim == *claim).then_some(row)
    }

    fn settle(&mut self, s: Settlement) -> Settled {
        let id = s.claim.id;
        if self.standing(&s.claim).is_none() {
            return Settled::Fenced;
        }
        self.free_key_slot(id, s.finished_at);
        let Some(row) = self.rows.get_mut(&id) else { return Settled::Fenced };
        row.held_by = None;
        let task = &mut row.task;
        let (next, retries) = s.taken(task.cancel_requested_at.is_some());
        let next = next.clone();
        task.error.clone_from(&s.error);
        task.retries = retries;
        task.losses = s.losses;
        task.interruptions = s.interruptions;
        if let Some(attempt) = row.attempts.last_mut() {
            attempt.finished_at = Some(s.finished_at);
            attempt.outcome = Some(s.outcome);
            attempt.error = s.error;
            attempt.exit_code = s.trace.exit_code;
            attempt.http_status = s.trace.http_status;
            attempt.output = s.trace.output;
        }
        match next {
            Next::Again { run_at } => {
                task.state = State::Pending;
                task.run_at = run_at;
            }
            Next::Completed { result, result_dropped_bytes } => {
                let end = End::Completed { result, result_dropped_bytes, deduplicated: false };
                self.end(id, end, s.finished_at);
            }
            Next::Failed => self.end(id, End::Failed, s.finished_at),
            Next::Cancelled { reason } => self.end(id, End::Cancelled { reason }, s.finished_at),
        }
        Settled::Done(self.rows[&id].task.state)
    }

    /// Notes that a saturated `concurrency_key` has room again: its tasks line up anew.
    fn free_key_slot(&mut self, id: TaskId, now: Timestamp) {
        let task = &self.rows[&id].task;
        let Some(key) = &task.concurrency_key else { return };
        let key = (task.kind.clone(), key.clone());
        let runs = self.running().by_key.get(&key).copied().unwrap_or(0);
        if runs < self.per_key(&key.0) {
            return;
        }
        for row in self.rows.values_mut().filter(|row| row.task.state == State::Pending) {
            if row.task.kind == key.0 && row.task.concurrency_key.as_ref() == Some(&key.1) {
                row.turn = Some(now);
            }
        }
    }

    fn is_lapsed(&self, holder: &Holder, now: Timestamp) -> bool {
        let entry = self.workers.get(&holder.worker);
        let lease = holder.lease_until.or(entry.map(|entry| entry.worker.lease_until));
        entry.is_some_and(|entry| entry.retired) || lease.is_none_or(|lease| lease < now)
    }

    /// Rows that run, in the order they were claimed.
    fn held_rows(&self) -> Vec<(&Row, &Holder)> {
        let mut rows: Vec<_> = self
            .rows
            .values()
            .filter_map(|row| row.held_by.as_ref().map(|holder| (row, holder)))
            .collect();
        rows.sort_by_key(|(_, holder)| holder.claim.fence);
        rows
    }

    fn lapsed(&self, now: Timestamp, limit: usize) -> Vec<Lapsed> {
        let lapsed = |(row, holder): (&Row, &Holder)| Lapsed {
            claimed: Claimed { task: row.task.clone(), claim: holder.claim },
            worker: holder.worker.clone(),
            draining: self.workers.get(&holder.worker).is_some_and(|entry| entry.worker.draining),
        };
        let rows = self.held_rows().into_iter();
        rows.filter(|(_, holder)| self.is_lapsed(holder, now)).take(limit).map(lapsed).collect()
    }

    fn extend(&mut self, claims: &[Claim], lease_until: Timestamp) -> Extended {
        let mut answer = Extended::default();
        for claim in claims {
            if self.standing(claim).is_none() {
                answer.lost.push(claim.id);
                continue;
            }
            let Some(row) = self.rows.get_mut(&claim.id) else { continue };
            if row.task.cancel_requested_at.is_some() {
                answer.cancel.push(claim.id);
            }
            if let Some(lease) = row.held_by.as_mut().and_then(|h| h.lease_until.as_mut()) {
                *lease = lease_until;
            }
        }
        answer
    }

    fn expire(&mut self, now: Timestamp, limit: usize) -> u64 {
        let mut over: Vec<_> = self
            .rows
            .values()
            .filter(|row| row.task.state == State::Pending)
            .filter_map(|row| Some((row.task.expires_at?, row.number, row.task.id)))
            .filter(|(at, ..)| *at <= now)
            .collect();
        over.sort_unstable();
        over.truncate(limit);
        for (.., id) in &over {
            self.end(*id, End::Cancelled { reason: "expired" }, now);
        }
        over.len() as u64
    }

    fn cancel(&mut self, id: TaskId, act: &Act) -> Cancelled {
        let Some(row) = self.rows.get_mut(&id) else { return Cancelled::NotFound };
        match row.task.state {
            State::Pending => {
                self.end(id, End::Cancelled { reason: "cancelled" }, act.at);
                self.audit_act("task.cancel", id.to_string(), act);
                Cancelled::Done(Box::new(self.rows[&id].task.clone()))
            }
            State::Running => {
                row.task.cancel_requested_at.get_or_insert(act.at);
                let task = row.task.clone();
                self.audit_act("task.cancel", id.to_string(), act);
                Cancelled::Requested(Box::new(task))
            }
            State::Completed | State::Failed | State::Cancelled => {
                Cancelled::AlreadyEnded(Box::new(row.task.clone()))
            }
        }
    }

    fn retry(&mut self, id: TaskId, payload: Option<&Json>, act: &Act) -> Retried {
        let Some(row) = self.rows.get(&id) else { return Retried::NotFound };
        match row.task.state {
            State::Pending => self.make_due(id, payload, act),
            State::Failed => self.replay(id, payload, act),
            State::Running | State::Completed | State::Cancelled => {
                Retried::WrongState(Box::new(row.task.clone()))
            }
        }
    }

    fn make_due(&mut self, id: TaskId, payload: Option<&Json>, act: &Act) -> Retried {
        let Some(row) = self.rows.get_mut(&id) else { return Retried::NotFound };
        let task = &mut row.task;
        task.run_at = task.run_at.min(act.at);
        task.payload = payload.unwrap_or(&task.payload).clone();
        let answer = Retried::DueNow(Box::new(task.clone()));
        self.audit_act("task.retry", id.to_string(), act);
        answer
    }

    fn replay(&mut self, id: TaskId, payload: Option<&Json>, act: &Act) -> Retried {
        let task = &self.rows[&id].task;
        let holder = task.execution_key.as_deref().and_then(|k| self.ledger_entry(&task.kind, k));
        if let Some(holder) = holder {
            return Retried::Deduplicated(self.task_of(&holder));
        }
        let Some(row) = self.rows.get_mut(&id) else { return Retried::NotFound };
        let task = &mut row.task;
        task.state = State::Pending;
        task.run_at = act.at;
        task.payload = payload.unwrap_or(&task.payload).clone();
        task.retries = 0;
        task.losses = 0;
        task.interruptions = 0;
        task.replays += 1;
        task.finished_at = None;
        task.error = None;
        task.dismissed = None;
        task.expires_at = task.expires_at.filter(|at| *at > act.at);
        let answer = Retried::Replayed(Box::new(task.clone()));
        self.audit_act("dead_letter.replay", id.to_string(), act);
        answer
    }

    fn dismiss(&mut self, id: TaskId, act: &Act) -> Dismissed {
        let Some(row) = self.rows.get_mut(&id) else { return Dismissed::NotFound };
        if !row.task.is_dead_letter() {
            return Dismissed::WrongState(Box::new(row.task.clone()));
        }
        let reason = act.reason.clone().unwrap_or_default();
        row.task.dismissed = Some(Dismissal { by: act.who.clone(), at: act.at, reason });
        let task = row.task.clone();
        self.audit_act("dead_letter.dismiss", id.to_string(), act);
        Dismissed::Done(Box::new(task))
    }
}

#[async_trait]
impl Queue for MemoryStore {
    async fn enqueue(&self, tasks: Vec<NewTask>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let mut model = self.model();
        Ok(tasks.iter().map(|task| model.enqueue(task, now)).collect())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimBatch> {
        Ok(self.model().claim(&request))
    }

    async fn settle(&self, items: Vec<Settlement>) -> Result<Vec<Settled>> {
        let mut model = self.model();
        Ok(items.into_iter().map(|item| model.settle(item)).collect())
    }

    async fn register(&self, worker: Worker) -> Result<()> {
        let entry = WorkerRow { worker, retired: false };
        self.model().workers.insert(entry.worker.id.clone(), entry);
        Ok(())
    }

    async fn beat(&self, worker: &Worker) -> Result<bool> {
        let mut model = self.model();
        let entry = model.workers.get_mut(&worker.id).filter(|entry| !entry.retired);
        let Some(entry) = entry else { return Ok(false) };
        let started_at = entry.worker.started_at;
        entry.worker = Worker { started_at, ..worker.clone() };
        Ok(true)
    }

    async fn retire(&self, worker: &WorkerId, _now: Timestamp) -> Result<()> {
        if let Some(entry) = self.model().workers.get_mut(worker) {
            entry.retired = true;
        }
        Ok(())
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        let model = self.model();
        let entries = model.workers.values().filter(|entry| !entry.retired);
        Ok(entries.map(|entry| entry.worker.clone()).collect())
    }

    async fn extend(&self, claims: &[Claim], lease_until: Timestamp) -> Result<Extended> {
        Ok(self.model().extend(claims, lease_until))
    }

    async fn cancel_requests(&self, worker: &WorkerId) -> Result<Vec<TaskId>> {
        let model = self.model();
        let rows = model.held_rows().into_iter();
        let asked = rows.filter(|(row, holder)| {
            holder.worker == *worker && row.task.cancel_requested_at.is_some()
        });
        Ok(asked.map(|(row, _)| row.task.id).collect())
    }

    async fn lapsed(&self, now: Timestamp, limit: usize) -> Result<Vec<Lapsed>> {
        Ok(self.model().lapsed(now, limit))
    }

    async fn expire(&self, now: Timestamp, limit: usize) -> Result<u64> {
        Ok(self.model().expire(now, limit))
    }

    async fn cancel(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Cancelled>> {
        let mut model = self.model();
        Ok(ids.iter().map(|id| model.cancel(*id, act)).collect())
    }

    async fn retry(
        &self,
        ids: &[TaskId],
        payload: Option<Json>,
        act: &Act,
    ) -> Result<Vec<Retried>> {
        let mut model = self.model();
        Ok(ids.iter().map(|id| model.retry(*id, payload.as_ref(), act)).collect())
    }

    async fn dismiss(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Dismissed>> {
        let mut model = self.model();
        Ok(ids.iter().map(|id| model.dismiss(*id, act)).collect())
    }
}
