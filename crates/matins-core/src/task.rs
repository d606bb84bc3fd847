//! The words of a task's life: what is asked for, what is stored, what an attempt left behind.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Json;
use crate::duration::Timeout;
use crate::limits;
use crate::retry::Backoff;
use crate::words::words;

/// Identity of a task: a UUID, version 7 when Matins makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub Uuid);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for TaskId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A short shared name: type, pool, schedule, worker.
pub type Name = Arc<str>;

/// The stored states. *Ready*, *scheduled*, *retrying* and *held* are views of `Pending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Pending,
    Running,
    Completed,
    Failed,
    Cancelled,
}

words!(
    State,
    "state",
    Pending = "pending",
    Running = "running",
    Completed = "completed",
    Failed = "failed",
    Cancelled = "cancelled",
);

impl State {
    /// Pending or running: holds its `execution_key` and its schedule's overlap.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }
}

/// What to do with an enqueue whose `execution_key` is taken by a live or completed task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDuplicate {
    /// Answer with the task that holds the key.
    #[default]
    Return,
    /// Refuse with `duplicate_key`.
    Reject,
    /// Replace a pending holder's payload and times; refuse when it runs or has completed.
    Replace,
}

/// Where a task of a schedule came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The schedule's identity, which a rename or a re-creation does not reuse.
    pub schedule_uid: Uuid,
    pub schedule: Name,
    /// Label of the occurrence: unique within the schedule.
    pub label: String,
    /// Nominal instant of the occurrence.
    pub time: Timestamp,
}

/// A task to be stored: checked against the limits, defaults filled in, nothing left to decide.
///
/// Its serialised form is that of the outage journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewTask {
    pub id: TaskId,
    /// The client chose `id`, so the same id again means the same request again.
    pub client_id: bool,
    pub kind: Name,
    pub payload: Json,
    pub pool: Name,
    pub priority: i16,
    pub run_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub execution_key: Option<Arc<str>>,
    pub on_duplicate: OnDuplicate,
    pub concurrency_key: Option<Arc<str>>,
    pub tags: Vec<String>,
    /// Overrides of the type's policy; `None` leaves it to the worker's file.
    pub max_retries: Option<u32>,
    pub backoff: Option<Backoff>,
    pub timeout: Option<Timeout>,
    pub origin: Option<Origin>,
    /// Waits for the schedule's previous task (overlap), whatever `run_at` says.
    pub held: bool,
    pub created_by: Name,
}

impl NewTask {
    /// A task with every option at its default.
    pub fn new(id: TaskId, kind: impl Into<Name>, payload: Json, run_at: Timestamp) -> Self {
        Self {
            id,
            client_id: false,
            kind: kind.into(),
            payload,
            pool: "default".into(),
            priority: 0,
            run_at,
            expires_at: None,
            execution_key: None,
            on_duplicate: OnDuplicate::Return,
            concurrency_key: None,
            tags: Vec::new(),
            max_retries: None,
            backoff: None,
            timeout: None,
            origin: None,
            held: false,
            created_by: "unknown".into(),
        }
    }

    /// The single key that orders a pool.
    pub fn order(&self) -> i64 {
        order_key(self.run_at, self.priority)
    }
}

/// `run_at − priority × 60 s` in microseconds: higher priority first, ageing by construction.
pub fn order_key(run_at: Timestamp, priority: i16) -> i64 {
    run_at.as_microsecond() - i64::from(priority) * 60_000_000
}

