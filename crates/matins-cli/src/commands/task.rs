//! Commands about single tasks: `list show output why cancel retry rerun`.

use clap::Args;
use matins_core::canary;
use serde_json::json;
use serde_json::value::RawValue;

use super::follow;
use crate::door::{Answer, Door, Request};
use crate::failure::{Failure, Result};
use crate::output::facts::Facts;
use crate::output::table::{Value, tone_of};
use crate::output::{self, Output as Out, Tone, text, time};
use crate::session::{Global, Session, now};
use crate::views::{self, Attempt, Task, TaskPage};

#[derive(Debug, Args)]
pub(crate) struct List {
    /// States, separated by commas: pending, running, completed, failed, cancelled
    #[arg(long, value_name = "STATES")]
    state: Option<String>,
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    #[arg(long)]
    pool: Option<String>,
    #[arg(long)]
    tag: Option<String>,
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Execution key
    #[arg(long)]
    key: Option<String>,
    /// Beginning of an id, key, type or tag
    #[arg(short, long, value_name = "TEXT")]
    query: Option<String>,
    /// Most tasks shown
    #[arg(short = 'n', long, value_name = "N", default_value = "50")]
    limit: u32,
    /// Go on where another list ended
    #[arg(long)]
    cursor: Option<String>,
}

impl List {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        // Whoever asks for nothing in particular does not mean them.
        let hide = self.kind.is_none() && self.tag.is_none() && self.query.is_none();
        let request = Request::get(&["tasks"])
            .query("state", self.state)
            .query("type", self.kind)
            .query("pool", self.pool)
            .query("tag", self.tag)
            .query("schedule", self.schedule)
            .query("execution_key", self.key)
            .query("q", self.query)
            .query("limit", Some(self.limit.to_string()))
            .query("cursor", self.cursor);
        let session = Session::open(global)?;
        session.show(request, |answer, out| tasks(answer, out, hide)).await.map(|_| ())
    }
}

fn tasks(answer: &Answer, out: &Out, hide_canaries: bool) -> Result<()> {
    let mut page: TaskPage = answer.decode()?;
    let now = now();
    let all = page.tasks.len();
    page.tasks.retain(|task| !hide_canaries || task.kind != canary::KIND);
    if all > page.tasks.len() {
        let hidden = all - page.tasks.len();
        output::note(&format!("{hidden} canaries are left out: --type {}", canary::KIND));
    }
    let mut grid = out.grid(["ID", "TYPE", "STATE", "POOL", "ATTEMPT", "WHEN", "KEY"]);
    for task in &page.tasks {
        grid.row([
            task.id.as_str().into(),
            task.kind.as_str().into(),
            Value::toned(tone_of(task.word()), task.word()),
            task.pool.as_deref().into(),
            Value::number(task.attempt.unwrap_or_default()),
            when(task, now).into(),
            task.execution_key.as_deref().into(),
        ]);
    }
    if grid.is_empty() {
        output::note("no tasks match");
        return Ok(());
    }
    output::line(&grid.to_string())?;
    more(page.next_cursor.as_deref());
    Ok(())
}

/// Says that there is more, and how to see it.
pub(super) fn more(cursor: Option<&str>) {
    if let Some(cursor) = cursor {
        output::note(&format!("there is more: --cursor {cursor}"));
    }
}

/// The time that matters most in a task's state.
fn when(task: &Task, now: jiff::Timestamp) -> String {
    let at = match &*task.state {
        "pending" => task.run_at.as_deref(),
        "running" => task.started_at.as_deref(),
        _ => task.finished_at.as_deref(),
    };
    time::age_of(at, now)
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    id: String,
}

impl Show {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let request = Request::get(&["tasks", &self.id]);
        session.show(request, detail).await.map(|_| ())
    }
}

pub(super) fn detail(answer: &Answer, out: &Out) -> Result<()> {
    let task: Task = answer.decode()?;
    let now = now();
    let mut parts = vec![facts(&task, out, now).to_string()];
    if let Some(error) = &task.error {
        let said = format!("{}: {}", error.class, text::block(&error.message));
        let mut facts = Facts::new(WIDTH);
        facts.add("error", out.tinted(Tone::Bad, &said));
        facts.plain("fingerprint", Some(&error.fingerprint));
        parts.push(facts.to_string());
    }
    if !task.attempts.is_empty() {
        parts.push(attempts(&task.attempts, out, now));
    }
    if let Some(last) = task.attempts.last().filter(|attempt| !attempt.output.is_empty()) {
        let written = text::block(&last.output);
        parts.push(format!("output of attempt {}:\n{written}", last.number));
    }
    output::line(&parts.join("\n"))
}

