//! Failures that people met with queues on a database, on PostgreSQL alone and with Redis in front
//! of it. The others are where their subject is, and run on these stores with `MATINS_E2E_STORE`:
//!
//! | cases | where |
//! |---|---|
//! | A01, A02 | `night` |
//! | A05, A08 | `workers`; a frozen node in `nodes` |
//! | A11, A12 | `shutdown` |
//! | B01 | here |
//! | B02 | `isolation`; a handler in the process in `handlers` of crate `matins` |
//! | B03 | on the file in `health`, with the parent in `supervision` |
//! | B04 | `isolation` |
//! | B09 | `nodes`, `cut_off` |
//! | C01, C02, C04, C07, C08, C10, C13 | `schedules`, where the database lives by the test's clock too |
//! | E01, E03, E05, E09, E12 | `retries` |
//! | E11, F01, F03 | `keys` |
//! | H01, H03, H13 | `data` |
//! | H10 | `postgres_cost` of crate `matins-store`, `matins bench snapshot`; who holds it, in `server` there |
//! | I04 | `redis` |

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::{seconds_of, shell_task};
use matins_e2e::clock::unix_now;
use matins_e2e::process::Signal;
use matins_e2e::wait::{holds_for, seconds};
use matins_e2e::{Api, Server, Task, eventually, json, process, together};
use matins_testbed::{Line, Postgres, Redis};

#[test]
fn cases() {
    together(&[
        ("A04 who survives takes over, again and again", survivors),
        ("B01 what is due later holds no lease", due_later),
        ("B03 a table is locked from outside", locked_table),
        ("H05 the database takes no writes", read_only),
        ("H05 a failover that closes no connection", turned_over),
        ("H06 a cancel while nobody listens", cancel_unheard),
        ("H09 restarts of a database with few connections", few_connections),
        ("I01 Redis evicts", evicted),
        ("I05 ten thousand requests are given up", given_up),
    ]);
}

/// C04 and its neighbours: they measure by the second, so by themselves.
#[test]
fn marks() {
    together(&[
        ("C04 four of one name come and go", four_of_one_name),
        ("gaps of 8 ms between leaders", gaps_between_leaders),
    ]);
}

fn database() -> String {
    Postgres::shared().database("template1")
}

/// Over that database, with Redis in front of it.
fn with_redis(url: &str, more: &str) -> String {
    let redis = Redis::shared();
    let (address, prefix) = (redis.url(), redis.prefix());
    format!("store: {url}\nredis: {address}\nredis_prefix: '{prefix}'\nallow_commands: any\n{more}")
}

