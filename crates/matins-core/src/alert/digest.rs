//! Many alerts about one thing, as one.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Alert, Fact, Rule, Severity};
use crate::task::TaskId;

/// Alerts shown by themselves.
pub const SAMPLES_MAX: usize = 5;

/// Tasks told from each other. Beyond that each alert counts as one more.
const TASKS_MAX: usize = 1_000;

/// Causes counted apart.
const CAUSES_MAX: usize = 8;

/// Characters of a fact, and of a cause, that are kept.
const FACT_CHARS: usize = 300;
const CAUSE_CHARS: usize = 160;

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What came about one rule and subject since something was last told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    pub rule: Rule,
    pub subject: String,
    /// The gravest.
    pub severity: Severity,
    /// Alerts that were not the end of something.
    pub count: u64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// It is over now.
    pub resolved: bool,
    /// The first ones.
    pub samples: Vec<Sample>,
    /// How many had which cause.
    pub causes: BTreeMap<String, u64>,
    /// Tasks that are counted: one that was replayed and gave up again is no other one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tasks: BTreeSet<TaskId>,
    /// Channels that could not be told it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub at: Timestamp,
    pub facts: Vec<Fact>,
}

impl Sample {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.facts.iter().find(|fact| fact.name == name).map(|fact| &*fact.value)
    }
}

impl Digest {
    pub fn of(alert: &Alert, severity: Severity) -> Self {
        let mut digest = Self {
            rule: alert.rule,
            subject: alert.subject.clone(),
            severity,
            count: 0,
            first_at: alert.at,
            last_at: alert.at,
            resolved: false,
            samples: Vec::new(),
            causes: BTreeMap::new(),
            tasks: BTreeSet::new(),
            tried: Vec::new(),
        };
        digest.add(alert, severity);
        digest
    }

    pub fn is_about(&self, rule: Rule, subject: &str) -> bool {
        self.rule == rule && self.subject == subject
    }

    pub fn add(&mut self, alert: &Alert, severity: Severity) {
        self.first_at = self.first_at.min(alert.at);
        self.last_at = self.last_at.max(alert.at);
        self.resolved = alert.resolved;
        let short =
            |fact: &Fact| Fact { value: shortened(&fact.value, FACT_CHARS), ..fact.clone() };
        let sample = Sample { at: alert.at, facts: alert.facts.iter().map(short).collect() };
        if alert.resolved {
            // What is known of the end is worth more than the last of many.
            if self.samples.len() == SAMPLES_MAX {
                self.samples.pop();
            }
            self.samples.push(sample);
            return;
        }
        self.severity = self.severity.max(severity);
        if !self.is_another(&sample) {
            return;
        }
        self.count += 1;
        if let Some(cause) = sample.get("error").or_else(|| sample.get("why")) {
            self.cause(shortened(cause, CAUSE_CHARS), 1);
        }
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(sample);
        }
    }

    /// Whether it is about a task that is not counted yet, or about none.
    fn is_another(&mut self, sample: &Sample) -> bool {
        let task = sample.get("task").and_then(|id| id.parse::<TaskId>().ok());
        let Some(task) = task else { return true };
        if self.tasks.len() >= TASKS_MAX {
            return !self.tasks.contains(&task);
        }
        self.tasks.insert(task)
    }

    fn cause(&mut self, cause: String, n: u64) {
        if self.causes.len() < CAUSES_MAX || self.causes.contains_key(&cause) {
            *self.causes.entry(cause).or_default() += n;
        }
    }

    /// Takes in what came later.
    pub fn merge(&mut self, later: Self) {
        self.first_at = self.first_at.min(later.first_at);
        self.last_at = self.last_at.max(later.last_at);
        self.severity = self.severity.max(later.severity);
        let again = later.tasks.intersection(&self.tasks).count() as u64;
        self.count += later.count.saturating_sub(again);
        let room = TASKS_MAX.saturating_sub(self.tasks.len());
        let others: Vec<TaskId> = later.tasks.difference(&self.tasks).copied().take(room).collect();
        self.tasks.extend(others);
        self.resolved = later.resolved;
        for (cause, n) in later.causes {
            self.cause(cause, n);
        }
        let room = SAMPLES_MAX.saturating_sub(self.samples.len());
        self.samples.extend(later.samples.into_iter().take(room));
        self.tried.extend(later.tried);
        self.tried.sort();
        self.tried.dedup();
    }
}
