//! One run of a task, from the claim to the completer.
//!
//! Whoever wants a run to end says so through its [`Control`], once and for one reason. The
//! executor obeys by its own ladder.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use jiff::Timestamp;
use matins_core::executor::{Executor, Finished, Run, StopReason, Supervision};
use matins_core::lease::holder_limit;
use matins_core::lifecycle::{Outcome, Trace, settle};
use matins_core::task::{Claim, Claimed, ErrorClass, Task, TaskError, TaskId};
use tokio::sync::{Notify, watch};

use super::Core;
use super::completer::Done;
use super::slots::{Slot, Slots};
use crate::events::What;
use crate::live::LiveOutput;
use crate::process::Stream;
use crate::rules::Resolved;

/// The engine's hold on a run.
pub(crate) struct Control {
    id: TaskId,
    attempt: u32,
    stop: Mutex<Option<StopReason>>,
    told: Notify,
    lease: Option<watch::Receiver<u64>>,
    /// A lease of the claim's own, which is renewed run by run: until when it stands.
    own: Option<(Claim, watch::Sender<u64>)>,
    live: LiveOutput,
    grace: Duration,
    /// What a shutdown leaves for the ladder.
    patience: OnceLock<Duration>,
}

impl Control {
    /// The first reason stands, but for a lost lease: then nothing else matters.
    pub(crate) fn stop(&self, reason: StopReason) {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if stop.is_none() || reason == StopReason::LeaseLost {
            *stop = Some(reason);
            self.told.notify_waiters();
        }
    }

    /// Our own process is going away, and the run has that long to end.
    pub(crate) fn stop_within(&self, patience: Duration) {
        let _ = self.patience.set(patience);
        self.stop(StopReason::Shutdown);
    }

    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    fn reason(&self) -> Option<StopReason> {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs on although the worker's lease could be judged.
    pub(crate) fn outlives_lease(&self) -> bool {
        self.lease.is_none() || self.own.is_some()
    }

    pub(crate) fn own_claim(&self) -> Option<Claim> {
        self.own.as_ref().map(|(claim, _)| *claim)
    }

    /// Its own lease stands until then.
    pub(crate) fn hold_until(&self, until_ns: u64) {
        if let Some((_, until)) = &self.own {
            until.send_replace(until_ns);
        }
    }

    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.own.as_ref().is_some_and(|(_, until)| *until.borrow() <= now_ns)
    }
}

#[async_trait]
impl Supervision for Control {
    async fn stopped(&self) -> StopReason {
        loop {
            // Listens before it looks, so that what is said in between is heard.
            let told = self.told.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            told.await;
        }
    }

    fn lease_deadline(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| *lease.borrow())
    }

    async fn lease_renewed(&self, seen: Option<u64>) -> Option<u64> {
        let Some(lease) = &self.lease else { return std::future::pending().await };
        let mut lease = lease.clone();
        match lease.wait_for(|until| Some(*until) != seen).await.map(|until| *until) {
            Ok(until) => Some(until),
            Err(_) => std::future::pending().await,
        }
    }

    fn patience(&self, grace: Duration) -> Duration {
        match self.reason() {
            // Somebody else may run the task already.
            Some(StopReason::LeaseLost) => Duration::ZERO,
            _ => self.patience.get().map_or(grace, |patience| grace.min(*patience)),
        }
    }

    fn output(&self, chunk: &[u8]) {
        self.live.write(self.id, self.attempt, Stream::Out, chunk);
    }

    fn error_output(&self, chunk: &[u8]) {
        self.live.write(self.id, self.attempt, Stream::Err, chunk);
    }

    fn stuck(&self) {
        tracing::error!(task = %self.id, "a handler ignores its end; its slot stays taken");
        self.live.set_stuck(self.id, self.attempt);
    }
}

/// A claimed task with all that its run needs.
struct Start {
    claimed: Arc<Claimed>,
    policy: Resolved,
    control: Arc<Control>,
    executor: Option<Arc<dyn Executor>>,
}

/// Starts claimed tasks, each in a slot.
///
/// `sent_ns`: when the claim was asked for; leases of its own count from then.
pub(super) fn spawn(core: &Arc<Core>, claimed: Vec<Claimed>, slots: &Arc<Slots>, sent_ns: u64) {
    let (rules, executors) = (core.client.rules(), core.executors());
    let start = |claimed: Claimed| {
        let rule = rules.types.get(&claimed.task.kind);
        let finish = rule.is_some_and(|rule| rule.finish_on_lease_loss);
        let policy = rules.policy_for(&claimed.task);
        let until = sent_ns + holder_limit(core.config.lease).as_nanos() as u64;
        let own = core
            .store()
            .is_journalled(&claimed.claim)
            .then(|| (claimed.claim, watch::channel(until).0));
        let lease =
            own.as_ref().map_or_else(|| core.lease_until.subscribe(), |own| own.1.subscribe());
        let control = Arc::new(Control {
            id: claimed.task.id,
            attempt: claimed.task.attempt,
            grace: policy.grace,
            patience: OnceLock::new(),
            stop: Mutex::default(),
            told: Notify::new(),
            // Nobody would know of the loss of one that goes on without the store.
            lease: (!finish || own.is_some()).then_some(lease),
            own,
            live: core.client.inner.live.clone(),
        });
        let executor = executors.get(&claimed.task.kind).cloned();
        Start { claimed: Arc::new(claimed), policy, control, executor }
    };
    let starts: Vec<Start> = claimed.into_iter().map(start).collect();
    core.client
        .inner
        .live
        .open(starts.iter().map(|start| (start.control.id, start.control.attempt)));
    core.running().extend(starts.iter().map(|start| (start.control.id, start.control.clone())));
    for start in starts {
        core.attempts.spawn(run(core.clone(), start, slots.take()));
    }
}

