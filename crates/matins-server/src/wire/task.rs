//! Tasks, attempts, and requests for tasks.

use std::borrow::Cow;

use jiff::Timestamp;
use matins_core::duration::Timeout;
use matins_core::request::EnqueueRequest;
use matins_core::retry::Backoff;
use matins_core::task::{
    Attempt, AttemptOutcome, Claimed, Dismissal, Durability, ErrorClass, OnDuplicate, State, Task,
    TaskError, TaskId,
};
use matins_core::why::Why;
use matins_core::{Json, page::Page};
use matins_runtime::client::Answer;
use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::time::Length;
use super::{Eye, Time, schema};

/// A request for one task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnqueueBody {
    /// What kind of work it is.
    #[serde(rename = "type")]
    kind: String,
    /// Any JSON; absent is `null`.
    #[serde(default)]
    #[schemars(schema_with = "schema::json")]
    payload: Option<Json>,
    /// Made by the client, for tasks without an `execution_key`: the same id again is harmless.
    #[serde(default)]
    #[schemars(schema_with = "schema::uuid")]
    id: Option<TaskId>,
    /// The business meaning of the work; at most one completion per type and key.
    #[serde(default)]
    execution_key: Option<String>,
    /// When it is due; now when absent.
    #[serde(default)]
    run_at: Option<Time>,
    /// How long from now it is due; instead of `run_at`.
    #[serde(default)]
    delay: Option<Length>,
    /// Cancelled when it has not started by then.
    #[serde(default)]
    expires_at: Option<Time>,
    /// The type's pool when absent.
    #[serde(default)]
    pool: Option<String>,
    /// -100 to 100, higher first.
    #[serde(default)]
    priority: Option<i16>,
    /// Overrides the type's policy.
    #[serde(default)]
    max_retries: Option<u32>,
    /// Overrides the type's policy.
    #[serde(default)]
    #[schemars(schema_with = "schema::backoff")]
    backoff: Option<Backoff>,
    /// Overrides the type's policy.
    #[serde(default)]
    #[schemars(schema_with = "schema::timeout")]
    timeout: Option<Timeout>,
    /// Tasks of one type and key take turns.
    #[serde(default)]
    concurrency_key: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    /// What to do when the key is taken by a live or completed task.
    #[serde(default)]
    #[schemars(schema_with = "schema::on_duplicate")]
    on_duplicate: OnDuplicate,
}

impl From<EnqueueBody> for EnqueueRequest {
    fn from(body: EnqueueBody) -> Self {
        Self {
            kind: body.kind,
            payload: body.payload,
            id: body.id,
            execution_key: body.execution_key,
            run_at: body.run_at.map(|time| time.0),
            delay: body.delay.map(Length::get),
            expires_at: body.expires_at.map(|time| time.0),
            pool: body.pool,
            priority: body.priority,
            max_retries: body.max_retries,
            backoff: body.backoff,
            timeout: body.timeout,
            concurrency_key: body.concurrency_key,
            tags: body.tags,
            on_duplicate: body.on_duplicate,
        }
    }
}

/// Which tasks to list.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskQuery {
    /// States, separated by commas.
    #[schemars(schema_with = "schema::states")]
    pub state: Vec<State>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub pool: Option<String>,
    pub tag: Option<String>,
    pub schedule: Option<String>,
    pub execution_key: Option<String>,
    /// Prefix of an id, key, type or tag.
    pub q: Option<String>,
    /// 1 to 1000; 50 when absent.
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// Why it failed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TaskError")]
pub struct ErrorView<'a> {
    #[schemars(schema_with = "schema::class")]
    class: ErrorClass,
    message: &'a str,
    /// Equal for failures that differ only in numbers, ids and paths.
    fingerprint: &'a str,
}

impl<'a> From<&'a TaskError> for ErrorView<'a> {
    fn from(error: &'a TaskError) -> Self {
        Self { class: error.class, message: &error.message, fingerprint: &error.fingerprint }
    }
}

/// Who put a dead letter aside, when and why.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Dismissal")]
pub struct DismissalView<'a> {
    by: &'a str,
    at: Time,
    reason: &'a str,
}

impl<'a> From<&'a Dismissal> for DismissalView<'a> {
    fn from(dismissal: &'a Dismissal) -> Self {
        Self { by: &dismissal.by, at: Time(dismissal.at), reason: &dismissal.reason }
    }
}

