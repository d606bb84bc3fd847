//! What somebody must be told, as a value: which rule, about what, how bad, since when, and
//! whether it is over. Nothing here knows a channel, or whether anybody listens.

pub mod answer;
pub mod channel;
pub mod desk;
pub mod digest;
pub mod judge;
pub mod policy;
pub mod render;
pub mod sign;
pub mod text;
mod words_of;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::schedule::{Occurrence, OccurrenceOutcome};
use crate::task::Task;
use crate::words::words;

/// What an alert is about. The word is the key of `alerts.rules` and never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A task was given up.
    DeadLetter,
    /// Too many dead letters wait.
    DeadLetters,
    /// A node, or every scheduler, has not said for too long that its loops turn.
    Heartbeat,
    /// A loop of a node does not turn although the store answers.
    Stalled,
    /// A node's process hung or died, and was started again.
    Restarted,
    /// It had to be started again and again.
    CrashLoop,
    /// An occurrence was passed over because it was too late.
    Missed,
    /// A schedule is past due without a reason.
    Overdue,
    /// The foremost ready task of a pool has waited for too long.
    Backlog,
    /// The store does not answer, or takes nothing.
    Store,
    Redis,
    /// The store is away and Redis carries on.
    Outage,
    WorkerLost,
    /// Tasks wait for a type that no worker runs.
    NoWorker,
    ClockStep,
    /// A task that only shows that a pool works did not come back.
    Canary,
    /// What must always hold of the store does not.
    Invariant,
    /// Somebody else's job did not report in time.
    Ping,
    /// A channel does not deliver.
    Channel,
    /// Somebody tries a channel.
    Test,
}

words!(
    Rule,
    "alert rule",
    DeadLetter = "dead_letter",
    DeadLetters = "dead_letters",
    Heartbeat = "heartbeat",
    Stalled = "stalled",
    Restarted = "restarted",
    CrashLoop = "crash_loop",
    Missed = "missed",
    Overdue = "overdue",
    Backlog = "backlog",
    Store = "store",
    Redis = "redis",
    Outage = "outage",
    WorkerLost = "worker_lost",
    NoWorker = "no_worker",
    ClockStep = "clock_step",
    Canary = "canary",
    Invariant = "invariant",
    Ping = "ping",
    Channel = "channel",
    Test = "test",
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Info,
    /// Somebody should look in the morning.
    Warning,
    /// Somebody must look now.
    Critical,
}

words!(Severity, "severity", Info = "info", Warning = "warning", Critical = "critical");

impl Rule {
    /// How bad it is unless the configuration says otherwise.
    pub const fn severity(self) -> Severity {
        match self {
            Self::Heartbeat
            | Self::Stalled
            | Self::CrashLoop
            | Self::Overdue
            | Self::Store
            | Self::Outage
            | Self::Canary
            | Self::Invariant
            | Self::Channel => Severity::Critical,
            Self::DeadLetter
            | Self::DeadLetters
            | Self::Restarted
            | Self::Missed
            | Self::Backlog
            | Self::Redis
            | Self::WorkerLost
            | Self::NoWorker
            | Self::ClockStep
            | Self::Ping => Severity::Warning,
            Self::Test => Severity::Info,
        }
    }
}

/// Something that somebody must be told: that it began, or that it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    pub rule: Rule,
    /// What it happened to: a task, a schedule, a pool, a loop, a node. With the rule it tells
    /// one condition from another.
    pub subject: String,
    pub severity: Severity,
    /// What is known, in order, by names that texts are made of.
    pub facts: Vec<Fact>,
    pub at: Timestamp,
    /// It is over.
    pub resolved: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    pub name: String,
    pub value: String,
}

impl Alert {
    pub fn new(rule: Rule, subject: impl Into<String>, at: Timestamp) -> Self {
        let (subject, severity) = (subject.into(), rule.severity());
        Self { rule, subject, severity, facts: Vec::new(), at, resolved: false }
    }

