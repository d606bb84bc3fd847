//! The alerts of a running node: what is raised here goes into the outbox of the store or, when
//! it must not wait for that, to people at once; and one of all nodes tells what is in the outbox.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use matins_core::alert::desk::is_event;
use matins_core::alert::judge::{self, Figures};
use matins_core::alert::policy::Policy;
use matins_core::alert::{Alert, Rule};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::book::{FileBook, StoreBook};
use super::courier::Courier;
use super::teller::{Desktop, IDLE, Teller};
use super::{AlertSink, Alerts};
use crate::client::Client;
use crate::clock::HostClock;
use crate::metrics::Metrics;
use crate::progress::Progress;

/// Raised and not yet passed on.
const INBOX_MAX: usize = 4_096;
/// Told straight out and not yet in the store's list.
const UNLISTED_MAX: usize = 500;
const RETRY: Duration = Duration::from_secs(2);

/// Takes alerts from the middle of engine loops.
#[derive(Default)]
struct Inbox {
    alerts: Mutex<VecDeque<Alert>>,
    rung: Notify,
}

impl AlertSink for Inbox {
    fn raise(&self, alert: &Alert) {
        let mut alerts = self.alerts.lock().unwrap_or_else(PoisonError::into_inner);
        if alerts.len() < INBOX_MAX {
            alerts.push_back(alert.clone());
        } else {
            tracing::error!(rule = %alert.rule, "too many alerts at once: this one is only logged");
        }
        drop(alerts);
        self.rung.notify_one();
    }
}

impl Inbox {
    fn take(&self) -> Vec<Alert> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

/// Where a process keeps what it tells by itself.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The node, or what else tells.
    pub teller: String,
    /// File of what must not wait for the store.
    pub file: Option<PathBuf>,
}

/// Starts the loops of a node on the current runtime.
pub(crate) fn start(
    client: &Client,
    place: Place,
    progress: &Progress,
    tracker: &TaskTracker,
    stop: &CancellationToken,
) {
    let rules = client.clone();
    let policy = Arc::new(move || rules.rules().alerts.clone());
    let (clock, metrics) = (client.inner.clock.clone(), client.metrics().clone());
    let courier = Courier::default();
    let at = Desktop { clock, policy, metrics, courier, stop: stop.clone() };
    let own = Teller {
        at: at.clone(),
        book: FileBook::new(place.file),
        judged: Some(client.alerts().clone()),
        beat: Some(progress.watch_always("alerts_local", IDLE)),
    };
    let (inbox, own, bell) = local(client.alerts(), own, tracker);
    // Any node may be the one that tells what all of them raise.
    let book = StoreBook { store: client.store().clone(), teller: place.teller };
    let beat = Some(progress.watch("alerts", IDLE));
    let shared = Teller { at, book, judged: Some(client.alerts().clone()), beat };
    let rung = client.clone();
    tracker.spawn(async move { shared.run(|| rung.wake().alerts()).await });
    tracker.spawn(pass_on(Some(client.clone()), inbox, own, bell, stop.clone()));
}

/// Starts the loops of a process that has no store, such as a watcher of others.
pub fn start_alone(
    alerts: &Alerts,
    policy: Arc<Policy>,
    file: Option<PathBuf>,
    tracker: &TaskTracker,
    stop: &CancellationToken,
) {
    let policy = Arc::new(move || policy.clone());
    let clock = Arc::new(HostClock);
    let (metrics, courier) = (Metrics::default(), Courier::default());
    let at = Desktop { clock, policy, metrics, courier, stop: stop.clone() };
    let own = Teller { at, book: FileBook::new(file), judged: None, beat: None };
    let (inbox, own, bell) = local(alerts, own, tracker);
    tracker.spawn(pass_on(None, inbox, own, bell, stop.clone()));
}

/// Tells what must not wait for a store.
fn local(
    alerts: &Alerts,
    teller: Teller<FileBook>,
    tracker: &TaskTracker,
) -> (Arc<Inbox>, FileBook, Arc<Notify>) {
    let inbox = Arc::new(Inbox::default());
    alerts.deliver_to(inbox.clone());
    let (own, bell) = (teller.book.clone(), Arc::new(Notify::new()));
    let ring = bell.clone();
    tracker.spawn(async move { teller.run(|| ring.notified()).await });
    (inbox, own, bell)
}

/// Who hears of what began while the store took nothing, and of what the store's desk has told and
/// must be told the end of: a matter ends where it began.
#[derive(Default)]
struct Ways {
    straight: BTreeSet<(Rule, String)>,
    ends: Vec<Alert>,
}

