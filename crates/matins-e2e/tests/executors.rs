//! Commands: their whole tree ends, their output neither blocks nor breaks anything, their secrets
//! stay secret.

use std::thread;
use std::time::Instant;

use matins_e2e::process;
use matins_e2e::stub::Answer;
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Stub, eventually, json};

/// G01: whatever a command starts, nothing outlives its time.
#[test]
fn nothing_outlives_its_timeout() {
    let server = Server::with("defaults:\n  max_retries: 0\n  grace: 1s\n");
    let api = server.api();
    let trees = [
        "sleep 300 & wait",
        "setsid sleep 300 & sleep 301",
        "(setsid sh -c 'sleep 300 & sleep 301' &) ; sleep 302",
        "trap '' TERM; sleep 300 & while :; do sleep 1; done",
        "setsid sh -c \"trap '' TERM; while :; do sleep 1; done\" & exec sleep 300",
        "for n in 1 2 3 4 5; do (setsid sleep 300 >/dev/null 2>&1 </dev/null &); done; sleep 300",
        "env -i /bin/sh -c 'setsid sleep 300 & sleep 300'",
        "kill -STOP $$; sleep 300",
    ];
    let begin = Instant::now();
    let ids: Vec<String> =
        trees.iter().map(|tree| api.shell(tree, &json!({"timeout": 2})).id().to_owned()).collect();
    for (id, tree) in ids.iter().zip(trees) {
        let task = api.wait_end(id, seconds(8.0));
        assert_eq!(
            (task.state(), task.error_class()),
            ("failed", "timeout"),
            "{tree}: {:#}",
            task.0
        );
        assert_eq!(task.attempts()[0]["outcome"], "timeout", "{tree}: {:#}", task.0);
        let took = task.time("finished_at") - task.time("started_at");
        assert!((1.9..4.5).contains(&took), "{tree} took {took:.1} s");
    }
    assert!(begin.elapsed() < seconds(9.0));
    server.assert_no_workers(seconds(0.5));
}

/// Cancelling reaches a running tree within two seconds, and a finished command leaves no one.
#[test]
fn cancel_and_ordinary_ends_leave_nobody() {
    let server = Server::with("defaults:\n  grace: 500ms\n");
    let api = server.api();
    let id = api
        .shell(&server.witness.shell("trap '' TERM; setsid sleep 300 & sleep 301"), &json!({}))
        .id()
        .to_owned();
    server.witness.wait_begin(&id, 1, seconds(5.0));
    let asked = Instant::now();
    api.post(&format!("/tasks/{id}/cancel"), &json!({})).expect(202);
    let task = api.wait_end(&id, seconds(5.0));
    assert_eq!((task.state(), task.number("retries")), ("cancelled", 0), "{:#}", task.0);
    assert!(asked.elapsed() < seconds(3.0), "{:?}", asked.elapsed());
    server.assert_no_workers(seconds(0.5));

    let id = api.shell("setsid sleep 300 & sleep 302 & echo done", &json!({})).id().to_owned();
    let begin = Instant::now();
    let task = api.wait_end(&id, seconds(10.0));
    assert_eq!(task.state(), "completed", "{:#}", task.0);
    assert!(begin.elapsed() < seconds(4.0), "the children hold the pipe: {:?}", begin.elapsed());
    server.assert_no_workers(seconds(2.0));
}