    pub fn resolved(rule: Rule, subject: impl Into<String>, at: Timestamp) -> Self {
        Self { resolved: true, ..Self::new(rule, subject, at) }
    }

    pub fn fact(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.facts.push(Fact { name: name.to_owned(), value: value.to_string() });
        self
    }

    pub fn of_severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }
}

/// Characters of an error that an alert carries. The task has the whole of it.
pub const ERROR_CHARS_MAX: usize = 300;

/// What a store writes down with the change that makes a task a dead letter.
pub fn of_dead_letter(task: &Task) -> Alert {
    let at = task.finished_at.unwrap_or(task.created_at);
    let error = task.error.as_ref().map(ToString::to_string).unwrap_or_default();
    let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
    let mut alert = Alert::new(Rule::DeadLetter, &*task.kind, at)
        .fact("task", task.id)
        .fact("pool", &task.pool)
        .fact("attempt", task.attempt)
        .fact("error", error);
    if let Some(key) = &task.execution_key {
        alert = alert.fact("execution_key", key);
    }
    if let Some(origin) = &task.origin {
        alert = alert.fact("schedule", &origin.schedule).fact("label", &origin.label);
    }
    alert
}

/// What a store writes down with a missed occurrence.
pub fn of_occurrence(occurrence: &Occurrence, at: Timestamp) -> Option<Alert> {
    if occurrence.outcome != OccurrenceOutcome::Missed {
        return None;
    }
    let alert = Alert::new(Rule::Missed, &*occurrence.schedule, at)
        .fact("label", &occurrence.label)
        .fact("count", occurrence.count);
    Some(match occurrence.reason {
        Some(reason) => alert.fact("why", reason.as_str()),
        None => alert,
    })
}

/// The conditions that hold now, so that each is told when it begins and when it ends, and not
/// with every look at it.
#[derive(Debug, Clone, Default)]
pub struct Standing(BTreeMap<(Rule, String), Timestamp>);

impl Standing {
    /// Whether this alert is news: a condition begins, or one that was told is over.
    pub fn is_news(&mut self, alert: &Alert) -> bool {
        let key = (alert.rule, alert.subject.clone());
        if alert.resolved {
            return self.0.remove(&key).is_some();
        }
        match self.0.entry(key) {
            std::collections::btree_map::Entry::Occupied(_) => false,
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(alert.at);
                true
            }
        }
    }

    /// A condition that somebody else has told.
    pub fn adopt(&mut self, rule: Rule, subject: String, at: Timestamp) {
        self.0.entry((rule, subject)).or_insert(at);
    }

    /// The subjects for which a rule's condition holds.
    pub fn of(&self, rule: Rule) -> impl Iterator<Item = &str> {
        self.0.keys().filter(move |(known, _)| *known == rule).map(|(_, subject)| &**subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_told_when_it_begins_and_when_it_ends() {
        let at = Timestamp::UNIX_EPOCH;
        let begun = Alert::new(Rule::Stalled, "scheduler", at);
        let other = Alert::new(Rule::Stalled, "reaper", at);
        let over = Alert::resolved(Rule::Stalled, "scheduler", at);
        let mut standing = Standing::default();
        assert!(!standing.is_news(&over), "what never began does not end");
        assert!(standing.is_news(&begun));
        assert!(!standing.is_news(&begun));
        assert!(standing.is_news(&other));
        assert_eq!(standing.of(Rule::Stalled).collect::<Vec<_>>(), ["reaper", "scheduler"]);
        assert!(standing.is_news(&over));
        assert!(!standing.is_news(&over));
        assert!(standing.is_news(&begun), "it begins anew");
    }

    #[test]
    fn an_alert_survives_its_spool() {
        let alert = Alert::new(Rule::Restarted, "node-1", Timestamp::UNIX_EPOCH)
            .fact("why", "exit code 101\n\"\u{0}");
        let line = serde_json::to_string(&alert).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Alert>(&line).unwrap(), alert);
    }
}
