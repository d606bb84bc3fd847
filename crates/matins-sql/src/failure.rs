//! What an error of a database means for the task: whether another try may help.

use matins_core::lifecycle::Outcome;
use matins_core::task::{ErrorClass, TaskError};
use rusqlite::ErrorCode;
use tokio_postgres::error::DbError;

pub(crate) fn permanent(class: ErrorClass, message: String) -> Outcome {
    Outcome::Failed { error: TaskError::new(class, message), permanent: true, retry_after: None }
}

pub(crate) fn retryable(class: ErrorClass, message: String) -> Outcome {
    Outcome::Failed { error: TaskError::new(class, message), permanent: false, retry_after: None }
}

/// Classes of SQLSTATE that say that the statement itself is at fault, or that somebody has to
/// change something first. All others pass: connections, deadlocks and serialization, resources,
/// locks, shutdown and failover, and what a function raises by itself.
const PERMANENT: [&str; 15] = [
    "0A", // a feature that is not supported
    "0L", "0P", // a grantor or a role that is not valid
    "20", "21", "22", // cases, cardinality, data
    "23", // a constraint
    "26", "34", "3F", // a statement, a cursor, a schema that is not there
    "28", // who we are is not accepted
    "3D", // a database that is not there
    "42", // syntax, names, permissions
    "44", // a view's check
    "2F", // a function broke its own contract
];

pub(crate) fn is_permanent(state: &str) -> bool {
    state.get(..2).is_some_and(|class| PERMANENT.contains(&class))
}

pub(crate) fn of_postgres(error: &tokio_postgres::Error) -> Outcome {
    match error.as_db_error() {
        Some(db) => {
            let text = told_by_server(db);
            if is_permanent(db.code().code()) {
                permanent(ErrorClass::Sql, text)
            } else {
                retryable(ErrorClass::Sql, text)
            }
        }
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            retryable(ErrorClass::Network, text)
        }
    }
}

fn told_by_server(db: &DbError) -> String {
    let mut text = format!("{} ({})", db.message(), db.code().code());
    for more in [db.detail(), db.hint()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}

pub(crate) fn of_sqlite(error: &rusqlite::Error) -> Outcome {
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::OutOfMemory
            | ErrorCode::SystemIoFailure
            | ErrorCode::DiskFull
            | ErrorCode::CannotOpen
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::SchemaChanged
            | ErrorCode::OperationInterrupted
            | ErrorCode::OperationAborted,
        ) => retryable(ErrorClass::Sql, text),
        _ => permanent(ErrorClass::Sql, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_says_whether_another_try_may_help() {
        // Constraint, syntax, no table, permission, bad text for a type, not supported, password.
        for state in ["23505", "42601", "42P01", "42501", "22P02", "0A000", "28P01", "3D000"] {
            assert!(is_permanent(state), "{state}");
        }
        // Connection, serialization, deadlock, no room, too many connections, lock not available,
        // shut down by somebody, starting up, read-only after a failover, input/output.
        for state in [
            "08006", "40001", "40P01", "53100", "53300", "55P03", "57P01", "57P03", "25006",
            "58030", "57014", "P0001", "XX000", "",
        ] {
            assert!(!is_permanent(state), "{state}");
        }
    }
}
