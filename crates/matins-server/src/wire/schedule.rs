//! Schedules, their occurrences, previews and backfills. The keys of a schedule are the core's,
//! the same in YAML, API and command line.

use jiff::Timestamp;
use matins_core::Json;
use matins_core::cron::{Dst, Note, PreviewFire};
use matins_core::duration::{Span, Timeout};
use matins_core::page::Page;
use matins_core::schedule::{
    BackfillMode, Balance, Blackout, CatchUp, CatchUpWindow, DueSchedule, ManagedBy, Occurrence,
    OnResume, Overlap, Reason, ScheduleSpec, ScheduleStatus,
};
use matins_core::task::TaskId;
use matins_runtime::client::schedules::{BackfillPlan, Triggered};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Nominal, Secrets, Time, schema};

/// A schedule. What is absent has its default.
// Describes the core's `ScheduleSpec`, which knows no schemas; a test compares the two.
#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = defaults)]
#[allow(dead_code, reason = "only its schema is used")]
pub struct ScheduleFields {
    /// The name in the path, if given.
    name: String,
    /// A cron expression, `@daily`, `@every 45m` or `@at 2027-01-01T09:00`.
    schedule: String,
    /// IANA name; UTC when absent.
    timezone: Option<String>,
    r#type: String,
    #[schemars(schema_with = "schema::json")]
    payload: Json,
    /// Template of the key of each occurrence.
    execution_key: Option<String>,
    pool: Option<String>,
    priority: i16,
    /// Lateness that still counts as on time; 60 s.
    #[schemars(schema_with = "schema::duration")]
    grace: Span,
    #[schemars(schema_with = "schema::catch_up")]
    catch_up: CatchUp,
    #[schemars(schema_with = "schema::window")]
    catch_up_window: CatchUpWindow,
    catch_up_max: u32,
    #[schemars(schema_with = "schema::overlap")]
    overlap: Overlap,
    overlap_max: u32,
    #[schemars(schema_with = "schema::dst")]
    dst: Dst,
    #[schemars(schema_with = "schema::duration")]
    jitter: Span,
    /// Pause after that many failed tasks in a row; 0: never.
    pause_after_failures: u32,
    start: Option<Time>,
    end: Option<Time>,
    /// Times of day, or local date-times, in which nothing fires.
    #[schemars(schema_with = "schema::blackout")]
    blackout: Vec<Blackout>,
    #[schemars(schema_with = "schema::timeout")]
    timeout: Option<Timeout>,
    max_retries: Option<u32>,
    tags: Vec<String>,
    #[schemars(schema_with = "schema::on_resume")]
    on_resume: OnResume,
    paused: bool,
    note: Option<String>,
}

/// Takes the defaults from the core, which alone knows them.
fn defaults(schema: &mut Schema) {
    let spec = serde_json::to_value(ScheduleSpec::new("", "", "")).unwrap_or_default();
    schema.insert("required".to_owned(), ["schedule", "type"].as_slice().into());
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, property) in properties {
        let optional = !["name", "schedule", "type"].contains(&name.as_str());
        if let (true, Some(property)) = (optional, property.as_object_mut()) {
            property.insert("default".to_owned(), spec[name.as_str()].clone());
        }
    }
}

/// The core's schedule as a body.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct ScheduleBody(pub ScheduleSpec);

impl JsonSchema for ScheduleBody {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ScheduleBody".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        ScheduleFields::json_schema(generator)
    }
}

/// Occurrences decided since creation, by outcome; manual and backfilled ones stay out.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Balance")]
pub struct BalanceView {
    expected: u64,
    fired: u64,
    coalesced: u64,
    skipped: u64,
    missed: u64,
}

impl From<Balance> for BalanceView {
    fn from(balance: Balance) -> Self {
        Self {
            expected: balance.expected,
            fired: balance.fired,
            coalesced: balance.coalesced,
            skipped: balance.skipped,
            missed: balance.missed,
        }
    }
}

