//! Retries, dead letters and replays: what waits how long, and what a person gets back.

use std::fs;
use std::thread;
use std::time::Instant;

use matins_e2e::api::seconds_of;
use matins_e2e::clock::{now, unix_now};
use matins_e2e::stub::Answer;
use matins_e2e::wait::seconds;
use matins_e2e::{Api, Server, Stub, Task, Value, eventually, json};

/// E01: 60, 120, 240 … 3600 and then 3600 for ever, hastened by hand each time.
#[test]
fn backoff_never_overflows() {
    let server =
        Server::with("defaults:\n  backoff: {initial: 60s, factor: 2, max: 1h, jitter: 0}\n");
    let api = server.api();
    let id = api.shell("exit 1", &json!({"max_retries": 1000})).id().to_owned();
    let huge = api.shell(
        "exit 1",
        &json!({
            "max_retries": 100,
            "backoff": {"initial": 1, "factor": 1000, "max": "1h", "jitter": 0}
        }),
    );
    for n in 0..70_i32 {
        let task = api.wait_task(&id, "backs off", seconds(10.0), |task| {
            task.state() == "pending" && task.number("retries") == i64::from(n) + 1
        });
        let last = task.attempts().last().expect("an attempt");
        let wait = task.time("run_at") - seconds_of(last["finished_at"].as_str().expect("end"));
        let expected = (60.0 * 2_f64.powi(n)).min(3600.0);
        assert!((wait - expected).abs() < 0.5, "retry {n}: {wait} s, expected {expected} s");
        if n == 0 {
            let why = api.get(&format!("/tasks/{id}/why")).expect(200).json();
            assert_eq!(why["reason"], "backing_off", "{why}");
        }
        api.post(&format!("/tasks/{id}/retry"), &json!({})).expect(200);
        if n < 3 {
            let task = api.task(huge.id());
            assert!(task.0["run_at"].is_string(), "{:#}", task.0);
        }
    }
    for wrong in [
        json!({"initial": -1}),
        json!({"initial": 1e300}),
        json!({"factor": 1e300}),
        json!({"factor": 0}),
        json!({"factor": "NaN"}),
        json!({"jitter": 2}),
        json!({"jitter": -0.1}),
        json!({"initial": "2h", "max": "1h"}),
        json!({"unknown": 1}),
        json!("fast"),
    ] {
        let body = json!({"type": "t", "backoff": wrong});
        let answer = api.post("/tasks", &body);
        assert_eq!(answer.status, 422, "{wrong}: {}", answer.text());
        assert!(answer.text().contains("backoff"), "{wrong}: {}", answer.text());
    }
}

/// E03: a task that kills its runner, and one that kills the whole server.
#[test]
fn a_task_that_kills_its_worker() {
    let mut server = Server::with("defaults:\n  backoff: {initial: 200ms, max: 200ms}\n");
    let api = server.api();
    let runner =
        api.shell(&server.witness.shell("kill -9 $PPID; sleep 30"), &json!({"max_retries": 50}));
    let others: Vec<String> = (0..20)
        .map(|_| api.shell(&server.witness.shell("true"), &json!({})).id().to_owned())
        .collect();
    for id in &others {
        assert_eq!(api.wait_end(id, seconds(10.0)).state(), "completed");
    }
    let task = api.wait_end(runner.id(), seconds(20.0));
    assert_eq!((task.state(), task.error_class()), ("failed", "worker_lost"), "{:#}", task.0);
    assert_eq!((task.number("losses"), task.number("retries")), (3, 0), "{:#}", task.0);
    assert_eq!(server.witness.begins(runner.id()).len(), 3);
    let dead = api.get("/dead_letters").expect(200).json();
    assert_eq!(dead["dead_letters"][0]["id"], runner.id(), "{dead}");

    // Somebody restarts the server each time; after the third death the task is given up.
    let pid = server.folder().join("pid");
    let script = format!("kill -9 $(cat '{}'); sleep 30", pid.display());
    let poison = api.shell(&server.witness.shell(&script), &json!({"max_retries": 50}));
    let poison = poison.id().to_owned();
    let end = Instant::now() + seconds(40.0);
    let mut restarts = 0;
    loop {
        assert!(Instant::now() < end, "the poison task still kills servers");
        if !server.running() {
            server.kill();
            restarts += 1;
            server.start();
        } else if server.ready() {
            let request = api.request("GET", &format!("/tasks/{poison}"));
            if let Ok(answer) = api.send(&request)
                && answer.status == 200
                && Task(answer.json()).state() == "failed"
            {
                break;
            }
        }
        thread::sleep(seconds(0.02));
    }
    assert_eq!(restarts, 3);
    let task = api.task(&poison);
    assert_eq!(task.error_class(), "worker_lost", "{:#}", task.0);
    let fine = api.shell("true", &json!({}));
    api.wait_state(fine.id(), "completed", seconds(5.0));
    server.witness.assert_no_overlap();
    server.assert_no_workers(seconds(5.0));
}

