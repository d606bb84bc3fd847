//! Who looks, and what stays covered: the one place that decides which parts of a payload are
//! not shown. Must never change what a worker is handed or what is stored.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use matins_core::Json;
use matins_runtime::Rules;
use matins_runtime::rules::{AD_HOC_COMMAND, AD_HOC_HTTP};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::value::RawValue;

/// What stands for a value that is not shown.
const MASK: &str = "***";

/// Whether the values are shown that payloads hand to a program as its secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrets {
    Shown,
    Masked,
}

/// What the view of a task depends on beside the task.
#[derive(Debug, Clone)]
pub struct Eye {
    pub rules: Arc<Rules>,
    pub now: Timestamp,
    pub secrets: Secrets,
}

impl Secrets {
    /// The payload of a task of type `kind` as it may be shown.
    pub fn payload<'a>(self, kind: &str, payload: &'a Json) -> Cow<'a, Json> {
        match self {
            Self::Shown => Cow::Borrowed(payload),
            Self::Masked => masked(kind, payload),
        }
    }
}

/// Only what has something to cover is written anew; the rest stays byte for byte.
fn masked<'a>(kind: &str, payload: &'a Json) -> Cow<'a, Json> {
    let covered = match kind {
        AD_HOC_COMMAND => "env",
        AD_HOC_HTTP => "headers",
        _ => return Cow::Borrowed(payload),
    };
    if !payload.as_str().starts_with('{') {
        return Cow::Borrowed(payload);
    }
    // What cannot be read to its end may hide anything.
    let all_covered = || Json::string(MASK);
    let Ok(mut fields) = payload.decode::<Fields<'_>>() else {
        return Cow::Owned(all_covered());
    };
    let mut found = false;
    for (_, value) in fields.0.iter_mut().filter(|(name, _)| name == covered) {
        found = true;
        *value = Cow::Owned(values_masked(value));
    }
    if !found {
        return Cow::Borrowed(payload);
    }
    Cow::Owned(Json::of(&fields).unwrap_or_else(|_| all_covered()))
}

/// The names of an object stay, for people to see what is given.
fn values_masked(value: &RawValue) -> Box<RawValue> {
    let mask = Json::string(MASK);
    let names = serde_json::from_str::<Fields<'_>>(value.get()).ok();
    let text = names.and_then(|mut fields| {
        for (_, value) in &mut fields.0 {
            *value = Cow::Owned(raw(&mask)?);
        }
        serde_json::to_string(&fields).ok()
    });
    let text = text.map_or(mask, Json::trusted);
    raw(&text).unwrap_or_default()
}

fn raw(json: &Json) -> Option<Box<RawValue>> {
    RawValue::from_string(json.as_str().to_owned()).ok()
}

/// An object as it is written: names in their order, also those that are there twice, and
/// values as text.
struct Fields<'a>(Vec<(String, Cow<'a, RawValue>)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    fields.push((name, Cow::Borrowed(value)));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Reading)
    }
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, &**value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: &str, payload: &str) -> String {
        let payload = Json::parse(payload).unwrap();
        Secrets::Masked.payload(kind, &payload).to_string()
    }

    #[test]
    fn values_of_the_environment_are_covered_and_nothing_else() {
        for (payload, expected) in [
            (
                r#"{"argv":["x"], "n":1970670598291982290,"env":{"A":"S3KR1T-42","B":"é"}}"#,
                r#"{"argv":["x"],"n":1970670598291982290,"env":{"A":"***","B":"***"}}"#,
            ),
            (r#"{"\u0065nv":{"A":"S3KR1T-42"}}"#, r#"{"env":{"A":"***"}}"#),
            (r#"{"env":"S3KR1T-42"}"#, r#"{"env":"***"}"#),
            (
                r#"{"env":{"A":"1"},"env":{"A":"S3KR1T-42"}}"#,
                r#"{"env":{"A":"***"},"env":{"A":"***"}}"#,
            ),
            (r#"{"\ud800":1,"env":{"A":"S3KR1T-42"}}"#, r#""***""#),
            (r#"{"argv": ["env"] }"#, r#"{"argv": ["env"] }"#),
            ("null", "null"),
        ] {
            assert_eq!(shown("command", payload), expected);
            assert_eq!(shown("sync", payload), Json::parse(payload).unwrap().as_str());
        }
        let headers = r#"{"url":"https://x","headers":{"Authorization":"Bearer S3KR1T-42"}}"#;
        let covered = r#"{"url":"https://x","headers":{"Authorization":"***"}}"#;
        assert_eq!(shown("http_call", headers), covered);
    }
}
