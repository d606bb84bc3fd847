//! What `matins check` says about a configuration that can be used: likely mistakes, and what
//! its owner may not expect.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use matins_core::cron::Fire;
use matins_core::schedule::{Prepared, ScheduleSpec};
use matins_runtime::executors::{CommandConfig, CommandLine};
use matins_runtime::rules::{AD_HOC, DEFAULT_POOL, TypeExecutor};

use super::Config;
use super::problem::nearest;

/// Fires looked at for clock changes: enough for a year of an hourly schedule.
const FIRES_LOOKED_AT: usize = 9_000;

/// Nominal length of the time looked ahead: each clock change of a year is in it.
const LOOK_AHEAD: SignedDuration = SignedDuration::from_hours(24 * 366);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Whether it is probably a mistake.
    pub(crate) warning: bool,
    pub(crate) path: String,
    pub(crate) message: String,
}

impl Finding {
    fn warning(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { warning: true, path: path.into(), message: message.into() }
    }

    fn note(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { warning: false, ..Self::warning(path, message) }
    }
}

pub(crate) fn lint(config: &Config, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    pools(config, &mut found);
    for (kind, rule) in &config.rules.types {
        if let TypeExecutor::Command(command) = &rule.executor {
            commands(&format!("tasks.{kind}"), command, &mut found);
        }
    }
    for spec in &config.schedules {
        schedule(config, spec, now, &mut found);
    }
    server(config, &mut found);
    alerts(config, &mut found);
    found
}

fn alerts(config: &Config, found: &mut Vec<Finding>) {
    let policy = &config.rules.alerts;
    if policy.channels.is_empty() {
        found.push(Finding::warning("alerts", "no alert channel: nobody will be told"));
        return;
    }
    for rule in policy.untold() {
        let path = format!("alerts.rules.{rule}");
        found.push(Finding::warning(path, "reaches no channel: nobody will be told"));
    }
    for path in &config.bare_secrets {
        let message = "stands in the file itself: give it by reference, env:NAME or file:PATH";
        found.push(Finding::warning(path, message));
    }
}

fn is_known(config: &Config, kind: &str) -> bool {
    config.rules.types.contains_key(kind) || AD_HOC.contains(&kind)
}

/// Of a type that nothing here runs.
fn undefined(config: &Config, kind: &str) -> String {
    let known = config.rules.types.keys().map(|kind| &**kind).chain(AD_HOC);
    match nearest(kind, known) {
        Some(near) => format!("{kind} is not defined under tasks: did you mean {near}?"),
        None => format!(
            "{kind} is not defined under tasks: only a remote worker or another node can run it"
        ),
    }
}

fn pools(config: &Config, found: &mut Vec<Finding>) {
    let mut in_a_pool = BTreeSet::new();
    for (name, pool) in &config.rules.pools {
        for kind in &pool.types {
            in_a_pool.insert(kind.clone());
            let path = format!("task_pools.{name}.task_types");
            if !is_known(config, kind) {
                found.push(Finding::note(path, undefined(config, kind)));
            }
        }
    }
    let homeless = config.rules.types.keys().filter(|kind| !in_a_pool.contains(*kind));
    for kind in homeless {
        let message = format!("is in no pool and goes to {DEFAULT_POOL}");
        found.push(Finding::note(format!("tasks.{kind}"), message));
    }
}

fn commands(path: &str, command: &CommandConfig, found: &mut Vec<Finding>) {
    if !command.cwd.is_dir() {
        let message = format!("the folder {} does not exist", command.cwd.display());
        found.push(Finding::warning(format!("{path}.cwd"), message));
    }
    if let CommandLine::Argv(argv) = &command.line {
        let program = argv.first().map(String::as_str).unwrap_or_default();
        if program.contains('/') && !command.cwd.join(program).exists() {
            let message = format!("{program} does not exist");
            found.push(Finding::warning(format!("{path}.command"), message));
        }
    }
}

/// A schedule of the file as if it was created at `now`.
fn prepared(config: &Config, spec: &ScheduleSpec, now: Timestamp) -> Option<Prepared> {
    let anchor = Timestamp::from_second(now.as_second()).unwrap_or(now);
    // It was checked when the file was read.
    spec.prepare(anchor, &config.rules.limits).ok()
}

