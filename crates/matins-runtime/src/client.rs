//! The one door to Matins from within a process: HTTP, the command line and the library all
//! arrive here. Works with or without a running engine behind it.

pub mod acts;
mod audit;
mod file;
pub mod operations;
pub mod pings;
pub mod remote;
pub mod schedules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use matins_core::alert::Alert;
use matins_core::page::{Page, PageRequest};
use matins_core::request::{EnqueueRequest, FieldError, TypeDefaults};
use matins_core::store::{
    AuditEntry, Enqueued, LedgerEntry, Settings, Store, StoreError, TaskFilter, TypeLimit, Worker,
};
use matins_core::task::{Attempt, Name, NewTask, State, Task, TaskId};
use matins_core::why::{Why, in_the_dark, why};
use uuid::Uuid;

use crate::alerts::Alerts;
use crate::clock::{Clock, SharedClock};
use crate::error::ClientError;
use crate::events::{Events, What};
use crate::executors::check_ad_hoc;
use crate::live::LiveOutput;
use crate::metrics::Metrics;
use crate::rules::{Rules, SharedRules};
use crate::wake::Wake;

pub type Result<T> = std::result::Result<T, ClientError>;

/// Answer to an enqueue.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub task: Task,
    /// The task was there before: its key, or the client's id, is taken.
    pub deduplicated: bool,
    /// The task was there before and waits; it has the new payload and times now.
    pub replaced: bool,
}

/// Whether a task was taken in that was not there.
fn is_new(outcome: &Enqueued) -> bool {
    matches!(outcome, Enqueued::Created | Enqueued::Journalled(_))
}

#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rules: SharedRules,
    pub(crate) wake: Wake,
    pub(crate) events: Events,
    pub(crate) live: LiveOutput,
    pub(crate) metrics: Metrics,
    pub(crate) alerts: Alerts,
    /// The last write did not get through.
    write_trouble: AtomicBool,
    /// Limits of types that this node's file does not define, as other nodes wrote them.
    foreign: Mutex<Option<(Timestamp, BTreeMap<Name, TypeLimit>)>>,
}

/// Longest time that the store's clock may take to answer and still be followed.
const CLOCK_WAY_MAX: Duration = Duration::from_millis(500);

/// How long limits of foreign types may be out of date.
const FOREIGN_LIMITS_AGE: Duration = Duration::from_secs(5);

impl Client {
    /// A client of a store that this process does not run an engine on.
    pub fn new(store: Arc<dyn Store>, rules: Rules) -> Self {
        Self::with_clock(store, rules, Arc::new(SharedClock::default()))
    }

