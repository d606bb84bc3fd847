//! `matins audit`: whether the store keeps what must always hold of it.

use clap::Args;
use serde::Deserialize;

use crate::door::{Answer, Request};
use crate::failure::{Exit, Failure, Result};
use crate::output::{self, Output, Tone, text};
use crate::session::{Global, Session};

#[derive(Debug, Args)]
pub(crate) struct Audit {}

#[derive(Debug, Deserialize)]
struct Certificate {
    clean: bool,
    schedules: u64,
    occurrences: u64,
    running: u64,
    violations: Vec<Violation>,
}

#[derive(Debug, Deserialize)]
struct Violation {
    invariant: String,
    subject: String,
    detail: String,
}

impl Audit {
    #[allow(clippy::unused_self, reason = "every command is run the same way")]
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        if let Some(config) = session.door.missing() {
            return Err(crate::storage::missing(config));
        }
        let answer = session.show(Request::get(&["certificate"]), show).await?;
        match answer.decode::<Certificate>()?.clean {
            true => Ok(()),
            false => Err(Failure::silent(Exit::Failed as u8)),
        }
    }
}

fn show(answer: &Answer, out: &Output) -> Result<()> {
    let found: Certificate = answer.decode()?;
    for Violation { invariant, subject, detail } in &found.violations {
        let word = out.tinted(Tone::Bad, &text::line(invariant));
        let (subject, detail) = (text::line(subject), text::line(detail));
        output::line(&format!("{word}: {subject}: {detail}\n  {}", hint(invariant)))?;
    }
    let Certificate { schedules, occurrences, running, .. } = found;
    let looked = format!(
        "{schedules} schedules with {occurrences} decided occurrences, {running} running tasks"
    );
    match found.violations.len() {
        0 => output::line(&out.tinted(Tone::Good, &format!("certified: {looked}"))),
        n => output::line(&format!("{n} invariants do not hold, of {looked}")),
    }
}

fn hint(invariant: &str) -> &'static str {
    match invariant {
        "armed" => "hint: matins schedule pause NAME, then resume NAME: it is armed anew",
        "overdue" => "hint: does a scheduler run? matins status, matins node list",
        "running" => "hint: a live server recovers it within a lease; does one run? matins status",
        "redis" => "hint: a live server drops it within seconds; does one run? matins status",
        _ => "hint: the store was changed by other means; compare matins schedule history NAME",
    }
}
