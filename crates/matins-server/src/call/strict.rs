//! Reading JSON strictly: an unknown, repeated, missing or mistyped field is refused by its path.
//!
//! A [`Value`] is a JSON text that is known to be well-formed; it is taken apart one level at a
//! time, so that whatever a type keeps as [`Json`](matins_core::Json) comes through byte for
//! byte. Null means absent. Must never recurse deeper than [`DEPTH_MAX`], whatever the input.

use std::fmt;

use serde::Deserialize;
use serde::de::{
    self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde_json::value::RawValue;

/// Levels of nesting in what is decoded; no request needs more than five.
const DEPTH_MAX: u8 = 24;

/// How `serde_json`'s raw value asks for its text.
const RAW: &str = "$serde_json::private::RawValue";

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Path to the value, empty for the whole.
    pub(crate) field: String,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Refusal {
    fn new(field: &str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into(), hint: None }
    }

    pub(super) fn within(mut self, parent: &str) -> Self {
        self.field = match self.field.as_str() {
            "" => parent.to_owned(),
            inner if inner.starts_with('[') => format!("{parent}{inner}"),
            inner => format!("{parent}.{inner}"),
        };
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

impl std::error::Error for Refusal {}

impl de::Error for Refusal {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new("", message.to_string())
    }

    fn invalid_type(got: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new("", format!("expected {}, got {}", wanted(expected), found(got)))
    }

    fn invalid_value(got: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(got, expected)
    }

    fn unknown_variant(got: &str, expected: &'static [&'static str]) -> Self {
        let message = format!("expected one of {}, got {:?}", expected.join(", "), cut(got));
        Self { hint: near(got, expected), ..Self::new("", message) }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let known = match expected {
            [] => "no field is expected here".to_owned(),
            _ => format!("known fields: {}", expected.join(", ")),
        };
        let hint = near(field, expected).unwrap_or(known);
        Self { hint: Some(hint), ..Self::new(&cut(field), "is not a known field") }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(field, "is required")
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new(field, "is given twice")
    }
}

/// What serde says it expects, in the words of people.
fn wanted(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    match text.as_str() {
        "i16" | "i32" | "i64" => "an integer".to_owned(),
        "u16" => "a whole number from 0 to 65535".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "u64" | "usize" => "a whole number of at least 0".to_owned(),
        "f64" => "a number".to_owned(),
        "a sequence" => "a list".to_owned(),
        text if text.starts_with("struct ") => "an object".to_owned(),
        _ => text,
    }
}

fn found(got: Unexpected<'_>) -> String {
    match got {
        Unexpected::Str(text) => format!("the text {:?}", cut(text)),
        Unexpected::Unsigned(n) => n.to_string(),
        Unexpected::Signed(n) => n.to_string(),
        Unexpected::Float(n) => n.to_string(),
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unit | Unexpected::Option => "null".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        other => other.to_string(),
    }
}

fn cut(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// The known word that a typing slip would turn into `got`.
fn near(got: &str, known: &[&str]) -> Option<String> {
    if got.len() > 40 {
        return None;
    }
    let lower = got.to_ascii_lowercase().replace('-', "_");
    let best = known.iter().map(|word| (slips(&lower, word), *word)).min()?;
    (best.0 <= 1 + best.1.len() / 4).then(|| format!("did you mean {}?", best.1))
}

/// Edits between two short texts (Levenshtein), a swap of neighbours counting as two.
fn slips(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// A well-formed JSON text without outer white space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value<'de> {
    text: &'de str,
    depth: u8,
    /// Members of this object that are passed over.
    ignored: &'static [&'static str],
}

impl<'de> Value<'de> {
    /// Checks the syntax. The error tells line and column.
    pub(crate) fn parse(text: &'de str) -> Result<Self, serde_json::Error> {
        let raw: &RawValue = serde_json::from_str(text)?;
        Ok(Self { text: raw.get(), depth: 0, ignored: &[] })
    }

