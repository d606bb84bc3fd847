//! Nobody is told twice of one thing, nor of what is being caught up: a planned restart is no
//! matter, and an outage is one.

use std::fmt::Write as _;

use jiff::SignedDuration;
use matins_e2e::alerts::{ok, told, webhook};
use matins_e2e::wait::seconds;
use matins_e2e::{Server, clock, eventually, holds_for, json, together};
use matins_testbed::{Postgres, Redis};

#[test]
fn an_outage_is_one_matter() {
    together(&[
        ("PostgreSQL away", || outage(None, "", 1)),
        ("PostgreSQL away, Redis there", || outage(Some(&keeping()), "", 3)),
        ("and nothing runs from Redis", || {
            outage(Some(&keeping()), "redis_mirror: off\n", 1);
        }),
        ("the one who tells is killed", killed_teller),
        ("Redis away, too, and back last", || both_away(Last::Redis)),
        ("Redis away, too, and back first", || both_away(Last::Postgres)),
    ]);
}

/// More schedules than are fired in one pass.
const SCHEDULES: usize = 1_500;
/// Tasks that wait for the one slot of their pool.
const TASKS: usize = 60;

/// Tasks that take their turns.
const NARROW: &str = "task_pools: {narrow: {max_workers: 1, task_types: [slow]}}\n\
                      tasks: {slow: {executor: command, command: [sleep, '0.05']}}\n";

/// What came due while nobody was there is late by hours when the server is back.
#[test]
fn a_planned_restart_is_no_matter() {
    let stub = ok();
    let mut config = format!(
        "alerts: {{channels: {{ops: {}}}, rules: {{missed: {{enabled: false}}}}}}\n\
         {NARROW}schedules:\n",
        webhook(&stub)
    );
    // Far from now, so that nothing fires before.
    let due = clock::now() + SignedDuration::from_mins(30);
    let minute = due.strftime("%M");
    for n in 0..SCHEDULES {
        let _ = writeln!(
            config,
            "  s{n}: {{schedule: '{minute} * * * *', timezone: UTC, catch_up: none, type: slow}}"
        );
    }
    let mut server = Server::builder().clock("+0").config(&config).start();
    for _ in 0..TASKS {
        server.api().enqueue(&json!({"type": "slow", "run_at": due.to_string()}));
    }
    server.stop(seconds(30.0));
    server.clock().set("+2h");
    server.start();
    let api = server.api();
    eventually("all is caught up", seconds(60.0), || {
        let status = api.get("/status").expect(200).json();
        (status["schedules_overdue"] == 0 && status["tasks"]["completed"] == TASKS).then_some(())
    });
    // Longer than it is between two looks.
    holds_for("nobody is told", seconds(25.0), || stub.count() == 0);
    server.assert_no_panic();
}

/// A Redis that keeps what it is told.
fn keeping() -> Redis {
    Redis::start(&["--appendonly", "yes"])
}

/// What the file of each node of a pair of stores has.
fn place(postgres: &Postgres, redis: Option<&Redis>) -> String {
    format!(
        "store: {}\n{}lease: 3s\nheartbeat: 1s\nallow_commands: any\n",
        postgres.url("postgres"),
        redis.map(|redis| format!("redis: {}\n", redis.url())).unwrap_or_default()
    )
}

/// That PostgreSQL is away, or back, as it is told.
fn about(rule: &str, over: bool) -> (String, String, u64, bool) {
    (rule.to_owned(), "postgres".to_owned(), u64::from(!over), over)
}

/// Rules under which much could be told if what stands still in an outage were held against anybody.
const EAGER: &str = "rules: {overdue: {after: 3s}, backlog: {after: 3s}, heartbeat: {after: 5s}, \
                     no_worker: {after: 3s}, canary: {after: 5s}}";

