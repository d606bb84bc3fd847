//! Every metric of a node moves when that happens of which it tells: one scene after the other, on a
//! live server.

use std::collections::BTreeSet;
use std::fs;

use matins_e2e::alerts::{ok, webhook};
use matins_e2e::wait::seconds;
use matins_e2e::{Server, eventually, json, together};
use matins_testbed::{Postgres, Redis};
use rusqlite::Connection;

#[test]
fn each_moves_as_it_should() {
    together(&[
        ("what tasks do, in the file", || scenes(None)),
        ("what tasks do, in PostgreSQL", || scenes(Some(Postgres::shared().database("template1")))),
        ("what Redis does", of_redis),
        ("a schedule that nobody fires", overdue),
    ]);
}

/// A server whose metrics are looked at.
struct Stage {
    server: Server,
}

impl Stage {
    fn reads(&self, name: &str, having: &str) -> f64 {
        self.server.api().metric(name, having).unwrap_or(0.0)
    }

    /// What is of the whole store may be 15 s old.
    #[track_caller]
    fn becomes(&self, name: &str, having: &str, expected: f64) {
        eventually(&format!("{name} {having} reads {expected}"), seconds(20.0), || {
            (self.server.api().metric(name, having) == Some(expected)).then_some(())
        });
    }

    #[track_caller]
    fn exceeds(&self, name: &str, having: &str, bound: f64) {
        eventually(&format!("{name} {having} exceeds {bound}"), seconds(20.0), || {
            (self.reads(name, having) > bound).then_some(())
        });
    }
}

fn scenes(database: Option<String>) {
    let stub = ok();
    let store = database.as_ref().map_or(String::new(), |url| format!("store: {url}\n"));
    let server = Server::builder().prepare();
    let gate = server.folder().join("gate");
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display());
    let mut stage = Stage { server };
    stage.server.configure(&format!(
        "{store}allow_commands: any\nlease: 3s\nheartbeat: 1s\nstall_after: 6s\n\
         task_pools: {{narrow: {{max_workers: 1, task_types: [gated]}}}}\n\
         tasks: {{gated: {{executor: command, shell: {}}}}}\n\
         schedules: {{tick: {{schedule: \"* * * * * *\", type: command, timezone: UTC, \
         payload: {{argv: [\"true\"]}}}}}}\n\
         alerts: {{channels: {{ops: {}}}}}\n",
        json!(wait),
        webhook(&stub)
    ));
    stage.server.start();
    waiting(&stage, &gate);
    ends(&stage);
    losses(&stage);
    occurrences(&stage);
    standstill(&stage, database.as_deref());
    in_the_reference(&stage);
    stage.server.assert_no_panic();
}

/// The reference names every metric and every loop, and no metric that there is not.
fn in_the_reference(stage: &Stage) {
    let text = stage.server.api().outside("/metrics").expect(200).text();
    let reference = matins_e2e::binary::workspace().join("docs/reference/metrics.md");
    let reference = fs::read_to_string(reference).expect("the reference");
    let names = |text: &str, mark: &str| -> BTreeSet<String> {
        let ends = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let named = text.split(mark).skip(1).filter_map(|rest| rest.split(ends).next());
        named.map(|name| name.trim_end_matches("_total").to_owned()).collect()
    };
    let told = names(&reference, "`matins_");
    // Without Redis there is nothing to say of it.
    let here = |name: &String| !["redis", "journal", "outage"].iter().any(|w| name.starts_with(w));
    let told_here: BTreeSet<String> = told.into_iter().filter(here).collect();
    assert_eq!(names(&text, "# TYPE matins_"), told_here);
    for name in names(&text, "matins_loop_age_seconds{loop=\"") {
        assert!(reference.contains(&format!("`{name}")), "the loop {name} is not in the reference");
    }
}

