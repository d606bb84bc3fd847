//! No silent death: a store held by somebody else, a server that was stopped and goes on, and what
//! `/healthz` says meanwhile.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::shell_task;
use matins_e2e::clock::unix_now;
use matins_e2e::process::Signal;
use matins_e2e::wait::seconds;
use matins_e2e::{Request, Server, eventually, json, together, wait_for};
use rusqlite::Connection;

#[test]
fn the_store_is_held_or_the_server_stands_still() {
    together(&[
        ("B03 an exclusive lock is held", exclusive_lock),
        ("H15 another process writes", another_writer),
        ("C07 stopped for 20 s", stopped),
        ("stopped beyond the lease", stopped_beyond_the_lease),
    ]);
}

fn hold(database: &std::path::Path, kind: &str) -> Connection {
    let connection = Connection::open(database).expect("the file can be opened");
    connection.busy_timeout(seconds(10.0)).expect("a timeout can be set");
    connection.execute_batch(kind).expect("the lock is taken");
    connection
}

/// B03: the loops cannot turn, so the server must say so and not go on to look healthy.
fn exclusive_lock() {
    let server = Server::with(
        "stall_after: 3s\n\
         schedules:\n  tick: {schedule: \"* * * * * *\", type: command, \
         payload: {argv: [\"true\"]}}\n",
    );
    let api = server.api();
    let later = api.shell(&server.witness.shell("true"), &json!({"delay": 2}));
    let running = api.shell(&server.witness.shell("sleep 2"), &json!({"max_retries": 0}));
    server.witness.wait_begin(running.id(), 1, seconds(5.0));
    assert_eq!(api.health().0, 200);

    let lock = hold(&server.database(), "BEGIN EXCLUSIVE");
    let (status, body) = eventually("/healthz names a stalled loop", seconds(15.0), || {
        let (status, body) = api.health();
        (status != 200 || body["status"] != "ok").then_some((status, body))
    });
    // Reads answer while the write lock is held: the store is there and the loops do not turn.
    eventually("healthz turns 503", seconds(15.0), || (api.health().0 == 503).then_some(()));
    let (_, stalled) = api.health();
    assert_eq!(stalled["status"], "stalled", "first {status} {body}, then {stalled}");
    assert!(stalled["stalled"].as_array().is_some_and(|loops| !loops.is_empty()), "{stalled}");
    thread::sleep(seconds(2.0));
    lock.execute_batch("ROLLBACK").expect("the lock is released");
    drop(lock);

    eventually("healthy again", seconds(10.0), || (api.health().0 == 200).then_some(()));
    let task = api.wait_end(running.id(), seconds(10.0));
    assert_eq!((task.state(), task.number("attempt")), ("completed", 1), "{:#}", task.0);
    let task = api.wait_end(later.id(), seconds(10.0));
    assert_eq!(task.state(), "completed", "{:#}", task.0);
    assert_eq!((server.witness.begun(), server.witness.ended()), (2, 2));
    let before = api.occurrences("tick").len();
    thread::sleep(seconds(2.5));
    assert!(api.occurrences("tick").len() > before, "schedules go on");
    server.assert_no_panic();
}

/// H15: a second process holds the write lock for seconds at a time, under load.
fn another_writer() {
    let server = Server::with("task_pools:\n  default: {max_workers: 8}\n");
    let api = server.api();
    let work = server.witness.shell("true");
    let (enough, accepted, late) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let body = shell_task(&work, &json!({})).to_string();
                while !enough.load(Ordering::Relaxed) {
                    let answer = api.send(&api.request("POST", "/tasks").json(body.clone()));
                    let answer = answer.expect("every request is answered");
                    match answer.status {
                        201 => accepted.fetch_add(1, Ordering::Relaxed),
                        503 => {
                            assert!(answer.header("retry-after").is_some(), "{}", answer.text());
                            assert_eq!(answer.problem(), "store_unavailable");
                            late.fetch_add(1, Ordering::Relaxed)
                        }
                        status => panic!("{status} {}", answer.text()),
                    };
                    thread::sleep(Duration::from_millis(80));
                }
            });
        }
        for _ in 0..3 {
            let lock = hold(&server.database(), "BEGIN IMMEDIATE");
            let begin = Instant::now();
            while begin.elapsed() < seconds(3.0) {
                let read = api.get("/tasks?limit=5").expect(200);
                assert!(!read.body.is_empty());
                thread::sleep(Duration::from_millis(200));
            }
            drop(lock);
            thread::sleep(seconds(1.5));
        }
        enough.store(true, Ordering::Relaxed);
    });
    let accepted = accepted.load(Ordering::Relaxed);
    eprintln!("H15: {accepted} accepted, {} told to come again", late.load(Ordering::Relaxed));
    api.eventually_state("completed", accepted, seconds(30.0));
    assert_eq!(server.witness.ended(), accepted);
    server.assert_no_panic();
}