fn named(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

/// A, B, C: the one that runs a task is killed, the next one was there before and has it.
fn survivors() {
    let config = with_redis(&database(), "lease: 10s\n");
    let mut servers = vec![Server::with(&config)];
    let witness = servers[0].witness.clone();
    for dead in 0..2 {
        let api = servers[dead].api();
        let id = api.shell(&witness.shell("sleep 60"), &json!({})).id().to_owned();
        witness.wait_begin(&id, 1, seconds(10.0));
        servers.push(Server::with(&config));
        thread::sleep(seconds(2.0));
        servers[dead].kill();
        let killed = Instant::now();
        witness.wait_begin(&id, 2, seconds(15.0));
        println!("A04: begun elsewhere {:?} after the kill", killed.elapsed());
        let api = servers[dead + 1].api();
        assert_eq!(api.task(&id).number("losses"), 1);
        api.post(&format!("/tasks/{id}/cancel"), &json!({})).expect(202);
        api.wait_state(&id, "cancelled", seconds(15.0));
    }
    witness.assert_no_overlap();
}

/// Handed out early and held, it would be handed out again with each lease.
fn due_later() {
    let config = with_redis(&database(), "lease: 3s\n");
    let servers: Vec<Server> = (0..3).map(|_| Server::with(&config)).collect();
    let witness = servers[0].witness.clone();
    let body = shell_task(&witness.shell("true"), &json!({"delay": 10}));
    let answer = servers[0].api().post("/tasks/batch", &json!(vec![body; 100])).expect(200).json();
    let items = answer["items"].as_array().expect("items");
    let ids: Vec<&str> =
        items.iter().map(|item| item["task"]["id"].as_str().expect("an id")).collect();
    let workers = servers[0].api().get("/status").expect(200).json();
    assert_eq!(workers["tasks"]["running"], 0, "{workers}");
    for id in &ids {
        let task = servers[1].api().wait_state(id, "completed", seconds(60.0));
        assert_eq!(task.attempts().len(), 1, "{}", task.0);
        let due = task.time("run_at");
        assert!(witness.begins(id)[0].at > due - 0.05, "not before it is due");
    }
    assert_eq!(witness.begun(), 100);
}

/// Whatever a loop asks the database, it waits for no longer than its limit, and such a turn is none:
/// the database answers, so the node says what stands still. Work goes on when the tables are free,
/// and nothing that ran meanwhile was lost.
fn locked_table() {
    let url = database();
    let config = "lease: 60s\nstall_after: 8s\nschedules:\n  tick: {schedule: \"* * * * * *\", \
                  type: command, timezone: UTC, payload: {argv: [\"true\"]}}\n";
    let server = Server::with(&format!("store: {url}\nallow_commands: any\n{config}"));
    let (api, witness) = (server.api(), server.witness.clone());
    let id = api.shell(&witness.shell("sleep 4"), &json!({})).id().to_owned();
    witness.wait_begin(&id, 1, seconds(10.0));
    let lock = "BEGIN; LOCK TABLE matins.task, matins.ready, matins.running, matins.schedule \
                IN ACCESS EXCLUSIVE MODE";
    let held = Postgres::shared().session(named(&url), lock);
    let taken = Instant::now();
    eventually("/healthz turns 503 and names the scheduler", seconds(60.0), || {
        let (status, body) = api.health();
        let stalled = body["stalled"].as_array()?;
        (status == 503 && stalled.iter().any(|name| name == "scheduler")).then_some(())
    });
    println!("B03: named after {:?}", taken.elapsed());
    let told = || server.log_text().contains("rule=\"stalled\"");
    eventually("it is told", seconds(20.0), || told().then_some(()));
    thread::sleep(seconds(5.0));
    drop(held);
    let task = api.wait_state(&id, "completed", seconds(60.0));
    assert_eq!((task.attempts().len(), witness.ends(&id).len()), (1, 1), "{}", task.0);
    let before = api.occurrences("tick").len();
    eventually("schedules go on", seconds(30.0), || {
        (api.occurrences("tick").len() > before).then_some(())
    });
    eventually("it is well again", seconds(30.0), || {
        (api.health().1["status"] == "ok").then_some(())
    });
    server.assert_no_panic();
}

/// As after a failover to a server that is still a standby: sessions stay, writes are refused.
fn read_only() {
    let postgres = Postgres::start(&[]);
    let config = "allow_commands: any\nlease: 60s\n";
    let server = Server::with(&format!("store: {}\n{config}", postgres.url("postgres")));
    let (api, witness) = (server.api(), server.witness.clone());
    let id = api.shell(&witness.shell("sleep 8"), &json!({})).id().to_owned();
    let run = witness.wait_begin(&id, 1, seconds(10.0));
    let set = |to: &str| {
        // Of a session that may write, whatever the server says.
        let database = "postgres?options=-c%20default_transaction_read_only%3Doff";
        postgres.sql(database, &format!("ALTER SYSTEM SET default_transaction_read_only = {to}"));
        postgres.sql(database, "SELECT pg_reload_conf()");
    };
    set("on");
    thread::sleep(seconds(1.0));
    let own = uuid::Uuid::new_v4().to_string();
    let body = shell_task(&witness.shell("true"), &json!({"id": own}));
    let request = api.request("POST", "/tasks").json(body.to_string()).timeout(seconds(60.0));
    let answer = api.send(&request).expect("an answer");
    assert_eq!((answer.status, &*answer.problem()), (503, "store_unavailable"));
    holds_for("what runs goes on", seconds(3.0), || process::alive(run.pid));
    eventually("it ends", seconds(20.0), || (!witness.ends(&id).is_empty()).then_some(()));
    thread::sleep(seconds(2.0));
    set("off");
    let writable = Instant::now();
    eventually("it takes tasks again", seconds(10.0), || {
        matches!(api.post("/tasks", &body).status, 200 | 201).then_some(())
    });
    println!("H05: tasks are taken {:?} after writes are possible", writable.elapsed());
    let task = api.wait_state(&id, "completed", seconds(20.0));
    assert_eq!((task.attempts().len(), witness.begins(&id).len()), (1, 1), "{}", task.0);
    api.wait_state(&own, "completed", seconds(20.0));
    assert_eq!(witness.begins(&own).len(), 1);
    server.assert_no_panic();
}

/// Behind a proxy that leads new connections to the new server and leaves the others with the old
/// one, which answers and takes no writes.
fn turned_over() {
    let old = Postgres::start(&[]);
    let line = Line::to(old.port());
    let url = old.url("postgres").replace(&old.port().to_string(), &line.port().to_string());
    let server = Server::with(&format!("store: {url}\nallow_commands: any\nlease: 60s\n"));
    let (api, witness) = (server.api(), server.witness.clone());
    let id = api.shell(&witness.shell("sleep 8"), &json!({})).id().to_owned();
    witness.wait_begin(&id, 1, seconds(10.0));
    old.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    old.sql("postgres", "SELECT pg_reload_conf()");
    thread::sleep(seconds(1.0));
    let new = old.copy();
    let writable = "postgres?options=-c%20default_transaction_read_only%3Doff";
    new.sql(writable, "ALTER SYSTEM RESET default_transaction_read_only");
    new.sql(writable, "SELECT pg_reload_conf()");
    line.turn_to(new.port());
    let own = uuid::Uuid::new_v4().to_string();
    let body = shell_task(&witness.shell("true"), &json!({"id": own}));
    eventually("it takes tasks again", seconds(10.0), || {
        matches!(api.post("/tasks", &body).status, 200 | 201).then_some(())
    });
    for id in [&id, &own] {
        let task = api.wait_state(id, "completed", seconds(20.0));
        assert_eq!((task.attempts().len(), witness.begins(id).len()), (1, 1), "{}", task.0);
    }
    assert_eq!(old.sql("postgres", &format!("SELECT 1 FROM matins.task WHERE id = '{own}'")), "");
    server.assert_no_panic();
}

/// A notification that nobody hears may cost a moment.
fn cancel_unheard() {
    let url = database();
    let config = format!("store: {url}\nallow_commands: any\n");
    let servers: Vec<Server> = (0..2).map(|_| Server::with(&config)).collect();
    let witness = servers[0].witness.clone();
    for server in &servers {
        let id =
            servers[0].api().shell(&witness.shell("exec sleep 60"), &json!({})).id().to_owned();
        let run = witness.wait_begin(&id, 1, seconds(10.0));
        // Whoever listens also holds the lock that tells who lives.
        let ears = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_locks AS l JOIN pg_database AS d \
             ON d.oid = l.database WHERE datname = '{}' AND locktype = 'advisory'",
            named(&url)
        );
        // Those that were ended a moment ago are on their way back.
        eventually("somebody listens", seconds(10.0), || {
            (Postgres::shared().sql("postgres", &ears) != "0").then_some(())
        });
        server.api().post(&format!("/tasks/{id}/cancel"), &json!({})).expect(202);
        let asked = Instant::now();
        eventually("it is ended", seconds(3.0), || (!process::alive(run.pid)).then_some(()));
        println!("H06: cancelled after {:?}", asked.elapsed());
        server.api().wait_state(&id, "cancelled", seconds(10.0));
    }
}

