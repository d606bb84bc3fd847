//! Input of every wrong kind: a documented error with a stable code, never a panic, a hang or a
//! 500.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::escaped;
use matins_e2e::wait::seconds;
use matins_e2e::{Api, Server, Value, json};
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Every code that an answer may carry.
const CODES: [&str; 17] = [
    "invalid_json",
    "invalid_field",
    "too_large",
    "duplicate_key",
    "not_found",
    "wrong_state",
    "fenced",
    "unauthorized",
    "forbidden",
    "managed_by_file",
    "cron_invalid",
    "never_fires",
    "unknown_timezone",
    "store_unavailable",
    "store_full",
    "redis_not_durable",
    "rate_limited",
];

#[track_caller]
fn refused(api: &Api, path: &str, body: &[u8], statuses: &[u16], names: &str) {
    let request = api.request("POST", path).json(body.to_vec());
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    let answer = match api.send(&request) {
        Ok(answer) => answer,
        Err(error) => panic!("{path} {shown}: {error}"),
    };
    assert!(
        statuses.contains(&answer.status),
        "{path} {shown}: {} {}",
        answer.status,
        answer.text()
    );
    let code = answer.problem();
    assert!(CODES.contains(&code.as_str()), "{path} {shown}: code {code}");
    assert!(answer.text().contains(names), "{path} {shown}: names {names:?}: {}", answer.text());
}

