//! Whether the loops turn and the store answers; the heartbeat that is made of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use matins_core::alert::judge::{self, AWAY_TOLD_AFTER, StoreState};
use matins_core::alert::{Alert, Rule};
use tokio::time::Instant;

use super::{Core, dead_man};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok,
    /// The store does not answer or takes nothing; nothing is restarted for that.
    Degraded,
    /// The store answers, and a loop does not turn.
    Stalled,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Stalled => "stalled",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    pub status: Status,
    /// Loops that do not turn.
    pub stalled: Vec<String>,
    /// Whether new work can be taken: the store answers, or what stands in for it, and no drain
    /// has begun.
    pub ready: bool,
    pub heartbeat_age: Duration,
}

pub(super) fn health(core: &Core) -> Health {
    let up = core.progress.store_up();
    let stalled = core.progress.stalled(core.config.stall_after);
    let writes = !core.client.has_write_trouble();
    let status = match (up, stalled.is_empty()) {
        (true, false) => Status::Stalled,
        (true, true) if writes => Status::Ok,
        _ => Status::Degraded,
    };
    let stalled = if status == Status::Stalled { stalled } else { Vec::new() };
    Health {
        status,
        stalled,
        ready: (up && writes || takes_in(core)) && !core.is_draining(),
        heartbeat_age: heartbeat_age(core),
    }
}

/// Whether what stands in for the store takes tasks in.
fn takes_in(core: &Core) -> bool {
    core.store().parts().iter().any(|part| part.stands_in && part.keeps)
}

/// Whether tasks are journalled because the database is away.
pub(super) fn journals(core: &Core) -> bool {
    core.store().parts().iter().any(|part| part.stands_in)
}

/// Whether tasks run from what stands in for the store.
pub(super) fn runs(core: &Core) -> bool {
    core.store().parts().iter().any(|part| part.stands_in && part.runs)
}

pub(super) fn refresh(core: &Core) {
    core.client.inner.metrics.ages(heartbeat_age(core), core.progress.ages());
    core.client.inner.metrics.parts(&core.store().parts());
}

fn heartbeat_age(core: &Core) -> Duration {
    let last = core.heartbeat_ns.load(Ordering::Relaxed);
    Duration::from_nanos(core.client.inner.clock.boot_ns().saturating_sub(last))
}

const PING_EVERY: Duration = Duration::from_secs(2);
const PING_LIMIT: Duration = Duration::from_secs(2);

/// A trivial query on a path of its own tells an unreachable store from a stuck loop. While the
/// lookout has its answers, nobody needs to ask.
pub(super) async fn watch_store(core: Arc<Core>) {
    let beat = core.progress.watch_always("store_watch", PING_EVERY + PING_LIMIT * 2);
    let kind = core.store().info().kind;
    let mut absence = Absence::default();
    let mut parts_away = BTreeMap::new();
    loop {
        beat.doing("ping");
        let up = core.progress.has_answered(PING_EVERY)
            || matches!(tokio::time::timeout(PING_LIMIT, core.store().ping()).await, Ok(Ok(())));
        beat.round().await;
        // While a store is stood in for, also until it has everything again, it takes nothing that
        // loops ask of it: that is no loop's fault.
        let serves = up && !journals(&core);
        if core.progress.set_store_up(serves) != serves {
            if serves {
                tracing::info!("the store answers again");
                core.client.inner.wake.ring_all();
            } else {
                tracing::error!(answers = up, "the store does not serve");
            }
        }
        tell_of_store(&core, kind, up, &mut absence).await;
        tell_of_parts(&core, &mut parts_away);
        core.client.inner.metrics.store_up(kind, up);
        refresh(&core);
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(PING_EVERY) => {}
        }
    }
}

/// How long the others wait for a node that has said it will tell, and that may be dead.
const RIGHT: Duration = Duration::from_secs(20);

/// What is remembered of a store that is away.
#[derive(Default)]
struct Absence {
    since: Option<Instant>,
    /// Since when nothing lets this node agree with others on who tells.
    alone: Option<Instant>,
}

