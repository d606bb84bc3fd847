use std::process::Stdio;

use crate::sandbox::{Sandbox, done};

#[test]
fn a_mistake_is_shown_where_it_is() {
    let sandbox = Sandbox::with_config("task_pools:\n  io_pool:\n    max_workers: 0\n");
    let done = sandbox.matins(&["check"]).fails_with(2);
    let expected = format!(
        "error: {}:2:3: task_pools.io_pool: the key task_types is missing: expected the types \
         whose tasks go to this pool, or []
  |
2 |   io_pool:
  |   ^^^^^^^

error: {0}:3:18: task_pools.io_pool.max_workers: expected a whole number from 1 to 10000, got 0
  |
3 |     max_workers: 0
  |                  ^
",
        sandbox.file("matins.yaml").canonicalize().unwrap().display()
    );
    let shown = done.err.replace("/private", "");
    assert_eq!(shown, expected);
    assert_eq!(done.out, "");
}

#[test]
fn what_this_build_cannot_do_is_refused_and_named() {
    for (text, complaint) in [
        ("redis: redis://localhost", "redis: needs a PostgreSQL store"),
        (
            "store: mysql://x/y",
            "a mysql store is not available in this build; available: sqlite, postgres",
        ),
        ("tasks: {a: {executor: agent}}", "the executor agent is not available in this build"),
    ] {
        let sandbox = Sandbox::with_config(text);
        sandbox.matins(&["serve"]).fails_with(2).complains(complaint);
        assert!(!sandbox.file(".matins").exists(), "nothing may be made for {text}");
    }
}

#[test]
fn init_writes_what_check_accepts_and_never_overwrites() {
    let sandbox = Sandbox::new();
    sandbox.matins(&["init"]).succeeds().says("wrote matins.yaml");
    sandbox.matins(&["check"]).succeeds().says("the configuration can be used");
    sandbox.matins(&["init"]).fails_with(1).complains("stays as it is");
    sandbox.matins(&["init", "--stdout"]).succeeds().says("task_pools:");
    sandbox.matins(&["init", "--reference"]).succeeds().says("| `max_workers` |");
}

#[test]
fn check_says_what_its_owner_may_not_expect() {
    let sandbox = Sandbox::with_config(
        "task_pools: {p: {max_workers: 1, task_types: [db_query, other]}}
tasks: {here: {executor: command, command: [./no.sh], cwd: nowhere}}
schedules:
  both: {schedule: '0 0 13 * 5', type: here}
  gone: {schedule: '@at 2020-01-01T09:00', type: here, timezone: Asia/Shanghai}
  gap: {schedule: '30 2 * * *', type: elsewhere, timezone: Europe/Berlin, pool: q}
auth: {tokens: {a: {token: plain-text-token-of-some-length, role: viewer}}}
listen: 0.0.0.0:6284
",
    );
    let done = sandbox.matins(&["check"]).succeeds();
    for part in [
        "note: task_pools.p.task_types: other is not defined under tasks",
        "warning: tasks.here.cwd: the folder",
        "note: tasks.here: is in no pool and goes to default",
        "warning: schedules.both.schedule: fires when the day of the month (13) or the weekday (5)",
        "note: schedules.both.timezone: not given: UTC",
        "warning: schedules.gone.schedule: will never fire again",
        "note: schedules.gap.schedule: in Europe/Berlin the clock",
        "warning: schedules.gap.type: elsewhere is not defined",
        "warning: schedules.gap.pool: there is no pool q",
        "warning: auth.tokens.a.token: stands in the file itself",
        "warning: listen: is reached without encryption",
        "warning: alerts: no alert channel: nobody will be told",
    ] {
        assert!(done.out.contains(part), "{part:?} is not in {}", done.out);
    }
    assert!(!done.out.contains("plain-text-token"), "a secret is shown");
    let json = sandbox.matins(&["check", "--json"]).succeeds().json();
    assert!(json["findings"].as_array().unwrap().len() > 10);
    assert_eq!(json["schedules"][0]["next_fires"].as_array().unwrap().len(), 3);
}

#[test]
fn the_file_is_found_above_and_paths_start_from_it() {
    let sandbox = Sandbox::with_config("store: sqlite:kept.db\n");
    std::fs::create_dir_all(sandbox.file("a/b")).unwrap();
    let mut command = sandbox.command(&["enqueue", "x"]);
    done(&command.current_dir(sandbox.file("a/b")).output().unwrap()).succeeds();
    assert!(sandbox.file("kept.db").exists());
}

#[test]
fn flags_beat_the_environment_which_beats_the_file() {
    let sandbox = Sandbox::with_config("store: sqlite:file.db\n");
    let run = |args: &[&str]| {
        let mut command = sandbox.command(args);
        done(&command.env("MATINS_STORE", "sqlite:env.db").output().unwrap()).succeeds()
    };
    run(&["enqueue", "x"]);
    assert!(sandbox.file("env.db").exists() && !sandbox.file("file.db").exists());
    run(&["enqueue", "x", "--store", "sqlite:flag.db"]);
    run(&["--store", "sqlite:flag.db", "enqueue", "x"]);
    let list = run(&["list", "--store", "sqlite:flag.db", "--json"]).json();
    assert_eq!(list["tasks"].as_array().unwrap().len(), 2);
    let mut command = sandbox.command(&["list", "-c", "other.yaml"]);
    let told = done(&command.stdin(Stdio::null()).output().unwrap());
    told.fails_with(2).complains("other.yaml: there is no such file");
}

#[test]
fn a_mistake_outside_the_file_names_its_place() {
    let sandbox = Sandbox::new();
    sandbox
        .matins(&["list", "--store", "mysql://x"])
        .fails_with(2)
        .complains("--store: store: a mysql store is not available in this build");
    let mut command = sandbox.command(&["serve"]);
    let told = done(&command.env("MATINS_LEASE", "soon").output().unwrap());
    told.fails_with(2).complains("environment variable MATINS_LEASE: lease: expected a duration");
}
