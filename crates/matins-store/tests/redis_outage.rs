//! PostgreSQL away, Redis there: what was promised is kept, whatever else is lost, and once.

#![cfg(feature = "redis")]

#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use matins_conformance::lab::{id, task};
use matins_core::Json;
use matins_core::outage::Seal;
use matins_core::store::{Act, Enqueued, Queue as _, Records as _, Store as _, StoreError, Token};
use matins_core::task::{Durability, NewTask, State, Task};
use matins_store::RedisStore;
use matins_store::postgres::{self, PostgresStore};
use matins_store::redis::{Options, OutageOptions};
use matins_testbed::{Line, Postgres, Redis, Weather};
use tempfile::TempDir;

/// How long anything may take to come right on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A Redis that keeps what it is told.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

struct Bed {
    /// The way to the database that can be cut.
    line: Line,
    url: String,
    redis: Redis,
    folder: TempDir,
    key: Option<&'static str>,
    accept_volatile: bool,
    /// How long a silence is none.
    after: Duration,
}

impl Bed {
    async fn new(redis: Redis) -> Self {
        let line = Line::to(Postgres::shared().port());
        let url = database::new_database().await;
        let folder = tempfile::tempdir().unwrap();
        Self {
            line,
            url,
            redis,
            folder,
            key: None,
            accept_volatile: false,
            after: Duration::from_secs(1),
        }
    }

    async fn durable() -> Self {
        Self::new(Redis::start(&DURABLE)).await
    }

