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
        ("emptied each second under load", || emptied_each_second(&[])),
        ("the same, with whole tasks in it", || emptied_each_second(&KEEPS)),
        ("killed under load", || killed_under_load(&[])),
        ("the same, with whole tasks in it", || killed_under_load(&KEEPS)),
        ("a line that is dead and says nothing", silent),
        ("killed, back empty, and frozen", killed_and_frozen),
        ("over TLS", over_tls),
        ("another store's", another_stores),
        ("what the node shows", shown),
        ("how the servers are set up", doctor),
        ("what it lists and the database does not have", audited),
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
    soon: Duration,
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
    // A machine that is busy otherwise takes longer for as many.
    while Instant::now() < end || accepted.len() <= 20 {
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
    eventually("all lines are known, and the drift is over", soon, || {
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
    println!("{what}: {} tasks; no drift {over:?} after the last time", accepted.len());
}

/// A Redis that keeps what it is told has whole tasks, any other one hints alone.
const KEEPS: [&str; 2] = ["--appendonly", "yes"];

fn emptied_each_second(keeps: &[&str]) {
    let mut redis = Redis::start(keeps);
    under_load("emptied", &mut redis, seconds(8.0), seconds(10.0), |redis, _| {
        redis.ask(&["flushall"]);
    });
}

fn killed_under_load(keeps: &[&str]) {
    let (mut up, mut redis) = (true, Redis::start(keeps));
    // It is connected to anew, and agreed on anew.
    under_load("killed", &mut redis, seconds(9.0), seconds(30.0), |redis, last| {
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
}

/// `doctor` names each setting of the two servers that breaks a promise, and what helps.
fn doctor() {
    let redis = Redis::start(&["--appendonly", "no", "--maxmemory-policy", "allkeys-lru"]);
    let settings = ["fsync=on", "full_page_writes=off", "max_connections=16"];
    let postgres = Postgres::start(&settings);
    let url = postgres.database("template1");
    let name = url.rsplit('/').next().expect("a name");
    postgres.sql("postgres", &format!("ALTER DATABASE {name} SET synchronous_commit = off"));
    let server = Server::with(&config(&url, &redis, "store_connections: 3\n"));
    let check = |about: &str| {
        let all = server.cli(&["doctor", "--json"]).json();
        let all = all["checks"].as_array().expect("checks").clone();
        let found = all.iter().find(|check| check["check"] == about).cloned();
        let found = found.unwrap_or_else(|| panic!("{about} is not in {all:?}"));
        let hints = found["hints"].as_array().expect("hints");
        assert_eq!(found["verdict"] == "ok", hints.is_empty(), "{found}");
        (found["verdict"].as_str().expect("a verdict").to_owned(), found.to_string())
    };
    let says = |about: &str, verdict: &str, part: &str| {
        let (found, text) = check(about);
        assert!(found == verdict && text.contains(part), "{about}: no {verdict} {part}: {text}");
    };
    says("postgresql", "bad", "synchronous_commit and full_page_writes off");
    says("redis", "ok", "Redis ");
    says("redis file", "warning", "appendonly yes");
    says("redis memory", "warning", "maxmemory-policy noeviction");
    says("connections", "ok", "1 nodes of this store need 3 each");
    says("store clock", "ok", "off the database's clock");
    let said = server.cli(&["doctor"]).expect(1).out();
    assert!(said.contains("hint: CONFIG SET maxmemory-policy noeviction"), "{said}");

    redis.ask(&["config", "set", "appendonly", "yes", "maxmemory-policy", "noeviction"]);
    postgres.sql("postgres", &format!("ALTER DATABASE {name} RESET synchronous_commit"));
    says("redis file", "ok", "appendonly is on");
    says("redis memory", "ok", "nothing is evicted");
    says("postgresql", "bad", "with full_page_writes off");
    // Others take what there is.
    let others: Vec<_> = (0..5).map(|_| postgres.session("postgres", "SELECT 1")).collect();
    says("connections", "warning", "max_connections");
    drop(others);
    redis.kill();
    says("redis", "warning", "through PostgreSQL alone");
    let (_, text) = check("store clock");
    assert!(text.contains("ok"), "{text}");
}

/// What Redis lists and the database does not have is found, by hand and by the loop, unless
/// somebody drops it in time.
fn audited() {
    let (url, redis) = (database(), Redis::start(&[]));
    let mut server = Server::with(&config(&url, &redis, ""));
    server.cli(&["audit"]).expect(0);
    let kept = server.api().shell("true", &json!({"delay": 600})).id().to_owned();
    eventually("it is listed", seconds(20.0), || {
        redis.ask(&["zrange", "matins:task:delayed", "0", "-1"]).contains(&kept).then_some(())
    });
    let stray = "00000000-0000-7000-8000-000000000001";
    let member = format!("7\t{stray}\t5\tdefault\tcommand");
    let add = |line: &str| redis.ask(&["zadd", line, "7", &member]);
    // A live server drops it before it counts.
    add("matins:task:pending:default");
    server.cli(&["audit"]).expect(0);
    server.stop(seconds(30.0));
    add("matins:task:pending:default");
    add("matins:task:delayed");
    let found = server.cli(&["audit"]).expect(1).out();
    for line in ["task:pending:default", "task:delayed"] {
        let told = format!("redis: {stray}: listed in {line}");
        assert!(found.contains(&told), "{told:?} is not in {found}");
    }
    assert!(!found.contains(&kept), "{found}");
    server.start();
    server.cli(&["audit"]).expect(0);
    // Without Redis nothing can be said of it, and nothing is.
    redis.kill();
    server.cli(&["audit"]).expect(0);
}
