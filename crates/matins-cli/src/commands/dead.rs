//! `matins dead`: the failed tasks that wait for a person.

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use matins_core::Json;
use serde::Serialize;

use super::enqueue::payload;
use super::task;
use crate::door::{Answer, Request};
use crate::failure::{Exit, Failure, Result};
use crate::output::table::Value;
use crate::output::{self, Output, text, time};
use crate::session::{Global, Session, now};
use crate::views::{Groups, Operation, TaskPage};

#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// List dead letters, the newest first
    List(List),
    /// A dead letter with its attempts
    Show { id: String },
    /// Put dead letters back into the queue, with a fresh retry budget
    Replay(Replay),
    /// Put dead letters aside
    Dismiss(Dismiss),
}

impl Dead {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        match self {
            Self::List(list) => list.run(global).await,
            Self::Show { id } => {
                let session = Session::open(global)?;
                let request = Request::get(&["tasks", &id]);
                session.show(request, task::detail).await.map(|_| ())
            }
            Self::Replay(replay) => replay.run(global).await,
            Self::Dismiss(dismiss) => dismiss.run(global).await,
        }
    }
}

/// Which ones: every option that is given must match.
#[derive(Debug, Default, Clone, Args, Serialize)]
struct Filter {
    #[arg(long = "type", value_name = "TYPE")]
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    /// Fingerprint of the error, as `dead list --by-error` shows it
    #[arg(long = "error", value_name = "FINGERPRINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<String>,
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_after: Option<String>,
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_before: Option<String>,
}

impl Filter {
    fn is_empty(&self) -> bool {
        let Self { kind, pool, fingerprint, tag, schedule, failed_after, failed_before } = self;
        [kind, pool, fingerprint, tag, schedule, failed_after, failed_before]
            .iter()
            .all(|field| field.is_none())
    }

    fn query(self, request: Request) -> Request {
        request
            .query("type", self.kind)
            .query("pool", self.pool)
            .query("fingerprint", self.fingerprint)
            .query("tag", self.tag)
            .query("schedule", self.schedule)
            .query("failed_after", self.failed_after)
            .query("failed_before", self.failed_before)
    }
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Groups of equal failures instead of single ones
    #[arg(long)]
    by_error: bool,
    #[command(flatten)]
    filter: Filter,
    /// Most dead letters shown
    #[arg(short = 'n', long, value_name = "N", default_value = "50")]
    limit: u32,
    /// Go on where another list ended
    #[arg(long)]
    cursor: Option<String>,
}

impl List {
    async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let request = self.filter.query(Request::get(&["dead_letters"]));
        if self.by_error {
            let request = request.query("group_by", Some("error"));
            return session.show(request, groups).await.map(|_| ());
        }
        let request =
            request.query("limit", Some(self.limit.to_string())).query("cursor", self.cursor);
        session.show(request, letters).await.map(|_| ())
    }
}

fn letters(answer: &Answer, out: &Output) -> Result<()> {
    let page: TaskPage = answer.decode()?;
    let now = now();
    let mut grid = out.grid(["ID", "TYPE", "FAILED", "ATTEMPTS", "KEY", "ERROR"]);
    for task in &page.tasks {
        let error = task.error.as_ref();
        let said = error.map(|e| format!("{}: {}", e.class, text::short(&e.message, 160)));
        grid.row([
            task.id.as_str().into(),
            task.kind.as_str().into(),
            time::age_of(task.finished_at.as_deref(), now).into(),
            Value::number(task.attempt.unwrap_or_default()),
            task.execution_key.as_deref().into(),
            said.unwrap_or_default().into(),
        ]);
    }
    if grid.is_empty() {
        output::note("no dead letters");
        return Ok(());
    }
    output::line(&grid.to_string())?;
    task::more(page.next_cursor.as_deref());
    Ok(())
}

fn groups(answer: &Answer, out: &Output) -> Result<()> {
    let groups: Groups = answer.decode()?;
    let now = now();
    let mut grid = out.grid(["COUNT", "ERROR", "MESSAGE", "OLDEST", "NEWEST", "FINGERPRINT"]);
    for group in &groups.groups {
        grid.row([
            Value::number(group.count),
            group.class.as_str().into(),
            text::short(&group.message, 160).into(),
            time::age_of(Some(&group.oldest), now).into(),
            time::age_of(Some(&group.newest), now).into(),
            group.fingerprint.as_str().into(),
        ]);
    }
    if grid.is_empty() {
        output::note("no dead letters");
        return Ok(());
    }
    output::line(&grid.to_string())
}

/// Ids, or a filter, or all.
#[derive(Debug, Args)]
struct Selection {
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All dead letters
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: Filter,
}

