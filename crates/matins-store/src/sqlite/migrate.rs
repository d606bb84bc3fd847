//! The schema: forward only, each step in one transaction, each step remembered by its checksum.
//!
//! A step that has been applied may never change. A file that is newer than this program is
//! refused.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::store::StoreError;
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::connect;
use super::error::{Failure, Res};
pub use crate::migration::{Migrate, Migration};

pub(super) const ALL: &[Migration] = &[
    Migration { version: 1, name: "init", sql: include_str!("migrations/0001_init.sql") },
    Migration {
        version: 2,
        name: "schedule_rows",
        sql: include_str!("migrations/0002_schedule_rows.sql"),
    },
    Migration { version: 3, name: "alerts", sql: include_str!("migrations/0003_alerts.sql") },
];

/// The version this program works with.
pub const LATEST: u32 = ALL[ALL.len() - 1].version;

const LEDGER: &str = "CREATE TABLE IF NOT EXISTS migration (
    version     INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    checksum    TEXT NOT NULL,
    applied_at  INTEGER NOT NULL
) STRICT";

/// Steps that a file lacks. A file that does not exist lacks all of them, and is not made.
pub fn pending(path: &Path) -> Result<Vec<Migration>, StoreError> {
    if !path.exists() {
        return Ok(ALL.to_vec());
    }
    let conn = connect::writer(path, Duration::from_secs(5))?;
    let applied = applied(&conn)?;
    Ok(missing(&applied).to_vec())
}

/// Brings a file up to date, whatever `migrate` says. Answers what was done.
pub fn apply(path: &Path) -> Result<Vec<Migration>, StoreError> {
    let conn = connect::writer(path, Duration::from_secs(15))?;
    Ok(bring_up_to_date(&conn)?)
}

pub(super) fn on_open(conn: &Connection, migrate: Migrate) -> Res<()> {
    let applied = applied(conn)?;
    let missing = missing(&applied);
    if missing.is_empty() {
        return Ok(());
    }
    if migrate == Migrate::Existing && applied.is_empty() {
        return Err(StoreError::Missing("this file".to_owned()).into());
    }
    if migrate == Migrate::Manual {
        let at = applied.len();
        return Err(Failure::broken(format!(
            "its schema has version {at}, this program needs {LATEST}; run `matins migrate`"
        )));
    }
    bring_up_to_date(conn).map(drop)
}

fn missing(applied: &[u32]) -> &'static [Migration] {
    &ALL[applied.len().min(ALL.len())..]
}

/// Versions in the file, checked against this program's.
fn applied(conn: &Connection) -> Res<Vec<u32>> {
    // A statement, because what the driver remembers of the schema may be out of date.
    let known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migration'";
    if !conn.prepare(known)?.exists([])? {
        return Ok(Vec::new());
    }
    let mut statement = conn.prepare("SELECT version, checksum FROM migration ORDER BY version")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let rows: Vec<(u32, String)> = rows.collect::<rusqlite::Result<_>>()?;
    for (index, (version, checksum)) in rows.iter().enumerate() {
        match ALL.get(index) {
            None => {
                return Err(Failure::broken(format!(
                    "its schema has version {version}, this program knows up to {LATEST}; use a \
                     newer matins"
                )));
            }
            Some(own) if own.version != *version || own.checksum() != *checksum => {
                return Err(Failure::broken(format!(
                    "step {version} of its schema is not the one this program knows"
                )));
            }
            Some(_) => {}
        }
    }
    Ok(rows.into_iter().map(|(version, _)| version).collect())
}

fn bring_up_to_date(conn: &Connection) -> Res<Vec<Migration>> {
    let mut done = Vec::new();
    loop {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        // Another process may have been quicker.
        let step = applied(conn).map(|applied| missing(&applied).first().copied());
        let step = step.and_then(|step| match step {
            Some(migration) => apply_one(conn, &migration).map(|()| Some(migration)),
            None => Ok(None),
        });
        match step {
            Ok(Some(migration)) => {
                conn.execute_batch("COMMIT")?;
                done.push(migration);
            }
            Ok(None) => {
                conn.execute_batch("ROLLBACK")?;
                return Ok(done);
            }
            Err(failure) => {
                conn.execute_batch("ROLLBACK")?;
                return Err(failure);
            }
        }
    }
}

fn apply_one(conn: &Connection, migration: &Migration) -> Res<()> {
    connect::mark(conn)?;
    conn.execute_batch(LEDGER)?;
    conn.execute_batch(migration.sql)?;
    if migration.version == 1 {
        let store_id = Uuid::new_v4();
        conn.execute(
            "INSERT INTO meta (one, store_id, fence, swept_at, swept_seq) VALUES (1, ?1, 0, 0, 0)",
            [store_id],
        )?;
    }
    conn.execute(
        "INSERT INTO migration (version, name, checksum, applied_at) VALUES (?1, ?2, ?3, ?4)",
        params![
            migration.version,
            migration.name,
            migration.checksum(),
            Timestamp::now().as_microsecond()
        ],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every step keeps what the steps before it could have stored.
    #[test]
    fn a_store_of_the_first_version_keeps_its_schedules() {
        let conn = Connection::open_in_memory().unwrap();
        apply_one(&conn, &ALL[0]).unwrap();
        let rows = "INSERT INTO schedule VALUES
            ('b', x'02', 3, NULL, '{\"b\": 1}', 5, 4), ('a', x'01', 7, 99, '{\"a\": 1}', 2, 1)";
        conn.execute_batch(rows).unwrap();
        let all = "SELECT group_concat(quote(name) || quote(uid) || rev || quote(next_due)
            || state || decided || unrecorded, ' ' ORDER BY name) FROM schedule";
        let stored = || conn.query_row(all, [], |row| row.get::<_, String>(0)).unwrap();
        let before = stored();
        let done = bring_up_to_date(&conn).unwrap();
        assert_eq!(done, ALL[1..]);
        assert_eq!(stored(), before);
        assert!(before.contains("'a'X'01'799"), "{before}");
    }
}