/// Five nodes share twenty connections, and the server is started anew again and again.
fn few_connections() {
    let postgres = Postgres::start(&["max_connections=20"]);
    let config = format!("store: {}\nallow_commands: any\n", postgres.url("postgres"));
    let mut servers: Vec<Server> = (0..5).map(|_| Server::with(&config)).collect();
    let witness = servers[0].witness.clone();
    let mut accepted = Vec::new();
    for round in 0..5 {
        for server in &servers {
            let body = shell_task(
                &witness.quick_shell("sleep 0.2"),
                &json!({"id": uuid::Uuid::new_v4().to_string()}),
            );
            let task = eventually("accepted", seconds(20.0), || {
                let answer = server.api().post("/tasks", &body);
                matches!(answer.status, 200 | 201).then(|| Task(answer.json()))
            });
            accepted.push(task.id().to_owned());
        }
        postgres.stop(if round % 2 == 0 { "fast" } else { "immediate" });
        thread::sleep(seconds(1.0));
        postgres.start_again();
        let back = Instant::now();
        for server in &mut servers {
            assert!(server.running(), "no node gives up");
            eventually("it is ready", seconds(15.0), || server.ready().then_some(()));
        }
        println!("H09: all are ready {:?} after start {round}", back.elapsed());
    }
    for id in &accepted {
        servers[0].api().wait_state(id, "completed", seconds(60.0));
        assert_eq!(witness.ends(id).len(), 1);
    }
    witness.assert_no_overlap();
    let held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'matins'";
    let held: u32 = postgres.sql("postgres", held).parse().expect("a number");
    assert!((5..=15).contains(&held), "{held} connections");
    for server in &servers {
        assert!(!server.log_text().contains("too many clients"), "{}", server.log_tail());
        server.assert_no_panic();
    }
}

