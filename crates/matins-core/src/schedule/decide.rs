//! One look at a schedule: everything between its cursor and now is decided.
//!
//! ```text
//! cursor ──── late ──────────────┬──── on time ────┐
//!        missed │ coalesced │ fire│   fire  fire    now
//!        (window)   (newer)       now − grace
//! ```
//!
//! Order of the rules: freeze and pause; blackout; lateness (catch-up); overlap; jitter. What is
//! passed over becomes one record with a count, cut only where a blackout begins or ends. One look
//! has at most [`FIRES_MAX`] fires and [`RECORDS_MAX`] records; what is left then is due at once.
//!
//! The clock may be set back. A wall-clock schedule then waits until time passes its cursor. An
//! elapsed one goes on (see `step_back`): up to the high water, labels that fired are left alone,
//! the others are decided anew under the name of a new epoch.

use jiff::{SignedDuration, Timestamp};

use super::blackout::step;
use super::overlap::{Entry, Gate};
use super::record::{Recorder, Verdict};
use super::start::{Maker, run_at};
use super::{
    CatchUp, DueSchedule, FirePlan, Live, OccurrenceKind, Prepared, Reason, ScheduleState,
    ScheduleStatus, Start,
};
use crate::cron::{Fire, Label, LabelRange, tz_release};

const FIRES_MAX: usize = 1_000;
const RECORDS_MAX: usize = 1_000;

/// The circumstances of a look.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    pub now: Timestamp,
    /// The store is frozen.
    pub frozen: bool,
    /// Nominal times of occurrences that fired in earlier epochs of the clock, in order: those of
    /// [`decided_before`]. Empty when it answers `None`.
    pub fired_before: &'a [Timestamp],
}

/// The stretch `[from, to)` of which [`Look::fired_before`] must tell, if any: the clock was set
/// back over it.
pub fn decided_before(state: &ScheduleState, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let until = state.high_water.min(now);
    (state.epoch > 0 && state.cursor < until).then(|| (state.cursor, step(until, 1)))
}

/// Decides every occurrence up to now.
pub fn decide(
    due: &DueSchedule,
    prepared: &Prepared,
    look: &Look<'_>,
    maker: &mut Maker<'_>,
) -> FirePlan {
    let mut pass = Pass::new(due, prepared, look);
    if pass.state.status != ScheduleStatus::Active {
        return pass.unchanged();
    }
    if pass.has_failed_too_often() {
        let note = format!("paused after {} failures in a row", due.live.failures_in_row);
        return pass.paused(note);
    }
    pass.cover(due.state.spec.catch_up);
    pass.finish(maker)
}

/// What is to be done about a piece of the line, in order of time.
#[derive(Debug)]
enum Item {
    Fire(Fire),
    Over { labels: LabelRange, time: Timestamp, verdict: Verdict },
}

impl Item {
    const fn time(&self) -> Timestamp {
        match self {
            Self::Fire(fire) => fire.time,
            Self::Over { time, .. } => *time,
        }
    }
}

/// How the undecided occurrences of a stretch are treated.
#[derive(Debug, Clone, Copy)]
enum Treatment {
    Fire,
    Over(Verdict),
}

/// A look in progress.
pub(super) struct Pass<'a> {
    pub prepared: &'a Prepared,
    pub look: &'a Look<'a>,
    pub state: ScheduleState,
    live: Live,
    /// Of this timetable; an edit may have changed it since.
    fired_before: Vec<Timestamp>,
    items: Vec<Item>,
    fires: usize,
    /// Everything after this is undecided.
    from: Timestamp,
    /// Everything up to here has been given a treatment.
    until: Timestamp,
    full: bool,
}

impl<'a> Pass<'a> {
    pub(super) fn new(due: &DueSchedule, prepared: &'a Prepared, look: &'a Look<'a>) -> Self {
        let mut state = due.state.clone();
        state.rev += 1;
        state.failures_forgiven = state.failures_forgiven.min(due.live.failures_in_row);
        let from = prepared.after_start(prepared.resume_after(&state));
        let fires = |time: &Timestamp| prepared.recurrence.matches(*time);
        let fired_before = look.fired_before.iter().copied().filter(fires).collect();
        Self {
            prepared,
            look,
            state,
            live: due.live,
            fired_before,
            items: Vec::new(),
            fires: 0,
            from,
            until: from,
            full: false,
        }
    }

