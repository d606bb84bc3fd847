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

/// At 3 a.m. the file may be what somebody just broke.
#[test]
fn a_broken_file_stops_nobody_who_names_the_store() {
    let sandbox = Sandbox::with_config("store: sqlite:kept.db\n");
    let id = sandbox.enqueue(&["nobody"]);
    let broken = "store: sqlite:kept.db\ntask_pool: {}\n";
    sandbox.write("matins.yaml", broken);
    let looking: [&[&str]; 8] = [
        &["status"],
        &["list"],
        &["show", &id],
        &["why", &id],
        &["dead", "list"],
        &["schedule", "list"],
        &["pool", "list"],
        &["doctor"],
    ];
    for args in looking {
        let refused = sandbox.matins(args).fails_with(2);
        refused.complains("matins.yaml:2:1: task_pool: unknown key").complains("name it: --store");
        let named = [args, &["--store", "sqlite:kept.db"]].concat();
        let told = sandbox.matins(&named);
        let told = if args == ["doctor"] { told } else { told.succeeds() };
        told.complains("warning: ").complains("task_pool: unknown key").complains("matins check");
        let mut command = sandbox.command(args);
        let told = done(&command.env("MATINS_STORE", "sqlite:kept.db").output().unwrap());
        told.complains("goes on without the file");
    }
    sandbox.matins(&["why", &id, "--store", "sqlite:kept.db"]).succeeds().says("no_worker");
    let listed = sandbox.matins(&["list", "--json", "--store", "sqlite:kept.db"]).succeeds().json();
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 1);
    sandbox.matins(&["cancel", &id, "--store", "sqlite:kept.db"]).succeeds();
    // What goes by the words of the file does not go by half of them.
    let by_the_file: [&[&str]; 5] = [
        &["enqueue", "nobody"],
        &["check"],
        &["serve"],
        &["run", "--", "true"],
        &["schedule", "set", "x", "--cron", "@daily", "--type", "nobody"],
    ];
    for args in by_the_file {
        let (own, rest) = args.split_at(1);
        let all = [own, &["--store", "sqlite:kept.db"], rest].concat();
        let code = if args[0] == "run" { 125 } else { 2 };
        sandbox.matins(&all).fails_with(code).complains("task_pool: unknown key");
    }
    sandbox.matins(&["version"]).succeeds();
    // What is wrong with the flag itself is no matter of the file.
    let told = sandbox.matins(&["list", "--store", "mysql://x"]).fails_with(2);
    told.complains("--store: store: a mysql store is not available");
}

#[test]
fn a_server_is_asked_beside_a_broken_file() {
    let sandbox = Sandbox::with_config("store: sqlite:kept.db\n");
    let server = sandbox.serve(&[]);
    sandbox.write("matins.yaml", "nonsense: [\n");
    let told = sandbox.matins(&["status", "--server", &server.url]).succeeds();
    told.complains("warning: ").says("dead letters");
}

#[test]
fn a_reference_that_leads_nowhere_is_named() {
    let sandbox = Sandbox::with_config("store: env:NO_SUCH_DATABASE_URL\n");
    let told = sandbox.matins(&["list"]).fails_with(2);
    let told = told.complains("store: the environment has no NO_SUCH_DATABASE_URL");
    told.complains("export NO_SUCH_DATABASE_URL=");
}

#[test]
fn a_mistyped_type_is_told_with_the_one_that_was_meant() {
    let sandbox = Sandbox::with_config(
        "task_pools: {p: {max_workers: 1, task_types: [sync_ordres]}}
tasks: {sync_orders: {executor: command, command: [\"true\"]}}
schedules: {nightly: {schedule: '@daily', timezone: UTC, type: sync_order}}
",
    );
    let told = sandbox.matins(&["check"]).succeeds();
    let told =
        told.says("task_types: sync_ordres is not defined under tasks: did you mean sync_orders?");
    told.says("type: sync_order is not defined under tasks: did you mean sync_orders?");
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