/// A stored task as anybody may see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub id: TaskId,
    pub kind: Name,
    pub state: State,
    pub payload: Json,
    pub pool: Name,
    pub priority: i16,
    pub run_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub execution_key: Option<Arc<str>>,
    pub concurrency_key: Option<Arc<str>>,
    pub tags: Vec<String>,
    pub max_retries: Option<u32>,
    pub backoff: Option<Backoff>,
    pub timeout: Option<Timeout>,
    pub origin: Option<Origin>,
    pub held: bool,
    pub created_at: Timestamp,
    pub created_by: Name,
    /// Number of the last attempt that was claimed; 0 before the first. Never restarts.
    pub attempt: u32,
    /// Retries used up in the present round; a replay starts a new one.
    pub retries: u32,
    pub losses: u32,
    pub interruptions: u32,
    pub replays: u32,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub cancel_requested_at: Option<Timestamp>,
    pub result: Option<Json>,
    /// Size of a result that was too large to keep.
    pub result_dropped_bytes: Option<u64>,
    pub error: Option<TaskError>,
    /// Completed without a run, because its key had completed already.
    pub deduplicated: bool,
    pub dismissed: Option<Dismissal>,
    /// Why it was cancelled: `cancelled` by a person, `expired`, `replaced`, …
    pub cancel_reason: Option<String>,
    pub durability: Durability,
}

impl Task {
    /// The row that `new` becomes.
    pub fn from_new(new: &NewTask, now: Timestamp) -> Self {
        Self {
            id: new.id,
            kind: new.kind.clone(),
            state: State::Pending,
            payload: new.payload.clone(),
            pool: new.pool.clone(),
            priority: new.priority,
            run_at: new.run_at,
            expires_at: new.expires_at,
            execution_key: new.execution_key.clone(),
            concurrency_key: new.concurrency_key.clone(),
            tags: new.tags.clone(),
            max_retries: new.max_retries,
            backoff: new.backoff,
            timeout: new.timeout,
            origin: new.origin.clone(),
            held: new.held,
            created_at: now,
            created_by: new.created_by.clone(),
            attempt: 0,
            retries: 0,
            losses: 0,
            interruptions: 0,
            replays: 0,
            started_at: None,
            finished_at: None,
            cancel_requested_at: None,
            result: None,
            result_dropped_bytes: None,
            error: None,
            deduplicated: false,
            dismissed: None,
            cancel_reason: None,
            durability: Durability::Store,
        }
    }

    /// From the second loss on a task runs alone, so that a poison task takes nobody with it.
    pub fn in_quarantine(&self) -> bool {
        self.losses >= crate::lifecycle::QUARANTINE_LOSSES
    }

    /// A dead letter: gave up, and nobody has put it aside.
    pub fn is_dead_letter(&self) -> bool {
        self.state == State::Failed && self.dismissed.is_none()
    }

    /// The word shown to people: splits `pending` by what it waits for.
    pub fn view(&self, now: Timestamp) -> &'static str {
        match self.state {
            State::Pending if self.held => "held",
            State::Pending if self.run_at <= now => "ready",
            State::Pending if self.attempt > 0 => "retrying",
            State::Pending => "scheduled",
            other => other.as_str(),
        }
    }
}

/// Where the acceptance of a task is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    Store,
    /// The database is away: in Redis, which keeps it on disk, and in the spool of the node.
    Redis,
    /// The same with a Redis that may forget, as the operator accepts (`accept_volatile`).
    Volatile,
}

words!(Durability, "durability", Store = "store", Redis = "redis", Volatile = "volatile",);

/// Who put a dead letter aside, when and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dismissal {
    pub by: String,
    pub at: Timestamp,
    pub reason: String,
}

/// The stable classes of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    Timeout,
    Exit,
    Signal,
    Oom,
    Spawn,
    #[serde(rename = "http_3xx")]
    Http3xx,
    #[serde(rename = "http_4xx")]
    Http4xx,
    #[serde(rename = "http_5xx")]
    Http5xx,
    Network,
    Sql,
    Panic,
    WorkerLost,
    Cancelled,
    Permanent,
    /// A handler's or a remote worker's own failure, retryable.
    Error,
}

