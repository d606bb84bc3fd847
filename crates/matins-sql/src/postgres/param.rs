//! A parameter out of JSON. It is sent as text, so that the server reads it as the type that it
//! found for the parameter: dates, numbers of any length, identifiers, enumerations, arrays.

use std::error::Error;

use bytes::BytesMut;
use matins_core::Json;
use serde_json::value::RawValue;
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type};

#[derive(Debug)]
pub(super) struct Param<'j>(pub(super) &'j Json);

impl ToSql for Param<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match text(ty, self.0.as_str())? {
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    tokio_postgres::types::to_sql_checked!();
}

/// A JSON text as the server reads a value of this type; `None` is NULL.
fn text(ty: &Type, json: &str) -> Result<Option<String>, serde_json::Error> {
    let json = json.trim();
    Ok(match (ty.kind(), json.as_bytes().first()) {
        _ if json == "null" => None,
        (Kind::Domain(inner), _) => text(inner, json)?,
        _ if *ty == Type::JSON || *ty == Type::JSONB => Some(json.to_owned()),
        (Kind::Array(item), Some(b'[')) => Some(array(item, json)?),
        (_, Some(b'"')) => Some(serde_json::from_str(json)?),
        _ => Some(json.to_owned()),
    })
}

fn array(item: &Type, json: &str) -> Result<String, serde_json::Error> {
    let items: Vec<Box<RawValue>> = serde_json::from_str(json)?;
    let mut literal = String::from("{");
    for (index, raw) in items.iter().enumerate() {
        if index > 0 {
            literal.push(',');
        }
        let is_json = *item == Type::JSON || *item == Type::JSONB;
        if raw.get().starts_with('[') && !is_json {
            literal.push_str(&array(item, raw.get())?);
            continue;
        }
        match text(item, raw.get())? {
            None => literal.push_str("NULL"),
            Some(text) => {
                literal.push('"');
                for c in text.chars() {
                    if matches!(c, '"' | '\\') {
                        literal.push('\\');
                    }
                    literal.push(c);
                }
                literal.push('"');
            }
        }
    }
    literal.push('}');
    Ok(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_written_as_the_server_reads_it() {
        let cases = [
            (Type::INT4, "null", None),
            (Type::JSONB, " null ", None),
            (Type::NUMERIC, "12345678901234567890.50", Some("12345678901234567890.50")),
            (Type::BOOL, "true", Some("true")),
            (Type::TEXT, r#""a\"b""#, Some("a\"b")),
            (Type::DATE, r#""2026-11-29""#, Some("2026-11-29")),
            (Type::TEXT, r#"{"a": 1}"#, Some(r#"{"a": 1}"#)),
            (Type::JSONB, r#""text""#, Some(r#""text""#)),
            (Type::JSON, "[1, 2]", Some("[1, 2]")),
            (Type::INT4_ARRAY, "[1, null, 3]", Some(r#"{"1",NULL,"3"}"#)),
            (Type::INT4_ARRAY, "[[1], [2]]", Some(r#"{{"1"},{"2"}}"#)),
            (Type::TEXT_ARRAY, r#"["a,b", "c\"\\"]"#, Some(r#"{"a,b","c\"\\"}"#)),
            (Type::JSONB_ARRAY, r#"[[1], {"a": "b"}]"#, Some(r#"{"[1]","{\"a\": \"b\"}"}"#)),
            (Type::INT4_ARRAY, r#""{1,2}""#, Some("{1,2}")),
        ];
        for (ty, json, expected) in cases {
            assert_eq!(text(&ty, json).unwrap().as_deref(), expected, "{ty} {json}");
        }
    }
}
