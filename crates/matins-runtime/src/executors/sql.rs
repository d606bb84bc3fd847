//! What SQL executors are told: the entries of the file and the payloads. The drivers live in a
//! crate of their own (`matins-sql`), so that this one builds and is tested without a database.

use std::collections::BTreeMap;
use std::path::PathBuf;

use matins_core::Json;
use matins_core::task::Name;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Setting;

/// `connections: {NAME: …}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// An address that may hold a password.
    Postgres(Setting),
    Sqlite(PathBuf),
}

/// `tasks: {x: {executor: sql, …}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlConfig {
    pub connection: Name,
    pub sql: String,
    /// JSON pointers into the payload, one for each parameter. `None`: the payload is the list.
    pub params: Option<Vec<String>>,
}

/// One statement to be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    pub connection: Name,
    pub sql: String,
    /// As they were written: digits of numbers too.
    pub params: Vec<Json>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdHoc {
    connection: String,
    sql: String,
    #[serde(default)]
    params: Vec<Box<RawValue>>,
}

impl Statement {
    /// The payload of the built-in type `db_query`: `{"connection", "sql", "params"}`.
    pub fn from_payload(payload: &Json) -> Result<Self, String> {
        let AdHoc { connection, sql, params } =
            payload.decode().map_err(|error| format!("payload: {error}"))?;
        if sql.trim().is_empty() {
            return Err("payload: sql: expected a statement".to_owned());
        }
        Ok(Self {
            connection: connection.into(),
            sql,
            params: params.iter().map(|raw| json(raw)).collect(),
        })
    }

    /// The statement of a type of the file, with its parameters out of a payload.
    pub fn of_type(config: &SqlConfig, payload: &Json) -> Result<Self, String> {
        let params = match &config.params {
            Some(pointers) => {
                pointers.iter().map(|pointer| at(payload, pointer)).collect::<Result<_, _>>()?
            }
            None if payload.as_str().trim() == "null" => Vec::new(),
            None => {
                let list: Vec<Box<RawValue>> = payload.decode().map_err(|_| {
                    "payload: expected a list of parameters, because the type has no params in \
                     the file"
                        .to_owned()
                })?;
                list.iter().map(|raw| json(raw)).collect()
            }
        };
        Ok(Self { connection: config.connection.clone(), sql: config.sql.clone(), params })
    }
}

fn json(raw: &RawValue) -> Json {
    Json::trusted(raw.get())
}

/// The value at a JSON pointer, as it was written; what is not there is `null`.
fn at(payload: &Json, pointer: &str) -> Result<Json, String> {
    let broken = |error: serde_json::Error| format!("payload{pointer}: {error}");
    let mut found: Box<RawValue> = payload.decode().map_err(broken)?;
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        let text = found.get().trim_start();
        let next = if text.starts_with('{') {
            let mut entries: BTreeMap<String, Box<RawValue>> =
                serde_json::from_str(text).map_err(broken)?;
            entries.remove(&part)
        } else if text.starts_with('[') {
            let mut items: Vec<Box<RawValue>> = serde_json::from_str(text).map_err(broken)?;
            let index = part.parse::<usize>().ok().filter(|index| *index < items.len());
            index.map(|index| items.swap_remove(index))
        } else {
            None
        };
        match next {
            Some(next) => found = next,
            None => return Ok(Json::null()),
        }
    }
    Ok(json(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(payload: &str) -> Result<Statement, String> {
        Statement::from_payload(&Json::parse(payload).unwrap())
    }

    fn texts(params: &[Json]) -> Vec<&str> {
        params.iter().map(Json::as_str).collect()
    }

    #[test]
    fn a_payload_says_what_to_run() {
        let full = r#"{"connection": "shop", "sql": "SELECT $1", "params": [1.50, "a", null]}"#;
        let full = parse(full).unwrap();
        assert_eq!((&*full.connection, &*full.sql), ("shop", "SELECT $1"));
        assert_eq!(texts(&full.params), ["1.50", "\"a\"", "null"], "as they were written");
        assert!(parse(r#"{"connection": "shop", "sql": "VACUUM"}"#).unwrap().params.is_empty());
        for (payload, expected) in [
            ("[]", "payload: "),
            (r#"{"sql": "x"}"#, "missing field `connection`"),
            (r#"{"connection": "c"}"#, "missing field `sql`"),
            (r#"{"connection": "c", "sql": " "}"#, "payload: sql: expected a statement"),
            (r#"{"connection": "c", "sql": "x", "param": []}"#, "unknown field `param`"),
            (r#"{"connection": "c", "sql": "x", "params": {}}"#, "expected a sequence"),
        ] {
            let said = parse(payload).unwrap_err();
            assert!(said.contains(expected), "{payload}: {said}");
        }
    }

    #[test]
    fn a_type_takes_its_parameters_out_of_the_payload() {
        let config = |params: Option<&[&str]>| SqlConfig {
            connection: "shop".into(),
            sql: "SELECT $1".to_owned(),
            params: params.map(|list| list.iter().map(|p| (*p).to_owned()).collect()),
        };
        let take = |params: Option<&[&str]>, payload: &str| {
            Statement::of_type(&config(params), &Json::parse(payload).unwrap())
        };
        assert_eq!(texts(&take(None, "[1, \"x\"]").unwrap().params), ["1", "\"x\""]);
        assert!(take(None, "null").unwrap().params.is_empty());
        assert!(take(None, "{}").unwrap_err().contains("expected a list of parameters"));
        let payload = r#"{"a/b": [10, {"c": 1.50}], "d": "x"}"#;
        let pointers: &[&str] = &["/d", "/a~1b/1/c", "/a~1b/7", "/no", ""];
        let taken = take(Some(pointers), payload).unwrap();
        assert_eq!(texts(&taken.params), ["\"x\"", "1.50", "null", "null", payload]);
    }
}
