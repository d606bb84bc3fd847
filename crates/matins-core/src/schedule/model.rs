//! The words of schedules: what is asked for, what is stored, what became of each occurrence.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Json;
pub use crate::cron::{Dst, Fold, Gap};
use crate::duration::{Span, Timeout};
use crate::task::{Name, NewTask, TaskId};
use crate::words::words;

/// A schedule as YAML, API and CLI write it: the same keys everywhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    #[serde(default)]
    pub name: String,
    /// Cron expression, `@daily`, `@every 45m` or `@at 2027-01-01T09:00`.
    pub schedule: String,
    /// IANA name; UTC when absent.
    #[serde(default)]
    pub timezone: Option<String>,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default = "Json::null")]
    pub payload: Json,
    /// Template of the key of each occurrence.
    #[serde(default)]
    pub execution_key: Option<String>,
    #[serde(default)]
    pub pool: Option<String>,
    #[serde(default)]
    pub priority: i16,
    /// Lateness that still counts as on time.
    #[serde(default = "default_grace")]
    pub grace: Span,
    #[serde(default)]
    pub catch_up: CatchUp,
    #[serde(default)]
    pub catch_up_window: CatchUpWindow,
    #[serde(default = "default_catch_up_max")]
    pub catch_up_max: u32,
    #[serde(default)]
    pub overlap: Overlap,
    #[serde(default = "default_overlap_max")]
    pub overlap_max: u32,
    #[serde(default)]
    pub dst: Dst,
    #[serde(default)]
    pub jitter: Span,
    /// Pause after that many failed tasks in a row; 0: never.
    #[serde(default)]
    pub pause_after_failures: u32,
    #[serde(default)]
    pub start: Option<Timestamp>,
    #[serde(default)]
    pub end: Option<Timestamp>,
    #[serde(default)]
    pub blackout: Vec<Blackout>,
    #[serde(default)]
    pub timeout: Option<Timeout>,
    #[serde(default)]
    pub max_retries: Option<u32>,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub on_resume: OnResume,
    #[serde(default)]
    pub paused: bool,
    #[serde(default)]
    pub note: Option<String>,
}

fn default_grace() -> Span {
    Span::secs(60)
}

fn default_catch_up_max() -> u32 {
    100
}

fn default_overlap_max() -> u32 {
    1_000
}

impl ScheduleSpec {
    /// A schedule with every option at its default.
    pub fn new(name: &str, schedule: &str, kind: &str) -> Self {
        Self {
            name: name.to_owned(),
            schedule: schedule.to_owned(),
            timezone: None,
            kind: kind.to_owned(),
            payload: Json::null(),
            execution_key: None,
            pool: None,
            priority: 0,
            grace: default_grace(),
            catch_up: CatchUp::default(),
            catch_up_window: CatchUpWindow::default(),
            catch_up_max: default_catch_up_max(),
            overlap: Overlap::default(),
            overlap_max: default_overlap_max(),
            dst: Dst::default(),
            jitter: Span::default(),
            pause_after_failures: 0,
            start: None,
            end: None,
            blackout: Vec::new(),
            timeout: None,
            max_retries: None,
            tags: Vec::new(),
            on_resume: OnResume::default(),
            paused: false,
            note: None,
        }
    }

    pub fn zone_name(&self) -> &str {
        self.timezone.as_deref().unwrap_or("UTC")
    }
}

/// What becomes of occurrences that are later than `grace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatchUp {
    #[default]
    Latest,
    All,
    None,
}

/// How far back lateness is made up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CatchUpWindow {
    /// The longer of 24 h and one period.
    #[default]
    Auto,
    Within(Span),
}

impl Serialize for CatchUpWindow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Within(span) => span.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for CatchUpWindow {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "\"auto\" or a duration such as \"24h\"")]
        enum Form {
            Span(Span),
            Word(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Span(span) => Ok(Self::Within(span)),
            Form::Word(word) if word == "auto" => Ok(Self::Auto),
            Form::Word(_) => {
                Err(serde::de::Error::custom("expected \"auto\" or a duration such as \"24h\""))
            }
        }
    }
}

/// What happens when the previous task of the schedule is still live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    #[default]
    Skip,
    BufferOne,
    BufferAll,
    CancelPrevious,
    Allow,
}

/// What a pause leaves to be done when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnResume {
    #[default]
    Skip,
    Latest,
    All,
}

/// A time in which nothing fires, judged on the occurrence's nominal time. Both ends are either
/// `HH:MM` (every day, may cross midnight) or local date-times, in the schedule's zone; the
/// right end is excluded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blackout {
    pub from: String,
    pub to: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleStatus {
    Active,
    Paused,
    /// Its file no longer names it; the history stays.
    Disabled,
    /// Its last occurrence has been decided.
    Exhausted,
}

