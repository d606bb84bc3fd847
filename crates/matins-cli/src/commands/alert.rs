//! `matins alert`: what was raised, and whether a channel delivers.

use clap::Subcommand;
use matins_core::alert::answer::Verdict;
use matins_core::alert::digest::Digest;
use matins_core::alert::render::render;
use matins_core::alert::{Alert as Raised, Rule, Severity};
use matins_runtime::alerts::courier::Courier;
use serde_json::json;

use crate::config::{Config, Sources};
use crate::door::{Answer, Request};
use crate::failure::{Exit, Failure, Result};
use crate::output::table::Value;
use crate::output::{self, Output, Tone, text, time};
use crate::session::{Global, Session, now};

#[derive(Debug, Subcommand)]
pub(crate) enum Alert {
    /// List alerts, the last first
    List {
        /// 1 to 1000
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// next_cursor of the page before
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Send a message over a channel of the configuration, now
    Test {
        /// Its name under alerts.channels
        channel: String,
    },
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Alerts {
    alerts: Vec<Item>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Item {
    time: String,
    rule: String,
    subject: String,
    severity: String,
    resolved: bool,
    facts: std::collections::BTreeMap<String, String>,
}

impl Alert {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        match self {
            Self::List { limit, cursor } => {
                let session = Session::open(global)?;
                let request = Request::get(&["alerts"]);
                let request = request.query("limit", Some(limit.to_string()));
                let request = request.query("cursor", cursor);
                session.show(request, list).await.map(|_| ())
            }
            Self::Test { channel } => test(global, &channel).await,
        }
    }
}

fn list(answer: &Answer, out: &Output) -> Result<()> {
    let list: Alerts = answer.decode()?;
    let now = now();
    let mut grid = out.grid(["AGE", "SEVERITY", "RULE", "SUBJECT", "FACTS"]);
    for item in &list.alerts {
        let (word, tone) = match (item.resolved, item.severity.as_str()) {
            (true, _) => ("over", Tone::Good),
            (_, "critical") => ("critical", Tone::Bad),
            (_, "warning") => ("warning", Tone::Warning),
            _ => ("info", Tone::Faint),
        };
        let facts: Vec<String> =
            item.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        grid.row([
            time::age_of(Some(&item.time), now).into(),
            Value::toned(tone, word),
            item.rule.as_str().into(),
            item.subject.as_str().into(),
            facts.join(", ").into(),
        ]);
    }
    if grid.is_empty() {
        output::note("no alerts");
        return Ok(());
    }
    output::line(&grid.to_string())
}

async fn test(global: &Global, name: &str) -> Result<()> {
    global.refuse_server("alert test")?;
    let config: Config = Sources { need_secrets: true, ..global.sources() }.load()?;
    let policy = &config.rules.alerts;
    let Some(channel) = policy.channels.get(name) else {
        let names: Vec<&str> = policy.channels.keys().map(String::as_str).collect();
        let known = match names.as_slice() {
            [] => "there are none: name one under alerts.channels".to_owned(),
            names => format!("there are: {}", text::line(&names.join(", "))),
        };
        let message = format!("there is no alert channel {}", text::line(name));
        return Err(Failure::new(Exit::NotFound, message).hint(known));
    };
    let now = now();
    let alert = Raised::new(Rule::Test, name, now).fact("node", &policy.source);
    let digest = Digest::of(&alert, Severity::Info);
    let wire = render(channel, &[digest], policy, now);
    let verdict = Courier::default().send(channel.to.kind(), wire, now).await;
    let (result, why) = match verdict {
        Verdict::Sent => ("sent", None),
        Verdict::Later { why, .. } => ("failed", Some(why)),
        Verdict::Refused { why } => ("refused", Some(why)),
        Verdict::Off { why } => ("off", Some(why)),
    };
    if global.json {
        let answer = json!({ "channel": name, "result": result, "why": why });
        output::line(&answer.to_string())?;
    }
    let name = text::line(name);
    match why {
        None if global.json => Ok(()),
        None => output::line(&format!("{name} took the message: look whether it is there")),
        Some(why) => Err(Failure::failed(format!("{name} did not take it: {}", text::line(&why)))),
    }
}
