//! The engine's side of a run, for executors.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use matins_core::Json;
use matins_core::duration::Timeout;
use matins_core::executor::{Run, StopReason, Supervision};
use matins_core::task::{Claim, Claimed, NewTask, Task, TaskId};
use matins_runtime::process::Moment;
use tokio::sync::watch;
use uuid::Uuid;

pub(crate) struct Engine {
    stop: watch::Sender<Option<StopReason>>,
    lease: watch::Sender<Option<u64>>,
    live: Mutex<Vec<u8>>,
}

impl Engine {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            stop: watch::Sender::new(None),
            lease: watch::Sender::new(None),
            live: Mutex::default(),
        })
    }

    pub(crate) fn stop(&self, reason: StopReason) {
        self.stop.send_replace(Some(reason));
    }

    pub(crate) fn lease_for(&self, length: Duration) {
        self.lease.send_replace(Some(Moment::now().after(length).as_nanos()));
    }

    pub(crate) fn live(&self) -> String {
        String::from_utf8_lossy(&self.live.lock().unwrap()).into_owned()
    }

    pub(crate) fn run(self: &Arc<Self>, task: Task) -> Run {
        let claim = Claim { id: task.id, fence: 42, token: 7 };
        let timeout = task.timeout.unwrap_or(Timeout::After(Duration::from_secs(20)));
        let supervision = Arc::clone(self) as Arc<dyn Supervision>;
        let grace = Duration::from_millis(500);
        Run { claimed: Arc::new(Claimed { task, claim }), timeout, grace, supervision }
    }
}

#[async_trait]
impl Supervision for Engine {
    async fn stopped(&self) -> StopReason {
        let mut stop = self.stop.subscribe();
        let reason = *stop.wait_for(Option::is_some).await.unwrap();
        reason.unwrap()
    }

    fn lease_deadline(&self) -> Option<u64> {
        *self.lease.borrow()
    }

    async fn lease_renewed(&self, seen: Option<u64>) -> Option<u64> {
        let mut lease = self.lease.subscribe();
        *lease.wait_for(|deadline| *deadline != seen).await.unwrap()
    }

    fn output(&self, chunk: &[u8]) {
        self.live.lock().unwrap().extend(chunk);
    }
}

pub(crate) fn task(kind: &str, payload: &str) -> Task {
    let now = jiff::Timestamp::now();
    let new = NewTask::new(TaskId(Uuid::now_v7()), kind, Json::parse(payload).unwrap(), now);
    let mut task = Task::from_new(&new, now);
    task.attempt = 3;
    task
}
