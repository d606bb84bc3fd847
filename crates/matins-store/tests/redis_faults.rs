//! What happens to Redis costs a moment, never a task: hints that are lost, poisoned, stale or
//! another store's; a server that is frozen, cut off, replaced, or a whole cluster.

#![cfg(feature = "redis")]

#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use matins_conformance::lab::{Lab, at, done, id, request, task};
use matins_core::store::{ClaimRequest, Records as _, Store, StoreError};
use matins_core::task::TaskId;
use matins_store::redis::{Options, Times};
use matins_store::{PostgresStore, RedisStore, postgres};
use matins_testbed::{Line, Postgres, Redis, RedisCluster, RedisSentinel, Weather};

/// How long anything may take to come right on a busy machine.
const SOON: Duration = Duration::from_secs(60);

struct Bed {
    lab: Lab,
    store: Arc<RedisStore>,
    _ground: ground::WithRedis,
}

async fn bed(address: &str, prefix: &str, times: Times) -> Bed {
    let (store, ground) = ground::open_with(address, prefix, times, 0).await;
    let lab = Lab::new(store.clone()).await;
    Bed { lab, store, _ground: ground }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn of_pool(max: usize, seconds: i64) -> ClaimRequest {
    ClaimRequest { pool: Some("default".into()), ..request(max, seconds) }
}

impl Bed {
    fn is_up(&self) -> bool {
        self.store.parts()[0].up
    }

    fn drift(&self) -> u64 {
        self.store.parts()[0].figures[0].value
    }

    /// Claims and completes until those have been done, each once.
    async fn run_all(&self, wanted: impl Iterator<Item = u128>) {
        let mut left: HashSet<TaskId> = wanted.map(id).collect();
        let end = Instant::now() + SOON;
        while !left.is_empty() {
            assert!(Instant::now() < end, "{} tasks are left", left.len());
            let claimed = self.lab.claim(of_pool(7, 5)).await.expect("claim").claimed;
            for one in claimed {
                assert!(left.remove(&one.task.id), "{} twice, or from nowhere", one.task.id);
                self.lab.finish(&one, done("x"), 6).await;
            }
        }
    }

    /// Waits until claims come through hints again: `first` and those after it are used up.
    async fn until_hinted(&self, first: u128) {
        let end = Instant::now() + SOON;
        for n in first.. {
            let before = self.store.claimed().0;
            self.lab.accept([task(n)]).await;
            self.run_all(std::iter::once(n)).await;
            if self.store.claimed().0 > before {
                return;
            }
            assert!(Instant::now() < end, "no claim goes through hints");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn shared() -> (Bed, String) {
    let redis = Redis::shared();
    let prefix = redis.prefix();
    (bed(&redis.url(), &prefix, ground::patient()).await, prefix)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_claimed_through_hints() {
    let (bed, prefix) = shared().await;
    bed.until_hinted(1_000).await;
    let (hinted, _) = bed.store.claimed();
    bed.lab.accept((0..50).map(task)).await;
    let line = format!("{prefix}task:pending:default");
    assert_eq!(Redis::shared().ask(&["zcard", &line]), "50");
    let first = bed.lab.claim(of_pool(50, 5)).await.expect("claim").claimed;
    let order: Vec<TaskId> = first.iter().map(|one| one.task.id).collect();
    assert_eq!(order, (0..50).map(id).collect::<Vec<_>>(), "in the order they were accepted");
    assert_eq!(bed.store.claimed().0, hinted + 50);
    assert_eq!(Redis::shared().ask(&["zcard", &line]), "0");
}

/// One node at a time has the right to tell of an outage, and one that is silent loses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_right_to_tell_is_one_nodes_until_it_lapses() {
    let mut redis = Redis::start(&[]);
    let bed = bed(&redis.url(), "right:", ground::patient()).await;
    until("Redis is there", || bed.is_up()).await;
    let long = Duration::from_secs(600);
    let asks = async |node, lasts| bed.store.may_tell_of_outage(node, lasts).await;
    assert!(asks("a", long).await.unwrap() && asks("a", long).await.unwrap());
    assert!(!asks("b", long).await.unwrap());
    assert!(asks("a", Duration::from_millis(50)).await.unwrap());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(asks("b", long).await.unwrap() && !asks("a", long).await.unwrap());
    redis.kill();
    assert!(matches!(asks("b", long).await, Err(StoreError::Unavailable(_))));
    redis.start_again();
    until("Redis is back", || bed.is_up()).await;
    assert!(asks("a", long).await.unwrap(), "what Redis forgot is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_is_found_and_told() {
    let (bed, prefix) = shared().await;
    bed.until_hinted(1_000).await;
    bed.lab.accept((0..40).map(task)).await;
    // One hint alone, behind its back: the line seems whole.
    let line = format!("{prefix}task:pending:default");
    Redis::shared().ask(&["zpopmin", &line, "15"]);
    until("the drift is told", || bed.drift() == 15).await;
    until("and over", || bed.drift() == 0).await;
    assert_eq!(Redis::shared().ask(&["zcard", &line]), "40");
    // All of it.
    for key in ["task:pending:default", "task:delayed", "task:known", "task:stamp", "store_id"] {
        Redis::shared().ask(&["del", &format!("{prefix}{key}")]);
    }
    bed.run_all(0..40).await;
    bed.until_hinted(2_000).await;
    until("no drift is left", || bed.drift() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poisoned_hints_cost_no_task() {
    let (bed, prefix) = shared().await;
    let redis = Redis::shared();
    bed.until_hinted(1_000).await;
    let line = format!("{prefix}task:pending:default");
    bed.lab.accept((0..30).map(task)).await;
    // Of no task, of one that is done, of another pool, no hint at all.
    let known = redis.ask(&["zrange", &line, "0", "0"]);
    for (n, member) in [
        format!("0000000000000001.\t{}\t0\tdefault\tsync", id(77_777).0),
        format!("0000000000000001.\t{}\t0\tdefault\tsync", id(1_000).0),
        format!("0000000000000001.\t{}\t0\tio\tsync", id(3).0),
        known.replace('.', "!"),
        "garbage".to_owned(),
        "\t\t\t\t\t".to_owned(),
        "0000000000000001.\tno-id\t0\tdefault\tsync".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        redis.ask(&["zadd", &line, &n.to_string(), member]);
        redis.ask(&["zadd", &format!("{prefix}task:delayed"), &n.to_string(), member]);
    }
    // A place that is wrong.
    redis.ask(&["zadd", &line, "9000000000000000", &known]);
    bed.run_all(0..30).await;
    until("they are gone", || redis.ask(&["zcard", &line]) == "0").await;
    // Keys of another kind.
    for key in ["task:pending:default", "task:delayed", "task:known"] {
        redis.ask(&["del", &format!("{prefix}{key}")]);
        redis.ask(&["set", &format!("{prefix}{key}"), "mine"]);
    }
    bed.lab.accept((100..130).map(task)).await;
    bed.run_all(100..130).await;
    bed.until_hinted(2_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_stores_redis_is_refused() {
    let (_bed, prefix) = shared().await;
    let url = database::new_database().await;
    // It is a copy of the same template, and so far the same store.
    let name = url.rsplit('/').next().expect("a name");
    Postgres::shared().sql(name, "UPDATE matins.meta SET store_id = gen_random_uuid()");
    let store = PostgresStore::open(&url, postgres::Options::default()).await.expect("open");
    let options = Options { prefix, times: ground::patient(), ..Options::default() };
    let refused = RedisStore::open(store, &Redis::shared().url(), options).await;
    let error = refused.expect_err("another store").to_string();
    assert!(error.contains("another store") && error.contains("redis_prefix"), "{error}");
}

/// Neither a frozen server nor a silent line delays anybody for long, and both are noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_noticed_and_delays_nobody() {
    let redis = Redis::start(&[]);
    let wire = Line::to(redis.port());
    let address = format!("redis://127.0.0.1:{}", wire.port());
    let bed = bed(&address, "matins:", Times::default()).await;
    bed.until_hinted(10_000).await;
    for (round, cut) in [true, false].into_iter().enumerate() {
        if cut {
            wire.set(Weather::Silent);
        } else {
            redis.freeze();
        }
        let begin = Instant::now();
        until("the silence is noticed", || !bed.is_up()).await;
        // Alone it is within five seconds; here others use the machine.
        assert!(begin.elapsed() < Duration::from_secs(10), "after {:?}", begin.elapsed());
        let first = round as u128 * 100;
        let mut longest = Duration::ZERO;
        for n in first..first + 20 {
            let begin = Instant::now();
            bed.lab.accept([task(n)]).await;
            longest = longest.max(begin.elapsed());
        }
        let begin = Instant::now();
        bed.run_all(first..first + 20).await;
        assert!(longest < Duration::from_secs(2), "an enqueue took {longest:?}");
        assert!(begin.elapsed() < Duration::from_secs(20), "claims took {:?}", begin.elapsed());
        if cut {
            wire.set(Weather::Fine);
        } else {
            redis.thaw();
        }
        until("it is back", || bed.is_up()).await;
        bed.until_hinted(20_000 + first * 1_000).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_is_filled() {
    let mut redis = Redis::start(&[]);
    let bed = bed(&redis.url(), "matins:", ground::patient()).await;
    bed.lab.accept((0..20).map(task)).await;
    redis.kill();
    bed.lab.accept((20..40).map(task)).await;
    redis.start_again();
    until("it is back", || bed.is_up()).await;
    until("it is filled", || redis.ask(&["zcard", "matins:task:pending:default"]) == "40").await;
    bed.run_all(0..40).await;
    bed.until_hinted(1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_are_shown_for_two_minutes() {
    let (bed, prefix) = shared().await;
    bed.store.heartbeat("node-1", true, at(5)).await.expect("heartbeat");
    for name in ["scheduler:heartbeat", "scheduler:heartbeat:node-1"] {
        let key = format!("{prefix}{name}");
        assert_eq!(Redis::shared().ask(&["get", &key]), at(5).as_second().to_string());
        let left: u64 = Redis::shared().ask(&["ttl", &key]).parse().expect("seconds");
        assert!((100..=120).contains(&left), "{left} s");
    }
    assert_eq!(
        bed.store.note("scheduler:heartbeat:node-1").await.expect("note").as_deref(),
        Some(&*at(5).as_second().to_string())
    );
}

/// A full server takes no hints: the database is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_is_done_without() {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]);
    let bed = bed(&redis.url(), "matins:", ground::patient()).await;
    bed.until_hinted(1_000).await;
    redis.ask(&["config", "set", "maxmemory", "1"]);
    bed.lab.accept((0..20).map(task)).await;
    bed.run_all(0..20).await;
    redis.ask(&["config", "set", "maxmemory", "0"]);
    bed.until_hinted(2_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_all_keys_in_one_slot() {
    let cluster = RedisCluster::start(&[]);
    let bed = bed(&cluster.url(), "matins:", ground::patient()).await;
    bed.until_hinted(1_000).await;
    bed.lab.accept((0..20).map(task)).await;
    let line = "{matins}:task:pending:default";
    let cards: Vec<String> =
        cluster.nodes.iter().map(|node| node.ask(&["--raw", "keys", "*"])).collect();
    let owners = cards.iter().filter(|keys| keys.contains(line)).count();
    assert_eq!(owners, 1, "{cards:?}");
    assert!(!bed.store.identity().run_id.is_empty());
    bed.run_all(0..20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_under_sentinels_is_followed() {
    let sentinels = RedisSentinel::start(&[]);
    let bed = bed(&sentinels.url(), "matins:", ground::patient()).await;
    bed.until_hinted(1_000).await;
    let before = bed.store.identity().run_id;
    sentinels.servers[0].kill();
    bed.lab.accept((0..20).map(task)).await;
    bed.run_all(0..20).await;
    until("the other one is the master", || bed.is_up() && bed.store.identity().run_id != before)
        .await;
    bed.until_hinted(2_000).await;
}
