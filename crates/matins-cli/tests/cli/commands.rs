use std::process::Stdio;

use serde_json::json;

use crate::sandbox::{Sandbox, done};

/// In the wrong folder nobody is told that all is quiet, or frozen.
#[test]
fn where_no_store_is_only_what_brings_work_in_makes_one() {
    let sandbox = Sandbox::new();
    let id = "01890000-0000-7000-8000-000000000000";
    let others = [
        ["list"].as_slice(),
        &["list", "--json"],
        &["status"],
        &["status", "--json"],
        &["show", id],
        &["dead", "list"],
        &["dead", "replay", "--all"],
        &["dead", "replay", "--all", "--dry-run"],
        &["schedule", "list"],
        &["schedule", "pause", "x"],
        &["freeze", "--reason", "x"],
        &["thaw"],
        &["pool", "pause", "default"],
        &["cancel", id],
        &["token", "create", "x", "--role", "viewer"],
        &["audit"],
    ];
    for args in others {
        sandbox.matins(args).fails_with(4).complains("no store at").complains("matins serve");
    }
    assert!(!sandbox.file(".matins").exists());
    sandbox.enqueue(&["x"]);
    let folder = sandbox.file(".matins");
    assert_eq!(std::fs::read_to_string(folder.join(".gitignore")).unwrap(), "*\n");
}

/// A mistyped path is no empty queue.
#[test]
fn a_store_that_was_named_and_is_not_there_is_an_error_for_whoever_looks() {
    let sandbox = Sandbox::new();
    let id = "01890000-0000-7000-8000-000000000000";
    let reading = [
        ["list"].as_slice(),
        &["list", "--json"],
        &["show", id],
        &["status"],
        &["why", id],
        &["output", id],
        &["dead", "list"],
        &["dead", "replay", "--all", "--dry-run"],
        &["schedule", "list"],
        &["pool", "list"],
        &["ledger", "show", "t", "k"],
        &["token", "list"],
    ];
    for args in reading {
        let told = sandbox.matins(&[args, &["--store", "sqlite:typo.db"]].concat());
        told.fails_with(4).complains("no store at").complains("typo.db").complains("hint:");
        let mut command = sandbox.command(args);
        let told = done(&command.env("MATINS_STORE", "sqlite:typo.db").output().unwrap());
        told.fails_with(4).complains("no store at");
    }
    assert!(!sandbox.file("typo.db").exists());
    sandbox.matins(&["enqueue", "x", "--store", "sqlite:typo.db"]).succeeds();
    for args in [["list"].as_slice(), &["status"], &["dead", "list"]] {
        sandbox.matins(&[args, &["--store", "sqlite:typo.db"]].concat()).succeeds();
    }
}

#[test]
fn an_enqueued_task_is_shown_with_every_byte_of_its_payload() {
    let sandbox = Sandbox::new();
    let payload = r#"{"id":1970670598291982290,"u":18446744073709551615,"e":1E400,"t":"\u0000键"}"#;
    let id = sandbox.enqueue(&["sync", "--payload", payload, "--key", "k-1", "--priority", "-5"]);
    let shown = sandbox.matins(&["show", &id, "--json"]).succeeds();
    assert!(shown.out.contains(payload), "{}", shown.out);
    sandbox.write("payload.json", payload);
    let id = sandbox.enqueue(&["sync", "--payload", "@payload.json"]);
    assert!(sandbox.matins(&["show", &id, "--json"]).out.contains(payload));
    let mut child = sandbox.command(&["enqueue", "sync", "--payload", "-"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), payload.as_bytes()).unwrap();
    let id = done(&child.wait_with_output().unwrap()).succeeds().line();
    assert!(sandbox.matins(&["show", &id, "--json"]).out.contains(payload));
    let again = sandbox.matins(&["enqueue", "sync", "--key", "k-1"]).succeeds();
    again.complains("the key is taken, this task is ready");
}