words!(
    ErrorClass,
    "error class",
    Timeout = "timeout",
    Exit = "exit",
    Signal = "signal",
    Oom = "oom",
    Spawn = "spawn",
    Http3xx = "http_3xx",
    Http4xx = "http_4xx",
    Http5xx = "http_5xx",
    Network = "network",
    Sql = "sql",
    Panic = "panic",
    WorkerLost = "worker_lost",
    Cancelled = "cancelled",
    Permanent = "permanent",
    Error = "error",
);

/// What went wrong, in a form that groups with its like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskError {
    pub class: ErrorClass,
    pub message: String,
    pub fingerprint: String,
}

impl TaskError {
    /// Cuts an overlong text at a character and says so; computes the fingerprint.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > limits::ERROR_BYTES_MAX {
            let total = message.len();
            let mut cut = limits::ERROR_BYTES_MAX;
            while !message.is_char_boundary(cut) {
                cut -= 1;
            }
            message.truncate(cut);
            let _ = write!(message, " … ({} bytes more)", total - cut);
        }
        let fingerprint = crate::fingerprint::fingerprint(class, &message);
        Self { class, message, fingerprint }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    Completed,
    Failed,
    Timeout,
    Lost,
    Interrupted,
    Cancelled,
    Snoozed,
    Released,
}

words!(
    AttemptOutcome,
    "attempt outcome",
    Completed = "completed",
    Failed = "failed",
    Timeout = "timeout",
    Lost = "lost",
    Interrupted = "interrupted",
    Cancelled = "cancelled",
    Snoozed = "snoozed",
    Released = "released",
);

/// Bytes a run wrote, as kept: stdout and stderr in order of arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    pub bytes: Vec<u8>,
    /// How many bytes were left out, and where in `bytes` the gap lies.
    pub dropped: u64,
    pub gap_at: usize,
}

impl Output {
    /// Text for people: invalid bytes as U+FFFD, the gap spelled out.
    pub fn text(&self) -> String {
        if self.dropped == 0 {
            return String::from_utf8_lossy(&self.bytes).into_owned();
        }
        let (head, tail) = self.bytes.split_at(self.gap_at.min(self.bytes.len()));
        format!(
            "{}\n… {} bytes dropped …\n{}",
            String::from_utf8_lossy(head),
            self.dropped,
            String::from_utf8_lossy(tail)
        )
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.dropped == 0
    }
}

/// One run of a task. `outcome: None` is the one that is running.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    pub number: u32,
    pub worker: Name,
    pub started_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub outcome: Option<AttemptOutcome>,
    pub error: Option<TaskError>,
    pub exit_code: Option<i32>,
    pub http_status: Option<u16>,
    pub output: Output,
}

/// A task that was handed to a worker, with the right to write about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    pub task: Task,
    pub claim: Claim,
}

/// The proof of a claim. Every write about a running task carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    pub id: TaskId,
    /// Grows with every claim of a store; a later claim of the task has a higher one.
    pub fence: u64,
    /// Random per claim call, so that a fence cannot be guessed or confused with another's.
    pub token: u64,
}

/// Whom a claim belongs to: one incarnation of a process, never just a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub Name);

impl WorkerId {
    /// `<node_id>:<pid>:<incarnation>`.
    pub fn local(node_id: &str, pid: u32, incarnation: Uuid) -> Self {
        Self(format!("{node_id}:{pid}:{}", incarnation.simple()).into())
    }
}

impl WorkerId {
    /// Whether a name is of the form that [`WorkerId::local`] makes.
    pub fn looks_local(name: &str) -> bool {
        let mut parts = name.rsplitn(3, ':');
        let (incarnation, pid) = (parts.next(), parts.next());
        parts.next().is_some()
            && incarnation.is_some_and(|text| text.len() == 32 && Uuid::parse_str(text).is_ok())
            && pid.is_some_and(|text| text.parse::<u32>().is_ok())
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Time left until `at`, zero when it has passed.
pub fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros((at.as_microsecond() - now.as_microsecond()).max(0) as u64)
}
