//! Times in which nothing fires.

use std::fmt;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::Blackout;

/// A blackout whose texts have been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Every day, over midnight when `from` is later than `to`.
    Daily {
        from: Time,
        to: Time,
    },
    Once {
        from: DateTime,
        to: DateTime,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// `from` or `to`.
    pub end: &'static str,
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Half-open stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    pub from: Timestamp,
    pub to: Timestamp,
}

enum End {
    Time(Time),
    DateTime(DateTime),
}

impl Rule {
    pub(super) fn parse(blackout: &Blackout) -> Result<Self, Problem> {
        let problem = |end, text: &str| Problem { end, text: text.to_owned() };
        let expected = "expected HH:MM or a local date and time such as 2026-12-24T00:00";
        let from = end(&blackout.from).ok_or_else(|| problem("from", expected))?;
        let to = end(&blackout.to).ok_or_else(|| problem("to", expected))?;
        match (from, to) {
            (End::Time(from), End::Time(to)) if from == to => {
                Err(problem("to", "equals from; a blackout of the whole day is a pause"))
            }
            (End::Time(from), End::Time(to)) => Ok(Self::Daily { from, to }),
            (End::DateTime(from), End::DateTime(to)) if from >= to => {
                Err(problem("to", "must lie after from"))
            }
            (End::DateTime(from), End::DateTime(to)) => Ok(Self::Once { from, to }),
            _ => Err(problem("to", "must be of the same form as from: both HH:MM, or both dates")),
        }
    }

    /// The interval of this rule that contains `at`, or else the first one after it.
    fn next(self, zone: &TimeZone, at: Timestamp) -> Option<Interval> {
        match self {
            Self::Once { from, to } => interval(zone, from, to).filter(|interval| interval.to > at),
            Self::Daily { from, to } => {
                let mut date = zone.to_datetime(at).date().yesterday().ok()?;
                // Two days back and forth cover every zone's jumps over the date line.
                for _ in 0..5 {
                    let end = if to > from { date } else { date.tomorrow().ok()? };
                    let found = interval(zone, at_time(date, from), at_time(end, to));
                    if let Some(found) = found.filter(|interval| interval.to > at) {
                        return Some(found);
                    }
                    date = date.tomorrow().ok()?;
                }
                None
            }
        }
    }
}

fn at_time(date: Date, time: Time) -> DateTime {
    date.to_datetime(time)
}

/// In a gap an end moves to the first instant after it, in a fold to the first copy; what is
/// empty then is no interval.
fn interval(zone: &TimeZone, from: DateTime, to: DateTime) -> Option<Interval> {
    let instant = |reading: DateTime| zone.to_ambiguous_timestamp(reading).compatible().ok();
    let found = Interval { from: instant(from)?, to: instant(to)? };
    (found.from < found.to).then_some(found)
}

fn end(text: &str) -> Option<End> {
    let digits = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text.bytes().zip(shape.bytes()).all(|(byte, model)| match model {
                b'0' => byte.is_ascii_digit(),
                _ => byte == model,
            })
    };
    if digits(text, "00:00") {
        return format!("{text}:00").parse().ok().map(End::Time);
    }
    let full = match text.len() {
        16 => format!("{text}:00"),
        _ => text.to_owned(),
    };
    let sound = digits(&full, "0000-00-00T00:00:00") && !full.ends_with(":60");
    sound.then(|| full.parse().ok().map(End::DateTime)).flatten()
}

/// All blackouts of a schedule.
#[derive(Debug, Clone, Default)]
pub(super) struct Blackouts {
    pub rules: Vec<Rule>,
}

impl Blackouts {
    /// The union of blackouts that contains `at`, or else the first one after it.
    pub(super) fn next(&self, zone: &TimeZone, at: Timestamp) -> Option<Interval> {
        let mut found =
            self.rules.iter().filter_map(|rule| rule.next(zone, at)).min_by_key(|i| i.from)?;
        // Grow over what overlaps or touches. Each rule can extend it once per day, so a chain
        // that covers every day is cut after a while and goes on as a second interval.
        for _ in 0..64 {
            let longer = self
                .rules
                .iter()
                .filter_map(|rule| rule.next(zone, found.to))
                .filter(|next| next.from <= found.to)
                .map(|next| next.to)
                .max();
            match longer {
                Some(to) if to > found.to => found.to = to,
                _ => break,
            }
        }
        Some(found)
    }