#[test]
fn exit_codes_tell_what_kind_of_failure_it_is() {
    let sandbox = Sandbox::new();
    sandbox.enqueue(&["x", "--key", "taken"]);
    for (args, code, complaint) in [
        (["enqueue"].as_slice(), 2, "TYPE"),
        (&["enqueue", "x", "--payload", "{"], 2, "the payload is not JSON"),
        (&["enqueue", "x", "--payload", "@nowhere"], 2, "the payload file nowhere"),
        (&["enqueue", "x", "--at", "soon"], 2, "run_at: expected a time"),
        (&["enqueue", "x", "--in", "5x"], 2, "delay:"),
        (&["enqueue", "x", "--at", "2027-01-01T00:00:00Z", "--in", "5m"], 2, "cannot be used with"),
        (&["enqueue", "x", "--priority", "1000"], 2, "priority: expected -100 to 100"),
        (&["enqueue", "x", "--key", "taken", "--on-duplicate", "reject"], 1, "the key is taken"),
        (&["frobnicate"], 2, "unrecognized subcommand"),
        (&["list", "--limit", "0"], 2, "limit"),
        (&["show", "nonsense"], 3, "there is no task"),
        (&["schedule", "show", "none"], 3, "there is no schedule none"),
        (&["pool", "pause", "none"], 3, "there is no pool none"),
        (&["pool", "resize", "default", "0"], 2, "size:"),
        (&["ledger", "show", "x", "y"], 3, "there is no ledger entry"),
        (&["dead", "replay"], 2, "which dead letters?"),
        (&["dead", "replay", "--all", "--type", "x"], 2, "exclude each other"),
        (&["freeze"], 2, "--reason"),
        (&["token", "create", "t", "--role", "root"], 2, "role: expected one of"),
        (&["node", "forget", "nobody"], 3, "there is no node or worker nobody"),
        (&["schedule", "preview", "--cron", "61 * * * *"], 2, "minute"),
        (
            &["schedule", "preview", "--cron", "* * * * *", "--timezone", "EST"],
            2,
            "America/New_York",
        ),
        (&["schedule", "set", "s", "--cron", "0 0 30 2 *", "--type", "x"], 2, "never fire"),
        (&["schedule", "set", "s", "--cron", "@daily"], 2, "what is to be run?"),
        (&["list", "--server", "http://127.0.0.1:1"], 4, "cannot reach the server"),
        (&["list", "--server", "ftp://x"], 2, "no http or https URL"),
        (&["list", "--server", "http://x", "--store", "sqlite:x"], 2, "exclude each other"),
        (&["list", "--state", "odd"], 2, "state"),
        (&["list", "--store", "sqlite:/nowhere/at/all.db"], 4, "no store at"),
        (
            &["enqueue", "x", "--store", "sqlite:/nowhere/at/all.db"],
            4,
            "the store /nowhere/at/all.db",
        ),
    ] {
        let done = sandbox.matins(args).fails_with(code).complains(complaint);
        assert!(!done.err.contains("panicked") && !done.err.contains("RUST_BACKTRACE"), "{done:?}");
        assert_eq!(done.out, "", "{done:?}");
    }
    sandbox.write("foreign.db", "this is no database, and long enough to tell");
    sandbox
        .matins(&["list", "--store", "sqlite:foreign.db"])
        .fails_with(4)
        .complains("foreign.db is not an SQLite file");
}

