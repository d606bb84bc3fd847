//! `matins doctor`: what could go wrong on this machine, looked at one by one.

mod servers;

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use matins_core::cron::tz_release;
use matins_core::store::HEARTBEAT;
use matins_runtime::process::Runner;
use matins_runtime::rules::AD_HOC;
use serde_json::json;

use crate::config::Config;
use crate::failure::{Exit, Failure, Result};
use crate::output::{self, Output, Tone, text, time};
use crate::place;
use crate::session::{Global, now};
use crate::storage;

#[derive(Debug, Args)]
pub(crate) struct Doctor {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Warning,
    Bad,
}

struct Finding {
    about: &'static str,
    verdict: Verdict,
    said: String,
    /// What to do about it.
    hints: Vec<String>,
}

impl Finding {
    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

impl Doctor {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        global.refuse_server("doctor")?;
        let config = global.config()?;
        let mut findings = vec![clock(), zones()];
        findings.push(runner().await);
        findings.push(permissions(&config));
        findings.push(disk_space(&config));
        findings.push(disk_speed(&config));
        findings.push(port(&config));
        let store = store(&config).await;
        let answers = store.verdict != Verdict::Bad;
        findings.push(store);
        // Who does not answer one question is not asked more.
        if answers {
            findings.push(watchers(&config).await);
        }
        findings.push(commands(&config));
        findings.push(channels(&config));
        findings.extend(servers::findings(&config).await);
        report(&findings, global.json)?;
        if findings.iter().any(|finding| finding.verdict == Verdict::Bad) {
            Err(Failure::silent(Exit::Failed as u8))
        } else {
            Ok(())
        }
    }
}

fn report(findings: &[Finding], json: bool) -> Result<()> {
    let word = |verdict| match verdict {
        Verdict::Good => "ok",
        Verdict::Warning => "warning",
        Verdict::Bad => "bad",
    };
    if json {
        let items: Vec<_> = findings
            .iter()
            .map(|f| json!({ "check": f.about, "verdict": word(f.verdict), "detail": f.said, "hints": f.hints }))
            .collect();
        return output::line(&json!({ "checks": items }).to_string());
    }
    let out = Output::new(false);
    for finding in findings {
        let tone = match finding.verdict {
            Verdict::Good => Tone::Good,
            Verdict::Warning => Tone::Warning,
            Verdict::Bad => Tone::Bad,
        };
        let verdict = out.tinted(tone, &format!("{:<8}", word(finding.verdict)));
        output::line(&format!("{verdict} {:<12} {}", finding.about, text::line(&finding.said)))?;
        for hint in &finding.hints {
            output::line(&format!("{:<22}hint: {hint}", ""))?;
        }
    }
    Ok(())
}

/// Whether anybody watches, and whether the scheduler says that it is well.
async fn watchers(config: &Config) -> Finding {
    let about = "heartbeat";
    if !storage::exists(config) {
        return finding(about, Verdict::Good, "no scheduler has run yet");
    }
    let read = match storage::open_existing(config).await {
        Ok(store) => store.note(HEARTBEAT).await.ok().flatten(),
        Err(_) => None,
    };
    let Some(at) = read.and_then(|text| Timestamp::from_second(text.parse().ok()?).ok()) else {
        return finding(about, Verdict::Warning, "no scheduler ever said that it is well")
            .hint("matins serve, with the role scheduler");
    };
    let age = now().duration_since(at).as_secs().max(0);
    let said = format!("the last one was {age} s ago");
    let limit = 3 * config.heartbeat.as_secs() as i64;
    if age <= limit {
        return finding(about, Verdict::Good, said);
    }
    finding(about, Verdict::Warning, said).hint("does a server run? matins status")
}

/// What of the tasks that say themselves what to run this file lets a server run.
fn commands(config: &Config) -> Finding {
    let allowed = &config.rules.allow_commands;
    let closed: Vec<&str> = AD_HOC.into_iter().filter(|kind| !allowed.allows(kind)).collect();
    if closed.is_empty() {
        let said = format!("allow_commands lets it run {}", AD_HOC.join(", "));
        return finding("commands", Verdict::Good, said);
    }
    let closed = closed.join(", ");
    let said = format!("allow_commands keeps {closed} out: such tasks wait for another worker");
    finding("commands", Verdict::Good, said)
        .hint(format!("if this one is to run them: allow_commands: [{closed}], and reload"))
}