    pub fn with_clock(store: Arc<dyn Store>, rules: Rules, clock: Arc<dyn Clock>) -> Self {
        let inner = Inner {
            store,
            clock,
            rules: Arc::new(RwLock::new(Arc::new(rules))),
            wake: Wake::default(),
            events: Events::default(),
            live: LiveOutput::default(),
            metrics: Metrics::default(),
            alerts: Alerts::default(),
            write_trouble: AtomicBool::new(false),
            foreign: Mutex::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Sets the clock by the store's own, where it has one. An answer that was long on its way
    /// says too little.
    pub async fn follow_clock(&self) -> std::result::Result<(), StoreError> {
        let sent = self.inner.clock.boot_ns();
        let told = self.inner.store.clock().await?;
        self.follow(told, sent);
        Ok(())
    }

    /// Goes on from what the store's clock said in an answer to what was sent then.
    pub(crate) fn follow(&self, told: Option<Timestamp>, sent_ns: u64) {
        let Some(told) = told else { return };
        let way = Duration::from_nanos(self.inner.clock.boot_ns().saturating_sub(sent_ns));
        if way <= CLOCK_WAY_MAX {
            self.inner.clock.follow(told.saturating_add(way / 2).unwrap_or(told));
        }
    }

    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    pub fn rules(&self) -> Arc<Rules> {
        self.inner.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace_rules(&self, rules: Rules) {
        *self.inner.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    pub fn events(&self) -> &Events {
        &self.inner.events
    }

    pub fn live(&self) -> &LiveOutput {
        &self.inner.live
    }

    pub fn alerts(&self) -> &Alerts {
        &self.inner.alerts
    }

    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub fn wake(&self) -> &Wake {
        &self.inner.wake
    }

    /// Checks and completes a request without storing it.
    pub async fn resolve(&self, request: EnqueueRequest, by: &str) -> Result<NewTask> {
        self.resolve_by(&self.rules(), request, by.into(), self.now()).await
    }

    async fn resolve_by(
        &self,
        rules: &Rules,
        request: EnqueueRequest,
        by: Name,
        now: Timestamp,
    ) -> Result<NewTask> {
        let defaults = self.type_defaults(rules, &request.kind).await?;
        if !rules.types.contains_key(&*request.kind)
            && let Some(payload) = &request.payload
        {
            check_ad_hoc(&request.kind, payload)?;
        }
        Ok(request.resolve(&rules.limits, &defaults, new_id(), by, now)?)
    }

    pub async fn enqueue(&self, request: EnqueueRequest, by: &str) -> Result<Answer> {
        let task = self.resolve(request, by).await?;
        let mut answers = self.enqueue_resolved(vec![task]).await?;
        answers.pop().unwrap_or_else(|| Err(FieldError::new("task", "was not answered").into()))
    }

    /// Stores a batch in one commit. An item that is refused affects no other.
    pub async fn enqueue_many(
        &self,
        requests: Vec<std::result::Result<EnqueueRequest, FieldError>>,
        by: &str,
    ) -> Result<Vec<Result<Answer>>> {
        let (rules, now, by) = (self.rules(), self.now(), Name::from(by));
        if requests.len() > rules.limits.batch_items {
            let (max, got) = (rules.limits.batch_items, requests.len());
            let mut error =
                FieldError::new("tasks", format!("{got} items; the limit batch_items is {max}"));
            error.too_large = true;
            return Err(error.into());
        }
        let mut slots = Vec::with_capacity(requests.len());
        let mut tasks = Vec::with_capacity(requests.len());
        for request in requests {
            match request {
                Ok(request) => match self.resolve_by(&rules, request, by.clone(), now).await {
                    Ok(task) => {
                        tasks.push(task);
                        slots.push(Ok(()));
                    }
                    Err(error @ ClientError::Store(_)) => return Err(error),
                    Err(error) => slots.push(Err(error)),
                },
                Err(error) => slots.push(Err(error.into())),
            }
        }
        let stored = self.enqueue_resolved(tasks).await?;
        if slots.iter().all(std::result::Result::is_ok) {
            return Ok(stored);
        }
        let mut stored = stored.into_iter();
        Ok(slots
            .into_iter()
            .map(|slot| match slot {
                Ok(()) => stored
                    .next()
                    .unwrap_or_else(|| Err(FieldError::new("task", "was not answered").into())),
                Err(error) => Err(error),
            })
            .collect())
    }

    /// Stores tasks that are checked already.
    pub async fn enqueue_resolved(&self, tasks: Vec<NewTask>) -> Result<Vec<Result<Answer>>> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.now();
        let stored: Vec<Task> = tasks.iter().map(|new| Task::from_new(new, now)).collect();
        let outcomes = self.wrote(self.inner.store.enqueue(tasks, now).await)?;
        let mut pools = BTreeSet::new();
        let mut created = BTreeMap::<Name, u64>::new();
        let answer = |(task, outcome): (Task, Enqueued)| {
            // One due later rings too: it may be earlier than what its pool waits for.
            if !task.held && !pools.contains(&task.pool) {
                pools.insert(task.pool.clone());
            }
            if is_new(&outcome) {
                match created.get_mut(&task.kind) {
                    Some(count) => *count += 1,
                    None => drop(created.insert(task.kind.clone(), 1)),
                }
            }
            self.answer(task, outcome)
        };
        let answers = stored.into_iter().zip(outcomes).map(answer).collect();
        for (kind, count) in created {
            self.inner.metrics.enqueued(&kind, count);
        }
        for pool in pools {
            self.inner.wake.ring_pool(&pool);
        }
        Ok(answers)
    }

    /// Remembers whether writes get through: a store may be readable and yet take nothing.
    pub(crate) fn wrote<T>(
        &self,
        answer: std::result::Result<T, StoreError>,
    ) -> std::result::Result<T, StoreError> {
        let trouble = answer.as_ref().is_err_and(StoreError::is_transient);
        self.inner.write_trouble.store(trouble, Ordering::Relaxed);
        answer
    }

    pub(crate) fn has_write_trouble(&self) -> bool {
        self.inner.write_trouble.load(Ordering::Relaxed)
    }

    /// What the store's answer to an enqueue means to the caller.
    pub fn answered(&self, new: &NewTask, outcome: Enqueued, now: Timestamp) -> Result<Answer> {
        if is_new(&outcome) {
            self.inner.metrics.enqueued(&new.kind, 1);
        }
        self.answer(Task::from_new(new, now), outcome)
    }

    /// `task`: as it is when it was created.
    fn answer(&self, task: Task, outcome: Enqueued) -> Result<Answer> {
        match outcome {
            Enqueued::Created => {
                let (id, kind) = (task.id, &task.kind);
                self.inner
                    .events
                    .send(task.created_at, || What::Enqueued { id, kind: kind.clone() });
                Ok(Answer { task, deduplicated: false, replaced: false })
            }
            Enqueued::Journalled(durability) => {
                let task = Task { durability, ..task };
                Ok(Answer { task, deduplicated: false, replaced: false })
            }
            Enqueued::Existing(task) => {
                self.inner.metrics.deduplicated();
                Ok(Answer { task: *task, deduplicated: true, replaced: false })
            }
            Enqueued::Replaced(task) => {
                Ok(Answer { task: *task, deduplicated: false, replaced: true })
            }
            Enqueued::Rejected(task) => Err(ClientError::DuplicateKey(task)),
        }
    }

    /// What a type brings to a request: this node's file, else what another node has written.
    async fn type_defaults(&self, rules: &Rules, kind: &str) -> Result<TypeDefaults> {
        let mut defaults = rules.type_defaults(kind);
        if !rules.types.contains_key(kind) {
            defaults.concurrency_key = self.foreign_pointer(kind).await?;
        }
        Ok(defaults)
    }

    async fn foreign_pointer(&self, kind: &str) -> Result<Option<String>> {
        let now = self.now();
        let known = {
            let foreign = self.inner.foreign.lock().unwrap_or_else(PoisonError::into_inner);
            foreign.as_ref().and_then(|(at, limits)| {
                (now.duration_since(*at).unsigned_abs() < FOREIGN_LIMITS_AGE)
                    .then(|| limits.get(kind).and_then(|limit| limit.concurrency_key.clone()))
            })
        };
        if let Some(pointer) = known {
            return Ok(pointer);
        }
        let limits = self.inner.store.settings().await?.limits;
        let pointer = limits.get(kind).and_then(|limit| limit.concurrency_key.clone());
        *self.inner.foreign.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, limits));
        Ok(pointer)
    }

    pub async fn task(&self, id: TaskId) -> Result<Task> {
        self.inner
            .store
            .task(id)
            .await?
            .ok_or_else(|| ClientError::not_found("task", id.to_string()))
    }

    pub async fn attempts(&self, id: TaskId) -> Result<Vec<Attempt>> {
        Ok(self.inner.store.attempts(id).await?)
    }

    pub async fn tasks(&self, filter: &TaskFilter, page: &PageRequest) -> Result<Page<Task>> {
        Ok(self.inner.store.tasks(filter, page).await?)
    }

    pub async fn why(&self, id: TaskId) -> Result<Why> {
        let task = self.task(id).await?;
        let now = self.now();
        let mut around = match self.inner.store.surroundings(&task, now).await {
            Ok(around) => around,
            // It was found all the same: something stands in for the database.
            Err(StoreError::Unavailable(_)) => return Ok(in_the_dark(&task)),
            Err(error) => return Err(error.into()),
        };
        around.stuck = self.inner.live.is_stuck(id);
        Ok(why(&task, &around, now))
    }

    /// Waits until a task has ended, or `limit` has passed: the task as it is then.
    pub async fn wait(&self, id: TaskId, limit: Option<Duration>) -> Result<Task> {
        let mut events = self.inner.events.subscribe();
        let until = limit.map(|limit| tokio::time::Instant::now() + limit);
        loop {
            let task = self.task(id).await?;
            let over = until.is_some_and(|until| tokio::time::Instant::now() >= until);
            if !task.state.is_live() || over {
                return Ok(task);
            }
            // An engine in this process tells by an event; another one only by the store.
            let tick = tokio::time::sleep(Duration::from_millis(100));
            let tick = async {
                match until {
                    Some(until) => tokio::select! {
                        () = tick => {}
                        () = tokio::time::sleep_until(until) => {}
                    },
                    None => tick.await,
                }
            };
            tokio::select! {
                () = tick => {}
                () = ended(&mut events, id) => {}
            }
        }
    }

    pub async fn settings(&self) -> Result<Settings> {
        Ok(self.inner.store.settings().await?)
    }

    pub async fn workers(&self) -> Result<Vec<Worker>> {
        Ok(self.inner.store.workers().await?)
    }

    pub async fn audit(&self, page: &PageRequest) -> Result<Page<AuditEntry>> {
        Ok(self.inner.store.audit(page).await?)
    }

    /// The last raised first. While the store does not answer, those of this process.
    pub async fn alert_list(&self, page: &PageRequest) -> Result<Page<Alert>> {
        match self.inner.store.alerts(page).await {
            Err(error) if error.is_transient() && page.cursor.is_none() => {
                let mut items = self.alerts().last();
                items.truncate(page.limit);
                Ok(Page { items, next: None })
            }
            page => Ok(page?),
        }
    }

    pub async fn ledger(&self, kind: &str, key: &str) -> Result<LedgerEntry> {
        let entry = self.inner.store.ledger(kind, key).await?;
        entry.ok_or_else(|| ClientError::not_found("ledger entry", format!("{kind} {key}")))
    }

    pub(crate) fn not_waiting(task: &Task, hint: Option<String>) -> ClientError {
        let message = match task.state {
            State::Running => format!("task {} is running", task.id),
            state => format!("task {} is {state}", task.id),
        };
        ClientError::WrongState { message, hint }
    }
}

async fn ended(events: &mut tokio::sync::broadcast::Receiver<crate::events::Event>, id: TaskId) {
    loop {
        match events.recv().await {
            Ok(event) => match event.what {
                What::Settled { id: settled, .. } | What::Cancelled { id: settled }
                    if settled == id =>
                {
                    return;
                }
                _ => {}
            },
            // Missed some: let the caller look at the store.
            Err(_) => return,
        }
    }
}

/// A fresh id: version 7, rising within the process.
pub fn new_id() -> TaskId {
    TaskId(Uuid::now_v7())
}