/// A task. Every field is always there.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Task")]
pub struct TaskView<'a> {
    #[schemars(schema_with = "schema::uuid")]
    id: TaskId,
    r#type: &'a str,
    #[schemars(schema_with = "schema::state")]
    state: State,
    /// The state in the words of people: `pending` is *ready*, *scheduled*, *retrying* or *held*.
    view: &'static str,
    /// To viewers the values of what a `command` gets as `env` and an `http_call` as `headers`
    /// are `***`.
    #[schemars(schema_with = "schema::json")]
    payload: Cow<'a, Json>,
    pool: &'a str,
    priority: i16,
    run_at: Time,
    expires_at: Option<Time>,
    execution_key: Option<&'a str>,
    concurrency_key: Option<&'a str>,
    tags: &'a [String],
    /// Number of the last attempt, 0 before the first; never restarts.
    attempt: u32,
    retries: u32,
    losses: u32,
    interruptions: u32,
    replays: u32,
    /// Its own, or its type's.
    max_retries: u32,
    /// Its own, or its type's.
    #[schemars(schema_with = "schema::backoff")]
    backoff: Backoff,
    /// Its own, or its type's: seconds, or `none`.
    #[schemars(schema_with = "schema::timeout_out")]
    timeout: Timeout,
    schedule: Option<&'a str>,
    /// Label of the schedule's occurrence that it runs for.
    occurrence: Option<&'a str>,
    created_at: Time,
    created_by: &'a str,
    started_at: Option<Time>,
    finished_at: Option<Time>,
    cancel_requested_at: Option<Time>,
    /// `cancelled`, `expired`, `overlap`, `schedule_removed`.
    cancel_reason: Option<&'a str>,
    #[schemars(schema_with = "schema::json")]
    result: Option<&'a Json>,
    /// Size of a result that was too large to keep.
    result_dropped_bytes: Option<u64>,
    error: Option<ErrorView<'a>>,
    /// It stands for an earlier request, or completed without a run because its key had.
    deduplicated: bool,
    dismissed: Option<DismissalView<'a>>,
    /// Where the acceptance is safe: `store`; while the database is away `redis`, or `volatile`
    /// where Redis may forget. It becomes `store` when the database is back.
    durability: &'static str,
    /// It is as the outage journal knows it; the database may know more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stale: bool,
}

impl<'a> TaskView<'a> {
    pub fn new(task: &'a Task, eye: &Eye) -> Self {
        let policy = eye.rules.policy_for(task);
        let origin = task.origin.as_ref();
        Self {
            id: task.id,
            r#type: &task.kind,
            state: task.state,
            view: task.view(eye.now),
            payload: eye.secrets.payload(&task.kind, &task.payload),
            pool: &task.pool,
            priority: task.priority,
            run_at: Time(task.run_at),
            expires_at: task.expires_at.map(Time),
            execution_key: task.execution_key.as_deref(),
            concurrency_key: task.concurrency_key.as_deref(),
            tags: &task.tags,
            attempt: task.attempt,
            retries: task.retries,
            losses: task.losses,
            interruptions: task.interruptions,
            replays: task.replays,
            max_retries: policy.retry.max_retries,
            backoff: policy.retry.backoff,
            timeout: policy.timeout,
            schedule: origin.map(|origin| &*origin.schedule),
            occurrence: origin.map(|origin| origin.label.as_str()),
            created_at: Time(task.created_at),
            created_by: &task.created_by,
            started_at: task.started_at.map(Time),
            finished_at: task.finished_at.map(Time),
            cancel_requested_at: task.cancel_requested_at.map(Time),
            cancel_reason: task.cancel_reason.as_deref(),
            result: task.result.as_ref(),
            result_dropped_bytes: task.result_dropped_bytes,
            error: task.error.as_ref().map(ErrorView::from),
            deduplicated: task.deduplicated,
            dismissed: task.dismissed.as_ref().map(DismissalView::from),
            durability: task.durability.as_str(),
            stale: task.durability != Durability::Store,
        }
    }
}

/// The names of a [`TaskView`] that the ledger cannot fill.
const FORGOTTEN: [&str; 27] = [
    "view",
    "payload",
    "pool",
    "priority",
    "run_at",
    "expires_at",
    "concurrency_key",
    "tags",
    "attempt",
    "retries",
    "losses",
    "interruptions",
    "replays",
    "max_retries",
    "backoff",
    "timeout",
    "schedule",
    "occurrence",
    "created_at",
    "created_by",
    "started_at",
    "cancel_requested_at",
    "cancel_reason",
    "result_dropped_bytes",
    "error",
    "dismissed",
    "durability",
];

/// What is known of a task whose row has been pruned.
struct Ledgered<'a>(&'a Task);

