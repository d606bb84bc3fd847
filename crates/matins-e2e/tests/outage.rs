//! PostgreSQL away, without Redis: enqueues are refused and told when to ask again, what runs goes
//! on until its lease could be judged, what has ended waits to be written, and after the return
//! nobody is judged for the time in which nobody could renew.

use std::time::{Duration, Instant};

use matins_e2e::process::{self, Signal};
use matins_e2e::wait::{holds_for, seconds};
use matins_e2e::{Mark, Server, Value, eventually, json, together};
use matins_testbed::{Line, Postgres, Weather};

#[test]
fn postgres_away() {
    together(&[
        ("stopped fast: an end waits to be written", || short(&By::Stop("fast"))),
        ("stopped at once: an end waits to be written", || short(&By::Stop("immediate"))),
        ("frozen: an end waits to be written", || short(&By::Freeze)),
        ("cut off in silence: an end waits to be written", || short(&By::Cut)),
        ("for longer than a lease", long),
    ]);
}

/// How a database of one's own is taken away.
enum By {
    Stop(&'static str),
    Freeze,
    Cut,
}

struct Away<'a> {
    postgres: &'a Postgres,
    line: Line,
    by: &'a By,
}

impl Away<'_> {
    fn begin(&self) {
        match self.by {
            By::Stop(mode) => self.postgres.stop(mode),
            By::Freeze => drop(self.signal(Signal::STOP)),
            By::Cut => self.line.set(Weather::Silent),
        }
    }

    fn end(&self) {
        match self.by {
            By::Stop(_) => self.postgres.start_again(),
            By::Freeze => drop(self.signal(Signal::CONT)),
            By::Cut => self.line.set(Weather::Fine),
        }
    }

    /// The server and its children: each connection has a process of its own.
    fn signal(&self, signal: Signal) -> usize {
        let pid = self.postgres.pid();
        let all = process::descendants(pid).into_iter().map(|one| one.pid).chain([pid]);
        all.filter(|pid| process::signal(*pid, signal)).count()
    }
}

fn url(line: &Line) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", line.port())
}

/// What every enqueue of an outage is answered.
fn refused(server: &Server, body: &Value) {
    let text = body.to_string();
    let request = server.api().request("POST", "/tasks").json(text).timeout(seconds(60.0));
    let answer = server.api().send(&request).expect("the server answers");
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.problem(), "store_unavailable");
    let after = answer.header("retry-after").and_then(|text| text.parse::<u32>().ok());
    assert!(after.is_some_and(|seconds| seconds >= 1), "Retry-After: {after:?}");
}

/// The run ends while the database is away: it is written once, as what it was.
fn short(by: &By) {
    let postgres = Postgres::start(&[]);
    let away = Away { postgres: &postgres, line: Line::to(postgres.port()), by };
    let config = format!("store: {}\nallow_commands: any\nlease: 60s\n", url(&away.line));
    let server = Server::with(&config);
    let witness = server.witness.clone();
    let id = server.api().shell(&witness.shell("sleep 3"), &json!({})).id().to_owned();
    witness.wait_begin(&id, 1, seconds(10.0));
    away.begin();
    // It may have been accepted although no answer came: the id makes the next try the same one.
    let again = uuid::Uuid::new_v4().to_string();
    let body =
        json!({"type": "command", "payload": {"shell": witness.quick_shell("true")}, "id": again});
    refused(&server, &body);
    eventually("it ends", seconds(30.0), || (!witness.ends(&id).is_empty()).then_some(()));
    assert_eq!(server.api().outside("/healthz").status, 200, "nothing is to be restarted");
    away.end();
    let task = server.api().wait_state(&id, "completed", seconds(60.0));
    assert_eq!((task.attempts().len(), task.number("losses")), (1, 0), "{}", task.0);
    eventually("enqueues are accepted again", seconds(60.0), || {
        let answer = server.api().post("/tasks", &body);
        matches!(answer.status, 200 | 201).then_some(())
    });
    server.api().wait_state(&again, "completed", seconds(60.0));
    assert_eq!((witness.begins(&id).len(), witness.begins(&again).len()), (1, 1));
    witness.assert_no_overlap();
    server.assert_no_panic();
}

/// One run is stopped before anybody could judge it; one of a type that finishes goes on, and its
/// result counts, because nobody is judged for a lease's time after the return.
fn long() {
    let postgres = Postgres::start(&[]);
    let mut first = Server::builder().prepare();
    let seen = first.witness.clone();
    let stubborn = seen.shell("sleep 16").replace('\n', "\n      ");
    let config = format!(
        "store: {}\nallow_commands: any\nlease: 6s\ntasks:\n  stubborn:\n    executor: command\n    \
         on_lease_loss: finish\n    shell: |\n      {stubborn}\n",
        postgres.url("postgres")
    );
    first.configure(&config);
    first.start();
    let servers = [first, Server::with(&config)];
    let api = servers[0].api();
    let finishes = api.enqueue(&json!({"type": "stubborn"})).id().to_owned();
    let stops = api.shell(&seen.shell("sleep 16"), &json!({})).id().to_owned();
    let run = seen.wait_begin(&stops, 1, seconds(10.0));
    let on = seen.wait_begin(&finishes, 1, seconds(10.0));
    postgres.stop("fast");
    let began = Instant::now();
    refused(&servers[0], &json!({"type": "command", "payload": {"shell": "true"}}));
    let alive = |mark: &Mark| process::alive(mark.pid);
    holds_for("both go on while their leases stand", seconds(1.5), || alive(&run) && alive(&on));
    eventually("one is stopped", seconds(20.0), || (!alive(&run)).then_some(()));
    assert!(seen.ends(&stops).is_empty(), "it did not come to its end");
    std::thread::sleep(Duration::from_secs(9).saturating_sub(began.elapsed()));
    postgres.start_again();
    let task = servers[0].api().wait_state(&finishes, "completed", seconds(60.0));
    assert_eq!((task.attempts().len(), task.number("losses")), (1, 0), "{}", task.0);
    let task = servers[0].api().wait_state(&stops, "completed", seconds(90.0));
    assert_eq!((task.attempts().len(), task.number("losses")), (2, 1), "{}", task.0);
    assert_eq!((seen.ends(&stops).len(), seen.ends(&finishes).len()), (1, 1));
    seen.assert_no_overlap();
    servers.iter().for_each(Server::assert_no_panic);
}
