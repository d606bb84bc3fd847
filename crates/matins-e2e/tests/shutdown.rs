//! Deploys: SIGTERM loses nothing, counts nothing as failed, and ends within its limit.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::shell_task;
use matins_e2e::process::Signal;
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Task, eventually, json};

/// A11: four deploys in the middle of a task use no retry.
#[test]
fn four_restarts_use_no_retry() {
    let mut server = Server::with("drain_timeout: 1s\ndefaults:\n  grace: 300ms\n");
    let work = server.witness.shell("if [ $MATINS_ATTEMPT -lt 5 ]; then sleep 60; fi");
    let id = server.api().shell(&work, &json!({"max_retries": 0})).id().to_owned();
    for attempt in 1..=4 {
        server.witness.wait_begin(&id, attempt, seconds(5.0));
        let begin = Instant::now();
        let status = server.stop(seconds(5.0));
        assert!(status.success(), "{status} after {:?}", begin.elapsed());
        server.assert_no_workers(seconds(0.5));
        let shown = Task(server.cli(&["show", &id, "--json"]).expect(0).json());
        assert_eq!(shown.state(), "pending", "given back before the end: {:#}", shown.0);
        server.start();
    }
    let task = server.api().wait_end(&id, seconds(10.0));
    assert_eq!(task.state(), "completed", "{:#}", task.0);
    assert_eq!(task.number("interruptions"), 4, "{:#}", task.0);
    assert_eq!((task.number("retries"), task.number("losses")), (0, 0), "{:#}", task.0);
    assert_eq!(task.attempts().len(), 5, "{:#}", task.0);
    server.witness.assert_no_overlap();
}

/// A12: a task that ends during the drain is recorded before the process goes.
#[test]
fn a_task_that_ends_during_the_drain_is_recorded() {
    let mut server = Server::with("drain_timeout: 10s\n");
    let work = server.witness.shell("sleep 3; echo '\"done\"'");
    let id = server.api().shell(&work, &json!({})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(5.0));
    thread::sleep(seconds(2.5));
    let status = server.stop(seconds(5.0));
    assert!(status.success(), "{status}");
    let task = Task(server.cli(&["show", &id, "--json"]).expect(0).json());
    assert_eq!((task.state(), task.number("attempt")), ("completed", 1), "{:#}", task.0);
    server.start();
    thread::sleep(seconds(1.0));
    assert_eq!((server.witness.begun(), server.witness.ended()), (1, 1));
}

/// While it drains, the server claims nothing, says that it is not ready, and the second SIGTERM
/// ends it at once.
#[test]
fn a_draining_server_claims_nothing_and_a_second_sigterm_hurries() {
    let mut server = Server::with("drain_timeout: 20s\n");
    let api = server.api();
    let work = server.witness.shell("sleep 30");
    let long = api.shell(&work, &json!({})).id().to_owned();
    server.witness.wait_begin(&long, 1, seconds(5.0));
    server.signal(Signal::TERM);
    thread::sleep(seconds(0.5));
    let short = Task(
        server
            .cli(&["enqueue", "command", "--payload", r#"{"argv":["true"]}"#, "--json"])
            .expect(0)
            .json(),
    );
    thread::sleep(seconds(1.5));
    let waiting = Task(server.cli(&["show", short.id(), "--json"]).expect(0).json());
    assert_eq!((waiting.state(), waiting.number("attempt")), ("pending", 0), "{:#}", waiting.0);
    assert!(!server.ready(), "a draining server is not ready");
    let begin = Instant::now();
    server.signal(Signal::TERM);
    server.wait_exit(seconds(5.0));
    assert!(begin.elapsed() < seconds(3.0), "{:?}", begin.elapsed());
    server.assert_no_workers(seconds(2.0));
    server.start();
    server.api().wait_state(short.id(), "completed", seconds(5.0));
    let task = server.witness.wait_begin(&long, 2, seconds(5.0));
    assert_eq!(task.attempt, 2);
    let task = server.api().task(&long);
    assert_eq!((task.number("losses"), task.number("retries")), (0, 0), "{:#}", task.0);
}

/// `docker stop` kills ten seconds after SIGTERM: what dies then is an interruption, not a loss.
#[test]
fn killed_while_draining_is_an_interruption() {
    let mut server = Server::with("drain_timeout: 30s\n");
    let work = server.witness.shell("if [ $MATINS_ATTEMPT = 1 ]; then trap '' TERM; sleep 60; fi");
    let id = server.api().shell(&work, &json!({"max_retries": 0})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(5.0));
    server.signal(Signal::TERM);
    thread::sleep(seconds(1.0));
    server.kill();
    server.start();
    let task = server.api().wait_state(&id, "completed", seconds(10.0));
    assert_eq!(task.number("interruptions"), 1, "{:#}", task.0);
    assert_eq!((task.number("losses"), task.number("retries")), (0, 0), "{:#}", task.0);
    server.witness.assert_no_overlap();
}

/// Graceful restarts under load: every task completes, none was lost or failed on the way.
#[test]
fn restarts_under_load() {
    let mut server = Server::with(
        "drain_timeout: 3s\ntask_pools:\n  default: {max_workers: 8}\n\
         defaults:\n  max_retries: 0\n  max_losses: 1\n",
    );
    let work = server.witness.shell("sleep 0.$((MATINS_FENCE % 4 + 1))");
    let (api, enough) = (server.api(), AtomicBool::new(false));
    let accepted = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let id = uuid::Uuid::new_v4().to_string();
                    let body = shell_task(&work, &json!({"id": id})).to_string();
                    let request = api.request("POST", "/tasks").json(body);
                    let mut answered = false;
                    while !answered && !enough.load(Ordering::Relaxed) {
                        let answer = api.send(&request);
                        answered = answer.is_ok_and(|a| matches!(a.status, 200 | 201));
                        thread::sleep(Duration::from_millis(60));
                    }
                    if answered {
                        accepted.lock().expect("lock").push(id);
                    }
                }
            });
        }
        let mut stops = Vec::new();
        for _ in 0..4 {
            thread::sleep(seconds(1.2));
            let begin = Instant::now();
            let status = server.stop(seconds(8.0));
            stops.push((status, begin.elapsed()));
            server.start();
        }
        enough.store(true, Ordering::Relaxed);
        for (status, took) in stops {
            assert!(status.success(), "{status}");
            assert!(took < seconds(5.0), "drained for {took:?}");
        }
    });
    let accepted = accepted.into_inner().expect("lock");
    assert!(accepted.len() > 40, "only {} were accepted", accepted.len());
    for id in &accepted {
        let task = eventually("it ends", seconds(30.0), || {
            let task = server.api().task(id);
            task.ended().then_some(task)
        });
        assert_eq!(task.state(), "completed", "{:#}", task.0);
        assert_eq!((task.number("retries"), task.number("losses")), (0, 0), "{:#}", task.0);
        let runs = server.witness.begins(id).len() as i64;
        assert!(runs <= 1 + task.number("interruptions"), "{runs} runs: {:#}", task.0);
        assert_eq!(server.witness.ends(id).len(), 1, "{:#}", task.0);
    }
    server.witness.assert_no_overlap();
    server.assert_no_panic();
}
