//! What a server says when it is ready: for people on standard output, in one line of the log
//! when that is JSON. The token itself is shown once, to the terminal of whoever made it.

use std::io::IsTerminal as _;
use std::time::Duration;

use matins_core::page::PageRequest;
use matins_core::schedule::ScheduleStatus;

use super::{AdminToken, Running};
use crate::config::{Config, LogFormat};
use crate::output::facts::Facts;
use crate::output::{self, text, time};
use crate::place;
use crate::storage;

/// Schedules looked at for the banner.
const SCHEDULES: usize = 1_000;

pub(super) async fn show(
    running: &Running,
    token: Option<&AdminToken>,
    paused: bool,
    took: Duration,
) {
    let config = &running.config;
    let url = running.url();
    let pools = config.rules.pool_sizes();
    let pools: Vec<String> = pools.iter().map(|(name, size)| format!("{name} {size}")).collect();
    let pools = text::line(&pools.join(", "));
    let store = storage::shown(config);
    if config.log.format == LogFormat::Json {
        let millis = took.as_millis() as u64;
        let node_id = &running.node_id;
        tracing::info!(url, node_id, store, pools, paused, millis, "ready");
        if config.rules.alerts.channels.is_empty() {
            tracing::warn!("no alert channel: nobody will be told");
        }
        return;
    }
    let mut facts = Facts::new(12);
    facts.add(
        "  address",
        if url.is_empty() { "none: this node has no API".to_owned() } else { url },
    );
    if let Some(token) = token {
        let path = place::token_path(config).display().to_string();
        let shown = token.is_new && std::io::stdout().is_terminal();
        facts.add(
            "  token",
            if shown { format!("{}, kept in {path}", token.secret) } else { format!("in {path}") },
        );
    } else {
        facts.add("  token", "those of auth.tokens".to_owned());
    }
    facts.add("  node", text::line(&running.node_id));
    facts.add("  store", store);
    let file = config.file.as_ref().map(|file| file.display().to_string());
    facts.add(
        "  file",
        file.unwrap_or_else(|| "none: built-in defaults (matins init writes one)".to_owned()),
    );
    facts.add("  pools", pools);
    facts.add("  schedules", schedules(running).await);
    if paused {
        facts.add("  paused", "nothing is claimed and nothing fires until matins thaw".to_owned());
    }
    facts.add("  alerts", text::line(&alerts(config)));
    // A closed standard output is no reason not to serve.
    let version = env!("CARGO_PKG_VERSION");
    let _ = output::line(&format!("matins {version} is ready after {}\n{facts}", time::took(took)));
}

fn alerts(config: &Config) -> String {
    let policy = &config.rules.alerts;
    let names: Vec<&str> = policy.channels.keys().map(String::as_str).collect();
    match (names.as_slice(), policy.untold().as_slice()) {
        ([], _) => "no alert channel: nobody will be told".to_owned(),
        (names, []) => format!("to {}", names.join(", ")),
        (names, untold) => {
            let rules: Vec<&str> = untold.iter().map(|rule| rule.as_str()).collect();
            format!("to {}; nobody is told of {}", names.join(", "), rules.join(", "))
        }
    }
}

async fn schedules(running: &Running) -> String {
    let page = PageRequest { limit: SCHEDULES, cursor: None };
    let Ok(page) = running.client.schedules(&page).await else { return "unknown".to_owned() };
    let active: Vec<_> =
        page.items.iter().filter(|due| due.state.status == ScheduleStatus::Active).collect();
    let more = if page.next.is_some() { "more than " } else { "" };
    let first = active.iter().filter_map(|due| Some((due.state.next_fire?, &due.state.spec.name)));
    match first.min() {
        Some((at, name)) => {
            let age = time::age(at, running.client.now());
            format!("{more}{} active, next {} {age} ({at:.0})", active.len(), text::line(name))
        }
        None => format!("{more}{} active", active.len()),
    }
}
