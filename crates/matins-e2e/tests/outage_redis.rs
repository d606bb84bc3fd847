//! PostgreSQL away, Redis there, from outside: what is accepted meanwhile runs once when the
//! database is back, whatever happens to the node.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use matins_e2e::wait::seconds;
use matins_e2e::{Server, eventually, json, together};
use matins_testbed::{Postgres, Redis};

#[test]
fn postgres_away_with_redis() {
    together(&[
        ("tasks are journalled", || journalled(Killed::Never)),
        ("and the server killed meanwhile", || journalled(Killed::AndBackLater)),
        ("and started again meanwhile", || journalled(Killed::AndBack)),
        ("with a Redis that may forget", volatile),
    ]);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Killed {
    Never,
    /// It begins without the database.
    AndBack,
    AndBackLater,
}

struct Bed {
    postgres: Postgres,
    redis: Redis,
    server: Server,
}

fn bed(options: &[&str], more: &str) -> Bed {
    let (postgres, redis) = (Postgres::start(&[]), Redis::start(options));
    let (database, address) = (postgres.url("postgres"), redis.url());
    let config = format!(
        "store: {database}\nredis: {address}\nallow_commands: any\noutage_after: 2s\n{more}"
    );
    let server = Server::with(&config);
    Bed { postgres, redis, server }
}

impl Bed {
    fn mode(&self) -> String {
        let status = self.server.api().get("/status").expect(200).json();
        status["mode"].as_str().expect("a word").to_owned()
    }

    /// Whatever the answer, it is there within what `outage_after` allows.
    fn enqueue(&self, body: &matins_e2e::Value) -> matins_e2e::Response {
        let begin = Instant::now();
        let text = body.to_string();
        let request = self.server.api().request("POST", "/tasks").json(text).timeout(seconds(60.0));
        let answer = self.server.api().send(&request).expect("an answer");
        assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
        answer
    }
}

fn journalled(killed: Killed) {
    let mut bed = bed(&["--appendonly", "yes"], "");
    let witness = bed.server.witness.clone();
    let body = || json!({"type": "command", "payload": {"shell": witness.quick_shell("true")}});
    let before = bed.enqueue(&body()).expect(201).json()["id"].as_str().unwrap().to_owned();
    bed.server.api().wait_state(&before, "completed", seconds(30.0));
    bed.postgres.stop("immediate");
    let mut accepted = BTreeSet::from([before]);
    for n in 0..20 {
        let answer = bed.enqueue(&body()).expect(201).json();
        assert_eq!(answer["durability"], "redis", "{answer}");
        let id = answer["id"].as_str().unwrap().to_owned();
        if n == 0 {
            let seen = bed.server.api().get(&format!("/tasks/{id}")).expect(200).json();
            assert_eq!((&seen["state"], &seen["stale"]), (&json!("pending"), &json!(true)));
        }
        assert!(accepted.insert(id));
    }
    assert_eq!(bed.mode(), "outage");
    assert_eq!(bed.server.api().outside("/readyz").status, 200, "it takes tasks");
    assert_eq!(bed.server.api().outside("/healthz").status, 200, "nothing is to be restarted");
    assert_eq!(bed.server.api().metric("matins_outage_mode", ""), Some(1.0));
    eventually("the journal is counted", seconds(5.0), || {
        (bed.server.api().metric("matins_journal_entries", "")? > 19.0).then_some(())
    });
    if killed != Killed::Never {
        bed.server.kill();
    }
    if killed == Killed::AndBack {
        bed.server.start();
        assert_eq!(bed.mode(), "outage");
        let known = accepted.last().expect("some");
        bed.server.api().get(&format!("/tasks/{known}")).expect(200);
        for _ in 0..5 {
            let answer = bed.enqueue(&body()).expect(201).json();
            assert_eq!(answer["durability"], "redis", "{answer}");
            accepted.insert(answer["id"].as_str().unwrap().to_owned());
        }
    }
    bed.postgres.start_again();
    if killed == Killed::AndBackLater {
        bed.server.start();
    }
    for id in &accepted {
        let task = bed.server.api().wait_state(id, "completed", seconds(90.0));
        assert_eq!(task.0["durability"], "store", "{}", task.0);
        assert_eq!(witness.begins(id).len(), 1, "{id} ran once");
    }
    eventually("the outage is over", seconds(30.0), || (bed.mode() == "normal").then_some(()));
    assert_eq!(bed.redis.ask(&["xlen", "matins:journal"]), "0");
    bed.server.assert_no_panic();
}

fn volatile() {
    let refused = bed(&["--appendonly", "no"], "");
    refused.postgres.stop("immediate");
    let body = json!({"type": "command", "payload": {"shell": "true"}});
    let answer = refused.enqueue(&body);
    assert_eq!((answer.status, answer.problem()), (503, "redis_not_durable".to_owned()));
    assert!(answer.header("retry-after").is_some() && answer.text().contains("appendonly"));
    drop(refused);
    let taken = bed(&["--appendonly", "no"], "accept_volatile: true\n");
    taken.postgres.stop("immediate");
    let answer = taken.enqueue(&body).expect(201).json();
    assert_eq!(answer["durability"], "volatile");
    taken.postgres.start_again();
    let id = answer["id"].as_str().unwrap();
    taken.server.api().wait_state(id, "completed", seconds(90.0));
}
