//! The fields of an expression: their names, bounds and words.

/// Years that the seventh field may name.
pub(super) const YEAR_MIN: u32 = 1970;
pub(super) const YEAR_MAX: u32 = 2199;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// A part of an expression that an error can point at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// The expression as a whole.
    Expression,
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Weekday,
    Year,
    /// The duration of `@every`.
    Interval,
    /// The date and time of `@at`.
    Moment,
}

impl Field {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expression => "expression",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Weekday => "weekday",
            Self::Year => "year",
            Self::Interval => "interval",
            Self::Moment => "moment",
        }
    }

    /// Smallest and largest number that may be written in the field.
    pub(super) const fn bounds(self) -> (u32, u32) {
        match self {
            Self::Second | Self::Minute => (0, 59),
            Self::Hour => (0, 23),
            Self::Day => (1, 31),
            Self::Month => (1, 12),
            Self::Weekday => (0, 7),
            Self::Year => (YEAR_MIN, YEAR_MAX),
            Self::Expression | Self::Interval | Self::Moment => (0, 0),
        }
    }

    /// How many different values there are: the largest step that makes sense.
    /// Sunday has two numbers but is one day.
    pub(super) const fn size(self) -> u32 {
        let (min, max) = self.bounds();
        match self {
            Self::Weekday => 7,
            _ => max - min + 1,
        }
    }

    /// The number behind a three-letter name, in any case.
    pub(super) fn named(self, word: &str) -> Option<u32> {
        let (words, first): (&[&str], u32) = match self {
            Self::Month => (&MONTHS, 1),
            Self::Weekday => (&WEEKDAYS, 0),
            _ => return None,
        };
        let index = words.iter().position(|name| name.eq_ignore_ascii_case(word))?;
        Some(first + index as u32)
    }

    /// What one value may be, for error texts.
    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::Second => "a second 0-59",
            Self::Minute => "a minute 0-59",
            Self::Hour => "an hour 0-23",
            Self::Day => "a day 1-31, L, L-n, LW or nW",
            Self::Month => "a month 1-12 or JAN-DEC",
            Self::Weekday => "a weekday 0-7 or SUN-SAT, d#1 to d#5 or dL",
            Self::Year => "a year 1970-2199",
            Self::Interval => "a duration such as 45m, 1h30m or 90s",
            Self::Moment => "a local date and time such as 2027-01-01T09:00",
            Self::Expression => {
                "5 fields (minute hour day month weekday), 6 (second first) or 7 (year last)"
            }
        }
    }

    /// The unit in which `@every` could say a step of this field.
    pub(super) const fn interval_unit(self) -> Option<char> {
        match self {
            Self::Second => Some('s'),
            Self::Minute => Some('m'),
            Self::Hour => Some('h'),
            Self::Day | Self::Weekday => Some('d'),
            _ => None,
        }
    }
}
