//! The same questions to the PostgreSQL store, each beside bare statements on the same server.
//!
//! Every round has a database of its own there, so that it begins as empty as the others, and with
//! Redis in front a prefix of its own.

pub(super) mod pressure;
pub(super) mod throughput;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use matins_core::outage::Seal;
use matins_core::store::Store;
use matins_core::task::Name;
use matins_store::postgres::bare::{self, Bare, Scratch};
use matins_store::postgres::filling::Filling;
use matins_store::postgres::{self, Migrate};
use matins_store::{PostgresStore, RedisStore, redis};
use serde_json::json;

use super::Size;
use super::claim::{self, Amounts, KIND, SMALL, Shelf};
use super::figures::{Figures, Spec, Unit};
use super::latency::{self, Probe};
use super::node::{self, POOL};
use super::views::{self, Stand};
use super::workbench::Workbench;
use crate::config::RedisMirror;
use crate::failure::{Failure, Result};

/// A commit of one row, between the rounds of all the others.
const COMMIT: Spec = Spec {
    name: "commit",
    what: "bare INSERT of one row, committed",
    unit: Unit::Millis,
    against: &[],
};

/// How long nodes may take to agree on a Redis to work from.
const PATIENCE: Duration = Duration::from_secs(20);

/// About 30 bytes, as small tasks are.
const PAYLOAD: &str = r#"{"n":12345,"day":"2026-11-29"}"#;

/// Where the databases of a run are made.
pub(super) struct Server {
    url: String,
    connections: usize,
    redis: Option<String>,
    /// Where spools are.
    folder: PathBuf,
    opened: AtomicUsize,
    made: Mutex<Vec<Arc<Scratch>>>,
}

impl Server {
    pub(super) fn new(url: &str, connections: usize, redis: Option<String>, folder: &Path) -> Self {
        Self {
            url: url.to_owned(),
            connections,
            redis,
            folder: folder.to_owned(),
            opened: AtomicUsize::new(0),
            made: Mutex::default(),
        }
    }

    /// What the servers say they are.
    pub(super) async fn versions(&self) -> Result<(Option<String>, Option<String>)> {
        let version = bare::version(&self.url).await.map_err(node::said)?;
        let Some(address) = &self.redis else { return Ok((Some(version), None)) };
        let scratch = self.database().await?;
        let store = self.in_front(&scratch, address).await?;
        let mut redis = store.identity().version;
        if store.mirrors() {
            redis.push_str(" with AOF, tasks mirrored");
        }
        store.close().await.map_err(node::said)?;
        self.clear().await?;
        if redis.is_empty() {
            return Err(Failure::unreachable(format!(
                "no Redis at {}",
                redis::location(address).map_err(node::said)?
            )));
        }
        Ok((Some(version), Some(redis)))
    }

    async fn database(&self) -> Result<Arc<Scratch>> {
        let scratch = Arc::new(Scratch::new(&self.url).await.map_err(node::said)?);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.push(scratch.clone());
        Ok(scratch)
    }

    async fn open(&self, scratch: &Scratch) -> Result<Arc<dyn Store>> {
        Ok(match &self.redis {
            Some(address) => Arc::new(self.in_front(scratch, address).await?),
            None => Arc::new(self.plain(scratch).await?),
        })
    }

    async fn plain(&self, scratch: &Scratch) -> Result<PostgresStore> {
        let options = postgres::Options {
            migrate: Migrate::Auto,
            connections: self.connections,
            ..Default::default()
        };
        PostgresStore::open(scratch.url(), options).await.map_err(node::said)
    }

    /// As a server with the default settings has it.
    async fn in_front(&self, scratch: &Scratch, address: &str) -> Result<RedisStore> {
        let node = format!("node-{}", self.opened.fetch_add(1, Ordering::Relaxed));
        let usual = RedisMirror::default();
        let options = redis::Options {
            prefix: prefix(scratch),
            outage: Some(redis::OutageOptions {
                spool: self.folder.join(format!("{node}.journal")),
                after: Duration::from_secs(5),
                accept_volatile: false,
                seal: Seal::new(None),
            }),
            mirror: Some(redis::MirrorOptions {
                horizon: usual.horizon,
                tasks: usize::try_from(usual.tasks).unwrap_or(usize::MAX),
                bytes: usual.bytes,
                window: Duration::from_secs(600),
                node,
                types: Arc::new(HashSet::from([KIND.into()])),
            }),
            ..redis::Options::default()
        };
        let opened = RedisStore::open(self.plain(scratch).await?, address, options).await;
        let store = opened.map_err(node::said)?;
        store.agreed(PATIENCE).await;
        Ok(store)
    }

