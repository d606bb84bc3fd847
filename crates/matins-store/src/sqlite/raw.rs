//! The bare store, for `matins bench`: what SQLite itself does on this machine with transactions
//! of the same shape, so that the store's own figures can be read as a share of the possible.
//!
//! Same schema, same statements, same durability, a fresh file in the same directory. No queue,
//! no thread, no decoding, no rule: every task is plain, and whoever claims knows which.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use matins_core::store::StoreError;
use rusqlite::{CachedStatement, Connection, params};
use uuid::Uuid;

use super::connect;
use super::error::Res;
use super::migrate::{self, Migrate};
use super::sql::Sql;

/// How long it took to do something with so many tasks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub tasks: u64,
    pub elapsed: Duration,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.tasks as f64 / self.elapsed.as_secs_f64()
    }
}

/// A file of its own, deleted when this is dropped.
#[derive(Debug)]
pub struct Raw {
    conn: Connection,
    path: PathBuf,
    lane: i64,
    next: i64,
    claimed: i64,
    fence: i64,
}

/// Due times lie this far apart, as if tasks had come one after another.
const APART_US: i64 = 5;

const EPOCH_US: i64 = 1_800_000_000_000_000;

impl Raw {
    /// Makes the file in `directory`.
    pub fn new(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(format!("bench-{}.db", Uuid::new_v4().simple()));
        match Self::open(&path) {
            Ok(raw) => Ok(raw),
            Err(failure) => {
                remove(&path);
                Err(failure.into())
            }
        }
    }

    fn open(path: &Path) -> Res<Self> {
        let conn = connect::writer(path, Duration::from_secs(5))?;
        migrate::on_open(&conn, Migrate::Auto)?;
        conn.execute(Sql::NameAdd.text(), ["bench"])?;
        let name = conn.last_insert_rowid();
        conn.execute(Sql::LaneAdd.text(), params![name, name, false])?;
        let lane = conn.last_insert_rowid();
        Ok(Self { conn, path: path.to_owned(), lane, next: 0, claimed: 0, fence: 0 })
    }

    /// Inserts `tasks` tasks, `batch` in each transaction.
    pub fn insert(
        &mut self,
        tasks: u64,
        batch: u64,
        payload: &str,
    ) -> Result<Measured, StoreError> {
        let begin = Instant::now();
        let mut done = 0;
        while done < tasks {
            let count = batch.clamp(1, tasks - done);
            self.insert_batch(count, payload)?;
            done += count;
        }
        Ok(Measured { tasks, elapsed: begin.elapsed() })
    }

