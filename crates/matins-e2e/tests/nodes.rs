//! Several nodes on one PostgreSQL database: what a dead node ran runs elsewhere, a frozen one
//! changes nothing when it wakes, a mark fires once whoever is there, and neither a clock that is
//! off nor broken connections harm anybody.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::clock::FakeClock;
use matins_e2e::process::Signal;
use matins_e2e::wait::{holds_for, seconds};
use matins_e2e::{Server, eventually, json, together};
use matins_testbed::{Line, Postgres, Redis, Weather};

#[test]
fn several_nodes() {
    together(&[
        ("a killed node's task runs elsewhere", killed_node),
        ("a node frozen past its lease", frozen_node),
        ("a node cut off past its lease", cut_off_node),
        ("one task for each mark of four schedulers", one_task_per_mark),
        ("a clock two minutes off", clock_off),
        ("broken connections", broken_connections),
        ("what a node costs that has nothing to do", idle_node),
        ("the same with whole tasks in Redis", idle_node_with_redis),
    ]);
}

fn config(url: &str, more: &str) -> String {
    format!("store: {url}\nallow_commands: any\n{more}")
}

fn database() -> String {
    Postgres::shared().database("template1")
}

/// The one of the servers that runs a task, by the node's name in the attempt.
fn runner_of(servers: &mut [Server], id: &str) -> usize {
    let api = servers[0].api();
    let worker = eventually("it runs", seconds(5.0), || {
        let task = api.task(id);
        let last = task.attempts().last()?.clone();
        (task.state() == "running").then(|| last["worker"].as_str().map(str::to_owned)).flatten()
    });
    let port = |server: &Server| format!("-{}:", server.port);
    servers.iter().position(|server| worker.contains(&port(server))).expect("one of them runs it")
}

/// G11, with default settings.
fn killed_node() {
    let url = database();
    let mut servers: Vec<Server> = (0..2).map(|_| Server::with(&config(&url, ""))).collect();
    let witness = servers[0].witness.clone();
    let id = servers[0].api().shell(&witness.shell("sleep 45"), &json!({})).id().to_owned();
    let dead = runner_of(&mut servers, &id);
    witness.wait_begin(&id, 1, seconds(3.0));
    // Soon after a start of the database nobody is judged by his session.
    let up = "SELECT clock_timestamp() - pg_postmaster_start_time() > interval '32 s'";
    eventually("the database is up for longer than a lease", seconds(60.0), || {
        (Postgres::shared().sql("postgres", up) == "t").then_some(())
    });
    servers[dead].kill();
    let killed = Instant::now();
    witness.wait_begin(&id, 2, seconds(10.0));
    let took = killed.elapsed();
    let other = servers[1 - dead].api();
    assert_eq!(other.task(&id).number("losses"), 1);
    other.post(&format!("/tasks/{id}/cancel"), &json!({})).expect(202);
    other.wait_state(&id, "cancelled", seconds(15.0));
    witness.assert_no_overlap();
    assert!(took < seconds(6.0), "attempt 2 began {took:?} after the kill");
}

fn frozen_node() {
    let url = database();
    let quick = config(&url, "lease: 3s\npoll: 200ms\n");
    let mut servers: Vec<Server> = (0..2).map(|_| Server::with(&quick)).collect();
    let witness = servers[0].witness.clone();
    let id = servers[0].api().shell(&witness.shell("sleep 4"), &json!({})).id().to_owned();
    let frozen = runner_of(&mut servers, &id);
    witness.wait_begin(&id, 1, seconds(3.0));
    servers[frozen].signal(Signal::STOP);
    witness.wait_begin(&id, 2, seconds(15.0));
    servers[frozen].signal(Signal::CONT);
    let other = servers[1 - frozen].api();
    let task = other.wait_state(&id, "completed", seconds(15.0));
    // The one that woke up says nothing against it, and goes on as a new worker.
    holds_for("nothing changes any more", seconds(2.0), || {
        other.task(&id).0["finished_at"] == task.0["finished_at"]
    });
    assert_eq!(witness.ends(&id).len(), 1, "one run came to its end");
    witness.assert_no_overlap();
    let next = servers[frozen].api().shell("true", &json!({})).id().to_owned();
    servers[frozen].api().wait_state(&next, "completed", seconds(10.0));
}

