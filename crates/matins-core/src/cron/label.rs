//! Labels: the names of occurrences, under which they are decided once and for all.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use jiff::{Timestamp, civil};

use super::Zone;
use super::segment::timestamp;

/// Whose clock the label reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Frame {
    /// The clock on the wall of the schedule's zone.
    Local,
    /// UTC.
    Instant,
}

/// The name of one occurrence of a schedule.
///
/// Wall-clock schedules name the local date-time (`2026-11-29T02:00:00`, with `#2` for the
/// second copy where a fold fires twice), elapsed ones the instant (`2026-11-29T18:00:00Z`, with
/// `#e3` when it was decided anew after the clock had been set back for the third time). What
/// was started by hand has the microseconds of its moment too, so that it is nobody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label {
    seconds: i64,
    /// Only of what was started by hand.
    micros: Option<u32>,
    frame: Frame,
    copy: u8,
    epoch: u32,
}

/// A run of labels of one schedule, first and last included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelRange {
    pub first: Label,
    pub last: Label,
    pub count: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a label: expected a local date-time such as 2026-11-29T02:00:00 (or with \
     #2) or a UTC instant such as 2026-11-29T18:00:00Z (or with #e1)"
)]
pub struct LabelError {
    pub text: String,
}

impl Label {
    pub(super) const fn local(seconds: i64, copy: u8) -> Self {
        Self { seconds, micros: None, frame: Frame::Local, copy, epoch: 0 }
    }

    pub(super) const fn instant(seconds: i64) -> Self {
        Self { seconds, micros: None, frame: Frame::Instant, copy: 1, epoch: 0 }
    }

    /// The name of a moment within the label's second.
    pub(super) const fn at_micros(self, micros: u32) -> Self {
        Self { micros: Some(micros), ..self }
    }

    /// The same occurrence in a later epoch of the clock. Local labels have no epochs: a
    /// wall-clock schedule waits until time passes what it has decided.
    #[must_use]
    pub fn in_epoch(self, epoch: u32) -> Self {
        match self.frame {
            Frame::Local => self,
            Frame::Instant => Self { epoch, ..self },
        }
    }

    pub const fn epoch(self) -> u32 {
        self.epoch
    }

    pub(super) const fn copy(self) -> u8 {
        self.copy
    }

    /// Seconds since 1970 on the label's own clock.
    pub(super) const fn seconds(self) -> i64 {
        self.seconds
    }

    /// The date that the label shows, or that its instant has in `zone`.
    pub fn date(self, zone: &Zone) -> Date {
        match self.frame {
            Frame::Local => civil_time(self.seconds).date(),
            Frame::Instant => zone.rules().to_datetime(timestamp(self.seconds)).date(),
        }
    }

    pub const fn is_local(self) -> bool {
        matches!(self.frame, Frame::Local)
    }
}

/// A reading of a clock without offset, from its seconds since 1970.
pub(super) fn civil_time(seconds: i64) -> DateTime {
    let timestamp = Timestamp::from_second(seconds).unwrap_or(if seconds < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    });
    Offset::UTC.to_datetime(timestamp)
}

/// The seconds since 1970 of a reading, `None` at the outer edge of the calendar.
pub(super) fn civil_seconds(reading: DateTime) -> Option<i64> {
    Offset::UTC.to_timestamp(reading).ok().map(Timestamp::as_second)
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", civil_time(self.seconds))?;
        if let Some(micros) = self.micros {
            write!(f, ".{micros:06}")?;
        }
        match self.frame {
            Frame::Local if self.copy > 1 => write!(f, "#{}", self.copy),
            Frame::Local => Ok(()),
            Frame::Instant if self.epoch > 0 => write!(f, "Z#e{}", self.epoch),
            Frame::Instant => f.write_str("Z"),
        }
    }
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        parse(text).ok_or_else(|| LabelError { text: text.chars().take(60).collect() })
    }
}

fn parse(text: &str) -> Option<Label> {
    const READING: usize = "2026-11-29T02:00:00".len();
    let reading = text.get(..READING)?;
    let shape = reading.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        10 => byte == b'T',
        13 | 16 => byte == b':',
        _ => byte.is_ascii_digit(),
    });
    // jiff reads second 60 as 59; a label never has it.
    if !shape || reading.ends_with("60") {
        return None;
    }
    let seconds = civil_seconds(reading.parse::<civil::DateTime>().ok()?)?;
    match &text[READING..] {
        "" => Some(Label::local(seconds, 1)),
        "#2" => Some(Label::local(seconds, 2)),
        "Z" => Some(Label::instant(seconds)),
        suffix => {
            let digits = suffix.strip_prefix("Z#e")?;
            let epoch = digits.parse().ok().filter(|epoch: &u32| epoch.to_string() == digits)?;
            (epoch > 0).then(|| Label::instant(seconds).in_epoch(epoch))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_form_reads_back() {
        for text in [
            "2026-11-29T02:00:00",
            "2026-11-01T01:30:00#2",
            "2026-11-29T18:00:00Z",
            "2026-11-29T18:00:00Z#e7",
            "1969-12-31T23:59:59Z",
        ] {
            assert_eq!(text.parse::<Label>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "2026-11-29",
            "2026-11-29 02:00:00",
            "2026-11-29T02:00:00#1",
            "2026-11-29T02:00:00#e1",
            "2026-11-29T02:00:00Z#e0",
            "2026-11-29T02:00:00Z#e01",
            "2026-11-29T02:00:60",
            "2026-02-30T02:00:00",
            "2026-11-29T02:00:00.5",
            "2026-11-29T02:00:00+08:00",
            "２026-11-29T02:00:00",
        ] {
            assert!(text.parse::<Label>().is_err(), "{text}");
        }
    }
}
