//! What people, files and clocks do to a schedule.

use jiff::Timestamp;
use uuid::Uuid;

use super::decide::{Look, Pass, arm, decide, plan, put_on_pause};
use super::record::{Recorder, Verdict};
use super::start::Maker;
use super::{
    Balance, DueSchedule, FirePlan, ManagedBy, OccurrenceKind, OnResume, Prepared, Reason,
    ScheduleSpec, ScheduleState, ScheduleStatus, SpecError, Start,
};
use crate::cron::{Fire, Label, Timetable, tz_release};
use crate::limits::Limits;

/// How far the clock may lie behind a cursor without having been set back.
const STEP_SECONDS_MIN: i64 = 2;

/// A new schedule: it begins now.
pub fn create(
    uid: Uuid,
    spec: ScheduleSpec,
    managed_by: ManagedBy,
    limits: &Limits,
    now: Timestamp,
) -> Result<ScheduleState, SpecError> {
    let anchor = whole_second(now);
    let prepared = spec.prepare(anchor, limits)?;
    check_fires_after(&prepared, managed_by, now)?;
    let mut state = ScheduleState {
        uid,
        status: ScheduleStatus::Active,
        managed_by,
        rev: 1,
        created_at: now,
        anchor,
        cursor: now,
        high_water: now,
        last_label: None,
        failures_forgiven: 0,
        epoch: 0,
        next_due: None,
        next_fire: None,
        paused_since: None,
        balance: Balance::default(),
        zone_table: tz_release().to_owned(),
        spec,
    };
    start_or_pause(&mut state, &prepared, now);
    Ok(state)
}

/// Refuses what can never fire again. A file goes on naming what has had its last fire, long
/// after: there it is exhausted, not wrong.
fn check_fires_after(
    prepared: &Prepared,
    managed_by: ManagedBy,
    instant: Timestamp,
) -> Result<(), SpecError> {
    match managed_by {
        ManagedBy::File => Ok(()),
        ManagedBy::Api => prepared.check_fires_after(instant),
    }
}

/// Replaces the specification, or nothing when it is the same. What came due under the old one is
/// decided under the old one; the new one begins after that and after now. A pause outlives the
/// edit unless `paused` itself was changed.
pub fn edit(
    due: &DueSchedule,
    spec: ScheduleSpec,
    managed_by: ManagedBy,
    look: &Look<'_>,
    maker: &mut Maker<'_>,
) -> Result<Option<FirePlan>, SpecError> {
    let old = &due.state;
    let enabled = old.status != ScheduleStatus::Disabled;
    if enabled && old.spec == spec && old.managed_by == managed_by {
        return Ok(None);
    }
    let same_rule =
        Timetable::parse(&old.spec.schedule).ok() == Timetable::parse(&spec.schedule).ok();
    let anchor = if same_rule && enabled { old.anchor } else { whole_second(look.now) };
    let prepared = spec.prepare(anchor, maker.limits)?;
    let flipped = old.spec.paused != spec.paused;
    let mut plan = match old.spec.prepare(old.anchor, maker.limits) {
        Ok(before) => match old.status {
            ScheduleStatus::Active => decide(due, &before, look, maker),
            ScheduleStatus::Paused if flipped && !spec.paused => resume(due, &before, look, maker),
            ScheduleStatus::Paused => over(due, &before, look, maker, Reason::Paused),
            ScheduleStatus::Disabled | ScheduleStatus::Exhausted => empty(due),
        },
        Err(_) => empty(due),
    };
    let state = &mut plan.state;
    let was_paused = state.status == ScheduleStatus::Paused;
    state.cursor = state.cursor.max(look.now);
    state.high_water = state.high_water.max(state.cursor);
    state.anchor = anchor;
    state.managed_by = managed_by;
    // A note that explains a pause stays with it.
    let note = if was_paused { state.spec.note.take() } else { None };
    state.spec = spec;
    state.spec.note = state.spec.note.take().or(note);
    check_fires_after(&prepared, managed_by, prepared.resume_after(state))?;
    if was_paused && !flipped {
        state.next_due = None;
        state.next_fire = None;
    } else {
        state.paused_since = None;
        start_or_pause(state, &prepared, look.now);
    }
    Ok(Some(plan))
}

/// Its file no longer names it.
pub fn disable(
    due: &DueSchedule,
    prepared: &Prepared,
    look: &Look<'_>,
    maker: &mut Maker<'_>,
) -> FirePlan {
    let mut plan = match due.state.status {
        ScheduleStatus::Active => over(due, prepared, look, maker, Reason::Ended),
        ScheduleStatus::Paused => over(due, prepared, look, maker, Reason::Paused),
        ScheduleStatus::Disabled | ScheduleStatus::Exhausted => empty(due),
    };
    plan.state.status = ScheduleStatus::Disabled;
    plan.state.paused_since = None;
    plan.state.next_due = None;
    plan.state.next_fire = None;
    plan
}

/// Nothing fires until [`resume`], which decides what came due meanwhile.
pub fn pause(state: &ScheduleState, note: Option<String>, now: Timestamp) -> FirePlan {
    let mut state = state.clone();
    state.rev += 1;
    let note = note.or(state.spec.note.take());
    if matches!(state.status, ScheduleStatus::Active | ScheduleStatus::Paused) {
        let since = state.paused_since.unwrap_or(now);
        put_on_pause(&mut state, note.clone().unwrap_or_default(), since);
    }
    state.spec.note = note;
    plan(state)
}

