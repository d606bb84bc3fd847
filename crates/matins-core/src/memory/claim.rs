//! Handing out: what is in line, what may run, what is passed over.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::life::End;
use super::{Holder, Model};
use crate::store::{ClaimBatch, ClaimRequest};
use crate::task::{Attempt, Claim, Claimed, Name, Output, State, Task, TaskId};

/// What runs now, counted the ways that limits ask for.
#[derive(Default)]
pub(super) struct Running {
    pub(super) by_kind: BTreeMap<Name, u32>,
    pub(super) by_key: BTreeMap<(Name, Arc<str>), u32>,
    pub(super) quarantined: u32,
}

/// Why a task in line does not run now.
enum Obstacle {
    /// Goes away when something else ends.
    Other,
    /// Goes away by itself.
    Until(Timestamp),
}

impl Model {
    pub(super) fn claim(&mut self, request: &ClaimRequest) -> ClaimBatch {
        let mut batch = ClaimBatch::default();
        if request.repeated {
            batch.claimed = self.claimed_before(request);
            if !batch.claimed.is_empty() {
                return batch;
            }
        }
        if request.max == 0 || self.settings.frozen.is_some() || !self.may_claim(request) {
            return batch;
        }
        // One task at a time, from the start of the line, for whatever happens to one may
        // change the line.
        let now = request.now;
        loop {
            let openings = match self.foremost(request) {
                Ok(id) if self.ends_unrun(id, now) => continue,
                Ok(id) => {
                    batch.claimed.extend(self.start(id, request));
                    if batch.claimed.len() < request.max {
                        continue;
                    }
                    None
                }
                Err(opening) => opening,
            };
            let due = self.served(request).map(|task| task.run_at).filter(|at| *at > now).min();
            batch.next_at = [openings, due].into_iter().flatten().min();
            return batch;
        }
    }

    /// What an earlier call with the same token was given.
    fn claimed_before(&self, request: &ClaimRequest) -> Vec<Claimed> {
        let holders = self.rows.values().filter_map(|row| {
            let holder = row.held_by.as_ref()?;
            let same = holder.worker == request.worker && holder.claim.token == request.token;
            same.then(|| Claimed { task: row.task.clone(), claim: holder.claim })
        });
        let mut claimed: Vec<Claimed> = holders.collect();
        claimed.sort_by_key(|claimed| claimed.claim.fence);
        claimed
    }

    /// A lease must cover what is handed out.
    fn may_claim(&self, request: &ClaimRequest) -> bool {
        request.lease_until.is_some()
            || self
                .workers
                .get(&request.worker)
                .is_some_and(|entry| !entry.retired && entry.worker.lease_until >= request.now)
    }

    /// Waiting tasks of the kind asked for.
    fn served<'a>(&'a self, request: &'a ClaimRequest) -> impl Iterator<Item = &'a Task> {
        self.rows.values().map(|row| &row.task).filter(|task| {
            task.state == State::Pending
                && !task.held
                && request.pool.as_ref().is_none_or(|pool| *pool == task.pool)
                && request.types.contains(&task.kind)
                && request.ids.as_ref().is_none_or(|ids| ids.contains(&task.id))
                && !self.settings.pools.get(&task.pool).is_some_and(|setting| setting.paused)
        })
    }

    /// The first task in line that may run, or when the next one may by time alone.
    fn foremost(&self, request: &ClaimRequest) -> Result<TaskId, Option<Timestamp>> {
        let mut line: Vec<_> = self
            .served(request)
            .filter(|task| task.run_at <= request.now)
            .map(|task| (self.rows[&task.id].place(), task))
            .collect();
        line.sort_by_key(|(place, _)| *place);
        let running = self.running();
        let mut opening: Option<Timestamp> = None;
        for (_, task) in line {
            match self.obstacle(task, &running, request.now) {
                None => return Ok(task.id),
                Some(Obstacle::Until(at)) => opening = Some(opening.map_or(at, |o| o.min(at))),
                Some(Obstacle::Other) => {}
            }
        }
        Err(opening)
    }

