//! The floor: the least that any queue on SQLite has to write, in bare transactions of one
//! connection, with the same durability. The store's own shape without the store is
//! [`matins_store::sqlite::raw`]; this is what a queue of a dozen lines would do.
//!
//! One narrow table with an index of what is ready, prepared statements, no ids for callers, no
//! checks, no keys, no record of attempts, no fences, nobody who waits for an answer.

use std::path::Path;

use matins_store::sqlite::rusqlite::{self, Connection, params};

use crate::failure::{Failure, Result};

const SHAPE: &str = "
    CREATE TABLE job (
        id          INTEGER PRIMARY KEY,
        queue       TEXT NOT NULL,
        type        TEXT NOT NULL,
        payload     TEXT NOT NULL,
        state       INTEGER NOT NULL,
        priority    INTEGER NOT NULL,
        run_at      INTEGER NOT NULL,
        attempt     INTEGER NOT NULL,
        created_at  INTEGER NOT NULL,
        finished_at INTEGER
    ) STRICT;
    CREATE INDEX job_ready ON job (queue, priority, run_at, id) WHERE state = 0;
";

const INSERT: &str = "
    INSERT INTO job (queue, type, payload, state, priority, run_at, attempt, created_at)
    VALUES (?1, ?2, ?3, 0, 0, ?4, 0, ?4)";

const CLAIM: &str = "
    UPDATE job SET state = 1, attempt = attempt + 1
    WHERE id IN (
        SELECT id FROM job WHERE queue = ?1 AND state = 0 AND run_at <= ?2
        ORDER BY priority, run_at, id LIMIT ?3)
    RETURNING id, payload";

const COMPLETE: &str = "UPDATE job SET state = 2, finished_at = ?2 WHERE id = ?1";

pub(super) struct Floor {
    conn: Connection,
}

impl Floor {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || -> rusqlite::Result<Connection> {
            let conn = Connection::open(path)?;
            // As the store sets itself up.
            conn.pragma_update(None, "journal_mode", "WAL")?;
            conn.pragma_update(None, "synchronous", "FULL")?;
            conn.pragma_update(None, "cache_size", -(8 << 10))?;
            conn.pragma_update(None, "wal_autocheckpoint", 8_000)?;
            conn.execute_batch(SHAPE)?;
            Ok(conn)
        };
        Ok(Self { conn: open().map_err(|error| failed(&error))? })
    }

    /// One transaction.
    pub(super) fn insert(&mut self, payloads: &[String]) -> Result<()> {
        let now = jiff::Timestamp::now().as_microsecond();
        let mut insert = || -> rusqlite::Result<()> {
            let tx = self.conn.transaction()?;
            {
                let mut statement = tx.prepare_cached(INSERT)?;
                for payload in payloads {
                    statement.execute(params!["default", "noop", payload, now])?;
                }
            }
            tx.commit()
        };
        insert().map_err(|error| failed(&error))
    }

    /// One transaction; answers the ids.
    pub(super) fn claim(&mut self, max: usize) -> Result<Vec<(i64, String)>> {
        let now = jiff::Timestamp::now().as_microsecond();
        let mut claim = || -> rusqlite::Result<Vec<(i64, String)>> {
            let tx = self.conn.transaction()?;
            let claimed = {
                let mut statement = tx.prepare_cached(CLAIM)?;
                let rows = statement.query_map(params!["default", now, max as i64], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
                rows.collect::<rusqlite::Result<_>>()?
            };
            tx.commit()?;
            Ok(claimed)
        };
        claim().map_err(|error| failed(&error))
    }

    /// One transaction.
    pub(super) fn complete(&mut self, claimed: &[(i64, String)]) -> Result<()> {
        let now = jiff::Timestamp::now().as_microsecond();
        let mut complete = || -> rusqlite::Result<()> {
            let tx = self.conn.transaction()?;
            {
                let mut statement = tx.prepare_cached(COMPLETE)?;
                for (id, _) in claimed {
                    statement.execute(params![id, now])?;
                }
            }
            tx.commit()
        };
        complete().map_err(|error| failed(&error))
    }
}

fn failed(error: &rusqlite::Error) -> Failure {
    Failure::failed(format!("the narrow table: {error}"))
}