    /// The same object without these members.
    pub(crate) fn ignoring(self, ignored: &'static [&'static str]) -> Self {
        Self { ignored, ..self }
    }

    pub(crate) fn decode<T: Deserialize<'de>>(self) -> Result<T, Refusal> {
        T::deserialize(self)
    }

    /// The items of a list, each to be decoded by itself.
    pub(crate) fn items(self) -> Result<Vec<Self>, Refusal> {
        if !self.text.starts_with('[') {
            return Err(self.unexpected(&"a list"));
        }
        let raws: Vec<&'de RawValue> = serde_json::from_str(self.text).map_err(|e| broken(&e))?;
        Ok(raws.into_iter().map(|raw| self.child(raw)).collect())
    }

    fn child(self, raw: &'de RawValue) -> Self {
        Self { text: raw.get(), depth: self.depth + 1, ignored: &[] }
    }

    /// `known`: the only names allowed, checked while reading so that an object of a million
    /// fields costs no more than its first wrong one.
    fn members(
        self,
        known: Option<&'static [&'static str]>,
    ) -> Result<Vec<(String, Self)>, Refusal> {
        self.check_depth()?;
        let mut refusal = None;
        let seed = MembersSeed { known, ignored: self.ignored, refusal: &mut refusal };
        let mut text = serde_json::Deserializer::from_str(self.text);
        let members = seed.deserialize(&mut text);
        match (refusal, members) {
            (Some(refusal), _) => Err(refusal),
            (None, Err(error)) => Err(broken(&error)),
            (None, Ok(members)) => {
                Ok(members.into_iter().map(|(name, raw)| (name, self.child(raw))).collect())
            }
        }
    }

    fn check_depth(self) -> Result<(), Refusal> {
        if self.depth >= DEPTH_MAX {
            return Err(Refusal::new("", "is nested too deeply"));
        }
        Ok(())
    }

    fn string(self) -> Result<String, Refusal> {
        serde_json::from_str(self.text).map_err(|e| broken(&e))
    }

    fn unexpected(self, expected: &dyn Expected) -> Refusal {
        let got = match self.text.as_bytes().first() {
            Some(b'{') => Unexpected::Map,
            Some(b'[') => Unexpected::Seq,
            Some(b'n') => Unexpected::Unit,
            Some(b't' | b'f') => Unexpected::Bool(self.text == "true"),
            Some(b'"') => {
                return match self.string() {
                    Ok(text) => de::Error::invalid_type(Unexpected::Str(&text), expected),
                    Err(refusal) => refusal,
                };
            }
            _ => Unexpected::Other(self.text),
        };
        de::Error::invalid_type(got, expected)
    }
}

/// A text that is well-formed but cannot be decoded, such as a lone surrogate.
fn broken(error: &serde_json::Error) -> Refusal {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    Refusal::new("", format!("cannot be read: {what}"))
}

struct MembersSeed<'a> {
    known: Option<&'static [&'static str]>,
    ignored: &'static [&'static str],
    refusal: &'a mut Option<Refusal>,
}

impl<'de> DeserializeSeed<'de> for MembersSeed<'_> {
    type Value = Vec<(String, &'de RawValue)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MembersSeed<'_> {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(String, &'de RawValue)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if self.ignored.contains(&name.as_str()) {
                map.next_value::<&'de RawValue>()?;
                continue;
            }
            let refused = match self.known {
                Some(known) if !known.contains(&name.as_str()) => {
                    Some(de::Error::unknown_field(&name, known))
                }
                _ if members.iter().any(|(seen, _)| *seen == name) => {
                    Some(Refusal::new(&cut(&name), "is given twice"))
                }
                _ => None,
            };
            if let Some(refused) = refused {
                *self.refusal = Some(refused);
                return Err(de::Error::custom("refused"));
            }
            members.push((name, map.next_value()?));
        }
        Ok(members)
    }
}