    fn obstacle(&self, task: &Task, running: &Running, now: Timestamp) -> Option<Obstacle> {
        let count = |n: Option<&u32>| n.copied().unwrap_or(0);
        let limit = self.settings.limits.get(&task.kind);
        if task.in_quarantine() && running.quarantined > 0 {
            return Some(Obstacle::Other);
        }
        let concurrency = limit.and_then(|limit| limit.concurrency);
        if concurrency.is_some_and(|most| count(running.by_kind.get(&task.kind)) >= most) {
            return Some(Obstacle::Other);
        }
        if let Some(key) = &task.concurrency_key {
            let runs = count(running.by_key.get(&(task.kind.clone(), key.clone())));
            if runs >= self.per_key(&task.kind) {
                return Some(Obstacle::Other);
            }
        }
        let rate = limit.and_then(|limit| limit.rate_limit)?;
        let spent = self.spent.get(&task.kind).copied();
        (rate.available(spent, now) == 0).then(|| Obstacle::Until(rate.next_at(spent, now)))
    }

    pub(super) fn per_key(&self, kind: &str) -> u32 {
        self.settings.limits.get(kind).map_or(1, |limit| limit.per_key)
    }

    pub(super) fn running(&self) -> Running {
        let mut running = Running::default();
        for task in self.rows.values().map(|row| &row.task) {
            if task.state != State::Running {
                continue;
            }
            *running.by_kind.entry(task.kind.clone()).or_default() += 1;
            if let Some(key) = &task.concurrency_key {
                *running.by_key.entry((task.kind.clone(), key.clone())).or_default() += 1;
            }
            running.quarantined += u32::from(task.in_quarantine());
        }
        running
    }

    /// Ends a task whose time is over or whose work is done already, instead of running it.
    fn ends_unrun(&mut self, id: TaskId, now: Timestamp) -> bool {
        let task = &self.rows[&id].task;
        if task.expires_at.is_some_and(|at| at <= now) {
            self.end(id, End::Cancelled { reason: "expired" }, now);
            return true;
        }
        let key = task.execution_key.as_ref().map(|key| (task.kind.clone(), key.clone()));
        let Some(done) = key.and_then(|key| self.completions.get(&key)).cloned() else {
            return false;
        };
        let result = done.result;
        let end = End::Completed { result, result_dropped_bytes: None, deduplicated: true };
        self.end(id, end, now);
        true
    }

    fn start(&mut self, id: TaskId, request: &ClaimRequest) -> Option<Claimed> {
        self.fence += 1;
        let now = request.now;
        let row = self.rows.get_mut(&id)?;
        let claim = Claim { id, fence: self.fence, token: request.token };
        row.task.state = State::Running;
        row.task.attempt += 1;
        row.task.started_at = Some(now);
        row.held_by = Some(Holder {
            claim,
            worker: request.worker.clone(),
            lease_until: request.lease_until,
        });
        row.attempts.push(Attempt {
            number: row.task.attempt,
            worker: request.worker.0.clone(),
            started_at: now,
            finished_at: None,
            outcome: None,
            error: None,
            exit_code: None,
            http_status: None,
            output: Output::default(),
        });
        let task = row.task.clone();
        let rate = self.settings.limits.get(&task.kind).and_then(|limit| limit.rate_limit);
        if let Some(rate) = rate {
            let spent = self.spent.get(&task.kind).copied();
            self.spent.insert(task.kind.clone(), rate.take(spent, now, 1));
        }
        Some(Claimed { task, claim })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Json;
    use crate::memory::Completion;
    use crate::store::Types;
    use crate::task::{NewTask, WorkerId};
    use uuid::Uuid;

    /// No call of the port brings two tasks of one key about; a second road into the same store
    /// (a journal replayed, a completion in the caller's own transaction) can.
    #[test]
    fn a_task_whose_key_was_completed_by_another_is_not_run() {
        let now = Timestamp::UNIX_EPOCH;
        let mut model = Model::default();
        let mut waiting = NewTask::new(TaskId(Uuid::from_u128(1)), "sync", Json::null(), now);
        waiting.execution_key = Some("k".into());
        model.enqueue(&waiting, now);
        let result = Some(Json::string("42"));
        let done = Completion { task_id: TaskId(Uuid::from_u128(2)), result, at: now };
        model.completions.insert(("sync".into(), "k".into()), done.clone());

        let batch = model.claim(&ClaimRequest {
            worker: WorkerId("w".into()),
            pool: None,
            types: Types::Any,
            ids: None,
            max: 9,
            token: 1,
            repeated: false,
            lease_until: Some(Timestamp::MAX),
            now,
        });
        assert_eq!(batch.claimed, []);
        let task = &model.rows[&waiting.id].task;
        assert_eq!((task.state, task.deduplicated, task.attempt), (State::Completed, true, 0));
        assert_eq!(task.result, done.result);
        assert_eq!(model.ledger_entry("sync", "k").unwrap().task_id, done.task_id);
    }
}
