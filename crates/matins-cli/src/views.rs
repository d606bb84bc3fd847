//! Answers of the API as tables need them. Everything may be absent: an enqueue that finds its
//! key in the ledger knows little more than the result.

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Task {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) state: String,
    pub(crate) view: Option<String>,
    pub(crate) payload: Option<Box<RawValue>>,
    pub(crate) pool: Option<String>,
    pub(crate) priority: Option<i64>,
    pub(crate) run_at: Option<String>,
    pub(crate) expires_at: Option<String>,
    pub(crate) execution_key: Option<String>,
    pub(crate) concurrency_key: Option<String>,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) attempt: Option<u64>,
    pub(crate) retries: Option<u64>,
    pub(crate) losses: Option<u64>,
    pub(crate) interruptions: Option<u64>,
    pub(crate) replays: Option<u64>,
    pub(crate) max_retries: Option<u64>,
    pub(crate) timeout: Option<Box<RawValue>>,
    pub(crate) schedule: Option<String>,
    pub(crate) occurrence: Option<String>,
    pub(crate) created_at: Option<String>,
    pub(crate) created_by: Option<String>,
    pub(crate) started_at: Option<String>,
    pub(crate) finished_at: Option<String>,
    pub(crate) cancel_requested_at: Option<String>,
    pub(crate) cancel_reason: Option<String>,
    pub(crate) result: Option<Box<RawValue>>,
    pub(crate) result_dropped_bytes: Option<u64>,
    pub(crate) error: Option<TaskError>,
    pub(crate) deduplicated: bool,
    pub(crate) dismissed: Option<Dismissal>,
    pub(crate) attempts: Vec<Attempt>,
}

impl Task {
    /// The word for people.
    pub(crate) fn word(&self) -> &str {
        self.view.as_deref().unwrap_or(&self.state)
    }

    pub(crate) fn has_ended(&self) -> bool {
        !matches!(&*self.state, "pending" | "running")
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TaskError {
    pub(crate) class: String,
    pub(crate) message: String,
    pub(crate) fingerprint: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Dismissal {
    pub(crate) by: String,
    pub(crate) at: String,
    pub(crate) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Attempt {
    pub(crate) number: u64,
    pub(crate) worker: String,
    pub(crate) started_at: String,
    pub(crate) finished_at: Option<String>,
    pub(crate) outcome: Option<String>,
    pub(crate) error: Option<TaskError>,
    pub(crate) exit_code: Option<i64>,
    pub(crate) http_status: Option<u16>,
    pub(crate) output: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TaskPage {
    #[serde(alias = "dead_letters")]
    pub(crate) tasks: Vec<Task>,
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Why {
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) detail: String,
    pub(crate) since: Option<String>,
    pub(crate) hint: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Groups {
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Group {
    pub(crate) fingerprint: String,
    pub(crate) class: String,
    pub(crate) message: String,
    pub(crate) count: u64,
    pub(crate) oldest: String,
    pub(crate) newest: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) total: u64,
    pub(crate) replayed: u64,
    pub(crate) deduplicated: u64,
    pub(crate) failed: u64,
    pub(crate) detail: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Schedule {
    pub(crate) name: String,
    #[serde(rename = "schedule")]
    pub(crate) expression: String,
    pub(crate) timezone: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) payload: Option<Box<RawValue>>,
    pub(crate) execution_key: Option<String>,
    pub(crate) pool: Option<String>,
    pub(crate) catch_up: String,
    pub(crate) overlap: String,
    pub(crate) start: Option<String>,
    pub(crate) end: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) state: String,
    pub(crate) next_fire: Option<String>,
    pub(crate) managed_by: String,
    pub(crate) paused_since: Option<String>,
    pub(crate) balance: Balance,
    pub(crate) active: u64,
    pub(crate) held: u64,
    pub(crate) failures_in_row: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Balance {
    pub(crate) expected: u64,
    pub(crate) fired: u64,
    pub(crate) coalesced: u64,
    pub(crate) skipped: u64,
    pub(crate) missed: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SchedulePage {
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Preview {
    pub(crate) fires: Vec<Fire>,
    pub(crate) timezone: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Fire {
    pub(crate) utc: String,
    pub(crate) local: String,
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OccurrencePage {
    pub(crate) occurrences: Vec<Occurrence>,
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Occurrence {
    pub(crate) label: String,
    pub(crate) label_to: Option<String>,
    pub(crate) count: u64,
    pub(crate) kind: String,
    pub(crate) time: String,
    pub(crate) outcome: String,
    pub(crate) reason: Option<String>,
    pub(crate) task_id: Option<String>,
    pub(crate) fired_at: Option<String>,
    /// Only in the answer to a trigger.
    pub(crate) deduplicated: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pools {
    pub(crate) pools: Vec<Pool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) paused: bool,
    pub(crate) note: Option<String>,
    pub(crate) size: Option<u64>,
    pub(crate) resized: bool,
    pub(crate) busy: u64,
    pub(crate) ready: u64,
    pub(crate) oldest_ready: Option<f64>,
    pub(crate) workers: Vec<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ledger {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) execution_key: String,
    pub(crate) task_id: String,
    pub(crate) state: String,
    pub(crate) result: Option<Box<RawValue>>,
    pub(crate) at: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Tokens {
    pub(crate) tokens: Vec<Token>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Token {
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) types: Vec<String>,
    pub(crate) created_at: String,
    pub(crate) created_by: String,
    /// In the answer that makes it, and never again.
    pub(crate) secret: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) mode: String,
    pub(crate) health: String,
    pub(crate) heartbeat_age: Option<f64>,
    pub(crate) tasks: std::collections::BTreeMap<String, u64>,
    pub(crate) ready: std::collections::BTreeMap<String, u64>,
    pub(crate) oldest_ready: std::collections::BTreeMap<String, f64>,
    pub(crate) dead_letters: u64,
    pub(crate) schedules_overdue: u64,
    pub(crate) workers: u64,
    pub(crate) frozen: Option<Frozen>,
    pub(crate) store: StoreInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Frozen {
    pub(crate) by: String,
    pub(crate) at: String,
    pub(crate) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StoreInfo {
    pub(crate) kind: String,
    pub(crate) store_id: String,
    pub(crate) schema_version: u64,
    pub(crate) parts: Vec<StorePart>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StorePart {
    pub(crate) kind: String,
    pub(crate) up: bool,
    pub(crate) version: String,
}
