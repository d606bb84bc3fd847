//! A store behind a bad line: calls may be lost on the way there, on the way back, or late, and
//! a node may be cut off for a while or for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use matins_core::Json;
use matins_core::alert::Alert;
use matins_core::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use matins_core::lifecycle::Settlement;
use matins_core::operation::Operation;
use matins_core::page::{Page, PageRequest};
use matins_core::schedule::{DueSchedule, FirePlan, Live, Occurrence, ScheduleState};
use matins_core::store::*;
use matins_core::task::{Attempt, Claim, NewTask, State, Task, TaskId, WorkerId};
use matins_core::why::Surroundings;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use uuid::Uuid;

pub(crate) struct Line {
    store: Arc<dyn Store>,
    dice: Mutex<StdRng>,
    /// Chance of each fault per call, in percent.
    trouble: u32,
    /// What each call takes at least.
    pace: Duration,
    cut: AtomicBool,
}

enum Fault {
    None,
    LostRequest,
    LostAnswer,
    Late(Duration),
}

impl Line {
    pub(crate) fn new(store: Arc<dyn Store>, seed: u64, trouble: u32) -> Self {
        let dice = Mutex::new(StdRng::seed_from_u64(seed));
        Self { store, dice, trouble, pace: Duration::ZERO, cut: AtomicBool::new(false) }
    }

    /// A good line to a store that takes its time.
    pub(crate) fn paced(store: Arc<dyn Store>, pace: Duration) -> Self {
        Self { pace, ..Self::new(store, 0, 0) }
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    fn fault(&self) -> Fault {
        let mut dice = self.dice.lock().unwrap();
        match dice.random_range(0..100 * 3u32) {
            n if n < self.trouble => Fault::LostRequest,
            n if n < self.trouble * 2 => Fault::LostAnswer,
            n if n < self.trouble * 3 => {
                Fault::Late(Duration::from_millis(dice.random_range(1..3_000)))
            }
            _ => Fault::None,
        }
    }

    async fn through<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let lost = || Err(StoreError::Unavailable("the line is down".to_owned()));
        if self.cut.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            return lost();
        }
        if !self.pace.is_zero() {
            tokio::time::sleep(self.pace).await;
        }
        match self.fault() {
            Fault::None => {}
            Fault::LostRequest => return lost(),
            Fault::LostAnswer => {
                let _ = call.await;
                return lost();
            }
            Fault::Late(delay) => tokio::time::sleep(delay).await,
        }
        let answer = call.await;
        // An answer on its way when the line is cut does not arrive.
        if self.cut.load(Ordering::SeqCst) { lost() } else { answer }
    }
}

