//! `matins.yaml` and what overrides it, as the plain settings of the other crates.
//!
//! Built-in defaults, then the file, then the environment, then flags. Nothing is guessed:
//! an unknown key, a key given twice and a value of another kind are refused with their place,
//! all of a file at once. Must never put a secret into an error, a log or `Debug` output.

mod alerts;
mod cursor;
#[cfg(test)]
mod fuzz;
mod lint;
mod payload;
mod pools;
mod problem;
mod reference;
mod schedules;
mod server;
mod tasks;
#[cfg(test)]
mod tests;
mod yaml;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use matins_core::alert::policy::Policy;
use matins_core::cron::Zone;
use matins_core::schedule::ScheduleSpec;
use matins_runtime::engine::Traces;
use matins_runtime::executors::Setting;
use matins_runtime::rules::{AllowCommands, Rules};
use matins_server::auth::Role;

use cursor::{Cursor, Env, Reader, Table};
use yaml::{Key, Node, Place, Value};

pub(crate) use lint::{Finding, lint, next_fires};
pub(crate) use problem::{ConfigError, Problem};

/// The file's usual name.
pub(crate) const FILE_NAME: &str = "matins.yaml";

/// What `matins init` writes.
pub(crate) const INIT: &str = include_str!("config/init.yaml");

pub(crate) const DEFAULT_PORT: u16 = 6284;

/// Largest file read.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreLocation {
    Sqlite(PathBuf),
    /// An address that may hold a password.
    Postgres(Secret),
}

/// Redis in front of a PostgreSQL store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedisPlace {
    pub(crate) url: Secret,
    pub(crate) prefix: String,
    /// After how long without PostgreSQL tasks are journalled.
    pub(crate) outage_after: Duration,
    pub(crate) accept_volatile: bool,
    pub(crate) journal_key: Option<Secret>,
    /// What is mirrored; `None`: nothing.
    pub(crate) mirror: Option<RedisMirror>,
    /// How long a node may work from Redis alone.
    pub(crate) outage_window: Duration,
}

/// How much accepted work lies in Redis too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RedisMirror {
    pub(crate) horizon: Duration,
    pub(crate) tasks: u64,
    pub(crate) bytes: u64,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    pub(crate) level: tracing::Level,
}

impl Default for RedisMirror {
    fn default() -> Self {
        Self { horizon: Duration::from_secs(3_600), tasks: 100_000, bytes: 256 << 20 }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: tracing::Level::INFO }
    }
}

/// Who may read `/metrics` when the server does not listen on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Metrics {
    #[default]
    Token,
    Public,
}

/// A token that the file gives.
#[derive(Debug, Clone)]
pub(crate) struct StaticToken {
    pub(crate) name: String,
    pub(crate) secret: Setting,
    pub(crate) role: Role,
    pub(crate) types: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Auth {
    pub(crate) tokens: Vec<StaticToken>,
    pub(crate) metrics: Metrics,
}

/// Certificate and key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// Everything a node is told.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The file it came from.
    pub(crate) file: Option<PathBuf>,
    /// Content of that file, so that an unchanged one is not applied again.
    pub(crate) source: String,
    pub(crate) store: StoreLocation,
    /// Named by a flag or the environment: whoever does that means a store that is there.
    pub(crate) store_is_asked_for: bool,
    pub(crate) migrate_by_itself: bool,
    pub(crate) store_connections: usize,
    pub(crate) redis: Option<RedisPlace>,
    pub(crate) listen: SocketAddr,
    pub(crate) public_url: Option<String>,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) data_dir: PathBuf,
    pub(crate) node_id: Option<String>,
    pub(crate) lease: Duration,
    pub(crate) heartbeat: Duration,
    /// An outside switch that is called with every heartbeat.
    pub(crate) heartbeat_url: Option<Setting>,
    pub(crate) traces: Option<Traces>,
    /// How often a canary goes through each pool.
    pub(crate) canary: Option<Duration>,
    pub(crate) stall_after: Duration,
    pub(crate) poll: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) display_timezone: Zone,
    pub(crate) log: Log,
    pub(crate) auth: Auth,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) rules: Rules,
    pub(crate) schedules: Vec<ScheduleSpec>,
    /// Secrets of alert channels that stand in the file itself.
    pub(crate) bare_secrets: Vec<String>,
}