/// E05: a replay starts a new round with everything the task had.
#[test]
fn a_replay_has_a_fresh_budget() {
    let server = Server::with("defaults:\n  backoff: {initial: 300ms, max: 10s, jitter: 0}\n");
    let api = server.api();
    let mode = server.folder().join("mode");
    fs::write(&mode, "broken").expect("written");
    let work = format!(
        "cat >/dev/null; read m < '{mode}'; \
         case $m in broken) exit 3;; half) echo fixed > '{mode}'; exit 4;; esac; echo '\"whole\"'",
        mode = mode.display()
    );
    let fields = json!({
        "max_retries": 2, "priority": 7, "execution_key": "report-1", "tags": ["a", "b"]
    });
    let id = api.shell(&work, &fields).id().to_owned();
    let before = api.wait_state(&id, "failed", seconds(15.0));
    assert_eq!((before.number("attempt"), before.number("retries")), (3, 2), "{:#}", before.0);
    assert_eq!(before.error_class(), "exit");
    assert_eq!(before.attempts()[2]["exit_code"], 3);

    fs::write(&mode, "half").expect("written");
    let dry =
        api.post("/dead_letters/replay", &json!({"ids": [id], "dry_run": true})).expect(200).json();
    assert_eq!(dry["count"], 1, "{dry}");
    assert_eq!(api.task(&id).state(), "failed");
    let replayed = unix_now();
    let operation =
        api.post("/dead_letters/replay", &json!({"ids": [id], "reason": "repaired"})).expect(202);
    assert!(operation.json()["id"].is_string(), "{}", operation.text());
    let after = api.wait_state(&id, "completed", seconds(10.0));
    assert_eq!(after.number("attempt"), 5, "attempt numbers never restart: {:#}", after.0);
    assert_eq!((after.number("retries"), after.number("replays")), (1, 1), "{:#}", after.0);
    let wait = after.attempts()[4]["started_at"].as_str().map_or(0.0, seconds_of)
        - after.attempts()[3]["finished_at"].as_str().map_or(0.0, seconds_of);
    assert!((0.25..1.0).contains(&wait), "the backoff of a first retry, not of a third: {wait}");
    for field in ["payload", "priority", "pool", "execution_key", "tags", "max_retries", "timeout"]
    {
        assert_eq!(after.0[field], before.0[field], "{field}");
    }
    assert_eq!(&after.attempts()[..3], before.attempts(), "history is kept");
    assert!(after.time("finished_at") > replayed);
    let audit = api.get("/audit").expect(200).json().to_string();
    assert!(audit.contains("dead_letter.replay") && audit.contains("repaired"), "{audit}");
}

