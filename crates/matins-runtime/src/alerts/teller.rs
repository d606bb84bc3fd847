//! The loop that tells: takes in what is unread, lets the desk decide, sends, writes down what
//! became of it. Nothing waits for it but people.
//!
//! Every message is written down before it is sent, and struck off afterwards. Sends run beside
//! the loop, one for each channel at a time, so that a slow channel holds up itself alone.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::alert::answer::Verdict;
use matins_core::alert::desk::{Desk, Order};
use matins_core::alert::policy::Policy;
use matins_core::alert::render::render;
use matins_core::alert::{Alert, Rule, judge};
use matins_core::store::StoreError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Alerts;
use super::book::Book;
use super::courier::Courier;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::progress::Beat;

/// Between two looks while something is under way, and while nothing is.
const BUSY: Duration = Duration::from_millis(500);
pub(super) const IDLE: Duration = Duration::from_secs(10);
/// What comes at once is looked at together.
const BREATH: Duration = Duration::from_millis(100);

/// Where a teller works: its clock, whom to tell, how to send.
#[derive(Clone)]
pub(super) struct Desktop {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) policy: Arc<dyn Fn() -> Arc<Policy> + Send + Sync>,
    pub(super) metrics: Metrics,
    pub(super) courier: Courier,
    pub(super) stop: CancellationToken,
}

pub(super) struct Teller<B> {
    pub(super) at: Desktop,
    pub(super) book: B,
    /// Of the node whose loops judge what lasts.
    pub(super) judged: Option<Alerts>,
    pub(super) beat: Option<Beat>,
}

type Sends = JoinSet<(String, Verdict)>;

/// The desk while it is ours, and whether it differs from what is kept.
struct Held {
    desk: Desk,
    dirty: bool,
}

