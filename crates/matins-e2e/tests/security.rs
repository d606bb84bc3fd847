//! Tokens, hosts, origins, addresses, and data that pretends to be markup.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

use matins_e2e::server::run;
use matins_e2e::stub::Answer;
use matins_e2e::wait::seconds;
use matins_e2e::{Request, Server, Stub, Value, json};

/// K05: every route of the API, without a token and with wrong ones.
#[test]
fn every_route_needs_a_token() {
    let server = Server::with("");
    let api = server.api();
    let document = api.outside("/api/openapi.json").expect(200).json();
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 20, "{} paths", paths.len());
    let mut checked = 0;
    for (path, methods) in paths {
        let target = path.replace(['{', '}'], "");
        let target = if target.starts_with("/api/") || !starts_v1(&target) {
            target
        } else {
            format!("/api/v1{target}")
        };
        if matches!(target.as_str(), "/healthz" | "/readyz" | "/metrics" | "/api/openapi.json") {
            continue;
        }
        for method in methods.as_object().expect("methods").keys() {
            let method = method.to_uppercase();
            if !matches!(method.as_str(), "GET" | "POST" | "PUT" | "DELETE") {
                continue;
            }
            let near = format!("Bearer {}", &api.token[..api.token.len() - 1]);
            for authorization in [
                None,
                Some("Bearer "),
                Some("Bearer"),
                Some("Bearer wrong"),
                Some("Basic YTpi"),
                Some(&near),
            ] {
                let mut request = Request::new(&method, &target).json("{}");
                if let Some(value) = authorization {
                    request = request.header("authorization", value);
                }
                let answer = request.send(server.address()).expect("an answer");
                assert_eq!(
                    answer.status,
                    401,
                    "{method} {target} {authorization:?}: {}",
                    answer.text()
                );
                assert_eq!(answer.problem(), "unauthorized");
                checked += 1;
            }
        }
    }
    assert!(checked > 150, "only {checked} requests");
}

fn starts_v1(target: &str) -> bool {
    [
        "/tasks",
        "/dead",
        "/sched",
        "/pools",
        "/work",
        "/status",
        "/alerts",
        "/audit",
        "/events",
        "/freeze",
        "/thaw",
        "/operations",
    ]
    .iter()
    .any(|prefix| target.starts_with(prefix))
}

/// K05: without any configuration: loopback, a random token in a file for its owner alone.
#[test]
fn defaults_are_closed() {
    let server = Server::with("");
    let token = server.token();
    assert!(token.len() >= 22, "128 bits need 22 characters: {} characters", token.len());
    let mode = fs::metadata(server.data_dir().join("token")).expect("the token").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let ignore = fs::read_to_string(server.data_dir().join(".gitignore")).expect(".gitignore");
    assert_eq!(ignore.trim(), "*");
    assert_ne!(token, Server::with("").token(), "tokens are random");

    let bare = tempfile::tempdir().expect("a folder");
    let port = server.port + 1;
    let mut command = Command::new(matins_e2e::binary::matins());
    command.current_dir(bare.path()).args(["serve", "--no-supervise"]);
    command.env("MATINS_LISTEN", format!("0.0.0.0:{port}"));
    let output = run_briefly(command);
    assert!(matches!(output.0, Some(1 | 2)), "listened to the world without tokens: {output:?}");

    for yaml in [
        "auth: {tokens: {a: {token: \"\", role: admin}}}",
        "auth: {tokens: {a: {token: \"short\", role: admin}}}",
        "auth: {tokens: {a: {token: \"0123456789012345678901\", role: root}}}",
    ] {
        let wrong = Server::builder().config(yaml).prepare();
        let output = wrong.cli(&["check"]);
        assert_ne!(output.code, 0, "{yaml}: {}", output.out());
        assert!(
            format!("{}{}", output.out(), output.err()).contains(":2:"),
            "names the line: {output:?}"
        );
        let mut command = wrong.command();
        command.args(["serve", "--no-supervise"]);
        assert!(matches!(run_briefly(command).0, Some(1 | 2)), "{yaml}");
    }
}

/// The exit code within five seconds, or nothing when it still runs (it is ended then).
fn run_briefly(mut command: Command) -> (Option<i32>, String) {
    let mut child = command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let ended = matins_e2e::wait_for(seconds(5.0), || child.try_wait().expect("waited"));
    let _ = child.kill();
    let _ = child.wait();
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    (ended.and_then(|status| status.code()), text)
}

