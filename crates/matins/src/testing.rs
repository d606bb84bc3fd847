//! A test kit: handlers run in a test, without a file, on a clock that the test turns.
//!
//! ```
//! # use matins::{Context, Task, TaskError, testing::TestKit};
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize)]
//! # struct Greet { name: String }
//! # impl Task for Greet { const TYPE: &'static str = "greet"; }
//! async fn greet(greet: Greet, _: Context) -> Result<String, TaskError> {
//!     Ok(format!("hello {}", greet.name))
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let kit = TestKit::new().handler(greet);
//! // One task, at once, in the test's own thread of control.
//! let said = kit.inline(Greet { name: "moon".into() }).await.unwrap();
//! assert_eq!(said.as_str(), "\"hello moon\"");
//! // Enqueue first, then run everything that is due.
//! kit.enqueue(Greet { name: "sun".into() }).await.unwrap();
//! assert_eq!(kit.drain().await.len(), 1);
//! # });
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use matins_core::executor::{Executor as _, Run, StopReason, Supervision};
use matins_core::lifecycle::{later, settle};
use matins_core::memory::MemoryStore;
use matins_core::schedule;
use matins_core::store::{ClaimRequest, Store, Types, Worker};
use matins_core::task::{Claimed, Name, Task as Row, WorkerId};
use matins_core::{Json, State};
use matins_runtime::Client;
use matins_runtime::clock::Clock;
use matins_runtime::rules::{OnStuck, Rules};
use serde::Serialize;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::Task;
use crate::context::Context;
use crate::enqueue::Enqueue;
use crate::error::TaskError;
use crate::handler::{Call, HandlerExecutor, asynchronous, blocking};

/// A wall clock that moves only when told to.
#[derive(Debug, Clone)]
pub struct VirtualClock(Arc<Mutex<Timestamp>>);

impl VirtualClock {
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(now)))
    }

    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = later(*now, by);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn boot_ns(&self) -> u64 {
        self.now().duration_since(Timestamp::UNIX_EPOCH).as_nanos().max(0) as u64
    }
}

/// Handlers on a store in memory, run by the test itself.
pub struct TestKit {
    client: Client,
    clock: VirtualClock,
    calls: BTreeMap<Name, Call>,
    worker: WorkerId,
}

impl Default for TestKit {
    fn default() -> Self {
        Self::new()
    }
}

impl TestKit {
    /// Starts at 2027-01-01T00:00:00Z.
    pub fn new() -> Self {
        Self::starting_at(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_798_761_600))
    }

    pub fn starting_at(now: Timestamp) -> Self {
        let clock = VirtualClock::at(now);
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Uuid::new_v4()));
        let client = Client::with_clock(store, Rules::default(), Arc::new(clock.clone()));
        let worker = WorkerId("test-kit".into());
        Self { client, clock, calls: BTreeMap::new(), worker }
    }

    pub fn handler<T, O, F, Fut>(mut self, handler: F) -> Self
    where
        T: Task,
        O: Serialize + Send + 'static,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, TaskError>> + Send + 'static,
    {
        self.calls.insert(T::TYPE.into(), asynchronous(handler));
        self
    }

    pub fn blocking_handler<T, O, F>(mut self, handler: F) -> Self
    where
        T: Task,
        O: Serialize + Send + 'static,
        F: Fn(T, Context) -> Result<O, TaskError> + Send + Sync + 'static,
    {
        self.calls.insert(T::TYPE.into(), blocking(handler));
        self
    }

    pub fn clock(&self) -> &VirtualClock {
        &self.clock
    }

    /// Looks, cancels, replays, sets schedules, as the program would.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn enqueue<T: Task>(&self, payload: T) -> Enqueue {
        Enqueue::new(self.client.clone(), &payload)
    }

    /// Enqueues a task and runs it once: its result, or why it failed.
    pub async fn inline<T: Task>(&self, payload: T) -> Result<Json, TaskError> {
        let task = self.enqueue(payload).await?.task;
        self.drain().await;
        let task = self.client.task(task.id).await?;
        match (task.state, task.error) {
            (State::Completed, _) => Ok(task.result.unwrap_or_else(Json::null)),
            (_, Some(error)) if task.state == State::Failed => Err(TaskError::permanent(error)),
            (_, Some(error)) => Err(TaskError::retryable(error)),
            (state, None) => Err(TaskError::retryable(format!("the task is {state}"))),
        }
    }

    /// Fires the schedules and runs the tasks that are due, until none is; those that ran, in
    /// order, as they are then.
    pub async fn drain(&self) -> Vec<Row> {
        let mut ran = Vec::new();
        loop {
            self.fire().await;
            let Some(claimed) = self.claim().await else { return ran };
            let id = claimed.task.id;
            self.run(claimed).await;
            if let Ok(task) = self.client.task(id).await {
                ran.push(task);
            }
        }
    }

    /// Turns the clock on and drains at every step, so that schedules fire at their own times.
    pub async fn advance(&self, by: Duration, step: Duration) -> Vec<Row> {
        let mut ran = Vec::new();
        let mut left = by;
        while !left.is_zero() {
            let turn = step.min(left);
            self.clock.advance(turn);
            left -= turn;
            ran.extend(self.drain().await);
        }
        ran
    }

    async fn fire(&self) {
        let store = self.client.store();
        let Ok((due, _)) = store.due(self.clock.now(), 1_000).await else { return };
        for one in due {
            if let Ok(plan) = self.client.plan(&one, false, schedule::decide).await {
                let _ = store.fire(vec![plan], self.clock.now()).await;
            }
        }
    }

    async fn claim(&self) -> Option<Claimed> {
        let now = self.clock.now();
        let types = Types::Only(Arc::new(self.calls.keys().cloned().collect()));
        let worker = Worker {
            id: self.worker.clone(),
            node_id: "test-kit".into(),
            started_at: now,
            seen_at: now,
            lease_until: later(now, matins_core::lease::LEASE),
            draining: false,
            remote: false,
            pools: Vec::new(),
            types: types.clone(),
        };
        self.client.store().register(worker).await.ok()?;
        let request = ClaimRequest {
            worker: self.worker.clone(),
            pool: None,
            types,
            ids: None,
            max: 1,
            token: 1,
            repeated: false,
            lease_until: None,
            now,
        };
        self.client.store().claim(request).await.ok()?.claimed.pop()
    }

    async fn run(&self, claimed: Claimed) {
        let claimed = Arc::new(claimed);
        let Some(call) = self.calls.get(&claimed.task.kind).cloned() else { return };
        let rules = self.client.rules();
        let policy = rules.policy_for(&claimed.task);
        let executor = HandlerExecutor {
            call,
            client: self.client.clone(),
            threads: Handle::current(),
            on_stuck: OnStuck::Hold,
        };
        let run = Run {
            claimed: claimed.clone(),
            timeout: policy.timeout,
            grace: policy.grace,
            supervision: Arc::new(Undisturbed),
        };
        let finished = executor.run(run).await;
        let now = self.clock.now();
        let settlement =
            settle(&claimed, finished.outcome, finished.trace, &policy.retry, now, 0.0);
        let _ = self.client.store().settle(vec![settlement]).await;
    }
}

/// Nobody stops a run of a test kit.
struct Undisturbed;

#[async_trait]
impl Supervision for Undisturbed {
    async fn stopped(&self) -> StopReason {
        std::future::pending().await
    }

    fn lease_deadline(&self) -> Option<u64> {
        None
    }

    async fn lease_renewed(&self, _seen: Option<u64>) -> Option<u64> {
        std::future::pending().await
    }

    fn output(&self, _chunk: &[u8]) {}
}