/// Redis has no room for the lines and throws away what it likes.
fn evicted() {
    const COUNT: usize = 20_000;
    for policy in ["allkeys-lru", "volatile-lru"] {
        let redis = Redis::start(&[]);
        redis.ask(&["config", "set", "maxmemory", "3mb"]);
        redis.ask(&["config", "set", "maxmemory-policy", policy]);
        let server = Server::with(&format!(
            "store: {}\nredis: {}\nallow_commands: any\n",
            database(),
            redis.url()
        ));
        let api = server.api();
        let mut waiting = HashSet::new();
        for _ in 0..COUNT / 1_000 {
            let batch = json!(vec![json!({"type": "remote", "payload": "x".repeat(40)}); 1_000]);
            let answer = api.post("/tasks/batch", &batch).expect(200).json();
            let items = answer["items"].as_array().expect("items");
            waiting.extend(
                items.iter().map(|item| item["task"]["id"].as_str().expect("id").to_owned()),
            );
        }
        assert_eq!(waiting.len(), COUNT);
        let begin = Instant::now();
        while !waiting.is_empty() {
            assert!(begin.elapsed() < seconds(120.0), "{} are left", waiting.len());
            settle_some(&api, &mut waiting);
        }
        println!("I01: {policy}: {COUNT} claimed once and settled in {:?}", begin.elapsed());
        server.assert_no_panic();
    }
}

/// A remote worker takes what it gets and completes it.
fn settle_some(api: &Api, waiting: &mut HashSet<String>) {
    let claim = json!({"worker": "w", "types": ["remote"], "max": 100, "wait": 1});
    let answer = api.post("/workers/claim", &claim).expect(200).json();
    let mut items = Vec::new();
    for task in answer["tasks"].as_array().expect("tasks") {
        let id = task["id"].as_str().expect("an id");
        assert!(waiting.remove(id), "{id} is handed out twice");
        items.push(json!({
            "id": id, "fence": task["fence"], "token": task["token"], "outcome": "completed"
        }));
    }
    if !items.is_empty() {
        let answer = api.post("/workers/settle", &json!({"items": items})).expect(200).json();
        for item in answer["items"].as_array().expect("items") {
            assert_eq!(item["status"], 200, "{item}");
        }
    }
}

/// Clients that go away in the middle of their requests leave nothing held.
fn given_up() {
    let server = Server::with(&with_redis(&database(), ""));
    let (api, witness) = (server.api(), server.witness.clone());
    let ids: Vec<String> = (0..20)
        .map(|_| api.shell(&witness.quick_shell("sleep 5"), &json!({})).id().to_owned())
        .collect();
    thread::scope(|scope| {
        for client in 0..4 {
            let api = &api;
            scope.spawn(move || {
                for n in 0..2_500 {
                    let wait = json!({"worker": format!("w{client}"), "types": ["remote"],
                                      "max": 1, "wait": 20});
                    let later = json!({"type": "remote", "delay": 3_600});
                    let (path, body) = match n % 3 {
                        0 => ("/workers/claim", wait),
                        1 => ("/tasks/batch", json!([later, later])),
                        _ => ("/tasks", later),
                    };
                    let request = api.request("POST", path).json(body.to_string());
                    // Sent, and the answer is not waited for.
                    let _ = api.send(&request.timeout(Duration::from_millis(1 + n % 4)));
                }
            });
        }
    });
    // What was sent to the last is still worked off.
    eventually("it answers again", seconds(60.0), || {
        api.send(&api.request("GET", "/tasks?limit=1")).ok().filter(|answer| answer.status == 200)
    });
    for id in &ids {
        api.wait_state(id, "completed", seconds(60.0));
        assert_eq!(witness.ends(id).len(), 1);
    }
    let begin = Instant::now();
    let id = api.shell(&witness.quick_shell("true"), &json!({})).id().to_owned();
    let accepted = begin.elapsed();
    api.wait_state(&id, "completed", seconds(10.0));
    let done = begin.elapsed();
    println!("I05: after ten thousand given up: accepted after {accepted:?}, done after {done:?}");
    assert!(accepted < seconds(2.0), "accepted after {accepted:?}");
    assert_eq!(api.health().0, 200);
    server.assert_no_panic();
}

