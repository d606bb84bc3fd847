//! Nobody is woken because a process died or hung: the parent starts it again, tells why, and
//! never outlives or abandons it.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::alerts::{ok, told, webhook};
use matins_e2e::process::{self, Signal};
use matins_e2e::server::exit_code;
use matins_e2e::wait::seconds;
use matins_e2e::{Server, ServerBuilder, eventually, holds_for, json, together, wait_for};
use matins_testbed::{Line, Postgres, Weather, skipped};
use rusqlite::Connection;

/// Settings under which a hang is noticed soon.
const QUICK: &str = "stall_after: 3s\nheartbeat: 1s\nlease: 4s\n\
    schedules:\n  tick: {schedule: \"* * * * * *\", type: command, payload: {argv: [\"true\"]}}\n";

/// Servers with a parked loop. They mostly wait.
const PARKED_AT_ONCE: usize = 6;

/// For what takes seconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn supervised() -> ServerBuilder {
    Server::builder().supervised()
}

/// The server's process once it is another than `before`, and ready.
#[track_caller]
fn successor(server: &Server, before: u32) -> u32 {
    let pid = eventually("another process serves", PATIENCE, || {
        server.served_by().filter(|pid| *pid != before)
    });
    eventually("it is ready", PATIENCE, || server.ready().then_some(()));
    pid
}

#[track_caller]
fn child(server: &Server) -> u32 {
    server.served_by().expect("the parent has a child")
}

#[test]
fn it_is_started_again_and_ends_with_its_parent() {
    together(&[
        ("the child is killed", killed_child),
        ("the parent is killed", killed_parent),
        ("the child stands still", stopped_child),
        ("it dies again and again", crash_loop),
        ("both are killed", both_killed),
    ]);
}

fn killed_child() {
    let server = supervised().config("defaults: {grace: 500ms}\n").start();
    let api = server.api();
    let work = server.witness.shell("if [ $MATINS_ATTEMPT = 1 ]; then sleep 60; fi");
    let id = api.shell(&work, &json!({})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(10.0));
    let first = child(&server);
    process::signal(first, Signal::KILL);
    successor(&server, first);
    let task = api.wait_state(&id, "completed", PATIENCE);
    assert_eq!((task.number("attempt"), task.number("losses")), (2, 1), "{:#}", task.0);
    server.witness.assert_no_overlap();
    let log = server.log_text();
    assert!(log.contains("signal 9"), "{log}");
    assert!(log.contains("restarted"), "the successor tells the alert: {log}");
}

/// SIGKILL of the parent leaves nothing: neither the server nor what its tasks started.
fn killed_parent() {
    let mut server = supervised().config("defaults: {grace: 500ms}\n").start();
    let api = server.api();
    let id = api.shell(&server.witness.shell("setsid sleep 60 & sleep 60"), &json!({}));
    server.witness.wait_begin(id.id(), 1, seconds(10.0));
    let first = child(&server);
    server.kill();
    let gone = wait_for(seconds(2.0), || (!process::alive(first)).then_some(()));
    assert!(gone.is_some(), "the child outlives its parent");
    server.assert_no_workers(seconds(5.0));
    server.start();
    let task = server.api().task(id.id());
    assert!(task.number("attempt") >= 1, "{:#}", task.0);
}

/// `/healthz` cannot answer while the process stands still; the parent needs no answer.
fn stopped_child() {
    let server = supervised().config(QUICK).start();
    let first = child(&server);
    eventually("it fires", PATIENCE, || {
        (!server.api().occurrences("tick").is_empty()).then_some(())
    });
    process::signal(first, Signal::STOP);
    let stopped = Instant::now();
    successor(&server, first);
    let away = stopped.elapsed();
    assert!(away >= seconds(2.5), "it was given its time: {away:?}");
    assert!(!process::alive(first));
    let log = server.log_text();
    assert!(log.contains("no sign of life"), "{log}");
    // What was due meanwhile is decided: fired, or coalesced into a later one.
    let api = server.api();
    let many = away.as_secs() as usize;
    eventually("schedules are caught up", PATIENCE, || {
        let decided: u64 = api.occurrences("tick").iter().filter_map(|o| o["count"].as_u64()).sum();
        (decided as usize > many).then_some(())
    });
}

