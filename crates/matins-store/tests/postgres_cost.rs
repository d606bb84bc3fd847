//! What the hot verbs cost the database, by what it counts: entries and blocks, not time.

#![cfg(feature = "postgres")]

#[path = "postgres_cost/plans.rs"]
mod plans;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::lifecycle::{Outcome, Trace, settle};
use matins_core::page::PageRequest;
use matins_core::retry::RetryPolicy;
use matins_core::store::{
    ClaimBatch, ClaimRequest, Queue as _, Records as _, Retention, Store as _, TaskFilter, Types,
};
use matins_core::task::{ErrorClass, NewTask, State, TaskError, TaskId, WorkerId};
use matins_core::{Json, store::Settled};
use matins_store::PostgresStore;
use matins_store::postgres::Options;
use matins_store::postgres::bare::Scratch;
use matins_store::postgres::filling::Filling;
use matins_testbed::Postgres;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

const POOL: &str = "default";
const KIND: &str = "noop";

struct Bed {
    store: PostgresStore,
    scratch: Scratch,
    eye: Client,
}

/// Index entries of tasks in line that were walked over since the database was made.
async fn walked(eye: &Client) -> i64 {
    let sql = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'ready_pkey'";
    eye.query_one(sql, &[]).await.unwrap().get(0)
}

impl Bed {
    async fn new(filling: Filling<'_>) -> Self {
        let scratch = Scratch::new(&Postgres::shared().url("postgres")).await.unwrap();
        let store = PostgresStore::open(scratch.url(), Options::default()).await.unwrap();
        Filling { pool: POOL, kind: KIND, payload: "{}", ..filling }.pour(&scratch).await.unwrap();
        let (eye, connection) = tokio_postgres::connect(scratch.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { store, scratch, eye }
    }

    async fn claim(&self, max: usize) -> ClaimBatch {
        let now = Timestamp::now();
        let request = ClaimRequest {
            worker: WorkerId("w".into()),
            pool: Some(POOL.into()),
            types: Types::Any,
            ids: None,
            max,
            token: 1,
            repeated: false,
            lease_until: Some(now + Duration::from_secs(600)),
            now,
        };
        self.store.claim(request).await.unwrap()
    }

    async fn complete(&self, batch: &ClaimBatch) {
        let now = Timestamp::now();
        let done = || Outcome::Completed { result: None, result_dropped_bytes: None };
        let items = batch.claimed.iter().map(|claimed| {
            settle(claimed, done(), Trace::default(), &RetryPolicy::default(), now, 0.0)
        });
        let answers = self.store.settle(items.collect()).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Settled::Done(_))));
    }

    async fn put(&self, n: usize, priority: i16) -> Vec<TaskId> {
        let now = Timestamp::now();
        let payload = Json::trusted("{}".to_owned());
        let task = |_| NewTask {
            priority,
            ..NewTask::new(TaskId(Uuid::now_v7()), KIND, payload.clone(), now)
        };
        let tasks: Vec<NewTask> = (0..n).map(task).collect();
        let ids = tasks.iter().map(|task| task.id).collect();
        self.store.enqueue(tasks, now).await.unwrap();
        ids
    }

    /// Blocks that a claim looks at, once what has to be warmed up is warm.
    async fn blocks_of_a_claim(&self, max: usize) -> u64 {
        let sql = format!(
            "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT fence FROM
             matins.claim('w', '{POOL}', NULL, {max}, 1, now() + interval '1 hour', now(), '{{}}',
                          '{{}}', '-infinity')"
        );
        let mut last = 0;
        // The sixth one is the first with a plan for any values.
        for _ in 0..8 {
            let rows = self.eye.query(&sql, &[]).await.unwrap();
            let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            assert!(lines[0].contains(&format!("rows={}", max + 1)), "{lines:?}");
            let buffers = lines.iter().find(|line| line.contains("Buffers: shared")).unwrap();
            let count = |name| {
                let (_, rest) = buffers.split_once(name)?;
                rest.split(' ').next()?.parse::<u64>().ok()
            };
            last = count("hit=").unwrap_or(0) + count("read=").unwrap_or(0);
        }
        last
    }

    /// Entries that `n` claims of `max` walk over, each.
    async fn entries_of_a_claim(&self, n: i64, max: usize) -> i64 {
        self.told(max).await;
        let before = walked(&self.eye).await;
        for _ in 1..n {
            assert_eq!(self.claim(max).await.claimed.len(), max);
        }
        self.told(max).await;
        (walked(&self.eye).await - before) / n
    }

    /// A session tells what it has counted with a transaction a second after it last did.
    async fn told(&self, max: usize) {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(self.claim(max).await.claimed.len(), max);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }

    async fn end(self) {
        assert_eq!(self.store.check_invariants().await.unwrap(), Vec::<String>::new());
        self.store.close().await.unwrap();
        self.scratch.remove().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_looks_at_no_more_whatever_else_is_there() {
    let none = Filling::default();
    let small = Bed::new(Filling { pending: 2_000, ..none }).await;
    let large = Filling { pending: 60_000, later: 30_000, finished: 60_000, ..none };
    let large = Bed::new(large).await;
    let (few, many) = (small.blocks_of_a_claim(100).await, large.blocks_of_a_claim(100).await);
    // A tree of more rows is a level higher.
    assert!(many <= few * 3 / 2 + 100, "{many} blocks against {few}");
    small.end().await;
    large.end().await;
}

/// Also when `running` was empty when it was analyzed, as it is in a store that has kept up: then the
/// planner believes that walking all of it is cheaper than one look for each run that ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_run_costs_the_same_however_many_end_with_it() {
    let bed = Bed::new(Filling { pending: 30_000, ..Filling::default() }).await;
    let mut least = [Duration::MAX; 2];
    for _ in 0..7 {
        for (least, n) in least.iter_mut().zip([200, 2_000]) {
            let batch = bed.claim(n).await;
            assert_eq!(batch.claimed.len(), n);
            let begin = Instant::now();
            bed.complete(&batch).await;
            *least = begin.elapsed().min(*least);
        }
    }
    let [few, many] = least;
    // 100 times as much, if each is compared with each.
    assert!(many < few * 30, "2 000 ends took {many:?}, 200 {few:?}");
    bed.end().await;
}

