//! Redis in front of PostgreSQL, from outside: whatever happens to it, every task runs once.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::wait::seconds;
use matins_e2e::{Server, eventually, json, together};
use matins_testbed::{Postgres, Redis};

#[test]
fn redis() {
    together(&[
        ("emptied each second under load", emptied_each_second),
        ("killed, back empty, and frozen", killed_and_frozen),
        ("another store's", another_stores),
        ("what the node shows", shown),
    ]);
}

fn config(database: &str, redis: &Redis, more: &str) -> String {
    let address = redis.url();
    format!("store: {database}\nredis: {address}\nallow_commands: any\n{more}")
}

fn database() -> String {
    Postgres::shared().database("template1")
}

fn emptied_each_second() {
    let (url, redis) = (database(), Redis::start(&[]));
    let servers: Vec<Server> =
        (0..2).map(|_| Server::with(&config(&url, &redis, "poll: 200ms\n"))).collect();
    let witness = servers[0].witness.clone();
    let end = Instant::now() + Duration::from_secs(6);
    let mut accepted = Vec::new();
    let mut flushed = Instant::now();
    while Instant::now() < end {
        for server in &servers {
            let shell = witness.quick_shell("true");
            accepted.push(server.api().shell(&shell, &json!({})).id().to_owned());
        }
        if flushed.elapsed() > Duration::from_secs(1) {
            redis.ask(&["flushall"]);
            flushed = Instant::now();
        }
        thread::sleep(Duration::from_millis(30));
    }
    redis.ask(&["flushall"]);
    let flushed = Instant::now();
    for id in &accepted {
        servers[0].api().wait_state(id, "completed", seconds(60.0));
        assert_eq!(witness.begins(id).len(), 1, "{id} ran once");
    }
    assert!(accepted.len() > 20, "only {} tasks", accepted.len());
    for server in &servers {
        eventually("the drift is over", seconds(30.0), || {
            (server.api().metric("matins_redis_drift", "")? == 0.0).then_some(())
        });
    }
    println!("{} tasks; no drift {:?} after the last flush", accepted.len(), flushed.elapsed());
}

fn killed_and_frozen() {
    let (url, mut redis) = (database(), Redis::start(&[]));
    let server = Server::with(&config(&url, &redis, ""));
    let witness = server.witness.clone();
    let mut ran = HashSet::new();
    let mut run_some = |what: &str| {
        for _ in 0..5 {
            let begin = Instant::now();
            let id = server.api().shell(&witness.quick_shell("true"), &json!({})).id().to_owned();
            assert!(begin.elapsed() < seconds(3.0), "{what}: accepted after {:?}", begin.elapsed());
            server.api().wait_state(&id, "completed", seconds(20.0));
            assert_eq!(witness.begins(&id).len(), 1, "{what}: {id} ran once");
            assert!(ran.insert(id));
        }
    };
    let wait_for = |word: &str| {
        eventually(word, seconds(30.0), || {
            let ready = server.api().outside("/readyz").expect(200).json();
            (ready["parts"]["redis"] == word).then_some(())
        });
    };
    run_some("well");
    redis.kill();
    wait_for("down");
    assert_eq!(server.api().get("/status").expect(200).json()["mode"], "degraded");
    run_some("killed");
    redis.start_again();
    wait_for("up");
    run_some("back and empty");
    redis.freeze();
    run_some("frozen");
    wait_for("down");
    redis.thaw();
    wait_for("up");
    run_some("thawed");
    assert_eq!(server.api().get("/status").expect(200).json()["mode"], "normal");
}

fn another_stores() {
    let redis = Redis::start(&[]);
    let _first = Server::with(&config(&database(), &redis, ""));
    let mut second = Server::builder().config(&config(&database(), &redis, "")).prepare();
    let error = second.try_start().expect_err("it is another store's");
    assert!(error.contains("another store") && error.contains("redis_prefix"), "{error}");
    // A prefix of its own is enough.
    second.configure(&config(&database(), &redis, "redis_prefix: 'other:'\n"));
    second.start();
}

fn shown() {
    let (url, redis) = (database(), Redis::start(&[]));
    let server = Server::with(&config(&url, &redis, "heartbeat: 1s\n"));
    let beat = eventually("the heartbeat is in Redis", seconds(20.0), || {
        redis.ask(&["get", "matins:scheduler:heartbeat"]).parse::<i64>().ok()
    });
    assert!(beat > 1_700_000_000, "{beat}");
    let keys = redis.ask(&["keys", "matins:scheduler:heartbeat:*"]);
    assert!(keys.contains(&server.port.to_string()), "{keys}");
    let status = server.api().get("/status").expect(200).json();
    assert_eq!(status["store"]["parts"][0]["kind"], "redis", "{status}");
    assert_eq!(server.api().metric("matins_store_up", "redis"), Some(1.0));
    let said = server.cli(&["status"]).expect(0).out();
    assert!(said.contains("redis"), "{said}");
    let said = server.cli(&["doctor"]).out();
    assert!(said.contains("redis"), "{said}");
}
