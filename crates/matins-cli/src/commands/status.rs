//! `matins status`.

use clap::Args;

use crate::door::{Answer, Request};
use crate::failure::Result;
use crate::output::facts::Facts;
use crate::output::table::tone_of;
use crate::output::{self, Output, Tone, text, time};
use crate::session::{Global, Session, now};
use crate::views;

#[derive(Debug, Args)]
pub(crate) struct Status {}

impl Status {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        if let Some(config) = session.door.missing() {
            return Err(crate::storage::missing(config));
        }
        let request = Request::get(&["status"]);
        let served = !session.door.has_no_server();
        session.show(request, |answer, out| status(answer, out, served)).await.map(|_| ())
    }
}

fn status(answer: &Answer, out: &Output, served: bool) -> Result<()> {
    let status: views::Status = answer.decode()?;
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
    facts.add("version", status.version);
    output::line(&facts.to_string())?;
    if status.dead_letters > 0 {
        output::note("hint: matins dead list --by-error");
    }
    Ok(())
}
