//! Executors: how the work of a type is done, and what its file entry may say.

pub mod command;
pub mod http;
pub mod sql;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use matins_core::Json;
use matins_core::executor::Executor;
use matins_core::request::FieldError;
use matins_core::task::Name;

use crate::rules::{AD_HOC_COMMAND, AD_HOC_HTTP, AD_HOC_SQL, Rules, TypeExecutor};
use command::{CommandExecutor, CommandHost};
use http::{HttpConfigError, HttpExecutor, HttpHost};

/// What the executors of a node share.
#[derive(Clone)]
pub struct Hosts {
    pub command: CommandHost,
    pub http: HttpHost,
}

/// A type whose entry cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("tasks.{kind}.{error}")]
pub struct ExecutorError {
    pub kind: Name,
    #[source]
    pub error: HttpConfigError,
}

/// Executors by type.
pub type Executors = BTreeMap<Name, Arc<dyn Executor>>;

/// The executors of the types that a file defines, and of the ad-hoc ones that it allows. Rust
/// handlers, and SQL with its drivers, are added by whoever has them.
pub fn executors(rules: &Rules, hosts: &Hosts) -> Result<Executors, ExecutorError> {
    let mut executors = Executors::new();
    if rules.allow_commands.allows(AD_HOC_COMMAND) {
        let executor = CommandExecutor::ad_hoc(hosts.command.clone(), rules.base_dir.clone());
        executors.insert(AD_HOC_COMMAND.into(), Arc::new(executor));
    }
    if rules.allow_commands.allows(AD_HOC_HTTP) {
        let executor = HttpExecutor::ad_hoc(hosts.http.clone());
        executors.insert(AD_HOC_HTTP.into(), Arc::new(executor));
    }
    for (kind, rule) in &rules.types {
        let executor: Arc<dyn Executor> = match &rule.executor {
            TypeExecutor::Command(config) => {
                Arc::new(CommandExecutor::of_type(hosts.command.clone(), config.clone()))
            }
            TypeExecutor::Http(config) => {
                let made = HttpExecutor::of_type(hosts.http.clone(), config);
                Arc::new(made.map_err(|error| ExecutorError { kind: kind.clone(), error })?)
            }
            TypeExecutor::Sql(_) | TypeExecutor::Handler => continue,
        };
        executors.insert(kind.clone(), executor);
    }
    Ok(executors)
}

/// Refuses a payload that the built-in type `kind` cannot be run from. Payloads of other types
/// are their own business.
pub fn check_ad_hoc(kind: &str, payload: &Json) -> Result<(), FieldError> {
    let checked = match kind {
        AD_HOC_COMMAND => command::AdHoc::parse(payload).map(drop),
        AD_HOC_HTTP => http::check_payload(payload),
        AD_HOC_SQL => sql::Statement::from_payload(payload).map(drop),
        _ => Ok(()),
    };
    checked
        .map_err(|text| FieldError::new("payload", text.strip_prefix("payload: ").unwrap_or(&text)))
}

/// A value from the file; a secret one came by reference (`env:`, `file:`) and is masked in
/// output, errors and logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    pub value: String,
    pub secret: bool,
}

impl Setting {
    pub fn plain(value: impl Into<String>) -> Self {
        Self { value: value.into(), secret: false }
    }

    pub fn secret(value: impl Into<String>) -> Self {
        Self { value: value.into(), secret: true }
    }
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.secret { f.write_str("***") } else { self.value.fmt(f) }
    }
}

/// What is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandLine {
    Argv(Vec<String>),
    /// For `sh -c`.
    Shell(String),
}

/// What becomes of a command's standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResultMode {
    /// The last non-empty line if it is valid JSON, else `null`.
    #[default]
    LastJsonLine,
    Stdout,
    None,
}

/// `tasks: {x: {executor: command, …}}`.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandConfig {
    pub line: CommandLine,
    pub env: BTreeMap<String, Setting>,
    /// Already absolute: the file's folder when not given.
    pub cwd: PathBuf,
    pub user: Option<String>,
    pub nice: Option<i32>,
    pub memory_max: Option<u64>,
    /// Cores, e.g. 1.5.
    pub cpu_max: Option<f64>,
    pub result: ResultMode,
    pub permanent_exit_codes: Vec<i32>,
    /// Runs after a timed-out tree is gone, with a limit of its own.
    pub on_timeout: Option<(CommandLine, Duration)>,
}

/// Exit codes that no retry helps: configuration error, not executable, not found.
pub const PERMANENT_EXIT_CODES: [i32; 3] = [78, 126, 127];

impl CommandConfig {
    pub fn new(line: CommandLine, cwd: PathBuf) -> Self {
        Self {
            line,
            env: BTreeMap::new(),
            cwd,
            user: None,
            nice: None,
            memory_max: None,
            cpu_max: None,
            result: ResultMode::default(),
            permanent_exit_codes: PERMANENT_EXIT_CODES.to_vec(),
            on_timeout: None,
        }
    }
}

/// `tasks: {x: {executor: http, …}}`. The task's payload is the body unless `body` is given.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpConfig {
    pub url: Setting,
    pub method: String,
    pub headers: BTreeMap<String, Setting>,
    pub body: Option<Setting>,
    pub connect_timeout: Duration,
    /// Most redirects followed; each target is judged anew.
    pub redirects: u32,
}

impl HttpConfig {
    pub fn new(url: Setting) -> Self {
        Self {
            url,
            method: "POST".to_owned(),
            headers: BTreeMap::new(),
            body: None,
            connect_timeout: Duration::from_secs(10),
            redirects: 0,
        }
    }
}

/// An address range such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    pub addr: IpAddr,
    pub prefix: u8,
}

/// Where URLs that come out of payloads may lead beyond public addresses. Link-local and
/// metadata addresses stay closed to every URL, whatever this says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressPolicy {
    pub allow: Vec<Cidr>,
    /// Redirects that a payload's URL may follow.
    pub redirects: u32,
}