impl Ways {
    fn is_straight(&self, alert: &Alert) -> bool {
        judge::is_local(alert.rule) || self.straight.contains(&(alert.rule, alert.subject.clone()))
    }

    /// The store does not take it. `Some`: it goes straight out.
    fn without_store(&mut self, alert: Alert) -> Option<Alert> {
        if is_event(alert.rule) {
            return Some(alert);
        }
        let is_same = |end: &Alert| end.rule == alert.rule && end.subject == alert.subject;
        match (alert.resolved, self.ends.iter().position(is_same)) {
            (true, _) if self.is_straight(&alert) => Some(alert),
            (true, _) => {
                self.ends.push(alert);
                None
            }
            // Nobody was told that it was over.
            (false, Some(end)) => {
                self.ends.remove(end);
                None
            }
            (false, None) => {
                self.straight.insert((alert.rule, alert.subject.clone()));
                Some(alert)
            }
        }
    }

    fn told_straight(&mut self, alert: &Alert) {
        if alert.resolved {
            self.straight.remove(&(alert.rule, alert.subject.clone()));
        }
    }
}

/// Passes on what is raised here, in order.
async fn pass_on(
    client: Option<Client>,
    inbox: Arc<Inbox>,
    own: FileBook,
    bell: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut ways = Ways::default();
    let mut unlisted: VecDeque<Alert> = VecDeque::new();
    let mut is_last = false;
    loop {
        let ends = std::mem::take(&mut ways.ends);
        let (mut straight, shared): (Vec<_>, Vec<_>) = ends
            .into_iter()
            .chain(inbox.take())
            .partition(|alert| client.is_none() || ways.is_straight(alert));
        if let Some(client) = &client
            && !shared.is_empty()
        {
            match client.store().raise(shared.clone(), false).await {
                Ok(()) => client.wake().ring_alerts(),
                Err(error) => {
                    let before = straight.len();
                    straight.extend(shared.into_iter().filter_map(|one| ways.without_store(one)));
                    if straight.len() > before {
                        tracing::warn!(%error, "alerts go straight out: the store takes none");
                    }
                }
            }
        }
        for alert in straight {
            ways.told_straight(&alert);
            if unlisted.len() == UNLISTED_MAX {
                unlisted.pop_front();
            }
            unlisted.push_back(alert.clone());
            own.add(alert);
            bell.notify_one();
        }
        // The list shows what was told straight out, too, once the store takes it.
        let listed = unlisted.iter().cloned().collect::<Vec<_>>();
        match &client {
            None => unlisted.clear(),
            Some(client) if !listed.is_empty() => {
                if client.store().raise(listed, true).await.is_ok() {
                    unlisted.clear();
                }
            }
            Some(_) => {}
        }
        if is_last {
            return;
        }
        tokio::select! {
            // What was raised last is passed on, too.
            () = stop.cancelled() => is_last = true,
            () = inbox.rung.notified() => {}
            () = tokio::time::sleep(RETRY), if !unlisted.is_empty() || !ways.ends.is_empty() => {}
        }
    }
}

/// Keeps the store's last figures for the one who tells.
#[derive(Debug, Default)]
pub(super) struct LastFigures(Mutex<Option<Arc<Figures>>>);

impl LastFigures {
    pub(super) fn set(&self, figures: Figures) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(figures));
    }

    pub(super) fn get(&self) -> Option<Arc<Figures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn a_matter_ends_where_it_began() {
        let begins = |subject| Alert::new(Rule::Redis, subject, Timestamp::UNIX_EPOCH);
        let ends = |subject| Alert::resolved(Rule::Redis, subject, Timestamp::UNIX_EPOCH);
        let mut ways = Ways::default();
        // What the store has told: its end waits, and a new beginning is none.
        assert_eq!(ways.without_store(ends("a")), None);
        assert_eq!(ways.without_store(begins("a")), None);
        assert!(ways.ends.is_empty() && !ways.is_straight(&ends("a")));
        assert_eq!(ways.without_store(ends("a")), None);
        assert_eq!(ways.ends, [ends("a")]);
        // What began without it ends so, also when it is back.
        assert_eq!(ways.without_store(begins("b")), Some(begins("b")));
        assert!(ways.is_straight(&ends("b")));
        assert_eq!(ways.without_store(ends("b")), Some(ends("b")));
        ways.told_straight(&ends("b"));
        assert!(!ways.is_straight(&begins("b")));
        let event = Alert::new(Rule::WorkerLost, "w", Timestamp::UNIX_EPOCH);
        assert_eq!(ways.without_store(event.clone()), Some(event.clone()));
        assert!(!ways.is_straight(&event));
    }
}
