//! What the parent tells others: systemd, the log, and, by way of the next child, whoever gets
//! the alerts.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::alert::{Alert, Rule};
use matins_core::supervision::{End, Hang};
use matins_runtime::alerts::Spool;
use sd_notify::NotifyState;

use super::line::Up;

#[derive(Default)]
pub(super) struct Telling {
    up: Option<Up>,
    /// Why the child is being ended.
    hang: Option<String>,
    vouched: Option<Instant>,
}

impl Telling {
    pub(super) fn up(&mut self, up: Up) {
        // Until the child has said how, nobody knows what the log is to look like.
        crate::serve::logs::start(up.log());
        notify(&[NotifyState::Ready, NotifyState::Status(&up.status)]);
        self.up = Some(up);
        self.vouch();
    }

    #[allow(clippy::unused_self, reason = "all that is told is told by the same one")]
    pub(super) fn status(&self, text: &str) {
        notify(&[NotifyState::Status(text)]);
    }

    #[allow(clippy::unused_self, reason = "all that is told is told by the same one")]
    pub(super) fn stopping(&self) {
        notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
    }

    /// Tells systemd that the service is well: its child turns, or is being seen to.
    pub(super) fn vouch(&mut self) {
        let Some(limit) = sd_notify::watchdog_enabled() else { return };
        if self.vouched.is_none_or(|then| then.elapsed() >= limit / 4) {
            self.vouched = Some(Instant::now());
            notify(&[NotifyState::Watchdog]);
        }
    }

    pub(super) fn hangs(&mut self, hang: &Hang) {
        tracing::error!("the server hangs and is ended: {hang}");
        self.hang = Some(hang.to_string());
    }

    /// The child has ended and is started again.
    pub(super) fn restarts(&mut self, end: End, after: Duration, times: usize, crash_loop: bool) {
        let why = self.hang.take().unwrap_or_else(|| end.to_string());
        let millis = after.as_millis() as u64;
        tracing::error!(why, times, millis, "the server has ended; it is started again");
        notify(&[NotifyState::Status(&format!("starting again: {why}"))]);
        let alert = |rule| self.alert(rule).fact("why", &why).fact("restarts", times);
        self.spool(&alert(Rule::Restarted));
        if crash_loop {
            self.spool(&alert(Rule::CrashLoop));
        }
    }

    pub(super) fn calmed(&self) {
        self.spool(&Alert { resolved: true, ..self.alert(Rule::CrashLoop) });
    }

    fn alert(&self, rule: Rule) -> Alert {
        let node = self.up.as_ref().map_or("", |up| &up.node_id);
        Alert::new(rule, node, Timestamp::now()).fact("node", node)
    }

    fn spool(&self, alert: &Alert) {
        let Some(up) = &self.up else { return };
        if let Err(error) = Spool::new(&up.spool).add(alert) {
            tracing::error!(%error, rule = %alert.rule, "an alert is lost: it cannot be kept");
        }
    }
}

/// Nobody listening is no error.
fn notify(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}
