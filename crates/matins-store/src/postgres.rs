//! The PostgreSQL store: for several machines.
//!
//! ```text
//!   enqueues ──▶ those of the same moment share a batch ──┐
//!   verbs ──▶ a few connections, one statement each ──▶ functions in the database: decide and
//!   beats, pings ──▶ a connection of their own                   write in one transaction
//!   LISTEN ──▶ a connection of its own ──▶ changed()
//! ```
//!
//! What an enqueue, a claim or an end does is in `migrations/`; `0002_words.sql` has the order of
//! its locks. Here are the values going in and out. Instants come from the caller; a runtime that
//! serves several machines takes them from the database's clock.
//!
//! # Failure
//!
//! | what happens | what callers see |
//! |---|---|
//! | the database is away, or an answer takes longer than [`Options::patience`] | `Unavailable`; a write may have happened |
//! | two transactions meet crosswise | nothing: the one that PostgreSQL ended is repeated |
//! | no room | `Full`; nothing of the call was written |
//! | the schema is older, newer, or not ours; or becomes so newer that this program cannot live with it | `Broken` with a text that says which |

pub mod address;
pub mod bare;
mod caller;
mod claim;
mod control;
mod dead_letters;
mod ear;
mod enqueue;
mod error;
pub mod filling;
mod floors;
mod gate;
#[cfg(feature = "redis")]
pub(crate) mod hints;
mod invariants;
mod link;
mod look;
#[cfg(feature = "redis")]
pub(crate) mod marks;
pub(crate) mod member;
pub mod migrate;
mod outbox;
mod port;
pub(crate) mod prune;
mod records;
#[cfg(feature = "redis")]
pub(crate) mod replay;
mod row;
mod schedules;
pub mod schema;
pub mod server;
mod sql;
mod stats;
mod tasks;
mod text;
mod time;
mod tls;
mod workers;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use matins_core::store::{Result, StoreError};
pub use tokio_postgres;
use uuid::Uuid;

use address::{Access, Address};
pub use caller::{complete_in, enqueue_in};
use control::Control;
use ear::Ear;
#[cfg(feature = "redis")]
pub(crate) use enqueue::Accepted;
use error::{Failure, Res};
use floors::Floors;
use gate::Gate;
use link::{Barred, Pool, Switchboard};
use look::Free;
pub use migrate::{Migrate, Migration};
use sql::Sql;
use time::At;

/// How a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What happens when the schema is older than this program.
    pub migrate: Migrate,
    /// How long an answer, or a free connection, is waited for.
    pub patience: Duration,
    /// Connections, all in all: one is for what is short, such as beats and pings, and listens
    /// unless that is turned off; the others do the work.
    pub connections: usize,
    /// Whether to LISTEN. Off behind a pooler that hands out a session per transaction.
    pub listen: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            migrate: Migrate::Auto,
            patience: Duration::from_secs(15),
            connections: 3,
            listen: true,
        }
    }
}

/// A store in a PostgreSQL database, in the schema `matins`.
#[derive(Debug)]
pub struct PostgresStore {
    location: String,
    store_id: Uuid,
    access: Access,
    migrate: Migrate,
    work: Arc<Pool>,
    gate: Gate,
    /// For tasks with keys or schedules: those may have to wait for somebody's transaction.
    gate_of_rules: Gate,
    control: Control,
    /// The latest `now`, in microseconds, that anything may have been put in line by.
    clock: AtomicI64,
    floors: Floors,
    free: Mutex<Free>,
    /// Of the regime for outages, as last seen.
    generation: AtomicU64,
    barred: Barred,
}

/// Calls that were on their way at the same time may differ by this much.
const CLOCK_TOLERANCE_US: i64 = 1_000_000;

