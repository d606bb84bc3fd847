//! Local clock readings named by the fields of an expression: next, previous, how many.
//!
//! Readings are seconds since 1970-01-01T00:00:00 on a clock without offset. Nothing here knows
//! of zones.

use jiff::civil::Date;

use super::days::{DayTable, YearSet, year_kind};
use super::field::{YEAR_MAX, YEAR_MIN};
use super::label::{civil_seconds, civil_time};

pub(super) const DAY_SECONDS: i64 = 86_400;
const EVERY_HOUR: u64 = (1 << 24) - 1;
/// Years searched when the expression names none. The last one is left out so that a local
/// reading always has an instant.
const FIRST_YEAR: i16 = 1;
const LAST_YEAR: i16 = 9_998;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Calendar {
    pub seconds: u64,
    pub minutes: u64,
    pub hours: u64,
    pub days: DayTable,
    pub years: Option<YearSet>,
}

impl Calendar {
    pub(super) fn has_every_hour(&self) -> bool {
        self.hours == EVERY_HOUR
    }

    /// Whether any day of any year is named. Each kind of year occurs within 40 years.
    pub(super) fn has_days(&self) -> bool {
        match &self.years {
            None => (0..14).any(|kind| self.days.days_in_year(kind) > 0),
            Some(_) => self.next_year(FIRST_YEAR).is_some(),
        }
    }

    pub(super) fn next(&self, local: i64) -> Option<i64> {
        let (day, time) = (local.div_euclid(DAY_SECONDS), local.rem_euclid(DAY_SECONDS) as u32);
        let date = civil_time(local).date();
        if self.has_date(date)
            && let Some(time) = self.next_time(time)
        {
            return Some(day * DAY_SECONDS + i64::from(time));
        }
        let day = self.next_day(date)?;
        Some(day * DAY_SECONDS + i64::from(self.next_time(0)?))
    }

    pub(super) fn previous(&self, local: i64) -> Option<i64> {
        let (day, time) = (local.div_euclid(DAY_SECONDS), local.rem_euclid(DAY_SECONDS) as u32);
        let date = civil_time(local).date();
        if self.has_date(date)
            && let Some(time) = self.previous_time(time)
        {
            return Some(day * DAY_SECONDS + i64::from(time));
        }
        let day = self.previous_day(date)?;
        Some(day * DAY_SECONDS + i64::from(self.previous_time(DAY_SECONDS as u32 - 1)?))
    }

    /// Readings in `[from, to)`, without visiting them.
    pub(super) fn count(&self, from: i64, to: i64) -> u64 {
        if from >= to {
            return 0;
        }
        let (from_day, to_day) = (from.div_euclid(DAY_SECONDS), to.div_euclid(DAY_SECONDS));
        let from_date = civil_time(from).date();
        let to_date = civil_time(to).date();
        let before_from = self.times_before(from.rem_euclid(DAY_SECONDS) as u32);
        let before_to = self.times_before(to.rem_euclid(DAY_SECONDS) as u32);
        let (from_named, to_named) = (self.has_date(from_date), self.has_date(to_date));
        if from_day == to_day {
            return if from_named { before_to - before_from } else { 0 };
        }
        let per_day = self.times_before(DAY_SECONDS as u32);
        let mut total = per_day * self.days_between(from_date, to_date);
        if from_named {
            total += per_day - before_from;
        }
        if to_named {
            total += before_to;
        }
        total
    }

    fn has_date(&self, date: Date) -> bool {
        self.month_mask(date.year(), date.month()) >> date.day() & 1 == 1
    }

    fn month_mask(&self, year: i16, month: i8) -> u32 {
        if self.allows(year) { self.days.mask(year_kind(year), month) } else { 0 }
    }

    fn allows(&self, year: i16) -> bool {
        match &self.years {
            None => (FIRST_YEAR..=LAST_YEAR).contains(&year),
            Some(years) => years.contains(year),
        }
    }

    fn year_bounds(&self) -> (i16, i16) {
        match self.years {
            None => (FIRST_YEAR, LAST_YEAR),
            Some(_) => (YEAR_MIN as i16, YEAR_MAX as i16),
        }
    }

    /// The first year from `year` on that is allowed and has a named day.
    fn next_year(&self, year: i16) -> Option<i16> {
        let (first, last) = self.year_bounds();
        (year.max(first)..=last)
            .find(|&year| self.allows(year) && self.days.days_in_year(year_kind(year)) > 0)
    }

    fn previous_year(&self, year: i16) -> Option<i16> {
        let (first, last) = self.year_bounds();
        (first..=year.min(last))
            .rev()
            .find(|&year| self.allows(year) && self.days.days_in_year(year_kind(year)) > 0)
    }

