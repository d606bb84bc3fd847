//! Where a desk's state and its unread alerts are kept: in the store for all nodes together, or
//! in a file of the node for what must not wait for the store.

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use matins_core::alert::Alert;
use matins_core::lifecycle::later;
use matins_core::store::{Result, Store, StoreError, Tray, Turn};

/// Alerts of one look.
const LOOK: usize = 5_000;

/// How long the one who tells is alone with it. Whoever takes over from a dead one waits for as
/// long.
const TURN: Duration = Duration::from_secs(30);

/// Alerts that may wait for the desk of a node.
const WAITING_MAX: usize = 4_096;

#[async_trait]
pub(super) trait Book: Send + Sync {
    async fn tray(&self, now: Timestamp) -> Result<Option<Tray>>;

    async fn file(&self, read: &[u64], state: &str) -> Result<bool>;

    /// Whether its states are those of this process alone: then what cannot be kept is sent all the
    /// same, and after a restart perhaps once more.
    fn is_own(&self) -> bool;
}

/// In the store.
pub(super) struct StoreBook {
    pub(super) store: Arc<dyn Store>,
    pub(super) teller: String,
}

#[async_trait]
impl Book for StoreBook {
    async fn tray(&self, now: Timestamp) -> Result<Option<Tray>> {
        let teller = self.teller.clone();
        let turn = Turn { teller, now, until: later(now, TURN), limit: LOOK };
        self.store.tray(&turn).await
    }

    async fn file(&self, read: &[u64], state: &str) -> Result<bool> {
        self.store.file(&self.teller, read, state).await
    }

    fn is_own(&self) -> bool {
        false
    }
}

/// In a file of the node.
#[derive(Clone)]
pub(super) struct FileBook {
    path: Option<PathBuf>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    number: u64,
    alerts: VecDeque<(u64, Alert)>,
}

impl FileBook {
    /// Without a path, what was not told is forgotten with the process.
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self { path, waiting: Arc::default() }
    }

    pub(super) fn add(&self, alert: Alert) {
        let mut waiting = self.waiting();
        if waiting.alerts.len() >= WAITING_MAX {
            tracing::error!(rule = %alert.rule, "too many alerts at once: this one is only logged");
            return;
        }
        waiting.number += 1;
        let number = waiting.number;
        waiting.alerts.push_back((number, alert));
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, state: &str) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let draft = path.with_extension("draft");
        let mut file = std::fs::File::create(&draft)?;
        file.write_all(state.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, path)
    }

    fn read(&self) -> Option<String> {
        std::fs::read_to_string(self.path.as_ref()?).ok()
    }
}

#[async_trait]
impl Book for FileBook {
    async fn tray(&self, _now: Timestamp) -> Result<Option<Tray>> {
        let unread = self.waiting().alerts.iter().cloned().collect();
        Ok(Some(Tray { state: self.read(), unread }))
    }

    async fn file(&self, read: &[u64], state: &str) -> Result<bool> {
        // Whoever has read them tells them, also where no file takes that down: a full disk is one of
        // the things to be told.
        self.waiting().alerts.retain(|(number, _)| !read.contains(number));
        let failed = |error: std::io::Error| StoreError::Unavailable(error.to_string());
        self.write(state).map_err(failed)?;
        Ok(true)
    }

    fn is_own(&self) -> bool {
        true
    }
}