    fn insert_batch(&mut self, count: u64, payload: &str) -> Res<()> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        let mut task = self.conn.prepare_cached(Sql::TaskInsert.text())?;
        let mut ready = self.conn.prepare_cached(Sql::ReadyInsert.text())?;
        for _ in 0..count {
            let run_at = EPOCH_US + self.next * APART_US;
            self.next += 1;
            bind_task(&mut task, self.lane, run_at, payload)?;
            task.raw_execute()?;
            ready.execute(params![self.lane, run_at, self.conn.last_insert_rowid()])?;
        }
        drop((task, ready));
        let later = self.next - self.claimed;
        self.save_counters(later, 0, 0)?;
        self.conn.execute_batch("COMMIT")?;
        Ok(())
    }

    /// Claims and completes `tasks` tasks that were inserted before, `batch` in each transaction,
    /// two transactions per batch.
    pub fn claim_and_complete(&mut self, tasks: u64, batch: u64) -> Result<Measured, StoreError> {
        let begin = Instant::now();
        let mut done = 0;
        while done < tasks {
            let wanted = batch.clamp(1, tasks - done);
            let claimed = self.claim(wanted)?;
            if claimed.is_empty() {
                break;
            }
            self.complete(&claimed)?;
            done += claimed.len() as u64;
        }
        Ok(Measured { tasks: done, elapsed: begin.elapsed() })
    }

    fn claim(&mut self, wanted: u64) -> Res<Vec<(i64, Vec<u8>)>> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        let mut head = self.conn.prepare_cached(Sql::ReadyHead.text())?;
        let mut task = self.conn.prepare_cached(Sql::TaskPending.text())?;
        let mut running = self.conn.prepare_cached(Sql::RunningInsert.text())?;
        let rows = head.query_map(params![self.lane, wanted.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
        })?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        let mut claimed = Vec::with_capacity(rows.len());
        for (_, seq) in &rows {
            // A worker cannot do without the id and the payload.
            let id = task.query_row(params![seq], |row| {
                let payload = row.get_ref(48)?.as_bytes()?.len();
                std::hint::black_box(payload);
                row.get::<_, Vec<u8>>(6)
            })?;
            self.fence += 1;
            let none: Option<i64> = None;
            running.execute(params![
                seq, self.fence, self.fence, 1, self.lane, EPOCH_US, none, none, false
            ])?;
            claimed.push((*seq, id));
        }
        if let Some((ord, seq)) = rows.last() {
            self.conn
                .prepare_cached(Sql::ReadyDeleteTo.text())?
                .execute(params![self.lane, ord, seq])?;
        }
        drop((head, task, running));
        self.conn.prepare_cached(Sql::FenceSave.text())?.execute(params![self.fence])?;
        self.claimed += rows.len() as i64;
        self.save_counters(self.next - self.claimed, rows.len() as i64, 0)?;
        self.conn.execute_batch("COMMIT")?;
        Ok(claimed)
    }

    fn complete(&mut self, claimed: &[(i64, Vec<u8>)]) -> Res<()> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        let mut standing = self.conn.prepare_cached(Sql::RunningGet.text())?;
        let mut gone = self.conn.prepare_cached(Sql::RunningDelete.text())?;
        let mut task = self.conn.prepare_cached(Sql::TaskSettle.text())?;
        for (seq, id) in claimed {
            // The fence has to be looked at.
            let fence: i64 = standing.query_row(params![id], |row| row.get(1))?;
            std::hint::black_box(fence);
            gone.execute(params![seq])?;
            bind_end(&mut task, *seq)?;
            task.raw_execute()?;
        }
        drop((standing, gone, task));
        self.save_counters(self.next - self.claimed, 0, self.claimed)?;
        self.conn.execute_batch("COMMIT")?;
        Ok(())
    }

    fn save_counters(&self, ready: i64, running: i64, completed: i64) -> Res<()> {
        self.conn
            .prepare_cached(Sql::LaneSave.text())?
            .execute(params![self.lane, ready, 0, 0, 0, running, completed, 0, 0, 0])?;
        Ok(())
    }
}

fn bind_task(
    task: &mut CachedStatement<'_>,
    lane: i64,
    run_at: i64,
    payload: &str,
) -> rusqlite::Result<()> {
    task.raw_bind_parameter(1, Uuid::now_v7())?;
    task.raw_bind_parameter(2, lane)?;
    task.raw_bind_parameter(6, 0)?;
    task.raw_bind_parameter(7, run_at)?;
    task.raw_bind_parameter(8, false)?;
    task.raw_bind_parameter(11, run_at)?;
    task.raw_bind_parameter(12, 1)?;
    task.raw_bind_parameter(19, payload)
}

fn bind_end(task: &mut CachedStatement<'_>, seq: i64) -> rusqlite::Result<()> {
    task.raw_bind_parameter(1, seq)?;
    task.raw_bind_parameter(2, 2)?;
    for counter in 3..=5 {
        task.raw_bind_parameter(counter, 0)?;
    }
    for time in 6..=7 {
        task.raw_bind_parameter(time, EPOCH_US)?;
    }
    task.raw_bind_parameter(11, 1)?;
    task.raw_bind_parameter(12, "completed")
}

impl Drop for Raw {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A file that cannot be removed is left: it is in the way of nothing.
fn remove(path: &Path) {
    for end in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let _ = std::fs::remove_file(name);
    }
}