/// Ends a pause; `on_resume` says what becomes of its occurrences.
pub fn resume(
    due: &DueSchedule,
    prepared: &Prepared,
    look: &Look<'_>,
    maker: &mut Maker<'_>,
) -> FirePlan {
    let mut pass = Pass::new(due, prepared, look);
    if pass.state.status != ScheduleStatus::Paused {
        return pass.unchanged();
    }
    pass.state.status = ScheduleStatus::Active;
    pass.state.paused_since = None;
    pass.state.spec.paused = false;
    pass.state.spec.note = None;
    pass.state.failures_forgiven = due.live.failures_in_row;
    match pass.state.spec.on_resume {
        OnResume::Skip => pass.pass_over(Verdict::Skipped(Reason::Paused)),
        OnResume::Latest => pass.cover(super::CatchUp::Latest),
        OnResume::All => pass.cover(super::CatchUp::All),
    }
    pass.finish(maker)
}

/// The clock has been set back behind the cursor of an elapsed schedule: a new epoch begins, in
/// which it goes on from now. To be called for every schedule when a step is noticed, and at
/// start; `None` for schedules that it does not concern.
pub fn step_back(state: &ScheduleState, limits: &Limits, now: Timestamp) -> Option<FirePlan> {
    let behind = state.cursor.as_second() - now.as_second();
    let goes_on = matches!(state.status, ScheduleStatus::Active | ScheduleStatus::Paused);
    if !goes_on || behind <= STEP_SECONDS_MIN {
        return None;
    }
    let mut state = state.clone();
    let timetable = Timetable::parse(&state.spec.schedule).ok().filter(Timetable::is_elapsed)?;
    if let Some(seconds) = timetable.interval_seconds() {
        // The beat of an interval goes on in both directions.
        let ahead = (state.anchor.as_second() - now.as_second()).max(0);
        let periods = (ahead as u64).div_ceil(seconds);
        let earlier = state.anchor.as_second() - (periods * seconds) as i64;
        state.anchor = Timestamp::from_second(earlier).ok()?;
    }
    let prepared = state.spec.prepare(state.anchor, limits).ok()?;
    state.rev += 1;
    state.epoch += 1;
    state.high_water = state.high_water.max(state.cursor);
    state.cursor = now;
    if state.status == ScheduleStatus::Active {
        arm(&mut state, &prepared);
    }
    Some(plan(state))
}

/// The zone table has changed since the next time was computed.
pub fn rearm(state: &ScheduleState, limits: &Limits) -> Option<FirePlan> {
    if state.status != ScheduleStatus::Active || state.zone_table == tz_release() {
        return None;
    }
    let prepared = state.spec.prepare(state.anchor, limits).ok()?;
    let mut state = state.clone();
    state.rev += 1;
    arm(&mut state, &prepared);
    Some(plan(state))
}

/// What an active schedule must be armed for by its timetable and its cursor; an error when this
/// build cannot read it.
pub fn armed_for(state: &ScheduleState, limits: &Limits) -> Result<Option<Timestamp>, SpecError> {
    let prepared = state.spec.prepare(state.anchor, limits)?;
    let mut state = state.clone();
    arm(&mut state, &prepared);
    Ok(state.next_due)
}

/// Starts a task by hand, in the name of `label` or of this very moment.
pub fn trigger(
    state: &ScheduleState,
    prepared: &Prepared,
    label: Option<&str>,
    now: Timestamp,
    maker: &mut Maker<'_>,
) -> Result<FirePlan, SpecError> {
    let (label, time) = match label {
        Some(text) => {
            let fire = occurrence(prepared, text)?;
            (fire.label, fire.time)
        }
        None => (prepared.recurrence.label_of(now), whole_second(now)),
    };
    let mut recorder = Recorder::new(state, OccurrenceKind::Manual);
    let task = maker.task(state, prepared, label, time, now)?;
    recorder.fired(label, time, task.id, now);
    let mut plan = plan(ScheduleState { rev: state.rev + 1, ..state.clone() });
    plan.starts.push(Start { task, label: label.to_string() });
    plan.occurrences = recorder.occurrences;
    Ok(plan)
}

fn occurrence(prepared: &Prepared, text: &str) -> Result<Fire, SpecError> {
    let label: Label = text
        .parse()
        .map_err(|error: crate::cron::LabelError| SpecError::new("label", error.to_string()))?;
    prepared.recurrence.resolve(label).ok_or_else(|| {
        let (before, after) = prepared.recurrence.around(label);
        let near: Vec<String> =
            [before, after].into_iter().flatten().map(|fire| fire.label.to_string()).collect();
        let near = match near.is_empty() {
            true => "it has none".to_owned(),
            false => format!("the nearest are {}", near.join(" and ")),
        };
        SpecError::new("label", format!("{text} is no occurrence of this schedule; {near}"))
    })
}

/// Everything undecided up to now is skipped for `reason`.
fn over(
    due: &DueSchedule,
    prepared: &Prepared,
    look: &Look<'_>,
    maker: &mut Maker<'_>,
    reason: Reason,
) -> FirePlan {
    let mut pass = Pass::new(due, prepared, look);
    let status = pass.state.status;
    pass.pass_over(Verdict::Skipped(reason));
    let mut plan = pass.finish(maker);
    plan.state.status = status;
    plan
}

fn empty(due: &DueSchedule) -> FirePlan {
    plan(ScheduleState { rev: due.state.rev + 1, ..due.state.clone() })
}

fn start_or_pause(state: &mut ScheduleState, prepared: &Prepared, now: Timestamp) {
    state.status = ScheduleStatus::Active;
    arm(state, prepared);
    if state.spec.paused {
        state.status = ScheduleStatus::Paused;
        state.paused_since = Some(now);
        state.next_due = None;
        state.next_fire = None;
    }
}

fn whole_second(now: Timestamp) -> Timestamp {
    let second = now.as_second() - i64::from(now.subsec_nanosecond() < 0);
    Timestamp::from_second(second).unwrap_or(now)
}
