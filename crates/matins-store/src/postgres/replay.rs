//! What was journalled while the database was away, written into it. An entry is applied once,
//! whoever brings it and whenever: its id is remembered in the transaction that applies it.

use matins_core::alert::{Alert, Rule};
use matins_core::lifecycle::Settlement;
use matins_core::outage::{Change, DarkCancel, DarkClaim, DarkPause, Entry};
use matins_core::schedule::FirePlan;
use matins_core::store::Result;
use matins_core::task::{NewTask, State, Task, TaskId};
use tokio_postgres::types::Json as Jsonb;
use uuid::Uuid;

use super::PostgresStore;
use super::claim::end;
use super::enqueue::Each;
use super::error::{Failure, Res};
use super::link::{Open, Param, REPEATS, Speaks as _, pause_before};
use super::outbox::add_alerts;
use super::row::get;
use super::schedules;
use super::sql::Sql;
use super::text::Text;
use super::time::At;

impl PostgresStore {
    /// Applies entries in their order, all of them or none; those that were applied before are
    /// passed over. Answers the tasks that were taken in.
    ///
    /// A key that somebody else has by now is judged here: the task gets a row of its own that
    /// has ended, as completed when its key has, else as cancelled (`duplicate_key`), because
    /// somebody was given its id.
    pub(crate) async fn replay(&self, entries: &[Entry]) -> Result<Vec<TaskId>> {
        let mut repeats = 0;
        let replayed = loop {
            match self.replay_once(entries).await {
                Err(failure) if failure.is_collision() && repeats < REPEATS => {
                    repeats += 1;
                    pause_before(repeats).await;
                }
                answer => break answer?,
            }
        };
        if let Some(first) = replayed.first {
            self.floors.lower(first);
        }
        self.control.ear.ring();
        Ok(replayed.came_in)
    }

    async fn replay_once(&self, entries: &[Entry]) -> Res<Replayed> {
        let open = self.work.open().await?;
        open.begin().await?;
        let mut replay = Replay { open, done: Replayed::default() };
        replay.open.rows(Sql::ReplayTurn, &[]).await?;
        let kind = |entry: &Entry| std::mem::discriminant(&entry.change);
        for alike in entries.chunk_by(|one, next| kind(one) == kind(next)) {
            replay.apply(alike).await?;
        }
        let Replay { open, done } = replay;
        open.commit().await?;
        Ok(done)
    }
}

/// What came in.
#[derive(Default)]
struct Replayed {
    came_in: Vec<TaskId>,
    /// The first place of a task that waits.
    first: Option<i64>,
}

/// A transaction that applies entries.
struct Replay<'s> {
    open: Open<'s>,
    done: Replayed,
}