fn crash_loop() {
    let server = supervised().start();
    let mut pid = child(&server);
    for _ in 0..3 {
        process::signal(pid, Signal::KILL);
        pid = successor(&server, pid);
    }
    let log = eventually("a crash loop is told", seconds(10.0), || {
        Some(server.log_text()).filter(|log| log.contains("crash_loop"))
    });
    assert_eq!(log.matches("it is started again").count(), 3, "{log}");
}

fn both_killed() {
    let mut server = supervised().start();
    let first = child(&server);
    process::signal(first, Signal::KILL);
    server.kill();
    server.start();
    assert_ne!(child(&server), first);
    assert_eq!(server.stop(seconds(20.0)).code(), Some(0));
}

/// Each loop in turn is parked for ever: it is named, told and written down, and the process is
/// started anew.
#[test]
fn a_loop_that_hangs_is_named_and_the_process_started_again() {
    let loops = Mutex::new(loops());
    thread::scope(|scope| {
        for _ in 0..PARKED_AT_ONCE {
            scope.spawn(|| {
                while let Some(name) = next(&loops) {
                    parked(&name);
                }
            });
        }
    });
}

fn next(loops: &Mutex<Vec<String>>) -> Option<String> {
    loops.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

/// All that a server has.
fn loops() -> Vec<String> {
    let server = Server::with("");
    let text = server.api().outside("/metrics").expect(200).text();
    let label = |line: &str| {
        let (_, rest) = line.split_once("matins_loop_age_seconds{loop=\"")?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let loops: Vec<String> = text.lines().filter_map(label).collect();
    assert!(loops.len() > 15, "{loops:?}");
    loops
}

fn parked(name: &str) {
    let mut server = supervised().config(QUICK).prepare();
    let park = server.folder().join("park");
    server.set_variable("MATINS_PARK_LOOPS", &park.display().to_string());
    server.start();
    let api = server.api();
    let first = child(&server);
    fs::write(&park, name).expect("the failpoint is set");
    let body = eventually(&format!("/healthz names {name}"), PATIENCE, || {
        let (status, body) = api.health();
        (status == 503).then_some(body)
    });
    let named = body["stalled"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
    assert!(named, "{name} is parked, and {body}");
    fs::remove_file(&park).expect("the failpoint is taken away");
    successor(&server, first);
    let log = server.log_text();
    assert!(log.contains("a loop has not turned"), "{name} is written down: {log}");
    assert!(log.contains("rule=\"stalled\""), "{name} is told: {log}");
    assert!(log.contains("rule=\"restarted\""), "the restart after {name} is told: {log}");
    // The old process was told to be its own fault, not that of its tasks.
    let id = api.shell("true", &json!({})).id().to_owned();
    api.wait_state(&id, "completed", PATIENCE);
    assert_eq!(server.stop(PATIENCE).code(), Some(0));
}

/// B03 with a parent: a lock that somebody else holds. A restart does not mend it, and does no harm:
/// when the lock is gone, work goes on.
#[test]
fn a_lock_held_from_outside_is_told_and_survived() {
    together(&[("on the file", locked_file), ("on tables", locked_tables)]);
}

fn locked_file() {
    let server = supervised().config(QUICK).start();
    survives_a_lock(&server, || {
        let lock = Connection::open(server.database()).expect("the file can be opened");
        lock.busy_timeout(seconds(10.0)).expect("a timeout can be set");
        lock.execute_batch("BEGIN EXCLUSIVE").expect("the lock is taken");
        lock
    });
}

fn locked_tables() {
    let url = Postgres::shared().database("template1");
    let server =
        supervised().config(&format!("store: {url}\nallow_commands: any\n{QUICK}")).start();
    survives_a_lock(&server, || {
        let lock = "BEGIN; LOCK TABLE matins.schedule, matins.task, matins.ready, matins.running \
                    IN ACCESS EXCLUSIVE MODE";
        Postgres::shared().session(url.rsplit('/').next().expect("a name"), lock)
    });
}

fn survives_a_lock<L>(server: &Server, take: impl FnOnce() -> L) {
    let (api, first) = (server.api(), child(server));
    eventually("it fires", PATIENCE, || (!api.occurrences("tick").is_empty()).then_some(()));
    let lock = take();
    let body = eventually("/healthz turns 503", PATIENCE, || {
        let (status, body) = api.health();
        (status == 503).then_some(body)
    });
    assert!(body["stalled"].as_array().is_some_and(|loops| !loops.is_empty()), "{body}");
    eventually("it is restarted", PATIENCE, || (!process::alive(first)).then_some(()));
    let log = server.log_text();
    assert!(log.contains("rule=\"stalled\""), "it is told: {log}");
    thread::sleep(seconds(3.0));
    drop(lock);
    eventually("it serves again", PATIENCE, || server.ready().then_some(()));
    let before = api.occurrences("tick").len();
    eventually("schedules go on", PATIENCE, || {
        (api.occurrences("tick").len() > before).then_some(())
    });
    server.assert_no_panic();
}

/// With nothing set but who is told: within 90 s it is told and started again, and schedules are
/// caught up.
#[test]
fn a_hang_is_mended_within_ninety_seconds_by_default() {
    together(&[
        ("the process stands still", || mended(stop)),
        ("a loop is parked", || mended(park_the_scheduler)),
    ]);
}

fn stop(_: &Path, pid: u32) {
    assert!(process::signal(pid, Signal::STOP));
}

fn park_the_scheduler(park: &Path, _: u32) {
    fs::write(park, "scheduler").expect("the failpoint is set");
}

fn mended(hang: impl FnOnce(&Path, u32)) {
    let stub = ok();
    let tick = QUICK.split_once("schedules:").expect("schedules").1;
    let config = format!("schedules:{tick}alerts: {{channels: {{ops: {}}}}}\n", webhook(&stub));
    let mut server = supervised().config(&config).prepare();
    let park = server.folder().join("park");
    server.set_variable("MATINS_PARK_LOOPS", &park.display().to_string());
    server.start();
    let first = child(&server);
    eventually("it fires", PATIENCE, || {
        (!server.api().occurrences("tick").is_empty()).then_some(())
    });
    hang(&park, first);
    let hung = Instant::now();
    eventually("the first is ended", seconds(90.0), || (!process::alive(first)).then_some(()));
    let _ = fs::remove_file(&park);
    successor(&server, first);
    eventually("it is told", PATIENCE, || {
        told(&stub).iter().any(|told| told.0 == "restarted").then_some(())
    });
    let away = hung.elapsed();
    println!("told and started again after {away:?}");
    assert!(away < seconds(90.0), "{away:?}");
    eventually("schedules are caught up", PATIENCE, || {
        let decided = server.api().occurrences("tick");
        let decided: u64 = decided.iter().filter_map(|one| one["count"].as_u64()).sum();
        (decided > away.as_secs()).then_some(())
    });
}

/// A node that gets little of the processor is slow, not hung.
#[test]
fn a_starved_server_is_not_taken_for_a_hung_one() {
    let config = QUICK.replace("stall_after: 3s", "stall_after: 10s");
    let mut server = supervised().config(&config).wrapper(&["nice", "-n", "5"]).prepare();
    server.start();
    let first = child(&server);
    let mut burners: Vec<_> = (0..8)
        .map(|_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh"))
        .collect();
    let steady = wait_for(seconds(18.0), || (server.served_by() != Some(first)).then_some(()));
    for burner in &mut burners {
        let _ = burner.kill();
        let _ = burner.wait();
    }
    assert!(steady.is_none(), "it was restarted:\n{}", server.log_tail());
    eventually("it is healthy", PATIENCE, || (server.api().health().0 == 200).then_some(()));
}

#[test]
fn exit_codes_are_those_of_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let serve = |arguments: &[&str]| {
        let mut command = Command::new(matins_e2e::binary::matins());
        command.current_dir(folder.path()).arg("serve").args(arguments);
        let begin = Instant::now();
        let output = command.output().expect("matins can be started");
        assert!(begin.elapsed() < seconds(20.0), "it is not tried for ever");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    fs::write(folder.path().join("matins.yaml"), "listen: nowhere\n").expect("a file");
    let (code, said) = serve(&[]);
    assert_eq!(code, Some(2), "{said}");
    fs::remove_file(folder.path().join("matins.yaml")).expect("the file is removed");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, said) = serve(&["--listen", &address]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("something else listens there"), "{said}");
}

/// SIGTERM drains, also when a whole control group gets it; the second one hurries.
#[test]
fn signals_reach_the_server_once() {
    let mut server = supervised().config("drain_timeout: 30s\n").start();
    let api = server.api();
    let id = api.shell(&server.witness.shell("sleep 3"), &json!({})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(10.0));
    process::signal(child(&server), Signal::TERM);
    server.signal(Signal::TERM);
    let status = server.wait_exit(PATIENCE);
    assert_eq!(exit_code(status), 0);
    assert_eq!(server.witness.ended(), 1, "it was let finish");

    server.start();
    let id = server.api().shell(&server.witness.shell("sleep 60"), &json!({})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(10.0));
    server.signal(Signal::TERM);
    thread::sleep(seconds(0.7));
    let hurried = Instant::now();
    server.signal(Signal::TERM);
    let status = server.wait_exit(PATIENCE);
    assert_eq!(exit_code(status), 0);
    assert!(hurried.elapsed() < seconds(15.0), "{:?}", hurried.elapsed());
    server.start();
    let task = server.api().task(&id);
    assert_eq!((task.number("losses"), task.number("interruptions")), (0, 1), "{:#}", task.0);
}

/// systemd hears from the main process alone, and its watchdog is fed.
#[test]
fn systemd_is_told_by_the_parent() {
    let mut server = supervised().prepare();
    let socket: PathBuf = server.folder().join("notify");
    let listener = UnixDatagram::bind(&socket).expect("a socket");
    listener.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    server.set_variable("NOTIFY_SOCKET", &socket.display().to_string());
    server.set_variable("WATCHDOG_USEC", "2000000");
    server.start();
    let told = |word: &str| {
        let mut buffer = [0; 1_024];
        let mut heard = String::new();
        while !heard.contains(word) {
            let size = listener.recv(&mut buffer).expect("a word for systemd");
            heard.push_str(&String::from_utf8_lossy(&buffer[..size]));
        }
    };
    told("READY=1");
    told("WATCHDOG=1");
    let environment = process::of(child(&server)).expect("the child lives").environment;
    assert!(environment.iter().all(|(name, _)| name != "NOTIFY_SOCKET"), "{environment:?}");
    process::signal(child(&server), Signal::KILL);
    told("starting again: signal 9");
    told("READY=1");
    server.signal(Signal::TERM);
    told("STOPPING=1");
    assert_eq!(exit_code(server.wait_exit(PATIENCE)), 0);
}

/// As PID 1 of a container: orphans are reaped, and SIGTERM ends it.
#[test]
fn it_is_fit_to_be_the_first_process() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|s| s.success())
    {
        return skipped("the first process: no right to make a PID namespace");
    }
    let server = supervised().wrapper(&unshare).start();
    let api = server.api();
    let first = eventually("the first process", PATIENCE, || {
        let below = process::descendants(server.pid());
        below.iter().find(|one| one.parent == server.pid()).map(|one| one.pid)
    });
    let orphans = "for i in 1 2 3 4 5; do setsid sh -c 'sleep 0.1' & done";
    let id = api.shell(orphans, &json!({})).id().to_owned();
    api.wait_state(&id, "completed", PATIENCE);
    // A process that joins the namespace and whose parent goes is an orphan of the first one.
    let inside = format!("nsenter -t {first} -p sh -c 'sh -c \"sleep 0.2\" & exit 0'");
    let entered = Command::new("sh").args(["-c", &inside]).status().expect("sh");
    assert!(entered.success());
    thread::sleep(seconds(1.0));
    let dead = || {
        let children = format!("/proc/{first}/task/{first}/children");
        let pids = fs::read_to_string(children).unwrap_or_default();
        let state = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        pids.split_whitespace().filter(|pid| state(pid).contains(") Z ")).count()
    };
    holds_for("no zombies", seconds(1.0), || dead() == 0);
    process::signal(first, Signal::TERM);
    eventually("it ends", PATIENCE, || (!process::alive(first)).then_some(()));
}

#[test]
fn a_store_that_is_away_is_no_hang_and_one_that_answers_with_errors_is() {
    together(&[
        ("it refuses", || store_away(Weather::Refused)),
        ("it is silent", || store_away(Weather::Silent)),
        ("it is away at a start", store_away_at_a_start),
        ("it answers with errors alone", nothing_but_errors),
    ]);
}

/// A database that is away is no hang: nothing is restarted, for longer than a hang may last, and
/// when it is back nothing is taken for one either.
fn store_away(weather: Weather) {
    let postgres = Postgres::shared();
    let url = postgres.database("template1");
    let line = Line::to(postgres.port());
    let through = url.replace(&format!(":{}", postgres.port()), &format!(":{}", line.port()));
    assert_ne!(url, through);
    let config =
        format!("store: {through}\nallow_commands: any\nstall_after: 10s\nheartbeat: 1s\n");
    let server = supervised().config(&config).start();
    let (api, first) = (server.api(), child(&server));
    line.set(weather);
    eventually("it says degraded", PATIENCE, || {
        let (status, body) = api.health();
        (status == 200 && body["status"] == "degraded").then_some(())
    });
    // Longer than a hang, with its last warning, may last.
    holds_for("nobody is restarted", seconds(20.0), || server.served_by() == Some(first));
    line.set(Weather::Fine);
    eventually("it is ready again", PATIENCE, || server.ready().then_some(()));
    let id = api.shell("true", &json!({})).id().to_owned();
    api.wait_state(&id, "completed", PATIENCE);
    holds_for("nor after", seconds(20.0), || server.served_by() == Some(first));
}

/// A store that is away when the server has to be started again is waited for: that is no crash.
fn store_away_at_a_start() {
    let postgres = Postgres::shared();
    let url = postgres.database("template1");
    let line = Line::to(postgres.port());
    let through = url.replace(&format!(":{}", postgres.port()), &format!(":{}", line.port()));
    let server = supervised().config(&format!("store: {through}\nallow_commands: any\n")).start();
    line.set(Weather::Refused);
    process::signal(child(&server), Signal::KILL);
    eventually("it is tried again and again", PATIENCE, || {
        (server.log_text().matches("it is started again").count() >= 5).then_some(())
    });
    line.set(Weather::Fine);
    eventually("it serves", PATIENCE, || server.ready().then_some(()));
    let id = server.api().shell("true", &json!({})).id().to_owned();
    server.api().wait_state(&id, "completed", PATIENCE);
    let log = server.log_text();
    assert!(!log.contains("crash_loop"), "{log}");
}

/// A loop whose every call is answered with an error does not turn: it is told, and restarted, and
/// when restarts do not help that is told, too. Whoever mends the store has nothing else to do.
fn nothing_but_errors() {
    let postgres = Postgres::shared();
    let url = postgres.database("template1");
    let name = url.rsplit('/').next().expect("a name");
    let config = format!("store: {url}\nallow_commands: any\n{}", QUICK.replace(": 3s", ": 2s"));
    let server = supervised().config(&config).start();
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER TABLE matins.{from} RENAME TO {to}");
        eventually("the table is renamed", PATIENCE, || postgres.try_sql(name, &sql).ok());
    };
    rename("schedule", "away");
    eventually("the loop is named", PATIENCE, || {
        server.log_text().contains("rule=\"stalled\"").then_some(())
    });
    eventually("restarts do not help, and that is told", PATIENCE * 2, || {
        server.log_text().contains("crash_loop").then_some(())
    });
    rename("away", "schedule");
    eventually("schedules go on", PATIENCE * 2, || {
        let before = server.ready().then(|| server.api().occurrences("tick").len())?;
        thread::sleep(seconds(3.0));
        let after = server.ready().then(|| server.api().occurrences("tick").len())?;
        (after > before).then_some(())
    });
}
