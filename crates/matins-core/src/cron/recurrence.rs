//! When an expression fires in a zone.
//!
//! Time is walked in stretches of constant offset. Within one, local readings and instants run in
//! step, so the work is finding the next reading in bit masks. Everything peculiar happens where
//! two stretches meet:
//!
//! ```text
//! gap    01:59:59 | 03:00:00   readings 02:00-02:59 never show
//! fold   01:59:59 | 01:00:00   readings 01:00-01:59 show twice
//! ```
//!
//! A wall-clock expression fires once for each reading: those in a gap at the first instant after
//! it, all together and together with the reading of that instant; those in a fold at the first
//! copy. A gap of more than three hours is a change of zone, and its readings are lost. An elapsed
//! expression (every hour of the day, or `@every`) fires whenever the clock shows a reading:
//! twice in a fold, not at all for a gap.
//!
//! Must never visit readings one by one to count them, nor assume that a shift is one hour, that
//! summer time is ahead, or that midnight exists.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::calendar::DAY_SECONDS;
use super::label::{Label, LabelRange};
use super::segment::{FIRST_SECOND, LAST_SECOND, Segment, timestamp};
use super::{Civil, Rule, Timetable, Zone};

/// A longer gap is a change of zone.
const GAP_SECONDS_MAX: i64 = 3 * 3_600;
/// More than any two offsets of the table differ.
const OFFSETS_APART: i64 = 2 * DAY_SECONDS;

/// What a wall-clock schedule does with readings that a gap skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gap {
    /// Fires once, at the first instant after the gap.
    #[default]
    Run,
    /// Does not fire.
    Skip,
}

/// At which copy a wall-clock schedule fires when a fold repeats readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fold {
    #[default]
    First,
    Second,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dst {
    pub gap: Gap,
    pub fold: Fold,
}

/// One instant at which a schedule fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fire {
    pub time: Timestamp,
    pub label: Label,
    /// The label's reading never shows; this is the first instant after it.
    pub in_gap: bool,
    /// The reading of this instant shows twice.
    pub in_fold: bool,
    /// Labels of a gap that fall on this instant too.
    pub merged: Option<LabelRange>,
}

/// Labels that never get an instant: skipped by a change of zone, or by `gap: skip`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The instant at which the clock jumped over them.
    pub time: Timestamp,
    pub labels: LabelRange,
}

/// How many labels lie in a stretch of time, by what becomes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub fires: u64,
    pub merged: u64,
    pub lost: u64,
}

impl Tally {
    pub const fn labels(self) -> u64 {
        self.fires + self.merged + self.lost
    }
}

/// An expression in a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recurrence {
    timetable: Timetable,
    zone: Zone,
    dst: Dst,
    anchor: i64,
}

/// Local readings `[from, to)` of one stretch at which regular fires may lie.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: i64,
    to: i64,
    copy: u8,
}

impl Recurrence {
    /// `anchor` is what `@every` counts from; its whole seconds are used.
    pub fn new(timetable: Timetable, zone: Zone, dst: Dst, anchor: Timestamp) -> Self {
        Self { timetable, zone, dst, anchor: floor(anchor) }
    }

    pub const fn timetable(&self) -> &Timetable {
        &self.timetable
    }

    pub const fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The first fire strictly after `instant`.
    pub fn next_after(&self, instant: Timestamp) -> Option<Fire> {
        self.between(instant, Timestamp::MAX).next()
    }

    /// The last fire strictly before `instant`.
    pub fn previous(&self, instant: Timestamp) -> Option<Fire> {
        let whole = instant.subsec_nanosecond() == 0;
        let second = floor(instant) - i64::from(whole);
        match &self.timetable.rule {
            Rule::Every(step) => {
                self.interval_fire((second - self.anchor).div_euclid(*step as i64))
            }
            Rule::Civil(civil) => {
                self.civil_previous(civil, second.clamp(FIRST_SECOND, LAST_SECOND))
            }
        }
    }

    /// Whether it fires at exactly this instant.
    pub fn matches(&self, instant: Timestamp) -> bool {
        self.at(instant).is_some()
    }

    /// The fire of exactly this instant.
    pub fn at(&self, instant: Timestamp) -> Option<Fire> {
        if instant.subsec_nanosecond() != 0 {
            return None;
        }
        let before = timestamp(instant.as_second() - 1);
        self.next_after(before).filter(|fire| fire.time == instant)
    }

