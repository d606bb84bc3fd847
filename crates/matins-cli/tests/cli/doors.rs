use crate::sandbox::{Sandbox, done, until};

const CONFIG: &str = "
task_pools: {io: {max_workers: 2, task_types: [ok, bad]}}
tasks:
  ok: {executor: command, shell: \"echo '{\\\"n\\\": 9007199254740993}'\"}
  bad: {executor: command, shell: \"echo broken >&2; exit 9\", max_retries: 0}
schedules: {yearly: {schedule: \"0 0 1 1 *\", timezone: Asia/Shanghai, type: ok}}
";

#[test]
fn both_doors_answer_with_the_same_bytes() {
    let sandbox = Sandbox::with_config(CONFIG);
    let server = sandbox.serve(&[]);
    let ok = sandbox.enqueue(&["ok", "--key", "k 1/2"]);
    let bad = sandbox.enqueue(&["bad"]);
    sandbox.until_state(&ok, "completed");
    sandbox.until_state(&bad, "failed");
    sandbox.matins(&["schedule", "trigger", "yearly"]).succeeds();
    until(|| {
        let page = sandbox.matins(&["list", "--state", "completed", "--json"]).json();
        (page["tasks"].as_array()?.len() == 2).then_some(())
    });
    for args in [
        ["list"].as_slice(),
        &["list", "--state", "failed", "-n", "1"],
        &["show", &ok],
        &["show", &bad],
        &["why", &bad],
        &["dead", "list"],
        &["dead", "list", "--by-error"],
        &["dead", "show", &bad],
        &["dead", "replay", "--all", "--dry-run"],
        &["schedule", "list"],
        &["schedule", "show", "yearly"],
        &["schedule", "history", "yearly"],
        &["schedule", "preview", "--cron", "@daily", "--after", "2026-01-01T00:00:00Z"],
        &["ledger", "show", "ok", "k 1/2"],
        &["token", "list"],
        &["show", "01890000-0000-7000-8000-000000000000"],
    ] {
        let mut args = args.to_vec();
        args.push("--json");
        let local = sandbox.matins(&args);
        args.extend(["--server", &server.url]);
        let http = sandbox.matins(&args);
        assert_eq!(local.out, http.out, "{args:?}");
        assert_eq!(local.code, http.code, "{args:?}");
        assert!(local.json().is_object());
    }
    let raw = |args: &[&str]| sandbox.matins(args).succeeds().out;
    assert_eq!(raw(&["output", &bad]), "broken\n");
    assert_eq!(raw(&["output", &bad, "--server", &server.url]), "broken\n");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn over_http_the_token_decides() {
    let sandbox = Sandbox::with_config(CONFIG);
    let server = sandbox.serve(&[]);
    // Found by itself beside the store, for a server on this machine.
    sandbox.matins(&["status", "--server", &server.url]).succeeds();
    let ask = |args: &[&str], token: &str| {
        let mut command = sandbox.command(args);
        command.env("MATINS_SERVER", &server.url).env("MATINS_TOKEN", token);
        done(&command.output().unwrap())
    };
    ask(&["list"], "wrong")
        .fails_with(1)
        .complains("the token is not known")
        .complains("MATINS_TOKEN");
    let viewer = sandbox.matins(&["token", "create", "v", "--role", "viewer"]).succeeds().line();
    until(|| (ask(&["list"], &viewer).code == Some(0)).then_some(()));
    ask(&["freeze", "--reason", "x"], &viewer).fails_with(1).complains("has the role viewer");
    // A folder without the token file knows none.
    let elsewhere = Sandbox::new();
    elsewhere
        .matins(&["list", "--server", &server.url])
        .fails_with(1)
        .complains("a token is needed")
        .complains("MATINS_TOKEN")
        .complains(".matins/token");
}

#[test]
fn dead_letters_are_replayed_and_dismissed() {
    let sandbox = Sandbox::with_config(
        "tasks: {t: {executor: command, shell: \"test -e good && echo 1\", max_retries: 0}}",
    );
    let server = sandbox.serve(&[]);
    let ids: Vec<String> = (0..4).map(|_| sandbox.enqueue(&["t"])).collect();
    for id in &ids {
        sandbox.until_state(id, "failed");
    }
    let groups = sandbox.matins(&["dead", "list", "--by-error", "--json"]).succeeds().json();
    assert_eq!(groups["groups"][0]["count"], 4);
    let fingerprint = groups["groups"][0]["fingerprint"].as_str().unwrap();
    sandbox
        .matins(&["dead", "replay", "--error", fingerprint, "--dry-run"])
        .succeeds()
        .says("would replay 4 dead letters");
    sandbox
        .matins(&["dead", "replay", "--all", "--canary"])
        .fails_with(1)
        .complains("did not complete");
    sandbox.write("good", "");
    sandbox.matins(&["dead", "replay", &ids[0]]).succeeds().says("1 of 1 replayed");
    sandbox.until_state(&ids[0], "completed");
    let dismissed = sandbox.matins(&["dead", "dismiss", &ids[1], "--reason", "not needed"]);
    dismissed.succeeds().says("1 dismissed");
    sandbox.matins(&["dead", "dismiss", &ids[1], "--reason", "twice"]).fails_with(1);
    sandbox.matins(&["dead", "replay", "--all", "--canary"]).succeeds().says("2 of 2 replayed");
    assert_eq!(server.stop(), Some(0));
    assert_eq!(sandbox.task(&ids[1])["dismissed"]["reason"], "not needed");
}

#[test]
fn without_a_server_a_replay_is_carried_out_here() {
    let sandbox = Sandbox::new();
    sandbox.matins(&["run", "--", "false"]).fails_with(1);
    sandbox.matins(&["run", "--", "false"]).fails_with(1);
    sandbox.matins(&["dead", "replay", "--all"]).succeeds().says("2 of 2 replayed");
    let pending = sandbox.matins(&["list", "--state", "pending", "--json"]).json();
    assert_eq!(pending["tasks"].as_array().unwrap().len(), 2);
}