/// Schedules stand still, tasks wait, canaries do not come back, another node is not seen: it is
/// told that the database is away and that it is back. Where nodes can agree through Redis, all of
/// them together tell it once.
fn outage(redis: Option<&Redis>, more: &str, tellers: usize) {
    let (postgres, stub) = (Postgres::start(&[]), ok());
    let place = place(&postgres, redis) + more;
    let config = format!(
        "{place}canary: 5s\nalerts: {{channels: {{ops: {}}}, {EAGER}}}\nschedules:\n  tick: \
         {{schedule: '* * * * * *', type: command, timezone: UTC, grace: 1s, payload: {{argv: \
         ['true']}}}}\n{NARROW}",
        webhook(&stub)
    );
    let tellers: Vec<Server> = (0..tellers).map(|_| Server::with(&config)).collect();
    // Whoever has no channels leaves it to those who have.
    let _mute = Server::with(&place);
    // All have been seen for longer than somebody who only passes by: they look each ten seconds.
    std::thread::sleep(seconds(25.0));
    for _ in 0..25 {
        tellers[0].api().enqueue(&json!({"type": "slow", "delay": "8s"}));
    }
    assert!(told(&stub).is_empty(), "all is well: {:?}", told(&stub));
    postgres.stop("immediate");
    let rule = if redis.is_some() { "outage" } else { "store" };
    eventually("it is told", seconds(60.0), || (stub.count() > 0).then_some(()));
    // Longer than a canary may take, and than it takes the others to get the right to tell.
    holds_for("once", seconds(30.0), || told(&stub) == [about(rule, false)]);
    postgres.start_again();
    eventually("its end is told", seconds(60.0), || (stub.count() > 1).then_some(()));
    let both = [about(rule, false), about(rule, true)];
    holds_for("and nothing else", seconds(30.0), || told(&stub) == both);
    for teller in &tellers {
        teller.assert_no_panic();
    }
}

/// Whoever dies with the right to tell, having told or not, silences the others for a while only.
fn killed_teller() {
    let (postgres, redis, stub) = (Postgres::start(&[]), keeping(), ok());
    let alerts = format!("alerts: {{channels: {{ops: {}}}}}\n", webhook(&stub));
    let config = place(&postgres, Some(&redis)) + &alerts;
    let with = |n| Server::with(&format!("node_id: node-{n}\n{config}"));
    let mut nodes: Vec<Server> = (0..3).map(with).collect();
    postgres.stop("immediate");
    let first = eventually("one has the right to tell", seconds(60.0), || {
        let teller = redis.ask(&["get", "matins:outage:teller"]);
        (0..nodes.len()).find(|n| teller == format!("node-{n}"))
    });
    nodes[first].kill();
    // What it sent last may be on its way.
    std::thread::sleep(seconds(2.0));
    let killed = stub.count();
    assert!(killed <= 1, "{:?}", told(&stub));
    eventually("another tells", seconds(60.0), || (stub.count() > killed).then_some(()));
    postgres.start_again();
    let over = || told(&stub).contains(&about("outage", true));
    eventually("its end is told", seconds(60.0), || over().then_some(()));
    let once_more = vec![about("outage", false); killed + 1];
    let all = [once_more, vec![about("outage", true)]].concat();
    holds_for("and nothing else", seconds(25.0), || {
        let mut told = told(&stub);
        told.retain(|told| told.0 == "outage");
        told == all
    });
}

#[derive(Clone, Copy)]
enum Last {
    Postgres,
    Redis,
}

/// Without either server nobody knows of the others: each tells. Whatever began while no store took
/// it, or ends then, is told to its end.
fn both_away(last: Last) {
    let (postgres, mut redis, stub) = (Postgres::start(&[]), keeping(), ok());
    let alerts = format!("alerts: {{channels: {{ops: {}}}}}\n", webhook(&stub));
    let config = place(&postgres, Some(&redis)) + &alerts;
    let nodes = [Server::with(&config), Server::with(&config)];
    let count = |rule: &str, over: bool| {
        told(&stub).iter().filter(|told| told.0 == rule && told.3 == over).count()
    };
    let eventually_told = |rule: &str, over: bool, least: usize| {
        let what = format!("{rule}, over: {over}, is told {least} times");
        eventually(&what, seconds(60.0), || (count(rule, over) >= least).then_some(()));
    };
    match last {
        Last::Redis => postgres.stop("immediate"),
        Last::Postgres => {
            redis.kill();
            eventually_told("redis", false, 1);
        }
    }
    match last {
        Last::Redis => redis.kill(),
        Last::Postgres => postgres.stop("immediate"),
    }
    eventually_told("outage", false, nodes.len());
    eventually_told("redis", false, 1);
    match last {
        Last::Redis => postgres.start_again(),
        Last::Postgres => redis.start_again(),
    }
    std::thread::sleep(seconds(5.0));
    match last {
        Last::Redis => redis.start_again(),
        Last::Postgres => postgres.start_again(),
    }
    eventually_told("outage", true, nodes.len());
    eventually_told("redis", true, count("redis", false));
    holds_for("nothing is left", seconds(8.0), || {
        ["outage", "redis"].iter().all(|rule| count(rule, true) == count(rule, false))
    });
}
