//! A new store in a database of its own, with lines of its own in Redis.

use std::sync::Arc;
use std::time::Duration;

use matins_conformance::Ground;
use matins_core::outage::Seal;
use matins_core::store::Store;
use matins_store::postgres::Options;
use matins_store::{PostgresStore, RedisStore, redis};
use matins_testbed::Redis;
use tempfile::TempDir;

use crate::database::new_database;

/// The store in a database, which can say whether it is sound.
pub(crate) struct WithRedis {
    store: Arc<RedisStore>,
    others: Vec<Arc<dyn Store>>,
    /// Of spools.
    _folder: Option<TempDir>,
}

impl Ground for WithRedis {
    async fn inspect(&self) {
        let contradictions = self.store.database().check_invariants().await;
        assert_eq!(contradictions.expect("check_invariants"), Vec::<String>::new());
    }

    fn doors(&self) -> Vec<Arc<dyn Store>> {
        self.others.clone()
    }
}

/// Nobody waits for long in practice. Here a hint that comes a moment later would make an order
/// look wrong, so that there is time on a busy machine.
#[allow(dead_code, reason = "not of every test that takes a store from here")]
pub(crate) fn patient() -> redis::Times {
    redis::Times { patience: Duration::from_secs(10), ..redis::Times::default() }
}

pub(crate) async fn one(url: &str, address: &str, options: redis::Options) -> RedisStore {
    // Workers here have no session of their own that could be missed on a busy machine.
    let connections = Options { connections: 4, listen: false, ..Options::default() };
    let store = PostgresStore::open(url, connections).await.expect("open");
    RedisStore::open(store, address, options).await.expect("open with Redis")
}

/// What is mirrored when something is: for a test, everything.
#[allow(dead_code, reason = "not of every test that takes a store from here")]
pub(crate) fn mirror(node: &str, types: &[&str]) -> redis::MirrorOptions {
    redis::MirrorOptions {
        horizon: Duration::from_secs(3_600),
        tasks: 10_000,
        bytes: 64 << 20,
        window: Duration::from_secs(600),
        node: node.to_owned(),
        types: Arc::new(types.iter().map(|kind| (*kind).into()).collect()),
    }
}

/// With that many further handles to it, all of them members that mirror.
#[allow(dead_code, reason = "not of every test that takes a store from here")]
pub(crate) async fn open_mirrored(
    address: &str,
    prefix: &str,
    times: redis::Times,
    others: usize,
) -> (Arc<RedisStore>, WithRedis) {
    let url = new_database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let door = async |nth: usize| {
        let outage = redis::OutageOptions {
            spool: folder.path().join(format!("{nth}.journal")),
            after: Duration::from_secs(60),
            // The Redis of most tests keeps nothing on a disk.
            accept_volatile: true,
            seal: Seal::default(),
        };
        let node = format!("node-{nth}");
        let options = redis::Options {
            prefix: prefix.to_owned(),
            times,
            outage: Some(outage),
            mirror: Some(mirror(&node, &[])),
        };
        Arc::new(one(&url, address, options).await)
    };
    let store = door(0).await;
    let mut doors = Vec::new();
    for nth in 1..=others {
        doors.push(door(nth).await as Arc<dyn Store>);
    }
    (store.clone(), WithRedis { store, others: doors, _folder: Some(folder) })
}

/// With that many further handles to it.
#[allow(dead_code, reason = "not of every test that takes a store from here")]
pub(crate) async fn open_at(
    redis: &Redis,
    times: redis::Times,
    others: usize,
) -> (Arc<RedisStore>, WithRedis) {
    open_with(&redis.url(), &redis.prefix(), times, others).await
}

pub(crate) async fn open_with(
    address: &str,
    prefix: &str,
    times: redis::Times,
    others: usize,
) -> (Arc<RedisStore>, WithRedis) {
    let url = new_database().await;
    let options = redis::Options { prefix: prefix.to_owned(), times, ..redis::Options::default() };
    let door = async || Arc::new(one(&url, address, options.clone()).await);
    let store = door().await;
    let mut doors = Vec::new();
    for _ in 0..others {
        doors.push(door().await as Arc<dyn Store>);
    }
    (store.clone(), WithRedis { store, others: doors, _folder: None })
}

/// Until tasks must be taken in Redis before they are claimed.
#[allow(dead_code, reason = "not of every test that takes a store from here")]
pub(crate) async fn until_mirrored(store: &RedisStore) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !store.mirrors() {
        assert!(std::time::Instant::now() < end, "nothing is mirrored");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
