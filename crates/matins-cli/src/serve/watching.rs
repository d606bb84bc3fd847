//! A server watched: by its sentry, and by the parent or systemd, whoever is there.

use std::time::Instant;

use matins_core::alert::Rule;
use matins_runtime::Client;
use matins_runtime::alerts::Spool;
use matins_runtime::sentry::{Sentry, Watcher};
use sd_notify::NotifyState;

use super::engine::EngineThreads;
use crate::config::{Config, LogFormat};
use crate::failure::{Failure, Result};
use crate::place;
use crate::supervise::leash::{Leash, Up};

pub(super) fn start(engine: &EngineThreads, leash: Option<Leash>) -> Result<Sentry> {
    let watcher: Box<dyn Watcher> = match leash {
        Some(leash) => Box::new(leash),
        None => Box::new(Alone { told: None }),
    };
    engine.watched_by(watcher).map_err(|error| Failure::io("cannot start threads", &error))
}

/// Alerts of those before this process that could not tell them themselves.
pub(super) fn deliver_spooled(client: &Client, config: &Config, node_id: &str) {
    let spool = Spool::new(place::alert_spool(config, node_id));
    let delivered = spool.drain(|alert| {
        match alert.rule {
            Rule::CrashLoop => client.alerts().raise(alert.clone()),
            _ => client.alerts().tell(alert.clone()),
        }
        true
    });
    if let Err(error) = delivered {
        let path = spool.path().display();
        tracing::error!(%error, "the alerts kept in {path} cannot be read");
    }
}

/// A server without a parent of its own: systemd may watch it.
struct Alone {
    told: Option<Instant>,
}

impl Watcher for Alone {
    fn fresh(&mut self) {
        let Some(limit) = sd_notify::watchdog_enabled() else { return };
        if self.told.is_none_or(|then| then.elapsed() >= limit / 4) {
            self.told = Some(Instant::now());
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }

    fn stalled(&mut self, _loops: &[String]) {}

    fn is_restarted(&self) -> bool {
        sd_notify::watchdog_enabled().is_some()
    }
}

/// Says where this server is in its life.
pub(super) struct Teller {
    leash: Option<Leash>,
}

impl Teller {
    pub(super) fn new(leash: Option<Leash>) -> Self {
        Self { leash }
    }

    pub(super) fn up(&self, config: &Config, node_id: &str, status: &str) {
        let Some(leash) = &self.leash else {
            let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)]);
            return;
        };
        leash.up(Up {
            node_id: node_id.to_owned(),
            status: status.to_owned(),
            stall_after: config.stall_after,
            stop_within: config.drain_timeout,
            spool: place::alert_spool(config, node_id),
            json_log: config.log.format == LogFormat::Json,
            log_level: config.log.level.to_string(),
        });
    }

    pub(super) fn stopping(&self) {
        match &self.leash {
            Some(leash) => leash.status("draining"),
            None => {
                let status = NotifyState::Status("draining");
                let _ = sd_notify::notify(&[NotifyState::Stopping, status]);
            }
        }
    }
}
