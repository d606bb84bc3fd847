//! What can go wrong inside, and how the port tells it.

use matins_core::store::StoreError;
use rusqlite::ffi;

/// Inside this adapter: SQLite's own errors until somebody has to be told.
#[derive(Debug)]
pub(super) enum Failure {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

pub(super) type Res<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The file contradicts itself: an error of this program, or somebody else wrote to it.
    pub(super) fn broken(what: impl Into<String>) -> Self {
        Self::Store(StoreError::Broken(what.into()))
    }

    /// Somebody else holds the lock.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Sqlite(rusqlite::Error::SqliteFailure(error, _))
            if matches!(error.code, ffi::ErrorCode::DatabaseBusy | ffi::ErrorCode::DatabaseLocked))
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
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
            Failure::Sqlite(error) => explain(&error),
        }
    }
}

fn explain(error: &rusqlite::Error) -> StoreError {
    let text = match error {
        // With the whole statement, which says nothing to whoever reads it.
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        error => error.to_string(),
    };
    let rusqlite::Error::SqliteFailure(code, _) = error else {
        return StoreError::Broken(text);
    };
    match code.code {
        ffi::ErrorCode::DatabaseBusy | ffi::ErrorCode::DatabaseLocked => {
            StoreError::Unavailable(format!("another process holds the file's lock ({text})"))
        }
        ffi::ErrorCode::DiskFull => StoreError::Full(text),
        ffi::ErrorCode::SystemIoFailure if is_about_room(code.extended_code) => {
            StoreError::Full(format!("the file cannot grow ({text})"))
        }
        ffi::ErrorCode::SystemIoFailure
        | ffi::ErrorCode::CannotOpen
        | ffi::ErrorCode::OutOfMemory
        | ffi::ErrorCode::OperationInterrupted
        | ffi::ErrorCode::FileLockingProtocolFailed => StoreError::Unavailable(text),
        _ => StoreError::Broken(text),
    }
}

/// Writing failed. SQLite says "full" only for ENOSPC; a quota or a limit on the size of files
/// looks like any other failed write.
fn is_about_room(extended: i32) -> bool {
    matches!(
        extended,
        ffi::SQLITE_IOERR_WRITE
            | ffi::SQLITE_IOERR_FSYNC
            | ffi::SQLITE_IOERR_TRUNCATE
            | ffi::SQLITE_IOERR_SHMSIZE
            | ffi::SQLITE_IOERR_SHMMAP
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(extended: i32) -> StoreError {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(extended), None);
        Failure::from(error).into()
    }

    #[test]
    fn each_kind_of_trouble_has_its_name() {
        assert!(matches!(of(ffi::SQLITE_FULL), StoreError::Full(_)));
        assert!(matches!(of(ffi::SQLITE_IOERR_WRITE), StoreError::Full(_)));
        assert!(matches!(of(ffi::SQLITE_IOERR_SHMSIZE), StoreError::Full(_)));
        assert!(matches!(of(ffi::SQLITE_IOERR_READ), StoreError::Unavailable(_)));
        assert!(matches!(of(ffi::SQLITE_BUSY), StoreError::Unavailable(_)));
        assert!(matches!(of(ffi::SQLITE_BUSY_SNAPSHOT), StoreError::Unavailable(_)));
        assert!(matches!(of(ffi::SQLITE_CORRUPT), StoreError::Broken(_)));
        assert!(matches!(of(ffi::SQLITE_NOTADB), StoreError::Broken(_)));
        assert!(matches!(of(ffi::SQLITE_CONSTRAINT_UNIQUE), StoreError::Broken(_)));
    }
}