/// Each second one of four is ended and started, on one host and under one name; each mark of a
/// schedule has one task, and nobody ends what another one of the name runs.
fn four_of_one_name() {
    let schedule = "node_id: w1\nschedules:\n  mark: {schedule: \"*/5 * * * * *\", type: command, \
                    timezone: UTC, overlap: allow, payload: {shell: \"true\"}}\n";
    let config = with_redis(&database(), schedule);
    let steady = Server::with(&config);
    let (api, witness) = (steady.api(), steady.witness.clone());
    let long = api.shell(&witness.shell("sleep 40"), &json!({})).id().to_owned();
    witness.wait_begin(&long, 1, seconds(10.0));
    let mut servers: Vec<Server> = (0..4).map(|_| Server::with(&config)).collect();
    let begin = (unix_now() / 5.0).ceil() as i64 * 5;
    let mut turn = 0;
    while unix_now() < (begin + 50) as f64 {
        let second = Instant::now();
        let one = turn % servers.len();
        if turn % 2 == 0 {
            servers[one].kill();
        } else {
            servers[one].stop(seconds(10.0));
        }
        servers[one].start();
        turn += 1;
        thread::sleep(Duration::from_secs(1).saturating_sub(second.elapsed()));
    }
    drop(servers);
    thread::sleep(seconds(2.0));
    api.post("/schedules/mark/pause", &json!({})).expect(200);
    let mut occurrences = api.occurrences("mark");
    // Those of the pause tell of it and have no task.
    occurrences.retain(|one| one["reason"] != "paused");
    let mut tasks = HashSet::new();
    for mark in 0..10 {
        let at = begin + mark * 5;
        let of_mark = occurrences
            .iter()
            .filter(|one| seconds_of(one["time"].as_str().expect("a time")) as i64 == at);
        let of_mark: Vec<_> = of_mark.collect();
        assert_eq!(of_mark.len(), 1, "mark {at}: {of_mark:?}");
        assert_eq!(of_mark[0]["outcome"], "fired", "{}", of_mark[0]);
        assert!(tasks.insert(of_mark[0]["task_id"].as_str().expect("a task")), "one each");
    }
    let listed = api.list("schedule=mark");
    assert_eq!(listed.len(), occurrences.len(), "no task without a mark");
    for task in &listed {
        api.wait_state(task.id(), "completed", seconds(60.0));
    }
    let long = api.wait_state(&long, "completed", seconds(60.0));
    assert_eq!(long.attempts().len(), 1, "{}", long.0);
    println!("C04: {turn} ends and starts, {} marks", occurrences.len());
}

/// Two schedulers, of which one at most is awake, and none for 8 ms around each mark.
fn gaps_between_leaders() {
    const MARKS: usize = 10;
    let schedule = "schedules:\n  mark: {schedule: \"* * * * * *\", type: command, \
                    timezone: UTC, overlap: allow, payload: {shell: \"true\"}}\n";
    let config = with_redis(&database(), schedule);
    let servers: Vec<Server> = (0..2).map(|_| Server::with(&config)).collect();
    let api = servers[0].api();
    let mut awake = 0;
    servers[1].signal(Signal::STOP);
    let first = unix_now().ceil() + 1.0;
    for mark in 0..MARKS {
        let mark = first + mark as f64;
        thread::sleep(seconds((mark - 0.004 - unix_now()).max(0.0)));
        servers[awake].signal(Signal::STOP);
        awake = 1 - awake;
        thread::sleep(seconds((mark + 0.004 - unix_now()).max(0.0)));
        servers[awake].signal(Signal::CONT);
    }
    servers[1 - awake].signal(Signal::CONT);
    thread::sleep(seconds(2.0));
    // It fires each second, and each time it does the pause begins anew.
    eventually("it is paused", seconds(120.0), || {
        let pause = api.request("POST", "/schedules/mark/pause").json("{}").timeout(seconds(60.0));
        api.send(&pause).is_ok_and(|answer| answer.status == 200).then_some(())
    });
    let mut occurrences = api.occurrences("mark");
    // Those of the pause tell of it and have no task.
    occurrences.retain(|one| one["reason"] != "paused");
    for mark in 0..MARKS {
        let at = first as i64 + mark as i64;
        let of_mark = occurrences
            .iter()
            .filter(|one| seconds_of(one["time"].as_str().expect("a time")) as i64 == at);
        let of_mark: Vec<_> = of_mark.collect();
        assert_eq!(of_mark.len(), 1, "mark {at}: {of_mark:?} of {occurrences:#?}");
        assert_eq!(of_mark[0]["outcome"], "fired", "{}", of_mark[0]);
    }
    assert_eq!(api.list("schedule=mark").len(), occurrences.len(), "one task each");
    servers.iter().for_each(Server::assert_no_panic);
}