impl<B: Book> Teller<B> {
    /// `rung` resolves when it is worth looking before the pause is over.
    pub(super) async fn run<F: Future<Output = ()>>(self, rung: impl Fn() -> F) {
        let mut held: Option<Held> = None;
        let mut sends = Sends::new();
        let mut known = (self.at.policy)();
        // An outage is told once.
        let mut failing = false;
        while !self.at.stop.is_cancelled() {
            let policy = (self.at.policy)();
            if *policy != *known {
                known = policy.clone();
                if let Some(Held { desk, dirty }) = &mut held {
                    desk.reopen(&policy);
                    *dirty = true;
                }
            }
            let (mut pause, mut answered) = (IDLE, true);
            if policy.channels.is_empty() {
                held = None;
            } else {
                match self.turn(&mut held, &policy, &mut sends).await {
                    Ok(busy) => {
                        failing = false;
                        if busy {
                            pause = BUSY;
                        }
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(%error, "alerts wait: what is told is not kept; trying on");
                        }
                        answered = matches!(error, StoreError::Full(_));
                    }
                }
            }
            if let Some(beat) = self.beat.as_ref().filter(|_| answered) {
                beat.round().await;
            }
            tokio::select! {
                () = self.at.stop.cancelled() => break,
                () = async { rung().await; tokio::time::sleep(BREATH).await } => {}
                () = tokio::time::sleep(pause) => {}
                Some(sent) = sends.join_next(), if !sends.is_empty() => {
                    self.settled(sent, &mut held, &policy);
                    while let Some(sent) = sends.try_join_next() {
                        self.settled(sent, &mut held, &policy);
                    }
                }
            }
        }
        self.last_words(held, sends).await;
    }

    /// One look. `true`: the next one should come soon.
    async fn turn(
        &self,
        held: &mut Option<Held>,
        policy: &Arc<Policy>,
        sends: &mut Sends,
    ) -> matins_core::store::Result<bool> {
        let now = self.at.clock.now();
        let Some(tray) = self.book.tray(now).await? else {
            // Another tells now; what was being sent is his.
            *held = None;
            return Ok(false);
        };
        let Held { desk, dirty } = held.get_or_insert_with(|| {
            let mut desk = tray.state.as_deref().map_or_else(Desk::default, read);
            self.resume(&mut desk, policy, now);
            Held { desk, dirty: true }
        });
        let (before, was_dirty) = (desk.clone(), *dirty);
        for (_, alert) in &tray.unread {
            desk.take_in(alert, policy, now);
        }
        for alert in self.figures(policy, desk) {
            desk.take_in(&alert, policy, now);
        }
        desk.turn(policy, now);
        let orders = desk.orders(policy, now);
        *dirty |= *desk != before;
        if *dirty || !tray.unread.is_empty() {
            let numbers: Vec<u64> = tray.unread.iter().map(|(number, _)| *number).collect();
            let kept = self.book.file(&numbers, &desk.write()).await;
            // What is not kept is not sent, and is decided anew.
            match kept {
                Ok(true) => *dirty = false,
                Ok(false) => {
                    *held = None;
                    return Ok(false);
                }
                Err(error) if self.book.is_own() => {
                    tracing::warn!(%error, "what is told is not kept");
                    *dirty = true;
                }
                Err(error) => {
                    *held = Some(Held { desk: before, dirty: was_dirty });
                    return Err(error);
                }
            }
        }
        let busy = desk.is_busy();
        for order in orders {
            self.send(order, policy, sends);
        }
        Ok(busy || !tray.unread.is_empty())
    }

    /// Takes over what was told before: the loops of this node say when it is over, or nobody can.
    fn resume(&self, desk: &mut Desk, policy: &Policy, now: Timestamp) {
        let is_own = self.book.is_own();
        let is_judged = |rule: &Rule| {
            self.judged.is_some() && JUDGED.contains(rule) && judge::is_local(*rule) == is_own
        };
        desk.resume(|rule| is_own && !is_judged(&rule), policy, now);
        if let Some(alerts) = &self.judged {
            for rule in JUDGED.into_iter().filter(is_judged) {
                alerts.adopt(rule, desk.standing(rule), now);
            }
        }
    }

    /// What the store's figures say of the time when they were read.
    fn figures(&self, policy: &Policy, desk: &Desk) -> Vec<Alert> {
        let alerts = self.judged.as_ref().filter(|_| !self.book.is_own());
        let figures = alerts.and_then(Alerts::figures);
        figures.map(|figures| judge::figures(&figures, policy, desk)).unwrap_or_default()
    }

    fn send(&self, order: Order, policy: &Arc<Policy>, sends: &mut Sends) {
        let Some(channel) = policy.channels.get(&order.channel).cloned() else { return };
        let (courier, policy, now) = (self.at.courier.clone(), policy.clone(), self.at.clock.now());
        sends.spawn(async move {
            let wire = render(&channel, &order.digests, &policy, now);
            let verdict = courier.send(channel.to.kind(), wire, now).await;
            (order.channel, verdict)
        });
    }

    fn settled(
        &self,
        sent: Result<(String, Verdict), tokio::task::JoinError>,
        held: &mut Option<Held>,
        policy: &Policy,
    ) {
        let Ok((channel, verdict)) = sent else { return };
        let result = match &verdict {
            Verdict::Sent => "sent",
            Verdict::Later { why, .. } => {
                tracing::warn!(channel, why, "an alert could not be delivered yet");
                "failed"
            }
            Verdict::Refused { why } => {
                tracing::error!(channel, why, "an alert was refused");
                "refused"
            }
            Verdict::Off { why } => {
                tracing::error!(
                    channel,
                    why,
                    "an alert channel is shut off until the file is read again"
                );
                "off"
            }
        };
        self.at.metrics.alert(&channel, result);
        let Some(held) = held else { return };
        let now = self.at.clock.now();
        held.dirty = true;
        if let Some(alert) = held.desk.settled(&channel, verdict, policy, now) {
            held.desk.take_in(&alert, policy, now);
        }
    }

    /// What was sent is struck off, so that the next start does not send it again.
    async fn last_words(&self, mut held: Option<Held>, mut sends: Sends) {
        let policy = (self.at.policy)();
        let finish = async {
            while let Some(sent) = sends.join_next().await {
                self.settled(sent, &mut held, &policy);
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), finish).await;
        if let Some(Held { desk, dirty: true }) = &held
            && let Err(error) = self.book.file(&[], &desk.write()).await
        {
            tracing::warn!(%error, "what was told could not be written down");
        }
    }
}

/// Conditions that the loops of a node judge, so that what was told before it began is over when
/// they say so.
const JUDGED: [Rule; 9] = [
    Rule::Canary,
    Rule::Heartbeat,
    Rule::Invariant,
    Rule::NoWorker,
    Rule::Outage,
    Rule::Overdue,
    Rule::Ping,
    Rule::Redis,
    Rule::Store,
];

fn read(state: &str) -> Desk {
    Desk::read(state).unwrap_or_else(|error| {
        tracing::error!(%error, "what was to be told cannot be read; it begins anew");
        Desk::default()
    })
}