/// Values that a field of a task may not have.
const FIELDS: [(&str, &str); 40] = [
    ("type", r#""x\u0000""#),
    ("run_at", r#""tomorrow""#),
    ("run_at", r#""2026-02-30T00:00:00Z""#),
    ("run_at", r#""2026-11-29T25:00:00Z""#),
    ("run_at", r#""2026-11-29T10:00:00""#),
    ("run_at", r#""99999-01-01T00:00:00Z""#),
    ("run_at", "1764410000"),
    ("run_at", "1e308"),
    ("delay", "-1"),
    ("delay", r#""-5m""#),
    ("delay", r#""5 parsecs""#),
    ("delay", "1e300"),
    ("delay", r#""99999999999999h""#),
    ("delay", "true"),
    ("expires_at", r#""soon""#),
    ("pool", r#""no_such_pool_here""#),
    ("pool", "1"),
    ("pool", r#""""#),
    ("priority", "101"),
    ("priority", "-101"),
    ("priority", "1.5"),
    ("priority", r#""high""#),
    ("priority", "99999999999999999999"),
    ("max_retries", "-1"),
    ("max_retries", "1e10"),
    ("max_retries", "2.5"),
    ("max_retries", r#""three""#),
    ("timeout", "0"),
    ("timeout", "-1"),
    ("timeout", r#""for ever""#),
    ("id", r#""not-a-uuid""#),
    ("id", "7"),
    ("tags", r#""a""#),
    ("tags", "[1]"),
    ("tags", r#"[""]"#),
    ("concurrency_key", r#""""#),
    ("concurrency_key", "5"),
    ("on_duplicate", r#""ignore""#),
    ("unknown_field", "1"),
    ("typo_payload", "{}"),
];

#[test]
fn bodies_that_are_no_tasks() {
    let server = Server::with("");
    let api = server.api();
    let deep = format!("{}1{}", "[".repeat(200_000), "]".repeat(200_000));
    let no_json: [&[u8]; 12] = [
        b"",
        b"{",
        b"nul",
        b"{\"type\":\"t\",}",
        b"{\"type\":\"t\"} x",
        b"\xff\xfe",
        b"{\"type\":\"\xff\"}",
        b"{\"type\":\"t\",\"payload\":01}",
        b"{\"type\":\"t\",\"payload\":NaN}",
        b"{'type':'t'}",
        b"\xef\xbb\xbf{\"type\":\"t\"",
        deep.as_bytes(),
    ];
    for body in no_json {
        refused(&api, "/tasks", body, &[400, 422], "");
    }
    for body in
        ["[]", "1", "null", "\"t\"", "{}", r#"{"type":null}"#, r#"{"type":1}"#, r#"{"type":""}"#]
    {
        refused(&api, "/tasks", body.as_bytes(), &[400, 422], "");
    }
    for (name, value) in FIELDS {
        let body = if name == "type" {
            format!(r#"{{"type":{value}}}"#)
        } else {
            format!(r#"{{"type":"t","{name}":{value}}}"#)
        };
        if (name, value) == ("pool", r#""no_such_pool_here""#) {
            // Another node may have that pool; both answers are in order.
            let status = api.post_text("/tasks", &body).status;
            assert!(matches!(status, 201 | 422), "{status}");
            continue;
        }
        refused(&api, "/tasks", body.as_bytes(), &[422], name);
    }
    refused(
        &api,
        "/tasks",
        br#"{"type":"t","run_at":"2030-01-01T00:00:00Z","delay":5}"#,
        &[422],
        "delay",
    );
    refused(&api, "/tasks", br#"{"type":"t","type":"u"}"#, &[400, 422], "type");

    let large = format!(r#"{{"type":"t","payload":"{}"}}"#, "x".repeat(1_048_577));
    refused(&api, "/tasks", large.as_bytes(), &[413], "");
    let fits = format!(r#"{{"type":"t","payload":"{}"}}"#, "x".repeat(1_048_574));
    api.post_text("/tasks", &fits).expect(201);
    let items = format!("[{}]", vec![r#"{"type":"t"}"#; 10_001].join(","));
    refused(&api, "/tasks/batch", items.as_bytes(), &[413, 422], "");
    refused(&api, "/tasks/batch", b"{}", &[200, 400, 422], "");
    refused(&api, "/tasks/batch", b"[1, 2", &[400, 422], "");
    server.assert_no_panic();
}

/// One wrong item of a batch is told by itself; the others are enqueued.
#[test]
fn a_wrong_item_in_a_batch_stays_alone() {
    let server = Server::with("");
    let api = server.api();
    let mut items: Vec<Value> = (0..50).map(|n| json!({"type": "nobody", "payload": n})).collect();
    items[7] = json!({"type": "nobody", "priority": 1000});
    items[20] = json!("not a task");
    items[30] = json!({"type": "nobody", "execution_key": ""});
    let answer = api.post("/tasks/batch", &json!(items)).expect(200).json();
    let answers = answer["items"].as_array().expect("items");
    assert_eq!(answers.len(), 50);
    for (index, item) in answers.iter().enumerate() {
        assert_eq!(item["index"], index, "{item}");
        let wrong = [7, 20, 30].contains(&index);
        assert_eq!(item["status"], if wrong { 422 } else { 201 }, "{item}");
        assert_eq!(item["error"]["code"].is_string(), wrong, "{item}");
    }
    assert_eq!(api.list("type=nobody").len(), 47);
}

#[test]
fn paths_queries_and_methods() {
    let server = Server::with("");
    let api = server.api();
    let unknown = uuid::Uuid::new_v4();
    for path in [
        "/tasks/x".to_owned(),
        format!("/tasks/{unknown}"),
        format!("/tasks/{unknown}/why"),
        format!("/tasks/{unknown}/output"),
        "/tasks/%00".to_owned(),
        "/tasks/%FF%FE".to_owned(),
        "/tasks/..%2f..%2fetc%2fpasswd".to_owned(),
        "/schedules/none".to_owned(),
        "/schedules/none/occurrences".to_owned(),
        format!("/operations/{unknown}"),
        "/nothing/here".to_owned(),
        "/../../etc/passwd".to_owned(),
        format!("/tasks/{}", "a".repeat(5000)),
    ] {
        let answer = api.get(&path);
        assert!(
            matches!(answer.status, 400 | 404 | 414 | 422),
            "{path}: {} {}",
            answer.status,
            answer.text()
        );
        if answer.status != 414 {
            assert!(CODES.contains(&answer.problem().as_str()), "{path}: {}", answer.text());
        }
    }
    for query in [
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=99999999999999999999",
        "cursor=x",
        "cursor=%00",
        "cursor=eyJhIjoxfQ",
        "state=unknown",
        "state=",
        "nonsense=1",
        "limit=5&limit=6",
    ] {
        let answer = api.get(&format!("/tasks?{query}"));
        assert!(
            matches!(answer.status, 200 | 400 | 422),
            "{query}: {} {}",
            answer.status,
            answer.text()
        );
        if answer.status == 200 {
            let wrong = query.starts_with("cursor") || query.starts_with("state=u");
            assert!(!wrong, "{query} was taken");
        } else {
            assert!(CODES.contains(&answer.problem().as_str()), "{query}: {}", answer.text());
        }
    }
    for text in
        ["%", "_", "' OR 1=1 --", "\u{0}", "🗝", "a\u{300}", &"x".repeat(3000), "*", "[a", "\"NEAR("]
    {
        let answer = api.get(&format!("/tasks?q={}", escaped(text)));
        assert!(
            matches!(answer.status, 200 | 414 | 422),
            "{text:?}: {} {}",
            answer.status,
            answer.text()
        );
        if answer.status == 200 {
            assert_eq!(answer.json()["tasks"], json!([]), "{text:?} matches nothing");
        }
    }
    for (method, path) in
        [("DELETE", "/tasks"), ("PUT", "/tasks"), ("PATCH", "/status"), ("POST", "/status")]
    {
        let answer = api.send(&api.request(method, path).json("{}")).expect("an answer");
        assert_eq!(answer.status, 405, "{method} {path}: {}", answer.text());
    }
    for path in ["cancel", "retry", "rerun"] {
        refused(&api, &format!("/tasks/{unknown}/{path}"), b"{}", &[404], "");
        refused(&api, &format!("/tasks/zzz/{path}"), b"{}", &[400, 404, 422], "");
    }
    let done = api.shell("true", &json!({})).id().to_owned();
    api.wait_state(&done, "completed", seconds(5.0));
    refused(&api, &format!("/tasks/{done}/cancel"), b"{}", &[409], "");
    refused(&api, &format!("/tasks/{done}/retry"), b"{}", &[409], "");
    server.assert_no_panic();
}

/// Schedules that are refused, and with which code.
const SCHEDULES: [(&str, &str); 16] = [
    ("{}", "invalid_field"),
    (r#"{"schedule":"* * * *","type":"t"}"#, "cron_invalid"),
    (r#"{"schedule":"61 * * * *","type":"t"}"#, "cron_invalid"),
    (r#"{"schedule":"* * * * * * * *","type":"t"}"#, "cron_invalid"),
    (r#"{"schedule":"@every 0s","type":"t"}"#, "cron_invalid"),
    (r#"{"schedule":"@every 500ms","type":"t"}"#, "cron_invalid"),
    (r#"{"schedule":"@fortnightly","type":"t"}"#, "cron_invalid"),
    (r#"{"schedule":"* * * * *","type":"t","timezone":"CST"}"#, "unknown_timezone"),
    (r#"{"schedule":"* * * * *","type":"t","timezone":"Mars/Olympus"}"#, "unknown_timezone"),
    (r#"{"schedule":"* * * * *","type":"t","timezone":"../../etc/passwd"}"#, "unknown_timezone"),
    (r#"{"schedule":"* * * * *","type":"t","overlap":"maybe"}"#, "invalid_field"),
    (r#"{"schedule":"* * * * *","type":"t","catch_up_max":0}"#, "invalid_field"),
    (
        r#"{"schedule":"* * * * *","type":"t","execution_key":"{{ occurence.date }}"}"#,
        "invalid_field",
    ),
    (
        r#"{"schedule":"* * * * *","type":"t","execution_key":"{{ occurrence.date"}"#,
        "invalid_field",
    ),
    (r#"{"schedule":"* * * * *","type":"t","unknown":1}"#, "invalid_field"),
    (
        r#"{"schedule":"* * * * *","type":"t","start":"2030-01-01T00:00:00Z",
            "end":"2029-01-01T00:00:00Z"}"#,
        "",
    ),
];

#[test]
fn workers_schedules_and_acts() {
    let server = Server::with("");
    let api = server.api();
    let claims = [
        "{}",
        r#"{"worker":"","types":["t"],"max":1,"wait":0}"#,
        r#"{"worker":"w","types":[],"max":1,"wait":0}"#,
        r#"{"worker":"w","types":["t"],"max":0,"wait":0}"#,
        r#"{"worker":"w","types":["t"],"max":-1,"wait":0}"#,
        r#"{"worker":"w","types":["t"],"max":1000000000,"wait":0}"#,
        r#"{"worker":"w","types":["t"],"max":1,"wait":-1}"#,
        r#"{"worker":"w","types":["t"],"max":1,"wait":"long"}"#,
        r#"{"worker":"w","types":"t","max":1,"wait":0}"#,
    ];
    for body in claims {
        let answer = api.post_text("/workers/claim", body);
        assert!(matches!(answer.status, 200 | 422), "{body}: {} {}", answer.status, answer.text());
        if answer.status == 422 {
            assert_eq!(answer.problem(), "invalid_field", "{body}");
        }
    }
    for body in [
        r#"{"items":[{"id":"x","fence":1,
            "token":"t","outcome":"completed"}]}"#,
        r#"{"items":[{"id":"018f0000-0000-7000-8000-000000000000","fence":1,
            "token":"t","outcome":"completed"}]}"#,
        r#"{"items":[{"id":"018f0000-0000-7000-8000-000000000000","fence":-1,
            "token":"","outcome":"nonsense"}]}"#,
        r#"{"items":[{}]}"#,
        r#"{"items":{}}"#,
        "{}",
    ] {
        let answer = api.post_text("/workers/settle", body);
        assert!(answer.status < 500, "{body}: {} {}", answer.status, answer.text());
        if answer.status == 200 {
            assert_ne!(answer.json()["items"][0]["status"], 200, "{body}: {}", answer.text());
        }
    }
    for (body, code) in SCHEDULES {
        let request = api.request("PUT", "/schedules/wrong").json(body);
        let answer = api.send(&request).expect("an answer");
        assert_eq!(answer.status, 422, "{body}: {}", answer.text());
        let told = answer.problem();
        assert!(code.is_empty() || told == code, "{body}: {}", answer.text());
    }
    for (path, body) in [
        ("/schedules/preview", r#"{"schedule":"* * * * *","timezone":"UTC","count":100000000}"#),
        ("/schedules/preview", r#"{"schedule":"* * * * *","timezone":"UTC","count":-1}"#),
        (
            "/schedules/preview",
            r#"{"schedule":"* * * * *","timezone":"UTC","after":"9999-12-31T23:59:59Z","count":5}"#,
        ),
        ("/pools/default/resize", r#"{"max_workers":0}"#),
        ("/pools/default/resize", r#"{"max_workers":"many"}"#),
        ("/pools/none/pause", "{}"),
        ("/dead_letters/replay", "{}"),
        ("/dead_letters/replay", r#"{"ids":"x"}"#),
        ("/dead_letters/replay", r#"{"filter":{"colour":"red"}}"#),
        ("/dead_letters/dismiss", r#"{"filter":{"type":"t"},"reason":""}"#),
    ] {
        let answer = api.post_text(path, body);
        assert!(answer.status < 500, "{path} {body}: {} {}", answer.status, answer.text());
        if answer.status >= 400 {
            assert!(CODES.contains(&answer.problem().as_str()), "{path} {body}: {}", answer.text());
        }
    }
    server.assert_no_panic();
}

/// Sound requests with bytes changed, dropped, doubled: two thousand of them.
#[test]
fn requests_with_random_damage() {
    let server = Server::with("defaults: {max_retries: 0}\n");
    let api = server.api();
    let seed = 20_261_129;
    let mut random = StdRng::seed_from_u64(seed);
    let sound: [(&str, &str, &str); 6] = [
        (
            "POST",
            "/tasks",
            r#"{"type":"t","payload":{"a":[1,2.5,"é"]},"execution_key":"k",
                "run_at":"2030-01-01T00:00:00Z","priority":5,"max_retries":3,"timeout":"5m",
                "tags":["a"],
                "backoff":{"initial":1,"factor":2,"max":60,"jitter":0.1}}"#,
        ),
        (
            "POST",
            "/tasks/batch",
            r#"[{"type":"t","delay":"1h"},{"type":"t","delay":3600,"execution_key":"b"}]"#,
        ),
        (
            "PUT",
            "/schedules/s",
            r#"{"schedule":"0 2 * * 1-5","timezone":"Asia/Shanghai","type":"t",
                "execution_key":"k-{{ occurrence.date | add('-1d') }}","overlap":"skip",
                "blackout":[{"from":"01:00","to":"02:00"}]}"#,
        ),
        (
            "POST",
            "/schedules/preview",
            r#"{"schedule":"0 0 LW * *","timezone":"Europe/Berlin",
                "after":"2026-01-01T00:00:00Z","count":3}"#,
        ),
        ("POST", "/workers/claim", r#"{"worker":"w","types":["zz"],"max":3,"wait":0}"#),
        (
            "POST",
            "/dead_letters/replay",
            r#"{"filter":{"type":"zz","failed_after":"2026-01-01T00:00:00Z"},"dry_run":true}"#,
        ),
    ];
    for round in 0..2000 {
        let (method, path, body) = sound[random.random_range(0..sound.len())];
        let mut bytes = body.as_bytes().to_vec();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..5) {
                0 => bytes[at] = random.random(),
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, bytes[at]),
                3 => bytes[at] = b"\"{}[],:0-.e"[random.random_range(0..11)],
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let request = api.request(method, path).json(bytes.clone());
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        let answer =
            api.send(&request).unwrap_or_else(|error| panic!("{round} {path} {shown}: {error}"));
        assert!(answer.status < 500, "{round} {path} {shown}: {} {}", answer.status, answer.text());
        if answer.status >= 400 {
            let code = answer.problem();
            assert!(CODES.contains(&code.as_str()), "{round} {path} {shown}: {code}");
        }
    }
    api.get("/status").expect(200);
    server.assert_no_panic();
}

/// A thousand clients that send a byte now and then do not keep others out.
#[test]
fn a_thousand_slow_clients() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted).expect("more files");
    let server = Server::with("");
    let api = server.api();
    let mut clients = Vec::new();
    for n in 0..1000 {
        let mut stream = TcpStream::connect(server.address()).expect("connected");
        stream.set_write_timeout(Some(seconds(1.0))).expect("set");
        let start: &[u8] = match n % 3 {
            0 => b"",
            1 => b"POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ",
            _ => {
                b"POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            }
        };
        stream.write_all(start).expect("written");
        clients.push(stream);
    }
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                for client in &clients {
                    // Some are closed by the server, which is its right.
                    let _ = (&*client).write(b"x");
                }
                thread::sleep(Duration::from_millis(300));
            }
        });
        let end = Instant::now() + seconds(5.0);
        let mut slowest = Duration::ZERO;
        while Instant::now() < end {
            let begin = Instant::now();
            api.get("/tasks?limit=5").expect(200);
            let id = api.shell("true", &json!({})).id().to_owned();
            slowest = slowest.max(begin.elapsed());
            api.wait_state(&id, "completed", seconds(3.0));
        }
        enough.store(true, Ordering::Relaxed);
        eprintln!("slowest answer beside 1 000 slow clients: {slowest:?}");
        assert!(slowest < seconds(1.0), "{slowest:?}");
    });
    drop(clients);
    server.assert_no_panic();
}

/// The command line: wrong usage and wrong input exit with 2, what is not there with 3, what
/// cannot be reached with 4.
#[test]
fn the_command_line_refuses() {
    let server = Server::with("");
    let unknown = uuid::Uuid::new_v4().to_string();
    let cases: [(&[&str], i32); 23] = [
        (&["no-such-command"], 2),
        (&["enqueue"], 2),
        (&["enqueue", "t", "--payload", "{"], 2),
        (&["enqueue", "t", "--payload", "@/no/such/file"], 2),
        (&["enqueue", "t", "--at", "tomorrow"], 2),
        (&["enqueue", "t", "--in", "5 parsecs"], 2),
        (&["enqueue", "t", "--priority", "1000"], 2),
        (&["enqueue", "t", "--key", ""], 2),
        (&["enqueue", "t", "--timeout", "0"], 2),
        (&["enqueue", "t", "--max-retries", "-3"], 2),
        (&["show", &unknown], 3),
        (&["show", "zzz"], 3),
        (&["why", &unknown], 3),
        (&["output", &unknown], 3),
        (&["cancel", &unknown], 3),
        (&["retry", &unknown], 3),
        (&["schedule", "show", "none"], 3),
        (&["schedule", "trigger", "none"], 3),
        (&["schedule", "set", "s", "--cron", "61 * * * *", "--timezone", "UTC", "--type", "t"], 2),
        (&["schedule", "preview", "--cron", "* * * *", "--timezone", "UTC"], 2),
        (&["schedule", "preview", "--cron", "* * * * *", "--timezone", "CST"], 2),
        (&["dead", "dismiss", "--all"], 2),
        (&["ledger", "show", "t", "none"], 3),
    ];
    for (arguments, code) in cases {
        for over_http in [false, true] {
            let output =
                if over_http { server.cli_over_http(arguments) } else { server.cli(arguments) };
            assert_eq!(
                output.code,
                code,
                "{arguments:?} over HTTP {over_http}: {} {}",
                output.out(),
                output.err()
            );
            assert!(!output.err().is_empty(), "{arguments:?} says why");
            assert!(!output.err().contains("panicked"), "{arguments:?}: {}", output.err());
        }
    }
    for arguments in
        [vec!["--server", "http://127.0.0.1:1", "list"], vec!["--store", "sqlite:/proc", "list"]]
    {
        let output = server.cli(&arguments);
        assert_eq!(output.code, 4, "{arguments:?}: {}", output.err());
    }
    let mut command = server.command();
    command.args(["--server", &server.url(), "list"]).env("MATINS_TOKEN", "wrong");
    assert_eq!(matins_e2e::server::run(command, b"").code, 1);
}