impl Replay<'_> {
    /// Entries of one kind.
    async fn apply(&mut self, alike: &[Entry]) -> Res<()> {
        match &alike[0].change {
            Change::Enqueue(_) => {
                let new = |entry: &Entry| match &entry.change {
                    Change::Enqueue(task) => Some((entry.id, At(entry.at), NewTask::clone(task))),
                    _ => None,
                };
                let came_in = self.enqueues(alike.iter().filter_map(new).collect()).await?;
                self.done.came_in.extend(came_in);
            }
            Change::Claim(_) => {
                let claims = alike.iter().filter_map(|entry| match &entry.change {
                    Change::Claim(dark) => Some((entry, &**dark)),
                    _ => None,
                });
                self.claims(&claims.collect::<Vec<_>>()).await?;
            }
            // By its fence: what does not run under it any more, it does not touch.
            Change::Settle(_) => {
                let settlement = |entry: &Entry| match &entry.change {
                    Change::Settle(settlement) => Some(Settlement::clone(settlement)),
                    _ => None,
                };
                let settlements: Vec<_> = alike.iter().filter_map(settlement).collect();
                end(&self.open, &settlements).await?;
                self.done.came_in.extend(settlements.iter().map(|one| one.claim.id));
            }
            Change::Fire(_) | Change::Cancel(_) | Change::Pause(_) => {
                for entry in alike {
                    match &entry.change {
                        Change::Fire(plan) => self.plan(entry, plan).await?,
                        Change::Cancel(cancel) => self.cancel(entry, cancel).await?,
                        Change::Pause(pause) => self.pause(entry, pause).await?,
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Tasks, each with the id of its entry. Answers those that were not known.
    async fn enqueues(&mut self, entries: Vec<(Uuid, At, NewTask)>) -> Res<Vec<TaskId>> {
        let ids: Vec<Uuid> = entries.iter().map(|(id, ..)| *id).collect();
        let at: Vec<At> = entries.iter().map(|(_, at, _)| *at).collect();
        // Whoever journalled it may have written it before, and lost the answer.
        let known = |(_, _, task)| NewTask { client_id: true, ..task };
        let tasks: Vec<NewTask> = entries.into_iter().map(known).collect();
        let each = Each::of(&tasks);
        let mut params = each.params();
        params.extend_from_slice(&[&ids, &at]);
        let rows = self.open.rows(Sql::ReplayEnqueues, &params).await?;
        self.wait_from(tasks.iter().map(NewTask::order).min());
        rows.iter().map(|row| Ok(TaskId(get(row, 0)?))).collect()
    }

    fn wait_from(&mut self, first: Option<i64>) {
        self.done.first = self.done.first.into_iter().chain(first).min();
    }

    /// The enqueue of a task may have been lost, or come later: what was done to it has the whole
    /// task.
    async fn enqueues_of(&mut self, done: &[(&Entry, &Task)]) -> Res<()> {
        let enqueue = |(entry, task): &(&Entry, &Task)| {
            let (high, low) = entry.id.as_u64_pair();
            (Uuid::from_u64_pair(!high, low), At(entry.at), as_new(task))
        };
        self.enqueues(done.iter().map(enqueue).collect()).await.map(drop)
    }

    async fn claims(&mut self, claims: &[(&Entry, &DarkClaim)]) -> Res<()> {
        let tasks: Vec<_> = claims.iter().map(|(entry, dark)| (*entry, &dark.task)).collect();
        self.enqueues_of(&tasks).await?;
        for (entry, dark) in claims {
            let params: [Param<'_>; 12] = [
                &entry.id,
                &At(entry.at),
                &dark.claim.id.0,
                &dark.task.attempt.cast_signed(),
                &dark.claim.fence.cast_signed(),
                &dark.claim.token.cast_signed(),
                &Text(&dark.worker.0),
                &dark.member,
                &dark.episode.cast_signed(),
                &dark.task.retries.cast_signed(),
                &dark.task.losses.cast_signed(),
                &dark.task.interruptions.cast_signed(),
            ];
            if self.superseded(Sql::ReplayClaim, &params).await? {
                let (id, attempt) = (dark.claim.id, dark.task.attempt);
                tracing::error!(task = %id, attempt, worker = %dark.worker,
                    "superseded: it ran while PostgreSQL was away, and somebody else had it");
                let alert = Alert::new(Rule::Invariant, id.to_string(), entry.at)
                    .fact("superseded_attempt", attempt)
                    .fact("worker", dark.worker.to_string());
                self.raise(alert).await?;
            }
        }
        Ok(())
    }

    async fn plan(&mut self, entry: &Entry, plan: &FirePlan) -> Res<()> {
        // A task of it may have come with its claim.
        let mut known = plan.clone();
        known.starts.iter_mut().for_each(|start| start.task.client_id = true);
        let value = Jsonb(schedules::plan(&known)?);
        let params: [Param<'_>; 3] = [&entry.id, &At(entry.at), &value];
        let superseded = self.superseded(Sql::ReplayFire, &params).await?;
        self.wait_from(plan.starts.iter().map(|start| start.task.order()).min());
        self.done.came_in.extend(plan.starts.iter().map(|start| start.task.id));
        if superseded {
            let name = &plan.state.spec.name;
            let labels = plan.occurrences.iter().map(|one| &*one.label).collect::<Vec<_>>();
            tracing::error!(
                schedule = name,
                ?labels,
                "superseded: it fired while PostgreSQL was away, and somebody else decided"
            );
            let alert = Alert::new(Rule::Invariant, name.clone(), entry.at);
            self.raise(alert.fact("superseded_labels", labels.join(" "))).await?;
        }
        Ok(())
    }

    async fn cancel(&mut self, entry: &Entry, cancel: &DarkCancel) -> Res<()> {
        let DarkCancel { task, act } = cancel;
        self.enqueues_of(&[(entry, task)]).await?;
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
        if self.superseded(Sql::ReplayCancel, &params).await? {
            tracing::error!(task = %task.id, who = act.who,
                "superseded: it was cancelled while PostgreSQL was away, and somebody else had it");
            let alert = Alert::new(Rule::Invariant, task.id.to_string(), entry.at);
            self.raise(alert.fact("superseded_cancel_by", &*act.who)).await?;
        }
        Ok(())
    }

    async fn pause(&mut self, entry: &Entry, pause: &DarkPause) -> Res<()> {
        let DarkPause { pool, act } = pause;
        let params: [Param<'_>; 5] = [
            &entry.id,
            &At(entry.at),
            &Text(pool),
            &Text(&act.who),
            &act.reason.as_deref().map(Text),
        ];
        self.open.rows(Sql::ReplayPause, &params).await.map(drop)
    }

    /// Whether somebody else was faster, and the entry changes nothing.
    async fn superseded(&self, sql: Sql, params: &[Param<'_>]) -> Res<bool> {
        let rows = self.open.rows(sql, params).await?;
        let row = rows.first().ok_or_else(|| Failure::broken("no answer to an entry"))?;
        Ok(get::<i32>(row, 0)? == 2)
    }

    async fn raise(&self, alert: Alert) -> Res<()> {
        add_alerts(&self.open, &[alert], false).await
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