impl Serialize for Ledgered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let task = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &task.id)?;
        map.serialize_entry("type", &*task.kind)?;
        map.serialize_entry("state", &task.state)?;
        map.serialize_entry("execution_key", &task.execution_key.as_deref())?;
        map.serialize_entry("finished_at", &task.finished_at.map(Time))?;
        map.serialize_entry("result", &task.result)?;
        map.serialize_entry("deduplicated", &true)?;
        for name in FORGOTTEN {
            map.serialize_entry(name, &())?;
        }
        map.end()
    }
}

/// All that a token of the role `enqueue` may see of a task that it did not make.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TaskGlimpse")]
pub struct Glimpse {
    #[schemars(schema_with = "schema::uuid")]
    id: TaskId,
    #[schemars(schema_with = "schema::state")]
    state: State,
    deduplicated: bool,
}

/// What an enqueue is answered when the task was there.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "ExistingTask")]
#[allow(dead_code, reason = "only its schema is used")]
pub enum Existing {
    Task(Box<TaskView<'static>>),
    Pruned(PrunedShape),
    Glimpse(Glimpse),
}

/// A completed task whose row has been pruned: every other field of a task is null.
#[derive(JsonSchema)]
#[schemars(rename = "PrunedTask", extend("additionalProperties" = { "type": "null" }))]
#[allow(dead_code, reason = "only its schema is used")]
pub struct PrunedShape {
    #[schemars(schema_with = "schema::uuid")]
    id: TaskId,
    r#type: String,
    #[schemars(schema_with = "schema::state")]
    state: State,
    execution_key: String,
    finished_at: Time,
    #[schemars(schema_with = "schema::json")]
    result: Json,
    deduplicated: bool,
}

/// How much of a task the caller may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight<'a> {
    Full,
    /// Only what this caller made itself.
    Own(&'a str),
}

/// The answer to an enqueue.
pub struct AnswerView<'a> {
    pub answer: &'a Answer,
    pub eye: &'a Eye,
    pub sight: Sight<'a>,
}

impl Serialize for AnswerView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Answer { task, deduplicated, .. } = self.answer;
        match self.sight {
            Sight::Own(name) if *deduplicated || *task.created_by != *name => {
                Glimpse { id: task.id, state: task.state, deduplicated: *deduplicated }
                    .serialize(serializer)
            }
            _ if *deduplicated && is_from_ledger(task) => Ledgered(task).serialize(serializer),
            _ => {
                let mut view = TaskView::new(task, self.eye);
                view.deduplicated |= deduplicated;
                view.serialize(serializer)
            }
        }
    }
}

/// Whether a task was put together by [`LedgerEntry::task`](matins_core::store::LedgerEntry::task):
/// completed in the instant of its making, by nobody, without ever having been tried.
fn is_from_ledger(task: &Task) -> bool {
    task.state == State::Completed
        && task.attempt == 0
        && *task.created_by == *"unknown"
        && task.finished_at == Some(task.created_at)
}

/// One run. `outcome` is null while it runs.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Attempt")]
pub struct AttemptView<'a> {
    number: u32,
    /// `<node_id>:<pid>:<incarnation>`, or the name that a remote worker gave.
    worker: &'a str,
    started_at: Time,
    finished_at: Option<Time>,
    #[schemars(schema_with = "schema::outcome")]
    outcome: Option<AttemptOutcome>,
    error: Option<ErrorView<'a>>,
    exit_code: Option<i32>,
    http_status: Option<u16>,
    /// As text; bytes that are not UTF-8 as U+FFFD. `/output` has the bytes.
    output: String,
}

impl<'a> From<&'a Attempt> for AttemptView<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        Self {
            number: attempt.number,
            worker: &attempt.worker,
            started_at: Time(attempt.started_at),
            finished_at: attempt.finished_at.map(Time),
            outcome: attempt.outcome,
            error: attempt.error.as_ref().map(ErrorView::from),
            exit_code: attempt.exit_code,
            http_status: attempt.http_status,
            output: attempt.output.text(),
        }
    }
}

/// A task with every attempt, the running one included.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TaskDetail")]
pub struct TaskDetail<'a> {
    #[serde(flatten)]
    pub task: TaskView<'a>,
    pub attempts: Vec<AttemptView<'a>>,
}

/// A page of tasks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TaskList")]
pub struct TaskList<'a> {
    tasks: Vec<TaskView<'a>>,
    next_cursor: Option<&'a str>,
}

impl<'a> TaskList<'a> {
    pub fn new(page: &'a Page<Task>, eye: &Eye) -> Self {
        Self {
            tasks: page.items.iter().map(|task| TaskView::new(task, eye)).collect(),
            next_cursor: page.next.as_deref(),
        }
    }
}

