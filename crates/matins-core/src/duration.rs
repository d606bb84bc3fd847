//! Durations as people write them: `300`, `0.2`, `"200ms"`, `"5m"`, `"1h30m"`.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest duration accepted anywhere: a hundred years. Keeps sums inside a timestamp's range.
pub const DURATION_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a duration: expected seconds such as 300 or 0.2, or units such as 200ms, 30s, 5m, 1h30m, 7d"
)]
pub struct DurationError {
    pub text: String,
}

/// Parses seconds or a chain of number and unit (`ms s m h d w`), largest unit first or not.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError { text: text.chars().take(60).collect() };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(error());
    }
    if trimmed.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return number(trimmed, 1.0).ok_or_else(error);
    }
    let mut rest = trimmed;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
        let (value, tail) = rest.split_at(digits);
        let unit_len = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return Err(error()),
        };
        total = total.saturating_add(number(value, seconds).ok_or_else(error)?);
        rest = tail.trim_start();
    }
    if total > DURATION_MAX { Err(error()) } else { Ok(total) }
}

/// Microsecond grain: exact for the whole part, rounded for a fraction.
fn number(digits: &str, unit_seconds: f64) -> Option<Duration> {
    if !digits.bytes().next()?.is_ascii_digit() || !digits.bytes().last()?.is_ascii_digit() {
        return None;
    }
    from_seconds(digits.parse::<f64>().ok()? * unit_seconds)
}

/// Seconds as JSON and YAML numbers give them.
pub fn from_seconds(seconds: f64) -> Option<Duration> {
    if !seconds.is_finite() || seconds < 0.0 || seconds > DURATION_MAX.as_secs_f64() {
        return None;
    }
    Some(Duration::from_micros((seconds * 1e6).round() as u64))
}

/// `1h30m`, `5m`, `200ms`: the shortest form that [`parse`] reads back.
pub fn format(duration: Duration) -> String {
    let micros = duration.as_micros() as u64;
    if micros == 0 {
        return "0s".to_owned();
    }
    if !micros.is_multiple_of(1_000_000) {
        return if micros < 1_000_000 && micros.is_multiple_of(1_000) {
            format!("{}ms", micros / 1_000)
        } else {
            format!("{}s", micros as f64 / 1e6)
        };
    }
    let mut seconds = micros / 1_000_000;
    let mut text = String::new();
    for (unit, size) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        if seconds >= size {
            let _ = write!(text, "{}{unit}", seconds / size);
            seconds %= size;
        }
    }
    text
}

/// A duration on the wire: read in any of the forms, written as seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

impl Span {
    pub const fn secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub const fn get(self) -> Duration {
        self.0
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format(self.0))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let micros = self.0.as_micros() as u64;
        if micros.is_multiple_of(1_000_000) {
            serializer.serialize_u64(micros / 1_000_000)
        } else {
            serializer.serialize_f64(micros as f64 / 1e6)
        }
    }
}

struct SpanVisitor;

impl serde::de::Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration: seconds such as 300 or 0.2, or text such as \"5m\"")
    }

    fn visit_u64<E: serde::de::Error>(self, seconds: u64) -> Result<Span, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, seconds: i64) -> Result<Span, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, seconds: f64) -> Result<Span, E> {
        from_seconds(seconds)
            .map(Span)
            .ok_or_else(|| E::custom(DurationError { text: seconds.to_string() }))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
        parse(text).map(Span).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

/// A limit that must be written out to be absent: a duration, or the word `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    After(Duration),
    None,
}

impl Timeout {
    pub const fn limit(self) -> Option<Duration> {
        match self {
            Self::After(duration) => Some(duration),
            Self::None => None,
        }
    }
}

impl Default for Timeout {
    /// Five minutes (SPEC: every task has a limit).
    fn default() -> Self {
        Self::After(Duration::from_secs(300))
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(duration) => f.write_str(&format(*duration)),
            Self::None => f.write_str("none"),
        }
    }
}

impl std::str::FromStr for Timeout {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        match text {
            "none" => Ok(Self::None),
            _ => match parse(text)? {
                Duration::ZERO => Err(DurationError { text: text.to_owned() }),
                duration => Ok(Self::After(duration)),
            },
        }
    }
}

impl Serialize for Timeout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::After(duration) => Span(*duration).serialize(serializer),
            Self::None => serializer.serialize_str("none"),
        }
    }
}

struct TimeoutVisitor;

impl serde::de::Visitor<'_> for TimeoutVisitor {
    type Value = Timeout;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration above zero such as 300 or \"5m\", or \"none\"")
    }

    fn visit_u64<E: serde::de::Error>(self, seconds: u64) -> Result<Timeout, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, seconds: i64) -> Result<Timeout, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, seconds: f64) -> Result<Timeout, E> {
        match from_seconds(seconds) {
            Some(duration) if !duration.is_zero() => Ok(Timeout::After(duration)),
            _ => Err(E::custom(DurationError { text: seconds.to_string() })),
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timeout, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Timeout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimeoutVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_reference_promises() {
        for (text, millis) in [
            ("300", 300_000),
            ("0.2", 200),
            ("200ms", 200),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("7d", 604_800_000),
            ("1.5s", 1_500),
        ] {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for text in ["", "-5", "5x", "m", "1h-3m", "1e3", "NaN", "inf", ".", "5m3", "٥m"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn written_form_reads_back() {
        for micros in [0u64, 1, 200_000, 1_500_000, 60_000_000, 5_400_000_000, 90_061_000_000] {
            let duration = Duration::from_micros(micros);
            assert_eq!(parse(&format(duration)).unwrap(), duration, "{}", format(duration));
        }
    }

    #[test]
    fn no_limit_must_be_written_out() {
        assert_eq!(serde_json::from_str::<Timeout>("\"none\"").unwrap(), Timeout::None);
        assert!(serde_json::from_str::<Timeout>("0").is_err());
        assert!(serde_json::from_str::<Timeout>("null").is_err());
    }
}