    fn has_failed_too_often(&self) -> bool {
        let limit = self.state.spec.pause_after_failures;
        limit > 0 && self.live.failures_in_row - self.state.failures_forgiven >= limit
    }

    /// The end of the line: now, or the end of the schedule.
    fn horizon(&self) -> Timestamp {
        self.prepared.before_end(self.look.now)
    }

    /// Gives one verdict to everything up to now.
    pub(super) fn pass_over(&mut self, verdict: Verdict) {
        self.treat(self.horizon(), Treatment::Over(verdict));
    }

    /// Treats everything up to now: late occurrences by `catch_up`, the others fire.
    pub(super) fn cover(&mut self, catch_up: CatchUp) {
        let horizon = self.horizon();
        if self.from >= horizon {
            return;
        }
        if self.look.frozen {
            return self.pass_over(Verdict::Skipped(Reason::Frozen));
        }
        let grace = SignedDuration::try_from(self.state.spec.grace.get());
        let cut = grace.ok().and_then(|grace| self.look.now.checked_sub(grace).ok());
        // At most the whole line is late; an occurrence of this very instant never is.
        let late = cut.unwrap_or(Timestamp::MIN).min(step(self.look.now, -1)).min(horizon);
        if self.from < late {
            self.cover_late(catch_up, late, horizon);
        }
        self.treat(horizon, Treatment::Fire);
    }

    fn cover_late(&mut self, catch_up: CatchUp, late: Timestamp, horizon: Timestamp) {
        if self.prepared.has_ended(self.look.now) {
            return self.treat(late, Treatment::Over(Verdict::Skipped(Reason::Ended)));
        }
        let Some(newest) = self.previous_open(late) else {
            // Only blackouts, or nothing at all.
            return self.treat(late, Treatment::Over(Verdict::Coalesced(Reason::Newer)));
        };
        if catch_up == CatchUp::None {
            return self.treat(late, Treatment::Over(Verdict::Missed(Reason::CatchUpNone)));
        }
        let window = SignedDuration::try_from(self.prepared.window(&newest)).ok();
        let oldest = window.and_then(|window| self.look.now.checked_sub(window).ok());
        let outside = step(oldest.unwrap_or(Timestamp::MIN), -1).min(late);
        self.treat(outside, Treatment::Over(Verdict::Missed(Reason::Window)));
        if newest.time <= outside {
            return self.treat(late, Treatment::Over(Verdict::Missed(Reason::Window)));
        }
        match catch_up {
            CatchUp::Latest => {
                let newer = self.next_open(late, horizon).is_some();
                if !newer {
                    let before = step(newest.time, -1);
                    self.treat(before, Treatment::Over(Verdict::Coalesced(Reason::Newer)));
                    self.treat(newest.time, Treatment::Fire);
                }
                self.treat(late, Treatment::Over(Verdict::Coalesced(Reason::Newer)));
            }
            CatchUp::All | CatchUp::None => {
                let mut first = newest.time;
                for _ in 1..self.state.spec.catch_up_max {
                    match self.previous_open(step(first, -1)).filter(|fire| fire.time > outside) {
                        Some(fire) => first = fire.time,
                        None => break,
                    }
                }
                self.treat(step(first, -1), Treatment::Over(Verdict::Missed(Reason::Limit)));
                self.treat(late, Treatment::Fire);
            }
        }
    }

    /// The last occurrence up to `until` that is undecided and in no blackout.
    fn previous_open(&self, until: Timestamp) -> Option<Fire> {
        let mut before = step(until, 1);
        loop {
            let fire = self.prepared.recurrence.previous(before)?;
            if fire.time <= self.from {
                return None;
            }
            let rules = self.prepared.zone().rules();
            before = match self.prepared.blackouts.at(rules, fire.time) {
                Some(black) => black.from,
                None if self.fired_before(fire.time) => fire.time,
                None => return Some(fire),
            };
        }
    }

