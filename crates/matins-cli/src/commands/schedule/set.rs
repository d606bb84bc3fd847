//! `matins schedule set`: the keys of a schedule as flags. The schedule becomes what is given;
//! what is left out has its default.

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::enqueue::payload;
use crate::door::{Method, Request};
use crate::failure::{Failure, Result};
use crate::session::{Global, Session};

#[derive(Debug, Args)]
pub(crate) struct Set {
    name: String,
    /// Cron expression, @daily, @every 45m or @at 2027-01-01T09:00
    #[arg(long, value_name = "EXPRESSION")]
    cron: String,
    /// IANA name [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Type of the tasks it starts
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "command")]
    kind: Option<String>,
    /// Payload of each task: JSON, @FILE, or - for standard input
    #[arg(
        long,
        value_name = "JSON|@FILE|-",
        conflicts_with = "command",
        allow_hyphen_values = true
    )]
    payload: Option<String>,
    /// Template of the key of each occurrence, such as orders-{{ occurrence.date }}
    #[arg(long, value_name = "TEMPLATE")]
    key: Option<String>,
    #[arg(long)]
    pool: Option<String>,
    /// -100 to 100, higher first
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    priority: Option<i64>,
    /// Lateness that still counts as on time [default: 60s]
    #[arg(long, value_name = "DURATION")]
    grace: Option<String>,
    /// latest, all or none [default: latest]
    #[arg(long, value_name = "WHAT")]
    catch_up: Option<String>,
    /// How far back lateness is made up for [default: auto]
    #[arg(long, value_name = "DURATION|auto")]
    catch_up_window: Option<String>,
    /// Most occurrences that are made up for [default: 100]
    #[arg(long, value_name = "N")]
    catch_up_max: Option<u64>,
    #[arg(long, value_name = "WHAT")]
    #[arg(help = "skip, buffer_one, buffer_all, cancel_previous or allow [default: skip]")]
    overlap: Option<String>,
    #[arg(long, value_name = "N", help = "Most tasks that buffer_all holds [default: 1000]")]
    overlap_max: Option<u64>,
    /// A local time that a clock change skips: run or skip [default: run]
    #[arg(long, value_name = "WHAT")]
    gap: Option<String>,
    /// Which copy of a local time that exists twice: first, second or both [default: first]
    #[arg(long, value_name = "WHICH")]
    fold: Option<String>,
    /// Longest delay by which fires are spread [default: 0]
    #[arg(long, value_name = "DURATION")]
    jitter: Option<String>,
    /// Dead letters in a row after which it pauses itself; 0: never
    #[arg(long, value_name = "N")]
    pause_after_failures: Option<u64>,
    /// Nothing fires before
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// Nothing fires from then on
    #[arg(long, value_name = "TIME")]
    end: Option<String>,
    /// Time in which nothing fires, such as 22:00/06:00; may be given several times
    #[arg(long, value_name = "FROM/TO")]
    blackout: Vec<String>,
    /// Time limit of an attempt, or none [default: the type's]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Retries before a task becomes a dead letter [default: the type's]
    #[arg(long, value_name = "N")]
    max_retries: Option<u64>,
    /// Tag of the tasks; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// What a pause leaves to be done: skip, latest or all [default: skip]
    #[arg(long, value_name = "WHAT")]
    on_resume: Option<String>,
    /// Create it paused
    #[arg(long)]
    paused: bool,
    /// For people
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Command to run, in this folder
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Set {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let body = self.body()?;
        let session = Session::by_the_file(global)?;
        let request = Request::new(Method::Put, &["schedules", &self.name]).body(&body)?;
        session.show(request, super::told).await.map(|_| ())
    }

    /// What is given and nothing else: the defaults are the API's.
    fn body(&self) -> Result<Body> {
        let (kind, payload) = self.work()?;
        let mut rest = serde_json::Map::new();
        let texts = [
            ("timezone", &self.timezone),
            ("execution_key", &self.key),
            ("pool", &self.pool),
            ("grace", &self.grace),
            ("catch_up", &self.catch_up),
            ("catch_up_window", &self.catch_up_window),
            ("overlap", &self.overlap),
            ("jitter", &self.jitter),
            ("start", &self.start),
            ("end", &self.end),
            ("timeout", &self.timeout),
            ("on_resume", &self.on_resume),
            ("note", &self.note),
        ];
        for (name, value) in texts {
            rest.extend(value.as_ref().map(|value| (name.to_owned(), json!(value))));
        }
        let numbers = [
            ("catch_up_max", self.catch_up_max),
            ("overlap_max", self.overlap_max),
            ("pause_after_failures", self.pause_after_failures),
            ("max_retries", self.max_retries),
        ];
        for (name, value) in numbers {
            rest.extend(value.map(|value| (name.to_owned(), json!(value))));
        }
        rest.extend(self.priority.map(|value| ("priority".to_owned(), json!(value))));
        let dst: serde_json::Map<String, Value> = [("gap", &self.gap), ("fold", &self.fold)]
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?))))
            .collect();
        if !dst.is_empty() {
            rest.insert("dst".to_owned(), Value::Object(dst));
        }
        if !self.blackout.is_empty() {
            rest.insert("blackout".to_owned(), self.blackouts()?);
        }
        if !self.tags.is_empty() {
            rest.insert("tags".to_owned(), json!(self.tags));
        }
        if self.paused {
            rest.insert("paused".to_owned(), json!(true));
        }
        Ok(Body { schedule: self.cron.clone(), kind, payload, rest })
    }

    /// The type and payload: named, or a command line.
    fn work(&self) -> Result<(String, Option<matins_core::Json>)> {
        if let Some(kind) = &self.kind {
            let payload = self.payload.as_deref().map(payload).transpose()?;
            return Ok((kind.clone(), payload));
        }
        if self.command.is_empty() {
            return Err(Failure::usage("what is to be run?")
                .hint("give --type TYPE, or a command behind --"));
        }
        let here = std::env::current_dir().map_err(|e| Failure::io("the working directory", &e))?;
        let payload = json!({ "argv": self.command, "cwd": here });
        let payload = matins_core::Json::of(&payload)
            .map_err(|error| Failure::usage(format!("the command cannot be written: {error}")))?;
        Ok(("command".to_owned(), Some(payload)))
    }

    fn blackouts(&self) -> Result<Value> {
        let split = |text: &String| match text.split_once('/') {
            Some((from, to)) => Ok(json!({ "from": from, "to": to })),
            None => Err(Failure::usage(format!("--blackout {text}: expected FROM/TO"))
                .hint("--blackout 22:00/06:00")),
        };
        self.blackout.iter().map(split).collect::<Result<Vec<_>>>().map(Value::Array)
    }
}

#[derive(Serialize)]
struct Body {
    schedule: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<matins_core::Json>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}
