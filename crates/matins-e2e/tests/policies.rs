//! Limits, pools and overlap policies, counted by what runs at the same time and not by what is
//! said to run.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use matins_e2e::api::seconds_of;
use matins_e2e::process::{self, Signal};
use matins_e2e::wait::seconds;
use matins_e2e::{Event, Server, Task, Value, eventually, json, together};

#[test]
fn limits_overlaps_and_clocks() {
    together(&[
        ("concurrency over kills", concurrency_over_kills),
        ("rate over a restart", rate_over_a_restart),
        ("turns among keys", turns_among_keys),
        ("overlap policies", overlap_policies),
        ("clock steps cost no lease", clock_steps_cost_no_lease),
    ]);
}

/// Enqueues so many tasks of a type.
fn many(server: &Server, kind: &str, count: usize, payload: &Value) {
    let batch: Vec<Value> = (0..count).map(|_| json!({"type": kind, "payload": payload})).collect();
    server.api().post("/tasks/batch", &json!(batch)).expect(200);
}

/// The tasks that have a process at this moment.
fn running_now(server: &Server) -> HashSet<String> {
    server
        .workers()
        .iter()
        .filter_map(|worker| worker.variable("MATINS_TASK_ID").map(str::to_owned))
        .collect()
}

/// A killed server neither leaks the slots of what it ran nor runs more than allowed after it.
fn concurrency_over_kills() {
    let mut server = Server::with(
        "defaults: {max_losses: 100, backoff: {initial: 50ms, max: 100ms}}\n\
         tasks:\n  limited: {executor: command, shell: \"sleep 0.3\", concurrency: 2}\n",
    );
    many(&server, "limited", 24, &json!(null));
    let (enough, api, home) = (AtomicBool::new(false), server.api(), server.home.clone());
    let most = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !enough.load(Ordering::Relaxed) {
                let ids: HashSet<String> = process::workers(&home)
                    .iter()
                    .filter_map(|worker| worker.variable("MATINS_TASK_ID").map(str::to_owned))
                    .collect();
                most = most.max(ids.len());
                thread::sleep(seconds(0.01));
            }
            most
        });
        for _ in 0..4 {
            thread::sleep(seconds(0.7));
            server.restart();
        }
        api.eventually_state("completed", 24, seconds(30.0));
        enough.store(true, Ordering::Relaxed);
        watcher.join().expect("the watcher ends")
    });
    assert_eq!(most, 2, "at the same time");
}

/// Ten a second, also when the server is killed in the middle of it.
fn rate_over_a_restart() {
    let mut server = Server::builder().prepare();
    let script = server.folder().join("rated.sh");
    std::fs::write(&script, server.witness.shell("true")).expect("written");
    server.configure(&format!(
        "tasks:\n  rated: {{executor: command, command: [sh, \"{}\"], rate_limit: 10/s}}\n",
        script.display()
    ));
    server.start();
    many(&server, "rated", 50, &json!(null));
    thread::sleep(seconds(1.5));
    // Between the opening of the rate and the next claim, another reason is the right one.
    eventually("a task waits for its rate", seconds(3.0), || {
        let waiting = server.api().list("state=pending");
        let why = server.api().get(&format!("/tasks/{}/why", waiting[0].id())).expect(200).json();
        (why["reason"] == "rate_limited").then_some(())
    });
    server.restart();
    server.api().eventually_state("completed", 50, seconds(20.0));
    let mut times: Vec<f64> = server
        .witness
        .marks()
        .iter()
        .filter(|mark| mark.event == Event::Begin)
        .map(|mark| mark.at)
        .collect();
    times.sort_by(f64::total_cmp);
    let spread = times[times.len() - 1] - times[0];
    assert!(spread > 3.5, "{} runs within {spread:.1} s", times.len());
    // A bucket holds one second's worth: any second sees at most that and what flows in meanwhile.
    for window in times.windows(23) {
        assert!(window[22] - window[0] > 1.0, "23 starts within a second");
    }
}