    fn next_open(&self, after: Timestamp, until: Timestamp) -> Option<Fire> {
        let mut after = after;
        loop {
            let fire = self.prepared.next_open(after).filter(|fire| fire.time <= until)?;
            if !self.fired_before(fire.time) {
                return Some(fire);
            }
            after = fire.time;
        }
    }

    fn fired_before(&self, time: Timestamp) -> bool {
        self.fired_before.binary_search(&time).is_ok()
    }

    /// Extends the treated part of the line to `until`, blackouts apart.
    fn treat(&mut self, until: Timestamp, treatment: Treatment) {
        while !self.full && self.until < until {
            // Straight to the next occurrence: a rare schedule pays for no empty days.
            let next = self.prepared.recurrence.next_after(self.until);
            let idle = next.map_or(until, |fire| step(fire.time, -1).min(until));
            if self.until < idle {
                self.lose(self.until, idle);
                self.until = idle;
                continue;
            }
            let rules = self.prepared.zone().rules();
            let (end, black) = self.prepared.blackouts.piece(rules, self.until, until);
            match treatment {
                _ if black => self.over(end, Verdict::Skipped(Reason::Blackout)),
                Treatment::Over(verdict) => self.over(end, verdict),
                Treatment::Fire => self.fire(end),
            }
            self.full |= self.items.len() >= RECORDS_MAX;
        }
    }

    fn fire(&mut self, until: Timestamp) {
        let after = self.until;
        self.until = until;
        for fire in self.prepared.recurrence.between(after, until) {
            if self.fired_before(fire.time) {
                continue;
            }
            if self.fires == FIRES_MAX {
                self.full = true;
                self.until = step(fire.time, -1);
                break;
            }
            self.items.push(Item::Fire(fire));
            self.fires += 1;
        }
        self.lose(after, self.until);
    }

    fn over(&mut self, until: Timestamp, verdict: Verdict) {
        let after = self.until;
        self.until = until;
        self.lose(after, until);
        let tally = self.prepared.recurrence.tally(after, until);
        let decided = self.count_fired_before(after, until);
        let count = (tally.fires + tally.merged).saturating_sub(decided);
        let open = |fire: &Fire| !self.fired_before(fire.time);
        let first = self.prepared.recurrence.between(after, until).find(open);
        let mut last = self.prepared.recurrence.previous(step(until, 1));
        while let Some(fire) = last.filter(|fire| !open(fire)) {
            last = self.prepared.recurrence.previous(fire.time);
        }
        let (Some(first), Some(last), 1..) = (first, last, count) else { return };
        let begin = first.merged.map_or(first.label, |merged| merged.first.min(first.label));
        let labels = LabelRange {
            first: self.named(begin, first.time),
            last: self.named(last.label, last.time),
            count,
        };
        self.items.push(Item::Over { labels, time: first.time, verdict });
    }

    /// Labels that the clock jumped over.
    fn lose(&mut self, after: Timestamp, until: Timestamp) {
        for lost in self.prepared.recurrence.lost(after, until) {
            let verdict = Verdict::Skipped(Reason::ZoneChange);
            self.items.push(Item::Over { labels: lost.labels, time: lost.time, verdict });
        }
    }

    fn count_fired_before(&self, after: Timestamp, until: Timestamp) -> u64 {
        let upto = |end| self.fired_before.partition_point(|time| *time <= end);
        upto(until).saturating_sub(upto(after)) as u64
    }

    /// The label under which it is decided now: below the high water in the present epoch.
    fn named(&self, label: Label, time: Timestamp) -> Label {
        if time <= self.state.high_water { label.in_epoch(self.state.epoch) } else { label }
    }