struct Members<'de> {
    rest: std::vec::IntoIter<(String, Value<'de>)>,
    current: Option<(String, Value<'de>)>,
}

impl<'de> MapAccess<'de> for Members<'de> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refusal> {
        self.current = self.rest.find(|(_, value)| value.text != "null");
        match &self.current {
            Some((name, _)) => seed.deserialize(name.as_str().into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        match self.current.take() {
            Some((name, value)) => seed.deserialize(value).map_err(|error| error.within(&name)),
            None => Err(de::Error::custom("a value was asked for before its name")),
        }
    }
}

struct Items<'de> {
    rest: std::vec::IntoIter<Value<'de>>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refusal> {
        let Some(value) = self.rest.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(value).map(Some).map_err(|error| error.within(&format!("[{index}]")))
    }
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.text.as_bytes().first() {
            Some(b'{') => {
                let rest = self.members(None)?.into_iter();
                visitor.visit_map(Members { rest, current: None })
            }
            Some(b'[') => {
                self.check_depth()?;
                let raws: Vec<&'de RawValue> =
                    serde_json::from_str(self.text).map_err(|e| broken(&e))?;
                let values: Vec<Self> = raws.into_iter().map(|raw| self.child(raw)).collect();
                visitor.visit_seq(Items { rest: values.into_iter(), index: 0 })
            }
            Some(b'"') => visitor.visit_string(self.string()?),
            Some(b't') => visitor.visit_bool(true),
            Some(b'f') => visitor.visit_bool(false),
            Some(b'n') => visitor.visit_unit(),
            _ => self.number(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        if !self.text.starts_with('{') {
            return Err(self.unexpected(&visitor));
        }
        let rest = self.members(Some(fields))?.into_iter();
        visitor.visit_map(Members { rest, current: None })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.text {
            "null" => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        if name == RAW {
            let mut text = serde_json::Deserializer::from_str(self.text);
            return text.deserialize_newtype_struct(name, visitor).map_err(|e| broken(&e));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        if !self.text.starts_with('"') {
            return Err(self.unexpected(&"a word"));
        }
        let word: String = self.string()?;
        visitor.visit_enum(word.into_deserializer())
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> Value<'de> {
    fn number<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        if let Ok(n) = self.text.parse::<u64>() {
            return visitor.visit_u64(n);
        }
        if let Ok(n) = self.text.parse::<i64>() {
            return visitor.visit_i64(n);
        }
        match self.text.parse::<f64>() {
            Ok(n) if n.is_finite() => visitor.visit_f64(n),
            _ => Err(de::Error::invalid_value(Unexpected::Other(&cut(self.text)), &visitor)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use matins_core::Json;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its reading is tested")]
    struct Inner {
        count: u32,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "read through Debug only")]
    struct Sample {
        name: String,
        #[serde(default)]
        payload: Option<Json>,
        #[serde(default)]
        tags: Vec<String>,
        #[serde(default)]
        inner: Option<Inner>,
        #[serde(default)]
        word: Option<matins_core::task::OnDuplicate>,
        #[serde(default)]
        ratio: Option<f64>,
    }

    fn read(text: &str) -> Result<Sample, Refusal> {
        Value::parse(text).unwrap().decode()
    }

    fn refused(text: &str) -> String {
        let refusal = read(text).unwrap_err();
        format!("{refusal} | {}", refusal.hint.as_deref().unwrap_or_default())
    }

    #[test]
    fn payloads_come_through_byte_for_byte() {
        let payload = r#"{"id":1970670598291982290,"u":18446744073709551615,"e":1E400,"z":-0, "s":"\ud800\u0000","k":1,"k":2}"#;
        let sample =
            read(&format!(r#" {{"name":"a","payload": {payload} ,"tags":null}} "#)).unwrap();
        assert_eq!(sample.payload.unwrap().as_str(), payload);
        assert!(sample.tags.is_empty());
    }

    #[test]
    fn refusals_name_field_expectation_and_value() {
        for (text, part) in [
            (r#"{"nmae":"x"}"#, "nmae: is not a known field | did you mean name?"),
            (r#"{"zzz":"x"}"#, "zzz: is not a known field | known fields: name, payload"),
            (r#"{"name":"x","name":"y"}"#, "name: is given twice"),
            ("{}", "name: is required"),
            (r#"{"name":null}"#, "name: is required"),
            (r#"{"name":7}"#, "name: expected a string, got 7"),
            (r#"{"name":"x","inner":{"count":"7"}}"#, "inner.count: expected a whole number"),
            (r#"{"name":"x","inner":{"count":-7}}"#, "inner.count: expected a whole number"),
            (r#"{"name":"x","inner":{"count":1e99}}"#, "inner.count: expected a whole number"),
            (r#"{"name":"x","inner":{"cuont":1}}"#, "inner.cuont: is not a known field"),
            (r#"{"name":"x","inner":[]}"#, "inner: expected an object, got a list"),
            (r#"{"name":"x","tags":["a",1]}"#, "tags[1]: expected a string, got 1"),
            (r#"{"name":"x","word":"rejct"}"#, "expected one of return, reject, replace"),
            (r#"{"name":"x","ratio":1e400}"#, "ratio: expected a number, got 1e400"),
            (r#"{"name":"\ud800"}"#, "name: cannot be read"),
            ("[]", "expected an object, got a list"),
            ("7", "expected an object, got 7"),
        ] {
            let got = refused(text);
            assert!(got.contains(part), "{text}: {got}");
        }
    }

    #[test]
    fn depth_and_width_are_bounded() {
        let deep =
            format!(r#"{{"name":"x","payload":{}{}}}"#, "[".repeat(400_000), "]".repeat(400_000));
        assert_eq!(read(&deep).unwrap().payload.unwrap().byte_len(), 800_000);
        let window = format!("{}{}", "[".repeat(400_000), "]".repeat(400_000));
        let refusal = Value::parse(&window)
            .unwrap()
            .decode::<matins_core::schedule::CatchUpWindow>()
            .unwrap_err();
        assert!(refusal.message.contains("nested") || refusal.message.contains("auto"));
        let wide: Vec<String> = (0..200_000).map(|n| format!("\"k{n}\":1")).collect();
        assert!(refused(&format!("{{{}}}", wide.join(","))).starts_with("k0: is not a known"));
    }
}
