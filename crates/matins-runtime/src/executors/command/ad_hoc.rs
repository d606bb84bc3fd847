//! The payload of the built-in type `command`.

use std::collections::BTreeMap;
use std::path::Path;

use matins_core::Json;
use serde_json::{Map, Value};

use super::super::{CommandConfig, CommandLine, Setting};

/// `{"argv": [...]}` or `{"shell": "..."}`, with `cwd`, `env` and `stdin`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdHoc {
    pub line: CommandLine,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: Option<String>,
}

const EXPECTED: &str = "expected argv or shell, cwd, env, stdin";

impl AdHoc {
    /// Reads a payload or says which field of it is wrong.
    pub fn parse(payload: &Json) -> Result<Self, String> {
        let value: Value = payload.decode().map_err(|error| format!("payload: {error}"))?;
        let Value::Object(mut fields) = value else {
            return Err(format!("payload: {EXPECTED}, found no object"));
        };
        let line = match (fields.remove("argv"), fields.remove("shell")) {
            (Some(argv), None) => CommandLine::Argv(words(argv)?),
            (None, Some(shell)) => CommandLine::Shell(text("shell", shell)?),
            (Some(_), Some(_)) => return Err("payload: argv and shell exclude each other".into()),
            (None, None) => return Err("payload: neither argv nor shell is given".into()),
        };
        let cwd = fields.remove("cwd").map(|value| text("cwd", value)).transpose()?;
        let stdin = fields.remove("stdin").map(|value| text("stdin", value)).transpose()?;
        let env = fields.remove("env").map(variables).transpose()?.unwrap_or_default();
        match fields.keys().next() {
            Some(unknown) => Err(format!("payload: unknown field {unknown:?}, {EXPECTED}")),
            None => Ok(Self { line, cwd, env, stdin }),
        }
    }

    pub(super) fn into_config(self, base_dir: &Path) -> (CommandConfig, Vec<u8>) {
        let cwd = self.cwd.map_or_else(|| base_dir.to_owned(), |cwd| base_dir.join(cwd));
        let mut config = CommandConfig::new(self.line, cwd);
        config.env = self.env.into_iter().map(|(n, v)| (n, Setting::plain(v))).collect();
        (config, self.stdin.unwrap_or_default().into_bytes())
    }
}

fn words(value: Value) -> Result<Vec<String>, String> {
    let Value::Array(words) = value else {
        return Err("payload: argv: expected a list of strings".into());
    };
    let words: Result<Vec<String>, String> = words
        .into_iter()
        .enumerate()
        .map(|(index, word)| text(&format!("argv[{index}]"), word))
        .collect();
    words.and_then(|words| match words.first() {
        Some(program) if !program.is_empty() => Ok(words),
        _ => Err("payload: argv: expected a program and its arguments".into()),
    })
}

fn variables(value: Value) -> Result<BTreeMap<String, String>, String> {
    let Value::Object(entries) = value else {
        return Err("payload: env: expected an object of strings".into());
    };
    let entries: Map<String, Value> = entries;
    entries
        .into_iter()
        .map(|(name, value)| Ok((name.clone(), text(&format!("env.{name}"), value)?)))
        .collect()
}

fn text(field: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(format!("payload: {field}: expected a string, found {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(payload: &str) -> Result<AdHoc, String> {
        AdHoc::parse(&Json::parse(payload).unwrap())
    }

    #[test]
    fn both_forms_are_read() {
        let full = parse(r#"{"argv":["echo","a b"],"cwd":"sub","env":{"A":"1"},"stdin":"in"}"#);
        let full = full.unwrap();
        assert_eq!(full.line, CommandLine::Argv(vec!["echo".into(), "a b".into()]));
        let (config, stdin) = full.into_config(Path::new("/base"));
        assert_eq!((config.cwd.to_str(), &stdin[..]), (Some("/base/sub"), &b"in"[..]));
        assert_eq!(config.env["A"], Setting::plain("1"));
        let shell = parse(r#"{"shell":"echo $A"}"#).unwrap();
        assert_eq!(shell.line, CommandLine::Shell("echo $A".into()));
        assert_eq!(shell.into_config(Path::new("/base")).0.cwd, Path::new("/base"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (payload, expected) in [
            ("[]", "payload: expected argv or shell, cwd, env, stdin, found no object"),
            ("{}", "payload: neither argv nor shell is given"),
            (r#"{"argv":["a"],"shell":"b"}"#, "payload: argv and shell exclude each other"),
            (r#"{"argv":"ls"}"#, "payload: argv: expected a list of strings"),
            (r#"{"argv":[]}"#, "payload: argv: expected a program and its arguments"),
            (r#"{"argv":["ls",1]}"#, "payload: argv[1]: expected a string, found 1"),
            (r#"{"shell":null}"#, "payload: shell: expected a string, found null"),
            (r#"{"shell":"a","env":[]}"#, "payload: env: expected an object of strings"),
            (r#"{"shell":"a","env":{"X":2}}"#, "payload: env.X: expected a string, found 2"),
            (
                r#"{"shell":"a","usr":"b"}"#,
                "payload: unknown field \"usr\", expected argv or shell, cwd, env, stdin",
            ),
        ] {
            assert_eq!(parse(payload).unwrap_err(), expected, "{payload}");
        }
    }
}
