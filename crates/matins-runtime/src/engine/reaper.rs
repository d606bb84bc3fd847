//! Looks for running tasks whose worker is gone, and settles them as lost or interrupted.
//!
//! What is read here is settled with the claim that was read, so a task that ended or was
//! claimed anew in between stays as it is.

use std::sync::Arc;

use matins_core::lease::sweep_every;
use matins_core::lifecycle::{Outcome, Trace, settle};
use matins_core::store::{Lapsed, Settled, StoreError};
use matins_core::task::{ErrorClass, TaskError};

use super::Core;
use super::producer::Trouble;
use crate::events::What;

/// Most tasks of one pass.
const BATCH: usize = 500;

pub(super) async fn run(core: Arc<Core>) {
    let beat = core.progress.watch("reaper");
    let mut trouble = Trouble::default();
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(sweep_every(core.config.lease)) => {}
        }
        match sweep(&core).await {
            Ok(_) => {
                trouble.over("reaper");
                beat.turn();
            }
            Err(error) => {
                let pause = trouble.again("reaper", &error);
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// One pass over everything that has lapsed; how many were settled.
pub(super) async fn sweep(core: &Core) -> Result<usize, StoreError> {
    let mut total = 0;
    loop {
        let now = core.client.now();
        let lapsed = core.store().lapsed(now, BATCH).await?;
        let n = lapsed.len();
        if n == 0 {
            return Ok(total);
        }
        let rules = core.client.rules();
        let settlements: Vec<_> = lapsed
            .iter()
            .map(|lapsed| {
                let policy = rules.policy_for(&lapsed.claimed.task);
                let dice = rand::random();
                settle(&lapsed.claimed, outcome(lapsed), Trace::default(), &policy.retry, now, dice)
            })
            .collect();
        let answers = core.store().settle(settlements.clone()).await?;
        for ((lapsed, settlement), answer) in lapsed.iter().zip(&settlements).zip(answers) {
            let Settled::Done(state) = answer else { continue };
            total += 1;
            let task = &lapsed.claimed.task;
            let (id, kind, attempt) = (task.id, task.kind.clone(), task.attempt);
            tracing::warn!(
                task = %id, %attempt, worker = %lapsed.worker, outcome = settlement.outcome.as_str(),
                state = state.as_str(), "recovered an attempt whose worker is gone"
            );
            core.client.inner.metrics.settled(&kind, settlement.outcome);
            core.client.inner.events.send(now, || What::Settled { id, kind, attempt, state });
        }
        core.client.inner.wake.ring_pools();
        if n < BATCH {
            return Ok(total);
        }
    }
}

fn outcome(lapsed: &Lapsed) -> Outcome {
    if lapsed.draining {
        return Outcome::Interrupted;
    }
    let text = format!("worker died or lost its lease: {}", lapsed.worker);
    Outcome::Lost { error: TaskError::new(ErrorClass::WorkerLost, text) }
}