/// G03: a flood on both streams neither blocks the child nor fills the memory.
#[test]
fn floods_of_output() {
    let server = Server::with("defaults:\n  max_retries: 0\n");
    let api = server.api();
    let small =
        ["head -c 200000 /dev/zero | tr '\\0' x", "head -c 200000 /dev/zero | tr '\\0' x >&2"];
    for text in small {
        let task = api.shell(text, &json!({"timeout": 20}));
        let task = api.wait_end(task.id(), seconds(20.0));
        assert_eq!(task.state(), "completed", "{:#}", task.0);
        let raw = api.get(&format!("/tasks/{}/output", task.id())).expect(200);
        assert!(raw.body.len() < 66_000, "{} bytes kept", raw.body.len());
        assert!(raw.body.len() >= 65_536 - 1024, "{} bytes kept", raw.body.len());
        let shown = task.attempts()[0]["output"].as_str().expect("output");
        assert!(shown.contains("134464"), "200000 - 65536 bytes dropped: {}", middle(shown));
    }
    let flood = "head -c 60000000 /dev/zero | tr '\\0' o & \
                 head -c 60000000 /dev/zero | tr '\\0' e >&2; wait; echo; echo '{\"end\": 1}'";
    let id = api.shell(&format!("echo first; {flood}"), &json!({"timeout": 50})).id().to_owned();
    let mut most = 0;
    let task = eventually("the flood ends", seconds(50.0), || {
        let family = process::descendants(server.pid());
        let matins = family.iter().filter(|p| p.exe.ends_with("matins")).map(|p| p.resident_bytes);
        let own = process::of(server.pid()).map_or(0, |p| p.resident_bytes);
        most = most.max(matins.max().unwrap_or(0).max(own));
        let task = api.task(&id);
        task.ended().then_some(task)
    });
    assert_eq!(task.state(), "completed", "{:#}", task.0);
    assert_eq!(task.0["result"], json!({"end": 1}), "the last line is kept");
    assert!(most < 200 << 20, "{} MiB resident", most >> 20);
    let raw = api.get(&format!("/tasks/{id}/output")).expect(200).body;
    assert!(raw.starts_with(b"first\n"), "the head is kept");
    // Which of two pipes is read first at the end is nobody's promise: either may come last.
    assert!(raw.len() >= 60 << 10, "the tail is kept: {} bytes", raw.len());
}

fn middle(text: &str) -> String {
    let kept: String = text.chars().filter(|c| *c != 'x').collect();
    kept
}

/// G06: bytes that are no text.
#[test]
fn output_of_any_bytes() {
    let server = Server::with("defaults:\n  max_retries: 0\n");
    let api = server.api();
    let cases: [(&str, &[u8]); 7] = [
        ("printf 'ok \\377\\376 \\303 end\\n'", b"ok \xff\xfe \xc3 end\n"),
        ("printf '\\304\\343\\272\\303\\n'", b"\xc4\xe3\xba\xc3\n"),
        ("printf '\\303'; sleep 0.3; printf '\\251\\n'", "é\n".as_bytes()),
        ("printf 'a\\000b\\000\\n'", b"a\0b\0\n"),
        (
            "printf '\\033[31mred\\033[0m \\033]8;;http://x\\007l\\033]8;;\\007\\n'",
            b"\x1b[31mred\x1b[0m \x1b]8;;http://x\x07l\x1b]8;;\x07\n",
        ),
        ("printf 'no newline'", b"no newline"),
        ("printf '\\355\\240\\200 \\364\\220\\200\\200\\n'", b"\xed\xa0\x80 \xf4\x90\x80\x80\n"),
    ];
    for (text, expected) in cases {
        let id = api.shell(text, &json!({})).id().to_owned();
        let task = api.wait_end(&id, seconds(10.0));
        assert_eq!(task.state(), "completed", "{text}: {:#}", task.0);
        let raw = api.get(&format!("/tasks/{id}/output")).expect(200);
        assert_eq!(raw.body, expected, "{text}");
        let shown = task.attempts()[0]["output"].as_str().expect("text");
        assert_eq!(shown, String::from_utf8_lossy(expected), "{text}");
        let cli = server.cli(&["output", &id]).expect(0);
        assert_eq!(cli.stdout, expected, "{text}: the command line gives the bytes to a pipe");
    }
    // The cap falls into the middle of a character.
    let id = api
        .shell(
            "i=0; while [ $i -lt 40000 ]; do printf '\\351\\222\\237'; i=$((i+1)); done",
            &json!({}),
        )
        .id()
        .to_owned();
    let task = api.wait_end(&id, seconds(20.0));
    assert_eq!(task.state(), "completed", "{:#}", task.0);
    assert!(task.attempts()[0]["output"].as_str().is_some_and(|text| text.contains('钟')));
}

