//! `matins.yaml`: every mistake is told at its place, and a reload loses nothing.

use std::process::{Command, Stdio};
use std::thread;

use matins_e2e::process::{self, Signal};
use matins_e2e::server::run;
use matins_e2e::wait::seconds;
use matins_e2e::{Server, eventually, json, wait_for};
use matins_testbed::Postgres;

/// `matins.yaml` with every kind of mistake: told with file, line and column, and not served.
#[test]
fn configurations_that_are_wrong() {
    let cases = [
        ("stroe: x", "store"),
        ("lease: soon", "lease"),
        ("lease: -5s", "lease"),
        ("listen: nowhere", "listen"),
        ("heartbeat: 0", "heartbeat"),
        ("task_pools: {io: {max_worker: 3, task_types: [a]}}", "max_workers"),
        (
            "task_pools: {a: {max_workers: 1, task_types: [t]}, \
             b: {max_workers: 1, task_types: [t]}}",
            "t",
        ),
        ("task_pools: {a: {max_workers: 0, task_types: [t]}}", "max_workers"),
        ("tasks: {t: {executor: command}}", "command"),
        ("tasks: {t: {executor: teleport}}", "executor"),
        ("tasks: {t: {executor: http, url: \"not a url\"}}", "url"),
        ("tasks: {t: {executor: command, command: [a], shell: b}}", "shell"),
        ("tasks: {t: {executor: command, command: [a], max_retries: many}}", "max_retries"),
        ("defaults: {backoff: {initial: 2h, max: 1h}}", "max"),
        ("defaults: {backoff: {jitter: .nan}}", "jitter"),
        ("defaults: {backoff: {factor: 1e300}}", "factor"),
        ("schedules: {s: {schedule: \"61 * * * *\", type: t}}", "61"),
        ("schedules: {s: {schedule: \"0 0 30 2 *\", type: t}}", "never"),
        ("schedules: {s: {schedule: \"* * * * *\", type: t, timezone: CST}}", "CST"),
        ("schedules: {s: {schedule: \"* * * * *\", timezone: UTC}}", "type"),
        ("drain_timeout: yes", "drain_timeout"),
        ("a: [", ""),
        ("\tlease: 5s", ""),
        ("lease: 5s\nlease: 6s", "lease"),
        ("store: \"env:NO_SUCH_VARIABLE_HERE\"", "NO_SUCH_VARIABLE_HERE"),
        ("store: \"mysql://x\"", "store"),
        ("limits: {payload_bytes: huge}", "payload_bytes"),
        ("allow_commands: some", "allow_commands"),
        ("x: &a [*a]", ""),
    ];
    let server = Server::builder().prepare();
    for (yaml, names) in cases {
        server.configure(yaml);
        if yaml.starts_with("listen") {
            std::fs::write(server.config_file(), format!("{yaml}\n")).expect("written");
        }
        for arguments in [&["check"][..], &["serve", "--no-supervise"], &["list"]] {
            let output = server.cli(arguments);
            assert_eq!(output.code, 2, "{yaml:?} {arguments:?}: {} {}", output.out(), output.err());
            let told = format!("{}{}", output.out(), output.err());
            assert!(told.contains(names), "{yaml:?}: names {names:?}: {told}");
            assert!(told.contains("matins.yaml"), "{yaml:?}: names the file: {told}");
            assert!(!told.contains("panicked"), "{yaml:?}: {told}");
        }
    }
    server.configure("# nothing else");
    server.cli(&["check"]).expect(0);
}

