//! The keys of the server itself, and those that this build cannot honour.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use matins_core::limits::Limits;
use matins_core::request::check_name;
use matins_core::store::{Retention, StoreError};
use matins_runtime::engine::Traces;
use matins_runtime::executors::Setting;
use matins_server::auth::Role;

use super::cursor::{Cursor, Table, has_password};
use super::problem::Problem;
use super::reference;
use super::yaml::Value;
use super::{
    Auth, Log, LogFormat, Metrics, RedisMirror, RedisPlace, Secret, StaticToken, StoreLocation,
    TlsFiles,
};

/// 128 bits in base64.
const TOKEN_CHARS_MIN: usize = 22;

/// The schemes of other stores, so that a URL of theirs is answered by what is missing.
const OTHER_STORES: [&str; 2] = ["mysql:", "redis:"];

pub(crate) fn store(at: &Cursor<'_>) -> Option<StoreLocation> {
    let location = at.needed_setting()?;
    let text = location.value.as_str();
    if let Some(path) = text.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.starts_with(':') {
            return at.fail("expected a file name behind sqlite:");
        }
        return Some(StoreLocation::Sqlite(at.resolve(&PathBuf::from(path))));
    }
    if ["postgres:", "postgresql:"].iter().any(|scheme| text.starts_with(scheme)) {
        return match matins_store::postgres::location(text) {
            Ok(_) => Some(StoreLocation::Postgres(Secret(text.to_owned()))),
            Err(error) => at.fail(error.to_string()),
        };
    }
    if OTHER_STORES.iter().any(|scheme| text.starts_with(scheme)) {
        let scheme = text.split(':').next().unwrap_or_default();
        let message =
            format!("a {scheme} store is not available in this build; available: sqlite, postgres");
        at.reader.note(at.problem(message).hint("store: sqlite:matins.db"));
        return None;
    }
    let problem = at.problem("expected sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE");
    at.reader.note(match text.split_once("://") {
        _ if location.secret || has_password(text) => problem,
        Some((_, rest)) => problem.hint(format!("did you mean postgres://{rest}?")),
        None => problem.hint(format!("did you mean sqlite:{text}?")),
    });
    None
}

/// Redis in front of the store.
pub(crate) fn redis(table: &Table<'_>, store: Option<&StoreLocation>) -> Option<RedisPlace> {
    let prefix = table.get("redis_prefix", Cursor::filled);
    let url = table.get("redis", |at| {
        let setting = at.needed_setting()?;
        match matins_store::redis::location(&setting.value) {
            Ok(_) => Some(Secret(setting.value)),
            Err(StoreError::Broken(text)) => at.fail(text),
            Err(error) => at.fail(error.to_string()),
        }
    })?;
    if !matches!(store, Some(StoreLocation::Postgres(_))) {
        table.refuse(
            "redis",
            "needs a PostgreSQL store: store: postgres://USER:PASSWORD@HOST/DATABASE",
        );
        return None;
    }
    let usual = || matins_store::redis::Options::default().prefix;
    let after = Duration::from_secs(1)..=Duration::from_secs(600);
    Some(RedisPlace {
        url,
        prefix: prefix.unwrap_or_else(usual),
        outage_after: table
            .get("outage_after", |c| c.duration_in(after))
            .unwrap_or(Duration::from_secs(5)),
        accept_volatile: table.get("accept_volatile", Cursor::boolean).unwrap_or(false),
        journal_key: table.get("journal_key", journal_key),
        mirror: match table.get("redis_mirror", mirror) {
            None => Some(RedisMirror::default()),
            Some(mirror) => mirror,
        },
        outage_window: table
            .get("outage_window", |c| c.duration_in(WINDOW))
            .unwrap_or(Duration::from_secs(600)),
    })
}

/// Of an `outage_window`: a run must find room in it for its lease.
const WINDOW: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(86_400);

/// `Some(None)`: off.
#[expect(clippy::option_option, reason = "a problem, off, or what it says")]
fn mirror(at: &Cursor<'_>) -> Option<Option<RedisMirror>> {
    if matches!(&at.node.value, Value::Scalar(scalar) if scalar.text == "off") {
        return Some(None);
    }
    if !matches!(at.node.value, Value::Map(_)) {
        return at.expected("off, or a mapping of horizon, tasks and bytes");
    }
    let table = at.table(&reference::REDIS_MIRROR)?;
    let usual = RedisMirror::default();
    Some(Some(RedisMirror {
        horizon: table.get("horizon", Cursor::duration).unwrap_or(usual.horizon),
        tasks: table.get("tasks", |c| c.count(1..=10_000_000)).map_or(usual.tasks, u64::from),
        bytes: table.get("bytes", Cursor::bytes).unwrap_or(usual.bytes),
    }))
}