/// Three tasks for one slot.
fn waiting(stage: &Stage, gate: &std::path::Path) {
    let narrow = "pool=\"narrow\"";
    let of = |state: &str| format!("state=\"{state}\",{narrow}");
    stage.becomes("matins_pool_size", narrow, 1.0);
    for _ in 0..3 {
        stage.server.api().enqueue(&json!({"type": "gated"}));
    }
    stage.becomes("matins_enqueued_total", "type=\"gated\"", 3.0);
    stage.becomes("matins_pool_busy", narrow, 1.0);
    stage.becomes("matins_ready", narrow, 2.0);
    stage.becomes("matins_tasks", &of("pending"), 2.0);
    stage.becomes("matins_tasks", &of("running"), 1.0);
    stage.exceeds("matins_oldest_ready_seconds", narrow, 0.5);
    fs::write(gate, "").expect("the gate is opened");
    let done = "type=\"gated\",outcome=\"completed\"";
    stage.becomes("matins_attempts_total", done, 3.0);
    stage.becomes("matins_task_duration_seconds_count", done, 3.0);
    stage.exceeds("matins_task_duration_seconds_sum", done, 0.5);
    stage.becomes("matins_pickup_seconds_count", narrow, 3.0);
    stage.becomes("matins_pool_busy", narrow, 0.0);
    stage.becomes("matins_tasks", &of("completed"), 3.0);
    // Empty is no last value.
    eventually("nothing is ready", seconds(20.0), || {
        (stage.reads("matins_ready", narrow) + stage.reads("matins_tasks", &of("pending")) < 0.5)
            .then_some(())
    });
    assert!(stage.reads("matins_oldest_ready_seconds", narrow) < 0.1);
}

/// A key that is taken, a failure for good, a time limit.
fn ends(stage: &Stage) {
    let api = stage.server.api();
    assert!(stage.reads("matins_deduplicated_total", "") < 0.5);
    let keyed = json!({"type": "nobody", "execution_key": "k", "delay": 600});
    let first = api.enqueue(&keyed);
    let second = api.post("/tasks", &keyed).expect(200).json();
    assert_eq!(second["id"], first.id());
    stage.becomes("matins_deduplicated_total", "", 1.0);
    stage.becomes("matins_dead_letters", "", 0.0);
    api.shell("exit 1", &json!({"max_retries": 0}));
    api.shell("sleep 60", &json!({"max_retries": 0, "timeout": 0.3}));
    stage.becomes("matins_attempts_total", "type=\"command\",outcome=\"failed\"", 1.0);
    stage.becomes("matins_attempts_total", "type=\"command\",outcome=\"timeout\"", 1.0);
    stage.becomes("matins_dead_letters", "", 2.0);
    stage.exceeds("matins_alerts_total", "channel=\"ops\",result=\"sent\"", 0.5);
    let all = json!({"filter": {"type": "command"}, "reason": "seen"});
    api.post("/dead_letters/dismiss", &all).expect(200);
    stage.becomes("matins_dead_letters", "", 0.0);
}

/// A worker that is never heard of again, and comes back with a result.
fn losses(stage: &Stage) {
    let api = stage.server.api();
    api.enqueue(&json!({"type": "remote"}));
    let claim = json!({"worker": "w", "types": ["remote"], "max": 1, "wait": 5});
    let claimed = api.post("/workers/claim", &claim).expect(200).json()["tasks"][0].clone();
    assert!(stage.reads("matins_losses_total", "") < 0.5);
    stage.becomes("matins_losses_total", "", 1.0);
    stage.becomes("matins_attempts_total", "type=\"remote\",outcome=\"lost\"", 1.0);
    assert!(stage.reads("matins_fenced_writes_total", "") < 0.5);
    let late = json!({"id": claimed["id"], "fence": claimed["fence"], "token": claimed["token"],
                      "outcome": "completed"});
    let answer = api.post("/workers/settle", &json!({"items": [late]})).expect(200).json();
    assert_eq!(answer["items"][0]["status"], 409, "{answer}");
    stage.becomes("matins_fenced_writes_total", "", 1.0);
}