/// Nobody is told that the line is dead: what the node runs is gone before another may begin, and
/// when the line is whole again the node changes nothing.
fn cut_off_node() {
    let url = database();
    let port = Postgres::shared().port();
    let lines: Vec<Line> = (0..2).map(|_| Line::to(port)).collect();
    let begin = |line: &Line| {
        let url = url.replace(&port.to_string(), &line.port().to_string());
        Server::with(&config(&url, "lease: 4s\npoll: 200ms\n"))
    };
    let mut servers: Vec<Server> = lines.iter().map(begin).collect();
    let witness = servers[0].witness.clone();
    let id = servers[0].api().shell(&witness.shell("sleep 6"), &json!({})).id().to_owned();
    let cut = runner_of(&mut servers, &id);
    witness.wait_begin(&id, 1, seconds(3.0));
    lines[cut].set(Weather::Silent);
    witness.wait_begin(&id, 2, seconds(20.0));
    lines[cut].set(Weather::Fine);
    let task = servers[1 - cut].api().wait_state(&id, "completed", seconds(30.0));
    let outcomes: Vec<_> = task.attempts().iter().map(|one| one["outcome"].clone()).collect();
    assert_eq!(outcomes, ["lost", "completed"], "{}", task.0);
    assert_eq!(witness.ends(&id).len(), 1, "one run came to its end");
    witness.assert_no_overlap();
    eventually("the node is back", seconds(30.0), || servers[cut].ready().then_some(()));
    let next = servers[cut].api().shell("true", &json!({})).id().to_owned();
    servers[cut].api().wait_state(&next, "completed", seconds(20.0));
}

fn one_task_per_mark() {
    let url = database();
    let every = "tasks:\n  tick: {executor: command, shell: \"true\"}\nschedules:\n  \
                 mark: {schedule: \"*/2 * * * * *\", type: tick, timezone: UTC, overlap: allow}\n";
    let mut servers: Vec<Server> = (0..4).map(|_| Server::with(&config(&url, every))).collect();
    for round in 0..8 {
        thread::sleep(seconds(1.5));
        let one = round % servers.len();
        if round % 2 == 0 {
            servers[one].kill();
        } else {
            servers[one].stop(seconds(10.0));
        }
        servers[one].start();
    }
    let api = servers[0].api();
    let occurrences = api.occurrences("mark");
    let fired: Vec<_> = occurrences.iter().filter(|one| one["outcome"] == "fired").collect();
    let labels: HashSet<&str> = fired.iter().filter_map(|one| one["label"].as_str()).collect();
    let tasks: HashSet<&str> = fired.iter().filter_map(|one| one["task_id"].as_str()).collect();
    assert!(fired.len() >= 5, "only {} fired", fired.len());
    assert_eq!(labels.len(), fired.len(), "no label fires twice");
    assert_eq!(tasks.len(), fired.len(), "each has a task of its own");
    let balance = api.get("/schedules/mark").expect(200).json();
    let sum: i64 = ["fired", "coalesced", "skipped", "missed"]
        .iter()
        .map(|outcome| balance["balance"][outcome].as_i64().expect("a count"))
        .sum();
    assert_eq!(balance["balance"]["expected"].as_i64(), Some(sum), "{balance}");
}

/// A node whose clock is two minutes ahead or behind neither fires early nor takes what is alive.
fn clock_off() {
    for offset in ["+120", "-120"] {
        off_by(offset);
    }
}

/// The node with the wrong clock alone fires and judges; the other one alone runs.
fn off_by(offset: &str) {
    let url = database();
    let mut right = Server::builder().argument("--role").argument("api,worker").prepare();
    let shell = right.witness.shell("true").replace('\n', "\n      ");
    let every = format!(
        "lease: 5s\ntasks:\n  tick:\n    executor: command\n    shell: |\n      {shell}\nschedules:\n  \
         mark: {{schedule: \"* * * * * *\", type: tick, timezone: UTC, overlap: allow}}\n"
    );
    right.configure(&config(&url, &every));
    right.start();
    let (api, witness) = (right.api(), right.witness.clone());
    let id = api.shell(&witness.shell("sleep 9"), &json!({})).id().to_owned();
    witness.wait_begin(&id, 1, seconds(3.0));
    let builder = Server::builder().config(&config(&url, &every));
    let mut wrong = builder.argument("--role").argument("api,scheduler").prepare();
    let clock = FakeClock::new(wrong.folder(), offset);
    for (name, value) in clock.environment() {
        wrong.set_variable(&name, &value);
    }
    wrong.start();
    let task = api.wait_state(&id, "completed", seconds(20.0));
    assert_eq!(task.attempts().len(), 1, "nobody took it over: {}", task.0);
    let fired: Vec<_> =
        api.occurrences("mark").into_iter().filter(|one| one["outcome"] == "fired").collect();
    assert!(fired.len() >= 5, "{offset}: only {} fired", fired.len());
    for one in fired {
        let mark = matins_e2e::api::seconds_of(one["time"].as_str().expect("a time"));
        let id = one["task_id"].as_str().expect("a task");
        let begun = witness.wait_begin(id, 1, seconds(10.0)).at;
        assert!((mark..mark + 10.0).contains(&begun), "{offset}: begun at {begun}: {one}");
    }
}

