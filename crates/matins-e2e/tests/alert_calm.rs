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
        ("PostgreSQL away", || outage(None)),
        ("PostgreSQL away, Redis there", || {
            outage(Some(&Redis::start(&["--appendonly", "yes"])));
        }),
    ]);
}

/// More schedules than are fired in one pass.
const SCHEDULES: usize = 1_500;
/// Tasks that wait for the one slot of their pool.
const TASKS: usize = 60;

/// What came due while nobody was there is late by hours when the server is back.
#[test]
fn a_planned_restart_is_no_matter() {
    let stub = ok();
    let mut config = format!(
        "alerts: {{channels: {{ops: {}}}, rules: {{missed: {{enabled: false}}}}}}\n\
         task_pools: {{narrow: {{max_workers: 1, task_types: [slow]}}}}\n\
         tasks: {{slow: {{executor: command, command: [sleep, '0.05']}}}}\nschedules:\n",
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

/// Rules under which much could be told if what stands still in an outage were held against anybody.
const EAGER: &str = "rules: {overdue: {after: 3s}, backlog: {after: 3s}, heartbeat: {after: 5s}, \
                     no_worker: {after: 3s}}";

/// Schedules stand still, tasks wait, canaries do not come back, another node is not seen: it is
/// told that the database is away and that it is back.
fn outage(redis: Option<&Redis>) {
    let (postgres, stub) = (Postgres::start(&[]), ok());
    let place = format!(
        "store: {}\n{}lease: 3s\nheartbeat: 1s\nallow_commands: any\n",
        postgres.url("postgres"),
        redis.map(|redis| format!("redis: {}\n", redis.url())).unwrap_or_default()
    );
    let teller = Server::with(&format!(
        "{place}canary: 5s\nalerts: {{channels: {{ops: {}}}, {EAGER}}}\nschedules:\n  tick: \
         {{schedule: '* * * * * *', type: command, timezone: UTC, grace: 1s, payload: {{argv: \
         ['true']}}}}\n",
        webhook(&stub)
    ));
    let _other = Server::with(&place);
    // Both have been seen for longer than somebody who only passes by.
    std::thread::sleep(seconds(35.0));
    for _ in 0..5 {
        teller.api().shell("true", &json!({"delay": "8s"}));
    }
    assert!(told(&stub).is_empty(), "all is well: {:?}", told(&stub));
    postgres.stop("immediate");
    let rule = if redis.is_some() { "outage" } else { "store" };
    let about = |over: bool| (rule.to_owned(), "postgres".to_owned(), u64::from(!over), over);
    eventually("it is told", seconds(60.0), || (stub.count() > 0).then_some(()));
    // Longer than a canary may take.
    holds_for("once", seconds(75.0), || told(&stub) == [about(false)]);
    postgres.start_again();
    eventually("its end is told", seconds(60.0), || (stub.count() > 1).then_some(()));
    holds_for("and nothing else", seconds(35.0), || told(&stub) == [about(false), about(true)]);
    teller.assert_no_panic();
}