/// Of the names beside the values.
const WIDTH: usize = 12;

fn facts(task: &Task, out: &Out, now: jiff::Timestamp) -> Facts {
    let moment = |value: &Option<String>| value.as_deref().map(|at| out.moment(at, now));
    let raw = |value: &Option<Box<RawValue>>| {
        value.as_ref().filter(|v| v.get() != "null").map(|v| text::line(v.get()))
    };
    let nonzero = |count: Option<u64>| count.filter(|n| *n > 0).map(|n| n.to_string());
    let mut facts = Facts::new(WIDTH);
    facts.plain("id", Some(&task.id));
    facts.plain("type", Some(&task.kind));
    facts.add("state", out.tinted(tone_of(task.word()), &text::line(task.word())));
    facts.plain("key", task.execution_key.as_deref());
    facts.plain("pool", task.pool.as_deref());
    facts.add("priority", task.priority.filter(|n| *n != 0).map(|n| n.to_string()));
    let tags = task.tags.as_ref().filter(|tags| !tags.is_empty());
    facts.add("tags", tags.map(|tags| text::line(&tags.join(", "))));
    facts.plain("turn key", task.concurrency_key.as_deref());
    facts.plain("schedule", task.schedule.as_deref());
    facts.plain("occurrence", task.occurrence.as_deref());
    facts.add("due", moment(&task.run_at).filter(|_| task.state == "pending"));
    facts.add("expires", moment(&task.expires_at));
    let by = task.created_by.as_deref().map(|by| format!(" by {}", text::line(by)));
    facts.add("created", moment(&task.created_at).map(|at| at + &by.unwrap_or_default()));
    facts.add("started", moment(&task.started_at));
    facts.add("finished", moment(&task.finished_at));
    facts.add("cancelling", moment(&task.cancel_requested_at).filter(|_| !task.has_ended()));
    facts.plain("cancelled", task.cancel_reason.as_deref());
    facts.add("timeout", raw(&task.timeout).map(|t| seconds(&t)));
    let retries = task.retries.zip(task.max_retries);
    facts.add("retries", retries.map(|(used, of)| format!("{used} of {of}")));
    facts.add("losses", nonzero(task.losses));
    facts.add("interrupted", nonzero(task.interruptions));
    facts.add("replays", nonzero(task.replays));
    facts.add("payload", raw(&task.payload));
    facts.add("result", raw(&task.result));
    let dropped = task.result_dropped_bytes;
    facts.add("result", dropped.map(|n| format!("dropped: {n} bytes exceed the limit")));
    facts.add(
        "dismissed",
        task.dismissed.as_ref().map(|dismissal| {
            let (by, reason) = (text::line(&dismissal.by), text::line(&dismissal.reason));
            format!("{} by {by}: {reason}", out.moment(&dismissal.at, now))
        }),
    );
    facts
}

/// `300` as `5m`; a word stays.
fn seconds(raw: &str) -> String {
    match raw.parse::<f64>().ok().and_then(matins_core::duration::from_seconds) {
        Some(length) => matins_core::duration::format(length),
        None => raw.trim_matches('"').to_owned(),
    }
}

fn attempts(attempts: &[Attempt], out: &Out, now: jiff::Timestamp) -> String {
    let mut grid = out.grid(["ATTEMPT", "OUTCOME", "STARTED", "TOOK", "EXIT", "WORKER", "ERROR"]);
    for attempt in attempts {
        let outcome = attempt.outcome.as_deref().unwrap_or("running");
        let started = attempt.started_at.parse::<jiff::Timestamp>().ok();
        let finished = attempt.finished_at.as_deref().and_then(|at| at.parse().ok());
        let took = started.map(|from| {
            let span = finished.unwrap_or(now).duration_since(from);
            time::took(span.unsigned_abs())
        });
        let exit = attempt.exit_code.map(|code| code.to_string());
        let exit = exit.or_else(|| attempt.http_status.map(|status| status.to_string()));
        let error = attempt.error.as_ref();
        grid.row([
            Value::number(attempt.number),
            Value::toned(tone_of(outcome), outcome),
            time::age_of(Some(&attempt.started_at), now).into(),
            took.unwrap_or_default().into(),
            exit.unwrap_or_default().into(),
            attempt.worker.as_str().into(),
            error
                .map_or_else(String::new, |e| {
                    format!("{}: {}", e.class, text::short(&e.message, 120))
                })
                .into(),
        ]);
    }
    grid.to_string()
}

