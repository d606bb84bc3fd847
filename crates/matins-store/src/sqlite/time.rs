//! Instants as the file keeps them: whole microseconds.

use jiff::Timestamp;

/// For a column. What is finer than a microsecond is cut off.
pub(super) fn us(at: Timestamp) -> i64 {
    at.as_microsecond()
}

/// From a column. What no timestamp can say is the nearest one that can.
pub(super) fn ts(us: i64) -> Timestamp {
    Timestamp::from_microsecond(us).unwrap_or(if us < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

pub(super) fn opt_us(at: Option<Timestamp>) -> Option<i64> {
    at.map(us)
}

pub(super) fn opt_ts(us: Option<i64>) -> Option<Timestamp> {
    us.map(ts)
}