impl PostgresStore {
    /// Connects, and makes or updates the schema as `options` say.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        let address = Address::parse(url)?;
        let location = address.location();
        let options = Options { listen: options.listen && !address.pooled, ..options };
        Self::open_inner(&address.access()?, &location, options).await.map_err(|failure| {
            match failure.into() {
                StoreError::Broken(text) => StoreError::Broken(format!("{location}: {text}")),
                StoreError::Unavailable(text) => {
                    StoreError::Unavailable(format!("{location}: {text}"))
                }
                StoreError::Missing(_) => StoreError::Missing(location),
                error => error,
            }
        })
    }

    /// Without asking the database, which is away: it is the one that had this id. Nothing may be
    /// written before [`Self::check`] has found it to be that one, and of this program's schema.
    #[cfg(feature = "redis")]
    pub(crate) fn open_away(url: &str, options: Options, store_id: Uuid) -> Result<Self> {
        let address = Address::parse(url)?;
        let options = Options { listen: options.listen && !address.pooled, ..options };
        let switchboard = switchboard()?;
        Ok(Self::over(&switchboard, address.access()?, &address.location(), options, store_id))
    }

    /// What an opening looks at.
    #[cfg(feature = "redis")]
    pub(crate) async fn check(&self) -> Result<()> {
        let switchboard = switchboard()?;
        let found = migrate::on_open(&switchboard, &self.access, self.migrate).await?;
        if found != self.store_id {
            return Err(StoreError::Broken(format!(
                "{} holds the store {found}, and this node worked for {}",
                self.location, self.store_id
            )));
        }
        Ok(())
    }

    async fn open_inner(access: &Access, location: &str, options: Options) -> Res<Self> {
        let switchboard = switchboard()?;
        let opened = migrate::on_open(&switchboard, access, options.migrate);
        let store_id = tokio::time::timeout(options.patience * 4, opened)
            .await
            .map_err(|_| Failure::unavailable("opening takes too long"))??;
        Ok(Self::over(&switchboard, access.clone(), location, options, store_id))
    }

    fn over(
        switchboard: &Arc<Switchboard>,
        access: Access,
        location: &str,
        options: Options,
        store_id: Uuid,
    ) -> Self {
        let Options { migrate, patience, connections, listen } = options;
        let work = connections.saturating_sub(1).max(1);
        let barred = Barred::default();
        let work = Arc::new(Pool::new(switchboard, &access, work, patience, &barred));
        Self {
            location: location.to_owned(),
            store_id,
            gate: Gate::open(switchboard, &work),
            gate_of_rules: Gate::open(switchboard, &work),
            control: Control::new(
                Ear::open(switchboard, &access, listen),
                match listen {
                    true => work.clone(),
                    false => Arc::new(Pool::new(switchboard, &access, 1, patience, &barred)),
                },
            ),
            work,
            barred,
            clock: AtomicI64::new(i64::MIN),
            floors: Floors::default(),
            free: Mutex::default(),
            generation: AtomicU64::default(),
            access,
            migrate,
        }
    }

    /// Makes the line anew when `now` lies so far behind what it was made by that tasks stand in it
    /// that are not due.
    async fn follow_clock(&self, now: Timestamp) -> Res<()> {
        let us = now.as_microsecond();
        let latest = self.clock.fetch_max(us, Ordering::Relaxed);
        if latest.saturating_sub(us) > CLOCK_TOLERANCE_US {
            self.work.rows(Sql::FollowClock, &[&At(now)]).await?;
            self.clock.store(us, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What the database's clock says.
    async fn ask_the_time(&self) -> Res<Timestamp> {
        let row = self.control.one(Sql::Ping, &[]).await?;
        row::at(&row.ok_or_else(|| Failure::broken("the database does not tell the time"))?, 0)
    }

    /// Contradictions in the store, each in words; empty when it is sound. Reads everything.
    pub async fn check_invariants(&self) -> Result<Vec<String>> {
        Ok(self.contradictions().await?)
    }
}

fn switchboard() -> Result<Arc<Switchboard>> {
    let started = Switchboard::start();
    started
        .map(Arc::new)
        .map_err(|error| StoreError::Unavailable(format!("no thread for connections: {error}")))
}

/// Where a database is, without secrets; an error when `url` is no address of one.
pub fn location(url: &str) -> Result<String> {
    Ok(Address::parse(url)?.location())
}
