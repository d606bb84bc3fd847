//! The scheduler hangs, with the settings that nobody changed: within 90 seconds somebody is told,
//! the process is another one, and schedules are caught up.

use std::fs;
use std::time::{Duration, Instant};

use matins_e2e::alerts::{ok, told, webhook};
use matins_e2e::process::{self, Signal};
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Stub, eventually, together};
use matins_testbed::Postgres;

const LIMIT: Duration = Duration::from_secs(90);

#[test]
fn the_default_path() {
    together(&[
        ("the child stands still", stopped),
        ("a table is locked from outside", locked),
        ("the scheduler is parked", || parked("scheduler")),
        ("a claimer is parked", || parked("claimer:default")),
        ("who tells is parked", || parked("alerts")),
    ]);
}

struct Case {
    server: Server,
    stub: Stub,
    begun: Instant,
    first: u32,
}

impl Case {
    fn new(more: &str, variable: Option<&str>) -> Self {
        let stub = ok();
        let mut server = Server::builder()
            .supervised()
            .config(&format!(
                "allow_commands: any\nschedules:\n  tick: {{schedule: \"*/5 * * * * *\", type: \
                 command, timezone: UTC, payload: {{argv: [\"true\"]}}}}\nalerts: {{channels: \
                 {{ops: {}}}}}\n{more}",
                webhook(&stub)
            ))
            .prepare();
        if let Some(name) = variable {
            let file = server.folder().join("park");
            server.set_variable(name, &file.display().to_string());
        }
        server.start();
        eventually("it fires", seconds(60.0), || {
            (!server.api().occurrences("tick").is_empty()).then_some(())
        });
        let first = server.served_by().expect("a child");
        Self { server, stub, begun: Instant::now(), first }
    }

    fn left(&self) -> Duration {
        LIMIT.saturating_sub(self.begun.elapsed())
    }

    fn is_told(&self, rule: &str) {
        eventually(&format!("{rule} is told"), self.left(), || {
            told(&self.stub).iter().any(|told| told.0 == rule).then_some(())
        });
    }

    fn is_another(&self) {
        eventually("another process", self.left(), || {
            self.server.served_by().filter(|pid| *pid != self.first)
        });
    }

    /// Every mark since the hang began is accounted for.
    fn is_caught_up(&self, within: Duration) {
        let marks = self.begun.elapsed().as_secs() / 5;
        eventually("schedules are caught up", within, || {
            let occurrences = self.server.ready().then(|| self.server.api().occurrences("tick"))?;
            let decided: u64 = occurrences.iter().filter_map(|o| o["count"].as_u64()).sum();
            (decided > marks).then_some(())
        });
        println!("{:?} after it began to hang", self.begun.elapsed());
    }
}

fn stopped() {
    let mut case = Case::new("", None);
    process::signal(case.first, Signal::STOP);
    case.begun = Instant::now();
    case.is_another();
    case.is_told("restarted");
    case.is_caught_up(case.left());
}

fn parked(name: &str) {
    let mut case = Case::new("", Some("MATINS_PARK_LOOPS"));
    let park = case.server.folder().join("park");
    fs::write(&park, name).expect("the failpoint is set");
    case.begun = Instant::now();
    let body = eventually("/healthz names the loop", case.left(), || {
        let (status, body) = case.server.api().health();
        (status == 503).then_some(body)
    });
    let named = body["stalled"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
    assert!(named, "{name} is parked, and {body}");
    fs::remove_file(&park).expect("the failpoint is taken away");
    case.is_told("stalled");
    case.is_another();
    case.is_told("restarted");
    case.is_caught_up(case.left());
}

/// A restart does not mend it; when the lock is gone, all goes on by itself.
fn locked() {
    let postgres = Postgres::shared();
    let url = postgres.database("template1");
    let name = url.rsplit('/').next().expect("a name");
    let mut case = Case::new(&format!("store: {url}\n"), None);
    let lock = "BEGIN; LOCK TABLE matins.schedule IN ACCESS EXCLUSIVE MODE";
    let held = postgres.session(name, lock);
    case.begun = Instant::now();
    let body = eventually("/healthz names the loop", case.left(), || {
        let (status, body) = case.server.api().health();
        (status == 503).then_some(body)
    });
    assert!(body["stalled"].to_string().contains("scheduler"), "{body}");
    case.is_told("stalled");
    case.is_another();
    drop(held);
    case.is_caught_up(seconds(60.0));
    case.is_told("restarted");
}