/// G07: nobody waits for the end of an input that never comes.
#[test]
fn input_ends_at_once() {
    let mut server = Server::builder().prepare();
    server.configure(
        "tasks:\n  reads_all: {executor: command, \
         command: [sh, -c, \"cat; echo; echo \\\"$MATINS_PAYLOAD\\\"\"]}\n",
    );
    server.start();
    let api = server.api();
    for text in ["cat >/dev/null; echo answer", "read x; echo got", "exec cat"] {
        let id = api.shell(text, &json!({"timeout": 10})).id().to_owned();
        let task = api.wait_end(&id, seconds(10.0));
        assert_eq!(task.state(), "completed", "{text}: {:#}", task.0);
        let took = task.time("finished_at") - task.time("started_at");
        assert!(took < 1.0, "{text} took {took} s");
    }
    let fed = json!({"type": "command", "payload": {"argv": ["cat"], "stdin": "given\n"}});
    let id = api.enqueue(&fed).id().to_owned();
    api.wait_state(&id, "completed", seconds(5.0));
    assert_eq!(api.get(&format!("/tasks/{id}/output")).body, b"given\n");

    let payload = json!({"day": "2024-01-15", "n": [1, 2.50, "ü"]});
    let id = api.enqueue(&json!({"type": "reads_all", "payload": payload})).id().to_owned();
    api.wait_state(&id, "completed", seconds(5.0));
    let out = api.get(&format!("/tasks/{id}/output")).text();
    let lines: Vec<&str> = out.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, [payload.to_string(), payload.to_string()], "stdin and MATINS_PAYLOAD");

    // A payload larger than a pipe, for a command that reads nothing of it.
    let large =
        json!({"type": "command", "payload": {"argv": ["true"], "stdin": "x".repeat(500_000)}});
    let id = api.enqueue(&large).id().to_owned();
    let task = api.wait_end(&id, seconds(10.0));
    assert_eq!(task.state(), "completed", "{:#}", task.0);
}

/// G08: a command that asks and waits for ever holds its schedule only until its timeout.
#[test]
fn a_question_nobody_answers() {
    let server = Server::with("");
    let api = server.api();
    let asks = server.witness.shell("printf 'May I proceed? [y/N] '; exec sleep 1000");
    let schedule = json!({
        "schedule": "* * * * * *", "type": "command", "timeout": 3, "max_retries": 0,
        "payload": {"shell": asks}
    });
    api.put("/schedules/asks", &schedule).expect_created();
    thread::sleep(seconds(12.0));
    api.post("/schedules/asks/pause", &json!({})).expect(200);
    let occurrences = api.occurrences("asks");
    let fired = occurrences.iter().filter(|o| o["outcome"] == "fired").count();
    assert!((2..=4).contains(&fired), "a new one after each timeout: {occurrences:#?}");
    assert!(occurrences.iter().any(|o| o["reason"] == "overlap"), "{occurrences:#?}");
    for task in api.list("schedule=asks&state=failed") {
        let task = api.task(task.id());
        assert_eq!(task.error_class(), "timeout", "{:#}", task.0);
        let output = task.attempts()[0]["output"].as_str().unwrap_or("");
        assert!(output.contains("May I proceed?"), "the question is kept: {:#}", task.0);
    }
    server.witness.assert_no_overlap();
}

trait Created {
    fn expect_created(self);
}

impl Created for matins_e2e::Response {
    #[track_caller]
    fn expect_created(self) {
        assert!(matches!(self.status, 200 | 201), "{} {}", self.status, self.text());
    }
}

