//! What the PostgreSQL store does beside what bare statements of the same shape do, in one run, on
//! a server of its own with fsync on: `cargo run --release -p matins-store --example
//! postgres_throughput`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::Json;
use matins_core::lifecycle::{Outcome, Trace, settle};
use matins_core::retry::RetryPolicy;
use matins_core::store::{ClaimRequest, Queue as _, Store as _, Types, Worker};
use matins_core::task::{NewTask, TaskId, WorkerId};
use matins_store::PostgresStore;
use matins_store::postgres::Options;
use matins_testbed::Postgres;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

const TASKS: usize = 20_000;
const BATCH: usize = 1_000;
const ROUNDS: usize = 5;
const CLIENTS: usize = 16;
const SINGLES: usize = 100;

const BARE: &str = "CREATE TABLE bare (seq bigserial PRIMARY KEY, id uuid NOT NULL UNIQUE,
    type text NOT NULL, payload text NOT NULL, run_at timestamptz NOT NULL,
    state smallint NOT NULL DEFAULT 0, finished_at timestamptz);
    CREATE INDEX bare_line ON bare (run_at, seq) WHERE state = 0;";

fn tasks(count: usize) -> Vec<NewTask> {
    let now = Timestamp::now();
    let payload = Json::trusted(r#"{"n":12345,"day":"2026-11-29"}"#.to_owned());
    let task = |_| NewTask::new(TaskId(Uuid::now_v7()), "noop", payload.clone(), now);
    (0..count).map(task).collect()
}

async fn claim_and_complete(store: &PostgresStore) -> usize {
    let request = ClaimRequest {
        worker: WorkerId("bench".into()),
        pool: Some("default".into()),
        types: Types::Any,
        ids: None,
        max: BATCH,
        token: rand::random(),
        repeated: false,
        lease_until: None,
        now: Timestamp::now(),
    };
    let batch = store.claim(request).await.expect("claim");
    let now = Timestamp::now();
    let done = || Outcome::Completed { result: None, result_dropped_bytes: None };
    let items = batch.claimed.iter().map(|claimed| {
        settle(claimed, done(), Trace::default(), &RetryPolicy::default(), now, 0.0)
    });
    store.settle(items.collect()).await.expect("settle").len()
}

/// Seconds for the batches in, and for claiming and completing them.
async fn ours(store: &PostgresStore) -> (f64, f64) {
    let begin = Instant::now();
    for _ in 0..TASKS / BATCH {
        store.enqueue(tasks(BATCH), Timestamp::now()).await.expect("enqueue");
    }
    let enqueued = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let mut done = 0;
    while done < TASKS {
        done += claim_and_complete(store).await;
    }
    (enqueued, begin.elapsed().as_secs_f64())
}

async fn bare(client: &Client) -> (f64, f64) {
    let begin = Instant::now();
    let insert = "INSERT INTO bare (id, type, payload, run_at)
        SELECT id, 'noop', payload, now() FROM unnest($1::uuid[], $2::text[]) AS u (id, payload)";
    let insert = client.prepare(insert).await.expect("prepared");
    for _ in 0..TASKS / BATCH {
        let new = tasks(BATCH);
        let ids: Vec<Uuid> = new.iter().map(|task| task.id.0).collect();
        let payloads: Vec<&str> = new.iter().map(|task| task.payload.as_str()).collect();
        client.execute(&insert, &[&ids, &payloads]).await.expect("inserted");
    }
    let inserted = begin.elapsed().as_secs_f64();
    let claim = client
        .prepare(
            "UPDATE bare SET state = 1 WHERE seq = ANY(ARRAY(SELECT seq FROM bare WHERE state = 0
             ORDER BY run_at, seq LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING seq, id, payload",
        )
        .await
        .expect("prepared");
    let complete = "UPDATE bare SET state = 2, finished_at = now() WHERE seq = ANY($1)";
    let complete = client.prepare(complete).await.expect("prepared");
    let begin = Instant::now();
    let mut done = 0;
    while done < TASKS {
        let rows = client.query(&claim, &[]).await.expect("claimed");
        let seqs: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        client.execute(&complete, &[&seqs]).await.expect("completed");
        done += seqs.len();
    }
    (inserted, begin.elapsed().as_secs_f64())
}

/// Sixteen clients, one task each time.
async fn ours_singly(store: &Arc<PostgresStore>) -> f64 {
    let begin = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let store = store.clone();
        clients.spawn(async move {
            for _ in 0..SINGLES {
                store.enqueue(tasks(1), Timestamp::now()).await.expect("enqueue");
            }
        });
    }
    clients.join_all().await;
    begin.elapsed().as_secs_f64()
}

async fn bare_singly(url: &str) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect(url).await);
    }
    let begin = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for client in clients {
        running.spawn(async move {
            let insert = "INSERT INTO bare (id, type, payload, run_at)
                VALUES ($1, 'noop', $2, now())";
            let insert = client.prepare(insert).await.expect("prepared");
            for _ in 0..SINGLES {
                let task = &tasks(1)[0];
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
                    [&task.id.0, &task.payload.as_str()];
                client.execute(&insert, &values).await.expect("inserted");
            }
        });
    }
    running.join_all().await;
    begin.elapsed().as_secs_f64()
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[tokio::main]
async fn main() {
    let server = Postgres::start(&["fsync=on", "shared_buffers=512MB", "max_wal_size=4GB"]);
    let url = server.database("template1");
    let store = PostgresStore::open(&url, Options::default()).await.expect("open");
    let store = Arc::new(store);
    let now = Timestamp::now();
    let worker = Worker {
        id: WorkerId("bench".into()),
        node_id: "bench".into(),
        started_at: now,
        seen_at: now,
        lease_until: now + Duration::from_secs(3_600),
        draining: false,
        remote: false,
        pools: Vec::new(),
        types: Types::Any,
    };
    store.register(worker).await.expect("register");
    let client = connect(&url).await;
    client.batch_execute(BARE).await.expect("a table");
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (ours, bare) = (ours(&store).await, bare(&client).await);
        let singly = (ours_singly(&store).await, bare_singly(&url).await);
        while claim_and_complete(&store).await > 0 {}
        client.batch_execute("DELETE FROM bare WHERE state = 0").await.expect("deleted");
        rounds.push((ours, bare, singly));
    }
    println!("{}", server.sql("postgres", "SELECT version()"));
    let n = TASKS as f64;
    let report = |what: &str, count: f64, of: &dyn Fn(usize) -> (f64, f64)| {
        let pairs: Vec<(f64, f64)> = (0..ROUNDS).map(of).collect();
        let rate = |side: fn(&(f64, f64)) -> f64| count / median(pairs.iter().map(side).collect());
        let ratio = median(pairs.iter().map(|(ours, bare)| bare / ours).collect());
        let (ours, bare) = (rate(|pair| pair.0), rate(|pair| pair.1));
        println!("{what:32} {ours:9.0}/s   bare {bare:9.0}/s   ratio {ratio:.2}");
    };
    report("enqueue, 1 000 in a batch", n, &|i| (rounds[i].0.0, rounds[i].1.0));
    report("claim and complete, 1 000", n, &|i| (rounds[i].0.1, rounds[i].1.1));
    let singles = (CLIENTS * SINGLES) as f64;
    report("enqueue, 16 clients, one each", singles, &|i| rounds[i].2);
    store.close().await.expect("close");
}
