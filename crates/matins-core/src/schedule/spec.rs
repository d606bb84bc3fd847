//! What may be written as a schedule, and its ready-to-use form.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::blackout::{Blackouts, Rule, step};
use super::{CatchUp, CatchUpWindow, ScheduleSpec, ScheduleState};
use crate::cron::{CronError, Fire, Label, Recurrence, Timetable, Zone, ZoneError};
use crate::limits::{Limits, RETRIES_MAX};
use crate::request::{
    FieldError, check_key, check_name, check_payload, check_priority, check_tags,
};
use crate::template::{self, Template, TemplateError};

/// Most occurrences that may be made up for after one downtime.
const CATCH_UP_MAX: u32 = 10_000;
/// Most tasks that may wait behind a running one.
const OVERLAP_MAX: u32 = 100_000;
const BLACKOUTS_MAX: usize = 100;
const NOTE_BYTES_MAX: usize = 4_096;
/// Blackouts in a row that are looked past for a fire that is not in one.
const BLACKOUT_SEARCH_MAX: usize = 1_000;

/// A schedule that cannot be accepted: which key, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SpecError {
    pub field: String,
    /// Stable code of the wire.
    pub code: &'static str,
    pub message: String,
}

impl SpecError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), code: "invalid_field", message: message.into() }
    }

    fn never_fires(field: &str, message: impl Into<String>) -> Self {
        Self { code: "never_fires", ..Self::new(field, message) }
    }

    fn template(field: &str, error: &TemplateError) -> Self {
        Self::new(field, error.to_string())
    }
}

impl From<FieldError> for SpecError {
    fn from(error: FieldError) -> Self {
        let code = if error.too_large { "too_large" } else { "invalid_field" };
        Self { field: error.field, code, message: error.message }
    }
}

impl From<CronError> for SpecError {
    fn from(error: CronError) -> Self {
        Self { field: "schedule".to_owned(), code: error.code(), message: error.to_string() }
    }
}

impl From<ZoneError> for SpecError {
    fn from(error: ZoneError) -> Self {
        Self { field: "timezone".to_owned(), code: error.code(), message: error.to_string() }
    }
}

/// A checked schedule: everything parsed, nothing left to go wrong.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub(super) recurrence: Recurrence,
    pub(super) blackouts: Blackouts,
    pub(super) payload: Template,
    pub(super) key: Option<Template>,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    catch_up_window: CatchUpWindow,
}

impl ScheduleSpec {
    /// Checks every key. `anchor` is what `@every` counts from.
    pub fn prepare(&self, anchor: Timestamp, limits: &Limits) -> Result<Prepared, SpecError> {
        check_name("name", &self.name)?;
        let timetable = Timetable::parse(&self.schedule)?;
        let zone = Zone::parse(self.zone_name())?;
        self.check_task(limits)?;
        self.check_policy()?;
        let mut blackouts = Blackouts::default();
        if self.blackout.len() > BLACKOUTS_MAX {
            return Err(SpecError::new("blackout", format!("at most {BLACKOUTS_MAX}")));
        }
        for (n, blackout) in self.blackout.iter().enumerate() {
            blackouts.rules.push(Rule::parse(blackout).map_err(|problem| {
                SpecError::new(format!("blackout[{n}].{}", problem.end), problem.to_string())
            })?);
        }
        let payload = Template::parse_json(&self.payload)
            .map_err(|error| SpecError::template("payload", &error))?;
        let key = self.execution_key.as_deref().map(Template::parse).transpose();
        let key = key.map_err(|error| SpecError::template("execution_key", &error))?;
        // The longest label there is, so that a key which fits here fits always.
        let sample = template::sample(&zone, &self.name, "2026-09-30T23:59:59Z#e4294967295");
        if let Some(key) = &key {
            let rendered = key.render(&sample);
            let rendered =
                rendered.map_err(|error| SpecError::template("execution_key", &error))?;
            check_key("execution_key", &rendered, limits)?;
        }
        Ok(Prepared {
            recurrence: Recurrence::new(timetable, zone, self.dst, anchor),
            blackouts,
            payload,
            key,
            start: self.start,
            end: self.end,
            catch_up_window: self.catch_up_window,
        })
    }

