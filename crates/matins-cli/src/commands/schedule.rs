//! `matins schedule`.

mod set;

use clap::{Args, Subcommand};
use serde_json::json;

use super::task::more;
use crate::door::{Answer, Method, Request};
use crate::failure::Result;
use crate::output::table::{Value, tone_of};
use crate::output::{self, Output, text, time};
use crate::session::{Global, Session, now};
use crate::views::{self, OccurrencePage, Preview as Fires, SchedulePage};

#[derive(Debug, Subcommand)]
pub(crate) enum Schedule {
    /// List schedules
    List(List),
    /// A schedule with its next fires
    Show { name: String },
    /// Create a schedule or replace it
    Set(Box<set::Set>),
    /// Remove a schedule; its history stays
    Remove { name: String },
    /// Stop a schedule from firing
    Pause {
        name: String,
        /// Why, for whoever finds it paused
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// Let a schedule fire again
    Resume { name: String },
    /// Run a schedule now, beside its timetable
    Trigger {
        name: String,
        /// Label of the occurrence that the run stands for, such as 2026-11-29T02:00:00
        #[arg(long = "for", value_name = "LABEL")]
        label: Option<String>,
    },
    /// Run the occurrences of a range of time
    Backfill(Backfill),
    /// When an expression fires; opens no store
    Preview(Preview),
    /// What became of a schedule's occurrences
    History(History),
}

impl Schedule {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        match self {
            Self::List(list) => list.run(global).await,
            Self::Show { name } => show(global, &name).await,
            Self::Set(set) => set.run(global).await,
            Self::Remove { name } => {
                let session = Session::open(global).await?;
                let request = Request::new(Method::Delete, &["schedules", &name]);
                let said = format!("{} is removed, its history stays", text::line(&name));
                session.show(request, |_, _| output::line(&said)).await.map(|_| ())
            }
            Self::Pause { name, note } => {
                let body = note.map_or_else(|| json!({}), |note| json!({ "note": note }));
                act(global, &name, "pause", &body).await
            }
            Self::Resume { name } => act(global, &name, "resume", &json!({})).await,
            Self::Trigger { name, label } => {
                let body = label.map_or_else(|| json!({}), |label| json!({ "for": label }));
                let session = Session::open(global).await?;
                let request = Request::post(&["schedules", &name, "trigger"]).body(&body)?;
                session.show(request, |answer, _| triggered(answer)).await.map(|_| ())
            }
            Self::Backfill(backfill) => backfill.run(global).await,
            Self::Preview(preview) => preview.run(global).await,
            Self::History(history) => history.run(global).await,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Most schedules shown
    #[arg(short = 'n', long, value_name = "N", default_value = "200")]
    limit: u32,
    /// Go on where another list ended
    #[arg(long)]
    cursor: Option<String>,
}

impl List {
    async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global).await?;
        let request = Request::get(&["schedules"])
            .query("limit", Some(self.limit.to_string()))
            .query("cursor", self.cursor);
        session.show(request, |answer, out| schedules(answer, out)).await.map(|_| ())
    }
}

fn schedules(answer: &Answer, out: &Output) -> Result<()> {
    let page: SchedulePage = answer.decode()?;
    let now = now();
    let mut grid = out.grid(["NAME", "SCHEDULE", "TIMEZONE", "TYPE", "STATE", "NEXT", "BY"]);
    for schedule in &page.schedules {
        grid.row([
            schedule.name.as_str().into(),
            schedule.schedule.as_str().into(),
            schedule.timezone.as_str().into(),
            schedule.kind.as_str().into(),
            Value::toned(tone_of(&schedule.state), &schedule.state),
            time::age_of(schedule.next_fire.as_deref(), now).into(),
            schedule.managed_by.as_str().into(),
        ]);
    }
    if grid.is_empty() {
        output::note("no schedules");
        return Ok(());
    }
    output::line(&grid.to_string())?;
    more(page.next_cursor.as_deref());
    Ok(())
}

/// Fires shown with a schedule.
const NEXT_FIRES: u32 = 5;

async fn show(global: &Global, name: &str) -> Result<()> {
    let session = Session::open(global).await?;
    let answer = session.ask(Request::get(&["schedules", name])).await?;
    if session.out.json {
        return session.print(&answer);
    }
    let schedule: views::Schedule = answer.decode()?;
    output::line(&facts(&schedule, &session.out))?;
    let spec: serde_json::Value = answer.decode()?;
    let body = json!({
        "schedule": schedule.schedule,
        "timezone": schedule.timezone,
        "dst": spec["dst"],
        "count": NEXT_FIRES,
    });
    // `@every` counts from an anchor that a preview does not know.
    if schedule.state == "active" && !schedule.schedule.starts_with("@every") {
        let request = Request::post(&["schedules", "preview"]).body(&body)?;
        let fires: Fires = session.ask(request).await?.decode()?;
        output::line(&format!("\nnext fires\n{}", fire_table(&fires, &session.out)))?;
    }
    Ok(())
}