/// Where a configuration comes from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    /// `-c FILE`; else it is looked for.
    pub(crate) file: Option<PathBuf>,
    /// Top-level keys given as flags: key, flag, value.
    pub(crate) flags: Vec<(&'static str, &'static str, String)>,
    /// Whether `env:` and `file:` references must lead somewhere.
    pub(crate) need_secrets: bool,
}

/// The process environment.
pub(crate) fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Sources {
    /// Finds the file, reads it, and puts environment and flags over it.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let env = &process_env;
        let file = self.file.clone().or_else(|| env("MATINS_CONFIG").map(PathBuf::from));
        let file = file.filter(|file| !file.as_os_str().is_empty()).or_else(discover);
        match file {
            Some(file) => {
                let source = read(&file)?;
                self.read(Some(&file), source, env)
            }
            None => self.read(None, String::new(), env),
        }
    }

    /// What environment and flags say, where `file` is as good as empty.
    pub(crate) fn around(&self, file: &Path) -> Result<Config, ConfigError> {
        self.read(Some(file), String::new(), &process_env)
    }

    /// Reads a text as if it stood in `file`.
    pub(crate) fn read(
        &self,
        file: Option<&Path>,
        source: String,
        env: &Env<'_>,
    ) -> Result<Config, ConfigError> {
        let file = file.map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
        let here = || std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        let base = file.as_ref().and_then(|f| f.parent().map(Path::to_owned)).unwrap_or_else(here);
        let (tree, problems) = yaml::parse(&source);
        let broken = tree.is_none() && !problems.is_empty();
        let hidden = if broken { words_behind_colons(&source) } else { Vec::new() };
        let (problems, hidden) = (Mutex::new(problems), Mutex::new(hidden));
        let reader = Reader { env, base, need_secrets: self.need_secrets, problems, hidden };
        let root = self.overlaid(tree, env);
        let mut config = if broken { None } else { config(&Cursor::root(&reader, &root)) };
        let problems = reader.problems.into_inner().unwrap_or_else(PoisonError::into_inner);
        let hidden = reader.hidden.into_inner().unwrap_or_else(PoisonError::into_inner);
        match config.take() {
            Some(config) if problems.is_empty() => Ok(Config { file, source, ..config }),
            _ => Err(ConfigError::new(file.as_deref(), source, problems).hide(hidden)),
        }
    }

    /// The tree of the file with the values of environment and flags in it.
    fn overlaid(&self, tree: Option<Node>, env: &Env<'_>) -> Node {
        let empty = || Node { place: Place::File(0..0), value: Value::Map(Vec::new()) };
        let mut root = tree.filter(|tree| !tree.is_null()).unwrap_or_else(empty);
        let Value::Map(entries) = &mut root.value else { return root };
        let mut put = |name: &str, origin: &str, text: &str| {
            let node = Node::outside(text, origin);
            if let Some((_, old)) = entries.iter_mut().find(|(key, _)| key.text == name) {
                *old = node;
            } else {
                let key = Key { text: name.to_owned(), place: node.place.clone() };
                entries.push((key, node));
            }
        };
        for key in reference::TOP.keys.iter().filter(|key| key.env) {
            let variable = reference::variable(key.name);
            if let Some(text) = env(&variable).filter(|text| !text.is_empty()) {
                put(key.name, &format!("environment variable {variable}"), &text);
            }
        }
        for (name, flag, text) in &self.flags {
            put(name, flag, text);
        }
        root
    }
}

