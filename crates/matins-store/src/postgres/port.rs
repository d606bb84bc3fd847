//! The port, verb by verb.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use jiff::Timestamp;
use matins_core::Json;
use matins_core::alert::Alert;
use matins_core::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use matins_core::lifecycle::Settlement;
use matins_core::operation::Operation;
use matins_core::page::{Page, PageRequest};
use matins_core::schedule::{DueSchedule, FirePlan, Live, Occurrence, ScheduleState};
use matins_core::store::{
    Act, AuditEntry, Cancelled, ClaimBatch, ClaimRequest, Dismissed, Enqueued, Expect, Extended,
    Forgotten, Lapsed, LedgerEntry, Look, LookRequest, Order, Outbox, Pruned, Queue, Records,
    Result, Retention, Retried, SettingChange, Settings, Settled, Stats, Store, StoreInfo,
    TaskFilter, Timetables, Token, Tray, Turn, Worker,
};
use matins_core::task::{
    Attempt, Claim, Dismissal, NewTask, State, Task, TaskId, WorkerId, order_key,
};
use matins_core::why::Surroundings;
use uuid::Uuid;

use super::PostgresStore;
use super::claim::uuids;
use super::enqueue::{Accepted, is_plain};
use super::error::{Failure, Res};
use super::link::Param;
use super::migrate::LATEST;
use super::outbox::add_alerts;
use super::row::get;
use super::sql::Sql;
use super::text::Text;
use super::time::At;

#[async_trait]
impl Queue for PostgresStore {
    async fn enqueue(&self, tasks: Vec<NewTask>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let told = self.enqueue_told(tasks, now).await?;
        Ok(told.into_iter().map(|accepted| accepted.answer).collect())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimBatch> {
        Ok(self.hand_out(&request).await?.0)
    }

    async fn settle(&self, items: Vec<Settlement>) -> Result<Vec<Settled>> {
        let answers = self.end_runs(&items).await?;
        // Something may be due again, released, or have room now.
        self.control.ear.ring();
        Ok(answers)
    }

    async fn register(&self, worker: Worker) -> Result<()> {
        Ok(self.put_worker(&worker).await?)
    }

    async fn beat(&self, worker: &Worker) -> Result<bool> {
        Ok(self.renew_worker(worker).await?)
    }

    async fn retire(&self, worker: &WorkerId, _now: Timestamp) -> Result<()> {
        self.control.rows(Sql::WorkerRetire, &[&Text(&worker.0)]).await?;
        self.control.ear.ring();
        Ok(())
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        Ok(self.list_workers().await?)
    }

    async fn extend(&self, claims: &[Claim], lease_until: Timestamp) -> Result<Extended> {
        Ok(self.renew_claims(claims, lease_until).await?)
    }

    async fn cancel_requests(&self, worker: &WorkerId) -> Result<Vec<TaskId>> {
        Ok(self.asked_to_end(worker).await?)
    }

    async fn lapsed(&self, now: Timestamp, limit: usize) -> Result<Vec<Lapsed>> {
        Ok(self.list_lapsed(now, limit).await?)
    }

    async fn expire(&self, now: Timestamp, limit: usize) -> Result<u64> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let row = self.work.one(Sql::Expire, &[&At(now), &limit]).await?;
        let count = row.map(|row| get::<i64>(&row, 0)).transpose()?;
        Ok(count.unwrap_or(0).cast_unsigned())
    }