fn occurrences(stage: &Stage) {
    let api = stage.server.api();
    let fired = "outcome=\"fired\"";
    let before = stage.reads("matins_occurrences_total", fired);
    let lags = stage.reads("matins_fire_lag_seconds_count", "");
    stage.exceeds("matins_occurrences_total", fired, before + 1.5);
    stage.exceeds("matins_fire_lag_seconds_count", "", lags + 1.5);
    assert!(stage.reads("matins_occurrences_total", "outcome=\"skipped\"") < 0.5);
    api.post("/schedules/tick/pause", &json!({})).expect(200);
    std::thread::sleep(seconds(3.0));
    api.post("/schedules/tick/resume", &json!({})).expect(200);
    stage.exceeds("matins_occurrences_total", "outcome=\"skipped\"", 0.5);
}

/// Somebody holds the store: the loops and with them the heartbeat grow old, and young again.
fn standstill(stage: &Stage, database: Option<&str>) {
    const KEPT: f64 = 5.0;
    let loops = "loop=\"scheduler\"";
    let kind = if database.is_some() { "store=\"postgres\"" } else { "store=\"sqlite\"" };
    stage.becomes("matins_store_up", kind, 1.0);
    let young = || {
        (stage.reads("matins_loop_age_seconds", loops) < KEPT
            && stage.reads("matins_heartbeat_age_seconds", "") < KEPT)
            .then_some(())
    };
    eventually("all is well", seconds(20.0), young);
    let old = || {
        stage.exceeds("matins_loop_age_seconds", loops, KEPT);
        stage.exceeds("matins_heartbeat_age_seconds", "", KEPT);
    };
    match database {
        None => {
            let held = Connection::open(stage.server.database()).expect("the file can be opened");
            held.busy_timeout(seconds(10.0)).expect("a timeout can be set");
            held.execute_batch("BEGIN EXCLUSIVE").expect("the lock is taken");
            old();
        }
        Some(url) => {
            let name = url.rsplit('/').next().expect("a name");
            let lock = "BEGIN; LOCK TABLE matins.schedule, matins.worker, matins.task, \
                        matins.ready, matins.running IN ACCESS EXCLUSIVE MODE";
            let _held = Postgres::shared().session(name, lock);
            old();
        }
    }
    eventually("all is well again", seconds(30.0), young);
}

/// Gone and back; and lines that somebody else empties.
fn of_redis() {
    let (url, mut redis) = (Postgres::shared().database("template1"), Redis::start(&[]));
    let server = Server::with(&format!("store: {url}\nredis: {}\n", redis.url()));
    let stage = Stage { server };
    let batch = json!(vec![json!({"type": "remote"}); 50]);
    stage.server.api().post("/tasks/batch", &batch).expect(200);
    let known = || redis.ask(&["zcard", "matins:task:pending:default"]) == "50";
    eventually("Redis knows them", seconds(20.0), || known().then_some(()));
    stage.becomes("matins_redis_drift", "", 0.0);
    redis.ask(&["zremrangebyrank", "matins:task:pending:default", "0", "29"]);
    stage.exceeds("matins_redis_drift", "", 29.5);
    stage.becomes("matins_redis_drift", "", 0.0);
    assert!(known(), "what it did not know it is told");
    stage.becomes("matins_store_up", "store=\"redis\"", 1.0);
    redis.kill();
    stage.becomes("matins_store_up", "store=\"redis\"", 0.0);
    redis.start_again();
    stage.becomes("matins_store_up", "store=\"redis\"", 1.0);
    for name in ["matins_redis_mirrored", "matins_journal_entries", "matins_outage_mode"] {
        stage.becomes(name, "", 0.0);
    }
}

/// No node here schedules, and the clock goes on.
fn overdue() {
    let server = Server::builder().argument("--role").argument("api,worker").clock("+0").start();
    let stage = Stage { server };
    let minutely = json!({"schedule": "* * * * *", "timezone": "UTC", "type": "nobody"});
    stage.server.api().put("/schedules/minutely", &minutely);
    stage.becomes("matins_schedules_overdue", "", 0.0);
    stage.server.clock().set("+3m");
    stage.becomes("matins_schedules_overdue", "", 1.0);
    stage.server.api().delete("/schedules/minutely");
    stage.becomes("matins_schedules_overdue", "", 0.0);
}
