//! One key, one completion: racing clients, odd keys, keys of the dead.

use std::collections::HashSet;
use std::sync::{Barrier, Mutex};
use std::thread;

use matins_e2e::api::shell_task;
use matins_e2e::wait::seconds;
use matins_e2e::{Event, Server, Task, eventually, json};
use matins_testbed::Postgres;

/// F01: thirty-two clients and one key, many rounds; over HTTP, in batches, and on the store.
#[test]
fn racing_clients_run_a_key_once() {
    race(&[Server::with("")]);
}

/// The same on three nodes.
#[test]
fn racing_clients_of_three_nodes_run_a_key_once() {
    let store = Postgres::shared().database("template1");
    let node = || Server::with(&format!("store: {store}\nallow_commands: any\n"));
    race(&[node(), node(), node()]);
}

fn race(servers: &[Server]) {
    const ROUNDS: usize = 40;
    const CLIENTS: usize = 32;
    let (server, api) = (&servers[0], servers[0].api());
    let barrier = Barrier::new(CLIENTS);
    let created = Mutex::new(vec![0; ROUNDS]);
    let ids = Mutex::new(vec![HashSet::new(); ROUNDS]);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (barrier, created, ids) = (&barrier, &created, &ids);
            let api = servers[client % servers.len()].api();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let fields = json!({
                        "execution_key": format!("round-{round}"), "tags": [format!("c{client}")]
                    });
                    let body = shell_task(&server.witness.shell("sleep 0.01"), &fields);
                    barrier.wait();
                    let (status, task) = if client % 8 == 7 {
                        let batch = api.post("/tasks/batch", &json!([body, body])).expect(200);
                        let items = batch.json()["items"].clone();
                        assert_eq!(items[1]["status"], 200, "the second of a batch: {items}");
                        (items[0]["status"].as_u64(), items[0]["task"].clone())
                    } else {
                        let answer = api.post("/tasks", &body);
                        (Some(u64::from(answer.status)), answer.json())
                    };
                    let task = Task(task);
                    match status {
                        Some(201) => created.lock().expect("lock")[round] += 1,
                        Some(200) => assert!(task.deduplicated(), "{}", task.0),
                        other => panic!("{other:?} {}", task.0),
                    }
                    ids.lock().expect("lock")[round].insert(task.id().to_owned());
                }
            });
        }
    });
    let created = created.into_inner().expect("lock");
    assert_eq!(created, vec![1; ROUNDS], "each key was created once");
    let ids = ids.into_inner().expect("lock");
    for (round, ids) in ids.iter().enumerate() {
        assert_eq!(ids.len(), 1, "round {round}: all were told of one task: {ids:?}");
        let task = api.wait_end(ids.iter().next().expect("one"), seconds(20.0));
        assert_eq!(task.state(), "completed", "{:#}", task.0);
    }
    let marks = server.witness.marks();
    for round in 0..ROUNDS {
        let key = format!("round-{round}");
        let runs = marks.iter().filter(|m| m.event == Event::Begin && m.key == key).count();
        assert_eq!(runs, 1, "runs of {key}");
    }
}

