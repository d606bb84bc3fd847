//! The lease of this worker's incarnation: taken, renewed, and obeyed when it cannot be.
//!
//! The holder counts from when it sent a renewal, the store from when it received it, so the
//! holder's end comes first. When the time is up, all attempts are ended but those whose type says
//! `on_lease_loss: finish`, and their loss is written when the store is back. If the entry is still
//! there then, because nobody judged it, a late renewal covers those that went on; if it is gone,
//! what is written is fenced, and the worker goes on as a new incarnation.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use matins_core::executor::StopReason;
use matins_core::lease::{holder_limit, renew_every};
use matins_core::lifecycle::later;
use matins_core::store::{StoreError, Types, Worker};
use matins_core::task::{Name, TaskId, WorkerId};
use uuid::Uuid;

use super::attempt::Control;
use super::producer::Trouble;
use super::{Core, run_mark};
use crate::process;

/// Longest time until a cancel from another process reaches the run.
const CANCEL_POLL: Duration = Duration::from_millis(500);

/// The last server that was alone on its store.
const SOLE_SERVER: &str = "server";

/// Where a server leaves its name for the one that comes after it.
fn line(core: &Core) -> Option<String> {
    let home = core.config.home.as_ref().map(|home| format!("{SOLE_SERVER}:{home}"));
    home.or_else(|| core.config.sole.then(|| SOLE_SERVER.to_owned()))
}

/// Ends what a dead predecessor left running, and takes its entry away so that its claims lapse
/// at once. Whoever starts the engine holds the node's lock, which a live predecessor would hold.
/// `swept`: they were ended before; what runs now is this process's own.
pub(super) async fn take_over(core: &Core, swept: bool) -> Result<(), StoreError> {
    let node = core.config.node_id.as_str();
    let before = match line(core) {
        Some(line) => core.store().note(&line).await?,
        None => None,
    };
    let same_name = |worker: &Worker| core.config.home.is_none() && *worker.node_id == *node;
    let dead: Vec<Worker> = core
        .store()
        .workers()
        .await?
        .into_iter()
        .filter(|worker| !worker.remote)
        .filter(|worker| same_name(worker) || before.as_deref() == Some(&*worker.id.0))
        .collect();
    if core.config.runs_commands && !swept {
        let nodes = dead.iter().map(|worker| worker.node_id.to_string()).chain([node.to_owned()]);
        end_leftovers(core, nodes.collect()).await;
    }
    let now = core.client.now();
    for worker in dead {
        tracing::info!(worker = %worker.id, "taking over from a predecessor that is gone");
        core.store().retire(&worker.id, now).await?;
    }
    Ok(())
}

/// What a predecessor of the same name left running, when nobody can be asked who that was.
pub(super) async fn end_own_leftovers(core: &Core) {
    if core.config.runs_commands {
        end_leftovers(core, vec![core.config.node_id.clone()]).await;
    }
}

/// Processes that outlived both their runner and the Matins that started it.
async fn end_leftovers(core: &Core, nodes: Vec<String>) {
    let store_id = core.store().info().store_id;
    let home = core.config.home.as_deref();
    let marks: Vec<String> = nodes.iter().map(|node| run_mark(store_id, home, node)).collect();
    let sweep = move || process::sweep_leftovers(|run| marks.contains(&run.node));
    match tokio::task::spawn_blocking(sweep).await {
        Ok(swept) if swept.survivors > 0 => {
            tracing::error!(survivors = swept.survivors, "processes of a predecessor live on");
        }
        Ok(swept) if swept.killed > 0 => {
            tracing::warn!(killed = swept.killed, "ended processes that a predecessor left");
        }
        _ => {}
    }
}

fn entry(core: &Core) -> Worker {
    let now = core.client.now();
    // A node without workers runs nothing, and must not look as if it did.
    let works = core.config.roles.worker;
    let slots = core.slots();
    let pools = slots.iter().filter(|_| works).map(|(name, slots)| (name.clone(), slots.size()));
    let pools = pools.collect();
    let kinds: std::collections::BTreeSet<Name> =
        core.executors().keys().filter(|_| works).cloned().collect();
    Worker {
        id: core.worker(),
        node_id: core.config.node_id.as_str().into(),
        started_at: now,
        seen_at: now,
        lease_until: later(now, core.config.lease),
        draining: core.is_draining(),
        remote: false,
        pools,
        types: Types::Only(Arc::new(kinds)),
    }
}

pub(super) async fn register(core: &Core) -> Result<(), StoreError> {
    let sent = core.client.inner.clock.boot_ns();
    core.store().register(entry(core)).await?;
    if let Some(line) = line(core) {
        core.store().put_note(&line, &core.worker().0).await?;
    }
    hold_from(core, sent);
    Ok(())
}

fn hold_from(core: &Core, sent_ns: u64) {
    let limit = holder_limit(core.config.lease).as_nanos() as u64;
    core.lease_until.send_replace(sent_ns + limit);
}

