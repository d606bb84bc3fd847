//! Dead letters: the failed tasks that wait for a person.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::task::{ErrorClass, Task};

/// Which dead letters are meant. Every field that is set must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeadLetterFilter {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub pool: Option<String>,
    pub fingerprint: Option<String>,
    pub tag: Option<String>,
    pub schedule: Option<String>,
    pub failed_after: Option<Timestamp>,
    pub failed_before: Option<Timestamp>,
}

impl DeadLetterFilter {
    pub fn matches(&self, task: &Task) -> bool {
        let failed_at = task.finished_at.unwrap_or(task.created_at);
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        task.is_dead_letter()
            && is(&self.kind, &task.kind)
            && is(&self.pool, &task.pool)
            && is(&self.fingerprint, task.error.as_ref().map_or("", |e| &e.fingerprint))
            && is(&self.schedule, task.origin.as_ref().map_or("", |o| &o.schedule))
            && self.tag.as_ref().is_none_or(|tag| task.tags.contains(tag))
            && self.failed_after.is_none_or(|at| failed_at >= at)
            && self.failed_before.is_none_or(|at| failed_at < at)
    }
}

/// Dead letters with one fingerprint.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetterGroup {
    pub fingerprint: String,
    pub class: ErrorClass,
    /// Message of the newest one.
    pub message: String,
    pub count: u64,
    pub oldest: Timestamp,
    pub newest: Timestamp,
}
