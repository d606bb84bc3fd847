//! `matins status`.

use clap::Args;

use crate::door::{Answer, HttpDoor, Request};
use crate::failure::{Exit, Failure, Result};
use crate::output::facts::Facts;
use crate::output::table::tone_of;
use crate::output::{self, Output, Tone, text, time};
use crate::place::ServerFile;
use crate::session::{Global, Session, now};
use crate::views;

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Only ask the server whether its loops turn; exit code 1 when they do not. Needs no token
    #[arg(long)]
    live: bool,
}

impl Status {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        if self.live {
            return live(global).await;
        }
        let session = Session::open(global)?;
        if let Some(config) = session.door.missing() {
            return Err(crate::storage::missing(config));
        }
        let request = Request::get(&["status"]);
        let served = !session.door.has_no_server().await;
        session.show(request, |answer, out| status(answer, out, served)).await.map(|_| ())
    }
}

/// For the health check of a container: the open word of the server alone.
async fn live(global: &Global) -> Result<()> {
    let url = match global.server()? {
        Some(url) => url,
        None => {
            let config = global.config()?;
            let file = ServerFile::live(&config).map(|server| server.url);
            file.unwrap_or_else(|| format!("http://{}", config.listen))
        }
    };
    let answer = HttpDoor::new(&url, None)?.ask(Request::plain("/healthz")).await?;
    output::line(&String::from_utf8_lossy(&answer.body))?;
    if answer.status == 200 { Ok(()) } else { Err(Failure::silent(Exit::Failed as u8)) }
}

/// The store at a glance, for people.
pub(super) fn facts(status: &views::Status, out: &Output, served: bool) -> Facts {
    let mut facts = Facts::new(14);
    let ages = |seconds: f64| time::rough(seconds.max(0.0) as u64);
    facts.add(
        "mode",
        out.tinted(if status.mode == "normal" { Tone::Good } else { Tone::Bad }, &status.mode),
    );
    facts.add(
        "server",
        if served {
            out.tinted(tone_of(&status.health), &status.health)
        } else {
            out.tinted(Tone::Warning, "none runs on this store: matins serve")
        },
    );
    if let Some(frozen) = &status.frozen {
        let said = format!(
            "by {} {}: {}",
            text::line(&frozen.by),
            out.moment(&frozen.at, now()),
            text::line(&frozen.reason)
        );
        facts.add("frozen", out.tinted(Tone::Warning, &said));
    }
    facts.add(
        "heartbeat",
        status.heartbeat_age.map_or("never".to_owned(), |age| format!("{} ago", ages(age))),
    );
    facts.add("workers", status.workers.to_string());
    let tasks = status.tasks.iter().map(|(state, n)| format!("{n} {state}"));
    let tasks: Vec<String> = tasks.collect();
    facts.add("tasks", if tasks.is_empty() { "none".to_owned() } else { tasks.join(", ") });
    for (pool, ready) in status.ready.iter().filter(|(_, ready)| **ready > 0) {
        let waited =
            status.oldest_ready.get(pool).map(|age| format!(", the first for {}", ages(*age)));
        facts
            .add("ready", format!("{ready} in {}{}", text::line(pool), waited.unwrap_or_default()));
    }
    let dead = status.dead_letters.to_string();
    facts.add(
        "dead letters",
        out.tinted(if status.dead_letters > 0 { Tone::Bad } else { Tone::Plain }, &dead),
    );
    if status.schedules_overdue > 0 {
        facts.add(
            "overdue",
            out.tinted(Tone::Bad, &format!("{} schedules", status.schedules_overdue)),
        );
    }
    let store = &status.store;
    facts.add(
        "store",
        format!("{} {} (schema {})", store.kind, store.store_id, store.schema_version),
    );
    for part in &store.parts {
        let said = match part.up {
            true => out.tinted(Tone::Good, &format!("up ({})", text::line(&part.version))),
            false => out.tinted(Tone::Bad, "away: the store works without it"),
        };
        facts.add("with", format!("{} {said}", text::line(&part.kind)));
    }
    facts.plain("version", Some(&status.version));
    facts
}

fn status(answer: &Answer, out: &Output, served: bool) -> Result<()> {
    let status: views::Status = answer.decode()?;
    output::line(&facts(&status, out, served).to_string())?;
    for hint in hints(&status, served) {
        output::note(&format!("hint: {hint}"));
    }
    Ok(())
}

/// The next command for each thing that is not as it should be.
pub(super) fn hints(
    status: &views::Status,
    served: bool,
) -> impl Iterator<Item = &'static str> + use<> {
    let waiting = status.ready.values().any(|ready| *ready > 0);
    let down = status.store.parts.iter().any(|part| !part.up);
    let hints = [
        (
            served && status.health == "stalled",
            "which loop, and that it is restarted: matins status --live",
        ),
        (status.mode != "normal" || down, "what is away: matins doctor"),
        (status.frozen.is_some(), "to let it go on: matins thaw"),
        (served && waiting && status.workers == 0, "nobody works: matins node list"),
        (status.schedules_overdue > 0, "which, and why: matins audit"),
        (status.dead_letters > 0, "why they gave up: matins dead list --by-error"),
    ];
    let wrong = hints.into_iter().filter_map(|(so, hint)| so.then_some(hint));
    let told = wrong.clone().next().map(|_| "what happened before: matins alert list");
    wrong.chain(told)
}
