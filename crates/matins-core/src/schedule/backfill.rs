//! Occurrences of the past, started by a person.
//!
//! They are computed with today's timetable and rules, carry `kind: backfill`, stay out of the
//! balance and never move the cursor.

use std::collections::HashMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::decide::plan;
use super::record::Recorder;
use super::start::{Maker, execution_key, share};
use super::{FirePlan, Occurrence, OccurrenceKind, Prepared, ScheduleState, SpecError, Start};
use crate::cron::Fire;
use crate::task::{NewTask, State, TaskId};

/// Most occurrences of one backfill.
const BACKFILL_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum BackfillMode {
    /// Those that never fired.
    #[default]
    #[serde(rename = "missing")]
    Missing,
    /// And those whose task has failed.
    #[serde(rename = "missing+failed")]
    MissingFailed,
    /// Every one.
    #[serde(rename = "all")]
    All,
}

/// One occurrence to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillItem {
    pub fire: Fire,
    /// The key its task will have, for the dry run to look up.
    pub execution_key: Option<String>,
}

/// What a backfill would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backfill {
    /// Oldest first.
    pub items: Vec<BackfillItem>,
    /// Fired before and therefore left alone.
    pub fired: u64,
    /// Their tasks are pending or running, whatever the mode.
    pub live: u64,
    pub blackout: u64,
    /// Not due yet: they will fire by themselves.
    pub future: u64,
}

/// Plans a backfill of occurrences with nominal time in `[from, to)`. `fired` is what the store
/// knows of fired occurrences in that range, of any kind.
pub fn backfill(
    state: &ScheduleState,
    prepared: &Prepared,
    range: (Timestamp, Timestamp),
    mode: BackfillMode,
    fired: &[(Occurrence, Option<State>)],
    now: Timestamp,
) -> Result<Backfill, SpecError> {
    let (from, to) = range;
    if from >= to {
        return Err(SpecError::new("to", "must lie after from; the range is half-open"));
    }
    let mut known: HashMap<Timestamp, Vec<Option<State>>> = HashMap::new();
    for (occurrence, state) in fired {
        known.entry(occurrence.time).or_default().push(*state);
    }
    let after = prepared.after_start(super::blackout::step(from, -1));
    let until = prepared.before_end(super::blackout::step(to, -1));
    let past = until.min(now);
    let mut found = Backfill {
        future: prepared.recurrence.tally(past.max(after), until).fires,
        ..Backfill::default()
    };
    let due = prepared.recurrence.tally(after, past).fires;
    if due > 10 * BACKFILL_MAX as u64 {
        return Err(too_many(due));
    }
    for fire in prepared.recurrence.between(after, past) {
        let tasks = known.get(&fire.time).map_or(&[][..], Vec::as_slice);
        let is_live = |state: &Option<State>| state.is_some_and(State::is_live);
        // A task whose row was pruned had completed; what failed is kept.
        let ended_badly =
            |state: &Option<State>| matches!(state, Some(State::Failed | State::Cancelled));
        let failed = || tasks.iter().all(ended_badly) && tasks.contains(&Some(State::Failed));
        if tasks.iter().any(is_live) {
            found.live += 1;
        } else if prepared.blackout_at(fire.time).is_some() {
            found.blackout += 1;
        } else if tasks.is_empty()
            || mode == BackfillMode::All
            || (mode == BackfillMode::MissingFailed && failed())
        {
            let execution_key = execution_key(state, prepared, fire.label, fire.time)?;
            found.items.push(BackfillItem { fire, execution_key });
        } else {
            found.fired += 1;
        }
    }
    if found.items.len() > BACKFILL_MAX {
        return Err(too_many(found.items.len() as u64));
    }
    Ok(found)
}

fn too_many(count: u64) -> SpecError {
    let message = format!("names {count} occurrences; at most {BACKFILL_MAX} in one backfill");
    SpecError::new("from", message)
}

/// The id of the task that a backfill starts for a label: always the same, so that a step which
/// is repeated finds what it started before its progress was stored.
pub fn backfill_task_id(operation: Uuid, label: &str) -> TaskId {
    let (_, of_operation) = operation.as_u64_pair();
    let id = Uuid::from_u64_pair(share(operation, label), of_operation);
    let builder = uuid::Builder::from_bytes(id.into_bytes()).with_version(uuid::Version::Custom);
    TaskId(builder.with_variant(uuid::Variant::RFC4122).into_uuid())
}

/// Of what fired, the tasks that this operation itself has started, with their nominal times.
pub fn backfilled_by(
    operation: Uuid,
    fired: &[(Occurrence, Option<State>)],
) -> Vec<(Timestamp, TaskId)> {
    let own = |occurrence: &Occurrence| {
        let id = backfill_task_id(operation, &occurrence.label);
        (occurrence.task_id == Some(id)).then_some((occurrence.time, id))
    };
    fired.iter().filter_map(|(occurrence, _)| own(occurrence)).collect()
}

/// Starts some of the items of an operation in one transaction.
pub fn backfill_plan(
    state: &ScheduleState,
    prepared: &Prepared,
    operation: Uuid,
    items: &[BackfillItem],
    now: Timestamp,
    maker: &mut Maker<'_>,
) -> Result<FirePlan, SpecError> {
    let mut recorder = Recorder::new(state, OccurrenceKind::Backfill);
    let mut plan = plan(ScheduleState { rev: state.rev + 1, ..state.clone() });
    for item in items {
        let label = item.fire.label.to_string();
        let task = maker.task(state, prepared, item.fire.label, item.fire.time, now)?;
        let task = NewTask { id: backfill_task_id(operation, &label), ..task };
        recorder.fired(item.fire.label, item.fire.time, task.id, now);
        plan.starts.push(Start { task, label });
    }
    plan.occurrences = recorder.occurrences;
    Ok(plan)
}