/// How a command ends is told as it was.
#[test]
fn exit_codes_and_signals() {
    let server = Server::with("defaults:\n  backoff: {initial: 1h}\n");
    let api = server.api();
    let cases = [
        ("exit 1", "exit", Some(1), false),
        ("exit 255", "exit", Some(255), false),
        ("exit 78", "exit", Some(78), true),
        ("exit 126", "exit", Some(126), true),
        ("no-such-program-anywhere", "exit", Some(127), true),
        ("kill -SEGV $$", "signal", None, false),
        ("kill -9 $$", "signal", None, false),
    ];
    for (text, class, code, permanent) in cases {
        let id = api.shell(text, &json!({})).id().to_owned();
        let task = api.wait_task(&id, "its attempt ended", seconds(10.0), |task| {
            task.ended() || task.number("retries") == 1
        });
        let attempt = &task.attempts()[0];
        assert_eq!(attempt["error"]["class"], class, "{text}: {attempt:#}");
        assert_eq!(attempt["exit_code"].as_i64(), code, "{text}: {attempt:#}");
        assert_eq!(task.state() == "failed", permanent, "{text}: {:#}", task.0);
    }
    let missing = json!({"type": "command", "payload": {"argv": ["/no/such/program"]}});
    let id = api.enqueue(&missing).id().to_owned();
    let task = api.wait_task(&id, "it failed", seconds(10.0), |task| {
        task.ended() || task.number("retries") == 1
    });
    assert_eq!(task.attempts()[0]["error"]["class"], "spawn", "{:#}", task.0);
}

/// K07: a secret of a task is nowhere but in the task's environment.
#[test]
fn secrets_stay_secret() {
    const SECRET: &str = "S3KR1T-42-hX9vQ2mZ7w";
    let stub = Stub::start(|call| {
        let echoed = call.headers.get("authorization").cloned().unwrap_or_default();
        Answer::new(500, format!("you sent {echoed}"))
    });
    let mut server = Server::builder().variable("E2E_SECRET", SECRET).prepare();
    server.configure(&format!(
        "log: {{level: trace}}\ndefaults: {{max_retries: 0}}\n\
         tasks:\n  leaks:\n    executor: command\n    env: {{API_KEY: env:E2E_SECRET}}\n    \
         shell: |\n      echo \"key $API_KEY\"; echo \"err $API_KEY\" >&2\n      \
         printf '%.8s' \"$API_KEY\"; sleep 0.3; printf '%s\\n' \"${{API_KEY#????????}}\"\n      \
         echo \"{{\\\"token\\\": \\\"$API_KEY\\\"}}\"\n      exit ${{CODE:-0}}\n  \
         calls:\n    executor: http\n    url: {}\n    headers: {{Authorization: env:E2E_SECRET}}\n",
        stub.url("/hook")
    ));
    server.start();
    let api = server.api();
    let good = api.enqueue(&json!({"type": "leaks"})).id().to_owned();
    let call = api.enqueue(&json!({"type": "calls"})).id().to_owned();
    api.wait_end(&good, seconds(10.0));
    api.wait_end(&call, seconds(10.0));
    assert_eq!(stub.calls()[0].headers["authorization"], SECRET, "the call itself carries it");
    let mut places = Vec::new();
    for id in [&good, &call] {
        places.push((format!("task {id}"), api.get(&format!("/tasks/{id}")).text()));
        places.push((format!("output {id}"), api.get(&format!("/tasks/{id}/output")).text()));
        places.push(("why".to_owned(), api.get(&format!("/tasks/{id}/why")).text()));
    }
    for path in ["/tasks", "/dead_letters", "/status", "/audit", "/workers", "/schedules"] {
        places.push((path.to_owned(), api.get(path).text()));
    }
    places.push(("metrics".to_owned(), api.outside("/metrics").text()));
    places.push(("check".to_owned(), server.cli(&["check"]).out()));
    places.push(("log".to_owned(), server.log_text()));
    for process in process::descendants(server.pid()) {
        places.push(("ps".to_owned(), process.command_line()));
    }
    for file in std::fs::read_dir(server.data_dir()).expect("the folder").flatten() {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        places.push((file.path().display().to_string(), text));
    }
    let found: Vec<&String> =
        places.iter().filter(|(_, text)| text.contains(SECRET)).map(|(place, _)| place).collect();
    assert!(found.is_empty(), "the secret stands in {found:?}");
    // Half of it would be as good as all of it when the two halves stand side by side.
    let output = api.get(&format!("/tasks/{good}/output")).text();
    assert!(!output.contains(&SECRET[8..]), "its second half stands in {output:?}");
    let token = server.token();
    assert!(!server.log_text().contains(&token), "the admin token stands in the log");
}
