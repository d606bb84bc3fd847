//! Data comes back as it went in: every digit, every byte, everywhere; and a large queue is as
//! quick as a small one.

use std::thread;
use std::time::Instant;

use matins_e2e::stub::Answer;
use matins_e2e::wait::seconds;
use matins_e2e::{Api, Server, Stub, Task, json};

/// The text of the first member of that name, as it stands in a JSON text.
fn raw_member<'a>(text: &'a str, name: &str) -> &'a str {
    let start = format!("\"{name}\":");
    let Some(at) = text.find(&start) else { panic!("no {name} in {text}") };
    let rest = text[at + start.len()..].trim_start();
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (at, character) in rest.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '{' | '[' => depth += 1,
            ',' | '}' | ']' if depth == 0 => return rest[..at].trim_end(),
            '}' | ']' => depth -= 1,
            _ => {}
        }
    }
    rest.trim_end()
}

const PAYLOADS: [&str; 9] = [
    concat!(
        r#"{"id":1970670598291982290,"m":9007199254740993,"n":-9223372036854775808,"#,
        r#""u":18446744073709551615,"d":0.1,"e":1E400,"z":-0}"#
    ),
    r#"{"a":"x\u0000y","\u0000":1}"#,
    r#"{"lone":"\ud800","pair":"\ud83d\ude00","low":"\udc00x"}"#,
    r#"{"b":1,"a":2,"b":3}"#,
    r#"{ "spaced" :  [ 1 ,2,  3 ] }"#,
    "[0.10000000000000000055,1e-400,123456789012345678901234567890.0000]",
    r#""just text \/ with <b>markup</b> \u00e9""#,
    "12345678901234567890123456789",
    r#"{"deep":[[[[[[[[[[[[[[[[{"x":null}]]]]]]]]]]]]]]]]}"#,
];

