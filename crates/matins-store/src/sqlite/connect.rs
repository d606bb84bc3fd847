//! Opening the file: what is ours, what is not, and how each kind of connection is set up.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

use matins_core::store::StoreError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::error::{Failure, Res};

/// "MATN", in the header of every store.
const APPLICATION_ID: i64 = 0x4d41_544e;

/// Pages of the write-ahead log (32 MiB) after which a commit moves them into the main file: with
/// random keys fewer of them are moved twice than with less, and a commit that does it takes about
/// 100 ms.
const CHECKPOINT_PAGES: i64 = 8_000;

/// The log is cut back to this when it has grown beyond (long reads, huge transactions).
const LOG_BYTES_KEPT: i64 = 64 << 20;

/// Page cache of the writer and of each reader, in KiB. Given back when there is nothing to do.
const WRITER_CACHE_KIB: i64 = 8 << 10;
const READER_CACHE_KIB: i64 = 4 << 10;

/// More than there are statements, so that none is ever prepared twice.
const STATEMENTS: usize = 256;

/// Opens for writing; a missing file is made, readable for its owner only.
pub(super) fn writer(path: &Path, patience: Duration) -> Res<Connection> {
    make(path)?;
    let conn = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, patience, WRITER_CACHE_KIB)
        .and_then(|conn| recognize(&conn, path).map(|()| conn))
        .map_err(|failure| name_stranger(failure, path))?;
    use_log(&conn, path, patience)?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    conn.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
    Ok(conn)
}

/// Opens for reading. Not `READ_ONLY`, with which a log could not be recovered after a crash.
pub(super) fn reader(path: &Path, patience: Duration) -> Res<Connection> {
    let conn = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, patience, READER_CACHE_KIB)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

/// Marks a new file as a store.
pub(super) fn mark(conn: &Connection) -> Res<()> {
    Ok(conn.pragma_update(None, "application_id", APPLICATION_ID)?)
}

fn open(path: &Path, flags: OpenFlags, patience: Duration, cache_kib: i64) -> Res<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(patience)?;
    conn.pragma_update(None, "cache_size", -cache_kib)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    // Statements name no foreign schema, and no trigger of a doctored file may run.
    conn.pragma_update(None, "trusted_schema", false)?;
    // Plans do not hang on the values bound: else each new value has statements prepared anew.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

fn make(path: &Path) -> Res<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop).map_err(|error| {
        let path = path.display();
        Failure::Store(StoreError::Broken(format!("{path} cannot be opened: {error}")))
    })
}

/// Refuses what is not a store of Matins. A new, empty file is one to be.
fn recognize(conn: &Connection, path: &Path) -> Res<()> {
    let read = || -> rusqlite::Result<(i64, i64)> {
        let id = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let tables = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        Ok((id, tables))
    };
    match read()? {
        (APPLICATION_ID, _) | (0, 0) => Ok(()),
        _ => {
            let path = path.display();
            Err(Failure::broken(format!("{path} is the SQLite file of another program")))
        }
    }
}

fn name_stranger(failure: Failure, path: &Path) -> Failure {
    match failure {
        Failure::Sqlite(rusqlite::Error::SqliteFailure(error, _))
            if error.code == rusqlite::ErrorCode::NotADatabase =>
        {
            Failure::broken(format!("{} is not an SQLite file", path.display()))
        }
        failure => failure,
    }
}

/// Turns the write-ahead log on, for which nobody else may be at the file for a moment.
fn use_log(conn: &Connection, path: &Path, patience: Duration) -> Res<()> {
    let begin = Instant::now();
    loop {
        let mode = conn
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        match mode.map_err(Failure::from) {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                let path = path.display();
                let what = format!("{path}: journal mode {mode}, this file system allows no WAL");
                return Err(Failure::broken(what));
            }
            Err(failure) if failure.is_busy() && begin.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(failure) => return Err(failure),
        }
    }
}