    /// Carries the treatments out.
    pub(super) fn finish(mut self, maker: &mut Maker<'_>) -> FirePlan {
        let now = self.look.now;
        let mut recorder = Recorder::new(&self.state, OccurrenceKind::Scheduled);
        let mut gate = Gate::new(&self.state.spec, self.live);
        let mut starts = Vec::new();
        let mut refused = None;
        let mut left = self.fires;
        let mut items = std::mem::take(&mut self.items);
        items.sort_by_key(Item::time);
        for item in items {
            let fire = match item {
                Item::Over { labels, time, verdict } => {
                    recorder.passed_over(labels, time, verdict);
                    continue;
                }
                Item::Fire(fire) => fire,
            };
            left -= 1;
            let label = self.named(fire.label, fire.time);
            let entry = gate.enter(left == 0);
            if entry == Entry::Skip {
                let skipped = LabelRange { first: label, last: label, count: 1 };
                recorder.passed_over(skipped, fire.time, Verdict::Skipped(Reason::Overlap));
            } else {
                let due = run_at(&self.state, self.prepared, &fire, now);
                match maker.task(&self.state, self.prepared, label, fire.time, due) {
                    Ok(mut task) => {
                        task.held = entry == Entry::Hold;
                        recorder.fired(label, fire.time, task.id, now);
                        starts.push(Start { task, label: label.to_string() });
                    }
                    Err(error) => {
                        refused = Some(format!("paused: its task cannot be made: {error}"));
                        self.until = step(fire.time, -1);
                        self.full = true;
                        break;
                    }
                }
            }
            if let Some(merged) = fire.merged {
                recorder.passed_over(merged, fire.time, Verdict::Coalesced(Reason::SameInstant));
            }
        }
        self.settle_state(&mut recorder);
        if let Some(note) = refused {
            put_on_pause(&mut self.state, note, now);
        }
        FirePlan {
            expected_rev: self.state.rev - 1,
            state: self.state,
            occurrences: recorder.occurrences,
            starts,
            cancel_previous: gate.cancel_previous,
        }
    }

    /// Moves the cursor over what was decided and sets the next time to look.
    fn settle_state(&mut self, recorder: &mut Recorder) {
        if self.from < self.until {
            let tally = self.prepared.recurrence.tally(self.from, self.until);
            let decided = self.count_fired_before(self.from, self.until);
            recorder.balance.expected += tally.labels().saturating_sub(decided);
            let last = self.prepared.recurrence.previous(step(self.until, 1));
            if let Some(last) = last.filter(|last| last.time > self.from) {
                self.state.last_label = Some(last.label.to_string());
            }
        }
        let reached = if self.full { self.until } else { self.look.now };
        self.state.balance = recorder.balance;
        self.state.cursor = self.state.cursor.max(reached);
        self.state.high_water = self.state.high_water.max(self.state.cursor);
        arm(&mut self.state, self.prepared);
    }

    pub(super) fn unchanged(self) -> FirePlan {
        plan(self.state)
    }

    pub(super) fn paused(mut self, note: String) -> FirePlan {
        put_on_pause(&mut self.state, note, self.look.now);
        plan(self.state)
    }
}

/// A plan that only writes the schedule's state.
pub(super) fn plan(state: ScheduleState) -> FirePlan {
    FirePlan {
        expected_rev: state.rev - 1,
        state,
        occurrences: Vec::new(),
        starts: Vec::new(),
        cancel_previous: false,
    }
}

pub(super) fn put_on_pause(state: &mut ScheduleState, note: String, now: Timestamp) {
    state.status = ScheduleStatus::Paused;
    state.paused_since = Some(now);
    state.spec.note = Some(note);
    state.next_due = None;
    state.next_fire = None;
}

/// Sets when an active schedule is looked at next; without a next time it is exhausted.
pub(super) fn arm(state: &mut ScheduleState, prepared: &Prepared) {
    let after = prepared.resume_after(state);
    let next = prepared.next_after(after);
    state.next_due = next.map(|fire| fire.time);
    state.next_fire = prepared.next_open(after).map(|fire| fire.time);
    tz_release().clone_into(&mut state.zone_table);
    if next.is_none() {
        state.status = ScheduleStatus::Exhausted;
    }
}