#[async_trait]
impl Queue for Line {
    async fn enqueue(&self, tasks: Vec<NewTask>, now: Timestamp) -> Result<Vec<Enqueued>> {
        self.through(self.store.enqueue(tasks, now)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimBatch> {
        self.through(self.store.claim(request)).await
    }

    async fn settle(&self, items: Vec<Settlement>) -> Result<Vec<Settled>> {
        self.through(self.store.settle(items)).await
    }

    async fn register(&self, worker: Worker) -> Result<()> {
        self.through(self.store.register(worker)).await
    }

    async fn beat(&self, worker: &Worker) -> Result<bool> {
        self.through(self.store.beat(worker)).await
    }

    async fn retire(&self, worker: &WorkerId, now: Timestamp) -> Result<()> {
        self.through(self.store.retire(worker, now)).await
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        self.through(self.store.workers()).await
    }

    async fn extend(&self, claims: &[Claim], lease_until: Timestamp) -> Result<Extended> {
        self.through(self.store.extend(claims, lease_until)).await
    }

    async fn cancel_requests(&self, worker: &WorkerId) -> Result<Vec<TaskId>> {
        self.through(self.store.cancel_requests(worker)).await
    }

    async fn lapsed(&self, now: Timestamp, limit: usize) -> Result<Vec<Lapsed>> {
        self.through(self.store.lapsed(now, limit)).await
    }

    async fn expire(&self, now: Timestamp, limit: usize) -> Result<u64> {
        self.through(self.store.expire(now, limit)).await
    }

    async fn cancel(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Cancelled>> {
        self.through(self.store.cancel(ids, act)).await
    }

    async fn retry(
        &self,
        ids: &[TaskId],
        payload: Option<Json>,
        act: &Act,
    ) -> Result<Vec<Retried>> {
        self.through(self.store.retry(ids, payload, act)).await
    }

    async fn dismiss(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Dismissed>> {
        self.through(self.store.dismiss(ids, act)).await
    }
}

#[async_trait]
impl Timetables for Line {
    async fn put_schedules(&self, writes: Vec<(Expect, ScheduleState)>) -> Result<Vec<bool>> {
        self.through(self.store.put_schedules(writes)).await
    }

    async fn remove_schedule(&self, name: &str, act: &Act) -> Result<bool> {
        self.through(self.store.remove_schedule(name, act)).await
    }

    async fn schedule(&self, name: &str) -> Result<Option<DueSchedule>> {
        self.through(self.store.schedule(name)).await
    }

    async fn schedules(&self, page: &PageRequest) -> Result<Page<DueSchedule>> {
        self.through(self.store.schedules(page)).await
    }

    async fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueSchedule>, Option<Timestamp>)> {
        self.through(self.store.due(now, limit)).await
    }

    async fn fire(&self, plans: Vec<FirePlan>, now: Timestamp) -> Result<Vec<bool>> {
        self.through(self.store.fire(plans, now)).await
    }

    async fn occurrences(
        &self,
        schedule: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<Occurrence>> {
        self.through(self.store.occurrences(schedule, page)).await
    }

    async fn fired_between(
        &self,
        schedule_uid: Uuid,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<(Occurrence, Option<State>)>> {
        self.through(self.store.fired_between(schedule_uid, from, to)).await
    }

    async fn live(&self, schedule_uid: Uuid) -> Result<Live> {
        self.through(self.store.live(schedule_uid)).await
    }
}

#[async_trait]
impl Records for Line {
    async fn tasks(&self, filter: &TaskFilter, page: &PageRequest) -> Result<Page<Task>> {
        self.through(self.store.tasks(filter, page)).await
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        self.through(self.store.task(id)).await
    }

    async fn attempts(&self, id: TaskId) -> Result<Vec<Attempt>> {
        self.through(self.store.attempts(id)).await
    }

    async fn surroundings(&self, task: &Task, now: Timestamp) -> Result<Surroundings> {
        self.through(self.store.surroundings(task, now)).await
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        order: Order,
        page: &PageRequest,
    ) -> Result<Page<Task>> {
        self.through(self.store.dead_letters(filter, order, page)).await
    }

    async fn dead_letter_groups(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetterGroup>> {
        self.through(self.store.dead_letter_groups(filter)).await
    }

    async fn settings(&self) -> Result<Settings> {
        self.through(self.store.settings()).await
    }

    async fn change_setting(&self, change: SettingChange, audit: Option<AuditEntry>) -> Result<()> {
        self.through(self.store.change_setting(change, audit)).await
    }

    async fn stats(&self, now: Timestamp) -> Result<Stats> {
        self.through(self.store.stats(now)).await
    }

    async fn ledger(&self, kind: &str, key: &str) -> Result<Option<LedgerEntry>> {
        self.through(self.store.ledger(kind, key)).await
    }

    async fn forget_key(&self, kind: &str, key: &str, act: &Act) -> Result<bool> {
        self.through(self.store.forget_key(kind, key, act)).await
    }

    async fn audit(&self, page: &PageRequest) -> Result<Page<AuditEntry>> {
        self.through(self.store.audit(page)).await
    }

    async fn record(&self, entry: AuditEntry) -> Result<()> {
        self.through(self.store.record(entry)).await
    }

    async fn put_operation(&self, operation: &Operation) -> Result<()> {
        self.through(self.store.put_operation(operation)).await
    }

    async fn operation(&self, id: Uuid) -> Result<Option<Operation>> {
        self.through(self.store.operation(id)).await
    }

    async fn running_operations(&self) -> Result<Vec<Operation>> {
        self.through(self.store.running_operations()).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.through(self.store.tokens()).await
    }

    async fn put_token(&self, token: &Token) -> Result<()> {
        self.through(self.store.put_token(token)).await
    }

    async fn revoke_token(&self, name: &str) -> Result<bool> {
        self.through(self.store.revoke_token(name)).await
    }

    async fn note(&self, key: &str) -> Result<Option<String>> {
        self.through(self.store.note(key)).await
    }

    async fn put_note(&self, key: &str, value: &str) -> Result<()> {
        self.through(self.store.put_note(key, value)).await
    }
}

#[async_trait]
impl Outbox for Line {
    async fn raise(&self, alerts: Vec<Alert>, read: bool) -> Result<()> {
        self.through(self.store.raise(alerts, read)).await
    }

    async fn tray(&self, turn: &Turn) -> Result<Option<Tray>> {
        self.through(self.store.tray(turn)).await
    }

    async fn file(&self, teller: &str, read: &[u64], state: &str) -> Result<bool> {
        self.through(self.store.file(teller, read, state)).await
    }

    async fn alerts(&self, page: &PageRequest) -> Result<Page<Alert>> {
        self.through(self.store.alerts(page)).await
    }
}

#[async_trait]
impl Store for Line {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    async fn ping(&self) -> Result<()> {
        self.through(self.store.ping()).await
    }

    async fn changed(&self) {
        self.store.changed().await;
    }

    async fn prune(&self, retention: &Retention, now: Timestamp, limit: usize) -> Result<Pruned> {
        self.through(self.store.prune(retention, now, limit)).await
    }

    async fn close(&self) -> Result<()> {
        self.through(self.store.close()).await
    }
}
