//! `matins enqueue`.

use std::io::Read as _;
use std::time::Duration;

use clap::Args;
use matins_core::Json;
use serde::Serialize;

use super::waiting::Waiting;
use crate::door::{Answer, Request};
use crate::failure::{Exit, Failure, Result};
use crate::output;
use crate::session::{Global, Session};
use crate::views::Task;

#[derive(Debug, Args)]
pub(crate) struct Enqueue {
    /// Type of the task
    #[arg(value_name = "TYPE")]
    kind: String,
    /// Payload: JSON, @FILE, or - for standard input [default: null]
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    payload: Option<String>,
    /// Execution key: the business meaning; completed at most once per type
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// What to do when the key is taken: return, reject or replace
    #[arg(long, value_name = "WHAT")]
    on_duplicate: Option<String>,
    /// When it is due, such as 2026-11-29T18:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<String>,
    /// How long from now it is due, such as 5m
    #[arg(long = "in", value_name = "DURATION")]
    delay: Option<String>,
    /// Cancelled when it has not started by then
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// Pool [default: the type's]
    #[arg(long)]
    pool: Option<String>,
    /// -100 to 100, higher first
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    priority: Option<i64>,
    /// Retries before it becomes a dead letter [default: the type's]
    #[arg(long, value_name = "N")]
    max_retries: Option<u64>,
    /// Time limit of an attempt, or none [default: the type's]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Tasks of one type and concurrency key take turns
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// Tag; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Id made by the caller, so that a repeat is harmless
    #[arg(long, value_name = "UUID")]
    id: Option<String>,
    /// Wait until it has ended; exits 0 if it completed, 1 if not
    #[arg(long)]
    wait: bool,
}

/// The body of the request: what is not given stays out.
#[derive(Serialize)]
pub(super) struct Body<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    pub(super) payload: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) execution_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) on_duplicate: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delay: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_retries: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) concurrency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) tags: &'a [String],
}

impl<'a> Body<'a> {
    pub(super) fn new(kind: &'a str, payload: Option<Json>) -> Self {
        Self {
            kind,
            payload,
            id: None,
            execution_key: None,
            on_duplicate: None,
            run_at: None,
            delay: None,
            expires_at: None,
            pool: None,
            priority: None,
            max_retries: None,
            timeout: None,
            concurrency_key: None,
            tags: &[],
        }
    }
}

impl Enqueue {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let payload = self.payload.as_deref().map(payload).transpose()?;
        let body = Body {
            id: self.id.as_deref(),
            execution_key: self.key.as_deref(),
            on_duplicate: self.on_duplicate.as_deref(),
            run_at: self.at.as_deref(),
            delay: self.delay.as_deref(),
            expires_at: self.expires_at.as_deref(),
            pool: self.pool.as_deref(),
            priority: self.priority,
            max_retries: self.max_retries,
            timeout: self.timeout.as_deref(),
            concurrency_key: self.concurrency_key.as_deref(),
            tags: &self.tags,
            ..Body::new(&self.kind, payload)
        };
        let session = Session::by_the_file(global)?;
        let answer = session.ask(Request::post(&["tasks"]).body(&body)?).await?;
        let task: Task = answer.decode()?;
        if self.wait {
            return report(&session, &ended(&session, &task.id).await?);
        }
        if session.out.json {
            return answer.print();
        }
        output::line(&task.id)?;
        output::note(&said(&task, session.door.has_no_server().await));
        Ok(())
    }
}

/// Reads `JSON`, `@FILE` or `-`.
pub(super) fn payload(text: &str) -> Result<Json> {
    let (origin, content) = if text == "-" {
        let mut content = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut content);
        read.map_err(|error| Failure::io("standard input", &error))?;
        ("standard input".to_owned(), content)
    } else if let Some(path) = text.strip_prefix('@') {
        let content = std::fs::read(path);
        let content =
            content.map_err(|error| Failure::usage(format!("the payload file {path}: {error}")))?;
        (path.to_owned(), content)
    } else {
        ("the payload".to_owned(), text.as_bytes().to_vec())
    };
    let text = String::from_utf8(content)
        .map_err(|_| Failure::usage(format!("{origin} is not UTF-8 text")))?;
    Json::parse(&text).map_err(|error| {
        Failure::usage(format!("{origin} is not JSON: {error}"))
            .hint("text needs quotes of its own: --payload '\"text\"'")
    })
}

fn said(task: &Task, unserved: bool) -> String {
    let kind = output::text::line(&task.kind);
    if task.deduplicated {
        let since = output::time::age_of(task.finished_at.as_deref(), crate::session::now());
        let said = format!("{kind}: the key is taken, this task is {} {since}", task.word());
        return said.trim_end().to_owned();
    }
    let pool = task.pool.as_deref().map(|pool| format!(" in pool {}", output::text::line(pool)));
    let waits =
        if unserved { "; no server runs on this store, it waits for: matins serve" } else { "" };
    format!("{kind}: {}{}{waits}", task.word(), pool.unwrap_or_default())
}

/// How often a waiting command looks at first, and at most.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LAST: Duration = Duration::from_millis(500);

/// The answer for a task that has ended.
pub(super) async fn ended(session: &Session, id: &str) -> Result<Answer> {
    let mut pause = LOOK_FIRST;
    let mut waiting = Waiting::new(session, id);
    loop {
        if let Some(answer) = waiting.look().await?
            && answer.decode::<Task>()?.has_ended()
        {
            return Ok(answer);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LOOK_LAST);
    }
}

/// Prints how a task ended, and fails unless it completed.
fn report(session: &Session, answer: &Answer) -> Result<()> {
    let task: Task = answer.decode()?;
    if session.out.json {
        answer.print()?;
    } else {
        output::line(&task.id)?;
        if let Some(result) = task.result.as_ref().filter(|result| result.get() != "null") {
            output::line(&output::text::line(result.get()))?;
        }
        if let Some(error) = &task.error {
            let message = output::text::line(&error.message);
            output::note(&format!("{}: {}: {message}", task.state, error.class));
        }
    }
    match &*task.state {
        "completed" => Ok(()),
        _ => Err(Failure::silent(Exit::Failed as u8)),
    }
}
