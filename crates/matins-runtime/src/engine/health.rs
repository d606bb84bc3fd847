//! Whether the loops turn and the store answers; the heartbeat that is made of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Core;

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
    /// Whether new work can be taken: the store answers and no drain has begun.
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
        ready: up && writes && !core.is_draining(),
        heartbeat_age: heartbeat_age(core),
    }
}

pub(super) fn refresh(core: &Core) {
    core.client.inner.metrics.ages(heartbeat_age(core), core.progress.ages());
}

fn heartbeat_age(core: &Core) -> Duration {
    let last = core.heartbeat_ns.load(Ordering::Relaxed);
    Duration::from_nanos(core.client.inner.clock.boot_ns().saturating_sub(last))
}

const PING_EVERY: Duration = Duration::from_secs(2);
const PING_LIMIT: Duration = Duration::from_secs(2);

/// A trivial query on a path of its own tells an unreachable store from a stuck loop.
pub(super) async fn watch_store(core: Arc<Core>) {
    let kind = core.store().info().kind;
    loop {
        let up = matches!(tokio::time::timeout(PING_LIMIT, core.store().ping()).await, Ok(Ok(())));
        if core.progress.set_store_up(up) != up {
            if up {
                tracing::info!("the store answers again");
                core.client.inner.wake.ring_all();
            } else {
                tracing::error!("the store does not answer");
            }
        }
        core.client.inner.metrics.store_up(kind, up);
        refresh(&core);
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(PING_EVERY) => {}
        }
    }
}

/// Beats while every loop is fresh, into the store and to systemd.
pub(super) async fn heartbeat(core: Arc<Core>) {
    let every = sd_notify::watchdog_enabled()
        .map_or(core.config.heartbeat, |limit| (limit / 2).min(core.config.heartbeat));
    loop {
        let health = health(&core);
        match health.status {
            Status::Ok => {
                let key = format!("heartbeat:{}", core.config.node_id);
                let seconds = core.client.now().as_second().to_string();
                match core.store().put_note(&key, &seconds).await {
                    Ok(()) => {
                        let now = core.client.inner.clock.boot_ns();
                        core.heartbeat_ns.store(now, Ordering::Relaxed);
                    }
                    Err(error) => tracing::warn!(%error, "could not write the heartbeat"),
                }
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            // The loops wait for the store: a restart would not bring it back.
            Status::Degraded => {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            Status::Stalled => {
                tracing::error!(loops = ?health.stalled, "a loop does not turn");
            }
        }
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}