    fn check_task(&self, limits: &Limits) -> Result<(), SpecError> {
        check_name("type", &self.kind)?;
        check_payload(&self.payload, limits)?;
        if let Some(pool) = &self.pool {
            check_name("pool", pool)?;
        }
        check_priority(self.priority)?;
        check_tags(&self.tags)?;
        if self.max_retries.is_some_and(|retries| retries > RETRIES_MAX) {
            return Err(SpecError::new("max_retries", format!("expected at most {RETRIES_MAX}")));
        }
        if self.note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
            return Err(SpecError::new("note", format!("at most {NOTE_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    fn check_policy(&self) -> Result<(), SpecError> {
        if !(1..=CATCH_UP_MAX).contains(&self.catch_up_max) {
            return Err(SpecError::new("catch_up_max", format!("expected 1 to {CATCH_UP_MAX}")));
        }
        if !(1..=OVERLAP_MAX).contains(&self.overlap_max) {
            return Err(SpecError::new("overlap_max", format!("expected 1 to {OVERLAP_MAX}")));
        }
        if self.catch_up == CatchUp::None && self.grace.get() < Duration::from_secs(1) {
            let message = "expected at least 1s with catch_up none, or nothing would ever fire";
            return Err(SpecError::new("grace", message));
        }
        if let (Some(start), Some(end)) = (self.start, self.end)
            && start >= end
        {
            return Err(SpecError::new("end", "must lie after start"));
        }
        Ok(())
    }
}

impl Prepared {
    pub const fn recurrence(&self) -> &Recurrence {
        &self.recurrence
    }

    pub const fn zone(&self) -> &Zone {
        self.recurrence.zone()
    }

    /// The first occurrence after `instant`, between `start` and `end`, in a blackout or not.
    pub fn next_after(&self, instant: Timestamp) -> Option<Fire> {
        let fire = self.recurrence.next_after(self.after_start(instant))?;
        self.end.is_none_or(|end| fire.time < end).then_some(fire)
    }

    /// The first occurrence after `instant` that no blackout swallows.
    pub fn next_open(&self, instant: Timestamp) -> Option<Fire> {
        let mut after = instant;
        for _ in 0..BLACKOUT_SEARCH_MAX {
            let fire = self.next_after(after)?;
            match self.blackout_at(fire.time) {
                None => return Some(fire),
                Some(until) => after = step(until, -1),
            }
        }
        None
    }

    /// Refuses what can never fire after `now`.
    pub fn check_fires_after(&self, now: Timestamp) -> Result<(), SpecError> {
        if self.next_open(now).is_some() {
            return Ok(());
        }
        if self.next_after(now).is_some() {
            let message = "can never fire: every occurrence lies in a blackout";
            return Err(SpecError::never_fires("blackout", message));
        }
        if self.recurrence.next_after(now).is_some() {
            let message = "can never fire: no occurrence lies between now, start and end";
            return Err(SpecError::never_fires("end", message));
        }
        let message = format!("can never fire: it names no time after {now:.0}");
        Err(SpecError::never_fires("schedule", message))
    }

    /// The end of the blackout that `instant` lies in.
    pub(super) fn blackout_at(&self, instant: Timestamp) -> Option<Timestamp> {
        self.blackouts.at(self.zone().rules(), instant).map(|interval| interval.to)
    }

    /// `instant`, or the last moment before `start` when that is later.
    pub(super) fn after_start(&self, instant: Timestamp) -> Timestamp {
        self.start.map_or(instant, |start| instant.max(step(start, -1)))
    }

    /// `instant`, or the last moment before `end` when that is earlier.
    pub(super) fn before_end(&self, instant: Timestamp) -> Timestamp {
        self.end.map_or(instant, |end| instant.min(step(end, -1)))
    }

    pub(super) fn has_ended(&self, now: Timestamp) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    /// Where deciding goes on. An elapsed schedule follows its cursor. A wall-clock one also waits
    /// until time passes everything it ever decided: after a step of the clock, and after a change
    /// of zone that would bring the reading of its last label round again.
    pub(super) fn resume_after(&self, state: &ScheduleState) -> Timestamp {
        if self.recurrence.timetable().is_elapsed() {
            return state.cursor;
        }
        let label = state.last_label.as_ref().and_then(|label| label.parse::<Label>().ok());
        let passed = label.and_then(|label| self.recurrence.passed(label));
        passed.map_or(state.high_water, |passed| passed.max(state.high_water))
    }

    /// How old an occurrence may be and still be made up for. `newest` is the newest late one.
    pub(super) fn window(&self, newest: &Fire) -> Duration {
        const DAY: Duration = Duration::from_secs(86_400);
        match self.catch_up_window {
            CatchUpWindow::Within(span) => span.get(),
            CatchUpWindow::Auto => {
                let next = self.recurrence.next_after(newest.time).map(|next| next.time);
                let before = || self.recurrence.previous(newest.time).map(|before| before.time);
                let period = match next {
                    Some(next) => next.duration_since(newest.time),
                    // The last one there is: as long as the period before it.
                    None => {
                        before().map_or(SignedDuration::ZERO, |b| newest.time.duration_since(b))
                    }
                };
                Duration::try_from(period).unwrap_or(DAY).max(DAY)
            }
        }
    }
}
