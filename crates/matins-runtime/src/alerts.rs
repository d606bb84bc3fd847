//! Where alerts go: into the log, into the list of the last ones, and to whoever delivers them.
//!
//! Raising one never waits and never fails: what must not be lost with this process goes to the
//! [`Spool`] or, with the change that caused it, into the store.

mod book;
pub mod courier;
pub mod office;
mod spool;
mod teller;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jiff::Timestamp;
use matins_core::alert::{Alert, Rule, Standing};

pub use spool::Spool;

/// Alerts kept for people to look at.
const KEPT: usize = 200;

/// Takes alerts on their way to people. Called in the middle of engine loops: it must not block.
pub trait AlertSink: Send + Sync {
    fn raise(&self, alert: &Alert);
}

/// The alerts of a process. Conditions are told once when they begin and once when they end.
#[derive(Clone, Default)]
pub struct Alerts(Arc<Inner>);

#[derive(Default)]
struct Inner {
    book: Mutex<Book>,
    sink: OnceLock<Arc<dyn AlertSink>>,
    figures: office::Figures,
}

#[derive(Default)]
struct Book {
    standing: Standing,
    last: VecDeque<Alert>,
}

impl Alerts {
    /// Sets who delivers them; what was raised before is in the list only.
    pub fn deliver_to(&self, sink: Arc<dyn AlertSink>) {
        let _ = self.0.sink.set(sink);
    }

    /// What the store's figures were at the last look that says something of how it goes.
    pub(crate) fn set_figures(&self, stats: matins_core::store::Stats, at: Timestamp) {
        self.0.figures.set(stats, at);
    }

    pub(crate) fn figures(&self) -> Option<Arc<(matins_core::store::Stats, Timestamp)>> {
        self.0.figures.get()
    }

    /// Tells it, if it is news.
    pub fn raise(&self, alert: Alert) {
        if self.book().standing.is_news(&alert) {
            self.tell(alert);
        }
    }

    /// Tells something that happened once and does not last.
    pub fn tell(&self, alert: Alert) {
        let facts: Vec<String> =
            alert.facts.iter().map(|fact| format!("{}: {}", fact.name, fact.value)).collect();
        let (rule, subject, facts) = (alert.rule.as_str(), &alert.subject, facts.join("; "));
        match alert.resolved {
            false => tracing::warn!(rule, subject, severity = %alert.severity, facts, "alert"),
            true => tracing::warn!(rule, subject, facts, "alert is over"),
        }
        if let Some(sink) = self.0.sink.get() {
            sink.raise(&alert);
        }
        let last = &mut self.book().last;
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(alert);
    }

    /// What others have told, of which whoever looks here can say when it is over.
    pub(crate) fn adopt(&self, rule: Rule, subjects: Vec<String>, at: Timestamp) {
        let standing = &mut self.book().standing;
        for subject in subjects {
            standing.adopt(rule, subject, at);
        }
    }

    /// The last ones, newest first.
    pub fn last(&self) -> Vec<Alert> {
        self.book().last.iter().rev().cloned().collect()
    }

    /// Whether a rule's condition holds for the subject.
    pub fn stands(&self, rule: Rule, subject: &str) -> bool {
        self.book().standing.of(rule).any(|known| known == subject)
    }

    /// The subjects for which a rule's condition holds.
    pub fn standing(&self, rule: Rule) -> Vec<String> {
        self.book().standing.of(rule).map(str::to_owned).collect()
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<Alert>>);

    impl AlertSink for Heard {
        fn raise(&self, alert: &Alert) {
            self.0.lock().unwrap().push(alert.clone());
        }
    }

    #[test]
    fn news_is_told_once_and_the_list_is_bounded() {
        let (alerts, heard) = (Alerts::default(), Arc::new(Heard::default()));
        alerts.deliver_to(heard.clone());
        let at = Timestamp::UNIX_EPOCH;
        for _ in 0..3 {
            alerts.raise(Alert::new(Rule::Store, "sqlite", at));
        }
        assert_eq!(alerts.standing(Rule::Store), ["sqlite"]);
        alerts.raise(Alert::resolved(Rule::Store, "sqlite", at));
        let told: Vec<bool> = heard.0.lock().unwrap().iter().map(|a| a.resolved).collect();
        assert_eq!(told, [false, true]);
        for n in 0..KEPT + 5 {
            alerts.tell(Alert::new(Rule::DeadLetter, n.to_string(), at));
        }
        let last = alerts.last();
        assert_eq!((last.len(), last[0].subject.as_str()), (KEPT, "204"));
    }
}
