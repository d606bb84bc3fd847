//! The SQLite store: one file, one writer, group commit, any number of readers.
//!
//! ```text
//!   callers ──▶ bounded queue ──▶ writer thread: BEGIN IMMEDIATE, all waiting jobs, COMMIT ──▶ answers
//!   callers ──▶ bounded queue ──▶ reader threads, a connection each, never behind the writer
//!   ping    ──▶ a thread and a connection of its own
//! ```
//!
//! The file is opened in WAL mode with `synchronous=FULL`: what has been answered survives
//! `kill -9` and a power cut. Two processes may have the same file open; nothing that one keeps in
//! memory is trusted before a look at whether the other has written.
//!
//! # Failure
//!
//! | what happens | what callers see |
//! |---|---|
//! | another process holds the lock | a delay; `Unavailable` after [`Options::patience`] |
//! | no room: disk full, quota, limit on file size | `Full`; nothing of the call was written, the store works again when there is room |
//! | power cut or kill in the middle of a commit | at the next open the transaction is there whole or not at all |
//! | the file is damaged, foreign, or of a newer version | `Broken` with a text that says which |
//!
//! A program that limits file sizes must ignore `SIGXFSZ`, or the kernel ends it before this
//! store can answer `Full`.

mod acts;
mod catalog;
mod claim;
mod connect;
mod dead_letters;
mod end;
mod enqueue;
mod error;
mod handout;
mod invariants;
mod lanes;
mod ledger;
pub mod migrate;
mod outbox;
mod place;
mod port;
mod prune;
pub mod raw;
mod reader;
mod readers;
mod records;
mod row;
mod schedules;
mod settings;
mod settle;
mod slots;
mod sql;
mod stats;
mod tasks;
mod time;
mod tx;
mod watch;
mod workers;
mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use matins_core::lifecycle::Settlement;
use matins_core::store::{Enqueued, Result, Settled, StoreError};
use matins_core::task::NewTask;
use rusqlite::params;
use uuid::Uuid;

use error::Res;
pub use migrate::{Migrate, Migration};
use readers::Readers;
/// The driver, for callers that bring a transaction of their own.
pub use rusqlite;
use tx::{Memory, Tx};
use writer::Writer;

/// How a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What happens when the schema is older than this program.
    pub migrate: Migrate,
    /// How long a call may be held up by somebody else's lock before it fails.
    pub patience: Duration,
    /// Connections that read.
    pub readers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { migrate: Migrate::Auto, patience: Duration::from_secs(15), readers: 2 }
    }
}

/// A store in one file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    store_id: Uuid,
    writer: Writer,
    readers: Readers,
    pings: Readers,
}

impl SqliteStore {
    /// Opens a file, and makes it when it is missing. Blocks: it may wait for another process,
    /// and for the schema to be brought up to date.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        Self::open_inner(path, options).map_err(|failure| match failure.into() {
            StoreError::Broken(text) => StoreError::Broken(name_file(path, &text)),
            error => error,
        })
    }

    fn open_inner(path: &Path, options: Options) -> Res<Self> {
        let Options { migrate, patience, readers } = options;
        let conn = connect::writer(path, patience)?;
        migrate::on_open(&conn, migrate)?;
        let store_id =
            conn.query_row(sql::Sql::MetaGet.text(), params![], |row| row.get::<_, Uuid>(0))?;
        let writer = Writer::start(conn, path, patience)?;
        Ok(Self {
            path: path.to_owned(),
            store_id,
            writer,
            readers: Readers::start("matins-reader", readers.max(1), path, patience)?,
            pings: Readers::start("matins-ping", 1, path, patience)?,
        })
    }

    /// Contradictions in the file, each in words; empty when it is sound. Reads everything.
    pub async fn check_invariants(&self) -> Result<Vec<String>> {
        self.readers.call(|reader| reader.snapshot(|reader| reader.check_invariants())).await
    }
}

fn name_file(path: &Path, text: &str) -> String {
    let path = path.display().to_string();
    if text.contains(&path) { text.to_owned() } else { format!("{path}: {text}") }
}

/// Enqueues inside the caller's own transaction on the file of a store: the task is accepted when
/// the transaction commits, and was never there when it does not.
///
/// The transaction should have begun with `BEGIN IMMEDIATE`.
pub fn enqueue_in(
    transaction: &rusqlite::Transaction<'_>,
    task: &NewTask,
    now: Timestamp,
) -> Result<Enqueued> {
    let answer = in_transaction(transaction, |tx| tx.enqueue_one(task, time::us(now)));
    Ok(answer?)
}

/// Ends a run inside the caller's own transaction, so that its effect and its completion are
/// committed together.
///
/// An error, and nothing written, when the claim no longer stands.
pub fn complete_in(
    transaction: &rusqlite::Transaction<'_>,
    settlement: &Settlement,
) -> std::result::Result<Settled, CompleteError> {
    let answer = in_transaction(transaction, |tx| tx.settle_one(settlement));
    match answer.map_err(StoreError::from)? {
        Settled::Fenced => Err(CompleteError::Fenced),
        done @ Settled::Done(_) => Ok(done),
    }
}

/// Why a run could not be ended in a transaction.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompleteError {
    /// Roll the transaction back: somebody else has the task, or it has ended.
    #[error("the claim no longer stands")]
    Fenced,
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn in_transaction<T>(
    transaction: &rusqlite::Transaction<'_>,
    work: impl FnOnce(&mut Tx<'_>) -> Res<T>,
) -> Res<T> {
    let mut memory = Memory::default();
    let mut tx = Tx::new(transaction, &mut memory)?;
    let answer = work(&mut tx)?;
    tx.finish()?;
    Ok(answer)
}