/// Whether anybody is told when something goes wrong.
fn channels(config: &Config) -> Finding {
    let names: Vec<&str> = config.rules.alerts.channels.keys().map(String::as_str).collect();
    if names.is_empty() {
        return finding("alerts", Verdict::Warning, "there is no channel: nobody will be told")
            .hint("name one under alerts.channels, and try it: matins alert test CHANNEL");
    }
    finding("alerts", Verdict::Good, format!("told over {}", names.join(", ")))
}

fn finding(about: &'static str, verdict: Verdict, said: impl Into<String>) -> Finding {
    Finding { about, verdict, said: said.into(), hints: Vec::new() }
}

/// When this program's zone table was made: no right clock can lie before it.
fn table_year() -> Option<i16> {
    tz_release().get(..4)?.parse().ok()
}

fn clock() -> Finding {
    let now = Timestamp::now();
    let year = now.to_zoned_datetime(jiff::tz::TimeZone::UTC).year();
    if table_year().is_some_and(|made| year < made) {
        let said = format!("the clock shows {now:.0}, which is before this program was made");
        return finding("clock", Verdict::Bad, said).hint("set it: timedatectl set-ntp true");
    }
    let began = (Instant::now(), now);
    std::thread::sleep(Duration::from_millis(50));
    let stepped =
        Timestamp::now().duration_since(began.1).as_secs_f64() - began.0.elapsed().as_secs_f64();
    if stepped.abs() < 0.02 {
        finding("clock", Verdict::Good, format!("{now:.0}, and it runs evenly"))
    } else {
        let said = format!("it moved by {stepped:.3} s while 0.05 s passed: is it being set?");
        finding("clock", Verdict::Warning, said).hint("look who sets it: timedatectl status")
    }
}

fn zones() -> Finding {
    let release = tz_release();
    let year = Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC).year();
    match table_year() {
        Some(made) if year - made > 1 => {
            let said = format!(
                "the zone table {release} is years old: clock changes decided since are missing"
            );
            finding("time zones", Verdict::Warning, said).hint("use a newer matins")
        }
        _ => finding("time zones", Verdict::Good, format!("table {release}")),
    }
}

async fn runner() -> Finding {
    let probed = match Runner::this_program() {
        Ok(runner) => runner.probe().await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match probed {
        Ok(()) => finding("runner", Verdict::Good, "commands can be started"),
        Err(error) => finding("runner", Verdict::Bad, error)
            .hint("may this program be executed by its user, and is /proc mounted?"),
    }
}

fn permissions(config: &Config) -> Finding {
    let about = "permissions";
    let folder = &config.data_dir;
    if !folder.exists() {
        let said = format!("{} does not exist yet; serve makes it", folder.display());
        return finding(about, Verdict::Good, said);
    }
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    if let Err(error) = File::create(&probe).and_then(|_| std::fs::remove_file(&probe)) {
        return finding(about, Verdict::Bad, format!("{}: {error}", folder.display()))
            .hint("run it as the user of the server, or give that user the folder: chown");
    }
    let others = |path: &Path| {
        let mode = std::fs::metadata(path).ok().map(|found| found.permissions().mode());
        mode.filter(|mode| mode & 0o077 != 0)
    };
    let token = Some(place::token_path(config));
    for path in token.into_iter().chain(storage::file(config).map(Path::to_owned)) {
        if let Some(mode) = others(&path) {
            let shown = path.display();
            let said = format!("{shown} is open to others ({:o})", mode & 0o777);
            return finding(about, Verdict::Warning, said).hint("chmod 600 it");
        }
    }
    finding(about, Verdict::Good, format!("{} is writable and closed to others", folder.display()))
}

/// The folder in which things will be written, or the nearest one above that exists.
fn nearest(config: &Config) -> std::path::PathBuf {
    let folder = storage::file(config).and_then(Path::parent).unwrap_or(&config.data_dir);
    let found = folder.ancestors().find(|folder| folder.is_dir());
    found.map_or_else(|| ".".into(), Path::to_owned)
}

/// Less free room than this, and a busy day may fill it.
const ROOM_MIN: u64 = 1 << 30;

fn disk_space(config: &Config) -> Finding {
    let folder = nearest(config);
    match rustix::fs::statvfs(&folder) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let said = format!("{} MiB free at {}", free >> 20, folder.display());
            if free >= ROOM_MIN {
                return finding("disk space", Verdict::Good, said);
            }
            finding("disk space", Verdict::Warning, said)
                .hint("free some, or shorten retention: a full disk refuses new tasks")
        }
        Err(error) => finding("disk space", Verdict::Warning, format!("unknown: {error}")),
    }
}