/// A schedule with what became of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Schedule")]
pub struct ScheduleView {
    #[serde(flatten)]
    #[schemars(with = "ScheduleFields")]
    spec: ScheduleSpec,
    /// `active`, `paused`, `disabled` (its file no longer names it) or `exhausted`.
    #[schemars(with = "String")]
    state: ScheduleStatus,
    next_fire: Option<Nominal>,
    /// `file` or `api`.
    #[schemars(with = "String")]
    managed_by: ManagedBy,
    created_at: Time,
    paused_since: Option<Time>,
    balance: BalanceView,
    /// Its tasks that are pending or running.
    active: u32,
    /// Its tasks that wait for the one before.
    held: u32,
    failures_in_row: u32,
}

impl ScheduleView {
    pub fn new(due: DueSchedule, secrets: Secrets) -> Self {
        let DueSchedule { state, live } = due;
        let mut spec = state.spec;
        spec.payload = secrets.payload(&spec.kind, &spec.payload).into_owned();
        // A zone is always said, also the one that nobody chose.
        spec.timezone = Some(spec.zone_name().to_owned());
        Self {
            spec,
            state: state.status,
            next_fire: state.next_fire.map(Nominal),
            managed_by: state.managed_by,
            created_at: Time(state.created_at),
            paused_since: state.paused_since.map(Time),
            balance: state.balance.into(),
            active: live.active,
            held: live.held,
            failures_in_row: live.failures_in_row,
        }
    }
}

/// Fields of an answer that a request may send back; they are read-only and ignored.
pub const READ_ONLY: [&str; 9] = [
    "state",
    "next_fire",
    "managed_by",
    "created_at",
    "paused_since",
    "balance",
    "active",
    "held",
    "failures_in_row",
];

#[derive(Debug, Serialize, JsonSchema)]
pub struct ScheduleList {
    schedules: Vec<ScheduleView>,
    next_cursor: Option<String>,
}

impl ScheduleList {
    pub fn new(page: Page<DueSchedule>, secrets: Secrets) -> Self {
        let page = page.map(|due| ScheduleView::new(due, secrets));
        Self { schedules: page.items, next_cursor: page.next }
    }
}

/// What became of one occurrence, or of a run of equal ones (`label` to `label_to`).
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Occurrence")]
pub struct OccurrenceView<'a> {
    schedule: &'a str,
    /// Unique within the schedule.
    label: &'a str,
    label_to: Option<&'a str>,
    count: u64,
    /// `scheduled`, `manual` or `backfill`.
    kind: &'static str,
    /// Nominal instant.
    time: Nominal,
    /// `fired`, `coalesced`, `skipped` or `missed`.
    outcome: &'static str,
    reason: Option<&'static str>,
    #[schemars(schema_with = "schema::optional_uuid")]
    task_id: Option<TaskId>,
    fired_at: Option<Time>,
}

impl<'a> From<&'a Occurrence> for OccurrenceView<'a> {
    fn from(occurrence: &'a Occurrence) -> Self {
        Self {
            schedule: &occurrence.schedule,
            label: &occurrence.label,
            label_to: occurrence.label_to.as_deref(),
            count: occurrence.count,
            kind: occurrence.kind.as_str(),
            time: Nominal(occurrence.time),
            outcome: occurrence.outcome.as_str(),
            reason: occurrence.reason.map(Reason::as_str),
            task_id: occurrence.task_id,
            fired_at: occurrence.fired_at.map(Time),
        }
    }
}

/// The occurrence that a trigger made.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Triggered")]
pub struct TriggerAnswer<'a> {
    #[serde(flatten)]
    occurrence: OccurrenceView<'a>,
    /// Its key had completed or is live: nothing new was started, `task_id` has the key.
    deduplicated: bool,
}

impl<'a> From<&'a Triggered> for TriggerAnswer<'a> {
    fn from(triggered: &'a Triggered) -> Self {
        let Triggered { occurrence, deduplicated } = triggered;
        Self { occurrence: occurrence.into(), deduplicated: *deduplicated }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OccurrenceList")]
pub struct OccurrenceList<'a> {
    occurrences: Vec<OccurrenceView<'a>>,
    next_cursor: Option<&'a str>,
}

