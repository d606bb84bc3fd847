//! Alerts of several nodes on one database: who tells, and what is told of nodes.

use std::thread;

use matins_e2e::alerts::{dead_letters_told, die, ok, told, webhook};
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Stub, eventually, holds_for, json, together};
use matins_testbed::{Postgres, Redis};

#[test]
fn nodes() {
    together(&[
        ("each alert is told once, whoever tells", once),
        ("a node that is gone", gone),
        ("all schedulers are gone", no_scheduler),
        ("Redis is lost and back", redis),
        ("a schedule that nobody fires", overdue),
    ]);
}

fn database() -> (String, String) {
    let url = Postgres::shared().database("template1");
    let name = url.rsplit('/').next().expect("a name").to_owned();
    (url, name)
}

fn config(url: &str, stub: &Stub, more: &str) -> String {
    format!(
        "store: {url}\nallow_commands: any\nalerts: {{channels: {{ops: {}}}{more}}}\n",
        webhook(stub)
    )
}

/// Rules without those that the kills of this test are told under.
const QUIET: &str = ", rules: {worker_lost: {enabled: false}, heartbeat: {enabled: false}}";

fn once() {
    let (url, _) = database();
    let stub = ok();
    let mut servers: Vec<Server> =
        (0..2).map(|_| Server::with(&config(&url, &stub, QUIET))).collect();
    let mut all = 0;
    for round in 0..6 {
        let up = if round == 2 { 1 } else { round % 2 };
        die(&servers[up].api(), &format!("type-{round}"), 20);
        all += 20;
        eventually("it is told", seconds(60.0), || (dead_letters_told(&stub) >= all).then_some(()));
        assert_eq!(dead_letters_told(&stub), all, "round {round}: {:?}", told(&stub));
        // Whoever tells: it is one of the two. A restart hands over, and so does a kill.
        match round {
            1 => drop(servers[0].stop(seconds(30.0))),
            2 => servers[0].start(),
            3 => servers[1].restart(),
            _ => {}
        }
    }
    holds_for("nothing is told twice", seconds(7.0), || dead_letters_told(&stub) == all);
}

fn gone() {
    let (url, _) = database();
    let stub = ok();
    let rules = ", rules: {heartbeat: {after: 6s}}";
    let with = |name: &str| {
        let config = format!("lease: 3s\nnode_id: {name}\n{}", config(&url, &stub, rules));
        Server::with(&config)
    };
    let (_stays, mut leaves, mut dies) = (with("stays"), with("leaves"), with("dies"));
    // Nobody misses one that was there for a moment: the others look each ten seconds.
    thread::sleep(seconds(28.0));
    leaves.stop(seconds(30.0));
    dies.kill();
    eventually("it is told", seconds(60.0), || (stub.count() == 1).then_some(()));
    dies.start();
    eventually("it is back", seconds(60.0), || (stub.count() == 2).then_some(()));
    holds_for("no word of the one that said good-bye", seconds(8.0), || stub.count() == 2);
    let about = |over: bool| ("heartbeat".to_owned(), "dies".to_owned(), u64::from(!over), over);
    assert_eq!(told(&stub), [about(false), about(true)]);
}

/// Nodes that only work tell that nobody schedules.
fn no_scheduler() {
    let (url, _) = database();
    let stub = ok();
    let rules = ", rules: {heartbeat: {after: 5s}, no_worker: {enabled: false}}";
    let with = |role: &str| {
        let config = format!("heartbeat: 1s\n{}", config(&url, &stub, rules));
        Server::builder().config(&config).argument("--role").argument(role).start()
    };
    let (mut scheduler, worker) = (with("api,scheduler"), with("api,worker"));
    holds_for("nothing is told", seconds(12.0), || stub.count() == 0);
    let figures = worker.api().metric("matins_dead_letters", "");
    assert_eq!(figures, Some(0.0), "figures are the same on all nodes");
    scheduler.stop(seconds(30.0));
    eventually("it is told", seconds(60.0), || (stub.count() == 1).then_some(()));
    scheduler.start();
    eventually("it is back", seconds(60.0), || (stub.count() == 2).then_some(()));
    let about =
        |over: bool| ("heartbeat".to_owned(), "scheduler".to_owned(), u64::from(!over), over);
    assert_eq!(told(&stub), [about(false), about(true)]);
    die(&worker.api(), "sync", 3);
    eventually("figures move", seconds(30.0), || {
        worker.api().metric("matins_dead_letters", "").filter(|n| *n > 2.5)
    });
}

fn redis() {
    let (url, _) = database();
    let (stub, mut redis) = (ok(), Redis::start(&[]));
    let with = || Server::with(&format!("redis: {}\n{}", redis.url(), config(&url, &stub, "")));
    let _servers = [with(), with()];
    thread::sleep(seconds(3.0));
    redis.kill();
    eventually("it is told", seconds(60.0), || (stub.count() >= 1).then_some(()));
    thread::sleep(seconds(5.0));
    redis.start_again();
    eventually("it is back", seconds(60.0), || told(&stub).iter().any(|told| told.3).then_some(()));
    holds_for("once", seconds(8.0), || stub.count() == 2);
    let told = told(&stub);
    assert!(told.iter().all(|told| told.0 == "redis" && told.1.contains("127.0.0.1")), "{told:?}");
}

/// Somebody broke it so that every plan is refused: the loop turns, and the schedule stands still.
fn overdue() {
    let (url, name) = database();
    let stub = ok();
    let rules = ", rules: {overdue: {after: 5s}, stalled: {enabled: false}}";
    let every = "schedules:\n  tick: {schedule: \"* * * * * *\", type: command, timezone: UTC, \
                 grace: 1s, payload: {argv: [\"true\"]}}\n";
    let server = Server::with(&format!("{every}{}", config(&url, &stub, rules)));
    let api = server.api();
    eventually("it fires", seconds(30.0), || (api.occurrences("tick").len() > 1).then_some(()));
    let sql = |text: &str| Postgres::shared().sql(&name, text);
    let hold = Postgres::shared()
        .session(&name, "BEGIN; SELECT 1 FROM matins.schedule WHERE name = 'tick' FOR UPDATE");
    eventually("it is told", seconds(120.0), || (stub.count() >= 1).then_some(()));
    assert_eq!(told(&stub)[0].0, "overdue");
    assert_eq!(told(&stub)[0].1, "tick");
    drop(hold);
    eventually("it is over", seconds(60.0), || {
        told(&stub).iter().any(|told| told.0 == "overdue" && told.3).then_some(())
    });
    assert!(!sql("SELECT 1").is_empty() && !json!(told(&stub)).is_null());
}