impl Selection {
    /// Exactly one way of saying which: a forgotten filter must not mean all.
    fn split(self) -> Result<(Option<Vec<String>>, Option<Filter>)> {
        match (self.ids.is_empty(), self.filter.is_empty(), self.all) {
            (false, true, false) => Ok((Some(self.ids), None)),
            (true, false, false) | (true, true, true) => Ok((None, Some(self.filter))),
            (true, true, false) => Err(Failure::usage("which dead letters?")
                .hint("give ids, a filter such as --type or --error, or --all")),
            _ => Err(Failure::usage("ids, a filter and --all exclude each other")),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    selection: Selection,
    /// Only tell what would be replayed
    #[arg(long)]
    dry_run: bool,
    /// One first, the rest only when it has completed
    #[arg(long)]
    canary: bool,
    /// Most replays per period, such as 10/m
    #[arg(long, value_name = "N/m")]
    rate: Option<String>,
    /// Payload instead of each one's own: JSON, @FILE, or -
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    payload: Option<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Start it and do not wait for its end
    #[arg(long)]
    detach: bool,
}

#[derive(Serialize)]
struct ReplayBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Filter>,
    dry_run: bool,
    canary: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct DryRun {
    count: u64,
    oldest: Option<String>,
    sample: Vec<crate::views::Task>,
}

impl Replay {
    async fn run(self, global: &Global) -> Result<()> {
        let (ids, filter) = self.selection.split()?;
        let body = ReplayBody {
            ids,
            filter,
            dry_run: self.dry_run,
            canary: self.canary,
            rate: self.rate,
            payload: self.payload.as_deref().map(payload).transpose()?,
            reason: self.reason,
        };
        let session = Session::open(global)?;
        let request = Request::post(&["dead_letters", "replay"]).body(&body)?;
        if self.dry_run {
            return session.show(request, dry_run).await.map(|_| ());
        }
        let answer = session.ask(request).await?;
        let operation: Operation = answer.decode()?;
        if self.detach {
            if session.out.json {
                return answer.print();
            }
            return output::line(&operation.id);
        }
        follow(&session, &operation.id, "replayed").await
    }
}

fn dry_run(answer: &Answer, out: &Output) -> Result<()> {
    let run: DryRun = answer.decode()?;
    let oldest = run.oldest.as_deref();
    let oldest = oldest.map(|at| format!(", the oldest failed {}", out.moment(at, now())));
    let oldest = oldest.unwrap_or_default();
    output::line(&format!("would replay {} dead letters{oldest}", run.count))?;
    let mut grid = out.grid(["ID", "TYPE", "KEY", "ERROR"]);
    for task in &run.sample {
        let error = task.error.as_ref();
        grid.row([
            task.id.as_str().into(),
            task.kind.as_str().into(),
            task.execution_key.as_deref().into(),
            error.map_or_else(String::new, |e| text::short(&e.message, 120)).into(),
        ]);
    }
    if grid.is_empty() { Ok(()) } else { output::line(&grid.to_string()) }
}

/// Follows an operation to its end: without a server, this process carries it out.
pub(super) async fn follow(session: &Session, id: &str, verb: &str) -> Result<()> {
    let bar = progress(session);
    let request = || Request::get(&["operations", id]);
    loop {
        let pause = session.door.step_operation(id).await?;
        let answer = session.ask(request()).await?;
        let operation: Operation = answer.decode()?;
        bar.set_length(operation.total);
        bar.set_position(operation.replayed + operation.deduplicated + operation.failed);
        bar.set_message(operation.detail.clone().unwrap_or_default());
        if operation.state == "running" {
            tokio::time::sleep(pause).await;
            continue;
        }
        bar.finish_and_clear();
        if session.out.json {
            answer.print()?;
        } else {
            let Operation { total, replayed, deduplicated, failed, .. } = &operation;
            output::line(&format!(
                "{replayed} of {total} {verb}, {deduplicated} deduplicated, {failed} failed"
            ))?;
        }
        if operation.state == "completed" {
            return Ok(());
        }
        let detail = operation.detail.unwrap_or_default();
        return Err(Failure::new(Exit::Failed, format!("it stopped: {}", text::line(&detail))));
    }
}

fn progress(session: &Session) -> ProgressBar {
    if session.out.json || !session.out.terminal {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[derive(Debug, Args)]
pub(crate) struct Dismiss {
    #[command(flatten)]
    selection: Selection,
    /// Why nobody needs them any more
    #[arg(long, value_name = "TEXT", required = true)]
    reason: String,
}

#[derive(Serialize)]
struct DismissBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Filter>,
    reason: String,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Dismissed {
    dismissed: u64,
    refused: Vec<String>,
}

impl Dismiss {
    async fn run(self, global: &Global) -> Result<()> {
        let (ids, filter) = self.selection.split()?;
        let body = DismissBody { ids, filter, reason: self.reason };
        let session = Session::open(global)?;
        let request = Request::post(&["dead_letters", "dismiss"]).body(&body)?;
        let told = |answer: &Answer, _: &Output| {
            let Dismissed { dismissed, .. } = answer.decode()?;
            output::line(&format!("{dismissed} dismissed"))
        };
        let answer = session.show(request, told).await?;
        match answer.decode::<Dismissed>()?.refused.as_slice() {
            [] => Ok(()),
            refused => Err(Failure::failed(format!("no dead letters: {}", refused.join(", ")))),
        }
    }
}