/// A tenant with a long queue does not keep another one waiting.
fn turns_among_keys() {
    let server = Server::with(
        "tasks:\n  mail: {executor: command, shell: \"sleep 0.2\", \
         concurrency_key: /tenant, per_key: 1}\n",
    );
    many(&server, "mail", 20, &json!({"tenant": "a"}));
    many(&server, "mail", 2, &json!({"tenant": "b"}));
    let begin = Instant::now();
    let waiting = loop {
        let tasks = server.api().list("type=mail");
        let of = |tenant: &str, state: &str| {
            let mine = tasks.iter().filter(|task| task.0["payload"]["tenant"] == tenant);
            mine.filter(|task| task.state() == state).count()
        };
        for tenant in ["a", "b"] {
            assert!(of(tenant, "running") <= 1, "{tenant} has more than one turn");
        }
        if of("b", "completed") == 2 {
            break of("a", "pending");
        }
        assert!(begin.elapsed() < seconds(3.0), "b waits behind all of a");
    };
    assert!(waiting > 5, "a was to be far from done: {waiting} wait");
}

fn overlap_policies() {
    let server = Server::with("defaults: {grace: 200ms, max_retries: 0}\n");
    let api = server.api();
    let work = server.witness.shell("sleep 1.6");
    let policies = ["skip", "buffer_one", "buffer_all", "cancel_previous", "allow"];
    for policy in policies {
        let schedule = json!({
            "schedule": "* * * * * *", "type": "command", "overlap": policy,
            "payload": {"shell": work}
        });
        api.put(&format!("/schedules/{policy}"), &schedule).expect(201);
    }
    thread::sleep(seconds(6.3));
    let held = api.list("schedule=buffer_all&state=pending");
    let why = api.get(&format!("/tasks/{}/why", held[0].id())).expect(200).json();
    assert_eq!(why["reason"], "overlap", "{why}");
    for policy in policies {
        api.post(&format!("/schedules/{policy}/pause"), &json!({})).expect(200);
    }
    let at_pause = api.occurrences("buffer_all").len();
    eventually("all is done", seconds(30.0), || {
        policies
            .iter()
            .all(|policy| api.list(&format!("schedule={policy}")).iter().all(Task::ended))
            .then_some(())
    });
    assert!(at_pause >= 5);
    let marks = server.witness.marks();
    for policy in policies {
        let tasks = api.list(&format!("schedule={policy}"));
        let ids: HashSet<&str> = tasks.iter().map(Task::id).collect();
        let (mut now, mut most) = (0_i32, 0);
        for mark in marks.iter().filter(|mark| ids.contains(mark.task.as_str())) {
            now += match mark.event {
                Event::Begin => 1,
                Event::End => -1,
                Event::Overlap => panic!("{mark:?}"),
            };
            most = most.max(now);
        }
        let count = |state: &str| tasks.iter().filter(|task| task.state() == state).count();
        let occurrences = api.occurrences(policy);
        let of = |outcome: &str| {
            occurrences.iter().filter(|occurrence| occurrence["outcome"] == outcome).count()
        };
        let told = format!("{policy}: {} completed, {occurrences:#?}", count("completed"));
        match policy {
            "skip" => {
                assert_eq!(most, 1, "{told}");
                assert!(of("fired") >= 3 && of("skipped") >= 2, "{told}");
            }
            "buffer_one" => {
                assert_eq!(most, 1, "{told}");
                assert!(of("fired") >= 4 && of("skipped") >= 1, "{told}");
            }
            "buffer_all" => {
                assert_eq!(most, 1, "{told}");
                assert_eq!(count("completed"), of("fired"), "{told}");
                assert!(of("fired") >= 5, "{told}");
            }
            "cancel_previous" => {
                assert_eq!(count("completed"), 1, "only the last one ends: {told}");
                assert_eq!(count("cancelled"), of("fired") - 1, "{told}");
            }
            _ => {
                assert!(most >= 2, "{told}");
                assert_eq!(count("completed"), of("fired"), "{told}");
            }
        }
    }
}

