//! `matins check`: whether a configuration can be used, and what its owner may not expect.

use clap::Args;
use matins_runtime::process::Runner;
use serde_json::json;

use crate::config::{self, Config, Finding, Sources};
use crate::failure::{Failure, Result};
use crate::output::facts::Facts;
use crate::output::{self, Output, Tone, text, time};
use crate::serve;
use crate::session::{Global, now};

/// Fires shown per schedule.
const FIRES: usize = 3;

#[derive(Debug, Args)]
pub(crate) struct Check {}

impl Check {
    #[allow(clippy::unused_self, reason = "every command is run the same way")]
    pub(crate) fn run(self, global: &Global) -> Result<()> {
        global.refuse_server("check")?;
        let sources = Sources { need_secrets: true, ..global.sources() };
        let config = sources.load()?;
        let runner = Runner::this_program().map_err(|e| Failure::io("the own program", &e))?;
        serve::engine::executors(&config.rules, &runner, "check")?;
        let findings = config::lint(&config, now());
        if global.json {
            return print_json(&config, &findings);
        }
        let mut out = Output::new(false);
        out.zone = config.display_timezone.clone();
        output::line(&summary(&config, &out))?;
        for finding in &findings {
            let (word, tone) =
                if finding.warning { ("warning", Tone::Warning) } else { ("note", Tone::Faint) };
            let path = text::line(&finding.path);
            let said = text::line(&finding.message);
            output::line(&format!("{}: {path}: {said}", out.tinted(tone, word)))?;
        }
        output::line(&out.tinted(Tone::Good, "the configuration can be used"))
    }
}

fn summary(config: &Config, out: &Output) -> String {
    let now = now();
    let file = config.file.as_ref().map(|file| file.display().to_string());
    let mut facts = Facts::new(10);
    facts.plain("file", Some(file.as_deref().unwrap_or("none: built-in defaults")));
    facts.add("store", crate::storage::shown(config));
    facts.add("listen", config.listen.to_string());
    let pools = config.rules.pool_sizes();
    let pools: Vec<String> = pools.iter().map(|(name, size)| format!("{name} {size}")).collect();
    facts.plain("pools", Some(&pools.join(", ")));
    let types: Vec<&str> = config.rules.types.keys().map(|kind| &**kind).collect();
    facts.plain("types", Some(&types.join(", ")).filter(|types| !types.is_empty()).map(|t| &**t));
    let mut grid = out.grid(["SCHEDULE", "EXPRESSION", "TIMEZONE", "TYPE", "NEXT", "FIRES (UTC)"]);
    for spec in &config.schedules {
        let fires = config::next_fires(config, spec, now, FIRES);
        let shown: Vec<String> = fires.iter().map(|fire| format!("{:.0}", fire.time)).collect();
        let first = fires.first().map(|fire| time::age(fire.time, now));
        grid.row([
            spec.name.as_str().into(),
            spec.schedule.as_str().into(),
            spec.zone_name().into(),
            spec.kind.as_str().into(),
            first.unwrap_or_default().into(),
            shown.join(", ").into(),
        ]);
    }
    if grid.is_empty() { facts.to_string() } else { format!("{facts}\n{grid}") }
}

fn print_json(config: &Config, findings: &[Finding]) -> Result<()> {
    let now = now();
    let findings: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({
                "level": if finding.warning { "warning" } else { "note" },
                "path": finding.path,
                "message": finding.message,
            })
        })
        .collect();
    let schedules: Vec<_> = config
        .schedules
        .iter()
        .map(|spec| {
            let fires = config::next_fires(config, spec, now, FIRES);
            let fires: Vec<String> = fires.iter().map(|fire| format!("{:.0}", fire.time)).collect();
            json!({ "name": spec.name, "timezone": spec.zone_name(), "next_fires": fires })
        })
        .collect();
    let file = config.file.as_ref().map(|file| file.display().to_string());
    let answer = json!({ "file": file, "findings": findings, "schedules": schedules });
    output::line(&answer.to_string())
}