/// E09: one replay that collides with a living key does not hold up a hundred others.
#[test]
fn a_collision_in_a_bulk_replay_stays_alone() {
    let server = Server::with("");
    let api = server.api();
    let mode = server.folder().join("fixed");
    let work = format!("test -e '{}'", mode.display());
    let none = json!({"max_retries": 0});
    let ids: Vec<String> = (0..100).map(|_| api.shell(&work, &none).id().to_owned()).collect();
    let keyed = json!({"max_retries": 0, "execution_key": "K"});
    let first = api.shell(&work, &keyed).id().to_owned();
    for id in ids.iter().chain([&first]) {
        api.wait_state(id, "failed", seconds(20.0));
    }
    let second = api.enqueue(&json!({
        "type": "command", "payload": {"shell": "true"}, "execution_key": "K", "delay": 600
    }));
    fs::write(&mode, "").expect("written");
    let answer = api.post("/dead_letters/replay", &json!({"filter": {"type": "command"}}));
    let operation = answer.expect(202).json()["id"].as_str().expect("an id").to_owned();
    let done = eventually("the operation is done", seconds(20.0), || {
        let seen = api.get(&format!("/operations/{operation}")).expect(200).json();
        (seen["replayed"] == 100).then_some(seen)
    });
    assert_eq!((&done["total"], &done["deduplicated"]), (&json!(101), &json!(1)), "{done}");
    for id in &ids {
        assert_eq!(api.wait_end(id, seconds(20.0)).state(), "completed");
    }
    assert_eq!(api.task(&first).state(), "failed");
    assert_eq!(api.task(second.id()).state(), "pending");
}

/// Canary, grouping, dismissal: what a person does at three in the morning.
#[test]
fn dead_letters_by_hand() {
    let server = Server::with("");
    let api = server.api();
    let mode = server.folder().join("fixed");
    let shell = |n: usize| {
        format!("test -e '{}' || {{ echo \"order {n} failed\" >&2; exit 9; }}", mode.display())
    };
    for n in 0..12 {
        api.shell(&shell(n), &json!({"max_retries": 0, "tags": ["orders"]}));
    }
    api.eventually_state("failed", 12, seconds(15.0));
    let groups = api.get("/dead_letters?group_by=error").expect(200).json();
    assert_eq!(groups["groups"].as_array().map(Vec::len), Some(1), "numbers differ: {groups}");
    assert_eq!(groups["groups"][0]["count"], 12, "{groups}");
    let fingerprint = groups["groups"][0]["fingerprint"].clone();

    // The cause is still there: the canary fails, the other eleven stay where they are.
    let body = json!({"filter": {"fingerprint": fingerprint}, "canary": true});
    api.post("/dead_letters/replay", &body).expect(202);
    thread::sleep(seconds(2.0));
    let failed = api.list("state=failed");
    assert_eq!(failed.len(), 12);
    let tried = failed.iter().filter(|task| task.number("replays") == 1).count();
    assert_eq!(tried, 1, "one canary, and the rest wait");

    fs::write(&mode, "").expect("written");
    let output = server.cli(&["dead", "replay", "--all", "--canary", "--json"]).expect(0);
    assert!(output.json()["id"].is_string(), "{}", output.out());
    api.eventually_state("completed", 12, seconds(15.0));

    let one = api.shell("exit 1", &json!({"max_retries": 0})).id().to_owned();
    api.wait_state(&one, "failed", seconds(5.0));
    let refused = api.post("/dead_letters/dismiss", &json!({"ids": [one]}));
    assert_eq!(refused.expect(422).problem(), "invalid_field", "a dismissal needs a reason");
    api.post("/dead_letters/dismiss", &json!({"ids": [one], "reason": "was a test"})).expect(200);
    let task = api.task(&one);
    assert_eq!(task.state(), "failed");
    assert_eq!(task.0["dismissed"]["reason"], "was a test", "{:#}", task.0);
    assert_eq!(api.get("/dead_letters").expect(200).json()["dead_letters"], json!([]));
}

