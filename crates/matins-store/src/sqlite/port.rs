//! The port, verb by verb: what goes to the writer, what to the readers.

use async_trait::async_trait;
use jiff::Timestamp;
use matins_core::Json;
use matins_core::alert::Alert;
use matins_core::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use matins_core::lifecycle::{Outcome, Settlement, Trace, settle};
use matins_core::operation::Operation;
use matins_core::page::{Page, PageRequest};
use matins_core::retry::RetryPolicy;
use matins_core::schedule::{DueSchedule, FirePlan, Live, Occurrence, ScheduleState};
use matins_core::store::{
    Act, AuditEntry, Cancelled, ClaimBatch, ClaimRequest, Dismissed, Enqueued, Expect, Extended,
    Lapsed, LedgerEntry, Order, Outbox, Pruned, Queue, Records, Result, Retention, Retried,
    SettingChange, Settings, Settled, Stats, Store, StoreInfo, TaskFilter, Timetables, Token, Tray,
    Turn, Worker,
};
use matins_core::task::{Attempt, Claim, NewTask, State, Task, TaskId, WorkerId};
use matins_core::why::Surroundings;
use uuid::Uuid;

use super::SqliteStore;
use super::error::Res;
use super::migrate::LATEST;
use super::prune::{Cutoffs, Kind, STEP};
use super::reader::Reader;
use super::schedules::Put;
use super::time::us;
use super::writer::{Errand, Job, Weight};

/// Due tasks that a look at the store may put in line.
const CATCH_UP: usize = 5_000;

const ONE: Weight = Weight::rows(1);