/// Roles: what each token may do, and no more; secrets are stored hashed.
#[test]
fn roles() {
    let server = Server::with("tasks: {a: {executor: command, command: [\"true\"]}}");
    let admin = server.api();
    let create = |name: &str, role: &str, types: &[&str]| {
        let mut arguments = vec!["token", "create", name, "--role", role, "--json"];
        for one in types {
            arguments.extend(["--type", one]);
        }
        let output = server.cli(&arguments).expect(0);
        let token = output.json()["secret"].as_str().expect("the secret, shown once").to_owned();
        let mut api = admin.clone();
        api.token = token;
        api
    };
    let viewer = create("v", "viewer", &[]);
    let operator = create("o", "operator", &[]);
    let enqueuer = create("e", "enqueue", &["a"]);
    let id = admin
        .enqueue(&json!({"type": "a", "execution_key": "k", "payload": {"secret": "of another"}}))
        .id()
        .to_owned();
    viewer.get("/tasks").expect(200);
    for (method, path) in [
        ("POST", "/tasks".to_owned()),
        ("POST", format!("/tasks/{id}/cancel")),
        ("POST", "/dead_letters/replay".to_owned()),
        ("PUT", "/schedules/x".to_owned()),
        ("POST", "/freeze".to_owned()),
        ("POST", "/workers/claim".to_owned()),
    ] {
        let request = viewer.request(method, &path).json("{}");
        let answer = viewer.send(&request).expect("an answer");
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
        assert_eq!(answer.problem(), "forbidden");
    }
    operator.post("/pools/default/pause", &json!({})).expect(200);
    operator.post("/pools/default/resume", &json!({})).expect(200);
    enqueuer.get("/tasks").expect(403);
    enqueuer.post("/tasks", &json!({"type": "b"})).expect(403);
    enqueuer.post("/tasks", &json!({"type": "command", "payload": {"argv": ["id"]}})).expect(403);
    enqueuer.post("/tasks", &json!({"type": "a"})).expect(201);
    let seen = enqueuer.post("/tasks", &json!({"type": "a", "execution_key": "k"})).expect(200);
    assert!(!seen.text().contains("of another"), "{}", seen.text());
    assert_eq!(seen.json()["id"], json!(id));
    for token in [&viewer.token, &operator.token, &enqueuer.token] {
        for file in fs::read_dir(server.data_dir()).expect("the folder").flatten() {
            let bytes = fs::read(file.path()).unwrap_or_default();
            let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
            assert!(!found, "a token stands in {}", file.path().display());
        }
    }
    server.cli(&["token", "revoke", "v"]).expect(0);
    matins_e2e::eventually("the revoked token is refused", seconds(5.0), || {
        (viewer.get("/tasks").status == 401).then_some(())
    });
}

/// K09: a web page must not drive the server.
#[test]
fn other_hosts_and_origins_are_refused_before_the_body() {
    let server = Server::with("");
    let api = server.api();
    let body = r#"{"type":"t"}"#;
    let json_type = ("content-type", "application/json");
    let bad: [(&str, &[(&str, &str)]); 7] = [
        ("Host", &[("host", "evil.example"), json_type]),
        ("Host with our port", &[("host", "evil.example:6284"), json_type]),
        ("Origin", &[("origin", "https://evil.example"), json_type]),
        ("Origin null", &[("origin", "null"), json_type]),
        ("text/plain", &[("content-type", "text/plain")]),
        ("form", &[("content-type", "application/x-www-form-urlencoded")]),
        ("multipart", &[("content-type", "multipart/form-data; boundary=x")]),
    ];
    for path in ["/tasks", "/tasks/batch", "/freeze", "/schedules/x/trigger", "/workers/claim"] {
        for (what, headers) in bad {
            let mut request = api.request("POST", path);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            // The length is announced and the body never comes: the answer must not wait for it.
            let waiting = request.clone().header("content-length", "100000");
            let begin = Instant::now();
            let answer = waiting.timeout(seconds(5.0)).send(server.address());
            let answer = answer.unwrap_or_else(|error| panic!("{path} {what}: {error}"));
            assert!(matches!(answer.status, 403 | 415), "{path} {what}: {}", answer.text());
            assert!(begin.elapsed() < seconds(2.0), "{path} {what} waited for the body");
            let answer = request.body(body).send(server.address()).expect("an answer");
            assert!(matches!(answer.status, 403 | 415), "{path} {what}: {}", answer.text());
            assert!(answer.header("access-control-allow-origin").is_none(), "{:?}", answer.headers);
        }
    }
    assert!(api.list("").is_empty(), "nothing was enqueued");
    for path in ["/api/v1/events", "/api/v1/tasks", "/api/openapi.json"] {
        let request = Request::new("GET", path)
            .header("authorization", &format!("Bearer {}", api.token))
            .header("host", "evil.example");
        assert_eq!(request.send(server.address()).expect("an answer").status, 403, "{path}");
    }
    let own = format!("http://{}", server.address());
    for origin in [None, Some(own.as_str())] {
        let mut request = api.request("POST", "/tasks").json(body);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.send(server.address()).expect("an answer").expect(201);
    }
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let request =
            api.request("GET", "/tasks").header("host", &format!("{host}:{}", server.port));
        request.send(server.address()).expect("an answer").expect(200);
    }
}