    async fn cancel(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Cancelled>> {
        let (uuids, reason) = (uuids(ids), act.reason.as_deref().map(Text));
        let params: [Param<'_>; 4] = [&uuids, &Text(&act.who), &reason, &At(act.at)];
        let answers = self.act(Sql::Cancel, &params, ids).await?;
        Ok(answers.into_iter().map(cancelled).collect())
    }

    async fn retry(
        &self,
        ids: &[TaskId],
        payload: Option<Json>,
        act: &Act,
    ) -> Result<Vec<Retried>> {
        let (uuids, reason) = (uuids(ids), act.reason.as_deref().map(Text));
        let payload = payload.as_ref().map(Json::as_str);
        let params: [Param<'_>; 5] = [&uuids, &payload, &Text(&act.who), &reason, &At(act.at)];
        let answers = self.act(Sql::Retry, &params, ids).await?;
        let mut told = Vec::with_capacity(answers.len());
        for answer in answers {
            told.push(retried(self, answer).await?);
        }
        Ok(told)
    }

    async fn dismiss(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Dismissed>> {
        let reason = act.reason.clone().unwrap_or_default();
        let dismissal = Dismissal { by: act.who.clone(), at: act.at, reason };
        let dismissal = serde_json::to_string(&dismissal).map_err(Failure::from)?;
        let (uuids, reason) = (uuids(ids), act.reason.as_deref().map(Text));
        let params: [Param<'_>; 5] =
            [&uuids, &Text(&dismissal), &Text(&act.who), &reason, &At(act.at)];
        let answers = self.act(Sql::Dismiss, &params, ids).await?;
        let told = answers.into_iter().map(|(answer, task)| match (answer, task) {
            (1, Some(task)) => Dismissed::Done(task),
            (_, Some(task)) => Dismissed::WrongState(task),
            (_, None) => Dismissed::NotFound,
        });
        Ok(told.collect())
    }
}

/// What came of an act on a task, and the task as it is now.
pub(super) type Acted = (i32, Option<Box<Task>>);

pub(super) fn cancelled(acted: Acted) -> Cancelled {
    match acted {
        (1, Some(task)) => Cancelled::Done(task),
        (2, Some(task)) => Cancelled::Requested(task),
        (_, Some(task)) => Cancelled::AlreadyEnded(task),
        (_, None) => Cancelled::NotFound,
    }
}

pub(super) async fn retried(store: &PostgresStore, acted: Acted) -> Res<Retried> {
    Ok(match acted {
        (_, None) => Retried::NotFound,
        (1, Some(task)) => Retried::DueNow(task),
        (2, Some(task)) => Retried::Replayed(task),
        (4, Some(task)) => Retried::Deduplicated(store.holder_of(task).await?),
        (_, Some(task)) => Retried::WrongState(task),
    })
}

impl PostgresStore {
    /// As `enqueue`, with the order of acceptance of what is known to wait.
    pub(crate) async fn enqueue_told(
        &self,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Result<Vec<Accepted>> {
        self.clock.fetch_max(now.as_microsecond(), Ordering::Relaxed);
        let first = tasks.iter().map(|task| order_key(task.run_at, task.priority)).min();
        let plain = tasks.iter().all(is_plain);
        let gate = if plain { &self.gate } else { &self.gate_of_rules };
        let answers = gate.enqueue(tasks, now).await?;
        if let Some(first) = first {
            self.floors.lower(first);
        }
        self.control.ear.ring();
        Ok(answers)
    }

    async fn act(&self, sql: Sql, params: &[Param<'_>], ids: &[TaskId]) -> Res<Vec<Acted>> {
        let acted = self.act_taken(sql, params, ids).await?;
        acted.ok_or_else(|| Failure::broken("no answer to an act"))
    }

    /// Does something to some tasks; `None`: they were taken, and have moved on since.
    pub(super) async fn act_taken(
        &self,
        sql: Sql,
        params: &[Param<'_>],
        ids: &[TaskId],
    ) -> Res<Option<Vec<Acted>>> {
        let Some(row) = self.work.one(sql, params).await? else { return Ok(None) };
        let answers: Vec<i32> = get(&row, 0)?;
        self.control.ear.ring();
        let found = self.find_all(&uuids(ids)).await?;
        let pairs = ids.iter().zip(answers);
        let told = pairs.map(|(id, answer)| (answer, found.get(&id.0).cloned().map(Box::new)));
        Ok(Some(told.collect()))
    }

    /// The task that has the key of a dead letter that wanted it again.
    async fn holder_of(&self, task: Box<Task>) -> Res<Box<Task>> {
        let Some(key) = &task.execution_key else { return Ok(task) };
        let Some(entry) = self.key_entry(&task.kind, key).await? else { return Ok(task) };
        let stored = self.find(entry.task_id).await?;
        if entry.state != State::Completed {
            return Ok(stored.map_or(task, Box::new));
        }
        Ok(Box::new(super::enqueue::holder(stored, &entry)))
    }
}

#[async_trait]
impl Timetables for PostgresStore {
    async fn put_schedules(&self, writes: Vec<(Expect, ScheduleState)>) -> Result<Vec<bool>> {
        let answers = self.write_schedules(&writes).await?;
        self.control.ear.ring();
        Ok(answers)
    }

    async fn remove_schedule(&self, name: &str, act: &Act) -> Result<bool> {
        let reason = act.reason.as_deref().map(Text);
        let params: [Param<'_>; 4] = [&Text(name), &Text(&act.who), &reason, &At(act.at)];
        let row = self.work.one(Sql::ScheduleRemove, &params).await?;
        self.control.ear.ring();
        Ok(row.map(|row| get(&row, 0)).transpose()?.unwrap_or(false))
    }

    async fn schedule(&self, name: &str) -> Result<Option<DueSchedule>> {
        Ok(self.one_schedule(name).await?)
    }

    async fn schedules(&self, page: &PageRequest) -> Result<Page<DueSchedule>> {
        Ok(self.page_of_schedules(page).await?)
    }

    async fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueSchedule>, Option<Timestamp>)> {
        Ok(self.due_schedules(now, limit).await?)
    }

    async fn fire(&self, plans: Vec<FirePlan>, now: Timestamp) -> Result<Vec<bool>> {
        let answers = self.apply_plans(&plans, now).await?;
        self.control.ear.ring();
        Ok(answers)
    }

    async fn occurrences(
        &self,
        schedule: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<Occurrence>> {
        Ok(self.page_of_occurrences(schedule, page).await?)
    }

    async fn fired_between(
        &self,
        schedule_uid: Uuid,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<(Occurrence, Option<State>)>> {
        Ok(self.fired(schedule_uid, from, to).await?)
    }

    async fn live(&self, schedule_uid: Uuid) -> Result<Live> {
        Ok(self.live_of(schedule_uid).await?)
    }
}

#[async_trait]
impl Records for PostgresStore {
    async fn tasks(&self, filter: &TaskFilter, page: &PageRequest) -> Result<Page<Task>> {
        Ok(self.page_of_tasks(filter, page).await?)
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        Ok(self.find(id).await?)
    }

    async fn attempts(&self, id: TaskId) -> Result<Vec<Attempt>> {
        Ok(self.attempts_of(id).await?)
    }

    async fn surroundings(&self, task: &Task, now: Timestamp) -> Result<Surroundings> {
        self.catch_up(now).await?;
        Ok(self.surroundings_of(task, now).await?)
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        order: Order,
        page: &PageRequest,
    ) -> Result<Page<Task>> {
        Ok(self.page_of_letters(filter, order, page).await?)
    }

    async fn dead_letter_groups(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetterGroup>> {
        Ok(self.groups(filter).await?)
    }

    async fn settings(&self) -> Result<Settings> {
        Ok(self.load_settings().await?)
    }

    async fn change_setting(&self, change: SettingChange, audit: Option<AuditEntry>) -> Result<()> {
        self.write_setting(&change, audit).await?;
        self.control.ear.ring();
        Ok(())
    }

    async fn stats(&self, now: Timestamp) -> Result<Stats> {
        Ok(self.figures(now).await?)
    }

    async fn ledger(&self, kind: &str, key: &str) -> Result<Option<LedgerEntry>> {
        Ok(self.key_entry(kind, key).await?)
    }

    async fn forget_key(&self, kind: &str, key: &str, act: &Act) -> Result<bool> {
        let reason = act.reason.as_deref().map(Text);
        let params: [Param<'_>; 5] =
            [&Text(kind), &Text(key), &Text(&act.who), &reason, &At(act.at)];
        let row = self.work.one(Sql::ForgetKey, &params).await?;
        Ok(row.map(|row| get(&row, 0)).transpose()?.unwrap_or(false))
    }

    async fn audit(&self, page: &PageRequest) -> Result<Page<AuditEntry>> {
        Ok(self.page_of_audit(page).await?)
    }

    async fn record(&self, entry: AuditEntry) -> Result<()> {
        Ok(self.add_audit(&entry).await?)
    }

    async fn put_operation(&self, operation: &Operation) -> Result<()> {
        Ok(self.write_operation(operation).await?)
    }

    async fn operation(&self, id: Uuid) -> Result<Option<Operation>> {
        Ok(self.one_operation(id).await?)
    }

    async fn running_operations(&self) -> Result<Vec<Operation>> {
        Ok(self.operations_running().await?)
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        Ok(self.list_tokens().await?)
    }

    async fn put_token(&self, token: &Token) -> Result<()> {
        Ok(self.write_token(token).await?)
    }

    async fn revoke_token(&self, name: &str) -> Result<bool> {
        Ok(self.delete_token(name).await?)
    }

    async fn note(&self, key: &str) -> Result<Option<String>> {
        Ok(self.read_note(key).await?)
    }

    async fn put_note(&self, key: &str, value: &str) -> Result<()> {
        Ok(self.write_note(key, value).await?)
    }
}

#[async_trait]
impl Outbox for PostgresStore {
    async fn raise(&self, alerts: Vec<Alert>, read: bool) -> Result<()> {
        add_alerts(&*self.work, &alerts, read).await?;
        self.control.ear.ring();
        Ok(())
    }

    async fn tray(&self, turn: &Turn) -> Result<Option<Tray>> {
        Ok(self.take_tray(turn).await?)
    }

    async fn file(&self, teller: &str, read: &[u64], state: &str) -> Result<bool> {
        Ok(self.file_read(teller, read, state).await?)
    }

    async fn alerts(&self, page: &PageRequest) -> Result<Page<Alert>> {
        Ok(self.page_of_alerts(page).await?)
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "postgres",
            store_id: self.store_id,
            schema_version: LATEST,
            location: self.location.clone(),
        }
    }

    async fn ping(&self) -> Result<()> {
        self.ask_the_time().await?;
        Ok(())
    }

    async fn clock(&self) -> Result<Option<Timestamp>> {
        Ok(Some(self.ask_the_time().await?))
    }

    async fn look(&self, request: &LookRequest) -> Result<Look> {
        Ok(self.look_round(request).await?)
    }

    async fn changed(&self) {
        self.control.ear.heard().await;
    }

    async fn worker_died(&self) {
        self.control.ear.lost().await;
    }

    async fn forget_node(&self, node: &str) -> Result<Forgotten> {
        Ok(self.forget_member(node).await?)
    }

    async fn prune(&self, retention: &Retention, now: Timestamp, limit: usize) -> Result<Pruned> {
        Ok(self.delete_old(retention, now, limit).await?)
    }

    async fn close(&self) -> Result<()> {
        self.work.close();
        self.control.close();
        Ok(())
    }
}
