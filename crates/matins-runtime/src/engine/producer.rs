//! Fills the slots of one pool: claims what fits, starts it, waits for a reason to claim again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::store::{ClaimRequest, StoreError, Types};
use matins_core::task::{Claimed, Name, until};

use super::{Core, attempt};
use crate::clock::Clock;
use crate::engine::slots::Slots;
use crate::progress::Beat;

/// Most tasks of one claim.
const CLAIM_MAX: u32 = 1_000;

/// Longest time without a claim: the lookout says when one is worth while.
pub(super) const OWN_LOOK: Duration = Duration::from_secs(60);

/// Starts a producer for each pool that has none.
pub(super) fn start_missing(core: &Arc<Core>) {
    for (pool, slots) in &*core.slots() {
        // A slot set that only this map holds has no producer yet.
        if Arc::strong_count(slots) == 1 {
            let beat = core.progress.watch(format!("claimer:{pool}"), core.config.poll);
            core.producers.spawn(run(core.clone(), pool.clone(), slots.clone(), beat));
        }
    }
}

async fn run(core: Arc<Core>, pool: Name, slots: Arc<Slots>, beat: Beat) {
    let bell = core.client.inner.wake.pool(&pool);
    let mut trouble = Trouble::of(&core, &beat);
    // A claim whose answer is lost may have claimed: it is repeated with its token until there is
    // an answer, or nobody would ever run what it claimed.
    let mut unanswered = None;
    while !core.quiet.is_cancelled() {
        core.client.inner.metrics.pool(&pool, slots.busy(), slots.size());
        if slots.free() == 0 {
            // A full pool is no stall: there is nothing to ask for.
            beat.round().await;
            tokio::select! {
                () = core.quiet.cancelled() => return,
                () = slots.wait_free() => {}
                () = tokio::time::sleep(core.config.poll) => {}
            }
            continue;
        }
        let max = slots.free().min(CLAIM_MAX);
        let mut request = request(&core, &pool, max);
        if let Some(token) = unanswered {
            (request.token, request.repeated) = (token, true);
        }
        unanswered = Some(request.token);
        beat.doing("claim");
        let next_at = match core.store().claim(request).await {
            Ok(batch) => {
                unanswered = None;
                beat.round().await;
                trouble.over(&pool);
                let full = batch.claimed.len() >= max as usize;
                if core.quiet.is_cancelled() {
                    return give_back(&core, batch.claimed).await;
                }
                start(&core, &slots, batch.claimed);
                if full {
                    continue;
                }
                batch.next_at
            }
            Err(error) => {
                let pause = trouble.again(&pool, &error);
                tokio::select! {
                    () = core.quiet.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                continue;
            }
        };
        tokio::select! {
            () = core.quiet.cancelled() => return,
            () = bell.notified() => {}
            () = sleep_until(&core, next_at, OWN_LOOK, &beat) => {}
        }
    }
}

fn request(core: &Core, pool: &Name, max: u32) -> ClaimRequest {
    let kinds: BTreeSet<Name> = core.executors().keys().cloned().collect();
    ClaimRequest {
        worker: core.worker(),
        pool: core.config.only.is_none().then(|| pool.clone()),
        types: Types::Only(Arc::new(kinds)),
        ids: core.config.only.map(|id| vec![id]),
        max: max as usize,
        token: core.client.inner.clock.random(),
        repeated: false,
        lease_until: None,
        now: core.client.now(),
    }
}

/// Claimed too late to begin. A claim that never started is no loss.
async fn give_back(core: &Core, claimed: Vec<Claimed>) {
    let now = core.client.now();
    for one in claimed {
        attempt::give_back(core, &one, now).await;
    }
}

fn start(core: &Arc<Core>, slots: &Arc<Slots>, claimed: Vec<Claimed>) {
    let Some(first) = claimed.first() else { return };
    let now = core.client.now();
    // One pool has them all.
    let after = |one: &Claimed| until(now, one.task.run_at.max(one.task.created_at));
    core.client.inner.metrics.picked_up(&first.task.pool, claimed.iter().map(after));
    attempt::spawn(core, claimed, slots);
}

/// Sleeps on the wall clock: never longer than a moment without reading it again, so that a
/// suspended or stepped host does not oversleep. Ends by itself when the time is up.
pub(super) async fn sleep_until(core: &Core, at: Option<Timestamp>, limit: Duration, beat: &Beat) {
    let mut left = limit;
    while !left.is_zero() {
        let wait = at.map_or(left, |at| until(at, core.client.now()).min(left));
        if wait.is_zero() {
            return;
        }
        let nap = wait.min(Duration::from_secs(1));
        tokio::time::sleep(nap).await;
        beat.turn();
        left = left.saturating_sub(nap);
    }
}

/// An outage is told once when it begins and once when it is over.
pub(super) struct Trouble {
    failures: u32,
    clock: Arc<dyn Clock>,
    beat: Option<Beat>,
}

impl Trouble {
    pub(super) fn new(core: &Core) -> Self {
        Self { failures: 0, clock: core.client.inner.clock.clone(), beat: None }
    }

    /// Of a loop that is watched.
    pub(super) fn of(core: &Core, beat: &Beat) -> Self {
        Self { beat: Some(beat.clone()), ..Self::new(core) }
    }

    /// How long to wait before the next try.
    pub(super) fn again(&mut self, who: &str, error: &StoreError) -> Duration {
        if self.failures == 0 {
            tracing::warn!(%error, "{who}: the store does not answer; trying on");
        }
        self.failures = self.failures.saturating_add(1);
        if let (StoreError::Full(_), Some(beat)) = (error, &self.beat) {
            // That there is no room is an answer: a restart makes none.
            beat.turn();
        }
        let millis = 50u64 << self.failures.min(6);
        Duration::from_millis(millis).mul_f64(0.5 + 0.5 * self.clock.dice())
    }

    pub(super) fn over(&mut self, who: &str) {
        if self.failures > 0 {
            tracing::info!(failures = self.failures, "{who}: the store answers again");
            self.failures = 0;
        }
    }
}
