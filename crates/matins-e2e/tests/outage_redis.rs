//! PostgreSQL away, Redis there, from outside: what is accepted meanwhile runs once when the
//! database is back, whatever happens to the node.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use matins_e2e::wait::{holds_for, seconds};
use matins_e2e::{Server, eventually, json, together};
use matins_testbed::{Line, Postgres, Redis, Weather};

#[test]
fn postgres_away_with_redis() {
    together(&[
        ("tasks are journalled", || journalled(Killed::Never)),
        ("and the server killed meanwhile", || journalled(Killed::AndBackLater)),
        ("and started again meanwhile", || journalled(Killed::AndBack)),
        ("with a Redis that may forget", volatile),
        ("whoever waits is told for what", waiting),
        ("the way back takes long", long_way_back),
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

/// PostgreSQL answers again, and what was journalled is not in it yet: no loop is to blame.
fn long_way_back() {
    let (postgres, redis) = (Postgres::start(&[]), Redis::start(&["--appendonly", "yes"]));
    let line = Line::to(postgres.port());
    let url = postgres.url("postgres");
    let url = url.replace(&postgres.port().to_string(), &line.port().to_string());
    let config = format!(
        "store: {url}\nredis: {}\nallow_commands: any\noutage_after: 2s\nstall_after: 3s\n",
        redis.url()
    );
    let server = Server::with(&config);
    let (api, witness) = (server.api(), server.witness.clone());
    line.set(Weather::Refused);
    let body = json!({"type": "command", "execution_key": "k",
                      "payload": {"shell": witness.quick_shell("true")}});
    let request = api.request("POST", "/tasks").json(body.to_string()).timeout(seconds(60.0));
    let answer = api.send(&request).expect("an answer").expect(201).json();
    assert_eq!(answer["durability"], "redis", "{answer}");
    let held = postgres.session("postgres", "BEGIN; LOCK TABLE matins.journal_entry");
    line.set(Weather::Fine);
    holds_for("no loop counts as stalled", seconds(15.0), || api.health().0 == 200);
    drop(held);
    api.wait_state(answer["id"].as_str().expect("an id"), "completed", seconds(60.0));
    server.assert_no_panic();
}

/// Commands that wait for a task wait through the outage, and say so.
fn waiting() {
    let bed = bed(&["--appendonly", "yes"], "");
    bed.postgres.stop("immediate");
    let new = bed.enqueue(&json!({"type": "command", "payload": {"argv": ["true"]}}));
    let new = new.expect(201).json()["id"].as_str().unwrap().to_owned();
    let said = std::thread::scope(|scope| {
        let wait = |arguments: &'static [&'static str]| {
            let server = &bed.server;
            scope.spawn(move || server.cli_over_http(arguments))
        };
        let enqueued = wait(&["enqueue", "command", "--payload", r#"{"argv":["true"]}"#, "--wait"]);
        let ran = wait(&["run", "--", "echo", "hello"]);
        std::thread::sleep(seconds(10.0));
        assert!(!enqueued.is_finished() && !ran.is_finished(), "they wait");
        let why = bed.server.cli_over_http(&["why", &new]).expect(0);
        assert!(why.out().contains("PostgreSQL is away"), "{}", why.out());
        bed.postgres.start_again();
        [enqueued, ran].map(|waiting| waiting.join().expect("no panic"))
    });
    for output in said {
        let told = output.expect(0).err();
        assert_eq!(told.matches("waiting: PostgreSQL is away").count(), 1, "{told}");
    }
}

/// How long PostgreSQL is away.
const AWAY: f64 = 60.0;

/// When the server is killed meanwhile.
const KILLED_AT: f64 = 20.0;

/// Types of the server's own file run meanwhile, what had been accepted before and what comes, and
/// schedules fire.
#[test]
fn work_goes_on_from_redis_alone() {
    together(&[
        ("by one process", || dark(Killed::Never)),
        ("by one that is killed and begins again", || dark(Killed::AndBack)),
    ]);
}

fn dark(killed: Killed) {
    let (postgres, redis) = (Postgres::start(&[]), Redis::start(&["--appendonly", "yes"]));
    let mut server = Server::builder().prepare();
    let witness = server.witness.clone();
    let job = |work: &str| json!(witness.quick_shell(work)).to_string();
    let base = format!(
        "store: {}\nredis: {}\noutage_after: 2s\nlease: 6s\n\
         allow_commands: any\n",
        postgres.url("postgres"),
        redis.url()
    );
    let tasks = format!(
        "tasks:\n  job: {{executor: command, shell: {}}}\n  long: {{executor: command, shell: {}}}\n",
        job("true"),
        job("sleep 75")
    );
    let schedules = "schedules:\n\
         \x20 five: {schedule: '*/5 * * * * *', type: job, overlap: allow}\n\
         \x20 six: {schedule: '*/6 * * * * *', type: job}\n\
         \x20 keyed: {schedule: '*/10 * * * * *', type: job, execution_key: '{{ occurrence.key }}'}\n";
    server.configure(&(base + &tasks + schedules));
    server.start();
    let mut bed = Bed { postgres, redis, server };
    let body = |kind: &str, delay: u32| json!({"type": kind, "delay": format!("{delay}s")});
    let id = |answer: matins_e2e::Response| {
        answer.expect(201).json()["id"].as_str().expect("an id").to_owned()
    };
    // Due while PostgreSQL is away, some of them after the server was killed.
    let before: Vec<String> = (0..10).map(|n| id(bed.enqueue(&body("job", 20 + 3 * n)))).collect();
    eventually("they are mirrored", seconds(60.0), || {
        (bed.server.api().metric("matins_redis_mirrored", "")? >= 10.0).then_some(())
    });
    let fired_before = fired(&bed, "five").len();
    bed.postgres.stop("immediate");
    let began = Instant::now();
    let mut new: Vec<String> = (0..10).map(|_| id(bed.enqueue(&body("job", 0)))).collect();
    let long = id(bed.enqueue(&body("long", 0)));
    let ad_hoc = json!({"type": "command", "payload": {"shell": witness.quick_shell("true")}});
    let ad_hoc = id(bed.enqueue(&ad_hoc));
    let until = |span: f64| {
        std::thread::sleep(seconds(span).saturating_sub(began.elapsed()));
    };
    eventually("new ones run without PostgreSQL", seconds(30.0), || {
        new.iter().chain([&long]).all(|id| witness.begins(id).len() == 1).then_some(())
    });
    until(KILLED_AT);
    assert_eq!(bed.mode(), "outage");
    let by_schedule = witness.begun();
    if killed == Killed::AndBack {
        bed.server.kill();
        bed.server.start();
        assert_eq!(bed.mode(), "outage");
        new.extend((0..5).map(|_| id(bed.enqueue(&body("job", 0)))));
    }
    until(AWAY - 2.0);
    let all = || before.iter().chain(&new);
    assert!(all().all(|id| witness.begins(id).len() == 1), "they run without PostgreSQL");
    // Eight of the one and six of the other, at least, beside what was due and new.
    let more = witness.begun() - by_schedule;
    assert!(more >= 14, "schedules fire without PostgreSQL: {more}");
    assert_eq!(witness.begins(&ad_hoc).len(), 0, "what no file defines waits");
    until(AWAY);
    bed.postgres.start_again();
    for id in all().chain([&ad_hoc]) {
        bed.server.api().wait_state(id, "completed", seconds(120.0));
        assert_eq!(witness.begins(id).len(), 1, "{id} ran once");
    }
    let ran = bed.server.api().wait_state(&long, "completed", seconds(150.0));
    let runs = if killed == Killed::Never { 1 } else { 2 };
    assert_eq!(witness.begins(&long).len(), runs, "{}", ran.0);
    eventually("the outage is over", seconds(30.0), || (bed.mode() == "normal").then_some(()));
    assert_eq!(bed.redis.ask(&["xlen", "matins:journal"]), "0");
    // Not one mark was left out, and each has its task, which ran once.
    for (name, period) in [("five", 5), ("six", 6), ("keyed", 10)] {
        let occurrences = fired(&bed, name);
        let marks: Vec<i64> = occurrences.iter().map(|(at, _)| *at).collect();
        let expected: Vec<i64> =
            (marks[0]..=*marks.last().unwrap()).step_by(period as usize).collect();
        match name {
            "five" => {
                assert_eq!(marks, expected, "one task for each mark");
                assert!(marks.len() - fired_before >= 13, "{marks:?}");
            }
            // What was held, or waited for the database, is passed over by its own rules.
            _ => assert!(marks.iter().all(|mark| expected.contains(mark)), "{name}: {marks:?}"),
        }
        for (mark, task) in occurrences {
            bed.server.api().wait_state(&task, "completed", seconds(60.0));
            assert_eq!(witness.begins(&task).len(), 1, "{name} {mark}");
        }
    }
    bed.server.cli(&["audit"]).expect(0);
    bed.server.assert_no_panic();
    assert!(bed.server.running());
}

/// Marks of a schedule that fired, in order, and their tasks.
fn fired(bed: &Bed, schedule: &str) -> Vec<(i64, String)> {
    let path = format!("/schedules/{schedule}/occurrences?limit=200");
    let found = bed.server.api().get(&path).expect(200).json();
    let found = found["occurrences"].as_array().expect("a list");
    let fired = found.iter().filter(|one| one["outcome"] == "fired");
    let mut fired: Vec<(i64, String)> = fired
        .map(|one| {
            let at = one["time"].as_str().expect("a time");
            let task = one["task_id"].as_str().expect("a task");
            (matins_e2e::api::seconds_of(at) as i64, task.to_owned())
        })
        .collect();
    fired.sort();
    fired
}