#[test]
fn with_json_a_refusal_is_the_problem_document() {
    let sandbox = Sandbox::new();
    sandbox.enqueue(&["x"]);
    let id = "01890000-0000-7000-8000-000000000000";
    let told = sandbox.matins(&["why", id, "--json"]).fails_with(3);
    assert_eq!(told.json()["code"], "not_found");
    let told = sandbox.matins(&["--json", "schedule", "preview", "--cron", "x"]).fails_with(2);
    assert_eq!(told.json()["code"], "cron_invalid");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let sandbox = Sandbox::new();
    for _ in 0..3 {
        sandbox.enqueue(&["x"]);
    }
    for args in [["list"].as_slice(), &["list", "--json"], &["init", "--stdout"], &["openapi"]] {
        let mut child = sandbox.command(args);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = done(&child.wait_with_output().unwrap());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn data_cannot_drive_the_terminal() {
    let sandbox = Sandbox::new();
    let evil = "\u{1b}[31mred\u{1b}]0;title\u{7}\u{202e}x";
    let payload = serde_json::to_string(evil).unwrap();
    let id = sandbox.enqueue(&["数据处理", "--key", evil, "--payload", &payload, "--tag", "标签"]);
    sandbox.matins(&["freeze", "--reason", evil]).succeeds();
    for args in [["list"].as_slice(), &["show", &id], &["why", &id], &["status"]] {
        let done = sandbox.matins(args).succeeds();
        assert!(!done.out.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{done:?}");
    }
    let list = sandbox.matins(&["list"]).out;
    let lines: Vec<&str> = list.lines().collect();
    // What follows wide characters still stands below its heading.
    let column = |line: &str, at: &str| {
        let before = &line[..line.find(at).unwrap()];
        before.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum::<usize>()
    };
    assert_eq!(column(lines[0], "STATE"), column(lines[1], "ready"), "{list}");
    assert!(sandbox.matins(&["list", "--json"]).out.contains("\\u001b"), "JSON escapes it");
}

#[test]
fn tasks_are_cancelled_retried_and_copied() {
    let sandbox = Sandbox::new();
    let first = sandbox.enqueue(&["x", "--in", "1h"]);
    let second = sandbox.enqueue(&["x"]);
    sandbox.matins(&["why", &first]).succeeds().says("due_later");
    sandbox.matins(&["retry", &first]).succeeds().says("ready");
    sandbox.matins(&["why", &first]).succeeds().says("no_worker_for_type");
    let done = sandbox.matins(&["cancel", &first, "no-such-id", &second, "--reason", "test"]);
    done.fails_with(3).says(&first).says(&second).complains("there is no task no-such-id");
    assert_eq!(sandbox.task(&second)["state"], "cancelled");
    sandbox.matins(&["cancel", &first]).fails_with(1).complains("hint: matins rerun");
    let copy = sandbox.matins(&["rerun", &first]).succeeds().line();
    assert_ne!(copy, first);
    assert_eq!(sandbox.task(&copy)["state"], "pending");
    let audit = sandbox.matins(&["list", "--state", "cancelled", "--json"]).succeeds().json();
    assert_eq!(audit["tasks"].as_array().unwrap().len(), 2);
}

#[test]
fn pages_go_on_where_they_ended() {
    let sandbox = Sandbox::new();
    let ids: Vec<String> = (0..5).map(|_| sandbox.enqueue(&["x"])).collect();
    let mut seen = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut args = vec!["list", "-n", "2", "--json"];
        args.extend(cursor.iter().flat_map(|cursor| ["--cursor", cursor]));
        let page = sandbox.matins(&args).succeeds().json();
        for task in page["tasks"].as_array().unwrap() {
            seen.push(task["id"].as_str().unwrap().to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    seen.reverse();
    assert_eq!(seen, ids);
    sandbox.matins(&["list", "-n", "2"]).succeeds().complains("there is more: --cursor");
}

#[test]
fn schedules_are_set_and_looked_at() {
    let sandbox = Sandbox::new();
    let set = [
        "schedule",
        "set",
        "nightly",
        "--cron",
        "0 2 * * *",
        "--timezone",
        "Asia/Shanghai",
        "--type",
        "sync",
        "--payload",
        r#"{"n":9007199254740993}"#,
        "--key",
        "sync-{{ occurrence.date }}",
        "--overlap",
        "allow",
        "--priority",
        "-3",
        "--blackout",
        "22:00/23:00",
        "--tag",
        "t",
        "--note",
        "night",
        "--fold",
        "second",
        "--max-retries",
        "1",
    ];
    sandbox.matins(&set).succeeds().says("nightly is active, next fire");
    let shown = sandbox.matins(&["schedule", "show", "nightly", "--json"]).succeeds();
    assert!(shown.out.contains(r#""payload":{"n":9007199254740993}"#), "{}", shown.out);
    let json = shown.json();
    for (key, expected) in [
        ("timezone", json!("Asia/Shanghai")),
        ("overlap", json!("allow")),
        ("priority", json!(-3)),
        ("blackout", json!([{ "from": "22:00", "to": "23:00" }])),
        ("dst", json!({ "gap": "run", "fold": "second" })),
        ("managed_by", json!("api")),
        ("max_retries", json!(1)),
    ] {
        assert_eq!(json[key], expected, "{key}");
    }
    sandbox.matins(&["schedule", "show", "nightly"]).succeeds().says("next fires");
    sandbox.matins(&["schedule", "list"]).succeeds().says("Asia/Shanghai");
    sandbox.matins(&["schedule", "pause", "nightly", "--note", "why"]).succeeds().says("paused");
    sandbox.matins(&["schedule", "resume", "nightly"]).succeeds().says("active");
    let task = sandbox.matins(&["schedule", "trigger", "nightly"]).succeeds().line();
    assert_eq!(sandbox.task(&task)["schedule"], "nightly");
    sandbox.matins(&["schedule", "history", "nightly"]).succeeds().says("manual");
    let dry = sandbox.matins(&[
        "schedule",
        "backfill",
        "nightly",
        "--from",
        "2026-01-01T00:00:00Z",
        "--to",
        "2026-01-04T00:00:00Z",
        "--dry-run",
    ]);
    dry.succeeds().says("would run 3 occurrences").says("2026-01-02T02:00:00");
    sandbox.matins(&["schedule", "remove", "nightly"]).succeeds().says("is removed");
    sandbox.matins(&["schedule", "show", "nightly"]).fails_with(3);

    sandbox
        .matins(&["schedule", "set", "cmd", "--cron", "@every 1h", "--", "echo", "a b"])
        .succeeds();
    let payload = sandbox.matins(&["schedule", "show", "cmd", "--json"]).json()["payload"].clone();
    assert_eq!(payload["argv"], json!(["echo", "a b"]));
    let here = sandbox.path().canonicalize().unwrap();
    assert_eq!(payload["cwd"], json!(here));
}

#[test]
fn a_preview_needs_neither_store_nor_configuration() {
    let sandbox = Sandbox::with_config("nonsense: true\n");
    let preview = sandbox.matins(&[
        "schedule",
        "preview",
        "--cron",
        "30 2 * * *",
        "--timezone",
        "Europe/Berlin",
        "--after",
        "2026-03-28T12:00:00Z",
        "--count",
        "2",
        "--json",
    ]);
    let json = preview.succeeds().json();
    assert_eq!(json["fires"][0]["utc"], "2026-03-29T01:00:00Z");
    assert_eq!(json["fires"][0]["notes"], json!(["dst_gap"]));
    assert_eq!(json["fires"][1]["utc"], "2026-03-30T00:30:00Z");
    sandbox.matins(&["version"]).succeeds().says("time zones 20").says("store schema");
    let version = sandbox.matins(&["version", "--json"]).succeeds().json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    sandbox.matins(&["completions", "bash"]).succeeds().says("_matins");
    sandbox.matins(&["completions", "zsh"]).succeeds().says("#compdef matins");
    let openapi = sandbox.matins(&["openapi"]).succeeds().json();
    assert!(openapi["paths"]["/api/v1/tasks"]["post"].is_object());
    assert!(!sandbox.file(".matins").exists());
}

#[test]
fn pools_freeze_and_tokens() {
    let sandbox = Sandbox::with_config("task_pools: {io: {max_workers: 3, task_types: [x]}}");
    sandbox.enqueue(&["x"]);
    sandbox
        .matins(&["pool", "pause", "io", "--note", "db is slow"])
        .succeeds()
        .says("io is paused");
    sandbox.matins(&["pool", "list"]).succeeds().says("db is slow");
    sandbox.matins(&["pool", "resize", "io", "7"]).succeeds().says("7 workers per node");
    sandbox.matins(&["pool", "resume", "io"]).succeeds().says("io is open");
    sandbox.matins(&["pool", "resize", "io", "default"]).succeeds();
    sandbox.matins(&["freeze", "--reason", "repair"]).succeeds();
    let shown = sandbox.matins(&["status"]).succeeds().says("frozen").says("repair");
    shown.complains("matins thaw").complains("matins alert list");
    sandbox.matins(&["thaw"]).succeeds();
    let secret = sandbox.matins(&["token", "create", "ci", "--role", "viewer"]).succeeds().line();
    assert!(secret.len() > 30);
    let list = sandbox.matins(&["token", "list"]).succeeds().says("ci");
    assert!(!list.out.contains(&secret));
    sandbox.matins(&["token", "revoke", "ci"]).succeeds();
    sandbox.matins(&["token", "revoke", "ci"]).fails_with(3);
}

#[test]
fn migrations_by_hand() {
    let sandbox = Sandbox::with_config("migrate: manual\n");
    sandbox.matins(&["migrate", "--dry-run"]).succeeds().says("CREATE TABLE");
    assert!(!sandbox.file(".matins/matins.db").exists());
    sandbox.matins(&["enqueue", "x"]).fails_with(4).complains("matins migrate");
    sandbox.matins(&["migrate"]).succeeds().says("applied 1");
    sandbox.matins(&["migrate"]).succeeds().says("up to date");
    sandbox.enqueue(&["x"]);
}

#[test]
fn the_doctor_looks_at_everything() {
    let sandbox = Sandbox::with_config("listen: 127.0.0.1:0\n");
    sandbox.enqueue(&["x"]);
    let done = sandbox.matins(&["doctor"]).succeeds();
    for check in [
        "clock",
        "time zones",
        "runner",
        "permissions",
        "disk space",
        "disk speed",
        "port",
        "store",
        "heartbeat",
        "commands",
        "alerts",
    ] {
        assert!(done.out.contains(check), "{check} is not in {}", done.out);
    }
    let json = sandbox.matins(&["doctor", "--json"]).succeeds().json();
    let checks = json["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 11);
    for check in checks {
        assert!(
            check["verdict"] == "ok" || !check["hints"].as_array().unwrap().is_empty(),
            "no hint: {check}"
        );
    }
}

/// On a terminal that does not know its size, or is tiny, too; `q` ends it and gives the screen back.
#[test]
fn top_shows_frames_until_q() {
    let sandbox = Sandbox::new();
    sandbox.enqueue(&["x"]);
    sandbox.matins(&["top", "--once"]).succeeds().says("nothing runs").says("1 pending");
    // Into a pipe it is one frame.
    sandbox.matins(&["top"]).succeeds().says("1 pending");
    for every in ["nan", "-1", "1e400", ""] {
        sandbox.matins(&["top", "--every", every]).fails_with(2);
    }
    let matins = sandbox.command(&[]).get_program().to_string_lossy().into_owned();
    std::thread::scope(|scope| {
        for (rows, columns) in [(0, 0), (1, 1), (1, 300), (2, 1), (24, 80)] {
            let (sandbox, matins) = (&sandbox, &matins);
            scope.spawn(move || {
                let top = format!("stty rows {rows} cols {columns}; {matins} top --every 0.3");
                let shown = on_a_terminal(sandbox, &top);
                // Two rows have room for one line.
                assert!(rows == 2 || shown.contains("1 pending"), "{shown}");
                assert!(shown.contains("q: end"), "{shown}");
                assert!(shown.contains("\u{1b}[?1049l"), "the screen is given back: {shown}");
            });
        }
    });
}

/// What a terminal is sent by a command line, at which `q` is pressed after a while.
fn on_a_terminal(sandbox: &Sandbox, line: &str) -> String {
    let line = format!("(sleep 2; printf q) | script -qec '{line}' /dev/null");
    let command = sandbox.command(&[]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]).current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let output = shell.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !shown.contains("panicked"), "{shown}");
    shown
}

#[test]
fn every_command_explains_itself() {
    let sandbox = Sandbox::new();
    sandbox.matins(&["--help"]).succeeds().says("Exit codes");
    sandbox.matins(&["--version"]).succeeds().says(env!("CARGO_PKG_VERSION"));
    for words in [
        "serve",
        "init",
        "check",
        "migrate",
        "status",
        "top",
        "doctor",
        "audit",
        "watch",
        "enqueue",
        "run",
        "list",
        "show",
        "output",
        "why",
        "cancel",
        "retry",
        "rerun",
        "dead list",
        "dead show",
        "dead replay",
        "dead dismiss",
        "schedule list",
        "schedule show",
        "schedule set",
        "schedule remove",
        "schedule pause",
        "schedule resume",
        "schedule trigger",
        "schedule backfill",
        "schedule preview",
        "schedule history",
        "pool list",
        "pool pause",
        "pool resume",
        "pool resize",
        "freeze",
        "thaw",
        "ledger show",
        "ledger forget",
        "node list",
        "node forget",
        "token create",
        "token list",
        "token revoke",
        "version",
        "completions",
        "openapi",
    ] {
        let mut args: Vec<&str> = words.split(' ').collect();
        args.push("--help");
        sandbox.matins(&args).succeeds().says("Usage:");
    }
}

#[test]
fn a_label_that_does_not_exist_is_told_with_the_nearest() {
    let sandbox = Sandbox::new();
    let set = |args: &[&str]| sandbox.matins(&[&["schedule", "set"], args].concat()).succeeds();
    set(&["night", "--cron", "0 2 * * *", "--timezone", "Asia/Shanghai", "--type", "x"]);
    let told = |name: &str, label: &str, near: &str| {
        let told = sandbox.matins(&["schedule", "trigger", name, "--for", label]).fails_with(2);
        told.complains(label).complains(near);
    };
    let near = "the nearest are 2024-01-14T02:00:00 and 2024-01-15T02:00:00";
    told("night", "2024-01-15T01:30:00", near);
    told("night", "2024-01-14T18:00:00Z", near);
    let near = "the nearest are 2024-01-15T02:00:00 and 2024-01-16T02:00:00";
    told("night", "2024-01-15T02:30:00", near);
    set(&["hours", "--cron", "0 * * * *", "--timezone", "UTC", "--type", "x"]);
    let near = "the nearest are 2024-01-15T01:00:00Z and 2024-01-15T02:00:00Z";
    told("hours", "2024-01-15T02:00:00", near);
    told("hours", "2024-01-15T01:59:59Z", near);
}

#[test]
fn a_trigger_whose_key_is_taken_says_that_nothing_is_run() {
    let sandbox = Sandbox::new();
    let set = ["schedule", "set", "s", "--cron", "0 2 * * *", "--type", "command", "--key", "k"];
    let payload = ["--payload", r#"{"argv":["true"]}"#];
    sandbox.matins(&[set.as_slice(), &payload].concat()).succeeds();
    let trigger = || sandbox.matins(&["schedule", "trigger", "s"]).succeeds();
    let first = trigger();
    assert!(!first.err.contains("deduplicated"), "{first:?}");
    let again = trigger().complains("deduplicated").complains("taken by this task, which is ready");
    assert_eq!(again.line(), first.line());
    let server = sandbox.serve(&[]);
    sandbox.until_state(&first.line(), "completed");
    trigger().complains("deduplicated").complains("has completed before");
    assert_eq!(server.stop(), Some(0));
}