/// The clock is set an hour ahead and an hour back: no lease of anybody is judged over by that.
fn clock_steps_cost_no_lease() {
    let server = Server::builder().config("lease: 3s\npoll: 200ms\n").clock("+0").start();
    let api = server.api();
    let own = api.shell(&server.witness.shell("sleep 9"), &json!({})).id().to_owned();
    let far = api.enqueue(&json!({"type": "remote"})).id().to_owned();
    server.witness.wait_begin(&own, 1, seconds(5.0));
    let claim = json!({"worker": "w", "types": ["remote"], "max": 1, "wait": 5});
    let task = api.post("/workers/claim", &claim).expect(200).json()["tasks"][0].clone();
    let proof = json!({"id": task["id"], "fence": task["fence"], "token": task["token"]});
    let begin = Instant::now();
    for turn in 0..20 {
        match turn {
            4 => server.clock().set("+1h"),
            10 => server.clock().set("-1h"),
            16 => server.clock().set("+0"),
            _ => {}
        }
        let body = json!({"worker": "w", "tasks": [proof]});
        let told = api.post("/workers/heartbeat", &body).expect(200).json();
        assert_eq!(told["lost"], json!([]), "turn {turn}: {told}");
        thread::sleep(seconds(0.5));
    }
    let task = api.wait_end(&own, seconds(5.0));
    assert_eq!((task.state(), task.number("attempt")), ("completed", 1), "{:#}", task.0);
    assert!(begin.elapsed() < seconds(14.0));
    let mut settle = proof;
    settle["outcome"] = json!("completed");
    let answer = api.post("/workers/settle", &json!({"items": [settle]})).expect(200).json();
    assert_eq!(answer["items"][0]["status"], 200, "{answer}");
    assert_eq!(api.task(&far).number("losses"), 0);
    server.assert_no_panic();
}

/// What a person set outlives restarts.
#[test]
fn pools_and_freezes_outlive_restarts() {
    let mut server = Server::with(
        "task_pools:\n  default: {max_workers: 6}\n  other: {max_workers: 3, task_types: [o]}\n",
    );
    let api = server.api();
    api.post("/pools/default/resize", &json!({"size": 2})).expect(200);
    server.cli(&["pool", "pause", "other"]).expect(0);
    server.restart();
    let pools = api.get("/pools").expect(200).json();
    let pool = |name: &str| -> Value {
        let pools = pools["pools"].as_array().expect("pools");
        pools.iter().find(|pool| pool["name"] == name).expect("the pool").clone()
    };
    assert_eq!(pool("default")["size"], 2, "{pools}");
    assert_eq!(pool("other")["paused"], true, "{pools}");
    for _ in 0..6 {
        api.shell("sleep 0.6", &json!({}));
    }
    let begin = Instant::now();
    let mut most = 0;
    while begin.elapsed() < seconds(1.6) {
        most = most.max(running_now(&server).len());
        thread::sleep(seconds(0.02));
    }
    assert_eq!(most, 2, "the pool runs two at a time");
    let waiting = api.enqueue(&json!({"type": "o"})).id().to_owned();
    let why = api.get(&format!("/tasks/{waiting}/why")).expect(200).json();
    assert_eq!(why["reason"], "pool_paused", "{why}");

    api.eventually_state("completed", 6, seconds(10.0));
    server.cli(&["freeze", "--reason", "migration"]).expect(0);
    server.restart();
    let id = api.shell(&server.witness.shell("true"), &json!({})).id().to_owned();
    thread::sleep(seconds(1.2));
    assert_eq!(server.witness.begun(), 0, "frozen over a restart");
    server.cli(&["thaw"]).expect(0);
    api.wait_state(&id, "completed", seconds(5.0));
}

