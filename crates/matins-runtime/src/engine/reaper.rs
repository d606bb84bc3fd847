//! Settles running tasks whose worker is gone as lost or interrupted, when the lookout has seen some
//! or a worker was found dead.
//!
//! What is read here is settled with the claim that was read, so a task that ended or was
//! claimed anew in between stays as it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::alert::{Alert, Rule};
use matins_core::lease::{excuses, sweep_every};
use matins_core::lifecycle::{Outcome, Trace, settle};
use matins_core::store::{Lapsed, Settled, StoreError};
use matins_core::task::{ErrorClass, State, TaskError};
use tokio::time::Instant;

use super::Core;
use super::clocks::Clocks;
use super::producer::{OWN_LOOK, Trouble};
use crate::events::What;

/// Most tasks of one pass.
const BATCH: usize = 500;

pub(super) async fn run(core: Arc<Core>) {
    let beat = core.progress.watch("reaper", sweep_every(core.config.lease));
    let mut trouble = Trouble::of(&core, &beat);
    let mut clocks = Clocks::read(&core);
    let mut away = Away::default();
    let (mut rung, mut asked) = (true, Instant::now());
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(sweep_every(core.config.lease)) => {}
            () = core.client.wake().lapses() => rung = true,
            () = core.store().worker_died() => rung = true,
        }
        let passed = clocks.passed(&core);
        if passed.step.is_some() || passed.seconds > core.config.lease.as_secs_f64() / 2.0 {
            hold_judgement(&core);
        }
        away.look(&core);
        let every = sweep_every(core.config.lease);
        if !rung && asked.elapsed() < OWN_LOOK && core.progress.has_answered(every) {
            away = Away::default();
            beat.round().await;
            continue;
        }
        beat.doing("sweep");
        match sweep(&core).await {
            Ok(_) => {
                trouble.over("reaper");
                away = Away::default();
                (rung, asked) = (false, Instant::now());
                beat.round().await;
            }
            Err(error) => {
                let pause = trouble.again("reaper", &error);
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Since when the store has not answered, on the monotonic clock.
#[derive(Default)]
struct Away {
    since_ns: Option<u64>,
}

impl Away {
    /// Before each pass. A pass may itself take as long as an answer is waited for, so its beginning
    /// counts until one has succeeded.
    fn look(&mut self, core: &Core) {
        let now = core.client.inner.clock.boot_ns();
        let since = *self.since_ns.get_or_insert(now);
        if excuses(Duration::from_nanos(now.saturating_sub(since)), core.config.lease) {
            hold_judgement(core);
        }
    }
}

/// Leases are kept in wall-clock time. After a step of that clock, and after a time in which
/// nobody could renew (this node was away or frozen), they say nothing: every live worker gets one
/// lease's time to renew. What was given back or taken over lapses all the same.
pub(super) fn hold_judgement(core: &Core) {
    let from = core.client.inner.clock.boot_ns() + core.config.lease.as_nanos() as u64;
    core.judge_from_ns.store(from, Ordering::SeqCst);
}

fn may_judge(core: &Core) -> bool {
    core.client.inner.clock.boot_ns() >= core.judge_from_ns.load(Ordering::SeqCst)
}

/// Leases that ended before this may be judged.
pub(super) fn ended_before(core: &Core) -> Timestamp {
    if may_judge(core) { core.client.now() } else { Timestamp::MIN }
}

/// One pass over everything that has lapsed; how many were settled.
pub(super) async fn sweep(core: &Core) -> Result<usize, StoreError> {
    let mut total = 0;
    loop {
        let now = core.client.now();
        let lapsed = core.store().lapsed(ended_before(core), BATCH).await?;
        let n = lapsed.len();
        if n == 0 {
            return Ok(total);
        }
        let rules = core.client.rules();
        let settlements: Vec<_> = lapsed
            .iter()
            .map(|lapsed| {
                let policy = rules.policy_for(&lapsed.claimed.task);
                let dice = core.client.inner.clock.dice();
                settle(&lapsed.claimed, outcome(lapsed), Trace::default(), &policy.retry, now, dice)
            })
            .collect();
        let answers = core.store().settle(settlements.clone()).await?;
        for ((lapsed, settlement), answer) in lapsed.iter().zip(&settlements).zip(answers) {
            let Settled::Done(state) = answer else { continue };
            total += 1;
            if state == State::Failed {
                core.client.wake().ring_alerts();
            }
            let task = &lapsed.claimed.task;
            let (id, kind, attempt) = (task.id, task.kind.clone(), task.attempt);
            tracing::warn!(
                task = %id, %attempt, worker = %lapsed.worker, outcome = settlement.outcome.as_str(),
                state = state.as_str(), "recovered an attempt whose worker is gone"
            );
            core.client.inner.metrics.settled(&kind, settlement.outcome);
            core.client.inner.events.send(now, || What::Settled { id, kind, attempt, state });
        }
        tell_losses(core, &lapsed);
        core.client.inner.wake.ring_pools();
        if n < BATCH {
            return Ok(total);
        }
    }
}

/// One alert for each worker that died under its tasks; a deploy is no death.
fn tell_losses(core: &Core, lapsed: &[Lapsed]) {
    let mut lost: BTreeMap<&str, u64> = BTreeMap::new();
    for lapsed in lapsed.iter().filter(|lapsed| !lapsed.draining) {
        *lost.entry(&lapsed.worker.0).or_default() += 1;
    }
    for (worker, tasks) in lost {
        let alert = Alert::new(Rule::WorkerLost, worker, core.client.now());
        core.client.alerts().tell(alert.fact("tasks", tasks));
    }
}

fn outcome(lapsed: &Lapsed) -> Outcome {
    if lapsed.draining {
        return Outcome::Interrupted;
    }
    let text = format!("worker died or lost its lease: {}", lapsed.worker);
    Outcome::Lost { error: TaskError::new(ErrorClass::WorkerLost, text) }
}