async fn tell_of_store(core: &Core, kind: &str, up: bool, absence: &mut Absence) {
    let state = if journals(core) {
        StoreState::StoodInFor
    } else if up && !core.client.has_write_trouble() {
        *absence = Absence::default();
        StoreState::Fine
    } else {
        StoreState::Away(absence.since.get_or_insert_with(Instant::now).elapsed())
    };
    let (alerts, now) = (core.client.alerts(), core.client.now());
    let rules = [Rule::Store, Rule::Outage];
    let told = rules.into_iter().find(|rule| alerts.stands(*rule, kind));
    let holds = judge::away(state, told);
    for rule in rules {
        for subject in alerts.standing(rule) {
            if holds != Some(rule) || subject != kind {
                alerts.raise(Alert::resolved(rule, subject, now));
            }
        }
    }
    let Some(rule) = holds else { return };
    // Whoever has told keeps the right, so that the others go on being silent.
    if has_right_to_tell(core, rule, kind, absence).await || told.is_some() {
        let why = if up { "it takes nothing" } else { "it does not answer" };
        let alert = Alert::new(rule, kind, now).fact("node", &core.config.node_id);
        alerts.raise(alert.fact("why", why));
    }
}

/// Nodes that can still agree let one of them tell; better all of them than none.
async fn has_right_to_tell(core: &Core, rule: Rule, kind: &str, absence: &mut Absence) -> bool {
    let policy = &core.client.rules().alerts;
    if policy.targets(rule, kind, policy.severity(rule, rule.severity())).is_empty() {
        // It is only written down here: people hear of it from others.
        return true;
    }
    match core.store().may_tell_of_outage(&core.config.node_id, RIGHT).await {
        Ok(right) => {
            absence.alone = None;
            right
        }
        Err(_) => absence.alone.get_or_insert_with(Instant::now).elapsed() >= AWAY_TOLD_AFTER,
    }
}

/// Of what the store works without. All nodes tell of one place together: who is without it finds
/// it in `matins status` of each.
fn tell_of_parts(core: &Core, away: &mut BTreeMap<String, Instant>) {
    let (alerts, now) = (core.client.alerts(), core.client.now());
    for part in core.store().parts() {
        if part.up {
            away.remove(&part.location);
            alerts.raise(Alert::resolved(Rule::Redis, part.location, now));
            continue;
        }
        let since = *away.entry(part.location.clone()).or_insert_with(Instant::now);
        if since.elapsed() >= AWAY_TOLD_AFTER {
            let node = &core.config.node_id;
            alerts.raise(Alert::new(Rule::Redis, part.location, now).fact("node", node));
        }
    }
}

/// Beats while every loop is fresh, into the store and to an outside switch.
pub(super) async fn heartbeat(core: Arc<Core>) {
    let every = core.config.heartbeat;
    let beat = core.progress.watch("heartbeat", every);
    let switch = core.config.heartbeat_url.as_deref().map(dead_man::Switch::new);
    loop {
        let health = health(&core);
        match health.status {
            Status::Ok => {
                beat.doing("write");
                let (node, now) = (&core.config.node_id, core.client.now());
                // A node that fires nothing is no scheduler's sign of life.
                let schedules = core.config.roles.scheduler;
                match core.store().heartbeat(node, schedules, now).await {
                    Ok(()) => {
                        let now = core.client.inner.clock.boot_ns();
                        core.heartbeat_ns.store(now, Ordering::Relaxed);
                        beat.round().await;
                        if let Some(switch) = &switch {
                            switch.ping();
                        }
                    }
                    Err(error) => tracing::warn!(%error, "could not write the heartbeat"),
                }
            }
            // The loops wait for the store: a restart would not bring it back.
            Status::Degraded => beat.round().await,
            Status::Stalled => {
                tracing::error!(loops = ?health.stalled, "a loop does not turn");
                beat.round().await;
            }
        }
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}