/// Also when the plans were made while nothing stood in line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_concurrency_key_are_taken_in_by_index() {
    const TASKS: usize = 3_000;
    let bed = Bed::new(Filling::default()).await;
    let now = Timestamp::now();
    let task = |_| NewTask {
        concurrency_key: Some("one".into()),
        ..NewTask::new(TaskId(Uuid::now_v7()), KIND, Json::trusted("{}".to_owned()), now)
    };
    bed.store.enqueue((0..TASKS).map(task).collect(), now).await.unwrap();
    assert_eq!(bed.claim(1).await.claimed.len(), 1);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    bed.put(1, 0).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let walked = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'slot'";
    let walked: i64 = bed.eye.query_one(walked, &[]).await.unwrap().get(0);
    assert!(walked < 1_000, "{walked} rows of the line were walked over");
    bed.end().await;
}

/// Another claim may leave what it looks at, and tells nobody: whoever found nothing comes back soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_claim_looks_at_is_looked_at_again_soon() {
    let bed = Bed::new(Filling { pending: 5, ..Filling::default() }).await;
    bed.eye.batch_execute("BEGIN; SELECT 1 FROM matins.ready FOR UPDATE").await.unwrap();
    let batch = bed.claim(10).await;
    assert!(batch.claimed.is_empty());
    let next = batch.next_at.expect("it is to look again");
    assert!(next < Timestamp::now() + Duration::from_secs(1), "{next}");
    bed.eye.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(bed.claim(10).await.claimed.len(), 5);
    assert_eq!(bed.claim(10).await.next_at, None, "there is nothing left to look for");
    bed.end().await;
}