    /// The same in the words of a configuration.
    fn named(&self, scratch: &Scratch) -> String {
        let store = format!("store: {}\n", json!(scratch.url()));
        let Some(address) = &self.redis else { return store };
        let prefix = prefix(scratch);
        format!("{store}redis: {}\nredis_prefix: {}\n", json!(address), json!(prefix))
    }

    /// Where a worker claims. Hints are of one pool.
    fn pool(&self) -> Option<Name> {
        self.redis.is_some().then(|| POOL.into())
    }

    /// A worker that claims with its own hands.
    fn shelf(&self, store: Arc<dyn Store>) -> Shelf {
        Shelf::on(store, self.pool())
    }

    /// Drops what was made so far.
    pub(super) async fn clear(&self) -> Result<()> {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for scratch in made {
            if let Some(address) = &self.redis {
                let options =
                    redis::Options { prefix: prefix(&scratch), ..redis::Options::default() };
                let store = self.plain(&scratch).await?;
                let store = RedisStore::open(store, address, options).await.map_err(node::said)?;
                store.forget().await.map_err(node::said)?;
                store.close().await.map_err(node::said)?;
            }
            scratch.remove().await.map_err(node::said)?;
        }
        Ok(())
    }
}

fn prefix(scratch: &Scratch) -> String {
    format!("{{{}}}:", scratch.name())
}

pub(super) async fn measure_latency(
    bench: &Workbench,
    server: &Server,
    size: &Size,
    figures: &mut Figures,
) -> Result<()> {
    let scratch = server.database().await?;
    let bare = Bare::open(&scratch).await.map_err(node::said)?;
    let probe = Probe {
        against: &["bare INSERT of one row, committed, in between"],
        less: ("pickup_over_commit", "accepted → handler begins, p50 less one commit"),
        one: async || bare.commit(1).await.map_err(node::said),
    };
    latency::on(bench, size, figures, server.open(&scratch).await?, probe).await?;
    server.clear().await
}

const fn amounts(size: &Size) -> Amounts {
    match (size.quick, size.large) {
        (true, _) => Amounts { pending: 50_000, later: 10_000, finished: 50_000, blocked: 1_000 },
        (_, false) => {
            Amounts { pending: 500_000, later: 100_000, finished: 500_000, blocked: 10_000 }
        }
        (_, true) => {
            Amounts { pending: 5_000_000, later: 1_000_000, finished: 5_000_000, blocked: 10_000 }
        }
    }
}

pub(super) async fn measure_claims(
    bench: &Workbench,
    server: &Server,
    size: &Size,
    figures: &mut Figures,
) -> Result<()> {
    let small = shelf(bench, server, "small", SMALL).await?;
    let large = shelf(bench, server, "large", amounts(size)).await?;
    claim::compare(bench, size, figures, [small, large]).await?;
    server.clear().await
}

async fn shelf(bench: &Workbench, server: &Server, name: &str, amounts: Amounts) -> Result<Shelf> {
    bench.says(format!("claim: filling the {name} database"));
    let scratch = server.database().await?;
    let store = server.open(&scratch).await?;
    let filling = Filling {
        pool: POOL,
        kind: KIND,
        payload: PAYLOAD,
        pending: amounts.pending,
        later: amounts.later,
        finished: amounts.finished,
        days_ago: 0,
    };
    filling.pour(&scratch).await.map_err(node::said)?;
    let shelf = server.shelf(store);
    shelf.block(amounts.blocked).await?;
    Ok(shelf)
}

pub(super) async fn measure_views(
    bench: &Workbench,
    server: &Server,
    size: &Size,
    figures: &mut Figures,
) -> Result<()> {
    let mut stands = Vec::new();
    for (name, amounts) in views::NAMES.into_iter().zip(views::amounts(size)) {
        bench.says(format!("views: filling the database with {name} tasks"));
        let scratch = server.database().await?;
        let store = server.open(&scratch).await?;
        let filling = Filling {
            pool: POOL,
            kind: KIND,
            payload: PAYLOAD,
            pending: amounts.pending,
            later: amounts.later,
            finished: amounts.finished,
            days_ago: 0,
        };
        filling.pour(&scratch).await.map_err(node::said)?;
        views::bury(&store, server.pool(), amounts.dead).await?;
        store.close().await.map_err(node::said)?;
        let place = bench.place(name)?;
        stands.push(Stand::open(bench, size, place, &server.named(&scratch), amounts).await?);
    }
    views::compare(bench, size, figures, &stands).await?;
    drop(stands);
    server.clear().await
}
