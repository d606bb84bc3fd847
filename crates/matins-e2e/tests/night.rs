//! The night: Matins is killed while a task runs, and whatever happens then, the work is done once.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::shell_task;
use matins_e2e::clock::unix_now;
use matins_e2e::process::{self, Signal};
use matins_e2e::wait::seconds;
use matins_e2e::{Event, Server, Task, binary, eventually, json};
use rand::RngExt;

/// A configuration whose type `sync_orders` is watched by the witness and leaves nobody in doubt
/// about its whole tree: a child in a session of its own and a double fork.
fn orders_server(work: &str) -> Server {
    let mut server = Server::builder().prepare();
    let script = server.folder().join("sync_orders.sh");
    std::fs::write(&script, server.witness.shell(work)).expect("the script is written");
    server.configure(&format!(
        "tasks: {{sync_orders: {{executor: command, command: [sh, {script}], timeout: 60s}}}}\n\
         schedules:\n  nightly:\n    schedule: \"0 0 1 1 *\"\n    type: sync_orders\n    \
         execution_key: orders-2024-01-15\n",
        script = script.display()
    ));
    server.start();
    server
}

#[test]
fn the_night() {
    let mut server = orders_server(
        "setsid sleep 300 9>&- & (sleep 301 9>&- &) ; sleep 3\necho '{\"orders\": 42}'",
    );
    let body = json!({
        "type": "sync_orders", "payload": {"day": "2024-01-15"},
        "execution_key": "orders-2024-01-15"
    });
    let id = server.api().enqueue(&body).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(5.0));
    thread::sleep(seconds(0.7));
    assert!(server.workers().len() >= 3, "the tree is there: {:?}", server.workers());

    server.kill();
    server.assert_no_workers(seconds(2.0));

    let restarted = unix_now();
    server.start();
    let second = server.witness.wait_begin(&id, 2, seconds(5.0));
    assert!(
        second.at - restarted < 2.0,
        "attempt 2 began {:.1} s after the restart",
        second.at - restarted
    );
    let api = server.api();
    let task = api.wait_state(&id, "completed", seconds(10.0));
    assert_eq!(task.0["result"], json!({"orders": 42}));
    assert_eq!((task.number("attempt"), task.number("losses"), task.number("retries")), (2, 1, 0));
    let attempts = task.attempts();
    assert_eq!(attempts.len(), 2, "{attempts:#?}");
    assert_eq!(attempts[0]["error"]["class"], "worker_lost", "{:#}", attempts[0]);
    assert_eq!(attempts[1]["outcome"], "completed", "{:#}", attempts[1]);
    assert_ne!(attempts[0]["worker"], attempts[1]["worker"], "incarnations differ");
    assert_eq!(server.witness.begins(&id).len(), 2);
    assert_eq!(server.witness.ends(&id).len(), 1);

    trigger_in_every_way(&server, &id);
    server.restart();
    trigger_in_every_way(&server, &id);

    assert_eq!(server.witness.begun(), 2, "no trigger ran anything");
    assert_eq!(server.witness.ended(), 1);
    server.witness.assert_no_overlap();
    server.assert_no_workers(seconds(3.0));
    server.assert_no_panic();
}

/// Each way must answer with the recorded result and run nothing.
fn trigger_in_every_way(server: &Server, id: &str) {
    let api = server.api();
    let body = json!({
        "type": "sync_orders", "payload": {"another": "payload"},
        "execution_key": "orders-2024-01-15"
    });
    let judge = |task: &Task, way: &str| {
        assert!(task.deduplicated(), "{way}: {}", task.0);
        assert_eq!(task.id(), id, "{way}: {}", task.0);
        assert_eq!(task.state(), "completed", "{way}: {}", task.0);
        assert_eq!(task.0["result"], json!({"orders": 42}), "{way}: {}", task.0);
    };
    judge(&Task(api.post("/tasks", &body).expect(200).json()), "API");

    for (way, output) in [
        ("CLI on the store", server.cli(&ENQUEUE)),
        ("CLI over HTTP", server.cli_over_http(&ENQUEUE)),
    ] {
        judge(&Task(output.expect(0).json()), way);
    }

    let batch: Vec<_> = (0..100).map(|_| body.clone()).collect();
    let answer = api.post("/tasks/batch", &json!(batch)).expect(200).json();
    let items = answer["items"].as_array().expect("items");
    assert_eq!(items.len(), 100);
    for item in items {
        assert_eq!(item["status"], 200, "{item}");
        judge(&Task(item["task"].clone()), "batch");
    }

    api.post("/schedules/nightly/trigger", &json!({})).expect_success();
    server.cli(&["schedule", "trigger", "nightly"]).expect(0);
    let often = json!({
        "schedule": "* * * * * *", "type": "sync_orders", "execution_key": "orders-2024-01-15"
    });
    api.put("/schedules/often", &often).expect_success();
    thread::sleep(seconds(2.2));
    // A fire whose key is completed points to the task that did the work.
    let mut occurrences = api.occurrences("often");
    assert!(occurrences.len() >= 2, "{occurrences:#?}");
    api.delete("/schedules/often").expect_success();
    occurrences.extend(api.occurrences("nightly"));
    for occurrence in occurrences {
        assert_eq!(occurrence["outcome"], "fired", "{occurrence:#}");
        assert_eq!(occurrence["task_id"], id, "a new task for a completed key: {occurrence:#}");
    }

    let barrier = Barrier::new(32);
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                barrier.wait();
                judge(&Task(api.post("/tasks", &body).expect(200).json()), "racing clients");
            });
        }
    });
}

