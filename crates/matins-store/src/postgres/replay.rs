//! What was journalled while the database was away, written into it. An entry is applied once,
//! whoever brings it and whenever: its id is remembered in the transaction that applies it.

use matins_core::alert::{Alert, Rule};
use matins_core::outage::{Change, DarkClaim, Entry};
use matins_core::schedule::FirePlan;
use matins_core::store::{Outbox as _, Result};
use matins_core::task::{NewTask, TaskId};
use uuid::Uuid;

use super::PostgresStore;
use super::enqueue::Each;
use super::error::Res;
use super::row::get;
use super::sql::Sql;
use super::time::At;

impl PostgresStore {
    /// Applies entries in their order, enqueues that follow each other in one transaction; those
    /// that were applied before are passed over. Answers the tasks that were taken in.
    ///
    /// A key that somebody else has by now is judged here: the task gets a row of its own that
    /// has ended, as completed when its key has, else as cancelled (`duplicate_key`), because
    /// somebody was given its id.
    pub(crate) async fn replay(&self, entries: &[Entry]) -> Result<Vec<TaskId>> {
        let is_enqueue = |entry: &Entry| matches!(entry.change, Change::Enqueue(_));
        let mut came_in = Vec::new();
        for some in entries.chunk_by(|one, next| is_enqueue(one) && is_enqueue(next)) {
            match &some[0].change {
                Change::Enqueue(_) => came_in.extend(self.replay_enqueues(some).await?),
                Change::Claim(dark) => self.replay_dark_claim(&some[0], dark).await?,
                Change::Fire(plan) => {
                    self.replay_dark_plan(&some[0], plan).await?;
                    came_in.extend(plan.starts.iter().map(|start| start.task.id));
                }
                // By its fence: what does not run under it any more, it does not touch.
                Change::Settle(settlement) => {
                    self.end_runs(std::slice::from_ref(settlement)).await?;
                    came_in.push(settlement.claim.id);
                }
            }
        }
        self.control.ear.ring();
        Ok(came_in)
    }

    async fn replay_dark_claim(&self, entry: &Entry, dark: &DarkClaim) -> Result<()> {
        // Its enqueue may have been lost: the claim has the whole task.
        let task = Box::new(as_new(&dark.task));
        let (high, low) = entry.id.as_u64_pair();
        let id = Uuid::from_u64_pair(!high, low);
        self.replay_enqueues(&[Entry { id, at: entry.at, change: Change::Enqueue(task) }]).await?;
        if !self.replay_claim(entry, dark).await? {
            let (id, attempt) = (dark.claim.id, dark.task.attempt);
            tracing::error!(task = %id, attempt, worker = %dark.worker,
                "superseded: it ran while PostgreSQL was away, and somebody else had it");
            let alert = Alert::new(Rule::Invariant, id.to_string(), entry.at);
            let alert =
                alert.fact("superseded_attempt", attempt).fact("worker", dark.worker.to_string());
            self.raise(vec![alert], false).await?;
        }
        Ok(())
    }

    async fn replay_dark_plan(&self, entry: &Entry, plan: &FirePlan) -> Result<()> {
        if !self.replay_plan(entry, plan).await? {
            let name = &plan.state.spec.name;
            let labels = plan.occurrences.iter().map(|one| &*one.label).collect::<Vec<_>>();
            tracing::error!(
                schedule = name,
                ?labels,
                "superseded: it fired while PostgreSQL was away, and somebody else decided"
            );
            let alert = Alert::new(Rule::Invariant, name.clone(), entry.at);
            self.raise(vec![alert.fact("superseded_labels", labels.join(" "))], false).await?;
        }
        Ok(())
    }

    async fn replay_enqueues(&self, entries: &[Entry]) -> Res<Vec<TaskId>> {
        let ids: Vec<Uuid> = entries.iter().map(|entry| entry.id).collect();
        let at: Vec<At> = entries.iter().map(|entry| At(entry.at)).collect();
        // Whoever journalled it may have written it before, and lost the answer.
        let task = |entry: &Entry| match &entry.change {
            Change::Enqueue(task) => Some(NewTask { client_id: true, ..(**task).clone() }),
            Change::Claim(_) | Change::Settle(_) | Change::Fire(_) => None,
        };
        let tasks: Vec<NewTask> = entries.iter().filter_map(task).collect();
        let each = Each::of(&tasks);
        let mut params = each.params();
        params.extend_from_slice(&[&ids, &at]);
        let rows = self.work.rows(Sql::ReplayEnqueues, &params).await?;
        if let Some(first) = tasks.iter().map(NewTask::order).min() {
            self.floors.lower(first);
        }
        rows.iter().map(|row| Ok(TaskId(get(row, 0)?))).collect()
    }
}

/// What a task was when it was accepted, as far as its run needs it.
fn as_new(task: &matins_core::task::Task) -> NewTask {
    NewTask {
        pool: task.pool.clone(),
        priority: task.priority,
        expires_at: task.expires_at,
        execution_key: task.execution_key.clone(),
        concurrency_key: task.concurrency_key.clone(),
        tags: task.tags.clone(),
        max_retries: task.max_retries,
        backoff: task.backoff,
        timeout: task.timeout,
        origin: task.origin.clone(),
        created_by: task.created_by.clone(),
        ..NewTask::new(task.id, task.kind.clone(), task.payload.clone(), task.run_at)
    }
}