/// F03: what is a key, and what is not.
#[test]
fn odd_keys() {
    let server = Server::with("");
    let api = server.api();
    let post = |key: &matins_e2e::Value| {
        api.post("/tasks", &json!({"type": "nobody", "payload": null, "execution_key": key}))
    };
    let unkeyed = api.enqueue(&json!({"type": "nobody", "payload": null}));
    let null = Task(post(&json!(null)).expect(201).json());
    let again = Task(post(&json!(null)).expect(201).json());
    assert_eq!(HashSet::from([unkeyed.id(), null.id(), again.id()]).len(), 3);
    for wrong in [json!(""), json!(0), json!(true), json!(["a"])] {
        let answer = post(&wrong);
        assert_eq!(answer.status, 422, "{wrong}: {}", answer.text());
        assert_eq!(answer.problem(), "invalid_field", "{wrong}");
        assert!(answer.text().contains("execution_key"), "{}", answer.text());
    }
    for long in ["x".repeat(300), "x".repeat(256), "é".repeat(128)] {
        let answer = post(&json!(long)).expect(413);
        assert_eq!(answer.problem(), "too_large");
        assert!(answer.text().contains("execution_key"), "{}", answer.text());
    }
    post(&json!("x".repeat(255))).expect(201);
    // Equal to the eye, different in bytes; and characters that something might trim or fold.
    let different = [
        "Key",
        "key",
        "KEY",
        " key",
        "key ",
        "ke\u{301}y",
        "k\u{e9}y",
        "k\u{65}\u{301}y",
        "key\n",
        "key\t",
        "ключ",
        "钥匙",
        "ﬁ",
        "fi",
        "K\u{212a}",
        "%6bey",
        "key/1",
        "../key",
        "'; --",
        "🗝",
    ];
    let mut ids = HashSet::new();
    let mut keys = HashSet::new();
    for key in different {
        let first = Task(post(&json!(key)).json());
        assert_eq!(first.0["execution_key"], json!(key), "returned as given");
        assert_eq!(ids.insert(first.id().to_owned()), keys.insert(key), "{key:?}");
        let second = Task(post(&json!(key)).expect(200).json());
        assert_eq!((second.id(), second.deduplicated()), (first.id(), true), "{key:?}");
        let found = api.list(&format!("execution_key={}", matins_e2e::api::escaped(key)));
        assert_eq!(found.len(), 1, "{key:?} is found by itself alone");
    }
    let nul = post(&json!("a\u{0}b"));
    match nul.status {
        201 => assert_eq!(nul.json()["execution_key"], json!("a\u{0}b")),
        422 => assert_eq!(nul.problem(), "invalid_field"),
        status => panic!("{status} {}", nul.text()),
    }
    // Keys are unique per type.
    let other = json!({"type": "nobody_else", "payload": null, "execution_key": "key"});
    api.post("/tasks", &other).expect(201);
}

/// A failure does not block the retry, a dead letter does not block its key, a duplicate is told.
#[test]
fn a_key_over_failures_cancels_and_duplicates() {
    let server = Server::with("defaults:\n  backoff: {initial: 50ms, max: 50ms}\n");
    let api = server.api();
    let fields = json!({"execution_key": "once-failing", "max_retries": 2});
    let work = server.witness.shell("[ $MATINS_ATTEMPT = 1 ] && exit 1; echo '\"good\"'");
    let id = api.shell(&work, &fields).id().to_owned();
    let task = api.wait_end(&id, seconds(10.0));
    assert_eq!((task.state(), task.number("retries")), ("completed", 1), "{:#}", task.0);

    let dead = api.shell("exit 1", &json!({"execution_key": "dead", "max_retries": 0}));
    api.wait_state(dead.id(), "failed", seconds(5.0));
    let second = api.shell(&server.witness.shell("true"), &json!({"execution_key": "dead"}));
    assert_ne!(second.id(), dead.id());
    api.wait_state(second.id(), "completed", seconds(5.0));
    // The dead letter's key is completed now: a replay must not run it.
    let replay = json!({"ids": [dead.id()]});
    let operation = api.post("/dead_letters/replay", &replay).expect(202).json();
    let operation = operation["id"].as_str().expect("an operation").to_owned();
    let done = eventually("the replay is done", seconds(5.0), || {
        let seen = api.get(&format!("/operations/{operation}")).expect(200).json();
        (seen["deduplicated"] == 1).then_some(seen)
    });
    assert_eq!((&done["total"], &done["replayed"]), (&json!(1), &json!(0)), "{done}");
    assert_eq!(api.task(dead.id()).state(), "failed");

    let waiting = json!({
        "type": "command", "payload": {"argv": ["true"]}, "execution_key": "w", "delay": 600
    });
    let first = api.enqueue(&waiting);
    let mut next = waiting.clone();
    next["on_duplicate"] = json!("reject");
    assert_eq!(api.post("/tasks", &next).expect(409).problem(), "duplicate_key");
    next["on_duplicate"] = json!("replace");
    next["payload"] = json!({"argv": ["echo", "\"replaced\""]});
    next["delay"] = json!(0);
    let answer = api.post("/tasks", &next);
    assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    let replaced = api.wait_end(Task(answer.json()).id(), seconds(5.0));
    assert_eq!((replaced.state(), &replaced.0["result"]), ("completed", &json!("replaced")));
    assert_eq!(api.post("/tasks", &next).expect(409).problem(), "duplicate_key");
    let live = api.list("execution_key=w&state=pending");
    assert!(live.is_empty(), "the replaced one is gone ({}): {live:#?}", first.id());

    let cancelled = api.enqueue(&json!({"type": "nobody", "execution_key": "c"}));
    api.post(&format!("/tasks/{}/cancel", cancelled.id()), &json!({})).expect(200);
    let fresh = api.enqueue(&json!({"type": "nobody", "execution_key": "c"}));
    assert_ne!(fresh.id(), cancelled.id());
}

