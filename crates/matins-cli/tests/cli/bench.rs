//! `matins bench`: it runs, its figures are of this world, and it leaves nothing behind. How fast
//! it is depends on the machine and is no matter of a test.

use matins_testbed::{Postgres, Redis};
use serde_json::Value;

use crate::sandbox::Sandbox;

/// Figures that are held against something.
const COMPARED: [&str; 17] = [
    "enqueue_single",
    "enqueue_concurrent",
    "enqueue_batch",
    "enqueue_batch_4",
    "e2e",
    "e2e_pool_10",
    "e2e_whole",
    "pickup_p50",
    "pickup_p95",
    "pickup_p99",
    "call_to_start_p50",
    "claim_100",
    "claim_1000",
    "scrape_p50",
    "scrape_p95",
    "view_status",
    "view_dead_groups",
];

const ALONE: [&str; 8] = [
    "fsync",
    "schedules_written",
    "schedules_loaded",
    "schedules_idle",
    "schedules_fired",
    "serve_ready",
    "idle_cpu",
    "idle_memory",
];

fn figure<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let figures = answer["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["name"] == name);
    found.unwrap_or_else(|| panic!("no figure {name}: {answer:#}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Smallest, middle and largest are what the rounds say.
fn agrees_with_its_rounds(spread: &Value) {
    let mut rounds: Vec<f64> = spread["rounds"].as_array().unwrap().iter().map(number).collect();
    rounds.sort_by(f64::total_cmp);
    let (first, last) = (rounds[0], rounds[rounds.len() - 1]);
    let [min, median, max] = ["min", "median", "max"].map(|name| number(&spread[name]));
    assert!(min.total_cmp(&first).is_eq() && max.total_cmp(&last).is_eq(), "{spread:#}");
    assert!((min..=max).contains(&median), "{spread:#}");
}

#[test]
fn a_quick_run_compares_everything_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let answer = sandbox.matins(&["bench", "--quick", "--json", "--dir", "."]).succeeds().json();
    assert_eq!(answer["settings"]["synchronous"], "full");
    assert!(number(&answer["machine"]["cores"]) >= 1.0);
    for name in COMPARED {
        let figure = figure(&answer, name);
        agrees_with_its_rounds(figure);
        let sides = figure["against"].as_array().unwrap();
        assert!(!sides.is_empty(), "{name} is compared with nothing");
        for side in sides {
            agrees_with_its_rounds(side);
            let ratio = number(&side["ratio"]["median"]);
            // Off by more than this, one of the two sides did something else.
            assert!((1e-4..=1e4).contains(&ratio), "{name}: {side:#}");
        }
    }
    for name in ALONE {
        agrees_with_its_rounds(figure(&answer, name));
    }
    let files: Vec<_> = std::fs::read_dir(sandbox.path()).unwrap().flatten().collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn one_part_alone_for_people() {
    let sandbox = Sandbox::new();
    let done = sandbox.matins(&["bench", "enqueue", "--tasks", "1000", "--rounds", "1"]).succeeds();
    let done = done.says("synchronous=FULL").says("enqueue, 1 caller, 1 000 tasks a call");
    assert!(!done.out.contains("handler begins"), "{done:#?}");
    assert!(!sandbox.file(".matins").exists(), "the store of the user was made");
}

/// Parts of a run on PostgreSQL, with Redis in front of it or without, and figures of each.
const ON_SERVERS: [(&str, &[&str]); 4] = [
    ("e2e", &["enqueue_concurrent", "enqueue_batch", "claim_complete", "e2e", "e2e_whole"]),
    ("latency", &["pickup_p50"]),
    ("views", &["scrape_p95", "view_search"]),
    ("prune", &["while_pruning"]),
];

#[test]
fn the_same_on_servers_and_nothing_is_left_there() {
    let sandbox = Sandbox::new();
    let (postgres, redis) = (Postgres::shared(), Redis::shared());
    let (database, url) = (postgres.url("postgres"), redis.url());
    for (store, more) in [("postgres", &[][..]), ("postgres+redis", &["--redis", &url])] {
        for (part, figures) in ON_SERVERS {
            let size = ["--quick", "--rounds", "1", "--tasks", "1000", "--json", "--dir", "."];
            let words = [&["bench", part, "--store", &database][..], &size, more].concat();
            let answer = sandbox.matins(&words).succeeds().json();
            assert_eq!(answer["settings"]["store"], store);
            for name in figures {
                let figure = figure(&answer, name);
                agrees_with_its_rounds(figure);
                assert!(!figure["against"].as_array().unwrap().is_empty(), "{name} stands alone");
            }
        }
    }
    let databases = "SELECT count(*) FROM pg_database WHERE datname LIKE 'matins_bench%'";
    assert_eq!(postgres.sql("postgres", databases), "0");
    let keys = redis.ask(&["KEYS", "*matins_bench*"]);
    let left: Vec<&str> = keys.lines().filter(|key| !key.contains("heartbeat")).collect();
    assert_eq!(left, Vec::<&str>::new());
}

#[test]
fn wrong_usage_is_told() {
    let sandbox = Sandbox::new();
    sandbox.matins(&["bench", "--redis", "redis://h"]).fails_with(2).complains("--store postgres");
    let wrong = ["bench", "--redis", "http://h", "--store", "postgres://h/d"];
    sandbox.matins(&wrong).fails_with(2).complains("--redis: ");
    sandbox.matins(&["bench", "disk"]).fails_with(2).complains("enqueue, e2e, latency");
    sandbox.matins(&["bench", "--quick", "--large"]).fails_with(2).complains("--large");
    sandbox.matins(&["bench", "--tasks", "1"]).fails_with(2).complains("1000");
    sandbox.matins(&["bench", "--dir", "nowhere"]).fails_with(1).complains("nowhere");
    let server = ["--server", "http://127.0.0.1:1", "bench"];
    sandbox.matins(&server).fails_with(2).complains("--server");
}