/// A task in the hands of a worker, with the proof of its claim.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ClaimedTask")]
pub struct ClaimedView<'a> {
    #[serde(flatten)]
    task: TaskView<'a>,
    /// Grows with every claim of a store.
    fence: u64,
    /// Opaque; to be sent back with `fence`.
    token: String,
    lease_until: Time,
}

impl<'a> ClaimedView<'a> {
    pub fn new(claimed: &'a Claimed, eye: &Eye, until: Timestamp) -> Self {
        Self {
            task: TaskView::new(&claimed.task, eye),
            fence: claimed.claim.fence,
            token: format!("{:016x}", claimed.claim.token),
            lease_until: Time(until),
        }
    }
}

/// Why a task is where it is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Why")]
pub struct WhyView<'a> {
    #[schemars(schema_with = "schema::state")]
    state: State,
    /// A stable word; null when it has ended or runs undisturbed.
    reason: Option<&'static str>,
    detail: &'a str,
    since: Option<Time>,
    /// What a person can do about it.
    hint: Option<&'a str>,
}

impl<'a> From<&'a Why> for WhyView<'a> {
    fn from(why: &'a Why) -> Self {
        Self {
            state: why.state,
            reason: why.reason,
            detail: &why.detail,
            since: why.since.map(Time),
            hint: why.hint.as_deref(),
        }
    }
}

/// Why somebody does it, for the audit log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CancelBody {
    pub reason: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryBody {
    /// Instead of the task's own; needs the admin role for types whose payload says what to run.
    #[schemars(schema_with = "schema::json")]
    pub payload: Option<Json>,
    pub reason: Option<String>,
}

/// Which output, and whether to stay for more.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutputQuery {
    /// Number of the attempt; the last one when absent.
    pub attempt: Option<u32>,
    /// Stream it as server-sent events until the attempt has ended.
    pub follow: bool,
}

/// One item of a batch's answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BatchItem")]
pub struct BatchItemShape {
    /// Position in the request.
    index: usize,
    /// What the item alone would have been answered.
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Existing>")]
    task: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::problem::ProblemView<'static>>")]
    error: Option<()>,
}

/// One item per item of the request, in its order.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BatchAnswer")]
pub struct BatchShape {
    items: Vec<BatchItemShape>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use matins_core::NewTask;

    use super::super::Secrets;
    use super::*;

    fn names(json: &str) -> BTreeSet<String> {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        value.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn an_answer_from_the_ledger_has_every_field_and_only_the_known_ones_filled() {
        let at = Timestamp::from_second(1_800_000_000).unwrap();
        let id = TaskId(uuid::Uuid::now_v7());
        let entry = matins_core::store::LedgerEntry {
            kind: "sync".into(),
            execution_key: "k".into(),
            task_id: id,
            state: State::Completed,
            result: Some(Json::trusted(r#"{"n":18446744073709551615}"#)),
            at,
        };
        let eye = eye(at);
        let answer = Answer { deduplicated: true, ..answer(entry.task()) };
        let view = AnswerView { answer: &answer, eye: &eye, sight: Sight::Full };
        let json = serde_json::to_string(&view).unwrap();
        let full = NewTask::new(id, "sync", Json::null(), at);
        let task = Task::from_new(&full, at);
        let whole = serde_json::to_string(&TaskView::new(&task, &eye)).unwrap();
        assert_eq!(names(&json), names(&whole));
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let filled: BTreeSet<&str> = value
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| name.as_str())
            .collect();
        let known =
            ["id", "type", "execution_key", "state", "result", "finished_at", "deduplicated"];
        assert_eq!(filled, BTreeSet::from(known));
        assert!(json.contains("18446744073709551615"));
    }

    fn eye(now: Timestamp) -> Eye {
        Eye { rules: Arc::default(), now, secrets: Secrets::Shown }
    }

    fn answer(task: Task) -> Answer {
        Answer { task, deduplicated: false, replaced: false }
    }

    #[test]
    fn an_enqueue_only_token_sees_no_more_than_id_and_state_of_others_tasks() {
        let at = Timestamp::from_second(1_800_000_000).unwrap();
        let mut new = NewTask::new(TaskId(uuid::Uuid::now_v7()), "t", Json::string("secret"), at);
        new.created_by = "other".into();
        let eye = eye(at);
        let mut answer = answer(Task::from_new(&new, at));
        for deduplicated in [true, false] {
            answer.deduplicated = deduplicated;
            let sight = Sight::Own("shop");
            let view = AnswerView { answer: &answer, eye: &eye, sight };
            let json = serde_json::to_string(&view).unwrap();
            assert_eq!(names(&json), ["id", "state", "deduplicated"].map(str::to_owned).into());
        }
    }
}
