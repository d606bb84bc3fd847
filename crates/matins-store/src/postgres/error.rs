//! What can go wrong inside, and how the port tells it.

use matins_core::store::StoreError;
use tokio_postgres::error::SqlState;

/// Inside this adapter: the driver's own errors until somebody has to be told.
#[derive(Debug)]
pub(super) enum Failure {
    Postgres(tokio_postgres::Error),
    Store(StoreError),
}

pub(super) type Res<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The database contradicts itself: an error of this program, or somebody else wrote to it.
    pub(super) fn broken(what: impl Into<String>) -> Self {
        Self::Store(StoreError::Broken(what.into()))
    }

    pub(super) fn unavailable(what: impl Into<String>) -> Self {
        Self::Store(StoreError::Unavailable(what.into()))
    }

    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Postgres(error) => error.code(),
            Self::Store(_) => None,
        }
    }

    /// Two transactions met crosswise, and this one was ended: nothing of it happened.
    pub(super) fn is_collision(&self) -> bool {
        matches!(
            self.state(),
            Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
        )
    }

    /// Somebody else holds what was asked for, for longer than was to be waited.
    pub(super) fn is_locked(&self) -> bool {
        self.state() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// The server that answers takes no writes.
    pub(super) fn is_read_only(&self) -> bool {
        self.state() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    pub(super) fn is_unique_violation(&self) -> bool {
        self.state() == Some(&SqlState::UNIQUE_VIOLATION)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::broken(format!("a stored JSON text cannot be read: {error}"))
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Store(error) => error,
            Failure::Postgres(error) => explain(&error),
        }
    }
}

fn explain(error: &tokio_postgres::Error) -> StoreError {
    let Some(db) = error.as_db_error() else {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            text = format!("{text}: {inner}");
            source = inner.source();
        }
        // Reading a value that is not what the schema says is no matter of the line.
        return if text.contains("deserializing") || text.contains("serializing") {
            StoreError::Broken(text)
        } else {
            StoreError::Unavailable(text)
        };
    };
    let text = format!("{} ({})", db.message(), db.code().code());
    match &db.code().code()[..2] {
        "53" if *db.code() == SqlState::DISK_FULL => StoreError::Full(text),
        // Connection, resources other than room, operator intervention, system error, and what
        // may be repeated.
        "08" | "25" | "40" | "53" | "55" | "57" | "58" => StoreError::Unavailable(text),
        // Our own: may be done again.
        "MT" if db.code().code() == "MT005" => StoreError::Unavailable(text),
        _ => StoreError::Broken(text),
    }
}