/// C07: a laptop sleeps; what was due meanwhile runs within two seconds of waking.
fn stopped() {
    let server = Server::with("");
    let api = server.api();
    let id = api.shell(&server.witness.shell("true"), &json!({"delay": 10})).id().to_owned();
    server.signal(Signal::STOP);
    thread::sleep(seconds(20.0));
    let woken = unix_now();
    server.signal(Signal::CONT);
    let begun = server.witness.wait_begin(&id, 1, seconds(5.0));
    assert!(begun.at - woken < 2.0, "began {:.1} s after waking", begun.at - woken);
    let task = api.wait_state(&id, "completed", seconds(5.0));
    assert_eq!(task.number("attempt"), 1, "{:#}", task.0);
}

/// While the server stands still beyond its lease, the runner ends the work by itself, and the
/// next attempt never meets the old one.
fn stopped_beyond_the_lease() {
    let server = Server::with("lease: 3s\ndefaults:\n  backoff: {initial: 100ms}\n  grace: 1s\n");
    let api = server.api();
    let work =
        server.witness.shell("if [ $MATINS_ATTEMPT = 1 ]; then setsid sleep 100 & sleep 100; fi");
    let id = api.shell(&work, &json!({})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(5.0));
    server.signal(Signal::STOP);
    let gone = wait_for(seconds(9.0), || server.workers().is_empty().then_some(()));
    assert!(gone.is_some(), "the tree outlived its lease: {:#?}", server.workers());
    server.signal(Signal::CONT);
    let task = api.wait_state(&id, "completed", seconds(10.0));
    assert_eq!(task.number("attempt"), 2, "{:#}", task.0);
    assert_eq!(task.number("retries"), 0, "a lost lease is no failure: {:#}", task.0);
    server.witness.assert_no_overlap();
    server.assert_no_panic();
}

#[test]
fn health_endpoints_are_open_and_say_little() {
    let server = Server::with("schedules:\n  tick: {schedule: \"* * * * * *\", type: nobody}\n");
    for (path, word) in [("/healthz", "ok"), ("/readyz", "ready")] {
        let answer = Request::new("GET", path).send(server.address()).expect("an answer");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let body = answer.json();
        assert_eq!(body["status"], word, "{path}: {body}");
        assert!(body.get("version").is_none(), "status words only: {body}");
    }
    let metrics = Request::new("GET", "/metrics").send(server.address()).expect("an answer");
    assert_eq!(metrics.status, 200, "open on loopback");
    let api = server.api();
    let id = api.shell("true", &json!({})).id().to_owned();
    api.wait_state(&id, "completed", seconds(5.0));
    // Store-wide gauges are at most 15 s old.
    for name in [
        "matins_heartbeat_age_seconds",
        "matins_loop_age_seconds",
        "matins_tasks",
        "matins_ready",
        "matins_oldest_ready_seconds",
        "matins_dead_letters",
        "matins_enqueued_total",
        "matins_deduplicated_total",
        "matins_attempts_total",
        "matins_losses_total",
        "matins_task_duration_seconds_count",
        "matins_pickup_seconds_count",
        "matins_occurrences_total",
        "matins_fire_lag_seconds_count",
        "matins_schedules_overdue",
        "matins_pool_busy",
        "matins_pool_size",
        "matins_store_up",
        "matins_fenced_writes_total",
    ] {
        eventually(name, seconds(16.0), || api.metric(name, "").map(|_| ()));
    }
}
