//! Matins inside this process: a store of its own, a pool, a handler that does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use matins::{Client, Context, Matins, Pool, Task, TaskError};
use matins_core::store::Store;
use matins_core::{Json, State};
use matins_store::{Options, SqliteStore};
use serde::{Deserialize, Serialize};

use super::workbench::Place;
use crate::failure::{Failure, Result};

pub(super) const POOL: &str = "bench";

/// Longest time without any progress: then something is wrong, and no figure comes of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// About 30 bytes, as small tasks are.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Noop {
    pub(super) n: u64,
    pub(super) day: String,
}

impl Task for Noop {
    const TYPE: &'static str = "noop";
}

impl Noop {
    pub(super) fn new(n: usize) -> Self {
        Self { n: n as u64, day: "2026-11-29".to_owned() }
    }
}

/// The same text for the bare transactions.
pub(super) fn payloads(n: usize) -> Result<Vec<String>> {
    let text = |n| serde_json::to_string(&Noop::new(n));
    let texts: std::result::Result<_, _> = (0..n).map(text).collect();
    texts.map_err(|error| Failure::failed(error.to_string()))
}

pub(super) fn json(n: usize) -> Result<Json> {
    Json::of(&Noop::new(n)).map_err(|error| Failure::failed(error.to_string()))
}

pub(super) fn said(error: impl std::fmt::Display) -> Failure {
    Failure::failed(error.to_string())
}

pub(super) async fn store(place: &Place) -> Result<Arc<dyn Store>> {
    let path = place.file();
    let opened = tokio::task::spawn_blocking(move || SqliteStore::open(path, Options::default()));
    Ok(Arc::new(opened.await.map_err(said)?.map_err(said)?))
}

/// A running Matins.
pub(super) struct Node {
    pub(super) matins: Matins,
    started: Arc<AtomicU64>,
}

/// Told of each start of a handler.
pub(super) type OnStart = Arc<dyn Fn(u64) + Send + Sync>;

impl Node {
    pub(super) async fn start(
        place: &Place,
        slots: u32,
        on_start: Option<OnStart>,
    ) -> Result<Self> {
        Self::on(store(place).await?, slots, on_start).await
    }

    pub(super) async fn on(
        store: Arc<dyn Store>,
        slots: u32,
        on_start: Option<OnStart>,
    ) -> Result<Self> {
        let started = Arc::new(AtomicU64::new(0));
        let count = started.clone();
        let handler = move |task: Noop, _: Context| {
            count.fetch_add(1, Ordering::Relaxed);
            if let Some(on_start) = &on_start {
                on_start(task.n);
            }
            std::future::ready(Ok::<(), TaskError>(()))
        };
        let pool = Pool::new(POOL, slots).types([Noop::TYPE]);
        let matins = Matins::with_store(store).pool(pool).handler(handler).start().await;
        Ok(Self { matins: matins.map_err(said)?, started })
    }

    pub(super) fn client(&self) -> &Client {
        self.matins.client()
    }

    pub(super) async fn enqueue(&self, from: usize, n: usize) -> Result<()> {
        let answers = self.matins.enqueue_many((from..from + n).map(Noop::new)).await;
        for answer in answers.map_err(said)? {
            answer.map_err(said)?;
        }
        Ok(())
    }

    /// Handlers that have begun.
    pub(super) fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// Tasks that the store has as completed.
    pub(super) async fn completed(&self) -> Result<u64> {
        let stats = self.client().store().stats(self.client().now()).await.map_err(said)?;
        Ok(stats.tasks.get(&(POOL.into(), State::Completed)).copied().unwrap_or(0))
    }

    /// Waits until that many tasks are completed, durably; when the last one was.
    pub(super) async fn until_completed(&self, n: usize) -> Result<Instant> {
        let n = n as u64;
        let (mut seen, mut moved) = (0, Instant::now());
        loop {
            let started = self.started();
            // The store is not disturbed before there is hope.
            if started >= n && self.completed().await? >= n {
                return Ok(Instant::now());
            }
            if started != seen {
                (seen, moved) = (started, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                let what =
                    format!("nothing moved for {PATIENCE:?}: {started} of {n} tasks were begun");
                return Err(Failure::failed(what));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) async fn stop(self) {
        self.matins.shutdown().await;
    }
}
