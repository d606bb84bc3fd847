//! Instants and lengths of time on the wire.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::duration::Span;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant: RFC 3339 in UTC, always with six digits of a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.6}", self.0))
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time such as 2026-11-29T18:00:00Z")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
        let refused = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
        let time: Timestamp = text.parse().map_err(|_| refused())?;
        // A finer instant would not come back equal: stores keep microseconds.
        Timestamp::from_microsecond(time.as_microsecond()).map(Time).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TimeVisitor)
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// The nominal instant of an occurrence: whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nominal(pub Timestamp);

impl Serialize for Nominal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.0}", self.0))
    }
}

impl JsonSchema for Nominal {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Nominal".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Time::json_schema(generator)
    }
}

/// A length of time as an answer gives it: seconds, whole when they are.
pub fn seconds(duration: Duration) -> Span {
    Span(duration)
}

/// `delay`, `wait` and the like on the way in; the core knows the accepted forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Length(pub Span);

impl Length {
    pub const fn get(self) -> Duration {
        self.0.get()
    }
}

impl JsonSchema for Length {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Length".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        super::schema::duration_in()
    }
}

/// Either a length of time from now or an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Later {
    In(Duration),
    At(Timestamp),
}

struct LaterVisitor;

impl Visitor<'_> for LaterVisitor {
    type Value = Later;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as 300 or \"5m\", or a time such as 2026-11-29T18:00:00Z")
    }

    fn visit_u64<E: serde::de::Error>(self, seconds: u64) -> Result<Later, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, seconds: f64) -> Result<Later, E> {
        matins_core::duration::from_seconds(seconds)
            .map(Later::In)
            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Float(seconds), &self))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Later, E> {
        if let Ok(length) = matins_core::duration::parse(text) {
            return Ok(Later::In(length));
        }
        TimeVisitor
            .visit_str::<E>(text)
            .map(|time| Later::At(time.0))
            .map_err(|_| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Later {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LaterVisitor).map_err(D::Error::custom)
    }
}

impl JsonSchema for Later {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Later".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        super::schema::duration_in()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_microseconds_and_nominal_ones_whole_seconds() {
        let at: Timestamp = "2026-11-29T18:00:00.1234567Z".parse().unwrap();
        assert_eq!(serde_json::to_string(&Time(at)).unwrap(), r#""2026-11-29T18:00:00.123456Z""#);
        let whole: Timestamp = "2026-11-29T18:00:00Z".parse().unwrap();
        assert_eq!(
            serde_json::to_string(&Time(whole)).unwrap(),
            r#""2026-11-29T18:00:00.000000Z""#
        );
        assert_eq!(serde_json::to_string(&Nominal(whole)).unwrap(), r#""2026-11-29T18:00:00Z""#);
    }

    #[test]
    fn times_are_read_with_their_offset_and_to_the_microsecond() {
        let time: Time = serde_json::from_str(r#""2026-11-29T20:00:00.1234567+02:00""#).unwrap();
        assert_eq!(time.0.to_string(), "2026-11-29T18:00:00.123456Z");
        for text in
            [r#""2026-11-29T18:00""#, r#""tomorrow""#, r#""""#, "5", r#""2026-02-30T00:00:00Z""#]
        {
            assert!(serde_json::from_str::<Time>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn later_is_a_length_or_an_instant() {
        assert_eq!(serde_json::from_str::<Later>("5").unwrap(), Later::In(Duration::from_secs(5)));
        assert_eq!(
            serde_json::from_str::<Later>("\"5m\"").unwrap(),
            Later::In(Duration::from_secs(300))
        );
        assert!(matches!(serde_json::from_str("\"2026-11-29T18:00:00Z\"").unwrap(), Later::At(_)));
        assert!(serde_json::from_str::<Later>("-1").is_err());
        assert!(serde_json::from_str::<Later>("\"soon\"").is_err());
    }
}