fn facts(schedule: &views::Schedule, out: &Output) -> String {
    let now = now();
    let mut lines = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        lines.extend(value.map(|value| format!("{name:<12} {value}")));
    };
    let plain = |value: &Option<String>| value.as_deref().map(text::line);
    let moment = |value: &Option<String>| value.as_deref().map(|at| out.moment(at, now));
    add("name", Some(text::line(&schedule.name)));
    add("state", Some(out.tinted(tone_of(&schedule.state), &schedule.state)));
    add("schedule", Some(text::line(&schedule.schedule)));
    add("timezone", Some(text::line(&schedule.timezone)));
    add("type", Some(text::line(&schedule.kind)));
    let payload = schedule.payload.as_ref().filter(|p| p.get() != "null");
    add("payload", payload.map(|p| text::line(p.get())));
    add("key", plain(&schedule.execution_key));
    add("pool", plain(&schedule.pool));
    add("catch up", Some(text::line(&schedule.catch_up)));
    add("overlap", Some(text::line(&schedule.overlap)));
    add("start", moment(&schedule.start));
    add("end", moment(&schedule.end));
    add("managed by", Some(text::line(&schedule.managed_by)));
    add("next fire", moment(&schedule.next_fire));
    add("paused", moment(&schedule.paused_since));
    add("note", plain(&schedule.note));
    let live = schedule.active + schedule.held;
    add(
        "live tasks",
        (live > 0).then(|| format!("{} active, {} held", schedule.active, schedule.held)),
    );
    let failures = schedule.failures_in_row;
    add("failures", (failures > 0).then(|| format!("{failures} in a row")));
    let balance = &schedule.balance;
    add(
        "occurrences",
        Some(format!(
            "{} expected: {} fired, {} coalesced, {} skipped, {} missed",
            balance.expected, balance.fired, balance.coalesced, balance.skipped, balance.missed
        )),
    );
    lines.join("\n")
}

pub(super) fn told(answer: &Answer, out: &Output) -> Result<()> {
    let schedule: views::Schedule = answer.decode()?;
    let mut said = format!(
        "{} is {}",
        text::line(&schedule.name),
        out.tinted(tone_of(&schedule.state), &schedule.state)
    );
    if let Some(next) = schedule.next_fire.as_deref().filter(|_| schedule.state == "active") {
        said.push_str(&format!(", next fire {}", out.moment(next, now())));
    }
    output::line(&said)
}

async fn act(global: &Global, name: &str, act: &str, body: &serde_json::Value) -> Result<()> {
    let session = Session::open(global).await?;
    let request = Request::post(&["schedules", name, act]).body(body)?;
    session.show(request, told).await.map(|_| ())
}