/// E12: what a server says about when to come again.
#[test]
fn retry_after() {
    let stub = Stub::start(|call| {
        let mut words = call.target.trim_start_matches('/').splitn(2, '/');
        let status = words.next().and_then(|w| w.parse().ok()).unwrap_or(500);
        let answer = Answer::new(status, "busy");
        match words.next() {
            Some("past") => answer.header("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"),
            Some("ahead") => {
                let at = now() + jiff::SignedDuration::from_secs(90);
                let text = at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
                answer.header("retry-after", &text)
            }
            Some("none") | None => answer,
            Some(value) => answer.header("retry-after", value),
        }
    });
    let server = Server::with(
        "http: {allow: [127.0.0.0/8]}\n\
         defaults:\n  backoff: {initial: 60s, factor: 2, max: 1h, jitter: 0}\n",
    );
    let api = server.api();
    let cases = [
        ("/429/120", 120.0),
        ("/429/0", 60.0),
        ("/429/-5", 60.0),
        ("/429/86400000", 3600.0),
        ("/429/99999999999999999999", 3600.0),
        ("/429/past", 60.0),
        ("/429/ahead", 90.0),
        ("/429/abc", 60.0),
        ("/429/none", 60.0),
        ("/503/120", 120.0),
        ("/503/none", 60.0),
        ("/500/none", 60.0),
        ("/408/none", 60.0),
        ("/425/none", 60.0),
        ("/409/none", 60.0),
    ];
    let mut waiting = Vec::new();
    for (path, expected) in cases {
        let body =
            json!({"type": "http_call", "payload": {"url": stub.url(path), "method": "POST"}});
        waiting.push((path, expected, api.enqueue(&body).id().to_owned()));
    }
    for (path, expected, id) in waiting {
        let task = api.wait_task(&id, path, seconds(10.0), |task| {
            task.number("retries") == 1 && task.state() == "pending"
        });
        let end = task.attempts()[0]["finished_at"].as_str().map_or(0.0, seconds_of);
        let wait = task.time("run_at") - end;
        let off = (wait - expected).abs();
        // A huge number is either capped or not a number of seconds: both wait long enough.
        let odd = path.ends_with("99999999999999999999") && (wait - 60.0).abs() < 1.6;
        assert!(off < 1.6 || odd, "{path}: {wait} s, expected {expected} s");
        let status: i64 = path[1..4].parse().expect("a status");
        assert_eq!(task.attempts()[0]["http_status"], status, "{:#}", task.0);
    }
    for (path, class) in
        [("/403/none", "http_4xx"), ("/404/none", "http_4xx"), ("/302/none", "http_3xx")]
    {
        let body =
            json!({"type": "http_call", "payload": {"url": stub.url(path), "method": "GET"}});
        let task = end_of_first(&api, &body);
        assert_eq!(task.error_class(), class, "{path}: {:#}", task.0);
        if class == "http_4xx" {
            assert_eq!(
                (task.state(), task.number("retries")),
                ("failed", 0),
                "{path}: {:#}",
                task.0
            );
        }
    }
}

fn end_of_first(api: &Api, body: &Value) -> Task {
    let id = api.enqueue(body).id().to_owned();
    api.wait_task(&id, "its first attempt ends", seconds(10.0), |task| {
        task.ended() || task.number("retries") > 0
    })
}

/// HTTP calls carry the same idempotency key over attempts and replays.
#[test]
fn an_http_call_keeps_its_idempotency_key() {
    let stub = Stub::start(|_| Answer::new(500, "no"));
    let server = Server::with(
        "http: {allow: [127.0.0.0/8]}\n\
         defaults:\n  backoff: {initial: 50ms, max: 50ms}\n  max_retries: 2\n",
    );
    let api = server.api();
    let payload = json!({"url": stub.url("/x"), "method": "POST", "body": "b"});
    let keyed = api.enqueue(&json!({
        "type": "http_call", "payload": payload, "execution_key": "a b/ü"
    }));
    let plain = api.enqueue(&json!({"type": "http_call", "payload": payload}));
    for id in [keyed.id(), plain.id()] {
        api.wait_state(id, "failed", seconds(10.0));
        api.post(&format!("/tasks/{id}/retry"), &json!({})).expect(200);
        api.wait_task(id, "is dead again", seconds(10.0), |task| {
            task.state() == "failed" && task.number("replays") == 1
        });
    }
    let keys: Vec<String> = stub
        .calls()
        .iter()
        .map(|call| call.headers.get("idempotency-key").cloned().unwrap_or_default())
        .collect();
    let of = |wanted: &str| keys.iter().filter(|key| key.eq_ignore_ascii_case(wanted)).count();
    assert_eq!(keys.len(), 12, "{keys:?}");
    assert_eq!(of(plain.id()), 6, "{keys:?}");
    assert_eq!(of("http_call/a%20b%2F%C3%BC"), 6, "{keys:?}");
}