/// Everybody asks for the figures every ten seconds: they come from counters, also where each task
/// has a concurrency key of its own. And a list is read no further than its page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_and_lists_look_at_nothing_of_which_there_are_many() {
    const KEYED: usize = 20_000;
    const ASKED: i64 = 10;
    let bed = Bed::new(Filling { pending: 20_000, finished: 20_000, ..Filling::default() }).await;
    let now = Timestamp::now();
    let keyed = |n| NewTask {
        concurrency_key: Some(format!("key-{n}").into()),
        ..NewTask::new(TaskId(Uuid::now_v7()), "keyed", Json::trusted("{}".to_owned()), now)
    };
    // In steps that a busy machine gets done before a call is given up.
    for first in (0..KEYED).step_by(1_000) {
        let some = (first..first + 1_000).map(keyed);
        bed.store.enqueue(some.collect(), now).await.unwrap();
    }
    let read = async || -> i64 {
        // A session tells what it has counted with a transaction a second after it last did.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        bed.store.stats(now).await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let sql = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint
            FROM pg_stat_user_tables";
        bed.eye.query_one(sql, &[]).await.unwrap().get(0)
    };
    read().await;
    let before = read().await;
    for _ in 0..ASKED {
        let stats = bed.store.stats(now).await.unwrap();
        assert_eq!(stats.ready.values().sum::<u64>(), KEYED as u64 + 20_000);
        let page = bed.store.tasks(&TaskFilter::default(), &PageRequest::default()).await.unwrap();
        assert!(page.items.len() == 50 && page.next.is_some());
    }
    let rows = (read().await - before) / (ASKED + 1);
    assert!(rows < 2_000, "{rows} rows for the figures and a page");
    bed.end().await;
}

/// J08: however many tasks there are, a page of them, the first or the last, is read no further than
/// it goes. (Where few of many match, a page ends after a stretch of them and has a next one.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_any_list_looks_at_little_more_than_itself() {
    const MANY: usize = 40_000;
    const ASKED: i64 = 10;
    let bed = Bed::new(Filling { pending: MANY, finished: MANY, ..Filling::default() }).await;
    let kind = || Some(KIND.to_owned());
    let of = |states: &[State]| TaskFilter { states: states.to_vec(), ..TaskFilter::default() };
    let filters = [
        of(&[]),
        of(&[State::Pending]),
        TaskFilter { kind: kind(), ..of(&[]) },
        TaskFilter { pool: Some(POOL.to_owned()), ..of(&[State::Pending]) },
    ];
    let read = async || -> i64 {
        // A session tells what it has counted with a transaction a second after it last did.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        bed.store.tasks(&of(&[]), &PageRequest { limit: 1, cursor: None }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let sql = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint
            FROM pg_stat_user_tables";
        bed.eye.query_one(sql, &[]).await.unwrap().get(0)
    };
    for filter in filters {
        let (mut last, mut seen) = (None, 0);
        loop {
            let page = PageRequest { limit: 1_000, cursor: last.clone() };
            let page = bed.store.tasks(&filter, &page).await.unwrap();
            seen += page.items.len();
            let Some(next) = page.next else { break };
            last = Some(next);
        }
        assert!(seen >= MANY, "{seen} of {filter:?}");
        for cursor in [None, last] {
            read().await;
            let before = read().await;
            for _ in 0..ASKED {
                let page = PageRequest { limit: 50, cursor: cursor.clone() };
                assert_eq!(bed.store.tasks(&filter, &page).await.unwrap().items.len(), 50);
            }
            let rows = (read().await - before) / ASKED;
            assert!(rows < 1_000, "{rows} rows for a page of {filter:?} from {cursor:?}");
        }
    }
    bed.end().await;
}