fn triggered(answer: &Answer) -> Result<()> {
    let occurrence: views::Occurrence = answer.decode()?;
    output::note(&format!("{} {}", occurrence.kind, text::line(&occurrence.label)));
    match occurrence.task_id {
        Some(id) => output::line(&id),
        None => output::line(&format!(
            "{} {}",
            occurrence.outcome,
            occurrence.reason.unwrap_or_default()
        )),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Backfill {
    name: String,
    /// Begin of the range, such as 2026-11-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    from: String,
    /// End of the range, itself excluded
    #[arg(long, value_name = "TIME")]
    to: String,
    /// missing, missing+failed or all [default: missing]
    #[arg(long)]
    mode: Option<String>,
    /// How many may run at once [default: 1]
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// Only tell what would be run
    #[arg(long)]
    dry_run: bool,
    /// Start it and do not wait for its end
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct BackfillDryRun {
    count: u64,
    deduplicated: u64,
    labels: Vec<String>,
}

impl Backfill {
    async fn run(self, global: &Global) -> Result<()> {
        let mut body = json!({ "from": self.from, "to": self.to, "dry_run": self.dry_run });
        if let Some(mode) = &self.mode {
            body["mode"] = json!(mode);
        }
        if let Some(concurrency) = self.concurrency {
            body["concurrency"] = json!(concurrency);
        }
        let session = Session::open(global).await?;
        let request = Request::post(&["schedules", &self.name, "backfill"]).body(&body)?;
        if self.dry_run {
            let told = |answer: &Answer, _: &Output| {
                let run: BackfillDryRun = answer.decode()?;
                let mut said = format!(
                    "would run {} occurrences, {} of them deduplicated by their keys",
                    run.count, run.deduplicated
                );
                for label in &run.labels {
                    said.push_str(&format!("\n{}", text::line(label)));
                }
                output::line(&said)
            };
            return session.show(request, told).await.map(|_| ());
        }
        let answer = session.ask(request).await?;
        let operation: views::Operation = answer.decode()?;
        if !self.detach {
            return super::dead::follow(&session, &operation.id, "started").await;
        }
        if session.out.json { session.print(&answer) } else { output::line(&operation.id) }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Preview {
    /// Cron expression, @daily, @every 45m or @at 2027-01-01T09:00
    #[arg(long, value_name = "EXPRESSION")]
    cron: String,
    /// IANA name [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Fires strictly after this [default: now]
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// How many [default: 10]
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// A local time that a clock change skips: run or skip [default: run]
    #[arg(long, value_name = "WHAT")]
    gap: Option<String>,
    /// Which copy of a local time that exists twice: first, second or both [default: first]
    #[arg(long, value_name = "WHICH")]
    fold: Option<String>,
}

impl Preview {
    async fn run(self, global: &Global) -> Result<()> {
        let mut body = json!({ "schedule": self.cron });
        let mut dst = json!({});
        let text = |value: Option<String>| value.map(|value| json!(value));
        for (name, value) in [
            ("timezone", text(self.timezone)),
            ("after", text(self.after)),
            ("count", self.count.map(|n| json!(n))),
        ] {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        for (name, value) in [("gap", self.gap), ("fold", self.fold)] {
            if let Some(value) = value {
                dst[name] = json!(value);
                body["dst"] = dst.clone();
            }
        }
        let session = Session::detached(global).await?;
        let request = Request::post(&["schedules", "preview"]).body(&body)?;
        let told = |answer: &Answer, out: &Output| {
            let fires: Fires = answer.decode()?;
            if fires.fires.is_empty() {
                output::note("it never fires after that");
                return Ok(());
            }
            output::line(&fire_table(&fires, out).to_string())
        };
        session.show(request, told).await.map(|_| ())
    }
}

fn fire_table(fires: &Fires, out: &Output) -> output::table::Grid {
    let local = text::line(&fires.timezone);
    let mut grid = out.grid(["UTC", &local, "NOTES"]);
    for fire in &fires.fires {
        let notes = fire.notes.iter().map(|note| match &**note {
            "dst_gap" => "the clock skips it: right after the gap",
            "dst_fold" => "the clock shows it twice",
            "merged" => "several local times at once",
            other => other,
        });
        grid.row([
            fire.utc.as_str().into(),
            fire.local.as_str().into(),
            notes.collect::<Vec<_>>().join(", ").into(),
        ]);
    }
    grid
}

#[derive(Debug, Args)]
pub(crate) struct History {
    name: String,
    /// Most occurrences shown
    #[arg(short = 'n', long, value_name = "N", default_value = "50")]
    limit: u32,
    /// Go on where another list ended
    #[arg(long)]
    cursor: Option<String>,
}

impl History {
    async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global).await?;
        let request = Request::get(&["schedules", &self.name, "occurrences"])
            .query("limit", Some(self.limit.to_string()))
            .query("cursor", self.cursor);
        session.show(request, |answer, out| occurrences(answer, out)).await.map(|_| ())
    }
}

fn occurrences(answer: &Answer, out: &Output) -> Result<()> {
    let page: OccurrencePage = answer.decode()?;
    let now = now();
    let mut grid = out.grid(["LABEL", "COUNT", "KIND", "OUTCOME", "REASON", "FIRED", "TASK"]);
    for occurrence in &page.occurrences {
        let label = match &occurrence.label_to {
            Some(to) => format!("{} … {to}", occurrence.label),
            None => occurrence.label.clone(),
        };
        grid.row([
            label.into(),
            Value::number(occurrence.count),
            occurrence.kind.as_str().into(),
            Value::toned(tone_of(&occurrence.outcome), &occurrence.outcome),
            occurrence.reason.as_deref().into(),
            time::age_of(occurrence.fired_at.as_deref(), now).into(),
            occurrence.task_id.as_deref().into(),
        ]);
    }
    if grid.is_empty() {
        output::note("no occurrence has been decided yet");
        return Ok(());
    }
    output::line(&grid.to_string())?;
    more(page.next_cursor.as_deref());
    Ok(())
}
