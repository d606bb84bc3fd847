//! The task of an occurrence.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::{Prepared, ScheduleState};
use crate::Json;
use crate::cron::{Fire, Label};
use crate::lifecycle::later;
use crate::limits::Limits;
use crate::request::{EnqueueRequest, FieldError, TypeDefaults};
use crate::task::{NewTask, Origin, TaskId};
use crate::template::Context;

/// What a task needs that a schedule does not say.
pub struct Maker<'a> {
    pub limits: &'a Limits,
    pub defaults: &'a TypeDefaults,
    /// Ids for new tasks.
    pub fresh: &'a mut dyn FnMut() -> TaskId,
}

impl Maker<'_> {
    /// The task that stands for `label`, not due before `run_at`.
    pub(super) fn task(
        &mut self,
        state: &ScheduleState,
        prepared: &Prepared,
        label: Label,
        time: Timestamp,
        run_at: Timestamp,
    ) -> Result<NewTask, FieldError> {
        let spec = &state.spec;
        let request = EnqueueRequest {
            kind: spec.kind.clone(),
            payload: Some(payload(state, prepared, label, time)?),
            execution_key: execution_key(state, prepared, label, time)?,
            run_at: Some(run_at),
            pool: spec.pool.clone(),
            priority: Some(spec.priority),
            max_retries: spec.max_retries,
            timeout: spec.timeout,
            tags: spec.tags.clone(),
            ..EnqueueRequest::default()
        };
        let creator = format!("schedule:{}", spec.name).into();
        let id = (self.fresh)();
        let task = request.resolve(self.limits, self.defaults, id, creator, run_at)?;
        let origin = Origin {
            schedule_uid: state.uid,
            schedule: spec.name.as_str().into(),
            label: label.to_string(),
            time,
        };
        Ok(NewTask { origin: Some(origin), ..task })
    }
}

fn payload(
    state: &ScheduleState,
    prepared: &Prepared,
    label: Label,
    time: Timestamp,
) -> Result<Json, FieldError> {
    if prepared.payload.is_constant() {
        return Ok(state.spec.payload.clone());
    }
    let key = label.to_string();
    let text = prepared.payload.render(&context(state, prepared, label, &key, time));
    text.map(Json::trusted).map_err(|error| FieldError::new("payload", error.to_string()))
}

/// The key of the occurrence's task, if the schedule gives it one.
pub(super) fn execution_key(
    state: &ScheduleState,
    prepared: &Prepared,
    label: Label,
    time: Timestamp,
) -> Result<Option<String>, FieldError> {
    let Some(template) = &prepared.key else { return Ok(None) };
    let key = label.to_string();
    let text = template.render(&context(state, prepared, label, &key, time));
    text.map(Some).map_err(|error| FieldError::new("execution_key", error.to_string()))
}

fn context<'a>(
    state: &'a ScheduleState,
    prepared: &'a Prepared,
    label: Label,
    key: &'a str,
    time: Timestamp,
) -> Context<'a> {
    let zone = prepared.zone();
    Context { time, zone, date: label.date(zone), key, schedule: &state.spec.name }
}

/// When the task of a fire is due: its nominal time plus its share of the jitter, and not before
/// `now`. The share depends on schedule and label alone and ends before the next occurrence.
pub(super) fn run_at(
    state: &ScheduleState,
    prepared: &Prepared,
    fire: &Fire,
    now: Timestamp,
) -> Timestamp {
    let jitter = state.spec.jitter.get();
    if jitter.is_zero() {
        return now;
    }
    let next = prepared.recurrence.next_after(fire.time);
    let slot = next.map_or(jitter, |next| {
        Duration::try_from(next.time.duration_since(fire.time)).unwrap_or(jitter)
    });
    let share = share(state.uid, &fire.label.to_string());
    let delay = (jitter.min(slot).as_micros() * u128::from(share)) >> 64;
    later(fire.time, Duration::from_micros(delay as u64)).max(now)
}

/// A number that looks random and is always the same: FNV-1a over both names, then mixed so that
/// labels which differ in one digit lie far apart.
pub(super) fn share(uid: Uuid, label: &str) -> u64 {
    let bytes = uid.as_bytes().iter().chain(label.as_bytes());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