const ENQUEUE: [&str; 5] = ["enqueue", "sync_orders", "--key", "orders-2024-01-15", "--json"];

trait Success {
    fn expect_success(self) -> Self;
}

impl Success for matins_e2e::Response {
    #[track_caller]
    fn expect_success(self) -> Self {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text());
        self
    }
}

/// A01, A02: the task and its server are killed, another server comes back under the same name.
#[test]
fn a_node_of_the_same_name_takes_over_at_once() {
    let mut server = Server::builder().argument("--node-id").argument("w1").prepare();
    let work = server.witness.shell("if [ $MATINS_ATTEMPT = 1 ]; then sleep 60; fi");
    server.start();
    let id = server.api().shell(&work, &json!({"max_retries": 2})).id().to_owned();
    let first = server.witness.wait_begin(&id, 1, seconds(5.0));
    thread::sleep(seconds(1.0));
    let tree: Vec<u32> = server.workers().iter().map(|worker| worker.pid).collect();
    server.kill();
    for pid in tree {
        process::signal(pid, Signal::KILL);
    }
    let restarted = unix_now();
    server.start();
    let task = server.api().wait_state(&id, "completed", seconds(15.0));
    let second = server.witness.wait_begin(&id, 2, seconds(1.0));
    assert!(second.at - restarted < 2.0, "{:.1} s", second.at - restarted);
    assert!(!process::alive(first.pid));
    let lost = &task.attempts()[0];
    assert_eq!(lost["error"]["class"], "worker_lost", "{lost:#}");
    assert!(lost["finished_at"].is_string(), "{lost:#}");
    assert_eq!(task.number("retries"), 0);
    server.witness.assert_no_overlap();
}

/// Kills at random microseconds in a stream of short tasks hit every gap: between acceptance and
/// claim, claim and start, end of the work and its record.
#[test]
fn fifty_kills_in_a_stream_of_short_tasks() {
    let mut server = Server::with(
        "lease: 5s\ndefaults:\n  max_losses: 1000\n  backoff: {initial: 50ms, max: 200ms}\n",
    );
    let work = server.witness.shell("sleep 0.02");
    let (api, accepted) = (server.api(), std::sync::Mutex::new(Vec::new()));
    let enough = AtomicBool::new(false);
    let mut slowest_start = Duration::ZERO;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                let id = uuid::Uuid::new_v4().to_string();
                let body = shell_task(&work, &json!({"id": id})).to_string();
                let request = api.request("POST", "/tasks").json(body);
                // The same id again until there is an answer: a retry must not enqueue twice.
                while !api.send(&request).is_ok_and(|answer| matches!(answer.status, 200 | 201)) {
                    if enough.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(3));
                }
                accepted.lock().expect("no panic").push(id);
                thread::sleep(Duration::from_millis(12));
            }
        });
        for _ in 0..50 {
            let alive = Duration::from_micros(rand::rng().random_range(1_000..250_000));
            thread::sleep(alive);
            server.kill();
            let start = Instant::now();
            server.start();
            slowest_start = slowest_start.max(start.elapsed());
        }
        enough.store(true, Ordering::Relaxed);
    });
    let accepted = accepted.into_inner().expect("no panic");
    let api = server.api();
    eventually("all is done", seconds(60.0), || {
        let status = api.get("/status").expect(200).json();
        let left = |state: &str| status["tasks"][state].as_u64().unwrap_or(0);
        (left("pending") + left("running") == 0).then_some(())
    });
    explain_every_run(&server, &accepted);
    assert!(slowest_start < seconds(5.0), "a start took {slowest_start:?}");
    server.assert_no_workers(seconds(3.0));
    server.assert_no_panic();
}

