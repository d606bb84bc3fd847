//! Fires schedules: reads what is due, lets the core decide, applies the plans.
//!
//! The store's cursor is the only memory of what has been decided, so any number of schedulers
//! may run: a plan made from an outdated schedule is refused and made again. The loop never waits
//! for a slot of a pool. It sleeps at most a second without reading the clock again, and compares
//! the wall clock with the monotonic one to notice a step. The store is asked when something that
//! it told of is due, or when the lookout or a wake-up says so.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::alert::{Alert, Rule};
use matins_core::lifecycle::later;
use matins_core::schedule::{self, DueSchedule, FirePlan};
use matins_core::store::StoreError;
use matins_core::task::until;

use super::clocks::Clocks;
use super::producer::Trouble;
use super::{Core, health, lease};
use crate::ClientError;
use crate::events::What;

/// Schedules of one pass.
const BATCH: usize = 1_000;
/// Longest sleep without a look at the clock.
const NAP_MAX: Duration = Duration::from_secs(1);
/// Before what was refused is looked at again.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn run(core: Arc<Core>) {
    let beat = core.progress.watch("scheduler", NAP_MAX);
    let mut trouble = Trouble::of(&core, &beat);
    let mut clocks = Clocks::read(&core);
    // The clock may have been set back, and the zone table replaced, while nobody looked.
    let mut check_all = true;
    let mut next = None;
    let mut rung = true;
    while !core.quiet.is_cancelled() {
        if let Some(seconds) = clocks.passed(&core).step {
            tracing::warn!(seconds, "the wall clock was stepped");
            core.client.inner.events.send(core.client.now(), || What::ClockStep { seconds });
            let alert = Alert::new(Rule::ClockStep, &*core.config.node_id, core.client.now());
            core.client.alerts().tell(alert.fact("seconds", format!("{seconds:.1}")));
            core.client.inner.wake.ring_pools();
            check_all = true;
            rung = true;
            // The stored end of the lease is in the old time.
            if *core.joined.borrow()
                && let Err(error) = lease::renew(&core).await
            {
                tracing::warn!(%error, "the lease could not be renewed after the step");
            }
        }
        if rung || next.is_some_and(|next| next <= core.client.now()) {
            let turn = async {
                beat.doing(if check_all { "realign" } else { "fire" });
                let aligned = match check_all {
                    true => realign(&core).await,
                    false => Ok(()),
                };
                // What stands in for the store knows what is due, and not all schedules.
                let later = aligned.is_err() && health::runs(&core);
                if !later {
                    aligned?;
                }
                Ok((fire_due(&core).await?, later))
            };
            match turn.await {
                Ok((known, later)) => {
                    trouble.over("scheduler");
                    check_all = later;
                    next = known;
                }
                Err(error) => {
                    let pause = trouble.again("scheduler", &error);
                    rung = true;
                    tokio::time::sleep(pause).await;
                    continue;
                }
            }
        }
        beat.round().await;
        let now = core.client.now();
        let nap = next.map_or(NAP_MAX, |next| until(next, now).min(NAP_MAX));
        rung = tokio::select! {
            () = core.quiet.cancelled() => return,
            () = core.client.inner.wake.schedules() => true,
            () = tokio::time::sleep(nap) => false,
        };
    }
}

/// Decides and applies what is due, one batch of it; when to look again.
async fn fire_due(core: &Core) -> Result<Option<Timestamp>, StoreError> {
    let now = core.client.now();
    let (due, next) = core.store().due(now, BATCH).await?;
    if due.is_empty() {
        return Ok(next);
    }
    let frozen = core.store().settings().await?.frozen.is_some();
    let mut plans = Vec::with_capacity(due.len());
    for one in &due {
        match core.client.plan(one, frozen, schedule::decide).await {
            Ok(plan) => plans.push(plan),
            Err(ClientError::Store(error)) => return Err(error),
            Err(error) => plans.push(put_aside(core, one, &error)),
        }
    }
    let applied = core.store().fire(plans.clone(), now).await?;
    let mut refused = 0;
    for (plan, applied) in plans.iter().zip(applied) {
        if applied {
            core.client.fired(plan, now).await;
        } else {
            refused += 1;
            tracing::debug!(schedule = plan.state.spec.name, "changed by others; read again");
        }
    }
    // Others are at work on refused ones: let them.
    let pause = if refused == due.len() { REFUSED_PAUSE } else { Duration::ZERO };
    Ok(Some(later(now, pause)))
}

/// A stored schedule that this build cannot read must not hold up the others: it is paused, and
/// says why.
fn put_aside(core: &Core, due: &DueSchedule, error: &ClientError) -> FirePlan {
    let name = &due.state.spec.name;
    tracing::error!(schedule = name, %error, "the schedule cannot be used and is paused");
    schedule::pause(&due.state, Some(format!("cannot be used: {error}")), core.client.now())
}

/// Brings every schedule in line with a clock that was set back and with a new zone table.
async fn realign(core: &Core) -> Result<(), StoreError> {
    let stored = match core.client.all_schedules().await {
        Ok(stored) => stored,
        Err(ClientError::Store(error)) => return Err(error),
        Err(_) => return Ok(()),
    };
    let limits = core.client.rules().limits;
    let now = core.client.now();
    let plans: Vec<FirePlan> = stored
        .iter()
        .filter_map(|due| {
            schedule::step_back(&due.state, &limits, now)
                .or_else(|| schedule::rearm(&due.state, &limits))
        })
        .collect();
    for chunk in plans.chunks(BATCH) {
        core.store().fire(chunk.to_vec(), now).await?;
    }
    Ok(())
}
