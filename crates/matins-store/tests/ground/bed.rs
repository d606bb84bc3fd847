//! Nodes that mirror tasks: their ways to both servers can be cut, and a witness outside counts what
//! runs.

#![allow(dead_code, reason = "not of every test that takes nodes from here")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_conformance::lab::{id, task};
use matins_core::lifecycle::{Outcome, Trace, later, settle};
use matins_core::outage::Seal;
use matins_core::retry::RetryPolicy;
use matins_core::store::{
    ClaimRequest, Queue as _, Records as _, Settled, Store as _, StoreError, Types, Worker,
};
use matins_core::task::{Claimed, NewTask, State, TaskId, WorkerId};
use matins_store::RedisStore;
use matins_store::postgres::{self, PostgresStore};
use matins_store::redis::{MirrorOptions, Options, OutageOptions};
use matins_testbed::{Line, Postgres, Redis, Weather};
use tempfile::TempDir;

use crate::{database, ground};

pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

pub(crate) struct Bed {
    pub(crate) url: String,
    pub(crate) redis: Redis,
    /// Where nodes find Redis instead, without a line that can be cut.
    pub(crate) instead: Option<String>,
    pub(crate) folder: TempDir,
    pub(crate) window: Duration,
    /// Who runs what now, and how often each ran: nobody in the system can see it.
    pub(crate) witness: Arc<Mutex<Witness>>,
}

#[derive(Default)]
pub(crate) struct Witness {
    pub(crate) running: BTreeMap<TaskId, String>,
    pub(crate) runs: BTreeMap<TaskId, usize>,
}

/// A process: its ways to both servers can be cut.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) store: RedisStore,
    pub(crate) to_pg: Line,
    pub(crate) to_redis: Line,
    pub(crate) worker: Mutex<WorkerId>,
    pub(crate) witness: Arc<Mutex<Witness>>,
}

impl Bed {
    pub(crate) async fn new() -> Self {
        Self {
            url: database::new_database().await,
            redis: Redis::start(&DURABLE),
            instead: None,
            folder: tempfile::tempdir().unwrap(),
            window: Duration::from_secs(600),
            witness: Arc::default(),
        }
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        let node = self.node_with(name, Some(ground::mirror(name, &["t"]))).await;
        until("it may work in the dark", async || node.store.mirrors()).await;
        node
    }

    pub(crate) async fn node_with(&self, name: &str, mirror: Option<MirrorOptions>) -> Node {
        let to_pg = Line::to(Postgres::shared().port());
        let port = |url: &str| {
            let at = url.split('@').next_back().unwrap().trim_start_matches("redis://");
            at.split(':').nth(1).unwrap().split('/').next().unwrap().parse::<u16>().unwrap()
        };
        let redis_port = port(&self.redis.url());
        let to_redis = Line::to(redis_port);
        let by =
            |url: &str, from: u16, to: u16| url.replace(&format!(":{from}"), &format!(":{to}"));
        let url = by(&self.url, Postgres::shared().port(), to_pg.port());
        let redis = by(&self.redis.url(), redis_port, to_redis.port());
        assert!(url != self.url && redis != self.redis.url());
        let redis = self.instead.clone().unwrap_or(redis);
        let connections = postgres::Options {
            patience: Duration::from_secs(5),
            listen: false,
            ..postgres::Options::default()
        };
        let store = PostgresStore::open(&url, connections).await.expect("open");
        let outage = OutageOptions {
            spool: self.folder.path().join(format!("{name}.journal")),
            after: Duration::from_secs(1),
            accept_volatile: false,
            seal: Seal::new(Some("nobody can guess this")),
        };
        let mirror = mirror.map(|mirror| MirrorOptions { window: self.window, ..mirror });
        let options = Options { outage: Some(outage), mirror, ..Options::default() };
        let store = RedisStore::open(store, &redis, options).await.expect("open with Redis");
        let worker = WorkerId(format!("{name}:1:{}", "0".repeat(32)).into());
        let node = Node {
            name: name.to_owned(),
            store,
            to_pg,
            to_redis,
            worker: Mutex::new(worker),
            witness: self.witness.clone(),
        };
        node.store.register(node.entry()).await.expect("register");
        node
    }