#[derive(Debug, Args)]
pub(crate) struct Output {
    id: String,
    /// Number of the attempt [default: the last]
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Go on with what it writes until it ends
    #[arg(short, long)]
    follow: bool,
}

impl Output {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let request = Request::get(&["tasks", &self.id, "output"])
            .query("attempt", self.attempt.map(|n| n.to_string()));
        if self.follow {
            return self.follow(&session).await;
        }
        let answer = session.ask(request).await?;
        write(&session.out, &answer.body)
    }
}

impl Output {
    /// A server on the same store has what is being written; the store has it afterwards.
    async fn follow(&self, session: &Session) -> Result<()> {
        let live = match &session.door {
            Door::Local(door) => door.live_server().map(Door::Http),
            Door::Http(_) => None,
        };
        let follow = |door| {
            follow::attempt(door, &self.id, self.attempt, |_, bytes| write(&session.out, bytes))
        };
        let end = match &live {
            Some(live) => match follow(live).await {
                // It does not let us in: what was written is still to be had, only later.
                Err(failure) if failure.message.is_some() => follow(&session.door).await?,
                followed => followed?,
            },
            None => follow(&session.door).await?,
        };
        match end {
            Some(end) => {
                output::note(&format!(
                    "attempt {} has ended, the task is {}",
                    end.attempt, end.state
                ));
                Ok(())
            }
            None => Err(Failure::unreachable("the stream broke off before the end")),
        }
    }
}

/// A program gets the bytes, a terminal harmless text.
fn write(out: &Out, bytes: &[u8]) -> Result<()> {
    if out.terminal { output::bytes(text::lossy(bytes).as_bytes()) } else { output::bytes(bytes) }
}

#[derive(Debug, Args)]
pub(crate) struct Why {
    id: String,
}

impl Why {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let request = Request::get(&["tasks", &self.id, "why"]);
        session.show(request, why).await.map(|_| ())
    }
}

fn why(answer: &Answer, out: &Out) -> Result<()> {
    let why: views::Why = answer.decode()?;
    let reason = why.reason.map(|reason| format!(", {reason}")).unwrap_or_default();
    let since = why.since.map(|since| format!("\nsince {}", out.moment(&since, now())));
    output::line(&format!(
        "{}{reason}: {}{}",
        out.tinted(tone_of(&why.state), &why.state),
        text::line(&why.detail),
        since.unwrap_or_default()
    ))?;
    if let Some(hint) = &why.hint {
        output::note(&format!("hint: {}", text::line(hint)));
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Cancel {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        act(global, &self.ids, "cancel", self.reason.as_deref()).await
    }
}

#[derive(Debug, Args)]
pub(crate) struct Retry {
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Retry {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        act(global, &self.ids, "retry", self.reason.as_deref()).await
    }
}

/// Acts on each task by itself: one that refuses does not keep the others from it. The exit code
/// is that of the first refusal.
async fn act(global: &Global, ids: &[String], act: &str, reason: Option<&str>) -> Result<()> {
    let session = Session::open(global)?;
    let mut first = None;
    for id in ids {
        let body = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
        let request = Request::post(&["tasks", id, act]).body(&body)?;
        match session.show(request, acted).await {
            Ok(_) => {}
            Err(failure) if failure.message.is_some() && ids.len() > 1 => {
                crate::say(&failure);
                first.get_or_insert(failure.code);
            }
            Err(failure) => return Err(failure),
        }
    }
    first.map_or(Ok(()), |code| Err(Failure::silent(code)))
}

fn acted(answer: &Answer, out: &Out) -> Result<()> {
    let task: Task = answer.decode()?;
    let word = match task.cancel_requested_at {
        Some(_) if !task.has_ended() => "is being cancelled",
        _ => task.word(),
    };
    let taken = if task.deduplicated { " (its key is taken, it stays as it is)" } else { "" };
    output::line(&format!("{} {}{taken}", task.id, out.tinted(tone_of(word), word)))
}

#[derive(Debug, Args)]
pub(crate) struct Rerun {
    id: String,
}

impl Rerun {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let request = Request::post(&["tasks", &self.id, "rerun"]).body(&json!({}))?;
        let told = |answer: &Answer, _: &Out| {
            let task: Task = answer.decode()?;
            if task.deduplicated {
                output::note(&format!("the key is taken: this task is {}", task.word()));
            }
            output::line(&task.id)
        };
        session.show(request, told).await.map(|_| ())
    }
}