fn journal_key(at: &Cursor<'_>) -> Option<Secret> {
    let setting = at.setting()?;
    let is_read = at.reader.need_secrets || !setting.value.is_empty();
    if is_read && setting.value.len() < JOURNAL_KEY_MIN {
        return at.fail(format!("expected at least {JOURNAL_KEY_MIN} bytes that nobody can guess"));
    }
    Some(Secret(setting.value))
}

/// Of a `journal_key`.
const JOURNAL_KEY_MIN: usize = 16;

pub(crate) fn listen(at: &Cursor<'_>) -> Option<SocketAddr> {
    let text = at.text()?;
    let port_alone = text.strip_prefix(':').unwrap_or(&text).parse::<u16>();
    if let Ok(port) = port_alone {
        return Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    let named = text.replacen("localhost:", "127.0.0.1:", 1);
    match named.parse() {
        Ok(address) => Some(address),
        Err(_) => at.expected("an address and port such as 127.0.0.1:6284"),
    }
}

pub(crate) fn url(at: &Cursor<'_>) -> Option<String> {
    let text = at.filled()?;
    match reqwest::Url::parse(&text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
            Some(text.trim_end_matches('/').to_owned())
        }
        _ => at.expected("an http or https URL"),
    }
}

/// A URL that may be a secret by itself.
pub(crate) fn secret_url(at: &Cursor<'_>) -> Option<Setting> {
    let setting = at.setting()?;
    match reqwest::Url::parse(&setting.value) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Some(setting),
        _ if setting.secret && !at.reader.need_secrets => Some(setting),
        _ => at.expected("an http or https URL"),
    }
}

pub(crate) fn traces(at: &Cursor<'_>) -> Option<Traces> {
    let table = at.table(&reference::TRACES)?;
    let url = table.need("url", "the address of a collector", secret_url);
    let headers = table.get("headers", |c| c.settings(|_| Ok(()))).unwrap_or_default();
    let secret = |setting: Setting| matins_core::alert::channel::Secret::new(setting.value);
    Some(Traces {
        headers: headers.into_iter().map(|(name, value)| (name, secret(value))).collect(),
        sample: table.get("sample", |c| c.number(0.0..=1.0)).unwrap_or(1.0),
        url: secret(url?),
    })
}

pub(crate) fn host(at: &Cursor<'_>) -> Option<String> {
    let text = at.filled()?;
    let known = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
    if text.chars().all(known) {
        Some(text.to_ascii_lowercase())
    } else {
        at.expected("a host name")
    }
}

pub(crate) fn node_id(at: &Cursor<'_>) -> Option<String> {
    let name = at.filled()?;
    // It names lock files and stands before a colon in the names of workers.
    let known = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.len() > 100 || name.starts_with('.') || !name.chars().all(known) {
        return at.expected("at most 100 letters, digits, -, _ and .");
    }
    Some(name)
}

pub(crate) fn log(at: &Cursor<'_>) -> Option<Log> {
    let table = at.table(&reference::LOG)?;
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let levels = [
        ("error", tracing::Level::ERROR),
        ("warn", tracing::Level::WARN),
        ("info", tracing::Level::INFO),
        ("debug", tracing::Level::DEBUG),
        ("trace", tracing::Level::TRACE),
    ];
    let usual = Log::default();
    Some(Log {
        format: table.get("format", |c| c.word(&formats)).unwrap_or(usual.format),
        level: table.get("level", |c| c.word(&levels)).unwrap_or(usual.level),
    })
}

pub(crate) fn auth(at: &Cursor<'_>) -> Option<Auth> {
    let table = at.table(&reference::AUTH)?;
    let words = [("token", Metrics::Token), ("public", Metrics::Public)];
    Some(Auth {
        tokens: table.get("tokens", tokens).unwrap_or_default(),
        metrics: table.get("metrics", |c| c.word(&words)).unwrap_or_default(),
    })
}

