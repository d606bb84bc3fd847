//! Looks at the store for all loops that wait for something in it, and wakes those whom it
//! concerns. Without it each pool and the scheduler would ask for themselves, and a node that has
//! nothing to do would cost the database several questions a second.
//!
//! Wake-ups come sooner; this is what finds what no wake-up told of.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use matins_core::lease::sweep_every;
use matins_core::store::{Look, LookRequest, Types};
use matins_core::task::Name;
use tokio::time::Instant;

use super::producer::{self, Trouble};
use super::{Core, reaper};

pub(super) async fn run(core: Arc<Core>) {
    let beat = core.progress.watch("lookout", core.config.poll);
    let mut trouble = Trouble::of(&core, &beat);
    // Nodes that start together do not look together, nor do they come to it.
    let dice = || core.client.inner.clock.dice();
    let mut pause = core.config.poll.mul_f64(dice());
    let mut next = None;
    let mut upkeep: Option<Instant> = None;
    loop {
        tokio::select! {
            () = core.quiet.cancelled() => return,
            () = producer::sleep_until(&core, next, pause, &beat) => {}
        }
        pause = core.config.poll.mul_f64(1.0 + dice() / 4.0);
        beat.doing("look");
        let due = upkeep
            .is_none_or(|at| at.elapsed() + core.config.poll > sweep_every(core.config.lease));
        let (sent, sent_ns) = (Instant::now(), core.client.inner.clock.boot_ns());
        match core.store().look(&request(&core, due)).await {
            Ok(look) => {
                trouble.over("lookout");
                core.progress.answered();
                beat.round().await;
                core.client.follow(look.clock, sent_ns);
                if due {
                    upkeep = Some(sent);
                }
                let now = core.client.now();
                next = look.next_at().filter(|at| *at > now);
                wake(&core, &look, now);
            }
            Err(error) => {
                // Whoever asks for himself may be luckier.
                core.client.inner.wake.ring_pools();
                core.client.inner.wake.ring_schedules();
                core.client.inner.wake.ring_lapses();
                next = None;
                pause = pause.min(trouble.again("lookout", &error));
            }
        }
    }
}

fn request(core: &Core, upkeep: bool) -> LookRequest {
    let works = core.config.roles.worker;
    let slots = core.slots();
    let free = slots.iter().filter(|(_, slots)| works && slots.free() > 0);
    let kinds: BTreeSet<Name> = core.executors().keys().cloned().collect();
    LookRequest {
        pools: free.map(|(pool, _)| pool.clone()).collect(),
        types: Types::Only(Arc::new(kinds)),
        now: core.client.now(),
        upkeep: upkeep.then(|| reaper::ended_before(core)),
    }
}

fn wake(core: &Core, look: &Look, now: Timestamp) {
    let wake = &core.client.inner.wake;
    if core.config.only.is_some() {
        // What it waits for may lie in any pool.
        wake.ring_pools();
    }
    look.pools.iter().for_each(|pool| wake.ring_pool(pool));
    if look.schedules.is_some_and(|due| due <= now) {
        wake.ring_schedules();
    }
    if look.lapsed {
        wake.ring_lapses();
    }
    if look.expired {
        wake.ring_expiries();
    }
}