fn config(at: &Cursor<'_>) -> Option<Config> {
    let table = at.table(&reference::TOP)?;
    let base = at.reader.base.clone();
    let secs = Duration::from_secs;
    let span = |name: &str, low: Duration, high: Duration, usual: Duration| {
        table.get(name, |c| c.duration_in(low..=high)).unwrap_or(usual)
    };
    let data_dir = table.get("data_dir", Cursor::path).unwrap_or_else(|| base.join(".matins"));
    let store = table.get("store", server::store);
    let (policy, bare_secrets) = table.get("alerts", alerts::alerts).unwrap_or_default();
    let mut rules = rules(&table, base);
    if matches!(store, Some(StoreLocation::Postgres(_))) && !table.has("allow_commands") {
        // Whoever may write to a database must not thereby get a shell.
        rules.allow_commands = AllowCommands::None;
    }
    let public_url = table.get("public_url", server::url);
    let node_id = table.get("node_id", server::node_id);
    rules.alerts = Arc::new(Policy {
        public_url: public_url.clone(),
        source: node_id.clone().unwrap_or_else(crate::serve::hostname),
        ..policy
    });
    let config = Config {
        file: None,
        source: String::new(),
        store_is_asked_for: table.is_from_outside("store"),
        redis: server::redis(&table, store.as_ref()),
        store: store.unwrap_or_else(|| StoreLocation::Sqlite(data_dir.join("matins.db"))),
        migrate_by_itself: table
            .get("migrate", |c| c.word(&[("auto", true), ("manual", false)]))
            .unwrap_or(true),
        store_connections: table
            .get("store_connections", |c| c.count(3..=100))
            .map_or(3, |count| count as usize),
        listen: table
            .get("listen", server::listen)
            .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT)),
        public_url,
        allowed_hosts: table.get("allowed_hosts", |c| c.list(server::host)).unwrap_or_default(),
        node_id,
        lease: span("lease", secs(1), secs(3_600), secs(30)),
        heartbeat: span("heartbeat", secs(1), secs(3_600), secs(30)),
        heartbeat_url: table.get("heartbeat_url", server::secret_url),
        traces: table.get("traces", server::traces),
        canary: Some(table.get("canary", pools::canary).unwrap_or(secs(300)))
            .filter(|every| !every.is_zero()),
        stall_after: span("stall_after", secs(1), secs(3_600), secs(45)),
        poll: span("poll", Duration::from_millis(10), secs(60), secs(1)),
        drain_timeout: span("drain_timeout", secs(0), secs(3_600), secs(30)),
        display_timezone: table
            .get("display_timezone", schedules::timezone)
            .and_then(|name| Zone::parse(&name).ok())
            .unwrap_or_else(Zone::utc),
        log: table.get("log", server::log).unwrap_or_default(),
        auth: table.get("auth", server::auth).unwrap_or_default(),
        tls: table.get("tls", server::tls),
        schedules: table
            .get("schedules", |c| schedules::schedules(c, &rules.limits))
            .unwrap_or_default(),
        bare_secrets,
        rules,
        data_dir,
    };
    server::without_effect(&table, config.redis.is_some());
    Some(config)
}

fn rules(table: &Table<'_>, base_dir: PathBuf) -> Rules {
    let usual = Rules::default();
    let defaults = table.get("defaults", |c| {
        c.table(&reference::DEFAULTS).map(|defaults| tasks::policy(&defaults))
    });
    Rules {
        defaults: defaults.unwrap_or_default(),
        types: table.get("tasks", tasks::tasks).unwrap_or_default(),
        pools: table.get("task_pools", pools::pools).unwrap_or_default(),
        limits: table.get("limits", server::limits).unwrap_or_default(),
        retention: table.get("retention", server::retention).unwrap_or_default(),
        allow_commands: table
            .get("allow_commands", pools::allow_commands)
            .unwrap_or(usual.allow_commands),
        connections: table.get("connections", tasks::connections).unwrap_or_default(),
        http: table.get("http", pools::http).unwrap_or_default(),
        pings: table.get("pings", pools::pings).unwrap_or_default(),
        base_dir,
        alerts: usual.alerts,
    }
}

/// `./matins.yaml` or the nearest one above.
fn discover() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join(FILE_NAME)).find(|file| file.is_file())
}

fn read(file: &Path) -> Result<String, ConfigError> {
    let failed = |message: String| {
        let place = Place::Outside(file.display().to_string().into());
        ConfigError::new(Some(file), String::new(), vec![Problem::new(place, "", message)])
    };
    let size = std::fs::metadata(file).map_err(|error| failed(cannot_read(&error)))?.len();
    if size > FILE_BYTES_MAX {
        return Err(failed(format!("is larger than {FILE_BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(file).map_err(|error| failed(cannot_read(&error)))
}

fn cannot_read(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        std::io::ErrorKind::InvalidData => "is not UTF-8 text".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

/// The reference page `docs/reference/configuration.md`.
pub(crate) fn reference_page() -> String {
    reference::markdown()
}

/// While nobody can tell which values a file has, any of them may be a secret. The marks between
/// them are shown: one of these is what is wrong.
fn words_behind_colons(source: &str) -> Vec<Range<usize>> {
    let (mut hidden, mut is_value) = (Vec::<Range<usize>>::new(), false);
    for (at, c) in source.char_indices() {
        match c {
            '\n' => is_value = false,
            ':' => is_value = true,
            c if is_value && c.is_alphanumeric() => match hidden.last_mut() {
                Some(word) if word.end == at => word.end += c.len_utf8(),
                _ => hidden.push(at..at + c.len_utf8()),
            },
            _ => {}
        }
    }
    hidden
}
