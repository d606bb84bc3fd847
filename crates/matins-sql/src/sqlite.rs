//! A statement on a SQLite file, on a thread that may block. A run that must end is interrupted:
//! SQLite stops at its next step and undoes what the statement did.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use matins_core::Json;
use matins_core::executor::{Run, StopReason};
use matins_core::lifecycle::Outcome;
use matins_core::task::ErrorClass;
use matins_runtime::executors::sql::Statement;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, ErrorCode, InterruptHandle, OpenFlags};
use tokio::runtime::Handle;

use crate::rows::{Rows, bytes, float, string, twice};
use crate::{failure, stop, told};

/// How long one try waits for somebody else's transaction: while it does, it hears nothing.
const BUSY: Duration = Duration::from_secs(1);

/// How often it tries.
const TRIES: u32 = 30;

/// How often an interrupt is repeated: one that comes between two steps is lost.
const AGAIN: Duration = Duration::from_millis(50);

struct Session {
    path: PathBuf,
    statement: Statement,
    limit: usize,
    handle: Arc<OnceLock<InterruptHandle>>,
    stopped: Arc<AtomicBool>,
}

pub(crate) async fn run(
    threads: &Handle,
    path: &Path,
    statement: Statement,
    run: &Run,
    limit: usize,
) -> Outcome {
    let session = Session {
        path: path.to_owned(),
        statement,
        limit,
        handle: Arc::default(),
        stopped: Arc::default(),
    };
    // Dropped with this future: nobody waits for the answer any more.
    let leash = Leash { handle: session.handle.clone(), stopped: session.stopped.clone() };
    let mut work = threads.spawn_blocking(move || session.work());
    let reason = tokio::select! {
        done = &mut work => return ended(done),
        reason = stop(run) => reason,
    };
    let done = loop {
        leash.pull();
        if let Ok(done) = tokio::time::timeout(AGAIN, &mut work).await {
            break ended(done);
        }
    };
    match done {
        // It was quicker.
        done @ Outcome::Completed { .. } if reason != StopReason::LeaseLost => done,
        _ => told(reason, run),
    }
}

fn ended(done: Result<Outcome, tokio::task::JoinError>) -> Outcome {
    done.unwrap_or_else(|error| {
        failure::retryable(ErrorClass::Sql, format!("the run of the statement broke: {error}"))
    })
}

struct Leash {
    handle: Arc<OnceLock<InterruptHandle>>,
    stopped: Arc<AtomicBool>,
}

impl Leash {
    fn pull(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(handle) = self.handle.get() {
            handle.interrupt();
        }
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.pull();
    }
}

/// How a session ended otherwise than by its answer.
enum Ended {
    Sqlite(rusqlite::Error),
    Refused(String),
    Stopped,
}

impl From<rusqlite::Error> for Ended {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Session {
    fn work(self) -> Outcome {
        match self.answer() {
            Ok(outcome) => outcome,
            Err(Ended::Sqlite(error)) => failure::of_sqlite(&error),
            Err(Ended::Refused(message)) => failure::permanent(ErrorClass::Sql, message),
            Err(Ended::Stopped) => {
                failure::retryable(ErrorClass::Sql, "stopped before it began".to_owned())
            }
        }
    }

    fn answer(&self) -> Result<Outcome, Ended> {
        // Never made: a wrong path must not become an empty database.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY)?;
        let _ = self.handle.set(connection.get_interrupt_handle());
        let mut tries = 0;
        loop {
            if self.stopped.load(Ordering::SeqCst) {
                return Err(Ended::Stopped);
            }
            tries += 1;
            match self.execute(&connection) {
                // Nothing of the statement has happened.
                Err(Ended::Sqlite(error)) if is_busy(&error) && tries < TRIES => {}
                answer => return answer,
            }
        }
    }

    fn execute(&self, connection: &Connection) -> Result<Outcome, Ended> {
        let mut statement = connection.prepare(&self.statement.sql)?;
        let (wanted, given) = (statement.parameter_count(), self.statement.params.len());
        if wanted != given {
            let message = format!("params: the statement has {wanted} parameters, {given} given");
            return Err(Ended::Refused(message));
        }
        for (index, json) in self.statement.params.iter().enumerate() {
            let value =
                value(json).map_err(|text| Ended::Refused(format!("params[{index}]: {text}")))?;
            statement.raw_bind_parameter(index + 1, value)?;
        }
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        if let Some(name) = twice(names.iter().map(String::as_str)) {
            let message = format!("two columns are called {name:?}: name one of them with AS");
            return Err(Ended::Refused(message));
        }
        let is_query = statement.readonly();
        let mut rows = Rows::new(self.limit);
        let mut answer = statement.raw_query();
        while let Some(row) = answer.next()? {
            rows.add(names.iter().map(String::as_str), |index, out| {
                write(out, row.get_ref(index)?);
                Ok::<_, rusqlite::Error>(())
            })?;
        }
        drop(answer);
        let touched = if is_query { None } else { Some(connection.changes()) };
        Ok(rows.finish(touched))
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// JSON as SQLite keeps it: booleans as 0 and 1, lists and objects as their text.
fn value(json: &Json) -> Result<Value, String> {
    let text = json.as_str().trim();
    Ok(match text.as_bytes().first() {
        _ if text == "null" => Value::Null,
        _ if text == "true" => Value::Integer(1),
        _ if text == "false" => Value::Integer(0),
        Some(b'"') => Value::Text(serde_json::from_str(text).map_err(|error| error.to_string())?),
        Some(b'[' | b'{') => Value::Text(text.to_owned()),
        _ => match text.parse::<i64>() {
            Ok(number) => Value::Integer(number),
            Err(_) if text.contains(['.', 'e', 'E']) => {
                Value::Real(text.parse().map_err(|_| "expected a number".to_owned())?)
            }
            Err(_) => {
                return Err("is beyond the 64 bits of a number here; send it as a string".into());
            }
        },
    })
}

fn write(out: &mut String, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => out.push_str("null"),
        ValueRef::Integer(number) => out.push_str(&number.to_string()),
        ValueRef::Real(number) => float(out, number),
        ValueRef::Text(text) => string(out, &String::from_utf8_lossy(text)),
        ValueRef::Blob(blob) => bytes(out, blob),
    }
}