impl<'a> From<&'a Page<Occurrence>> for OccurrenceList<'a> {
    fn from(page: &'a Page<Occurrence>) -> Self {
        Self {
            occurrences: page.items.iter().map(OccurrenceView::from).collect(),
            next_cursor: page.next.as_deref(),
        }
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PauseBody {
    /// Shown wherever the schedule is shown.
    pub note: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TriggerBody {
    /// Label of the occurrence that the run stands for.
    pub r#for: Option<String>,
}

/// Runs the occurrences of a half-open range of time.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackfillBody {
    pub from: Time,
    /// Excluded.
    pub to: Time,
    #[serde(default)]
    #[schemars(schema_with = "schema::backfill_mode")]
    pub mode: BackfillMode,
    /// How many may run at once; 1 when absent.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// Only tell what would be run.
    #[serde(default)]
    pub dry_run: bool,
}

/// Labels that a dry run shows.
const LABELS_SHOWN: usize = 100;

/// What a backfill would run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackfillDryRun {
    pub count: u64,
    /// Those whose key has completed, or is live: they would run nothing.
    pub deduplicated: u64,
    /// The first hundred of them, oldest first.
    pub labels: Vec<String>,
    /// Left alone: fired before.
    pub fired: u64,
    /// Left alone: their tasks are pending or running.
    pub live: u64,
    /// Left alone: in a blackout.
    pub blackout: u64,
    /// Left alone: not due yet.
    pub future: u64,
}

impl From<BackfillPlan> for BackfillDryRun {
    fn from(plan: BackfillPlan) -> Self {
        let BackfillPlan { plan, deduplicated } = plan;
        let labels = plan.items.iter().take(LABELS_SHOWN).map(|item| item.fire.label.to_string());
        Self {
            count: plan.items.len() as u64,
            deduplicated,
            labels: labels.collect(),
            fired: plan.fired,
            live: plan.live,
            blackout: plan.blackout,
            future: plan.future,
        }
    }
}

/// An expression to look at.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewBody {
    /// A cron expression, `@daily`, `@every 45m` or `@at 2027-01-01T09:00`.
    pub schedule: String,
    /// IANA name; UTC when absent.
    #[serde(default)]
    pub timezone: Option<String>,
    /// Fires strictly after this; now when absent.
    #[serde(default)]
    pub after: Option<Time>,
    /// 1 to 1000; 10 when absent.
    #[serde(default)]
    pub count: Option<usize>,
    #[serde(default)]
    #[schemars(schema_with = "schema::dst")]
    pub dst: Dst,
}

/// One coming fire.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Fire")]
pub struct FireView {
    utc: Nominal,
    /// The reading of the zone's clock, with its offset.
    local: String,
    /// `dst_gap`, `dst_fold`, `merged`.
    #[schemars(with = "Vec<String>")]
    notes: Vec<Note>,
}

impl From<PreviewFire> for FireView {
    fn from(fire: PreviewFire) -> Self {
        Self { utc: Nominal(fire.utc), local: fire.local, notes: fire.notes }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PreviewAnswer {
    pub fires: Vec<FireView>,
    pub schedule: String,
    pub timezone: String,
    pub after: Time,
    /// Release of the time zone table.
    pub zone_table: &'static str,
}

impl PreviewAnswer {
    pub fn new(fires: Vec<PreviewFire>, schedule: &str, timezone: &str, after: Timestamp) -> Self {
        Self {
            fires: fires.into_iter().map(FireView::from).collect(),
            schedule: schedule.to_owned(),
            timezone: timezone.to_owned(),
            after: Time(after),
            zone_table: matins_core::cron::tz_release(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_schema_names_exactly_the_keys_of_the_core() {
        let spec = ScheduleSpec::new("n", "@daily", "t");
        let value = serde_json::to_value(&spec).unwrap();
        let keys: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let schema = schemars::schema_for!(ScheduleFields);
        let properties = schema.get("properties").unwrap().as_object().unwrap();
        let described: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
        assert_eq!(keys, described);
    }
}