#[async_trait]
impl Queue for SqliteStore {
    async fn enqueue(&self, tasks: Vec<NewTask>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let bytes = tasks.iter().map(|task| task.payload.byte_len()).sum();
        let weight = Weight { rows: tasks.len(), bytes };
        self.writer.call(weight, move |tx| tx.enqueue(&tasks, us(now))).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimBatch> {
        let weight = Weight::rows(request.max);
        self.writer.call_or_undo(weight, move |tx| tx.claim(&request), give_back).await
    }

    async fn settle(&self, items: Vec<Settlement>) -> Result<Vec<Settled>> {
        let bytes = items.iter().map(|item| item.trace.output.bytes.len()).sum();
        let weight = Weight { rows: items.len(), bytes };
        self.writer.call(weight, move |tx| tx.settle(&items)).await
    }

    async fn register(&self, worker: Worker) -> Result<()> {
        self.writer.call(ONE, move |tx| tx.register(&worker)).await
    }

    async fn beat(&self, worker: &Worker) -> Result<bool> {
        let worker = worker.clone();
        self.writer.call(ONE, move |tx| tx.beat(&worker)).await
    }

    async fn retire(&self, worker: &WorkerId, _now: Timestamp) -> Result<()> {
        let worker = worker.clone();
        self.writer.call(ONE, move |tx| tx.retire(&worker)).await
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        self.readers.call(|reader| reader.snapshot(Reader::workers)).await
    }

    async fn extend(&self, claims: &[Claim], lease_until: Timestamp) -> Result<Extended> {
        let claims = claims.to_vec();
        let weight = Weight::rows(claims.len());
        self.writer.call(weight, move |tx| tx.extend(&claims, us(lease_until))).await
    }

    async fn cancel_requests(&self, worker: &WorkerId) -> Result<Vec<TaskId>> {
        let worker = worker.clone();
        self.readers.call(move |reader| reader.cancel_requests(&worker)).await
    }

    async fn lapsed(&self, now: Timestamp, limit: usize) -> Result<Vec<Lapsed>> {
        self.readers
            .call(move |reader| reader.snapshot(|reader| reader.lapsed(us(now), limit)))
            .await
    }

    async fn expire(&self, now: Timestamp, limit: usize) -> Result<u64> {
        let weight = Weight::rows(limit.min(STEP));
        self.writer.call(weight, move |tx| tx.expire(us(now), limit)).await
    }

    async fn cancel(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Cancelled>> {
        let (ids, act) = (ids.to_vec(), act.clone());
        let each =
            move |tx: &mut super::Tx<'_>| ids.iter().map(|id| tx.cancel(*id, &act)).collect();
        self.writer.call(ONE, each).await
    }

    async fn retry(
        &self,
        ids: &[TaskId],
        payload: Option<Json>,
        act: &Act,
    ) -> Result<Vec<Retried>> {
        let (ids, act) = (ids.to_vec(), act.clone());
        let each = move |tx: &mut super::Tx<'_>| {
            ids.iter().map(|id| tx.retry(*id, payload.as_ref(), &act)).collect()
        };
        self.writer.call(ONE, each).await
    }

    async fn dismiss(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Dismissed>> {
        let (ids, act) = (ids.to_vec(), act.clone());
        let each =
            move |tx: &mut super::Tx<'_>| ids.iter().map(|id| tx.dismiss(*id, &act)).collect();
        self.writer.call(ONE, each).await
    }
}

/// Whoever claimed has gone away before the answer came: the tasks go back in line.
fn give_back(batch: ClaimBatch) -> Option<Box<dyn Job>> {
    let policy = RetryPolicy::default();
    let released: Vec<Settlement> = batch
        .claimed
        .iter()
        .map(|claimed| {
            let at = claimed.task.started_at.unwrap_or(claimed.task.run_at);
            let outcome = Outcome::Released { at };
            settle(claimed, outcome, Trace::default(), &policy, at, 0.0)
        })
        .collect();
    if released.is_empty() {
        return None;
    }
    Some(Box::new(Errand(move |tx: &mut super::Tx<'_>| tx.settle(&released).map(drop))))
}

#[async_trait]
impl Timetables for SqliteStore {
    async fn put_schedules(&self, writes: Vec<(Expect, ScheduleState)>) -> Result<Vec<bool>> {
        let writes = writes.into_iter().map(Put::new).collect::<Res<Vec<_>>>()?;
        let bytes = writes.iter().map(Put::byte_len).sum();
        let weight = Weight { rows: writes.len(), bytes };
        let each = move |tx: &mut super::Tx<'_>| {
            writes.iter().map(|write| tx.put_schedule(write)).collect()
        };
        self.writer.call(weight, each).await
    }

    async fn remove_schedule(&self, name: &str, act: &Act) -> Result<bool> {
        let (name, act) = (name.to_owned(), act.clone());
        self.writer.call(ONE, move |tx| tx.remove_schedule(&name, &act)).await
    }

    async fn schedule(&self, name: &str) -> Result<Option<DueSchedule>> {
        let name = name.to_owned();
        self.readers.call(move |reader| reader.snapshot(|reader| reader.schedule(&name))).await
    }

    async fn schedules(&self, page: &PageRequest) -> Result<Page<DueSchedule>> {
        let page = page.clone();
        self.readers.call(move |reader| reader.snapshot(|reader| reader.schedules(&page))).await
    }

    async fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueSchedule>, Option<Timestamp>)> {
        self.readers.call(move |reader| reader.snapshot(|reader| reader.due(us(now), limit))).await
    }

    async fn fire(&self, plans: Vec<FirePlan>, now: Timestamp) -> Result<Vec<bool>> {
        let each =
            move |tx: &mut super::Tx<'_>| plans.iter().map(|plan| tx.fire(plan, us(now))).collect();
        self.writer.call(ONE, each).await
    }

    async fn occurrences(
        &self,
        schedule: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<Occurrence>> {
        let (schedule, page) = (schedule.map(str::to_owned), page.clone());
        self.readers
            .call(move |reader| {
                reader.snapshot(|reader| reader.occurrences(schedule.as_deref(), &page))
            })
            .await
    }

    async fn fired_between(
        &self,
        schedule_uid: Uuid,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<(Occurrence, Option<State>)>> {
        self.readers
            .call(move |reader| {
                reader.snapshot(|reader| reader.fired_between(schedule_uid, us(from), us(to)))
            })
            .await
    }

    async fn live(&self, schedule_uid: Uuid) -> Result<Live> {
        self.readers.call(move |reader| reader.snapshot(|reader| reader.live(schedule_uid))).await
    }
}

impl SqliteStore {
    /// Figures are exact when everything due is in line. Normally claims see to that; where
    /// nobody claims, whoever looks does. A store that cannot be written to is looked at as it is.
    async fn catch_up(&self, now: Timestamp) -> Result<()> {
        let is_behind = self.readers.call(move |reader| reader.is_behind(us(now))).await?;
        if is_behind || self.writer.is_set_back(us(now)) {
            let moved = self.writer.call(ONE, move |tx| {
                tx.follow_clock(us(now))?;
                tx.promote(us(now), CATCH_UP)
            });
            // A look must not wait for somebody's lock as long as a write does.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(250), moved).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Records for SqliteStore {
    async fn tasks(&self, filter: &TaskFilter, page: &PageRequest) -> Result<Page<Task>> {
        let (filter, page) = (filter.clone(), page.clone());
        self.readers
            .call(move |reader| reader.snapshot(|reader| reader.tasks(&filter, &page)))
            .await
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        self.readers.call(move |reader| reader.task(id)).await
    }

    async fn attempts(&self, id: TaskId) -> Result<Vec<Attempt>> {
        self.readers.call(move |reader| reader.snapshot(|reader| reader.attempts(id))).await
    }

    async fn surroundings(&self, task: &Task, now: Timestamp) -> Result<Surroundings> {
        self.catch_up(now).await?;
        let task = task.clone();
        self.readers
            .call(move |reader| reader.snapshot(|reader| reader.surroundings(&task, us(now))))
            .await
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        order: Order,
        page: &PageRequest,
    ) -> Result<Page<Task>> {
        let (filter, page) = (filter.clone(), page.clone());
        self.readers
            .call(move |reader| {
                reader.snapshot(|reader| reader.dead_letters(&filter, order, &page))
            })
            .await
    }

    async fn dead_letter_groups(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetterGroup>> {
        let filter = filter.clone();
        self.readers
            .call(move |reader| reader.snapshot(|reader| reader.dead_letter_groups(&filter)))
            .await
    }

    async fn settings(&self) -> Result<Settings> {
        self.readers.call(|reader| reader.settings()).await
    }

    async fn change_setting(&self, change: SettingChange, audit: Option<AuditEntry>) -> Result<()> {
        let both = move |tx: &mut super::Tx<'_>| {
            tx.change_setting(&change)?;
            audit.as_ref().map_or(Ok(()), |entry| tx.audit(entry))
        };
        self.writer.call(ONE, both).await
    }

    async fn stats(&self, now: Timestamp) -> Result<Stats> {
        self.catch_up(now).await?;
        self.readers.call(move |reader| reader.snapshot(|reader| reader.stats(us(now)))).await
    }

    async fn ledger(&self, kind: &str, key: &str) -> Result<Option<LedgerEntry>> {
        let (kind, key) = (kind.to_owned(), key.to_owned());
        self.readers.call(move |reader| reader.snapshot(|reader| reader.ledger(&kind, &key))).await
    }

    async fn forget_key(&self, kind: &str, key: &str, act: &Act) -> Result<bool> {
        let (kind, key, act) = (kind.to_owned(), key.to_owned(), act.clone());
        self.writer.call(ONE, move |tx| tx.forget_key(&kind, &key, &act)).await
    }

    async fn audit(&self, page: &PageRequest) -> Result<Page<AuditEntry>> {
        let page = page.clone();
        self.readers.call(move |reader| reader.audit(&page)).await
    }

    async fn record(&self, entry: AuditEntry) -> Result<()> {
        self.writer.call(ONE, move |tx| tx.audit(&entry)).await
    }

    async fn put_operation(&self, operation: &Operation) -> Result<()> {
        let operation = operation.clone();
        self.writer.call(ONE, move |tx| tx.put_operation(&operation)).await
    }

    async fn operation(&self, id: Uuid) -> Result<Option<Operation>> {
        self.readers.call(move |reader| reader.operation(id)).await
    }

    async fn running_operations(&self) -> Result<Vec<Operation>> {
        self.readers.call(|reader| reader.running_operations()).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.readers.call(|reader| reader.tokens()).await
    }

    async fn put_token(&self, token: &Token) -> Result<()> {
        let token = token.clone();
        self.writer.call(ONE, move |tx| tx.put_token(&token)).await
    }

    async fn revoke_token(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.writer.call(ONE, move |tx| tx.revoke_token(&name)).await
    }

    async fn note(&self, key: &str) -> Result<Option<String>> {
        let key = key.to_owned();
        self.readers.call(move |reader| reader.note(&key)).await
    }

    async fn put_note(&self, key: &str, value: &str) -> Result<()> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.writer.call(ONE, move |tx| tx.put_note(&key, &value)).await
    }
}

#[async_trait]
impl Outbox for SqliteStore {
    async fn raise(&self, alerts: Vec<Alert>, read: bool) -> Result<()> {
        let weight = Weight::rows(alerts.len());
        let each =
            move |tx: &mut super::Tx<'_>| alerts.iter().try_for_each(|alert| tx.raise(alert, read));
        self.writer.call(weight, each).await
    }

    async fn tray(&self, turn: &Turn) -> Result<Option<Tray>> {
        let turn = turn.clone();
        self.writer.call(ONE, move |tx| tx.tray(&turn)).await
    }

    async fn file(&self, teller: &str, read: &[u64], state: &str) -> Result<bool> {
        let (teller, read, state) = (teller.to_owned(), read.to_vec(), state.to_owned());
        self.writer.call(Weight::rows(read.len()), move |tx| tx.file(&teller, &read, &state)).await
    }

    async fn alerts(&self, page: &PageRequest) -> Result<Page<Alert>> {
        let page = page.clone();
        self.readers.call(move |reader| reader.alerts(&page)).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "sqlite",
            store_id: self.store_id,
            schema_version: LATEST,
            location: self.path.display().to_string(),
        }
    }

    async fn ping(&self) -> Result<()> {
        self.pings.call(|reader| reader.ping()).await
    }

    async fn changed(&self) {
        self.writer.changed().await;
    }

    async fn prune(&self, retention: &Retention, now: Timestamp, limit: usize) -> Result<Pruned> {
        let cutoffs = Cutoffs::new(retention, now);
        let mut pruned = Pruned::default();
        for kind in Kind::ALL {
            let mut total = 0;
            while total < limit {
                let step = STEP.min(limit - total);
                let gone = self
                    .writer
                    .call(Weight::rows(step), move |tx| tx.prune(kind, &cutoffs, step))
                    .await?;
                total += gone;
                if gone < step {
                    break;
                }
            }
            if let Some(counter) = kind.counter(&mut pruned) {
                *counter += total as u64;
            }
            if total >= limit {
                let rest = self.writer.call(ONE, move |tx| tx.is_more_to_prune(kind, &cutoffs));
                pruned.more |= rest.await?;
            }
        }
        Ok(pruned)
    }

    async fn close(&self) -> Result<()> {
        self.readers.close();
        self.pings.close();
        self.writer.close().await
    }
}