    /// Fires in `(after, until]`, in order.
    pub fn between(&self, after: Timestamp, until: Timestamp) -> Fires<'_> {
        Fires { recurrence: self, segment: None, from: floor(after) + 1, until: floor(until) }
    }

    /// How many labels belong to `(after, until]`, without visiting them.
    pub fn tally(&self, after: Timestamp, until: Timestamp) -> Tally {
        let from = (floor(after) + 1).max(FIRST_SECOND);
        let to = (floor(until) + 1).min(LAST_SECOND + 1);
        if from >= to {
            return Tally::default();
        }
        let civil = match &self.timetable.rule {
            Rule::Every(step) => {
                let step = *step as i64;
                let upto = |second: i64| (second - self.anchor).div_euclid(step).max(0);
                return Tally { fires: (upto(to - 1) - upto(from - 1)) as u64, ..Tally::default() };
            }
            Rule::Civil(civil) => civil,
        };
        let mut tally = Tally::default();
        let mut segment = Some(Segment::containing(self.zone.rules(), from));
        while let Some(stretch) = segment.filter(|stretch| stretch.start < to) {
            self.tally_stretch(civil, &stretch, from, to, &mut tally);
            segment = self.following(civil, &stretch, stretch.end.min(to));
        }
        tally
    }

    fn tally_stretch(
        &self,
        civil: &Civil,
        stretch: &Segment,
        from: i64,
        to: i64,
        tally: &mut Tally,
    ) {
        for window in self.windows(stretch).into_iter().flatten() {
            let first = window.from.max(from + stretch.offset);
            let end = window.to.min(to + stretch.offset);
            tally.fires += civil.count(first, end);
        }
        if stretch.start < from {
            return;
        }
        let Some((gap_from, gap_to)) = self.gap(stretch) else { return };
        let skipped = civil.count(gap_from, gap_to);
        if !self.runs_after(gap_from, gap_to) {
            tally.lost += skipped;
        } else if self.fires_regularly(civil, stretch, stretch.local_start()) {
            tally.merged += skipped;
        } else if skipped > 0 {
            tally.fires += 1;
            tally.merged += skipped - 1;
        }
    }

    /// Labels in `(after, until]` that the clock jumped over and that never fire.
    pub fn lost(&self, after: Timestamp, until: Timestamp) -> Vec<Lost> {
        let Rule::Civil(civil) = &self.timetable.rule else { return Vec::new() };
        let from = (floor(after) + 1).max(FIRST_SECOND);
        let to = floor(until).min(LAST_SECOND);
        let mut lost = Vec::new();
        if self.timetable.is_elapsed() || from > to {
            return lost;
        }
        let mut segment = Some(Segment::containing(self.zone.rules(), from));
        while let Some(stretch) = segment.filter(|stretch| stretch.start <= to) {
            if stretch.start >= from
                && let Some((gap_from, gap_to)) = self.gap(&stretch)
                && !self.runs_after(gap_from, gap_to)
                && let Some(labels) = gap_labels(civil, gap_from, gap_to)
            {
                lost.push(Lost { time: timestamp(stretch.start), labels });
            }
            segment = self.following(civil, &stretch, stretch.end.min(to));
        }
        lost
    }

    /// The fire that decides `label`, if it is a label of this schedule. A label merged into
    /// another one's fire gets the instant of that fire.
    pub fn resolve(&self, label: Label) -> Option<Fire> {
        if label.is_local() == self.timetable.is_elapsed() {
            return None;
        }
        if !label.is_local() {
            let fire = self.at(Timestamp::from_second(label.seconds()).ok()?)?;
            return Some(Fire { label, ..fire });
        }
        let Rule::Civil(civil) = &self.timetable.rule else { return None };
        let reading = label.seconds();
        if !civil.contains(reading) {
            return None;
        }
        let first = (reading - OFFSETS_APART).clamp(FIRST_SECOND, LAST_SECOND);
        let mut segment = Some(Segment::containing(self.zone.rules(), first));
        while let Some(stretch) = segment.filter(|stretch| stretch.start <= reading + OFFSETS_APART)
        {
            if let Some((from, to)) = self.gap(&stretch)
                && (from..to).contains(&reading)
            {
                return (self.runs_after(from, to) && label.copy() == 1).then(|| Fire {
                    time: timestamp(stretch.start),
                    label,
                    in_gap: true,
                    in_fold: false,
                    merged: None,
                });
            }
            let here = |window: &Window| {
                window.copy == label.copy() && (window.from..window.to).contains(&reading)
            };
            if self.windows(&stretch).iter().flatten().any(here) {
                return Some(self.regular_fire(civil, &stretch, reading, label.copy()));
            }
            segment = stretch.next(self.zone.rules());
        }
        None
    }

    /// The name of this very moment, which no occurrence of the timetable has.
    pub fn label_of(&self, instant: Timestamp) -> Label {
        let second = floor(instant);
        let micros = instant.subsec_microsecond().rem_euclid(1_000_000).unsigned_abs();
        let label = if self.timetable.is_elapsed() {
            Label::instant(second)
        } else {
            Label::local(second + Segment::containing(self.zone.rules(), second).offset, 1)
        };
        label.at_micros(micros)
    }

    /// The first instant at which the clock has passed the reading of a local label, whether or
    /// not this schedule names it. Nothing for labels of elapsed schedules.
    pub fn passed(&self, label: Label) -> Option<Timestamp> {
        if !label.is_local() || self.timetable.is_elapsed() {
            return None;
        }
        let reading = label.seconds();
        let first = (reading - OFFSETS_APART).clamp(FIRST_SECOND, LAST_SECOND);
        let mut stretch = Segment::containing(self.zone.rules(), first);
        let mut copy = 0;
        loop {
            if stretch.local_before() <= reading && reading < stretch.local_start() {
                return Some(timestamp(stretch.start));
            }
            if (stretch.local_start()..stretch.local_end()).contains(&reading) {
                copy += 1;
                let again = stretch.after < stretch.offset && reading >= stretch.local_after();
                if copy == label.copy() || !again {
                    return Some(timestamp(reading - stretch.offset));
                }
            }
            stretch = stretch.next(self.zone.rules())?;
        }
    }

    /// The last fire before, and the first one at or after, what a label names that is none of
    /// this schedule's.
    pub fn around(&self, label: Label) -> (Option<Fire>, Option<Fire>) {
        let second = floor(self.passed(label).unwrap_or_else(|| timestamp(label.seconds())));
        (self.previous(timestamp(second)), self.next_after(timestamp(second - 1)))
    }

    fn interval_fire(&self, number: i64) -> Option<Fire> {
        let step = self.timetable.interval_seconds()? as i64;
        if number < 1 {
            return None;
        }
        let second = number.checked_mul(step)?.checked_add(self.anchor)?;
        let time = Timestamp::from_second(second).ok()?;
        let label = Label::instant(second);
        Some(Fire { time, label, in_gap: false, in_fold: false, merged: None })
    }

    /// The first fire at or after `second`; `stretch` contains it and is moved along.
    fn civil_next(&self, civil: &Civil, stretch: &mut Segment, mut second: i64) -> Option<Fire> {
        loop {
            if second == stretch.start
                && let Some(fire) = self.gap_fire(civil, stretch)
            {
                return Some(fire);
            }
            let local = second + stretch.offset;
            for window in self.windows(stretch).into_iter().flatten() {
                if let Some(reading) = civil.next(window.from.max(local))
                    && reading < window.to
                {
                    return Some(self.regular_fire(civil, stretch, reading, window.copy));
                }
            }
            *stretch = self.following(civil, stretch, stretch.end)?;
            second = stretch.start;
        }
    }

    /// The stretch after `stretch` in which something may fire, none when nothing can any more.
    /// Stretches without a reading are jumped over, but never one that repeats readings.
    fn following(&self, civil: &Civil, stretch: &Segment, end: i64) -> Option<Segment> {
        let next = stretch.next(self.zone.rules())?;
        if next.offset < next.before || end < stretch.end {
            return Some(next);
        }
        let reading = civil.next(stretch.local_end())?;
        let earliest = reading - OFFSETS_APART;
        if earliest < next.end {
            return Some(next);
        }
        (earliest <= LAST_SECOND).then(|| Segment::containing(self.zone.rules(), earliest))
    }

    fn civil_previous(&self, civil: &Civil, mut second: i64) -> Option<Fire> {
        let mut stretch = Segment::containing(self.zone.rules(), second);
        loop {
            let local = second + stretch.offset;
            for window in self.windows(&stretch).into_iter().flatten().rev() {
                if let Some(reading) = civil.previous(local.min(window.to - 1))
                    && reading >= window.from
                {
                    return Some(self.regular_fire(civil, &stretch, reading, window.copy));
                }
            }
            if let Some(fire) = self.gap_fire(civil, &stretch) {
                return Some(fire);
            }
            let before = stretch.previous(self.zone.rules())?;
            second = stretch.start - 1;
            // As in `following`: empty stretches are jumped over, a repeated one is not.
            if before.offset <= stretch.offset {
                let reading = civil.previous(stretch.local_start() - 1)?;
                second = second.min(reading + OFFSETS_APART);
                if second < FIRST_SECOND {
                    return None;
                }
            }
            stretch = if second < before.start {
                Segment::containing(self.zone.rules(), second)
            } else {
                before
            };
        }
    }

    /// Readings of the stretch at which regular fires lie, in order of time.
    fn windows(&self, stretch: &Segment) -> [Option<Window>; 2] {
        let (start, end) = (stretch.local_start(), stretch.local_end());
        let window = |from, to, copy| (from < to).then_some(Window { from, to, copy });
        if self.timetable.is_elapsed() {
            return [window(start, end, 1), None];
        }
        // Readings up to here are copies of what the stretch before has shown.
        let repeated = stretch.local_before().clamp(start, end);
        // Readings from here on will be shown again.
        let repeats = stretch.local_after().clamp(repeated, end);
        match self.dst.fold {
            Fold::First => [None, window(repeated, end, 1)],
            Fold::Second => [window(start, repeated, 1), window(repeated, repeats, 1)],
            Fold::Both => [window(start, repeated, 2), window(repeated, end, 1)],
        }
    }

    /// Readings that the clock jumped over at the beginning of the stretch.
    fn gap(&self, stretch: &Segment) -> Option<(i64, i64)> {
        let (from, to) = (stretch.local_before(), stretch.local_start());
        (from < to && !self.timetable.is_elapsed()).then_some((from, to))
    }

    fn runs_after(&self, gap_from: i64, gap_to: i64) -> bool {
        self.dst.gap == Gap::Run && gap_to - gap_from <= GAP_SECONDS_MAX
    }

    fn fires_regularly(&self, civil: &Civil, stretch: &Segment, reading: i64) -> bool {
        let windows = self.windows(stretch);
        civil.contains(reading)
            && windows.iter().flatten().any(|window| (window.from..window.to).contains(&reading))
    }

    /// The fire at the first instant after a gap, if no regular fire takes it over.
    fn gap_fire(&self, civil: &Civil, stretch: &Segment) -> Option<Fire> {
        let (from, to) = self.gap(stretch)?;
        if !self.runs_after(from, to) || self.fires_regularly(civil, stretch, to) {
            return None;
        }
        let last = civil.previous(to - 1).filter(|&reading| reading >= from)?;
        Some(Fire {
            time: timestamp(stretch.start),
            label: Label::local(last, 1),
            in_gap: true,
            in_fold: false,
            merged: gap_labels(civil, from, last),
        })
    }

    fn regular_fire(&self, civil: &Civil, stretch: &Segment, reading: i64, copy: u8) -> Fire {
        let second = reading - stretch.offset;
        let merged = match self.gap(stretch) {
            Some((from, to)) if to == reading && self.runs_after(from, to) => {
                gap_labels(civil, from, to)
            }
            _ => None,
        };
        let label = if self.timetable.is_elapsed() {
            Label::instant(second)
        } else {
            Label::local(reading, copy)
        };
        let repeated = reading < stretch.local_before();
        let repeats = stretch.after < stretch.offset && reading >= stretch.local_after();
        Fire { time: timestamp(second), label, in_gap: false, in_fold: repeated || repeats, merged }
    }
}