/// Each accepted task completed exactly once, and each run beyond one has its recorded loss.
fn explain_every_run(server: &Server, accepted: &[String]) {
    let (mut begun, mut ended) = (HashMap::<String, u32>::new(), HashMap::<String, u32>::new());
    for mark in server.witness.marks() {
        let counts = if mark.event == Event::Begin { &mut begun } else { &mut ended };
        *counts.entry(mark.task).or_default() += 1;
    }
    server.witness.assert_no_overlap();
    let api = server.api();
    assert!(accepted.len() > 30, "only {} tasks were accepted", accepted.len());
    let mut extra = 0;
    for id in accepted {
        let task = api.task(id);
        assert_eq!(task.state(), "completed", "{:#}", task.0);
        let attempts = task.attempts();
        let completed = attempts.iter().filter(|attempt| attempt["outcome"] == "completed").count();
        assert_eq!(completed, 1, "{:#}", task.0);
        let runs = begun.get(id).copied().unwrap_or(0);
        assert!(runs >= 1, "{id} is completed and never ran: {:#}", task.0);
        assert!(ended.get(id).copied().unwrap_or(0) >= 1, "{id} is completed and never ended");
        assert!(
            i64::from(runs) <= task.number("attempt"),
            "{id} ran {runs} times in {} attempts",
            task.number("attempt")
        );
        assert!(
            i64::from(runs) - 1 <= task.number("losses") + task.number("interruptions"),
            "{id} ran {runs} times, unexplained: {:#}",
            task.0
        );
        assert_eq!(task.number("retries"), 0, "a loss is no retry: {:#}", task.0);
        extra += runs - 1;
    }
    eprintln!("{} tasks, {extra} runs lost to kills", accepted.len());
}

/// Killed in the moment in which it starts runners, and started again at once: nothing that the
/// dead one left, such as a lock in a half-started child, may refuse the new one.
#[test]
fn a_start_does_not_stumble_over_the_dead() {
    let mut server = Server::with("defaults: {max_losses: 1000, backoff: {initial: 1s}}\n");
    let api = server.api();
    let mut refused = Vec::new();
    for _ in 0..25 {
        let batch: Vec<_> = (0..30).map(|_| shell_task("sleep 0.01", &json!({}))).collect();
        api.post("/tasks/batch", &json!(batch)).expect(200);
        thread::sleep(Duration::from_micros(rand::rng().random_range(0..30_000)));
        server.kill();
        if let Err(error) = server.try_start() {
            refused.push(error);
            thread::sleep(seconds(0.5));
            server.start();
        }
    }
    assert!(refused.is_empty(), "{} starts refused, the first: {}", refused.len(), refused[0]);
}

/// An upgrade replaces the file of a running server: its tasks must go on being started.
#[test]
fn the_binary_may_be_replaced_under_a_running_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let binary = folder.path().join("matins");
    std::fs::copy(binary::matins(), &binary).expect("the binary is copied");
    let server = Server::builder().binary(&binary).start();
    let api = server.api();
    let before = api.shell("echo 1", &json!({}));
    api.wait_state(before.id(), "completed", seconds(10.0));
    std::fs::remove_file(&binary).expect("the binary is removed");
    std::fs::write(&binary, "#!/bin/sh\nexit 9\n").expect("another file takes its name");
    let after = api.shell("echo 2", &json!({"max_retries": 0}));
    let task = api.wait_end(after.id(), seconds(10.0));
    assert_eq!((task.state(), &task.0["result"]), ("completed", &json!(2)), "{:#}", task.0);
}

/// One server per file; the second is told who has it.
#[test]
fn a_second_server_on_the_same_file_is_refused() {
    let server = Server::with("");
    let second = Server::builder()
        .config(&format!("store: \"sqlite:{}\"\n", server.database().display()))
        .prepare();
    let output = second.cli(&["serve", "--no-supervise"]);
    assert_eq!(output.code, 1, "stderr: {}", output.err());
    let pid = server.pid().to_string();
    assert!(output.err().contains(&pid), "names pid {pid}: {}", output.err());
    let id = server.api().shell("true", &json!({})).id().to_owned();
    server.api().wait_state(&id, "completed", seconds(10.0));
}