/// Its next fires outside blackouts.
pub(crate) fn next_fires(
    config: &Config,
    spec: &ScheduleSpec,
    now: Timestamp,
    count: usize,
) -> Vec<Fire> {
    let Some(prepared) = prepared(config, spec, now) else { return Vec::new() };
    let next = |fire: &Fire| prepared.next_open(fire.time);
    std::iter::successors(prepared.next_open(now), next).take(count).collect()
}

fn schedule(config: &Config, spec: &ScheduleSpec, now: Timestamp, found: &mut Vec<Finding>) {
    let path = format!("schedules.{}", spec.name);
    if !is_known(config, &spec.kind) {
        let message = undefined(config, &spec.kind);
        found.push(Finding::warning(format!("{path}.type"), message));
    } else if !config.rules.types.contains_key(&*spec.kind)
        && !config.rules.allow_commands.allows(&spec.kind)
    {
        let message = format!("{} is closed by allow_commands: its tasks will wait", spec.kind);
        found.push(Finding::warning(format!("{path}.type"), message));
    }
    let pools = config.rules.pool_sizes();
    if let Some(pool) = spec.pool.as_deref().filter(|pool| !pools.contains_key(*pool)) {
        let message = format!("there is no pool {pool} in this file: its tasks will wait");
        found.push(Finding::warning(format!("{path}.pool"), message));
    }
    if spec.timezone.is_none() && !spec.schedule.starts_with("@every") {
        found.push(Finding::note(format!("{path}.timezone"), "not given: UTC"));
    }
    if let Some(message) = both_days(&spec.schedule) {
        found.push(Finding::warning(format!("{path}.schedule"), message));
    }
    if next_fires(config, spec, now, 1).is_empty() {
        found.push(Finding::warning(
            format!("{path}.schedule"),
            "will never fire again: it starts nothing",
        ));
    }
    if let Some(message) = clock_change(config, spec, now) {
        found.push(Finding::note(format!("{path}.schedule"), message));
    }
}

/// Day of month and weekday both given: either one is enough, which surprises most people.
fn both_days(expression: &str) -> Option<String> {
    let fields: Vec<&str> = expression.split_ascii_whitespace().collect();
    let (day, weekday) = match fields.len() {
        5 => (fields[2], fields[4]),
        6 | 7 => (fields[3], fields[5]),
        _ => return None,
    };
    let free = |field: &str| field.starts_with(['*', '?', '+', '@']);
    (!free(day) && !free(weekday)).then(|| {
        format!(
            "fires when the day of the month ({day}) or the weekday ({weekday}) matches; \
             to require both write +{weekday}"
        )
    })
}

/// The first fire of the coming year that a clock change touches.
fn clock_change(config: &Config, spec: &ScheduleSpec, now: Timestamp) -> Option<String> {
    let prepared = prepared(config, spec, now)?;
    let until = now.checked_add(LOOK_AHEAD).ok()?;
    let fire = prepared
        .recurrence()
        .between(now, until)
        .take(FIRES_LOOKED_AT)
        .find(|fire| fire.in_gap || fire.in_fold)?;
    let at = fire.time;
    let zone = spec.zone_name();
    Some(if fire.in_gap {
        format!("in {zone} the clock skips a local time it names: fires at {at}, right after")
    } else {
        format!("in {zone} the clock shows a local time it names twice: fires at {at}")
    })
}

fn server(config: &Config, found: &mut Vec<Finding>) {
    for token in config.auth.tokens.iter().filter(|token| !token.secret.secret) {
        let path = format!("auth.tokens.{}.token", token.name);
        let message = "stands in the file itself: give it by reference, env:NAME or file:PATH";
        found.push(Finding::warning(path, message));
    }
    if !config.listen.ip().is_loopback() {
        if config.auth.tokens.is_empty() {
            let message = "is not loopback: serve refuses it unless auth.tokens or \
                 `matins token create` give a token";
            found.push(Finding::warning("listen", message));
        }
        if config.tls.is_none() {
            let message = "is reached without encryption: give tls, or put a TLS proxy in front";
            found.push(Finding::warning("listen", message));
        }
    }
    let known = config.rules.pool_sizes();
    if known.len() > 1 && !config.rules.pools.contains_key(DEFAULT_POOL) {
        let size = known.get(DEFAULT_POOL).copied().unwrap_or_default();
        let message = format!("{DEFAULT_POOL} is not named and has {size} workers");
        found.push(Finding::note("task_pools", message));
    }
}