/// Nothing is configured: an empty folder, and the commands find store, server and token.
#[test]
fn nothing_needs_to_be_configured() {
    let server = Server::with("");
    let bare = tempfile::tempdir().expect("a folder");
    let listen = format!("127.0.0.1:{}", server.port + 7);
    let matins = |arguments: &[&str]| {
        let mut command = Command::new(matins_e2e::binary::matins());
        command.current_dir(bare.path()).env("MATINS_LISTEN", &listen).args(arguments);
        command
    };
    // Enqueued before there is a server, or a store.
    let first = run(matins(&["enqueue", "command", "--payload", r#"{"argv":["true"]}"#]), b"");
    let first = first.expect(0).out().lines().next().expect("an id").to_owned();
    let mut serving = matins(&["serve", "--no-supervise"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let done = wait_for(seconds(10.0), || {
        let shown = run(matins(&["show", &first, "--json"]), b"").expect(0).json();
        (shown["state"] == "completed").then_some(())
    });
    let url = format!("http://{listen}");
    let over_http = run(matins(&["--server", &url, "list", "--json"]), b"");
    let ran = run(matins(&["run", "--", "echo", "hello"]), b"");
    process::signal(serving.id(), Signal::TERM);
    let ended = serving.wait().expect("it ends");
    assert!(done.is_some(), "what was enqueued before runs");
    assert!(over_http.expect(0).out().contains(&first), "the token is found");
    assert_eq!((ran.code, ran.out().as_str()), (0, "hello\n"), "{}", ran.err());
    assert!(ended.success(), "{ended}");
    assert!(bare.path().join(".matins/matins.db").exists());

    run(matins(&["init"]), b"").expect(0);
    assert!(bare.path().join("matins.yaml").exists());
    run(matins(&["check"]), b"").expect(0);
    assert_ne!(run(matins(&["init"]), b"").code, 0, "a file that exists is not overwritten");
}

/// A reload with a mistake changes nothing and ends nothing; a sound one takes effect.
#[test]
fn reloading() {
    let mut server = Server::with("tasks: {a: {executor: command, command: [echo, \"1\"]}}");
    let api = server.api();
    let result = || {
        let id = api.enqueue(&json!({"type": "a"})).id().to_owned();
        api.wait_state(&id, "completed", seconds(5.0)).0["result"].clone()
    };
    assert_eq!(result(), json!(1));
    server.configure("tasks: {a: {executor: command, command: [echo, \"2\"]}");
    server.signal(Signal::HUP);
    thread::sleep(seconds(1.0));
    assert!(server.running());
    assert_eq!(result(), json!(1), "a file with a mistake changes nothing");
    server.configure(
        "tasks: {a: {executor: command, command: [echo, \"3\"]}}\n\
         schedules: {s: {schedule: \"* * * * * *\", type: a}}",
    );
    server.signal(Signal::HUP);
    eventually("the new command runs", seconds(5.0), || (result() == json!(3)).then_some(()));
    eventually("the new schedule fires", seconds(5.0), || {
        (!api.occurrences("s").is_empty()).then_some(())
    });
    let changed = json!({"schedule": "@daily", "type": "a"});
    assert_eq!(api.put("/schedules/s", &changed).expect(409).problem(), "managed_by_file");
    assert_eq!(api.delete("/schedules/s").expect(409).problem(), "managed_by_file");
    server.configure("tasks: {a: {executor: command, command: [echo, \"3\"]}}");
    server.signal(Signal::HUP);
    eventually("it is disabled", seconds(5.0), || {
        let schedule = api.get("/schedules/s").expect(200).json();
        (schedule["state"] == "disabled").then_some(())
    });
    assert!(!api.occurrences("s").is_empty(), "its history is kept");
    server.assert_no_panic();
}

/// A node is seen from other folders. One that comes new and names no schedules has taken none away;
/// one that takes them away says which, and they are not resumed in silence.
#[test]
fn several_files_on_one_database() {
    let store = format!("store: {}\n", Postgres::shared().database("template1"));
    let tick = "schedules: {tick: {schedule: '0 3 * * *', timezone: UTC, type: quick}}\n";
    let first = Server::with(&format!("{store}{tick}"));
    let other = Server::with(&store);
    let state = || first.api().get("/schedules/tick").expect(200).json()["state"].clone();
    assert_eq!(state(), "active", "{}", other.log_tail());

    let elsewhere = Server::builder().config(&store).prepare();
    let said = elsewhere.cli(&["status"]).expect(0).out();
    assert!(!said.contains("none runs on this store"), "{said}");
    let said = elsewhere.cli(&["enqueue", "quick"]).expect(0).err();
    assert!(!said.contains("no server"), "{said}");
    let refused = elsewhere.cli(&["run", "--", "true"]);
    assert_eq!(refused.code, 125);
    assert!(refused.err().contains("allow_commands"), "{}", refused.err());
    assert!(first.api().list("type=command").is_empty(), "nothing is left of what was refused");

    other.configure(&format!("{store}schedules: {{}}\n"));
    other.signal(Signal::HUP);
    eventually("it is disabled", seconds(10.0), || (state() == "disabled").then_some(()));
    assert!(other.log_text().contains("names=\"tick\""), "{}", other.log_tail());
    let resumed = first.cli(&["schedule", "resume", "tick"]);
    assert_ne!(resumed.code, 0);
    assert!(resumed.err().contains("tick is disabled"), "{}", resumed.err());
}