/// H03, H01: through every door, in every answer, over retries, replays and edits.
#[test]
fn payloads_come_back_byte_for_byte() {
    let mut server = Server::builder().prepare();
    let script = server.folder().join("fail.sh");
    std::fs::write(&script, "cat > \"$0.$MATINS_TASK_ID.$MATINS_ATTEMPT\"; exit 1")
        .expect("written");
    server.configure(&format!(
        "defaults: {{max_retries: 0}}\n\
         tasks:\n  store_it: {{executor: command, command: [sh, \"{}\"]}}\n",
        script.display()
    ));
    server.start();
    let api = server.api();
    for payload in PAYLOADS {
        let body = format!(r#"{{"type":"store_it","payload":{payload}}}"#);
        let created = api.post_text("/tasks", &body).expect(201);
        assert_eq!(raw_member(&created.text(), "payload"), payload, "in the answer");
        let id = Task(created_json(&created.text())).id().to_owned();
        check_everywhere(&server, &id, payload);
        ended(&api, &id, 0);
        let fed = |attempt: u32| {
            let file = script.with_file_name(format!("fail.sh.{id}.{attempt}"));
            std::fs::read_to_string(file).expect("the task was fed")
        };
        assert_eq!(fed(1).trim_end(), payload, "on stdin");
        api.post(&format!("/tasks/{id}/retry"), &json!({})).expect(200);
        ended(&api, &id, 1);
        assert_eq!(fed(2).trim_end(), payload, "after a replay");
        check_everywhere(&server, &id, payload);

        let edited = format!(r#"{{"ids":["{id}"],"payload":{{"was":{payload}}}}}"#);
        api.post_text("/dead_letters/replay", &edited).expect(202);
        ended(&api, &id, 2);
        check_everywhere(&server, &id, &format!(r#"{{"was":{payload}}}"#));

        let copy = api.post(&format!("/tasks/{id}/rerun"), &json!({}));
        assert!(matches!(copy.status, 200 | 201), "{} {}", copy.status, copy.text());
        assert_eq!(raw_member(&copy.text(), "payload"), format!(r#"{{"was":{payload}}}"#));
    }
    let items: Vec<String> = PAYLOADS
        .iter()
        .map(|payload| format!(r#"{{"type":"nobody","payload":{payload}}}"#))
        .collect();
    for (body, kind) in [
        (format!("[{}]", items.join(",")), "application/json"),
        (items.join("\n"), "application/x-ndjson"),
    ] {
        let request = api.request("POST", "/tasks/batch").header("content-type", kind).body(body);
        let answer = api.send(&request).expect("an answer").expect(200).text();
        for payload in PAYLOADS {
            assert!(
                answer.contains(&format!("\"payload\":{payload}")),
                "{kind}: {payload} in {answer}"
            );
        }
    }
    for payload in PAYLOADS {
        let arguments = ["enqueue", "nobody", "--payload", payload, "--json"];
        for output in [server.cli(&arguments), server.cli_over_http(&arguments)] {
            assert_eq!(raw_member(&output.expect(0).out(), "payload"), payload);
        }
    }
}

fn created_json(text: &str) -> matins_e2e::Value {
    let raw = raw_member(text, "payload");
    let plain = text.replacen(raw, "null", 1);
    serde_json::from_str(&plain).expect("a task")
}

fn check_everywhere(server: &Server, id: &str, payload: &str) {
    let api = server.api();
    let shown = api.get(&format!("/tasks/{id}")).expect(200).text();
    assert_eq!(raw_member(&shown, "payload"), payload, "GET /tasks/ID");
    let listed = api.get(&format!("/tasks?q={id}")).expect(200).text();
    assert_eq!(raw_member(&listed, "payload"), payload, "GET /tasks");
    for output in
        [server.cli(&["show", id, "--json"]), server.cli_over_http(&["show", id, "--json"])]
    {
        assert_eq!(raw_member(&output.expect(0).out(), "payload"), payload, "show --json");
    }
}

/// H01: a result or an error that cannot be stored as it is never holds up the state.
#[test]
fn results_and_errors_of_any_content() {
    let stub = Stub::start(|call| match call.target.as_str() {
        "/nul" => Answer::new(200, b"{\"a\":\"x\\u0000y\"}".to_vec()),
        "/bytes" => Answer::new(200, b"\x00\xff\xfe\xd8\x00".to_vec()),
        "/bad" => Answer::new(500, b"oh \x00 no \xff".to_vec()),
        _ => Answer::new(404, "lost\0"),
    });
    let server = Server::with("http: {allow: [127.0.0.0/8]}\ndefaults: {max_retries: 0}\n");
    let api = server.api();
    let results = [
        (r#"printf '"\\ud800"\n'"#, r#""\ud800""#),
        (r#"printf '{"a":"x\\u0000y"}\n'"#, r#"{"a":"x\u0000y"}"#),
        ("echo 1970670598291982290", "1970670598291982290"),
        ("echo 1E400", "1E400"),
        ("echo not json", "null"),
        ("echo '[1,2'", "null"),
        ("true", "null"),
        ("printf '7\\n\\n  \\n'", "7"),
        ("printf '\\377\\n'", "null"),
    ];
    for (text, expected) in results {
        let id = api.shell(text, &json!({})).id().to_owned();
        let shown = ended(&api, &id, 0);
        assert_eq!(raw_member(&shown, "state"), "\"completed\"", "{text}: {shown}");
        assert_eq!(raw_member(&shown, "result"), expected, "{text}: {shown}");
    }
    let large = "printf '\"'; head -c 300000 /dev/zero | tr '\\0' x; printf '\"\\n'";
    let typed = json!({"type": "command", "payload": {"shell": large}});
    let id = api.enqueue(&typed).id().to_owned();
    let shown = ended(&api, &id, 0);
    assert_eq!(raw_member(&shown, "state"), "\"completed\"", "{}", &shown[..300]);
    assert_eq!(raw_member(&shown, "result"), "null");
    assert_eq!(raw_member(&shown, "result_dropped_bytes"), "300002");

    for text in [
        "printf 'a\\000b' >&2; exit 1",
        "printf '\\355\\240\\200 \\377' >&2; exit 1",
        "printf '\"\\\\ud800' >&2; exit 1",
    ] {
        let id = api.shell(text, &json!({})).id().to_owned();
        assert_eq!(raw_member(&ended(&api, &id, 0), "state"), "\"failed\"", "{text}");
    }
    for (path, state) in
        [("/nul", "completed"), ("/bytes", "completed"), ("/bad", "failed"), ("/x", "failed")]
    {
        let body =
            json!({"type": "http_call", "payload": {"url": stub.url(path), "method": "GET"}});
        let id = api.enqueue(&body).id().to_owned();
        assert_eq!(raw_member(&ended(&api, &id, 0), "state"), format!("\"{state}\""), "{path}");
    }
    let worker = json!({"worker": "w", "types": ["remote"], "max": 1, "wait": 5});
    for result in [r#""\ud800\u0000""#, "1E999", r#"{"a":1,"a":2}"#] {
        let id = api.enqueue(&json!({"type": "remote"})).id().to_owned();
        let task = api.post("/workers/claim", &worker).expect(200).json()["tasks"][0].clone();
        let body = format!(
            r#"{{"items":[{{"id":{},"fence":{},"token":{},
            "outcome":"completed","result":{result}}}]}}"#,
            task["id"], task["fence"], task["token"]
        );
        let answer = api.post_text("/workers/settle", &body).expect(200).json();
        assert_eq!(answer["items"][0]["status"], 200, "{answer}");
        assert_eq!(raw_member(&ended(&api, &id, 0), "result"), result);
    }
}

/// The answer about a task once it has ended after so many replays, as text: it may hold numbers
/// that no parser of ours takes.
fn ended(api: &Api, id: &str, replays: u32) -> String {
    let found = matins_e2e::wait_for(seconds(10.0), || {
        let text = api.get(&format!("/tasks/{id}")).expect(200).text();
        let state = raw_member(&text, "state").to_owned();
        let ended = matches!(state.as_str(), "\"completed\"" | "\"failed\"");
        (ended && raw_member(&text, "replays") == replays.to_string()).then_some(text)
    });
    found.unwrap_or_else(|| panic!("{id} has not ended"))
}

/// H13: tasks of next month, of high priority, and a history hide nothing and slow nothing.
#[test]
fn a_large_queue_is_as_quick_as_a_small_one() {
    let server = Server::with("tasks:\n  quick: {executor: command, command: [\"true\"]}\n");
    let api = server.api();
    let pickup = || {
        let ids: Vec<String> = (0..40)
            .map(|_| {
                thread::sleep(seconds(0.03));
                api.enqueue(&json!({"type": "quick", "priority": -100})).id().to_owned()
            })
            .collect();
        let mut times: Vec<f64> = ids
            .iter()
            .map(|id| {
                let task = api.wait_end(id, seconds(20.0));
                assert_eq!(task.state(), "completed");
                task.time("started_at") - task.time("created_at")
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let small = pickup();
    let future: Vec<_> = (0..5000)
        .map(|n| json!({"type": "quick", "payload": n, "delay": "30d", "priority": 100}))
        .collect();
    let future = json!(future);
    let unknown: Vec<_> =
        (0..5000).map(|n| json!({"type": "nobody", "payload": n, "priority": 100})).collect();
    let unknown = json!(unknown);
    let begin = Instant::now();
    for _ in 0..12 {
        api.post("/tasks/batch", &future).expect(200);
    }
    for _ in 0..6 {
        api.post("/tasks/batch", &unknown).expect(200);
    }
    eprintln!("90 000 tasks enqueued in {:.1} s", begin.elapsed().as_secs_f64());
    thread::sleep(seconds(1.0));
    let large = pickup();
    eprintln!("median pickup {:.1} ms before, {:.1} ms after", small * 1e3, large * 1e3);
    assert!(large < small * 3.0 + 0.05, "median pickup {small} s before, {large} s after");
    let begin = Instant::now();
    let page = api.get("/tasks?limit=50&state=pending").expect(200).json();
    assert_eq!(page["tasks"].as_array().map(Vec::len), Some(50));
    assert!(begin.elapsed() < seconds(0.5), "a page took {:?}", begin.elapsed());
    let begin = Instant::now();
    api.get("/status").expect(200);
    assert!(begin.elapsed() < seconds(0.3), "the status took {:?}", begin.elapsed());
}

/// Order in a pool, ageing, expiry, and listing by cursor while tasks come and go.
#[test]
fn order_expiry_and_pages() {
    let server = Server::with(
        "task_pools:\n  one: {max_workers: 1, task_types: [noted]}\n\
         tasks:\n  noted: {executor: command, shell: \"echo $MATINS_PAYLOAD >> order\"}\n",
    );
    let api = server.api();
    api.post("/pools/one/pause", &json!({})).expect(200);
    let mut wanted = Vec::new();
    for (priority, n) in [(0, 3), (0, 4), (-5, 6), (10, 1), (10, 2), (0, 5)] {
        api.enqueue(&json!({"type": "noted", "payload": n, "priority": priority}));
        wanted.push(n);
        thread::sleep(seconds(0.01));
    }
    let soon = matins_e2e::clock::now() + jiff::SignedDuration::from_millis(400);
    let expired = api.enqueue(&json!({
        "type": "noted", "payload": 99, "expires_at": soon.to_string()
    }));
    thread::sleep(seconds(0.6));
    api.post("/pools/one/resume", &json!({})).expect(200);
    wanted.sort_unstable();
    api.eventually_state("completed", 6, seconds(10.0));
    let order = std::fs::read_to_string(server.home.join("order")).expect("the order");
    let order: Vec<i32> = order.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(order, wanted);
    let task = api.wait_end(expired.id(), seconds(5.0));
    assert_eq!(task.state(), "cancelled", "{:#}", task.0);
    assert!(task.0.to_string().contains("expired"), "{:#}", task.0);

    let batch: Vec<_> = (0..950).map(|n| json!({"type": "paged", "payload": n})).collect();
    api.post("/tasks/batch", &json!(batch)).expect(200);
    let mut seen: Vec<i64> =
        api.list("type=paged").iter().map(|task| task.0["payload"].as_i64().expect("n")).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..950).collect::<Vec<i64>>());
}