/// E11: the process dies, the key does not stay locked; a client's id makes retries safe.
#[test]
fn a_key_outlives_its_dead_process_by_nothing() {
    let mut server = Server::with("");
    let api = server.api();
    let work = server.witness.shell("[ $MATINS_ATTEMPT = 1 ] && sleep 60; true");
    let body = shell_task(&work, &json!({"execution_key": "daily"}));
    let id = api.enqueue(&body).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(5.0));
    server.restart();
    for _ in 0..5 {
        let again = Task(api.post("/tasks", &body).expect(200).json());
        assert_eq!((again.id(), again.deduplicated()), (id.as_str(), true), "{}", again.0);
    }
    api.wait_state(&id, "completed", seconds(10.0));
    let after = Task(api.post("/tasks", &body).expect(200).json());
    assert_eq!((after.state(), after.deduplicated()), ("completed", true));
    server.witness.assert_no_overlap();

    let own = uuid::Uuid::new_v4().to_string();
    let mine = json!({"type": "nobody", "payload": 1, "id": own});
    assert_eq!(api.enqueue(&mine).id(), own);
    let barrier = Barrier::new(16);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                barrier.wait();
                assert_eq!(Task(api.post("/tasks", &mine).expect(200).json()).id(), own);
            });
        }
    });
    assert_eq!(api.list("type=nobody").len(), 1);
    let batch = api.post("/tasks/batch", &json!([mine, mine])).expect(200).json();
    assert_eq!(batch["items"][0]["status"], 200, "{batch}");
    assert_eq!(api.list("type=nobody").len(), 1);
}

/// The ledger answers for tasks whose rows are gone.
#[test]
fn the_ledger_outlives_the_task() {
    let mut server = Server::builder().clock("+0").start();
    let api = server.api();
    let body = shell_task("echo '{\"total\": 7}'", &json!({"execution_key": "old"}));
    let id = api.enqueue(&body).id().to_owned();
    api.wait_state(&id, "completed", seconds(5.0));
    let shown = server.cli(&["ledger", "show", "command", "old", "--json"]).expect(0).out();
    assert!(shown.contains("completed"), "{shown}");
    // Completed tasks are kept for seven days, their keys for 400.
    server.kill();
    server.clock().set("+8d");
    server.start();
    eventually("the row is pruned", seconds(20.0), || {
        (api.get(&format!("/tasks/{id}")).status == 404).then_some(())
    });
    let again = Task(api.post("/tasks", &body).expect(200).json());
    assert_eq!((again.state(), again.deduplicated(), again.id()), ("completed", true, id.as_str()));
    assert_eq!(again.0["result"], json!({"total": 7}), "{}", again.0);
    assert_eq!(again.0["payload"], json!(null), "other fields are null: {}", again.0);
    server.cli(&["ledger", "forget", "command", "old"]).expect(0);
    let fresh = api.enqueue(&body);
    assert_ne!(fresh.id(), id);
}