/// What runs and what has failed is on the first page of its list, also behind more others than a
/// page looks at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_or_failed_is_found_behind_any_backlog() {
    let bed = Bed::new(Filling { pending: 220_000, ..Filling::default() }).await;
    // The first in line, which were accepted first.
    let batch = bed.claim(20).await;
    let (running, failing) = batch.claimed.split_at(15);
    let now = Timestamp::now();
    let error = TaskError::new(ErrorClass::Permanent, "403");
    let failed = || Outcome::Failed { error: error.clone(), permanent: true, retry_after: None };
    let items = failing.iter().map(|claimed| {
        settle(claimed, failed(), Trace::default(), &RetryPolicy::default(), now, 0.0)
    });
    bed.store.settle(items.collect()).await.unwrap();
    for (state, expected) in [(State::Running, running), (State::Failed, failing)] {
        let mut expected: Vec<TaskId> = expected.iter().map(|one| one.task.id).collect();
        expected.reverse();
        let filter = TaskFilter { states: vec![state], ..TaskFilter::default() };
        let page = PageRequest { limit: 50, cursor: None };
        let found = bed.store.tasks(&filter, &page).await.unwrap();
        assert_eq!(found.items.iter().map(|task| task.id).collect::<Vec<_>>(), expected);
        assert_eq!(found.next, None);
        let other = TaskFilter { kind: Some("other".to_owned()), ..filter };
        let found = bed.store.tasks(&other, &page).await.unwrap();
        assert!(found.items.is_empty() && found.next.is_none());
    }
    bed.end().await;
}

/// While nothing can be vacuumed, claims begin where the live rows begin, and what comes to stand
/// before that is run all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_held_elsewhere_does_not_make_claims_walk_further_and_further() {
    let bed = Bed::new(Filling { pending: 60_000, ..Filling::default() }).await;
    let held = bed.scratch.hold().await.unwrap();
    for _ in 0..15 {
        let batch = bed.claim(2_000).await;
        assert_eq!(batch.claimed.len(), 2_000);
        bed.complete(&batch).await;
    }
    // Without floors each of these would walk over the 30 000 that are gone.
    let entries = bed.entries_of_a_claim(10, 100).await;
    assert!(entries < 20_000, "{entries} entries for a claim of 100");
    // One that comes before all others, taken in here.
    let first = bed.put(1, 100).await;
    assert_eq!(bed.claim(1).await.claimed[0].task.id, first[0]);
    // One that another node takes in: found by the next claim from the very left.
    let other = PostgresStore::open(bed.scratch.url(), Options::default()).await.unwrap();
    let now = Timestamp::now();
    let payload = Json::trusted("{}".to_owned());
    let mut urgent = NewTask::new(TaskId(Uuid::now_v7()), KIND, payload, now);
    urgent.priority = 100;
    let id = urgent.id;
    other.enqueue(vec![urgent], now).await.unwrap();
    let found = async {
        loop {
            let batch = bed.claim(1).await;
            if batch.claimed.iter().any(|claimed| claimed.task.id == id) {
                return;
            }
            bed.complete(&batch).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.expect("it is found");
    other.close().await.unwrap();
    drop(held);
    bed.end().await;
}

/// Somebody holds a table: upkeep gives up in time, and leaves nothing waiting behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_gives_up_in_time() {
    let bed = Bed::new(Filling { pending: 10, ..Filling::default() }).await;
    let options = Options { connections: 6, ..Options::default() };
    let store = PostgresStore::open(bed.scratch.url(), options).await.unwrap();
    let locked = "BEGIN; LOCK TABLE matins.expiring, matins.running, matins.tally, matins.exec_key,
        matins.history, matins.schedule IN ACCESS EXCLUSIVE MODE";
    bed.eye.batch_execute(locked).await.unwrap();
    let now = Timestamp::now();
    let retention = Retention { ledger: Some(Duration::from_secs(1)), ..Retention::default() };
    let began = Instant::now();
    let (expired, lapsed, figures, pruned) = tokio::join!(
        store.expire(now, 10),
        store.lapsed(now, 10),
        store.stats(now),
        store.prune(&retention, now, 10),
    );
    let said =
        [expired.unwrap_err(), lapsed.unwrap_err(), figures.unwrap_err(), pruned.unwrap_err()];
    assert!(began.elapsed() < Options::default().patience, "{:?}", began.elapsed());
    for error in said {
        assert!(error.is_transient() && error.to_string().contains("57014"), "{error}");
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waiting: i64 = bed.eye.query_one(waiting, &[]).await.unwrap().get(0);
    assert_eq!(waiting, 0);
    bed.eye.batch_execute("ROLLBACK").await.unwrap();
    // The connections are as good as before.
    store.expire(now, 10).await.unwrap();
    store.prune(&retention, now, 10).await.unwrap();
    store.close().await.unwrap();
    bed.end().await;
}
