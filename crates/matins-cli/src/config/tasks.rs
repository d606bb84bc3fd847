//! `tasks:` and the policy keys of `defaults:`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use matins_core::duration::Span;
use matins_core::limits::RETRIES_MAX;
use matins_core::request::check_name;
use matins_core::retry::Backoff;
use matins_core::task::Name;
use matins_runtime::executors::sql::{Connection, SqlConfig};
use matins_runtime::executors::{CommandConfig, CommandLine, HttpConfig, ResultMode};
use matins_runtime::rules::{AD_HOC, Policy, TypeExecutor, TypeRule};

use super::cursor::{Cursor, Table};
use super::problem::Problem;
use super::reference;
use super::yaml::Value;

const COMMAND_KEYS: [&str; 10] = [
    "command",
    "shell",
    "env",
    "cwd",
    "user",
    "nice",
    "memory_max",
    "cpu_max",
    "result",
    "permanent_exit_codes",
];
const SQL_KEYS: [&str; 3] = ["connection", "sql", "params"];
const HTTP_KEYS: [&str; 6] = ["url", "method", "headers", "body", "connect_timeout", "redirects"];

pub(crate) fn tasks(at: &Cursor<'_>) -> Option<BTreeMap<Name, TypeRule>> {
    let mut rules = BTreeMap::new();
    for (key, entry) in at.named()? {
        let refused = match check_name("type", &key.text) {
            Err(error) => Some((error.message, None)),
            Ok(()) if AD_HOC.contains(&key.text.as_str()) => Some((
                format!("{} is built in: its payload says what to run", key.text),
                Some("give your type another name; a policy for all types stands under defaults"),
            )),
            Ok(()) => None,
        };
        if let Some((message, hint)) = refused {
            let mut problem = Problem::new(key.place.clone(), entry.path.clone(), message);
            problem.hint = hint.map(str::to_owned);
            at.reader.note(problem);
        } else if let Some(rule) = task(&entry) {
            rules.insert(key.text.as_str().into(), rule);
        }
    }
    Some(rules)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Command,
    Http,
    Sql,
}

fn task(at: &Cursor<'_>) -> Option<TypeRule> {
    let table = at.table(&reference::TASK)?;
    let policy = policy(&table);
    let kind = table.need("executor", "command, http or sql", executor)?;
    let executor = match kind {
        Kind::Command => command(at, &table),
        Kind::Http => http(&table),
        Kind::Sql => sql(&table),
    };
    let all = [
        (Kind::Command, "command", COMMAND_KEYS.as_slice()),
        (Kind::Http, "http", HTTP_KEYS.as_slice()),
        (Kind::Sql, "sql", SQL_KEYS.as_slice()),
    ];
    for (_, other, keys) in all.iter().filter(|(other, ..)| *other != kind) {
        for name in keys.iter().filter(|name| table.has(name)) {
            table.refuse(name, &format!("belongs to executor {other}"));
        }
    }
    if kind != Kind::Command {
        table.refuse("on_timeout", "belongs to executor command");
    }
    let mut rule = TypeRule::new(executor?);
    rule.policy = policy;
    rule.rate_limit = table.get("rate_limit", Cursor::parsed);
    rule.concurrency = table.get("concurrency", |c| c.count(1..=1_000_000));
    rule.concurrency_key = table.get("concurrency_key", json_pointer);
    rule.per_key = table.get("per_key", |c| c.count(1..=1_000_000));
    let on_lease_loss = |c: &Cursor<'_>| c.word(&[("stop", false), ("finish", true)]);
    rule.finish_on_lease_loss = table.get("on_lease_loss", on_lease_loss).unwrap_or(false);
    Some(rule)
}

fn executor(at: &Cursor<'_>) -> Option<Kind> {
    match at.node.value {
        Value::Scalar(ref scalar) if scalar.text == "agent" => at.fail(
            "the executor agent is not available in this build; available: command, http, sql",
        ),
        _ => at.word(&[("command", Kind::Command), ("http", Kind::Http), ("sql", Kind::Sql)]),
    }
}