impl ScheduleStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
            Self::Exhausted => "exhausted",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManagedBy {
    File,
    Api,
}

/// How many occurrences have been decided, per outcome, since creation. Manual and backfilled
/// ones stay out. `expected` is counted from the timetable alone; the auditor compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Balance {
    pub expected: u64,
    pub fired: u64,
    pub coalesced: u64,
    pub skipped: u64,
    pub missed: u64,
}

/// A schedule as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// Identity that no other schedule of any name ever has.
    pub uid: Uuid,
    pub spec: ScheduleSpec,
    pub managed_by: ManagedBy,
    pub status: ScheduleStatus,
    /// Incremented by every change; a write names the one it was decided from.
    pub rev: u64,
    pub created_at: Timestamp,
    /// Origin of `@every`, in whole seconds. Unchanged by restart, pause and reload.
    pub anchor: Timestamp,
    /// Everything up to here is decided.
    pub cursor: Timestamp,
    /// Latest time this schedule was ever looked at; a clock behind it has stepped back.
    pub high_water: Timestamp,
    /// The last label decided. A wall-clock schedule decides nothing at or before that reading of
    /// its clock again, even when its zone or the zone table has changed since.
    #[serde(default)]
    pub last_label: Option<String>,
    /// Failures in a row at the last resume: a person has looked at those.
    #[serde(default)]
    pub failures_forgiven: u32,
    /// Number of backward clock steps; part of labels decided anew.
    pub epoch: u32,
    /// When to look at it next; `None` when there is nothing to wait for.
    pub next_due: Option<Timestamp>,
    /// Nominal time of the next occurrence, for people.
    pub next_fire: Option<Timestamp>,
    pub paused_since: Option<Timestamp>,
    pub balance: Balance,
    /// Release of the time zone table that `next_due` was computed with.
    pub zone_table: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OccurrenceKind {
    Scheduled,
    Manual,
    Backfill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OccurrenceOutcome {
    Fired,
    Coalesced,
    Skipped,
    Missed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Overlap,
    Paused,
    Frozen,
    Blackout,
    ZoneChange,
    Ended,
    Window,
    Limit,
    CatchUpNone,
    Newer,
    SameInstant,
}

words!(
    OccurrenceKind,
    "occurrence kind",
    Scheduled = "scheduled",
    Manual = "manual",
    Backfill = "backfill",
);
words!(
    OccurrenceOutcome,
    "occurrence outcome",
    Fired = "fired",
    Coalesced = "coalesced",
    Skipped = "skipped",
    Missed = "missed",
);
words!(
    Reason,
    "reason",
    Overlap = "overlap",
    Paused = "paused",
    Frozen = "frozen",
    Blackout = "blackout",
    ZoneChange = "zone_change",
    Ended = "ended",
    Window = "window",
    Limit = "limit",
    CatchUpNone = "catch_up_none",
    Newer = "newer",
    SameInstant = "same_instant",
);

/// What became of one occurrence, or of a run of equal ones (`label` to `label_to`, `count`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Occurrence {
    pub schedule_uid: Uuid,
    pub schedule: Name,
    pub label: String,
    pub label_to: Option<String>,
    pub count: u64,
    pub kind: OccurrenceKind,
    pub time: Timestamp,
    pub outcome: OccurrenceOutcome,
    pub reason: Option<Reason>,
    pub task_id: Option<TaskId>,
    pub fired_at: Option<Timestamp>,
}

/// The live tasks of a schedule, as the store saw them when the schedule was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Live {
    /// Pending (not held) or running.
    pub active: u32,
    /// Buffered behind the active one.
    pub held: u32,
    /// Tasks that ended as dead letters since the last one that completed.
    pub failures_in_row: u32,
}

/// A schedule that is due, with what its decision needs.
#[derive(Debug, Clone, PartialEq)]
pub struct DueSchedule {
    pub state: ScheduleState,
    pub live: Live,
}

/// A task to start for an occurrence. The occurrence's `task_id` is the id of the task, or of
/// the one that already holds its key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub task: NewTask,
    /// Label of the occurrence in the same plan.
    pub label: String,
}

/// Everything one look at a schedule decided. Applied in one transaction, and only while the
/// stored `rev` is still `expected_rev`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FirePlan {
    pub expected_rev: u64,
    /// The schedule after the decision, with `rev = expected_rev + 1`.
    pub state: ScheduleState,
    pub occurrences: Vec<Occurrence>,
    pub starts: Vec<Start>,
    /// Ask the schedule's live tasks to end (overlap `cancel_previous`); held ones are cancelled.
    pub cancel_previous: bool,
}