/// Every session is ended again and again while tasks are accepted and run.
fn broken_connections() {
    let url = database();
    let name = url.rsplit('/').next().expect("a name").to_owned();
    let config = config(&url, "poll: 200ms\n");
    let servers: Vec<Server> = (0..2).map(|_| Server::with(&config)).collect();
    let witness = servers[0].witness.clone();
    let end = Instant::now() + Duration::from_secs(8);
    let mut accepted = Vec::new();
    while Instant::now() < end {
        for server in &servers {
            let body = json!({
                "type": "command", "payload": {"shell": witness.quick_shell("true")},
                "id": uuid::Uuid::new_v4().to_string(),
            });
            // An answer that was lost is asked for again: the id makes it the same request.
            let task = eventually("accepted", seconds(10.0), || {
                let answer = server.api().post("/tasks", &body);
                matches!(answer.status, 200 | 201).then(|| answer.json())
            });
            accepted.push(task["id"].as_str().expect("an id").to_owned());
        }
        let all = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        );
        Postgres::shared().sql("postgres", &all);
        thread::sleep(seconds(0.15));
    }
    assert!(accepted.len() > 20, "only {} tasks", accepted.len());
    for id in &accepted {
        servers[0].api().wait_state(id, "completed", seconds(60.0));
        assert_eq!(witness.ends(id).len(), 1, "{id} came to its end once");
    }
    witness.assert_no_overlap();
}

/// Nodes of a fleet, and how many connections all of them may have.
const FLEET: u32 = 50;
const FLEET_CONNECTIONS: u32 = 200;

fn idle_node() {
    idle("");
}

fn idle_node_with_redis() {
    let redis = Redis::start(&["--appendonly", "yes"]);
    idle(&format!("redis: {}\n", redis.url()));
}

/// With default settings, of which a node has three pools, a schedule and a channel for alerts: at
/// most two questions a second, and so few connections that a fleet gets by with 200. The server
/// counts them. What begins and ends the transaction of a question travels with it.
fn idle(more: &str) {
    let counting = ["shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=top"];
    let database = Postgres::start(&counting);
    let url = database.database("template1");
    let name = url.rsplit('/').next().expect("a name").to_owned();
    database.sql("postgres", "CREATE EXTENSION pg_stat_statements");
    let _server = Server::with(&format!(
        "store: {url}\n\
         task_pools: {{a: {{max_workers: 4, task_types: [a]}}, \
         b: {{max_workers: 4, task_types: [b]}}}}\n\
         schedules: {{far: {{schedule: \"0 0 1 1 *\", type: a}}}}\n\
         alerts: {{channels: {{log: {{kind: command, command: [\"true\"]}}}}}}\n{more}"
    ));
    let ask = |sql: &str| -> u32 {
        let answer = database.sql("postgres", &sql.replace("$name", &name));
        answer.parse().expect("a number")
    };
    thread::sleep(seconds(15.0));
    database.sql("postgres", "SELECT pg_stat_statements_reset()");
    let begin = Instant::now();
    thread::sleep(seconds(60.0));
    let took = begin.elapsed().as_secs_f64();
    let asked = format!(
        "FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
         WHERE d.datname = '{name}' AND query NOT LIKE '%pg_stat_statements%'
           AND query !~ '^(BEGIN|COMMIT|SET LOCAL)'"
    );
    let questions = ask(&format!("SELECT coalesce(sum(calls), 0)::integer {asked}"));
    let each = format!("SELECT calls || ' ' || query {asked} ORDER BY calls DESC");
    let list = database.sql("postgres", &each);
    let rate = f64::from(questions) / took;
    println!("idle, {more:?}: {rate:.2} questions a second");
    assert!(rate <= 2.0, "{rate:.2} questions a second\n{list}");
    let connections = ask("SELECT count(*) FROM pg_stat_activity WHERE datname = '$name'");
    assert!((1..=3).contains(&connections), "{connections} connections");
    assert!(connections * FLEET < FLEET_CONNECTIONS, "{connections} connections of each");
}