pub(crate) fn policy(table: &Table<'_>) -> Policy {
    Policy {
        timeout: table.get("timeout", Cursor::timeout),
        grace: table.get("grace", |c| c.duration_in(Duration::ZERO..=Duration::from_secs(3_600))),
        max_retries: table.get("max_retries", |c| c.count(0..=RETRIES_MAX)),
        backoff: table.get("backoff", backoff),
        max_losses: table.get("max_losses", |c| c.count(1..=1_000)),
        max_interruptions: table.get("max_interruptions", |c| c.count(0..=100_000)),
    }
}

fn backoff(at: &Cursor<'_>) -> Option<Backoff> {
    let table = at.table(&reference::BACKOFF)?;
    let usual = Backoff::default();
    let span = |name| table.get(name, Cursor::duration).map(Span);
    let initial = span("initial").unwrap_or(usual.initial);
    let backoff = Backoff {
        initial,
        factor: table.get("factor", |c| c.number(1.0..=1_000.0)).unwrap_or(usual.factor),
        // A longer first wait than the usual cap raises the cap, unless one is given.
        max: span("max").unwrap_or(usual.max.max(initial)),
        jitter: table.get("jitter", |c| c.number(0.0..=1.0)).unwrap_or(usual.jitter),
    };
    match backoff.validate() {
        Ok(()) => Some(backoff),
        Err(error) => {
            let place = table.cursor(error.field).unwrap_or_else(|| at.clone());
            place.fail(format!("expected {}, got {}", error.expected, error.got))
        }
    }
}

fn json_pointer(at: &Cursor<'_>) -> Option<String> {
    let text = at.text()?;
    let escapes_are_known = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if text.starts_with('/') && escapes_are_known {
        return Some(text);
    }
    at.expected("a JSON pointer into the payload such as /tenant")
}

fn argv(at: &Cursor<'_>) -> Option<Vec<String>> {
    if let Value::Scalar(_) = at.node.value {
        let problem = at.problem("expected a list of words such as [python3, sync.py]");
        at.reader.note(problem.hint("a line for the shell stands under shell:"));
        return None;
    }
    let words = at.list(|word| Some(word.text()))?;
    let words: Vec<String> = words.into_iter().collect::<Option<_>>()?;
    match words.first() {
        Some(program) if !program.is_empty() => Some(words),
        _ => at.expected("a list of words that begins with a program"),
    }
}

/// `command` or `shell`, one of the two.
fn command_line(at: &Cursor<'_>, table: &Table<'_>) -> Option<CommandLine> {
    match (table.has("command"), table.has("shell")) {
        (true, true) => {
            table.refuse("shell", "stands beside command: give one of the two");
            None
        }
        (true, false) => table.get("command", argv).map(CommandLine::Argv),
        (false, true) => table.get("shell", Cursor::filled).map(CommandLine::Shell),
        (false, false) => {
            let message = "the key command or shell is missing: what is to be run?";
            let place = at.key.unwrap_or(&at.node.place).clone();
            at.reader.note(Problem::new(place, at.path.clone(), message));
            None
        }
    }
}

fn command(at: &Cursor<'_>, table: &Table<'_>) -> Option<TypeExecutor> {
    let line = command_line(at, table);
    let base = &at.reader.base;
    let cwd = table.get("cwd", Cursor::path).unwrap_or_else(|| base.clone());
    let mut config = CommandConfig::new(line.clone().unwrap_or(CommandLine::Argv(vec![])), cwd);
    config.env = table.get("env", |c| c.settings(check_variable)).unwrap_or_default();
    config.user = table.get("user", Cursor::filled);
    config.nice = table.get("nice", |c| c.integer(-20..=19)).map(|nice| nice as i32);
    config.memory_max = table.get("memory_max", |c| match c.bytes()? {
        small if small < 1 << 20 => c.expected("at least 1MiB"),
        bytes => Some(bytes),
    });
    config.cpu_max = table.get("cpu_max", |c| c.number(0.01..=1_024.0));
    let modes = [
        ("last_json_line", ResultMode::LastJsonLine),
        ("stdout", ResultMode::Stdout),
        ("none", ResultMode::None),
    ];
    config.result = table.get("result", |c| c.word(&modes)).unwrap_or_default();
    let codes = table.get("permanent_exit_codes", |c| {
        c.list(|code| code.integer(1..=255).map(|code| code as i32))
    });
    config.permanent_exit_codes = codes.unwrap_or(config.permanent_exit_codes);
    config.on_timeout = table.get("on_timeout", on_timeout);
    line.map(|_| TypeExecutor::Command(config))
}

