//! Redis in front of PostgreSQL, from outside: whatever happens to it, every task runs once.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::wait::seconds;
use matins_e2e::{Server, eventually, json, together};
use matins_testbed::{Authority, Line, Postgres, Redis, Weather};

#[test]
fn redis() {
    together(&[
        ("emptied each second under load", emptied_each_second),
        ("killed under load", killed_under_load),
        ("a line that is dead and says nothing", silent),
        ("killed, back empty, and frozen", killed_and_frozen),
        ("over TLS", over_tls),
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

const WAITING: usize = 100;

/// Tasks for two nodes while Redis suffers: each runs once, and soon after the end Redis knows
/// everything again.
fn under_load(
    what: &str,
    redis: &mut Redis,
    last: Duration,
    mut suffer: impl FnMut(&mut Redis, bool),
) {
    let url = database();
    let servers: Vec<Server> =
        (0..2).map(|_| Server::with(&config(&url, redis, "poll: 200ms\n"))).collect();
    let witness = servers[0].witness.clone();
    // Nobody here takes these: Redis has to know them in the end.
    let batch = json!(vec![json!({"type": "remote"}); WAITING]);
    servers[0].api().post("/tasks/batch", &batch).expect(200);
    let end = Instant::now() + last;
    let mut accepted = Vec::new();
    let mut suffered = Instant::now();
    while Instant::now() < end {
        for server in &servers {
            let shell = witness.quick_shell("true");
            accepted.push(server.api().shell(&shell, &json!({})).id().to_owned());
        }
        if suffered.elapsed() > Duration::from_secs(1) {
            suffer(redis, false);
            suffered = Instant::now();
        }
        thread::sleep(Duration::from_millis(30));
    }
    suffer(redis, true);
    let suffered = Instant::now();
    eventually("all lines are known, and the drift is over", seconds(10.0), || {
        let ask = |words: &[&str]| redis.ask(words);
        let told = ask(&["get", "matins:drift"]) == "0"
            && ask(&["hexists", "matins:task:known", "default"]) == "1"
            && ask(&["zcard", "matins:task:pending:default"]) == WAITING.to_string();
        let seen = |server: &Server| {
            let ready = server.api().outside("/readyz").json();
            let drift = server.api().metric("matins_redis_drift", "");
            ready["parts"]["redis"] == "up" && drift == Some(0.0)
        };
        (told && servers.iter().all(seen)).then_some(())
    });
    let over = suffered.elapsed();
    for id in &accepted {
        servers[0].api().wait_state(id, "completed", seconds(60.0));
        assert_eq!(witness.begins(id).len(), 1, "{id} ran once");
    }
    assert!(accepted.len() > 20, "only {} tasks", accepted.len());
    println!("{what}: {} tasks; no drift {over:?} after the last time", accepted.len());
}

fn emptied_each_second() {
    under_load("emptied", &mut Redis::start(&[]), seconds(8.0), |redis, _| {
        redis.ask(&["flushall"]);
    });
}

fn killed_under_load() {
    let mut up = true;
    under_load("killed", &mut Redis::start(&[]), seconds(9.0), |redis, last| {
        if !up {
            redis.start_again();
        } else if !last {
            redis.kill();
        }
        up = !up || last;
    });
}

/// Nobody is told that the line is dead, and nothing is asked for: it is noticed all the same.
fn silent() {
    let redis = Redis::start(&[]);
    let line = Line::to(redis.port());
    let address = format!("redis://127.0.0.1:{}", line.port());
    let server = Server::with(&format!(
        "store: {}\nredis: {address}\nallow_commands: any\npoll: 30s\n",
        database()
    ));
    let is = |word: &str| {
        let ready = server.api().outside("/readyz").expect(200).json();
        (ready["parts"]["redis"] == word).then_some(())
    };
    for _ in 0..2 {
        eventually("up", seconds(20.0), || is("up"));
        line.set(Weather::Silent);
        let began = Instant::now();
        eventually("it is noticed", seconds(10.0), || is("down"));
        println!("silence noticed after {:?}", began.elapsed());
        line.set(Weather::Fine);
    }
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

/// A server whose authority the host trusts is used, any other is none.
fn over_tls() {
    let (right, wrong) = (Authority::new("the right one"), Authority::new("another one"));
    let redis = Redis::start_with_tls(&right);
    for (authority, word) in [(&right, "up"), (&wrong, "down")] {
        let prefix = redis.prefix();
        let config = format!(
            "store: {}\nredis: {}\nredis_prefix: '{prefix}'\nallow_commands: any\nheartbeat: 1s\n",
            database(),
            redis.tls_url()
        );
        let trusted = authority.cert();
        let trusted = trusted.to_str().expect("a path in UTF-8");
        let server = Server::builder().config(&config).variable("SSL_CERT_FILE", trusted).start();
        let (api, witness) = (server.api(), server.witness.clone());
        eventually(word, seconds(20.0), || {
            (api.outside("/readyz").expect(200).json()["parts"]["redis"] == word).then_some(())
        });
        let id = api.shell(&witness.quick_shell("true"), &json!({})).id().to_owned();
        api.wait_state(&id, "completed", seconds(20.0));
        let beat = || redis.ask(&["get", &format!("{prefix}scheduler:heartbeat")]);
        if word == "up" {
            eventually("a heartbeat", seconds(20.0), || (!beat().is_empty()).then_some(()));
        } else {
            assert!(beat().is_empty(), "nothing is told to a stranger");
            let log = server.log_text().to_lowercase();
            assert!(log.contains("certificate"), "it says why: {}", server.log_tail());
        }
    }
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