/// Both the server and the runner are killed: what they leave is ended before the next attempt.
#[test]
fn leftovers_are_ended_before_the_next_attempt() {
    let mut server = Server::with("");
    let work =
        server.witness.shell("[ $MATINS_ATTEMPT != 1 ] || { setsid sleep 300 & sleep 301; }");
    let id = server.api().shell(&work, &json!({})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(5.0));
    thread::sleep(seconds(0.5));
    let runners: Vec<u32> = process::descendants(server.pid())
        .iter()
        .filter(|process| process.parent == server.pid())
        .map(|process| process.pid)
        .collect();
    assert!(!runners.is_empty());
    // Stopped first, so that neither sees the other die.
    for pid in &runners {
        process::signal(*pid, Signal::STOP);
    }
    server.kill();
    for pid in &runners {
        process::signal(*pid, Signal::KILL);
    }
    server.start();
    let task = server.api().wait_state(&id, "completed", seconds(10.0));
    assert_eq!((task.number("attempt"), task.number("losses")), (2, 1), "{:#}", task.0);
    server.witness.assert_no_overlap();
    server.assert_no_workers(seconds(0.5));
}

/// A range is filled once, however often it is asked for, and keys count.
#[test]
fn backfills() {
    let server = Server::with("");
    let api = server.api();
    let schedule = json!({
        "schedule": "0 2 * * *", "timezone": "Asia/Shanghai", "type": "command",
        "execution_key": "orders-{{ occurrence.date }}",
        "payload": {"shell": server.witness.shell("echo \"\\\"$MATINS_OCCURRENCE_DATE\\\"\"")}
    });
    api.put("/schedules/orders", &schedule).expect(201);
    // One of the days was done by hand.
    let done = json!({
        "type": "command", "execution_key": "orders-2026-03-03",
        "payload": {"shell": server.witness.shell("true")}
    });
    let done = api.enqueue(&done).id().to_owned();
    api.wait_state(&done, "completed", seconds(5.0));
    let range = json!({
        "from": "2026-03-01T00:00:00+08:00", "to": "2026-03-08T00:00:00+08:00", "dry_run": true
    });
    let dry = api.post("/schedules/orders/backfill", &range).expect(200).json();
    assert_eq!(dry["count"].as_u64().zip(dry["deduplicated"].as_u64()), Some((7, 1)), "{dry}");
    assert_eq!(server.witness.begun(), 1);
    let mut real = range.clone();
    real["dry_run"] = json!(false);
    for _ in 0..3 {
        let answer = api.post("/schedules/orders/backfill", &real);
        assert!(matches!(answer.status, 200 | 202), "{} {}", answer.status, answer.text());
        thread::sleep(seconds(0.7));
    }
    eventually("the week is done", seconds(20.0), || (server.witness.ended() == 7).then_some(()));
    thread::sleep(seconds(1.0));
    assert_eq!(server.witness.begun(), 7, "seven days, seven runs");
    let keys: HashSet<String> = server.witness.marks().iter().map(|m| m.key.clone()).collect();
    let days: HashSet<String> = (1..=7).map(|day| format!("orders-2026-03-{day:02}")).collect();
    assert_eq!(keys, days);
    for task in api.list("schedule=orders") {
        let key = task.0["execution_key"].as_str().unwrap_or("").replace("orders-", "");
        assert_eq!(task.0["result"], json!(key), "the date of the label: {:#}", task.0);
    }
    let balance = api.get("/schedules/orders").expect(200).json()["balance"].clone();
    assert_eq!(balance["expected"], 0, "backfills stay out of the balance: {balance}");
    for occurrence in api.occurrences("orders") {
        assert_eq!(occurrence["kind"], "backfill", "{occurrence}");
        let time = seconds_of(occurrence["time"].as_str().expect("time")) as i64;
        assert_eq!(time.rem_euclid(86_400), 18 * 3600, "02:00 in Shanghai: {occurrence}");
    }
}

/// `--wait` tells how it ended; tags, priorities and a given id come back as they were.
#[test]
fn the_command_line_waits() {
    let server = Server::with("");
    let wait = |payload: &str| {
        server.cli(&[
            "enqueue",
            "command",
            "--payload",
            payload,
            "--max-retries",
            "0",
            "--wait",
            "--json",
        ])
    };
    let good = wait(r#"{"shell": "sleep 0.3; echo 5"}"#).expect(0).json();
    assert_eq!((&good["state"], &good["result"]), (&json!("completed"), &json!(5)), "{good}");
    let bad = wait(r#"{"shell": "exit 9"}"#).expect(1).json();
    assert_eq!(bad["state"], "failed", "{bad}");
}