/// K03: addresses that payloads may not reach, however they are written.
#[test]
fn payloads_do_not_reach_private_addresses() {
    let stub = Stub::start(|call| match call.target.as_str() {
        "/to-metadata" => Answer::new(302, "").header("location", "http://169.254.169.254/latest"),
        "/to-file" => Answer::new(302, "").header("location", "file:///etc/passwd"),
        "/to-self" => {
            let host = call.headers.get("host").cloned().unwrap_or_default();
            Answer::new(302, "").header("location", &format!("http://{host}/landed"))
        }
        _ => Answer::new(200, "reached"),
    });
    let port = stub.address.port();
    let closed = Server::with("defaults: {max_retries: 0}\n");
    let opened =
        Server::with("defaults: {max_retries: 0}\nhttp: {allow: [127.0.0.0/8], redirects: 3}\n");
    let run = |server: &Server, url: &str| {
        let body =
            json!({"type": "http_call", "payload": {"url": url, "method": "GET"}, "timeout": 8});
        let answer = server.api().post("/tasks", &body);
        if answer.status == 422 {
            return "refused".to_owned();
        }
        let id = answer.expect(201).json()["id"].as_str().expect("id").to_owned();
        let begin = Instant::now();
        let task = server.api().wait_end(&id, seconds(10.0));
        assert_ne!(
            task.error_class(),
            "timeout",
            "{url} was dialled for {:?}: {:#}",
            begin.elapsed(),
            task.0
        );
        task.state().to_owned()
    };
    let never = [
        "http://169.254.169.254/latest/meta-data/",
        "http://2852039166/",
        "http://0xA9FEA9FE/",
        "http://0251.0376.0251.0376/",
        "http://[::ffff:169.254.169.254]/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1]/",
        "http://a@169.254.169.254/",
        "http://100.100.100.200/",
        "http://metadata.google.internal/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "ftp://127.0.0.1/",
        "http://0.0.0.0/",
        "javascript:alert(1)",
        "//127.0.0.1/",
        "",
    ];
    for url in never {
        for server in [&closed, &opened] {
            assert_ne!(run(server, url), "completed", "{url}");
        }
    }
    for host in [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "[::ffff:127.0.0.1]",
        "[::1]",
    ] {
        assert_ne!(run(&closed, &format!("http://{host}:{port}/x")), "completed", "{host}");
    }
    assert_eq!(stub.count(), 0, "{:?}", stub.calls());
    assert_eq!(run(&opened, &stub.url("/x")), "completed");
    assert_eq!(run(&opened, &stub.url("/to-self")), "completed");
    assert_ne!(run(&opened, &stub.url("/to-metadata")), "completed");
    assert_ne!(run(&opened, &stub.url("/to-file")), "completed");
    let strict = Server::with("defaults: {max_retries: 0}\nhttp: {allow: [127.0.0.0/8]}\n");
    let before = stub.count();
    assert_ne!(run(&strict, &stub.url("/to-self")), "completed", "redirects are off by default");
    assert_eq!(stub.count(), before + 1, "and the second hop is not made");
}

const MARKUP: [&str; 5] = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "\u{1b}[2J\u{1b}]0;owned\u{7}\u{1b}]8;;http://evil.example\u{7}click\u{1b}]8;;\u{7}",
    "\u{9b}31m\u{202e}txt.exe",
];

