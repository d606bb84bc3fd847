//! Tasks that are SQL statements: the types of the worker's file with `executor: sql`, and the
//! built-in type `db_query`.
//!
//! ```text
//!  statement (file or payload) ─▶ a session of its own ─▶ parameters typed by the database
//!          stop (time limit, cancel, lost claim) ─▶ cancelled on the server, then closed
//! ```
//!
//! An adapter of the executor port with drivers of its own: neither the engine nor its tests need a
//! database for it. Statements run on threads of their own, so that a large answer keeps no engine
//! loop waiting. A run has a session to itself: what it sets or leaves open ends with it.
//!
//! Must never: put a connection's address into an error, keep more of an answer than the limits
//! allow, or come back while the statement may still be running on a server that can be reached.

mod failure;
mod postgres;
mod rows;
mod sqlite;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use matins_core::executor::{Executor, Finished, Run, StopReason};
use matins_core::lifecycle::Outcome;
use matins_core::task::{ErrorClass, Name, Task, TaskError};
use matins_runtime::engine::Executors;
use matins_runtime::executors::sql::{Connection, SqlConfig, Statement};
use matins_runtime::rules::{AD_HOC_SQL, Rules, TypeExecutor};
use matins_store::postgres::address::{Access, Address};
use tokio::runtime::Runtime;

/// Threads that statements run on.
const THREADS: usize = 2;

/// Why the file's connections cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    #[error("connections.{name}: {message}")]
    Connection { name: Name, message: String },
    #[error("tasks.{kind}.connection: {name} is not among the connections of the file")]
    Unknown { kind: Name, name: Name },
    #[error("no threads for statements: {0}")]
    Threads(String),
}

#[derive(Debug)]
enum Database {
    Postgres {
        access: Box<Access>,
        pooled: bool,
    },
    Sqlite(PathBuf),
    /// The reference to its address was not followed: nothing is to be run.
    Unknown,
}

/// What all SQL executors of a node share.
#[derive(Debug)]
struct Databases {
    by_name: BTreeMap<Name, Database>,
    result_bytes: usize,
}

/// The executors of the file's SQL types, and that of `db_query` where it is allowed.
pub fn executors(rules: &Rules) -> Result<Executors, SqlError> {
    let mut by_name = BTreeMap::new();
    for (name, connection) in &rules.connections {
        let database = open(connection)
            .map_err(|message| SqlError::Connection { name: name.clone(), message })?;
        by_name.insert(name.clone(), database);
    }
    let databases = Arc::new(Databases { by_name, result_bytes: rules.limits.result_bytes });
    let mut executors = Executors::new();
    if rules.allow_commands.allows(AD_HOC_SQL) {
        let executor = SqlExecutor { databases: databases.clone(), source: Source::Payload };
        executors.insert(AD_HOC_SQL.into(), Arc::new(executor));
    }
    for (kind, rule) in &rules.types {
        let TypeExecutor::Sql(config) = &rule.executor else { continue };
        if !databases.by_name.contains_key(&config.connection) {
            let (kind, name) = (kind.clone(), config.connection.clone());
            return Err(SqlError::Unknown { kind, name });
        }
        let source = Source::File(config.clone());
        let executor = SqlExecutor { databases: databases.clone(), source };
        executors.insert(kind.clone(), Arc::new(executor));
    }
    if !executors.is_empty() {
        threads().map_err(SqlError::Threads)?;
    }
    Ok(executors)
}

fn open(connection: &Connection) -> Result<Database, String> {
    match connection {
        Connection::Sqlite(path) => Ok(Database::Sqlite(path.clone())),
        Connection::Postgres(setting) if setting.secret && setting.value.is_empty() => {
            Ok(Database::Unknown)
        }
        Connection::Postgres(setting) => {
            let address = Address::parse(&setting.value).map_err(|error| error.to_string())?;
            let access = address.access().map_err(|error| error.to_string())?;
            Ok(Database::Postgres { access: Box::new(access), pooled: address.pooled })
        }
    }
}

/// One set for the process: they outlive a reload.
fn threads() -> Result<&'static Runtime, String> {
    static STARTED: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let start = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("matins-sql").enable_all();
        builder.build().map_err(|error| error.to_string())
    };
    STARTED.get_or_init(start).as_ref().map_err(Clone::clone)
}

enum Source {
    File(SqlConfig),
    Payload,
}

struct SqlExecutor {
    databases: Arc<Databases>,
    source: Source,
}

impl SqlExecutor {
    fn statement(&self, task: &Task) -> Result<Statement, String> {
        match &self.source {
            Source::File(config) => Statement::of_type(config, &task.payload),
            Source::Payload => Statement::from_payload(&task.payload),
        }
    }
}

#[async_trait]
impl Executor for SqlExecutor {
    async fn run(&self, run: Run) -> Finished {
        let statement = match self.statement(&run.claimed.task) {
            Ok(statement) => statement,
            Err(message) => return failure::permanent(ErrorClass::Permanent, message).into(),
        };
        let threads = match threads() {
            Ok(threads) => threads.handle(),
            Err(message) => return failure::retryable(ErrorClass::Sql, message).into(),
        };
        let limit = self.databases.result_bytes;
        match self.databases.by_name.get(&statement.connection) {
            Some(Database::Postgres { access, pooled }) => {
                postgres::run(threads, access, *pooled, statement, &run, limit).await.into()
            }
            Some(Database::Sqlite(path)) => {
                sqlite::run(threads, path, statement, &run, limit).await.into()
            }
            Some(Database::Unknown) => {
                let message = "the address of the connection is not known here".to_owned();
                failure::retryable(ErrorClass::Sql, message).into()
            }
            None => {
                let known: Vec<&str> = self.databases.by_name.keys().map(|name| &**name).collect();
                let message = format!(
                    "payload: connection: {:?} is not among the connections of this node: {}",
                    statement.connection,
                    if known.is_empty() { "there are none".to_owned() } else { known.join(", ") }
                );
                failure::permanent(ErrorClass::Permanent, message).into()
            }
        }
    }
}

/// Resolves when a run must end: it was told to, or its time is over.
async fn stop(run: &Run) -> StopReason {
    let limit = async {
        match run.timeout.limit() {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        reason = run.supervision.stopped() => reason,
        () = limit => StopReason::Timeout,
    }
}

/// What a run that was ended comes to.
fn told(reason: StopReason, run: &Run) -> Outcome {
    match reason {
        StopReason::Timeout => {
            let text = format!("did not end within {}", run.timeout);
            Outcome::TimedOut { error: TaskError::new(ErrorClass::Timeout, text) }
        }
        StopReason::Cancel => Outcome::Cancelled,
        StopReason::Shutdown => Outcome::Interrupted,
        StopReason::LeaseLost => {
            let text = "the claim was lost".to_owned();
            Outcome::Lost { error: TaskError::new(ErrorClass::WorkerLost, text) }
        }
    }
}
