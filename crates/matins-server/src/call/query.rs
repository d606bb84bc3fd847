//! Reading a query string strictly, by the same rules as a body. An empty value means absent,
//! so that a form may send all of its fields.

use serde::de::value::SeqDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Unexpected,
    Visitor,
};

use super::strict::Refusal;

/// Most parameters of one query.
const PARAMETERS_MAX: usize = 64;

/// Reads `text` (without the `?`) into a type whose fields are texts, numbers, booleans, or
/// lists of words separated by commas.
pub(crate) fn read<'de, T: Deserialize<'de>>(text: &str) -> Result<T, Refusal> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for part in text.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let name = decode(name, true)
            .ok_or_else(|| refusal("query", "a name is not percent-encoded UTF-8"))?;
        let value =
            decode(value, true).ok_or_else(|| refusal(&name, "is not percent-encoded UTF-8"))?;
        if pairs.iter().any(|(seen, _)| *seen == name) {
            return Err(refusal(&name, "is given twice"));
        }
        if pairs.len() == PARAMETERS_MAX {
            return Err(refusal("query", "has too many parameters"));
        }
        pairs.push((name, value));
    }
    T::deserialize(Query { pairs })
}

fn refusal(field: &str, message: &str) -> Refusal {
    let error: Refusal = de::Error::custom(message);
    error.within(field)
}

/// Undoes percent-encoding; `None` when it is broken or not UTF-8.
pub(crate) fn decode(text: &str, plus_is_blank: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let high = char::from(*rest.next()?).to_digit(16)?;
                let low = char::from(*rest.next()?).to_digit(16)?;
                (high * 16 + low) as u8
            }
            b'+' if plus_is_blank => b' ',
            other => *other,
        });
    }
    String::from_utf8(bytes).ok()
}

struct Query {
    pairs: Vec<(String, String)>,
}

impl<'de> Deserializer<'de> for Query {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_map(Pairs { rest: self.pairs.into_iter(), current: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match self.pairs.iter().find(|(name, _)| !fields.contains(&name.as_str())) {
            Some((name, _)) => Err(de::Error::unknown_field(name, fields)),
            None => self.deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
        ignored_any
    }
}

struct Pairs {
    rest: std::vec::IntoIter<(String, String)>,
    current: Option<(String, String)>,
}

impl<'de> MapAccess<'de> for Pairs {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refusal> {
        self.current = self.rest.find(|(_, value)| !value.is_empty());
        match &self.current {
            Some((name, _)) => seed.deserialize(name.as_str().into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        match self.current.take() {
            Some((name, text)) => seed.deserialize(Text(text)).map_err(|error| error.within(&name)),
            None => Err(de::Error::custom("a value was asked for before its name")),
        }
    }
}

/// One value: a text that becomes whatever the field wants.
struct Text(String);

impl Text {
    fn number<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        if let Ok(n) = self.0.parse::<u64>() {
            return visitor.visit_u64(n);
        }
        match self.0.parse::<i64>() {
            Ok(n) => visitor.visit_i64(n),
            Err(_) => Err(de::Error::invalid_type(Unexpected::Str(&self.0), &visitor)),
        }
    }
}

macro_rules! numbers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
            self.number(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for Text {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_string(self.0)
    }

    numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.0.as_str() {
            "1" | "true" => visitor.visit_bool(true),
            "0" | "false" => visitor.visit_bool(false),
            other => Err(de::Error::invalid_type(Unexpected::Str(other), &"1, 0, true or false")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_enum(self.0.into_deserializer())
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        let words: Vec<Self> =
            self.0.split(',').filter(|word| !word.is_empty()).map(|w| Self(w.to_owned())).collect();
        visitor.visit_seq(SeqDeserializer::new(words.into_iter()))
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple tuple_struct map
        struct identifier ignored_any
    }
}

impl IntoDeserializer<'_, Refusal> for Text {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use matins_core::State;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    #[derive(Default)]
    struct Sample {
        state: Vec<State>,
        q: Option<String>,
        limit: Option<usize>,
        follow: bool,
    }

    #[test]
    fn reads_lists_numbers_and_blanks() {
        let got: Sample = read("state=pending,failed&q=a%20b+c%2Cd&limit=7&follow=1").unwrap();
        let want = Sample {
            state: vec![State::Pending, State::Failed],
            q: Some("a b c,d".to_owned()),
            limit: Some(7),
            follow: true,
        };
        assert_eq!(got, want);
        assert_eq!(read::<Sample>("state=&q=&limit=").unwrap(), Sample::default());
    }

    #[test]
    fn refuses_by_name() {
        for (text, field) in [
            ("limti=7", "limti"),
            ("limit=x", "limit"),
            ("limit=-1", "limit"),
            ("limit=99999999999999999999", "limit"),
            ("q=%zz", "q"),
            ("q=%ff", "q"),
            ("q=%f", "q"),
            ("q=1&q=2", "q"),
            ("follow=yes", "follow"),
            ("state=pending,lost", "state"),
        ] {
            assert_eq!(read::<Sample>(text).unwrap_err().field, field, "{text}");
        }
    }
}