fn on_timeout(at: &Cursor<'_>) -> Option<(CommandLine, Duration)> {
    let table = at.table(&reference::ON_TIMEOUT)?;
    let line = command_line(at, &table);
    let bounds = Duration::from_millis(100)..=Duration::from_secs(3_600);
    let limit = table.get("timeout", |c| c.duration_in(bounds));
    Some((line?, limit.unwrap_or(Duration::from_secs(30))))
}

pub(crate) fn check_variable(name: &str) -> Result<(), String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err("is not the name of an environment variable".to_owned());
    }
    Ok(())
}

fn http(table: &Table<'_>) -> Option<TypeExecutor> {
    let url = table.need("url", "the URL to call", |c| {
        let setting = c.setting()?;
        // A reference that was not followed is no URL yet.
        if setting.secret && setting.value.is_empty() && !c.reader.need_secrets {
            return Some(setting);
        }
        match reqwest::Url::parse(&setting.value) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Some(setting),
            _ if setting.secret => c.fail("expected an http or https URL behind the reference"),
            _ => c.expected("an http or https URL"),
        }
    });
    let mut config = HttpConfig::new(url.clone()?);
    config.method = table.get("method", method).unwrap_or(config.method);
    config.headers = table.get("headers", |c| c.settings(check_header)).unwrap_or_default();
    config.body = table.get("body", Cursor::setting);
    let bounds = Duration::from_millis(10)..=Duration::from_secs(300);
    let connect = table.get("connect_timeout", |c| c.duration_in(bounds));
    config.connect_timeout = connect.unwrap_or(config.connect_timeout);
    config.redirects = table.get("redirects", |c| c.count(0..=20)).unwrap_or(config.redirects);
    Some(TypeExecutor::Http(config))
}

fn sql(table: &Table<'_>) -> Option<TypeExecutor> {
    let connection = table.need("connection", "a name under connections", Cursor::filled);
    let sql = table.need("sql", "the statement to run", Cursor::filled);
    // The whole payload may be a parameter too.
    let pointer = |c: &Cursor<'_>| match c.text()? {
        text if text.is_empty() => Some(text),
        _ => json_pointer(c),
    };
    let params = table.get("params", |c| c.list(pointer));
    let (connection, sql) = (connection?, sql?);
    Some(TypeExecutor::Sql(SqlConfig { connection: connection.as_str().into(), sql, params }))
}

/// `connections:`.
pub(crate) fn connections(at: &Cursor<'_>) -> Option<BTreeMap<Name, Connection>> {
    let mut connections = BTreeMap::new();
    for (key, entry) in at.named()? {
        if let Err(error) = check_name("connection", &key.text) {
            let problem = Problem::new(key.place.clone(), entry.path.clone(), error.message);
            at.reader.note(problem);
        } else if let Some(connection) = connection(&entry) {
            connections.insert(key.text.as_str().into(), connection);
        }
    }
    Some(connections)
}

fn connection(at: &Cursor<'_>) -> Option<Connection> {
    let setting = at.setting()?;
    let text = setting.value.as_str();
    if let Some(path) = text.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.starts_with(':') {
            return at.fail("expected a file name behind sqlite:");
        }
        return Some(Connection::Sqlite(at.resolve(&PathBuf::from(path))));
    }
    // A reference that was not followed is no address yet.
    if setting.secret && text.is_empty() && !at.reader.need_secrets {
        return Some(Connection::Postgres(setting));
    }
    if !["postgres:", "postgresql:"].iter().any(|scheme| text.starts_with(scheme)) {
        // What was found may be a password: it is not repeated.
        return at.fail("expected postgres://USER:PASSWORD@HOST/DATABASE or sqlite:PATH");
    }
    match matins_store::postgres::location(text) {
        Ok(_) => Some(Connection::Postgres(setting)),
        Err(error) => at.fail(error.to_string()),
    }
}

fn method(at: &Cursor<'_>) -> Option<String> {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    at.word(&known.map(|word| (word, word.to_owned())))
}

fn check_header(name: &str) -> Result<(), String> {
    match reqwest::header::HeaderName::from_bytes(name.as_bytes()) {
        Ok(name) if name == "host" || name == "content-length" => {
            Err(format!("{name} is set by Matins"))
        }
        Ok(_) => Ok(()),
        Err(_) => Err("is not the name of a header".to_owned()),
    }
}
