//! What was journalled while the database was away, written into it. An entry is applied once,
//! whoever brings it and whenever: its id is remembered in the transaction that applies it.

use matins_core::alert::{Alert, Rule};
use matins_core::outage::{Change, DarkCancel, DarkClaim, DarkPause, Entry};
use matins_core::schedule::FirePlan;
use matins_core::store::{Outbox as _, Result, StoreError};
use matins_core::task::{NewTask, State, Task, TaskId};
use uuid::Uuid;

use super::PostgresStore;
use super::enqueue::Each;
use super::error::{Failure, Res};
use super::link::Param;
use super::row::get;
use super::sql::Sql;
use super::text::Text;
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
                Change::Cancel(cancel) => self.replay_dark_cancel(&some[0], cancel).await?,
                Change::Pause(pause) => self.replay_pause(&some[0], pause).await?,
            }
        }
        self.control.ear.ring();
        Ok(came_in)
    }

    /// The enqueue of a task may have been lost, or come later: what was done to it has the whole
    /// task.
    async fn replay_enqueue_of(&self, entry: &Entry, task: &Task) -> Result<()> {
        let change = Change::Enqueue(Box::new(as_new(task)));
        let (high, low) = entry.id.as_u64_pair();
        let id = Uuid::from_u64_pair(!high, low);
        self.replay_enqueues(&[Entry { id, at: entry.at, change }]).await?;
        Ok(())
    }

    async fn replay_dark_cancel(&self, entry: &Entry, cancel: &DarkCancel) -> Result<()> {
        let DarkCancel { task, act } = cancel;
        self.replay_enqueue_of(entry, task).await?;
        if !self.replay_cancel(entry, cancel).await? {
            tracing::error!(task = %task.id, who = act.who,
                "superseded: it was cancelled while PostgreSQL was away, and somebody else had it");
            let alert = Alert::new(Rule::Invariant, task.id.to_string(), entry.at);
            self.raise(vec![alert.fact("superseded_cancel_by", &*act.who)], false).await?;
        }
        Ok(())
    }

    async fn replay_dark_claim(&self, entry: &Entry, dark: &DarkClaim) -> Result<()> {
        self.replay_enqueue_of(entry, &dark.task).await?;
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

    /// `false`: somebody else had the task, and it changes nothing.
    async fn replay_cancel(&self, entry: &Entry, cancel: &DarkCancel) -> Res<bool> {
        let DarkCancel { task, act } = cancel;
        let params: [Param<'_>; 10] = [
            &entry.id,
            &At(entry.at),
            &task.id.0,
            &(task.state == State::Running),
            &task.attempt.cast_signed(),
            &task.retries.cast_signed(),
            &task.losses.cast_signed(),
            &task.interruptions.cast_signed(),
            &Text(&act.who),
            &act.reason.as_deref().map(Text),
        ];
        let row = self.work.one(Sql::ReplayCancel, &params).await?;
        let row = row.ok_or_else(|| Failure::broken("no answer to a cancel of the journal"))?;
        Ok(get::<i32>(&row, 0)? != 2)
    }

    async fn replay_pause(&self, entry: &Entry, pause: &DarkPause) -> Result<()> {
        let DarkPause { pool, act } = pause;
        let params: [Param<'_>; 5] = [
            &entry.id,
            &At(entry.at),
            &Text(pool),
            &Text(&act.who),
            &act.reason.as_deref().map(Text),
        ];
        self.work.rows(Sql::ReplayPause, &params).await.map_err(StoreError::from)?;
        Ok(())
    }

    async fn replay_enqueues(&self, entries: &[Entry]) -> Res<Vec<TaskId>> {
        let ids: Vec<Uuid> = entries.iter().map(|entry| entry.id).collect();
        let at: Vec<At> = entries.iter().map(|entry| At(entry.at)).collect();
        // Whoever journalled it may have written it before, and lost the answer.
        let task = |entry: &Entry| match &entry.change {
            Change::Enqueue(task) => Some(NewTask { client_id: true, ..(**task).clone() }),
            _ => None,
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
fn as_new(task: &Task) -> NewTask {
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
