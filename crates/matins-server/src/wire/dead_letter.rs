//! Dead letters, the acts on them, and the operations that carry long acts out.

use matins_core::Json;
use matins_core::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use matins_core::operation::{Operation, OperationKind, OperationState};
use matins_core::page::Page;
use matins_core::rate::Rate;
use matins_core::task::{ErrorClass, Task, TaskId};
use matins_runtime::client::acts::{DryRun, Selection};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::task::TaskView;
use super::{Eye, Time, schema};
use crate::problem::{Problem, Result};

/// Which dead letters: every field that is given must match.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FilterBody {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub pool: Option<String>,
    /// Of the error, as the groups show it.
    pub fingerprint: Option<String>,
    pub tag: Option<String>,
    pub schedule: Option<String>,
    pub failed_after: Option<Time>,
    pub failed_before: Option<Time>,
}

impl From<FilterBody> for DeadLetterFilter {
    fn from(body: FilterBody) -> Self {
        Self {
            kind: body.kind,
            pool: body.pool,
            fingerprint: body.fingerprint,
            tag: body.tag,
            schedule: body.schedule,
            failed_after: body.failed_after.map(|time| time.0),
            failed_before: body.failed_before.map(|time| time.0),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GroupBy {
    Error,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeadLetterQuery {
    /// `error`: groups of equal failures instead of single ones.
    pub group_by: Option<GroupBy>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub pool: Option<String>,
    pub fingerprint: Option<String>,
    pub tag: Option<String>,
    pub schedule: Option<String>,
    pub failed_after: Option<Time>,
    pub failed_before: Option<Time>,
    /// 1 to 1000; 50 when absent.
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

impl DeadLetterQuery {
    pub fn filter(&self) -> DeadLetterFilter {
        DeadLetterFilter {
            kind: self.kind.clone(),
            pool: self.pool.clone(),
            fingerprint: self.fingerprint.clone(),
            tag: self.tag.clone(),
            schedule: self.schedule.clone(),
            failed_after: self.failed_after.map(|time| time.0),
            failed_before: self.failed_before.map(|time| time.0),
        }
    }
}

/// Puts dead letters back. Exactly one of `ids` and `filter`; an empty filter means all.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReplayBody {
    #[schemars(with = "Option<Vec<String>>")]
    pub ids: Option<Vec<TaskId>>,
    pub filter: Option<FilterBody>,
    /// Only tell what would be replayed.
    pub dry_run: bool,
    /// One first, the rest only when it has completed.
    pub canary: bool,
    /// Such as `10/m` or `2/s`.
    #[schemars(with = "Option<String>")]
    pub rate: Option<Rate>,
    /// Instead of each one's own; needs the admin role unless `filter.type` names a type whose
    /// payload does not say what to run.
    #[schemars(schema_with = "schema::json")]
    pub payload: Option<Json>,
    pub reason: Option<String>,
}

/// Puts dead letters aside. Exactly one of `ids` and `filter`; an empty filter means all.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DismissBody {
    #[serde(default)]
    #[schemars(with = "Option<Vec<String>>")]
    pub ids: Option<Vec<TaskId>>,
    #[serde(default)]
    pub filter: Option<FilterBody>,
    /// Why nobody needs them any more.
    pub reason: String,
}

/// What `ids` and `filter` of a request mean together.
pub fn selection(ids: Option<Vec<TaskId>>, filter: Option<FilterBody>) -> Result<Selection> {
    match (ids, filter) {
        (Some(_), Some(_)) => Err(Problem::field("filter", "cannot be combined with ids")),
        (Some(ids), None) if ids.is_empty() => {
            Err(Problem::field("ids", "expected at least one id"))
        }
        (Some(ids), None) => Ok(Selection::Ids(ids)),
        (None, Some(filter)) => Ok(Selection::Filter(filter.into())),
        (None, None) => Err(Problem::field("filter", "is required unless ids are given")
            .hint("an empty filter, {}, means all dead letters")),
    }
}

/// A rate as replays count it.
pub fn per_minute(rate: Rate) -> Result<u32> {
    let per_minute = u64::from(rate.count) * 60 / rate.period.as_secs().max(1);
    match u32::try_from(per_minute) {
        Ok(0) | Err(_) => {
            Err(Problem::field("rate", "expected at least 1 per minute, such as 10/m"))
        }
        Ok(n) => Ok(n),
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeadLetterList")]
pub struct DeadLetterList<'a> {
    dead_letters: Vec<TaskView<'a>>,
    next_cursor: Option<&'a str>,
}

impl<'a> DeadLetterList<'a> {
    pub fn new(page: &'a Page<Task>, eye: &Eye) -> Self {
        Self {
            dead_letters: page.items.iter().map(|task| TaskView::new(task, eye)).collect(),
            next_cursor: page.next.as_deref(),
        }
    }
}

/// Dead letters with one fingerprint.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeadLetterGroup")]
pub struct GroupView<'a> {
    fingerprint: &'a str,
    #[schemars(schema_with = "schema::class")]
    class: ErrorClass,
    /// Of the newest one.
    message: &'a str,
    count: u64,
    oldest: Time,
    newest: Time,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeadLetterGroups")]
pub struct Groups<'a> {
    groups: Vec<GroupView<'a>>,
}

impl<'a> Groups<'a> {
    pub fn new(groups: &'a [DeadLetterGroup]) -> Self {
        let view = |group: &'a DeadLetterGroup| GroupView {
            fingerprint: &group.fingerprint,
            class: group.class,
            message: &group.message,
            count: group.count,
            oldest: Time(group.oldest),
            newest: Time(group.newest),
        };
        Self { groups: groups.iter().map(view).collect() }
    }
}

/// What `GET /dead_letters` answers.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
pub enum DeadLetterAnswer {
    Single(DeadLetterList<'static>),
    /// With `group_by=error`.
    Grouped(Groups<'static>),
}

/// What a replay would touch.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplayDryRun")]
pub struct DryRunView<'a> {
    count: u64,
    /// When the oldest of them failed.
    oldest: Option<Time>,
    sample: Vec<TaskView<'a>>,
}

impl<'a> DryRunView<'a> {
    pub fn new(run: &'a DryRun, eye: &Eye) -> Self {
        let oldest = run.oldest.as_ref().map(|task| task.finished_at.unwrap_or(task.created_at));
        Self {
            count: run.count,
            oldest: oldest.map(Time),
            sample: run.sample.iter().map(|task| TaskView::new(task, eye)).collect(),
        }
    }
}

/// Which dead letters were put aside.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DismissAnswer {
    pub dismissed: u64,
    /// Ids that were no dead letters.
    #[schemars(with = "Vec<String>")]
    pub refused: Vec<TaskId>,
}

/// A long act of a person, to be followed by its id.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Operation")]
pub struct OperationView<'a> {
    #[schemars(schema_with = "schema::uuid")]
    id: Uuid,
    /// `replay` or `backfill`.
    kind: &'static str,
    /// `running`, `completed`, or `stopped` by itself (see `detail`).
    #[schemars(with = "String")]
    state: OperationState,
    total: u64,
    replayed: u64,
    deduplicated: u64,
    failed: u64,
    /// Why it stopped, or what it waits for.
    detail: Option<&'a str>,
    by: &'a str,
    reason: Option<&'a str>,
    created_at: Time,
    finished_at: Option<Time>,
}

impl<'a> From<&'a Operation> for OperationView<'a> {
    fn from(operation: &'a Operation) -> Self {
        Self {
            id: operation.id,
            kind: match operation.kind {
                OperationKind::Replay { .. } => "replay",
                OperationKind::Backfill { .. } => "backfill",
            },
            state: operation.state,
            total: operation.total,
            replayed: operation.replayed,
            deduplicated: operation.deduplicated,
            failed: operation.failed,
            detail: operation.detail.as_deref(),
            by: &operation.by,
            reason: operation.reason.as_deref(),
            created_at: Time(operation.created_at),
            finished_at: operation.finished_at.map(Time),
        }
    }
}
