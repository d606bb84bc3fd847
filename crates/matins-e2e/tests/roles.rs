//! Nodes with one role each on one database: what a node is not, it does not do.

use std::thread;

use matins_e2e::wait::{holds_for, seconds};
use matins_e2e::{Server, eventually, json, together};
use matins_testbed::Postgres;

#[test]
fn roles() {
    together(&[
        ("each node does what its role says", each_its_own),
        ("a lost remote worker is noticed without local ones", reaped_without_workers),
    ]);
}

const MARKS: &str = "allow_commands: any\npoll: 200ms\nschedules:\n  \
    mark: {schedule: \"* * * * * *\", type: command, timezone: UTC, overlap: allow, \
    payload: {shell: \"true\"}}\n";

/// A node of this role; only one with `api` can be waited for.
fn node(url: &str, role: &str) -> Server {
    let config = format!("store: {url}\n{MARKS}");
    Server::builder().config(&config).argument("--role").argument(role).prepare()
}

fn fired(api: &matins_e2e::Api) -> usize {
    api.occurrences("mark").iter().filter(|one| one["outcome"] == "fired").count()
}

fn each_its_own() {
    let url = Postgres::shared().database("template1");
    let mut door = node(&url, "api");
    door.start();
    let api = door.api();
    let (witness, shell) = (door.witness.clone(), door.witness.shell("true"));
    let enqueue = || api.shell(&shell, &json!({})).id().to_owned();
    let first = enqueue();
    holds_for("an api node fires and runs nothing", seconds(3.0), || {
        api.get("/schedules/mark").status == 404 && api.task(&first).state() == "pending"
    });

    let mut clock = node(&url, "scheduler");
    clock.spawn();
    eventually("a scheduler node fires", seconds(30.0), || {
        (api.get("/schedules/mark").status == 200 && fired(&api) >= 2).then_some(())
    });
    holds_for("and runs nothing", seconds(2.0), || {
        api.list("state=pending").len() >= 2
            && api.list("state=completed").is_empty()
            && api.list("state=running").is_empty()
    });
    assert!(witness.begins(&first).is_empty());

    let mut hands = node(&url, "worker");
    hands.spawn();
    api.wait_state(&first, "completed", seconds(30.0));
    assert_eq!(witness.ends(&first).len(), 1, "once");

    clock.stop(seconds(30.0));
    eventually("what had fired is run", seconds(30.0), || {
        api.list("state=pending").is_empty().then_some(())
    });
    let before = fired(&api);
    thread::sleep(seconds(3.0));
    assert_eq!(fired(&api), before, "a worker node fires nothing");
    let last = enqueue();
    api.wait_state(&last, "completed", seconds(30.0));
    for (server, listens) in [(&door, true), (&hands, false)] {
        assert_eq!(server.ready(), listens, "only the api listens");
    }
    let workers = api.get("/workers").expect(200).json();
    assert_eq!(workers["workers"].as_array().map(Vec::len), Some(2), "{workers}");
}

/// The claims of remote workers lapse where nodes only schedule.
fn reaped_without_workers() {
    let url = Postgres::shared().database("template1");
    let config = format!("store: {url}\nlease: 3s\npoll: 200ms\n");
    let server =
        Server::builder().config(&config).argument("--role").argument("api,scheduler").start();
    let api = server.api();
    let id = api.enqueue(&json!({"type": "far", "payload": null})).id().to_owned();
    let claim = json!({"worker": "far-1", "types": ["far"], "max": 1, "wait": 0});
    let claimed = api.post("/workers/claim", &claim).expect(200).json();
    assert_eq!(claimed["tasks"][0]["id"], json!(id), "{claimed}");
    let task = api.wait_state(&id, "pending", seconds(40.0));
    assert_eq!(task.number("losses"), 1);
}
