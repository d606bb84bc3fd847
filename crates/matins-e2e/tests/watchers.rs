//! Those who watch from outside: `matins watch`, which trusts no clock but its own, and
//! `matins audit`, which finds what somebody broke by hand.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use matins_e2e::process::{self, Signal};
use matins_e2e::stub::Answer;
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Stub, eventually, holds_for, json};
use matins_testbed::{Line, Postgres, Redis, Weather};
use rusqlite::Connection;

const PATIENCE: Duration = Duration::from_secs(60);

/// A `matins watch` of this test's own.
struct Monitor {
    child: Child,
    log: std::path::PathBuf,
}

impl Monitor {
    fn start(mut command: Command, log: &Path, arguments: &[&str]) -> Self {
        let file = File::create(log).expect("a log");
        command.args(["watch", "--after", "4s", "--every", "200ms"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { child: command.spawn().expect("matins can be started"), log: log.to_owned() }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    #[track_caller]
    fn says(&self, what: &str, times: usize) {
        let heard = matins_e2e::wait_for(PATIENCE, || {
            (self.said().matches(what).count() >= times).then_some(())
        });
        assert!(heard.is_some(), "it never says {what:?} {times} times:\n{}", self.said());
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scheduler that stands still is told and restarted once; one that goes on is told, too.
#[test]
fn a_heartbeat_that_stands_still_is_told_and_the_scheduler_restarted() {
    let server = Server::with("heartbeat: 1s\n");
    let restarts = server.folder().join("restarts");
    let command = format!("echo again >> {}", restarts.display());
    let log = server.folder().join("watch.log");
    let monitor = Monitor::start(server.command(), &log, &["--restart-command", &command]);
    monitor.says("watching", 1);
    holds_for("nothing is said of a live scheduler", seconds(6.0), || {
        !monitor.said().contains("rule=")
    });
    server.signal(Signal::STOP);
    monitor.says("rule=\"heartbeat\"", 1);
    monitor.says("the restart command is done", 1);
    // At most one in five minutes.
    thread::sleep(seconds(6.0));
    assert_eq!(fs::read_to_string(&restarts).expect("it was restarted"), "again\n");
    server.signal(Signal::CONT);
    monitor.says("alert is over", 1);
}

/// Whoever ends the monitor need not wait for a restart command that hangs.
#[test]
fn the_monitor_ends_in_the_middle_of_a_restart() {
    let server = Server::builder().prepare();
    let log = server.folder().join("watch.log");
    let mut command = Command::new(matins_e2e::binary::matins());
    command.current_dir(server.folder()).args(["--server", &server.url()]);
    let mut monitor = Monitor::start(command, &log, &["--restart-command", "sleep 100"]);
    monitor.says("restarting the scheduler", 1);
    process::signal(monitor.child.id(), Signal::TERM);
    let ended = || monitor.child.try_wait().expect("a child can be waited for");
    let status = eventually("it ends", seconds(8.0), ended);
    assert!(status.success(), "{status}");
}

/// Over HTTP the server speaks for its loops; one that is gone is silent.
#[test]
fn a_server_that_is_gone_is_told() {
    let mut server = Server::with("heartbeat: 1s\n");
    let log = server.folder().join("watch.log");
    let mut command = Command::new(matins_e2e::binary::matins());
    command.current_dir(server.folder()).args(["--server", &server.url()]);
    let monitor = Monitor::start(command, &log, &[]);
    monitor.says("watching", 1);
    holds_for("nothing is said of a live server", seconds(6.0), || {
        !monitor.said().contains("rule=")
    });
    server.kill();
    monitor.says("rule=\"heartbeat\"", 1);
    server.start();
    monitor.says("alert is over", 1);
}

/// A store out of reach says nothing of the scheduler: it is told, and nobody is restarted.
#[test]
fn a_store_out_of_reach_restarts_nobody() {
    let postgres = Postgres::shared();
    let url = postgres.database("template1");
    let line = Line::to(postgres.port());
    let through = url.replace(&format!(":{}", postgres.port()), &format!(":{}", line.port()));
    assert_ne!(url, through);
    let server = Server::builder().config(&format!("store: {url}\nheartbeat: 1s\n")).start();
    let restarts = server.folder().join("restarts");
    let command = format!("echo again >> {}", restarts.display());
    let log = server.folder().join("watch.log");
    let mut watching = Command::new(matins_e2e::binary::matins());
    watching.current_dir(server.folder()).args(["--store", &through]);
    let monitor = Monitor::start(watching, &log, &["--restart-command", &command]);
    monitor.says("watching", 1);
    thread::sleep(seconds(2.0));
    line.set(Weather::Refused);
    monitor.says("rule=\"store\"", 1);
    line.set(Weather::Fine);
    monitor.says("alert is over", 1);
    holds_for("nothing else is said", seconds(6.0), || !monitor.said().contains("heartbeat\""));
    assert!(!restarts.exists(), "it restarted somebody:\n{}", monitor.said());
}

/// The heartbeat in Redis is enough while it moves; when it is gone or stands still the store is
/// asked, and a store out of reach restarts nobody.
#[test]
fn a_heartbeat_in_redis_is_looked_at_first() {
    let (postgres, mut redis) = (Postgres::shared(), Redis::start(&[]));
    let url = postgres.database("template1");
    let line = Line::to(postgres.port());
    let through = url.replace(&format!(":{}", postgres.port()), &format!(":{}", line.port()));
    let mut server = Server::builder()
        .config(&format!("store: {url}\nredis: {}\nheartbeat: 1s\n", redis.url()))
        .start();
    let restarts = server.folder().join("restarts");
    let command = format!("echo again >> {}", restarts.display());
    let log = server.folder().join("watch.log");
    let mut watching = server.command();
    watching.args(["--store", &through]);
    let monitor = Monitor::start(watching, &log, &["--restart-command", &command]);
    monitor.says("watching", 1);
    let beating = || !redis.ask(&["get", "matins:scheduler:heartbeat"]).is_empty();
    eventually("it beats", PATIENCE, || beating().then_some(()));
    // The store is out of the monitor's reach, and it need not ask it.
    line.set(Weather::Refused);
    holds_for("the heartbeat in Redis is enough", seconds(8.0), || {
        !monitor.said().contains("rule=")
    });
    // Without Redis the store is asked, and one out of reach is no reason to restart anybody.
    redis.kill();
    monitor.says("rule=\"store\"", 1);
    line.set(Weather::Fine);
    monitor.says("alert is over", 1);
    // Emptied again and again, Redis says little, and nothing that is wrong.
    redis.start_again();
    holds_for("the scheduler is well", seconds(8.0), || {
        redis.ask(&["flushall"]);
        !monitor.said().contains("heartbeat\"")
    });
    assert!(!restarts.exists(), "it restarted somebody:\n{}", monitor.said());
    server.kill();
    monitor.says("rule=\"heartbeat\"", 1);
    monitor.says("the restart command is done", 1);
    redis.kill();
    server.start();
    eventually("it beats in the store alone", PATIENCE, || {
        (monitor.said().matches("alert is over").count() >= 2).then_some(())
    });
}

/// Each invariant is broken by hand, and found.
#[test]
fn the_auditor_finds_what_somebody_broke() {
    let mut server = Server::with(
        "lease: 1s\nschedules:\n  nightly: {schedule: \"0 2 * * *\", type: command, \
         payload: {argv: [\"true\"]}}\n  tick: {schedule: \"* * * * * *\", type: command, \
         payload: {argv: [\"true\"]}}\n",
    );
    let api = server.api();
    eventually("it fires", PATIENCE, || (api.occurrences("tick").len() > 2).then_some(()));
    let clean = server.cli(&["audit"]).expect(0);
    assert!(clean.out().starts_with("certified: 2 schedules"), "{}", clean.out());
    let over_http = server.cli_over_http(&["audit", "--json"]).expect(0).json();
    assert_eq!(over_http["clean"], true, "{over_http}");
    let id = api.shell(&server.witness.shell("sleep 60"), &json!({})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(10.0));
    server.kill();

    // What a dead server left is found once its lease and two sweeps are over.
    eventually("the orphan is found", PATIENCE, || {
        let found = server.cli(&["audit", "--json"]).json();
        let orphan =
            |one: &matins_e2e::Value| one["invariant"] == "running" && one["subject"] == id;
        found["violations"].as_array().is_some_and(|all| all.iter().any(orphan)).then_some(())
    });
    let breaks = [
        (
            "armed",
            "UPDATE schedule SET state = json_set(state, '$.next_due', \
          '2099-01-01T00:00:00Z') WHERE name = 'nightly'",
        ),
        (
            "armed",
            "UPDATE schedule SET next_due = NULL, state = json_set(state, '$.next_due', \
          NULL) WHERE name = 'nightly'",
        ),
        (
            "overdue",
            "UPDATE schedule SET state = json_set(state, '$.cursor', \
          '2020-01-01T00:00:00Z', '$.next_due', '2020-01-01T02:00:00Z') WHERE name = 'nightly'",
        ),
        (
            "balance",
            "UPDATE schedule SET state = json_set(state, '$.balance.fired', 41) \
          WHERE name = 'nightly'",
        ),
    ];
    let connection = Connection::open(server.database()).expect("the file can be opened");
    connection.busy_timeout(seconds(10.0)).expect("a timeout can be set");
    let sound: (String, Option<i64>) = connection
        .query_row("SELECT state, next_due FROM schedule WHERE name = 'nightly'", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .expect("the schedule is there");
    for (invariant, statement) in breaks {
        connection.execute(statement, []).expect("it is broken");
        let found = server.cli(&["audit"]).expect(1);
        let named = format!("{invariant}: nightly: ");
        assert!(found.out().contains(&named), "{statement}\n{}", found.out());
        assert!(found.out().contains("hint: "), "{}", found.out());
        let mended = "UPDATE schedule SET state = ?1, next_due = ?2 WHERE name = 'nightly'";
        connection.execute(mended, (&sound.0, sound.1)).expect("it is mended");
        let found = server.cli(&["audit"]);
        assert!(!found.out().contains("nightly: "), "{}", found.out());
    }
    // A worker's entry that is gone.
    connection.execute("DELETE FROM worker", []).expect("they are gone");
    let found = server.cli(&["audit"]).expect(1);
    assert!(found.out().contains("which is gone"), "{}", found.out());
}

/// The same in PostgreSQL.
#[test]
fn the_auditor_finds_it_in_a_database_too() {
    let postgres = Postgres::shared();
    let url = postgres.database("template1");
    let server = Server::builder()
        .config(&format!(
            "store: {url}\nschedules:\n  nightly: {{schedule: \"0 2 * * *\", type: command, \
             payload: {{argv: [\"true\"]}}}}\n"
        ))
        .start();
    server.cli(&["audit"]).expect(0);
    let database = url.rsplit('/').next().expect("a database");
    postgres.sql(
        database,
        "UPDATE matins.schedule SET state = jsonb_set(state::jsonb, '{balance,missed}', '7')::text \
         WHERE name = 'nightly'",
    );
    let found = server.cli(&["audit"]).expect(1);
    assert!(found.out().contains("balance: nightly: 0 were expected, 7"), "{}", found.out());
}

/// An outside switch is called with every heartbeat, and no longer when the scheduler is dead.
#[test]
fn the_outside_switch_is_called_while_it_lives() {
    let stub = Stub::start(|_| Answer::new(200, "OK"));
    let url = format!("http://{}/ping/secret", stub.address);
    let mut server = Server::builder()
        .config("heartbeat: 1s\nheartbeat_url: env:SWITCH\n")
        .variable("SWITCH", &url)
        .start();
    let calls = stub.count();
    eventually("it is called", PATIENCE, || (stub.count() >= calls + 3).then_some(()));
    server.kill();
    let calls = stub.count();
    thread::sleep(seconds(3.0));
    assert_eq!(stub.count(), calls);
    assert!(!server.log_text().contains("secret"), "{}", server.log_text());
}

/// A line of a foreign crontab reports with a token that can do little else; its silence is told,
/// and so is its next report.
#[test]
fn a_job_of_others_that_falls_silent_is_told() {
    let server =
        Server::with("pings:\n  backup: {period: 3s, grace: 1s}\n  weekly: {period: 7d}\n");
    let made = server.cli(&["token", "create", "crontab", "--role", "enqueue", "--json"]).expect(0);
    let token = made.json()["secret"].as_str().expect("a secret").to_owned();
    let crontab = matins_e2e::Api::new(server.address(), &token);
    crontab.post("/pings/nobody", &json!({})).expect(404);
    crontab.get("/pings").expect(403);
    crontab.send(&crontab.request("POST", "/pings/backup")).expect("an answer").expect(204);
    let pings = server.api().get("/pings").expect(200).json();
    assert_eq!(pings["pings"][0]["name"], "backup", "{pings}");
    assert!(pings["pings"][0]["last"].is_string() && pings["pings"][1]["last"].is_null());
    eventually("its silence is told", PATIENCE, || {
        server.log_text().contains("rule=\"ping\" subject=\"backup\"").then_some(())
    });
    assert!(!server.log_text().contains("subject=\"weekly\""), "{}", server.log_text());
    eventually("its report is told", PATIENCE, || {
        let report = crontab.request("POST", "/pings/backup");
        crontab.send(&report).expect("an answer").expect(204);
        thread::sleep(seconds(0.5));
        server.log_text().contains("alert is over").then_some(())
    });
}

/// A canary goes through each pool, is marked as one, and only one of each is under way; a pool
/// that is full or paused is no silent one.
#[test]
fn canaries_go_through_each_pool() {
    let config = "canary: 5s\ntask_pools:\n  narrow: {max_workers: 1, task_types: [nothing]}\n";
    let server = Server::with(config);
    let api = server.api();
    server.cli(&["pool", "pause", "narrow"]).expect(0);
    let canaries = |query: &str| api.list(&format!("type=matins.canary&{query}"));
    eventually("one came back", PATIENCE, || {
        (!canaries("pool=default&state=completed").is_empty()).then_some(())
    });
    let waiting = eventually("one waits in the paused pool", PATIENCE, || {
        canaries("pool=narrow&state=pending").pop()
    });
    assert_eq!(waiting.0["tags"], json!(["canary"]), "{}", waiting.0);
    thread::sleep(seconds(11.0));
    assert_eq!(canaries("pool=narrow").len(), 1, "one at a time");
    assert!(!server.log_text().contains("rule=\"canary\""), "{}", server.log_text());
    server.cli(&["pool", "resume", "narrow"]).expect(0);
    api.wait_state(waiting.id(), "completed", PATIENCE);
    // Whoever lists his tasks does not mean them, unless he names them.
    let own = api.shell("true", &json!({})).id().to_owned();
    let listed = server.cli(&["list"]).expect(0);
    assert!(listed.out().contains(&own) && !listed.out().contains("canary"), "{}", listed.out());
    assert!(listed.err().contains("canaries are left out"), "{}", listed.err());
    let named = server.cli(&["list", "--type", "matins.canary"]).expect(0);
    assert!(named.out().contains(waiting.id()), "{}", named.out());
    let quiet = Server::with("canary: off\n");
    thread::sleep(seconds(7.0));
    assert!(quiet.api().list("type=matins.canary").is_empty());
}

/// Every loop but one turns, no hang is told, and still nothing comes out of a pool.
#[test]
fn a_pool_from_which_nothing_comes_back_is_told() {
    let mut server = Server::builder()
        .config(
            "canary: 5s\nstall_after: 10m\nalerts: {rules: {canary: {after: 5s}}}\n\
             task_pools:\n  narrow: {max_workers: 1, task_types: [nothing]}\n",
        )
        .prepare();
    let park = server.folder().join("park");
    server.set_variable("MATINS_PARK_LOOPS", &park.display().to_string());
    fs::write(&park, "claimer:narrow").expect("the failpoint is set");
    server.start();
    let told = |pool: &str| {
        let log = server.log_text();
        log.lines().any(|line| line.contains("rule=\"canary\"") && line.contains(pool))
    };
    eventually("it is told", PATIENCE, || told("/narrow").then_some(()));
    assert!(!told("/default"), "{}", server.log_text());
}