    /// The first named day after `date`, as days since 1970.
    fn next_day(&self, date: Date) -> Option<i64> {
        let mut month = date.month();
        let mut mask = self.month_mask(date.year(), month);
        mask &= u32::MAX.checked_shl(date.day() as u32 + 1).unwrap_or(0);
        let mut year = date.year();
        loop {
            if mask != 0 {
                return day_number(year, month, mask.trailing_zeros());
            }
            month += 1;
            if month > 12 {
                month = 1;
                year = self.next_year(year.checked_add(1)?)?;
            }
            mask = self.month_mask(year, month);
        }
    }

    fn previous_day(&self, date: Date) -> Option<i64> {
        let mut month = date.month();
        let mut mask = self.month_mask(date.year(), month) & ((1 << date.day()) - 1);
        let mut year = date.year();
        loop {
            if mask != 0 {
                return day_number(year, month, mask.ilog2());
            }
            month -= 1;
            if month < 1 {
                month = 12;
                year = self.previous_year(year.checked_sub(1)?)?;
            }
            mask = self.month_mask(year, month);
        }
    }

    /// Named days after `from` and before `to`.
    fn days_between(&self, from: Date, to: Date) -> u64 {
        let after = u32::MAX.checked_shl(from.day() as u32 + 1).unwrap_or(0);
        let before = (1 << to.day()) - 1;
        let in_month = |year, month, mask: u32| (self.month_mask(year, month) & mask).count_ones();
        if (from.year(), from.month()) == (to.year(), to.month()) {
            return u64::from(in_month(from.year(), from.month(), after & before));
        }
        let mut total = in_month(from.year(), from.month(), after);
        total += in_month(to.year(), to.month(), before);
        if from.year() == to.year() {
            total += (from.month() + 1..to.month())
                .map(|month| in_month(from.year(), month, u32::MAX))
                .sum::<u32>();
            return u64::from(total);
        }
        total += (from.month() + 1..=12)
            .map(|month| in_month(from.year(), month, u32::MAX))
            .sum::<u32>();
        total += (1..to.month()).map(|month| in_month(to.year(), month, u32::MAX)).sum::<u32>();
        let years = (from.year() + 1..to.year()).filter(|&year| self.allows(year));
        u64::from(total) + years.map(|year| self.days.days_in_year(year_kind(year))).sum::<u64>()
    }

    /// The first time of day at or after `time`.
    fn next_time(&self, time: u32) -> Option<u32> {
        let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
        let first_minute = self.minutes.trailing_zeros();
        let first_second = self.seconds.trailing_zeros();
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = bit_from(self.seconds, second)
            {
                return Some(hour * 3_600 + minute * 60 + second);
            }
            if let Some(minute) = bit_from(self.minutes, minute + 1) {
                return Some(hour * 3_600 + minute * 60 + first_second);
            }
        }
        let hour = bit_from(self.hours, hour + 1)?;
        Some(hour * 3_600 + first_minute * 60 + first_second)
    }

    /// The last time of day at or before `time`.
    fn previous_time(&self, time: u32) -> Option<u32> {
        let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
        let last_minute = self.minutes.ilog2();
        let last_second = self.seconds.ilog2();
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = bit_below(self.seconds, second + 1)
            {
                return Some(hour * 3_600 + minute * 60 + second);
            }
            if let Some(minute) = bit_below(self.minutes, minute) {
                return Some(hour * 3_600 + minute * 60 + last_second);
            }
        }
        let hour = bit_below(self.hours, hour)?;
        Some(hour * 3_600 + last_minute * 60 + last_second)
    }

    /// How many times of day lie before `time`, which may be the end of the day.
    fn times_before(&self, time: u32) -> u64 {
        let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
        let seconds = u64::from(self.seconds.count_ones());
        let minutes = u64::from(self.minutes.count_ones());
        let below = |mask: u64, bit: u32| u64::from((mask & ((1 << bit) - 1)).count_ones());
        let mut total = below(self.hours, hour) * minutes * seconds;
        if self.hours >> hour & 1 == 1 {
            total += below(self.minutes, minute) * seconds;
            if self.minutes >> minute & 1 == 1 {
                total += below(self.seconds, second);
            }
        }
        total
    }
}

fn day_number(year: i16, month: i8, day: u32) -> Option<i64> {
    let date = Date::new(year, month, day as i8).ok()?;
    Some(civil_seconds(date.at(0, 0, 0, 0))?.div_euclid(DAY_SECONDS))
}

/// The lowest bit of `mask` at or above `from` (at most 60).
fn bit_from(mask: u64, from: u32) -> Option<u32> {
    let rest = mask >> from << from;
    (rest != 0).then(|| rest.trailing_zeros())
}

/// The highest bit of `mask` below `end` (at most 60).
fn bit_below(mask: u64, end: u32) -> Option<u32> {
    let rest = mask & ((1 << end) - 1);
    (rest != 0).then(|| rest.ilog2())
}