/// K01, at the API and on the terminal.
#[test]
fn hostile_text_stays_text() {
    let server = Server::with("defaults: {max_retries: 0}");
    let api = server.api();
    let mut ids = Vec::new();
    let mut shown = Vec::new();
    for (n, text) in MARKUP.iter().enumerate() {
        let quoted = text.replace('\u{1b}', "\\033").replace('\u{7}', "\\007").replace('\'', "");
        let shell = format!("printf '%b\\n' '{quoted}'; printf '%b\\n' '{quoted}' >&2; exit 1");
        let body = json!({
            "type": "command", "execution_key": text, "tags": [text],
            "payload": {"shell": shell, "note": text}
        });
        let answer = api.post("/tasks", &body);
        if answer.status == 422 {
            // An unknown member, or a character no key may hold: then without.
            assert_eq!(answer.problem(), "invalid_field", "{}", answer.text());
        }
        let plain = json!({
            "type": "command", "tags": [format!("t{n}")], "payload": {"shell": shell}
        });
        ids.push(api.enqueue(&plain).id().to_owned());
        let hostile_type = api.post("/tasks", &json!({"type": text}));
        assert!(matches!(hostile_type.status, 201 | 422), "{}", hostile_type.text());
        let schedule = json!({"schedule": "@daily", "type": "t", "note": text, "tags": [text]});
        let answer = api.put(&format!("/schedules/s{n}"), &schedule);
        assert!(matches!(answer.status, 200 | 201 | 422), "{} {}", answer.status, answer.text());
        if answer.status != 422 {
            shown.push(format!("s{n}"));
        }
        let name = matins_e2e::api::escaped(text);
        let answer = api.put(&format!("/schedules/{name}"), &schedule);
        assert!(matches!(answer.status, 200 | 201 | 422), "{} {}", answer.status, answer.text());
        let looked = api.get(&format!("/tasks?q={name}&tag={name}"));
        assert!(matches!(looked.status, 200 | 422), "{} {}", looked.status, looked.text());
    }
    for id in &ids {
        api.wait_state(id, "failed", seconds(10.0));
    }
    let mut paths: Vec<String> = [
        "/tasks",
        "/dead_letters",
        "/dead_letters?group_by=error",
        "/schedules",
        "/status",
        "/audit",
    ]
    .iter()
    .map(|path| (*path).to_owned())
    .collect();
    paths.extend(ids.iter().map(|id| format!("/tasks/{id}")));
    paths.push("/tasks/%3Cscript%3E".to_owned());
    for path in paths {
        let answer = api.get(&path);
        let kind = answer.header("content-type").unwrap_or("").to_owned();
        assert!(
            kind.starts_with("application/json") || kind.starts_with("application/problem+json"),
            "{path}: {kind}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    for id in &ids {
        let answer = api.get(&format!("/tasks/{id}/output")).expect(200);
        let kind = answer.header("content-type").unwrap_or("").to_owned();
        assert!(
            kind.starts_with("text/plain") || kind.starts_with("application/octet-stream"),
            "{kind}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    for arguments in [
        vec!["list"],
        vec!["dead", "list"],
        vec!["dead", "list", "--by-error"],
        vec!["schedule", "list"],
        vec!["schedule", "show", shown.last().expect("one was taken")],
        vec!["status"],
        vec!["show", &ids[3]],
        vec!["show", &ids[4]],
        vec!["output", &ids[3]],
        vec!["output", &ids[4]],
        vec!["why", &ids[3]],
    ] {
        let seen = on_a_terminal(&server, &arguments);
        for wrong in ["\u{1b}[2J", "\u{1b}]", "\u{7}", "\u{9b}", "\u{202e}"] {
            assert!(!seen.contains(wrong), "{arguments:?} lets {wrong:?} through: {seen:?}");
        }
    }
}

/// What a command writes to a terminal.
fn on_a_terminal(server: &Server, arguments: &[&str]) -> String {
    let command = server.command();
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    let line: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let mut script = Command::new("script");
    script.args(["-qec", &line.join(" "), "/dev/null"]).current_dir(&server.home);
    let output = run(script, b"").expect(0);
    assert!(!output.stdout.is_empty(), "{arguments:?} said nothing");
    output.out()
}

/// Requests that are no HTTP are answered or closed, and the server lives on.
#[test]
fn what_is_no_http() {
    let server = Server::with("");
    let wrong: [&[u8]; 7] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET /api/v1/tasks HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5\r\n\
          transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0; 4096],
    ];
    for bytes in wrong {
        let mut stream = TcpStream::connect(server.address()).expect("connected");
        stream.set_read_timeout(Some(seconds(10.0))).expect("set");
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.starts_with("HTTP/1.1 2") && !text.starts_with("HTTP/1.1 5"), "{text}");
    }
    let answer: Value = server.api().get("/status").expect(200).json();
    assert!(answer.is_object());
    server.assert_no_panic();
}