    /// Past everything.
    pub(crate) async fn inspector(&self) -> PostgresStore {
        PostgresStore::open(&self.url, postgres::Options::default()).await.expect("open")
    }
}

impl Node {
    pub(crate) fn entry(&self) -> Worker {
        let now = Timestamp::now();
        Worker {
            id: self.worker.lock().unwrap().clone(),
            node_id: self.name.as_str().into(),
            started_at: now,
            seen_at: now,
            lease_until: later(now, LEASE),
            draining: false,
            remote: false,
            pools: vec![("default".into(), 4)],
            types: Types::Any,
        }
    }

    pub(crate) fn request(&self, max: usize) -> ClaimRequest {
        ClaimRequest {
            worker: self.worker.lock().unwrap().clone(),
            pool: Some("default".into()),
            types: Types::Only(Arc::new(["t".into()].into())),
            ids: None,
            max,
            token: u64::from(rand::random::<u32>()),
            repeated: false,
            lease_until: None,
            now: Timestamp::now(),
        }
    }

    /// What it gets; nothing when it may not claim now.
    pub(crate) async fn claim(&self, max: usize) -> Vec<Claimed> {
        if self.to_pg_is_fine() {
            let _ = self.store.beat(&self.entry()).await;
        }
        let claimed = match self.store.claim(self.request(max)).await {
            Ok(batch) => batch.claimed,
            Err(StoreError::Unavailable(_)) => Vec::new(),
            Err(error) => panic!("{}: {error}", self.name),
        };
        let mut witness = self.witness.lock().unwrap();
        for one in &claimed {
            let before = witness.running.insert(one.task.id, self.name.clone());
            assert_eq!(before, None, "{} is claimed by {} too", one.task.id, self.name);
            *witness.runs.entry(one.task.id).or_default() += 1;
        }
        claimed
    }

    pub(crate) fn to_pg_is_fine(&self) -> bool {
        !self.store.parts()[0].stands_in
    }

    pub(crate) async fn finish(&self, claimed: &Claimed) -> Settled {
        let done = Outcome::Completed { result: None, result_dropped_bytes: None };
        self.settle(claimed, done).await
    }

    pub(crate) async fn settle(&self, claimed: &Claimed, outcome: Outcome) -> Settled {
        let policy = RetryPolicy::default();
        let now = Timestamp::now();
        let item = settle(claimed, outcome, Trace::default(), &policy, now, 0.0);
        self.witness.lock().unwrap().running.remove(&claimed.task.id);
        let end = Instant::now() + SOON;
        loop {
            match self.store.settle(vec![item.clone()]).await {
                Ok(answers) => return answers[0],
                Err(StoreError::Unavailable(_)) if Instant::now() < end => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) async fn cut_pg(&self) {
        self.to_pg.set(Weather::Refused);
        until("the outage is noticed", async || {
            let _ = self.store.ping().await;
            self.store.parts()[0].stands_in
        })
        .await;
    }

    pub(crate) async fn heal(&self) {
        self.to_pg.set(Weather::Fine);
        self.to_redis.set(Weather::Fine);
        until("the outage is over", async || !self.store.parts()[0].stands_in).await;
    }
}

pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds().await {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn due(n: u128) -> NewTask {
    NewTask { kind: "t".into(), run_at: Timestamp::now(), ..task(n) }
}

pub(crate) async fn mirrored(bed: &Bed, count: usize) {
    until("the tasks are mirrored", async || {
        bed.redis.ask(&["hlen", "matins:mirror:tasks"]) == count.to_string()
    })
    .await;
}

pub(crate) async fn sound(store: &PostgresStore) {
    assert_eq!(store.check_invariants().await.unwrap(), Vec::<String>::new());
}

pub(crate) async fn state(store: &PostgresStore, n: u128) -> State {
    store.task(id(n)).await.unwrap().unwrap_or_else(|| panic!("task {n} is lost")).state
}