const SYNCS: usize = 20;

/// How long a commit takes at least: an fsync of a page.
fn disk_speed(config: &Config) -> Finding {
    let about = "disk speed";
    let path = nearest(config).join(format!(".doctor-{}", std::process::id()));
    let measured = measure(&path);
    let _ = std::fs::remove_file(&path);
    let mut times = match measured {
        Ok(times) => times,
        Err(error) => return finding(about, Verdict::Bad, format!("cannot write: {error}")),
    };
    times.sort();
    let (median, longest) = (times[SYNCS / 2], times[SYNCS - 1]);
    let said = format!("an fsync takes {} (longest {})", time::took(median), time::took(longest));
    match median {
        slow if slow > Duration::from_millis(50) => {
            let said = format!("{said}: every accepted task waits for one");
            finding(about, Verdict::Warning, said)
                .hint("put data_dir on a quicker disk; batches share one fsync")
        }
        quick if quick < Duration::from_micros(20) => {
            let said =
                format!("{said}: too quick to be true; a power cut may lose what was accepted");
            finding(about, Verdict::Warning, said)
                .hint("is it a memory file system, or a disk that lies about its cache?")
        }
        _ => finding(about, Verdict::Good, said),
    }
}

fn measure(path: &Path) -> std::io::Result<Vec<Duration>> {
    let mut file = File::create(path)?;
    let page = [0u8; 4_096];
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&page)?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn port(config: &Config) -> Finding {
    let about = "port";
    let address = config.listen;
    if let Some(server) = place::ServerFile::live(config) {
        let said =
            format!("a server of this store answers at {} (process {})", server.url, server.pid);
        return finding(about, Verdict::Good, said);
    }
    match TcpListener::bind(address) {
        Ok(_) => finding(about, Verdict::Good, format!("{address} is free")),
        Err(error) => finding(about, Verdict::Bad, format!("{address}: {error}"))
            .hint("see who listens there: ss -ltnp; or choose another with listen:"),
    }
}

/// With the failure's own hint, or where more is said of it.
fn broken(about: &'static str, failure: Failure) -> Finding {
    let hint = failure.hint.unwrap_or_else(|| {
        "docs/operating: \"The store is locked\", \"The store is broken\"".to_owned()
    });
    finding(about, Verdict::Bad, failure.message.unwrap_or_default()).hint(hint)
}

async fn store(config: &Config) -> Finding {
    let about = "store";
    let none_yet = || {
        let said = format!("{} does not exist yet", storage::shown(config));
        finding(about, Verdict::Good, said)
            .hint("matins serve makes it, and so does matins migrate")
    };
    if !storage::exists(config) {
        return none_yet();
    }
    match storage::pending(config).await {
        // All of them.
        Ok(steps) if steps.first().is_some_and(|step| step.version == 1) => return none_yet(),
        Ok(steps) if !steps.is_empty() && !config.migrate_by_itself => {
            let said = format!("{} migrations wait", steps.len());
            return finding(about, Verdict::Warning, said).hint("matins migrate");
        }
        Ok(_) => {}
        Err(failure) => return broken(about, failure),
    }
    let opened = match storage::open_existing(config).await {
        Ok(store) => store,
        Err(failure) => return broken(about, failure),
    };
    match opened.stats(now()).await {
        Ok(stats) => {
            let info = opened.info();
            let said = format!(
                "{} schema {}, {} dead letters, {} overdue schedules",
                info.kind, info.schema_version, stats.dead_letters, stats.schedules_overdue
            );
            if stats.schedules_overdue == 0 {
                return finding(about, Verdict::Good, said);
            }
            finding(about, Verdict::Warning, said)
                .hint("does a scheduler run? matins status; matins audit")
        }
        Err(error) => broken(about, storage::refused(config, &error)),
    }
}
