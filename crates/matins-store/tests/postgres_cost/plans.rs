//! The plans of the hot statements, as PostgreSQL runs them inside its functions, are those of the
//! committed snapshot: `MATINS_BLESS=1` writes it anew.
//!
//! Costs, rows and widths are left out: what matters is which index, and which kind of join.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use matins_store::postgres::filling::Filling;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::{Bed, KIND, POOL};

/// Calls of the verbs with values as a client sends them.
const CALLS: [(&str, &str); 7] = [
    (
        "claim",
        "SELECT fence FROM matins.claim('w', 'default', NULL, 100, 1, clock_timestamp() + \
         interval '1 hour', clock_timestamp(), '{}', '{}', '-infinity')",
    ),
    (
        "claim from floors",
        "SELECT fence FROM matins.claim('w', 'default', NULL, 100, 1, clock_timestamp() + \
         interval '1 hour', clock_timestamp(), '{1}', '{0}', '2020-01-01')",
    ),
    (
        "complete_all",
        "SELECT matins.complete_all(array_agg(id), array_agg(fence), array_agg(token), NULL, \
         NULL, NULL, NULL, NULL, array_agg(now()), NULL, NULL, array_agg(0), array_agg(0), \
         array_agg(0), array_agg(0)) FROM (SELECT * FROM matins.running AS r WHERE id = ANY(ARRAY( \
         SELECT id FROM matins.task ORDER BY seq LIMIT 100))) AS r",
    ),
    (
        "enqueue_told",
        "SELECT matins.enqueue_told(array_agg(matins.new_id()), array_agg('default'::text), \
         array_agg('noop'::text), array_agg('{}'::text), array_agg(0::smallint), \
         array_agg(now()), array_agg(NULL::timestamptz), array_agg(NULL::text), \
         array_agg(NULL::bigint), array_agg(NULL::text), array_agg(NULL::bigint), \
         array_agg('w'::text), now()) FROM generate_series(1, 100)",
    ),
    ("mirror_window", "SELECT * FROM matins.mirror_window(now() + interval '1 hour', 1000)"),
    (
        "waiting_tasks",
        "SELECT matins.waiting_tasks('{}', array_agg(id)) FROM (SELECT * FROM matins.task \
         ORDER BY seq LIMIT 500) AS t",
    ),
    (
        "prune",
        "SELECT matins.prune(t, t, t, t, t, t, t, 100) FROM (SELECT now() - interval '3 days' AS \
         t) AS x",
    ),
];

/// A plan in the log of `auto_explain`: its lines without figures.
fn shape(message: &str) -> Option<String> {
    let (_, plan) = message.split_once("Query Text: ")?;
    let at = plan.lines().position(|line| line.contains("(cost="))?;
    let mut shape = String::new();
    for line in plan.lines().skip(at).filter(|line| line.contains("(cost=")) {
        let node = line.split_once("  (cost=").map_or(line, |(node, _)| node);
        // Partitions have the day in their names.
        let words = node.split(' ').map(|word| match word.strip_prefix("history_2") {
            Some(rest) => {
                let index = rest.find('_').map_or("", |at| &rest[at..]);
                format!("history_DAY{index}")
            }
            None => word.to_owned(),
        });
        let words: Vec<String> = words.collect();
        writeln!(shape, "{}", words.join(" ").trim_end()).expect("a string takes it");
    }
    Some(shape)
}

async fn explained(client: &Client, said: &Arc<Mutex<Vec<String>>>, sql: &str) -> String {
    // The sixth run is the first one with a plan for any values.
    for _ in 0..6 {
        client.batch_execute(sql).await.expect("it runs");
    }
    said.lock().expect("no panic").clear();
    client.batch_execute("SET auto_explain.log_min_duration = 0").await.expect("set");
    client.batch_execute(sql).await.expect("it runs");
    client.batch_execute("SET auto_explain.log_min_duration = -1").await.expect("set");
    let said = std::mem::take(&mut *said.lock().expect("no panic"));
    let mut seen = BTreeSet::new();
    let mut text = String::new();
    for plan in said.iter().filter_map(|message| shape(message)) {
        let tells = plan.contains("Scan on") || plan.contains("Scan using");
        if tells && seen.insert(plan.clone()) {
            writeln!(text, "{plan}").expect("a string takes it");
        }
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plans_of_the_hot_statements_are_the_committed_ones() {
    let filling = Filling { pending: 20_000, later: 5_000, finished: 5_000, ..Filling::default() };
    let bed = Bed::new(filling).await;
    assert_eq!((POOL, KIND), ("default", "noop"));
    let url = bed.scratch.url();
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("connected");
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = said.clone();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notice(notice) = message {
                heard.lock().expect("no panic").push(notice.message().to_owned());
            }
        }
    });
    let setup = "LOAD 'auto_explain'; SET auto_explain.log_nested_statements = on;
        SET auto_explain.log_min_duration = -1; SET client_min_messages = log";
    client.batch_execute(setup).await.expect("auto_explain");
    let version = client.query_one("SHOW server_version_num", &[]).await.expect("a version");
    let mut plans = format!("PostgreSQL {}\n\n", &version.get::<_, &str>(0)[..2]);
    for (name, sql) in CALLS {
        write!(plans, "== {name}\n\n{}", explained(&client, &said, sql).await).expect("a string");
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/postgres_cost/plans.txt");
    if std::env::var_os("MATINS_BLESS").is_some() {
        std::fs::write(&file, &plans).expect("written");
    }
    // Whatever the version: no table that grows is read from end to end.
    for table in ["task", "ready", "scheduled", "history", "exec_key", "expiring", "operation"] {
        let scan = format!("Seq Scan on {table}");
        assert!(!plans.contains(&scan), "{scan} in\n{plans}");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    if committed.lines().next() != plans.lines().next() {
        println!("plans of another version than the snapshot's are not compared");
        bed.end().await;
        return;
    }
    let differ = committed.lines().zip(plans.lines()).find(|(old, new)| old != new);
    assert!(
        committed == plans,
        "the plans have changed, first {differ:?}; if that is meant: MATINS_BLESS=1\n{plans}"
    );
    bed.end().await;
}