async fn run(core: Arc<Core>, start: Start, slot: Slot) {
    let Start { claimed, policy, control, executor } = start;
    let (id, attempt) = (claimed.task.id, claimed.task.attempt);
    let kind = claimed.task.kind.clone();
    let started = core.client.now();
    core.client.inner.events.send(started, || What::Started { id, kind: kind.clone(), attempt });
    let finished = match executor {
        Some(executor) => {
            let run = Run {
                claimed: claimed.clone(),
                timeout: policy.timeout,
                grace: policy.grace,
                supervision: control.clone(),
            };
            supervise(&*executor, run, &control, &policy).await
        }
        // Its type left the file between claim and start.
        None => Outcome::Released { at: core.client.now() }.into(),
    };
    {
        // A later attempt of the same task may stand there.
        let mut running = core.running();
        if running.get(&id).is_some_and(|other| Arc::ptr_eq(other, &control)) {
            running.remove(&id);
        }
    }
    drop(slot);
    let now = core.client.now();
    let finished = finished_as(control.reason(), finished, &policy);
    let dice = core.client.inner.clock.dice();
    let trace = finished.trace;
    let by_run = finished.outcome == Outcome::SettledByRun;
    let settlement = settle(&claimed, finished.outcome, trace, &policy.retry, now, dice);
    let length = matins_core::task::until(now, started);
    let releases = releases(&core, &claimed.task);
    let done = Done { settlement, kind, length: Some(length), releases, by_run };
    if core.done.send(done).await.is_err() {
        tracing::error!(task = %id, "the completer is gone; the attempt will be recovered");
    }
}

/// Settles a claim that will not be started.
pub(super) async fn give_back(core: &Core, claimed: &Claimed, now: Timestamp) {
    let policy = core.client.rules().policy_for(&claimed.task);
    let outcome = Outcome::Released { at: now };
    let settlement = settle(claimed, outcome, Trace::default(), &policy.retry, now, 0.0);
    let kind = claimed.task.kind.clone();
    let done = Done { settlement, kind, length: None, releases: true, by_run: false };
    // Without a completer the claim lapses with the worker's entry.
    let _ = core.done.send(done).await;
}

/// Whether the end of this task may set another one free: a parked, held or limited one.
fn releases(core: &Core, task: &Task) -> bool {
    let limits = &core.settings.borrow().limits;
    task.concurrency_key.is_some()
        || task.origin.is_some()
        || task.in_quarantine()
        || limits.get(&task.kind).is_some_and(|limit| limit.concurrency.is_some())
}

/// Runs the executor beside its deadline, and waits for it whatever happens.
async fn supervise(
    executor: &dyn Executor,
    run: Run,
    control: &Control,
    policy: &Resolved,
) -> Finished {
    let work = AssertUnwindSafe(executor.run(run)).catch_unwind();
    tokio::pin!(work);
    if let Some(limit) = policy.timeout.limit() {
        match tokio::time::timeout(limit, &mut work).await {
            Ok(finished) => return caught(finished),
            Err(_) => control.stop(StopReason::Timeout),
        }
    }
    caught(work.await)
}

fn caught(finished: std::thread::Result<Finished>) -> Finished {
    finished.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "panic without a message".to_owned());
        let error = TaskError::new(ErrorClass::Panic, text);
        Outcome::Failed { error, permanent: false, retry_after: None }.into()
    })
}

fn timed_out(policy: &Resolved, trace: Trace) -> Finished {
    let text = format!("did not end within {}", policy.timeout);
    let error = TaskError::new(ErrorClass::Timeout, text);
    Finished { outcome: Outcome::TimedOut { error }, trace }
}

/// A failure of a run that was told to end is the answer to being told.
fn finished_as(reason: Option<StopReason>, finished: Finished, policy: &Resolved) -> Finished {
    let Finished { outcome, trace } = finished;
    let told = matches!(
        outcome,
        Outcome::Failed { .. }
            | Outcome::Cancelled
            | Outcome::TimedOut { .. }
            | Outcome::Interrupted
    );
    match reason {
        // Nobody may have judged the claim: then this does it, and otherwise it is fenced.
        Some(StopReason::LeaseLost) => {
            let text = "ended because the lease could not be renewed in time";
            let error = TaskError::new(ErrorClass::WorkerLost, text);
            Finished { outcome: Outcome::Lost { error }, trace }
        }
        Some(StopReason::Cancel) if told => Finished { outcome: Outcome::Cancelled, trace },
        Some(StopReason::Shutdown) if told => Finished { outcome: Outcome::Interrupted, trace },
        Some(StopReason::Timeout) if told => match outcome {
            Outcome::TimedOut { .. } => Finished { outcome, trace },
            _ => timed_out(policy, trace),
        },
        _ => Finished { outcome, trace },
    }
}