    /// The blackout that contains `at`.
    pub(super) fn at(&self, zone: &TimeZone, at: Timestamp) -> Option<Interval> {
        let rules = self.rules.iter().filter_map(|rule| rule.next(zone, at));
        let holding = rules.filter(|interval| interval.from <= at);
        holding.max_by_key(|interval| interval.to)
    }

    /// The part of `(after, until]` up to where a blackout next begins or ends, and whether it is
    /// black.
    pub(super) fn piece(
        &self,
        zone: &TimeZone,
        after: Timestamp,
        until: Timestamp,
    ) -> (Timestamp, bool) {
        // Ends are exclusive on the right, pieces on the left: shift by the smallest step.
        let first = step(after, 1);
        let (end, black) = match self.next(zone, first) {
            Some(next) if next.from <= first => (step(next.to, -1), true),
            Some(next) => (step(next.from, -1), false),
            None => (until, false),
        };
        (end.min(until), black)
    }
}

/// The instant `nanos` away, held inside the range of timestamps.
pub(super) fn step(at: Timestamp, nanos: i64) -> Timestamp {
    at.saturating_add(SignedDuration::from_nanos(nanos)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blackouts(zone: &str, ends: &[(&str, &str)]) -> (TimeZone, Blackouts) {
        let zone = crate::cron::Zone::parse(zone).unwrap().rules().clone();
        let rule = |(from, to): &(&str, &str)| {
            Rule::parse(&Blackout { from: (*from).to_owned(), to: (*to).to_owned() }).unwrap()
        };
        (zone, Blackouts { rules: ends.iter().map(rule).collect() })
    }

    #[test]
    fn intervals_of_the_wall_clock() {
        let (zone, nights) = blackouts("America/New_York", &[("22:00", "06:00")]);
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let black = |text: &str| nights.at(&zone, at(text)).is_some();
        assert!(black("2026-11-29T03:00:00Z"), "22:00 itself");
        assert!(!black("2026-11-29T02:59:59.999Z"));
        assert!(black("2026-11-29T10:59:59Z"));
        assert!(!black("2026-11-29T11:00:00Z"), "06:00 is excluded");
        // The night of the change has nine hours.
        let night = nights.at(&zone, at("2026-11-01T05:00:00Z")).unwrap();
        assert_eq!(night.from, at("2026-11-01T02:00:00Z"));
        assert_eq!(night.to, at("2026-11-01T11:00:00Z"));

        let (zone, joined) = blackouts(
            "UTC",
            &[("22:00", "00:00"), ("00:00", "02:00"), ("2026-12-24T01:00", "2026-12-27T00:00")],
        );
        let christmas = joined.at(&zone, at("2026-12-25T12:00:00Z")).unwrap();
        assert_eq!(christmas.to, at("2026-12-27T00:00:00Z"));
        let until = at("2026-12-27T12:00:00Z");
        let mut after = at("2026-12-23T12:00:00Z");
        let mut ends = Vec::new();
        while after < until {
            let (end, black) = joined.piece(&zone, after, until);
            ends.push((step(end, 1), black));
            after = end;
        }
        assert_eq!(
            ends,
            [
                (at("2026-12-23T22:00:00Z"), false),
                (at("2026-12-27T02:00:00Z"), true),
                (step(until, 1), false)
            ]
        );
    }

    #[test]
    fn ends_that_make_no_sense_are_refused() {
        for (from, to, end) in [
            ("9:00", "10:00", "from"),
            ("09:00", "24:00", "to"),
            ("09:00", "09:00", "to"),
            ("09:00", "2026-12-24T00:00", "to"),
            ("2026-12-24T00:00", "2026-12-24T00:00", "to"),
            ("2026-12-24", "2026-12-25", "from"),
            ("2026-12-24T00:00Z", "2026-12-25T00:00", "from"),
            ("2026-02-30T00:00", "2026-12-25T00:00", "from"),
        ] {
            let blackout = Blackout { from: from.to_owned(), to: to.to_owned() };
            assert_eq!(Rule::parse(&blackout).unwrap_err().end, end, "{from} {to}");
        }
    }
}
