//! Stretches of time in which a zone keeps one offset from UTC.
//!
//! Only changes of the offset count: a zone that renames itself or redefines what is summer time
//! does not begin a new stretch.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The seconds that any question reaches: years 1 to 9998, so that every local reading has an
/// instant inside the range of timestamps.
pub(super) const FIRST_SECOND: i64 = -62_135_596_800;
pub(super) const LAST_SECOND: i64 = 253_370_764_799;

/// Seconds of UTC from `start` up to but not including `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub start: i64,
    pub end: i64,
    pub offset: i64,
    /// The offset before `start`, the same where nothing came before.
    pub before: i64,
    /// The offset from `end` on.
    pub after: i64,
}

impl Segment {
    pub(super) fn containing(zone: &TimeZone, second: i64) -> Self {
        let at = timestamp(second);
        let offset = offset_at(zone, at);
        let mut segment = Self {
            start: FIRST_SECOND,
            end: LAST_SECOND + 1,
            offset,
            before: offset,
            after: offset,
        };
        for transition in zone.following(at) {
            let after = i64::from(transition.offset().seconds());
            if after != offset {
                segment.end = transition.timestamp().as_second().min(LAST_SECOND + 1);
                segment.after = after;
                break;
            }
        }
        for transition in zone.preceding(timestamp(second + 1)) {
            let start = transition.timestamp().as_second();
            let before = offset_at(zone, timestamp(start - 1));
            if before != offset {
                segment.start = start.max(FIRST_SECOND);
                segment.before = before;
                break;
            }
        }
        segment
    }

    /// The stretch that follows, `None` at the end of time.
    pub(super) fn next(&self, zone: &TimeZone) -> Option<Self> {
        (self.end <= LAST_SECOND).then(|| Self::containing(zone, self.end))
    }

    /// The stretch before, `None` at the beginning of time.
    pub(super) fn previous(&self, zone: &TimeZone) -> Option<Self> {
        (self.start > FIRST_SECOND).then(|| Self::containing(zone, self.start - 1))
    }

    pub(super) const fn local_start(&self) -> i64 {
        self.start + self.offset
    }

    pub(super) const fn local_end(&self) -> i64 {
        self.end + self.offset
    }

    /// What the clock showed at the moment it was changed to `local_start`.
    pub(super) const fn local_before(&self) -> i64 {
        self.start + self.before
    }

    /// What the clock is changed to at `end`.
    pub(super) const fn local_after(&self) -> i64 {
        self.end + self.after
    }
}

pub(super) fn timestamp(second: i64) -> Timestamp {
    let second = second.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(second).unwrap_or_default()
}

fn offset_at(zone: &TimeZone, at: Timestamp) -> i64 {
    i64::from(zone.to_offset(at).seconds())
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZoneDatabase;

    use super::*;

    /// The engine looks at neighbours only: a reading that a fold repeats must not be repeated
    /// again, or skipped, by yet another change.
    #[test]
    fn changes_of_a_zone_lie_further_apart_than_they_reach() {
        let zones = TimeZoneDatabase::bundled();
        let mut seen = 0;
        for name in zones.available() {
            let zone = zones.get(name.as_str()).unwrap();
            let until = "2100-01-01T00:00:00Z".parse::<Timestamp>().unwrap().as_second();
            let mut segment = Segment::containing(&zone, FIRST_SECOND);
            while segment.end < until {
                let Some(next) = segment.next(&zone) else { break };
                assert_eq!(next.start, segment.end, "{}", name.as_str());
                assert_eq!(next.previous(&zone), Some(segment), "{}", name.as_str());
                assert_eq!((next.before, segment.after), (segment.offset, next.offset));
                let shifts =
                    (segment.offset - segment.before).abs() + (next.offset - segment.offset).abs();
                assert!(next.start - segment.start > shifts, "{} {next:?}", name.as_str());
                segment = next;
                seen += 1;
            }
        }
        assert!(seen > 10_000, "{seen}");
    }
}