    /// Returns when nothing gets through any more.
    async fn cut(&self, weather: Weather) {
        self.line.set(weather);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    fn spool(&self, node: &str) -> PathBuf {
        self.folder.path().join(format!("{node}.journal"))
    }

    /// By the line, or past it.
    async fn node(&self, node: &str, cut: bool) -> RedisStore {
        self.try_node(node, cut).await.expect("open")
    }

    async fn try_node(&self, node: &str, cut: bool) -> matins_core::store::Result<RedisStore> {
        let straight = Postgres::shared().port();
        let by = self.url.replace(&format!(":{straight}/"), &format!(":{}/", self.line.port()));
        assert!(by != self.url, "{by}");
        let url = if cut { &by } else { &self.url };
        let patience = Duration::from_secs(5);
        let connections = postgres::Options { patience, ..postgres::Options::default() };
        let outage = OutageOptions {
            spool: self.spool(node),
            after: self.after,
            accept_volatile: self.accept_volatile,
            seal: Seal::new(self.key),
        };
        let options = Options { outage: Some(outage), ..Options::default() };
        RedisStore::open_both(url, connections, &self.redis.url(), options).await
    }

    /// Past everything.
    async fn witness(&self) -> PostgresStore {
        PostgresStore::open(&self.url, postgres::Options::default()).await.expect("open")
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds().await {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn figure(store: &RedisStore, name: &str) -> u64 {
    let part = &store.parts()[0];
    part.figures.iter().find(|figure| figure.name == name).expect("a figure").value
}

/// One journalled, with its answer.
async fn journalled(store: &RedisStore, task: NewTask) -> Durability {
    let now = task.run_at;
    match store.enqueue(vec![task], now).await.expect("journalled").remove(0) {
        Enqueued::Journalled(durability) => durability,
        other => panic!("{other:?}"),
    }
}

async fn found(store: &PostgresStore, n: u128) -> Task {
    store.task(id(n)).await.expect("read").unwrap_or_else(|| panic!("task {n} is lost"))
}

async fn over(store: &RedisStore) {
    until("the outage is over", async || {
        !store.parts()[0].stands_in && figure(store, "journal_entries") == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_meanwhile_is_there_afterwards_as_it_was() {
    let bed = Bed::durable().await;
    let store = bed.node("a", true).await;
    let payload = Json::parse("{\"b\": 1E400,\n \"a\" : 1, \"x\": \"\\u0000\"}").unwrap();
    for (weather, n) in [(Weather::Silent, 1), (Weather::Refused, 2)] {
        bed.cut(weather).await;
        let new = NewTask { payload: payload.clone(), tags: vec!["t".to_owned()], ..task(n) };
        assert_eq!(journalled(&store, new.clone()).await, Durability::Redis);
        assert!(store.parts()[0].stands_in);
        assert_eq!(figure(&store, "outage_mode"), 1);
        // Between an entry and its count the whole may be counted anew.
        until("one entry is told", async || figure(&store, "journal_entries") == 1).await;
        let seen = store.task(id(n)).await.expect("readable").expect("known");
        assert_eq!((seen.durability, &seen.payload), (Durability::Redis, &payload));
        assert_eq!(seen.created_at, new.run_at);
        bed.line.set(Weather::Fine);
        over(&store).await;
        assert_eq!(figure(&store, "outage_mode"), 0);
        let kept = found(store.database(), n).await;
        assert_eq!(kept, Task::from_new(&new, new.run_at));
    }
    assert_eq!(bed.redis.ask(&["hlen", "matins:journal:tasks"]), "0");
    let answers = store.enqueue(vec![task(3)], task(3).run_at).await.unwrap();
    assert_eq!(answers, [Enqueued::Created]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_may_forget_is_not_promised_on() {
    let forgetful: [(&[&str], &str); 3] = [
        (&[], "aof_enabled is 0"),
        (&["--appendonly", "no", "--maxmemory", "50mb"], "aof_enabled is 0"),
        (&["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"], "allkeys-lru"),
    ];
    for (options, says) in forgetful {
        let mut bed = Bed::new(Redis::start(options)).await;
        let store = bed.node("a", true).await;
        bed.cut(Weather::Refused).await;
        let refused = store.enqueue(vec![task(1)], task(1).run_at).await;
        let Err(StoreError::NotDurable(text)) = refused else { panic!("{refused:?}") };
        assert!(text.contains(says) && text.contains("accept_volatile"), "{text}");
        assert_eq!(figure(&store, "journal_entries"), 0);
        store.close().await.unwrap();
        bed.line.set(Weather::Fine);
        assert_eq!(bed.witness().await.task(id(1)).await.unwrap(), None, "nothing was written");
        bed.accept_volatile = true;
        let store = bed.node("a", true).await;
        bed.cut(Weather::Refused).await;
        assert_eq!(journalled(&store, task(2)).await, Durability::Volatile);
        bed.line.set(Weather::Fine);
        over(&store).await;
        found(store.database(), 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_too_nothing_is_promised() {
    let bed = Bed::durable().await;
    let store = bed.node("a", true).await;
    bed.cut(Weather::Refused).await;
    bed.redis.kill();
    let refused = store.enqueue(vec![task(1)], task(1).run_at).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    bed.line.set(Weather::Fine);
    until("it is taken in again", async || {
        store.enqueue(vec![task(2)], task(2).run_at).await.is_ok()
    })
    .await;
}

/// Each of the two places alone is enough, and both together are one.
#[tokio::test(flavor = "multi_thread")]
async fn it_survives_the_loss_of_redis_or_of_the_node() {
    let bed = Bed::durable().await;
    let first = bed.node("a", true).await;
    bed.cut(Weather::Refused).await;
    for n in 1..=3 {
        journalled(&first, task(n)).await;
    }
    // Redis forgets: the spool is enough.
    bed.redis.ask(&["flushall"]);
    bed.line.set(Weather::Fine);
    over(&first).await;
    for n in 1..=3 {
        found(first.database(), n).await;
    }
    // The node dies with its disk: anybody who reaches both replays the stream.
    bed.cut(Weather::Refused).await;
    for n in 4..=6 {
        journalled(&first, task(n)).await;
    }
    let kept = std::fs::read(bed.spool("a")).unwrap();
    first.close().await.unwrap();
    drop(first);
    std::fs::remove_file(bed.spool("a")).unwrap();
    let second = bed.node("b", false).await;
    let witness = bed.witness().await;
    until("the stream is replayed", async || bed.redis.ask(&["xlen", "matins:journal"]) == "0")
        .await;
    for n in 4..=6 {
        found(&witness, n).await;
    }
    // Its disk is found again, long after: what has been applied is not applied again, although
    // the tasks have ended and their rows have gone.
    let now = task(4).run_at;
    let act = Act { who: "test".to_owned(), reason: None, at: now };
    witness.cancel(&[id(4), id(5), id(6)], &act).await.unwrap();
    Postgres::shared().sql(bed.url.rsplit_once('/').unwrap().1, "DELETE FROM matins.history");
    std::fs::write(bed.spool("a"), kept).unwrap();
    bed.line.set(Weather::Fine);
    let third = bed.node("a", true).await;
    until("the spool is replayed", async || std::fs::metadata(bed.spool("a")).unwrap().len() == 0)
        .await;
    for n in 4..=6 {
        assert_eq!(third.task(id(n)).await.unwrap(), None, "task {n} came back");
    }
    second.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_judged_when_the_database_is_back() {
    let bed = Bed::durable().await;
    let store = bed.node("a", true).await;
    let witness = bed.witness().await;
    let keyed = |n, key: &str| NewTask { execution_key: Some(key.into()), ..task(n) };
    let now = task(1).run_at;
    witness.enqueue(vec![keyed(1, "live")], now).await.unwrap();
    bed.cut(Weather::Silent).await;
    for (n, key) in [(2, "live"), (3, "new"), (4, "new")] {
        journalled(&store, keyed(n, key)).await;
    }
    // The same id again is the same request again, whatever else it says.
    let other = Json::parse(r#"{"other": true}"#).unwrap();
    let again = NewTask { client_id: true, payload: other, ..keyed(3, "new") };
    let answers = store.enqueue(vec![again], now).await.unwrap();
    let [Enqueued::Existing(first)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((first.id, &first.payload), (id(3), &keyed(3, "new").payload));
    bed.line.set(Weather::Fine);
    over(&store).await;
    let ended = async |n| {
        let task = found(&witness, n).await;
        (task.state, task.cancel_reason, task.execution_key)
    };
    let key = |key: &str| Some(key.into());
    let duplicate = || Some("duplicate_key".to_owned());
    assert_eq!(ended(1).await, (State::Pending, None, key("live")));
    assert_eq!(ended(2).await, (State::Cancelled, duplicate(), key("live")));
    assert_eq!(ended(3).await, (State::Pending, None, key("new")));
    assert_eq!(ended(4).await, (State::Cancelled, duplicate(), key("new")));
    assert_eq!(witness.check_invariants().await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_can_write_to_redis_brings_no_task_in_without_the_key() {
    let mut bed = Bed::durable().await;
    bed.key = Some("nobody can guess this");
    let store = bed.node("a", true).await;
    bed.cut(Weather::Refused).await;
    journalled(&store, task(1)).await;
    let first = bed.redis.ask(&["xrange", "matins:journal", "-", "+"]);
    let sealed = first.lines().last().expect("an entry").to_owned();
    let forged = sealed.replace(&id(1).to_string(), &id(2).to_string());
    assert!(forged != sealed);
    for text in [&forged, "", "- {}", "garbage"] {
        bed.redis.ask(&["xadd", "matins:journal", "*", "entry", text]);
    }
    bed.redis.ask(&["xadd", "matins:journal", "*", "other", "field"]);
    bed.line.set(Weather::Fine);
    over(&store).await;
    found(store.database(), 1).await;
    assert_eq!(store.database().task(id(2)).await.unwrap(), None);
    assert_eq!(bed.redis.ask(&["llen", "matins:journal:refused"]), "5", "nothing is dropped");
    assert!(!has_refused(&bed.spool("a")));
}

fn has_refused(spool: &Path) -> bool {
    spool.with_extension("refused").exists()
}

/// One that PostgreSQL will not have does not hold up those behind it.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_cannot_be_applied_is_put_aside() {
    let bed = Bed::durable().await;
    let store = bed.node("a", true).await;
    bed.cut(Weather::Refused).await;
    // Beyond what the database's timestamps hold.
    let impossible = NewTask { max_retries: Some(7), ..task(1) };
    journalled(&store, impossible).await;
    journalled(&store, task(2)).await;
    let database = bed.url.rsplit_once('/').unwrap().1;
    let forbid = "ALTER TABLE matins.task ADD CONSTRAINT forbidden CHECK (max_retries IS DISTINCT \
                  FROM 7)";
    Postgres::shared().sql(database, forbid);
    bed.line.set(Weather::Fine);
    over(&store).await;
    found(store.database(), 2).await;
    assert!(has_refused(&bed.spool("a")));
    assert_eq!(bed.redis.ask(&["llen", "matins:journal:refused"]), "1");
}

/// It goes by what an earlier process of the node wrote down, and by nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_can_begin_while_the_database_is_away() {
    let bed = Bed::durable().await;
    bed.cut(Weather::Refused).await;
    let unknown = bed.try_node("a", true).await;
    assert!(matches!(unknown, Err(StoreError::Unavailable(_))), "nothing is known of it");
    bed.line.set(Weather::Fine);
    let first = bed.node("a", true).await;
    let token = Token {
        name: "shop".to_owned(),
        role: "enqueue".to_owned(),
        types: Vec::new(),
        hash: "x".to_owned(),
        created_at: task(1).run_at,
        created_by: "test".to_owned(),
    };
    first.put_token(&token).await.unwrap();
    first.tokens().await.unwrap();
    until("it is written down", async || {
        std::fs::read_to_string(bed.spool("a").with_extension("known.json"))
            .is_ok_and(|text| text.contains("shop"))
    })
    .await;
    first.close().await.unwrap();
    drop(first);
    bed.cut(Weather::Refused).await;
    let second = bed.node("a", true).await;
    assert!(second.parts()[0].stands_in);
    assert_eq!(second.tokens().await.unwrap(), [token]);
    assert_eq!(journalled(&second, task(1)).await, Durability::Redis);
    bed.line.set(Weather::Fine);
    over(&second).await;
    found(second.database(), 1).await;
    assert_eq!(second.enqueue(vec![task(2)], task(2).run_at).await.unwrap(), [Enqueued::Created]);
}

/// What was written down is about one database. Another one in its place gets nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn another_database_in_its_place_gets_nothing() {
    let bed = Bed::durable().await;
    bed.node("a", true).await.close().await.unwrap();
    bed.cut(Weather::Refused).await;
    let node = bed.node("a", true).await;
    journalled(&node, task(1)).await;
    let name = bed.url.rsplit_once('/').unwrap().1;
    // Nobody may be connected to what is given another name.
    let rename = |from: &str, to: &str| {
        let server = Postgres::shared();
        let end = Instant::now() + SOON;
        let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname";
        loop {
            server.sql("postgres", &format!("{ends} = '{from}'"));
            let renamed =
                server.try_sql("postgres", &format!("ALTER DATABASE {from} RENAME TO {to}"));
            match renamed {
                Ok(_) => return,
                Err(said) => assert!(Instant::now() < end, "{said}"),
            }
        }
    };
    rename(name, &format!("{name}_kept"));
    let other = database::new_database().await;
    let other = other.rsplit_once('/').unwrap().1;
    rename(other, name);
    // A template's copy has its id: this one is a store of its own.
    Postgres::shared().sql(name, "UPDATE matins.meta SET store_id = gen_random_uuid()");
    bed.line.set(Weather::Fine);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(node.parts()[0].stands_in, "it is not its database");
    assert_eq!(bed.witness().await.task(id(1)).await.unwrap(), None);
    rename(name, &format!("{name}_other"));
    rename(&format!("{name}_kept"), name);
    over(&node).await;
    found(node.database(), 1).await;
}

/// Enqueues that come as fast as they are replayed do not keep the outage from ending.
#[tokio::test(flavor = "multi_thread")]
async fn it_ends_under_load() {
    let bed = Bed::durable().await;
    let store = std::sync::Arc::new(bed.node("a", true).await);
    bed.cut(Weather::Refused).await;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let load: Vec<_> = (1..=8_u128)
        .map(|hand| {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::spawn(async move {
                let mut accepted = Vec::new();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let n = hand * 1_000_000 + accepted.len() as u128;
                    if store.enqueue(vec![task(n)], task(1).run_at).await.is_ok() {
                        accepted.push(n);
                    }
                }
                accepted
            })
        })
        .collect();
    until("some are journalled", async || figure(&store, "journal_entries") > 200).await;
    bed.line.set(Weather::Fine);
    until("the outage is over", async || !store.parts()[0].stands_in).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut accepted = Vec::new();
    for hand in load {
        accepted.extend(hand.await.unwrap());
    }
    over(&store).await;
    assert_eq!(std::fs::metadata(bed.spool("a")).unwrap().len(), 0);
    let database = bed.url.rsplit_once('/').unwrap().1;
    let stored = Postgres::shared().sql(database, "SELECT count(*) FROM matins.task");
    assert!(accepted.len() > 200 && stored.contains(&accepted.len().to_string()), "{stored}");
}

/// The database takes a task in, its answer is lost, and the task has run to its end before the call
/// is made again.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_doubt_is_not_taken_in_twice() {
    let bed = Bed { after: SOON, ..Bed::durable().await };
    let store = std::sync::Arc::new(bed.node("a", true).await);
    let witness = bed.witness().await;
    let database = bed.url.rsplit_once('/').unwrap().1;
    let hold = "BEGIN; LOCK TABLE matins.task IN SHARE ROW EXCLUSIVE MODE";
    let held = Postgres::shared().session(database, hold);
    let now = task(1).run_at;
    let call = {
        let store = store.clone();
        tokio::spawn(async move { store.enqueue(vec![task(1)], now).await })
    };
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                   AND query LIKE '%enqueue_told%'";
    until("the call waits", async || Postgres::shared().sql(database, waiting) == "1").await;
    bed.cut(Weather::Refused).await;
    drop(held);
    until("it is taken in", async || witness.task(id(1)).await.unwrap().is_some()).await;
    let act = Act { who: "test".to_owned(), reason: None, at: now };
    witness.cancel(&[id(1)], &act).await.unwrap();
    bed.line.set(Weather::Fine);
    let answer = call.await.unwrap().expect("answered").remove(0);
    assert_eq!(answer, Enqueued::Created);
    over(&store).await;
    let rows =
        "SELECT (SELECT count(*) FROM matins.task) || ' ' || (SELECT count(*) FROM matins.history)";
    assert_eq!(Postgres::shared().sql(database, rows), "0 1");
}

/// What the start waits for and what goes on by itself meanwhile is one replay.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_spool_comes_in_whole_at_a_start() {
    const TASKS: u128 = 10_000;
    let bed = Bed::durable().await;
    let first = bed.node("a", true).await;
    bed.cut(Weather::Refused).await;
    let payload = Json::trusted(format!("\"{}\"", "x".repeat(600)));
    for from in (1..=TASKS).step_by(500) {
        let some = (from..from + 500).map(|n| NewTask { payload: payload.clone(), ..task(n) });
        first.enqueue(some.collect(), task(1).run_at).await.expect("journalled");
    }
    first.close().await.unwrap();
    drop(first);
    assert!(std::fs::metadata(bed.spool("a")).unwrap().len() > 2 << 20);
    let second = bed.node("a", false).await;
    over(&second).await;
    until("the spool is empty", async || std::fs::metadata(bed.spool("a")).unwrap().len() == 0)
        .await;
    assert!(!bed.spool("a").with_extension("torn").exists(), "nothing of it was damaged");
    let stored = "SELECT count(*) FROM matins.task";
    let database = bed.url.rsplit_once('/').unwrap().1;
    assert_eq!(Postgres::shared().sql(database, stored), TASKS.to_string());
}

/// A moment without an answer is no outage: whoever asked meanwhile waits, and is taken in.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_silence_is_waited_for() {
    let bed = Bed::durable().await;
    let store = bed.node("a", true).await;
    let now = task(1).run_at;
    bed.cut(Weather::Silent).await;
    let enqueue = store.enqueue(vec![task(1)], now);
    let heal = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        bed.line.set(Weather::Fine);
    };
    let (answer, ()) = tokio::join!(enqueue, heal);
    assert_eq!(answer.unwrap(), [Enqueued::Created]);
    assert!(!store.parts()[0].stands_in);
    assert_eq!(bed.redis.ask(&["exists", "matins:journal"]), "0");
}

/// Who waits for what is not decided is answered when the store is closed.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_store_that_is_closed() {
    let bed = Bed::durable().await;
    let store = std::sync::Arc::new(bed.node("a", true).await);
    bed.cut(Weather::Refused).await;
    let waits = tokio::spawn({
        let store = store.clone();
        async move { store.enqueue(vec![task(1)], task(1).run_at).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begin = Instant::now();
    store.close().await.unwrap();
    let answer = waits.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
}