pub(crate) fn tls(at: &Cursor<'_>) -> Option<TlsFiles> {
    let table = at.table(&reference::TLS)?;
    let cert = table.need("cert", "the file of the certificate", Cursor::path);
    let key = table.need("key", "the file of its key", Cursor::path);
    Some(TlsFiles { cert: cert?, key: key? })
}

fn tokens(at: &Cursor<'_>) -> Option<Vec<StaticToken>> {
    let mut tokens = Vec::new();
    for (key, entry) in at.named()? {
        if let Err(error) = check_name("name", &key.text) {
            let problem = Problem::new(key.place.clone(), entry.path.clone(), error.message);
            at.reader.note(problem);
        } else if let Some(token) = token(&entry, &key.text) {
            tokens.push(token);
        }
    }
    Some(tokens)
}

fn token(at: &Cursor<'_>, name: &str) -> Option<StaticToken> {
    let table = at.table(&reference::TOKEN)?;
    let secret = table.need("token", "the secret", secret);
    let role = table.need("role", "viewer, operator, admin, worker or enqueue", |c| {
        c.word(&Role::ALL.map(|role| (role.as_str(), role)))
    });
    let types = table.get("types", |c| c.list(Cursor::filled)).unwrap_or_default();
    if !types.is_empty() && role.is_some_and(|role| !role.takes_types()) {
        table.refuse("types", "limits tokens of the roles worker and enqueue alone");
    }
    Some(StaticToken { name: name.to_owned(), secret: secret?, role: role?, types })
}

fn secret(at: &Cursor<'_>) -> Option<Setting> {
    let setting = at.setting()?;
    if setting.value.trim().chars().count() < TOKEN_CHARS_MIN && at.reader.need_secrets {
        // The value itself stays out of the message.
        let problem = at.problem(format!("a token needs at least {TOKEN_CHARS_MIN} characters"));
        at.reader.note(problem.hint("make one: openssl rand -base64 24"));
        return None;
    }
    Some(setting)
}

pub(crate) fn retention(at: &Cursor<'_>) -> Option<Retention> {
    let table = at.table(&reference::RETENTION)?;
    let usual = Retention::default();
    let span = |name: &str, usual: Duration| table.get(name, Cursor::duration).unwrap_or(usual);
    let ledger = table.get("ledger", |c| match &c.node.value {
        Value::Scalar(scalar) if scalar.text == "forever" => Some(None),
        _ => c.duration().map(Some),
    });
    Some(Retention {
        completed: span("completed", usual.completed),
        cancelled: span("cancelled", usual.cancelled),
        failed: span("failed", usual.failed),
        ledger: ledger.unwrap_or(usual.ledger),
        occurrences: span("occurrences", usual.occurrences),
        audit: span("audit", usual.audit),
        alerts: span("alerts", usual.alerts),
    })
}

pub(crate) fn limits(at: &Cursor<'_>) -> Option<Limits> {
    let table = at.table(&reference::LIMITS)?;
    let usual = Limits::default();
    let size = |name: &str, usual: usize| {
        table.get(name, bounded_size).map_or(usual, |bytes| bytes as usize)
    };
    let count = |name: &str, low: u32, high: u32, usual: usize| {
        table.get(name, |c| c.count(low..=high)).map_or(usual, |n| n as usize)
    };
    Some(Limits {
        payload_bytes: size("payload_bytes", usual.payload_bytes),
        result_bytes: size("result_bytes", usual.result_bytes),
        output_bytes: size("output_bytes", usual.output_bytes),
        key_bytes: count("key_bytes", 16, 1_024, usual.key_bytes),
        batch_items: count("batch_items", 1, 1_000_000, usual.batch_items),
        batch_bytes: size("batch_bytes", usual.batch_bytes),
    })
}

/// From 1 KiB to 1 GiB: what one row of a store can hold.
fn bounded_size(at: &Cursor<'_>) -> Option<u64> {
    let bytes = at.bytes()?;
    if (1 << 10..=1 << 30).contains(&bytes) {
        Some(bytes)
    } else {
        at.expected("a size from 1KiB to 1GiB")
    }
}

/// Keys that mean something only with Redis in front of the store.
pub(crate) fn without_effect(table: &Table<'_>, redis: bool) {
    if !redis {
        if table.get("redis_mirror", mirror).flatten().is_some() {
            table.refuse("redis_mirror", "has no effect without redis");
        }
        for key in ["journal_key", "accept_volatile", "outage_after", "outage_window"] {
            table.refuse(key, "has no effect without redis");
        }
    }
}