/// One renewal. `Ok(false)`: the entry was gone; this worker is a new incarnation now.
pub(super) async fn renew(core: &Core) -> Result<bool, StoreError> {
    // Two at once could each find the old entry gone, and the second would retire the new one.
    let _alone = core.renewing.lock().await;
    let sent = core.client.inner.clock.boot_ns();
    // A late renewal keeps no claim alive whose attempt was ended: its loss is settled by itself.
    let given_up = core.lapsed.load(Ordering::SeqCst);
    if !given_up && core.client.wrote(core.store().beat(&entry(core)).await)? {
        hold_from(core, sent);
        if core.overdue.swap(false, Ordering::SeqCst) {
            tracing::warn!("the lease is renewed late; nobody had judged it");
        }
        return Ok(true);
    }
    tracing::error!(worker = %core.worker(), "this worker's lease was lost; its attempts are ended");
    end_attempts(core);
    // Its claims lapse with the entry: what runs under them must be over before.
    let over = async {
        while core.running().values().any(|control| !control.outlives_lease()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(core.config.lease, over).await.is_err() {
        tracing::error!("attempts do not end although their claims are lost");
    }
    core.store().retire(&core.worker(), core.client.now()).await?;
    core.lapsed.store(false, Ordering::SeqCst);
    core.overdue.store(false, Ordering::SeqCst);
    let worker = WorkerId::local(&core.config.node_id, std::process::id(), Uuid::new_v4());
    core.set_worker(worker);
    register(core).await?;
    Ok(false)
}

fn end_attempts(core: &Core) {
    for control in core.running().values().filter(|control| !control.outlives_lease()) {
        control.stop(StopReason::LeaseLost);
    }
}

/// Renews every third of a lease, sooner after a failure.
pub(super) async fn keep(core: Arc<Core>) {
    let beat = core.progress.watch("lease", renew_every(core.config.lease));
    let mut trouble = Trouble::of(&core, &beat);
    let every = renew_every(core.config.lease);
    loop {
        beat.doing("renew");
        let pause = match renew(&core).await {
            Ok(_) => {
                trouble.over("lease");
                beat.round().await;
                every
            }
            Err(error) => trouble.again("lease", &error).min(every),
        };
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Longest time between two looks at the clock.
const ENFORCE_MAX: Duration = Duration::from_secs(1);

/// Ends all attempts when the lease has run out on this worker's own clock.
pub(super) async fn enforce(core: Arc<Core>) {
    let beat = core.progress.watch_always("lease_enforcer", ENFORCE_MAX);
    let clock = core.client.inner.clock.clone();
    let mut until = core.lease_until.subscribe();
    loop {
        let limit = *until.borrow_and_update();
        let left = Duration::from_nanos(limit.saturating_sub(clock.boot_ns()));
        if left.is_zero() && *core.joined.borrow() {
            if !core.overdue.swap(true, Ordering::SeqCst) {
                tracing::error!("the lease could not be renewed in time; attempts are ended");
            }
            end_attempts(&core);
        }
        let now = clock.boot_ns();
        core.running().values().filter(|control| control.is_over(now)).for_each(|control| {
            control.stop(StopReason::LeaseLost);
        });
        tokio::select! {
            () = core.stop.cancelled() => return,
            changed = until.changed() => if changed.is_err() { return },
            // Re-read the clock often: a suspended host wakes up past its deadline.
            () = tokio::time::sleep(left.clamp(Duration::from_millis(100), ENFORCE_MAX)) => {}
        }
        beat.round().await;
    }
}

/// Renews the leases that claims have of their own: those made while the database was away.
pub(super) async fn keep_own(core: Arc<Core>) {
    let every = renew_every(core.config.lease);
    let beat = core.progress.watch("own_leases", every);
    loop {
        let claims: Vec<_> =
            core.running().values().filter_map(|control| control.own_claim()).collect();
        let mut pause = every;
        if !claims.is_empty() {
            beat.doing("extend");
            let sent = core.client.inner.clock.boot_ns();
            let until = later(core.client.now(), core.config.lease);
            match core.store().extend(&claims, until).await {
                Ok(answer) => {
                    let until = sent + holder_limit(core.config.lease).as_nanos() as u64;
                    let running = core.running();
                    for claim in &claims {
                        // A later run of the same task has a claim of its own.
                        let same = |control: &&Arc<Control>| control.own_claim() == Some(*claim);
                        running.get(&claim.id).filter(same).into_iter().for_each(|control| {
                            control.hold_until(until);
                        });
                    }
                    let stop = |id: &TaskId, reason| {
                        running.get(id).into_iter().for_each(|control| control.stop(reason));
                    };
                    answer.lost.iter().for_each(|id| stop(id, StopReason::LeaseLost));
                    answer.cancel.iter().for_each(|id| stop(id, StopReason::Cancel));
                }
                Err(error) => {
                    tracing::debug!(%error, "leases of runs were not renewed; trying on");
                    pause = every.min(Duration::from_secs(1));
                }
            }
        }
        beat.round().await;
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Brings cancels, whoever recorded them, to the runs.
pub(super) async fn watch_cancels(core: Arc<Core>) {
    let beat = core.progress.watch("cancels", CANCEL_POLL);
    let mut trouble = Trouble::of(&core, &beat);
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = core.client.inner.wake.cancels() => {}
            () = tokio::time::sleep(CANCEL_POLL) => {}
        }
        if core.running().is_empty() {
            beat.round().await;
            continue;
        }
        beat.doing("look");
        match core.store().cancel_requests(&core.worker()).await {
            Ok(ids) => {
                trouble.over("cancels");
                {
                    let running = core.running();
                    ids.iter().filter_map(|id| running.get(id)).for_each(|control| {
                        control.stop(StopReason::Cancel);
                    });
                }
                beat.round().await;
            }
            Err(error) => {
                let pause = trouble.again("cancels", &error);
                tokio::time::sleep(pause).await;
            }
        }
    }
}
