//! A store in a directory of its own, and the short words for what most tests do with it.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use matins_core::Json;
use matins_core::lifecycle::{Outcome, Settlement, Trace, settle};
use matins_core::retry::RetryPolicy;
use matins_core::store::{Act, ClaimRequest, Queue, Settled, Types, Worker};
use matins_core::task::{Claimed, ErrorClass, NewTask, TaskError, TaskId, WorkerId};
use matins_store::{Options, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;
use uuid::Uuid;

pub(crate) struct Bed {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) path: PathBuf,
    /// Deleted when the last store in it is gone.
    directory: Arc<TempDir>,
}

impl Deref for Bed {
    type Target = SqliteStore;

    fn deref(&self) -> &SqliteStore {
        &self.store
    }
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("matins.db");
        let store = Arc::new(SqliteStore::open(&path, options).unwrap());
        Self { store, path, directory: Arc::new(directory) }
    }

    /// A second store on the same file, as another process would have it.
    pub(crate) fn another(&self) -> Self {
        let store = Arc::new(SqliteStore::open(&self.path, Options::default()).unwrap());
        Self { store, path: self.path.clone(), directory: self.directory.clone() }
    }

    /// The file as any program sees it.
    pub(crate) fn connect(&self) -> Connection {
        let conn = Connection::open(&self.path).unwrap();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        conn
    }

    pub(crate) async fn register(&self) {
        self.store.register(worker("w")).await.unwrap();
    }

    pub(crate) async fn claim(&self, max: usize) -> Vec<Claimed> {
        self.store.claim(request(max)).await.unwrap().claimed
    }

    pub(crate) async fn end(&self, claimed: &Claimed, outcome: Outcome) -> Settled {
        self.store.settle(vec![ended(claimed, outcome)]).await.unwrap()[0]
    }

    pub(crate) async fn assert_sound(&self) {
        assert_eq!(self.store.check_invariants().await.unwrap(), Vec::<String>::new());
    }
}

/// Midnight of a day of no importance.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(crate) fn task(kind: &str) -> NewTask {
    NewTask { created_by: "test".into(), ..new(kind, at(0)) }
}

pub(crate) fn new(kind: &str, run_at: Timestamp) -> NewTask {
    NewTask::new(TaskId(Uuid::now_v7()), kind, Json::trusted(r#"{"n":1}"#), run_at)
}

pub(crate) fn keyed(kind: &str, key: &str) -> NewTask {
    NewTask { execution_key: Some(key.into()), ..task(kind) }
}

pub(crate) fn worker(name: &str) -> Worker {
    Worker {
        id: WorkerId(name.into()),
        node_id: "node".into(),
        started_at: at(0),
        seen_at: at(0),
        lease_until: at(0) + SignedDuration::from_hours(10),
        draining: false,
        remote: false,
        pools: vec![("default".into(), 10)],
        types: Types::Any,
    }
}

pub(crate) fn request(max: usize) -> ClaimRequest {
    ClaimRequest {
        worker: WorkerId("w".into()),
        pool: None,
        types: Types::Any,
        ids: None,
        max,
        token: 0x5eed,
        repeated: false,
        lease_until: None,
        now: at(0),
    }
}

pub(crate) fn done(result: &str) -> Outcome {
    Outcome::Completed { result: Some(Json::trusted(result)), result_dropped_bytes: None }
}

pub(crate) fn hopeless(text: &str) -> Outcome {
    let error = TaskError::new(ErrorClass::Exit, text);
    Outcome::Failed { error, permanent: true, retry_after: None }
}

pub(crate) fn lost() -> Outcome {
    Outcome::Lost { error: TaskError::new(ErrorClass::WorkerLost, "its worker died") }
}

pub(crate) fn ended(claimed: &Claimed, outcome: Outcome) -> Settlement {
    settle(claimed, outcome, Trace::default(), &RetryPolicy::default(), at(1), 0.0)
}

pub(crate) fn act() -> Act {
    Act { who: "ann".to_owned(), reason: Some("because".to_owned()), at: at(2) }
}