/// The labels of readings in `[from, to)`.
fn gap_labels(civil: &Civil, from: i64, to: i64) -> Option<LabelRange> {
    let count = civil.count(from, to);
    if count == 0 {
        return None;
    }
    Some(LabelRange {
        first: Label::local(civil.next(from)?, 1),
        last: Label::local(civil.previous(to - 1)?, 1),
        count,
    })
}

/// The whole second that `instant` lies in.
fn floor(instant: Timestamp) -> i64 {
    instant.as_second() - i64::from(instant.subsec_nanosecond() < 0)
}

/// Iterator over the fires of a stretch of time.
#[derive(Debug, Clone)]
pub struct Fires<'a> {
    recurrence: &'a Recurrence,
    segment: Option<Segment>,
    from: i64,
    until: i64,
}

impl Iterator for Fires<'_> {
    type Item = Fire;

    fn next(&mut self) -> Option<Fire> {
        let recurrence = self.recurrence;
        let fire = match &recurrence.timetable.rule {
            Rule::Every(step) => {
                let passed = (self.from - 1 - recurrence.anchor).div_euclid(*step as i64);
                recurrence.interval_fire(passed.max(0) + 1)?
            }
            Rule::Civil(civil) => {
                let from = self.from.max(FIRST_SECOND);
                if from > self.until.min(LAST_SECOND) {
                    return None;
                }
                let zone = recurrence.zone.rules();
                let stretch = match &mut self.segment {
                    Some(stretch) if from < stretch.end => stretch,
                    empty => empty.insert(Segment::containing(zone, from)),
                };
                recurrence.civil_next(civil, stretch, from)?
            }
        };
        let second = fire.time.as_second();
        if second > self.until {
            return None;
        }
        self.from = second + 1;
        Some(fire)
    }
}
