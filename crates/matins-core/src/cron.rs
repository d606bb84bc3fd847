//! Cron expressions and the instants at which they fire.
//!
//! [`Timetable`] is a parsed expression, [`Recurrence`] joins it with a [`Zone`] and a rule for
//! clock changes and answers every question about time: next, previous, matches, how many.
//! The dialect is written out in `cron/parse.rs`, the treatment of clock changes in
//! `cron/recurrence.rs`.
//!
//! Must never read a clock or the host's zone, and must never search without a bound: every
//! question is answered from bit masks of days and times, month by month.

mod calendar;
mod days;
mod error;
mod field;
mod label;
mod parse;
mod preview;
mod recurrence;
mod segment;
mod zone;

use std::fmt;

pub use error::{CronError, CronErrorKind};
pub use field::Field;
pub use label::{Label, LabelError, LabelRange};
pub use preview::{Note, PreviewFire, preview};
pub use recurrence::{Dst, Fire, Fires, Fold, Gap, Lost, Recurrence, Tally};
pub use zone::{Zone, ZoneError, tz_release};

use calendar::Calendar;

/// Longest expression accepted; parsing is linear in it.
pub const EXPRESSION_BYTES_MAX: usize = 4_096;

/// What an expression says, without a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    /// `@every`: seconds between fires, counted from an anchor.
    Every(u64),
    /// Everything that names readings of a local clock.
    Civil(Civil),
}

/// A set of local clock readings, as seconds since 1970-01-01T00:00:00 of that clock.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Civil {
    Calendar(Box<Calendar>),
    /// `@at`: one reading.
    Once(i64),
}

impl Civil {
    /// The first reading at or after `local`.
    fn next(&self, local: i64) -> Option<i64> {
        match self {
            Self::Calendar(calendar) => calendar.next(local),
            Self::Once(at) => (*at >= local).then_some(*at),
        }
    }

    /// The last reading at or before `local`.
    fn previous(&self, local: i64) -> Option<i64> {
        match self {
            Self::Calendar(calendar) => calendar.previous(local),
            Self::Once(at) => (*at <= local).then_some(*at),
        }
    }

    /// How many readings lie in `[from, to)`.
    fn count(&self, from: i64, to: i64) -> u64 {
        match self {
            Self::Calendar(calendar) => calendar.count(from, to),
            Self::Once(at) => u64::from(from <= *at && *at < to),
        }
    }

    fn contains(&self, local: i64) -> bool {
        self.count(local, local + 1) == 1
    }
}

/// A parsed cron expression.
///
/// Equal timetables fire alike, whatever their spelling: `*` equals `0-59` in the minutes.
#[derive(Debug, Clone)]
pub struct Timetable {
    text: String,
    rule: Rule,
}

impl PartialEq for Timetable {
    fn eq(&self, other: &Self) -> bool {
        self.rule == other.rule
    }
}

impl Eq for Timetable {}

impl Timetable {
    /// Reads an expression of 5, 6 or 7 fields, a nickname such as `@daily`, `@every 45m`
    /// or `@at 2027-01-01T09:00`.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        let rule = parse::rule(text)?;
        Ok(Self { text: text.trim_matches([' ', '\t']).to_owned(), rule })
    }

    /// The expression as it was written, without outer blanks.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Seconds between fires of an `@every` expression.
    pub fn interval_seconds(&self) -> Option<u64> {
        match self.rule {
            Rule::Every(seconds) => Some(seconds),
            Rule::Civil(_) => None,
        }
    }

    /// Whether it follows elapsed time: `@every`, or a set of hours that is the whole day.
    pub fn is_elapsed(&self) -> bool {
        match &self.rule {
            Rule::Every(_) => true,
            Rule::Civil(Civil::Calendar(calendar)) => calendar.has_every_hour(),
            Rule::Civil(Civil::Once(_)) => false,
        }
    }
}

impl fmt::Display for Timetable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
