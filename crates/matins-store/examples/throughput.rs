//! What the store does in a second, beside what bare transactions of the same shape do.
//!
//! `cargo run --release -p matins-store --example throughput [DIRECTORY] [TASKS] [keyed]`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use matins_core::Json;
use matins_core::lifecycle::{Outcome, Settlement, Trace, settle};
use matins_core::retry::RetryPolicy;
use matins_core::store::{ClaimRequest, Queue, Store, Types, Worker};
use matins_core::task::{Claimed, NewTask, TaskId, WorkerId};
use matins_store::sqlite::raw::Raw;
use matins_store::{Options, SqliteStore};
use uuid::Uuid;

const BATCH: usize = 1_000;
const PAYLOAD: &str = r#"{"order":4711,"customer":"ann","note":"thirty bytes or so"}"#;

fn tasks(count: usize, keyed: bool) -> Vec<NewTask> {
    let now = Timestamp::now();
    let payload = Json::trusted(PAYLOAD);
    (0..count)
        .map(|_| NewTask {
            execution_key: keyed.then(|| format!("order-{}", Uuid::new_v4()).into()),
            created_by: "bench".into(),
            ..NewTask::new(TaskId(Uuid::now_v7()), "bench", payload.clone(), now)
        })
        .collect()
}

fn completed(claimed: &Claimed, policy: &RetryPolicy, now: Timestamp) -> Settlement {
    let outcome = Outcome::Completed { result: None, result_dropped_bytes: None };
    settle(claimed, outcome, Trace::default(), policy, now, 0.5)
}

fn say(what: &str, count: usize, elapsed: Duration) -> f64 {
    let rate = count as f64 / elapsed.as_secs_f64();
    println!("{what:<44} {rate:>12.0}/s");
    rate
}

async fn enqueue(store: &SqliteStore, total: usize, keyed: bool) -> f64 {
    let mut elapsed = Duration::ZERO;
    let mut longest = Duration::ZERO;
    for _ in 0..total / BATCH {
        let batch = tasks(BATCH, keyed);
        let begin = Instant::now();
        store.enqueue(batch, Timestamp::now()).await.unwrap();
        elapsed += begin.elapsed();
        longest = longest.max(begin.elapsed());
    }
    println!("longest call: {longest:?}");
    say("enqueue, batches of 1000, one caller", total, elapsed)
}

async fn drain(store: Arc<SqliteStore>, total: usize) -> f64 {
    let worker = WorkerId("bench".into());
    let policy = RetryPolicy::default();
    let begin = Instant::now();
    let mut done = 0;
    let mut settling: Option<tokio::task::JoinHandle<()>> = None;
    while done < total {
        let request = ClaimRequest {
            worker: worker.clone(),
            pool: Some("default".into()),
            types: Types::Any,
            ids: None,
            max: BATCH,
            token: 7,
            repeated: false,
            lease_until: None,
            now: Timestamp::now(),
        };
        let batch = store.claim(request).await.unwrap();
        assert!(!batch.claimed.is_empty(), "{done} of {total}");
        done += batch.claimed.len();
        let now = Timestamp::now();
        let items = batch.claimed.iter().map(|c| completed(c, &policy, now)).collect();
        if let Some(before) = settling.take() {
            before.await.unwrap();
        }
        let store = store.clone();
        settling = Some(tokio::spawn(async move {
            store.settle(items).await.unwrap();
        }));
    }
    if let Some(last) = settling {
        last.await.unwrap();
    }
    say("claim and complete, batches of 1000", total, begin.elapsed())
}

async fn singles(store: Arc<SqliteStore>, callers: usize, each: usize) {
    let begin = Instant::now();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for task in tasks(each, false) {
                    store.enqueue(vec![task], Timestamp::now()).await.unwrap();
                }
            })
        })
        .collect();
    let count = callers.len();
    for caller in callers {
        caller.await.unwrap();
    }
    say(&format!("enqueue, one by one, {count} callers"), count * each, begin.elapsed());
}

/// Memory that stays when there is nothing to do, where the system tells.
async fn rest() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1_024)
    };
    let busy = resident();
    tokio::time::sleep(Duration::from_secs(6)).await;
    if let (Some(busy), Some(idle)) = (busy, resident()) {
        println!("resident: {busy} MiB when busy, {idle} MiB after a rest");
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let total: usize = arguments.next().map_or(200_000, |text| text.parse().unwrap());
    let keyed = arguments.next().is_some_and(|word| word == "keyed");
    let path = directory.join(format!("throughput-{}.db", Uuid::now_v7().simple()));
    for _ in 0..2 {
        let mut raw = Raw::new(&directory).unwrap();
        let insert = raw.insert(total as u64, BATCH as u64, PAYLOAD).unwrap().per_second();
        let work = raw.claim_and_complete(total as u64, BATCH as u64).unwrap().per_second();
        println!("{:<44} {insert:>12.0}/s", "bare: insert, batches of 1000");
        println!("{:<44} {work:>12.0}/s", "bare: claim and complete, batches of 1000");
        drop(raw);

        let store = Arc::new(SqliteStore::open(&path, Options::default()).unwrap());
        let now = Timestamp::now();
        let worker = Worker {
            id: WorkerId("bench".into()),
            node_id: "bench".into(),
            started_at: now,
            seen_at: now,
            lease_until: now + SignedDuration::from_hours(1),
            draining: false,
            remote: false,
            pools: vec![("default".into(), 1_000)],
            types: Types::Any,
        };
        store.register(worker).await.unwrap();
        let enqueued = enqueue(&store, total, keyed).await;
        let worked = drain(store.clone(), total).await;
        println!("of the bare store: {:.2} and {:.2}", enqueued / insert, worked / work);
        singles(store.clone(), 1, 500).await;
        singles(store.clone(), 64, 200).await;
        rest().await;
        store.close().await.unwrap();
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
    }
}
