//! What keeps a store in shape: expiry, retention, figures; and the ear for other processes.

use std::sync::Arc;
use std::time::Duration;

use matins_core::store::StoreError;
use tokio::time::Instant;

use super::Core;
use super::producer::Trouble;
use super::signs::{Schedulers, Signs};
use crate::progress::Beat;
use crate::pruning;

const STATS_EVERY: Duration = Duration::from_secs(10);
const FIGURES_EVERY: Duration = Duration::from_secs(10);
/// Between two looks for what people must be told of, unless they want to know sooner.
const SIGNS_EVERY: Duration = Duration::from_secs(20);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const EXPIRE_ROWS: usize = 1_000;

/// Only the figures, on a node that leaves the rest to others: they are the same everywhere. And
/// whether those others are there.
pub(super) async fn show_figures(core: Arc<Core>) {
    let beat = core.progress.watch("figures", FIGURES_EVERY);
    let mut trouble = Trouble::of(&core, &beat);
    let mut schedulers = Schedulers::default();
    loop {
        beat.doing("read");
        let now = core.client.now();
        let looked = async {
            let stats = core.store().stats(now).await?;
            core.client.inner.metrics.stats(&stats, now);
            core.offer_figures(stats, now);
            schedulers.look(&core, now).await
        };
        let pause = match looked.await {
            Ok(()) => {
                trouble.over("figures");
                beat.round().await;
                FIGURES_EVERY
            }
            Err(error) => trouble.again("figures", &error),
        };
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

pub(super) async fn run(core: Arc<Core>) {
    let beat = core.progress.watch("upkeep", STATS_EVERY);
    let mut trouble = Trouble::of(&core, &beat);
    let mut signs = Signs::default();
    let mut due = Due { expiry: true, prune: true };
    let mut pruned = Instant::now();
    loop {
        // Whatever else there is to do, the figures are read anew by then.
        let next = Instant::now() + STATS_EVERY;
        if pruned.elapsed() >= PRUNE_EVERY {
            pruned = Instant::now();
            due = Due { expiry: true, prune: true };
        }
        beat.doing("figures, expiry, pruning");
        match turn(&core, &mut due, next, &mut signs, &beat).await {
            Ok(()) => {
                trouble.over("upkeep");
                beat.round().await;
            }
            Err(error) => {
                let pause = trouble.again("upkeep", &error);
                tokio::time::sleep(pause).await;
            }
        }
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = core.client.wake().expiries() => due.expiry = true,
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// What is still to be done.
struct Due {
    expiry: bool,
    prune: bool,
}

/// Figures, expiry when there is some, and, when it is time, a stretch of pruning, until it is time
/// for the next figures.
async fn turn(
    core: &Core,
    due: &mut Due,
    until: Instant,
    signs: &mut Signs,
    beat: &Beat,
) -> Result<(), StoreError> {
    let now = core.client.now();
    let stats = core.store().stats(now).await?;
    core.client.inner.metrics.stats(&stats, now);
    if signs.is_due(core, SIGNS_EVERY) {
        signs.look(core, &stats, now).await?;
    }
    core.offer_figures(stats, now);
    while due.expiry && Instant::now() < until {
        let expired = core.store().expire(core.client.now(), EXPIRE_ROWS).await?;
        due.expiry = expired as usize >= EXPIRE_ROWS;
        beat.turn();
    }
    let retention = core.client.rules().retention;
    while due.prune && Instant::now() < until {
        let (pruned, rest) = pruning::step(core.store(), &retention, core.client.now()).await?;
        due.prune = pruned.more;
        beat.turn();
        tokio::select! {
            () = core.quiet.cancelled() => return Ok(()),
            () = tokio::time::sleep(rest) => {}
        }
    }
    Ok(())
}

/// Longest time between two turns of the loop that reads the settings. Without a hint it reads them
/// in every second one.
const SETTINGS_TURN: Duration = Duration::from_secs(10);

/// Wakes the loops when another process wrote, and keeps the settings fresh.
pub(super) async fn watch_changes(core: Arc<Core>) {
    let beat = core.progress.watch("settings", SETTINGS_TURN);
    let mut trouble = Trouble::of(&core, &beat);
    let mut is_old = false;
    loop {
        let hinted = tokio::select! {
            () = core.stop.cancelled() => return,
            () = core.store().changed() => true,
            () = tokio::time::sleep(SETTINGS_TURN) => false,
        };
        if hinted {
            core.client.inner.wake.ring_all();
        } else if !std::mem::replace(&mut is_old, true) {
            beat.round().await;
            continue;
        }
        beat.doing("read");
        match core.store().settings().await {
            Ok(settings) => {
                trouble.over("settings");
                is_old = false;
                beat.round().await;
                if **core.settings.borrow() != settings {
                    core.settings.send_replace(Arc::new(settings));
                    core.sync_slots();
                }
            }
            Err(error) => {
                is_old = true;
                let pause = trouble.again("settings", &error);
                tokio::time::sleep(pause).await;
            }
        }
    }
}
