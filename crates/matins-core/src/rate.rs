//! Rate limits that hold over all nodes: a generic cell rate algorithm whose whole state is one
//! instant, so that it fits a column.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `100/m`: at most that many starts per period; a burst may use the whole period's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub count: u32,
    pub period: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a rate: expected a count and a period such as 10/s, 100/m or 5000/h")]
pub struct RateError(pub String);

impl std::str::FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let error = || RateError(text.chars().take(60).collect());
        let (count, unit) = text.trim().split_once('/').ok_or_else(error)?;
        let seconds = match unit.trim() {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            "d" => 86_400,
            _ => return Err(error()),
        };
        let count = count.trim();
        if !count.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error());
        }
        match count.parse() {
            Ok(count) if count > 0 => Ok(Self { count, period: Duration::from_secs(seconds) }),
            _ => Err(error()),
        }
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = match self.period.as_secs() {
            1 => "s",
            60 => "m",
            3_600 => "h",
            _ => "d",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Rate {
    fn interval_us(self) -> i64 {
        (self.period.as_micros() as i64 / i64::from(self.count)).max(1)
    }

    /// How many may start now. `spent_until` is the stored state (`None`: unused so far).
    pub fn available(self, spent_until: Option<Timestamp>, now: Timestamp) -> u32 {
        let now_us = now.as_microsecond();
        let horizon = now_us + self.period.as_micros() as i64;
        let spent = spent_until.map_or(now_us, |t| t.as_microsecond().max(now_us));
        ((horizon - spent) / self.interval_us()).clamp(0, i64::from(self.count)) as u32
    }

    /// The state after `taken` starts at `now`.
    pub fn take(self, spent_until: Option<Timestamp>, now: Timestamp, taken: u32) -> Timestamp {
        let spent = spent_until.map_or(now, |t| t.max(now)).as_microsecond();
        Timestamp::from_microsecond(spent + self.interval_us() * i64::from(taken))
            .unwrap_or(Timestamp::MAX)
    }

    /// When at least one may start again.
    pub fn next_at(self, spent_until: Option<Timestamp>, now: Timestamp) -> Timestamp {
        if self.available(spent_until, now) > 0 {
            return now;
        }
        let spent = spent_until.unwrap_or(now).as_microsecond();
        let at = spent + self.interval_us() - self.period.as_micros() as i64;
        Timestamp::from_microsecond(at).unwrap_or(Timestamp::MAX).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_never_holds_more_than_twice_the_count_and_the_long_run_is_exact() {
        let rate: Rate = "100/m".parse().unwrap();
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        let (mut state, mut total) = (None, 0u32);
        for second in 0..600 {
            let now = start + jiff::SignedDuration::from_secs(second);
            let n = rate.available(state, now);
            if n > 0 {
                state = Some(rate.take(state, now, n));
                total += n;
            }
        }
        assert!((1_000..=1_100).contains(&total), "{total}");
    }

    #[test]
    fn next_at_is_the_first_instant_with_a_slot() {
        let rate: Rate = "2/s".parse().unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let state = Some(rate.take(None, now, 2));
        assert_eq!(rate.available(state, now), 0);
        let at = rate.next_at(state, now);
        assert_eq!(rate.available(state, at), 1);
        assert_eq!(rate.available(state, at - jiff::SignedDuration::from_micros(1)), 0);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "0/s", "-1/s", "+1/s", "1", "1/w", "a/s", "99999999999/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text:?}");
        }
    }
}
