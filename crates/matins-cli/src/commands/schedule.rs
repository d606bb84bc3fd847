//! `matins schedule`.

mod set;

use clap::{Args, Subcommand};
use serde_json::json;

use super::task::more;
use crate::door::{Answer, Method, Request};
use crate::failure::Result;
use crate::output::facts::Facts;
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
                let session = Session::open(global)?;
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
                let session = Session::open(global)?;
                let request = Request::post(&["schedules", &name, "trigger"]).body(&body)?;
                let answer = session.show(request, |answer, _| triggered(answer)).await?;
                tell_if_deduplicated(&session, &answer).await
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
        let session = Session::open(global)?;
        let request = Request::get(&["schedules"])
            .query("limit", Some(self.limit.to_string()))
            .query("cursor", self.cursor);
        session.show(request, schedules).await.map(|_| ())
    }
}

fn schedules(answer: &Answer, out: &Output) -> Result<()> {
    let page: SchedulePage = answer.decode()?;
    let now = now();
    let mut grid = out.grid(["NAME", "SCHEDULE", "TIMEZONE", "TYPE", "STATE", "NEXT", "BY"]);
    for schedule in &page.schedules {
        grid.row([
            schedule.name.as_str().into(),
            schedule.expression.as_str().into(),
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
    let session = Session::open(global)?;
    let answer = session.ask(Request::get(&["schedules", name])).await?;
    if session.out.json {
        return answer.print();
    }
    let schedule: views::Schedule = answer.decode()?;
    output::line(&facts(&schedule, &session.out).to_string())?;
    let spec: serde_json::Value = answer.decode()?;
    let body = json!({
        "schedule": schedule.expression,
        "timezone": schedule.timezone,
        "dst": spec["dst"],
        "count": NEXT_FIRES,
    });
    // `@every` counts from an anchor that a preview does not know.
    if schedule.state == "active" && !schedule.expression.starts_with("@every") {
        let request = Request::post(&["schedules", "preview"]).body(&body)?;
        let fires: Fires = session.ask(request).await?.decode()?;
        output::line(&format!("\nnext fires\n{}", fire_table(&fires, &session.out)))?;
    }
    Ok(())
}

fn facts(schedule: &views::Schedule, out: &Output) -> Facts {
    let now = now();
    let moment = |value: &Option<String>| value.as_deref().map(|at| out.moment(at, now));
    let mut facts = Facts::new(12);
    facts.plain("name", Some(&schedule.name));
    facts.add("state", out.tinted(tone_of(&schedule.state), &schedule.state));
    facts.plain("schedule", Some(&schedule.expression));
    facts.plain("timezone", Some(&schedule.timezone));
    facts.plain("type", Some(&schedule.kind));
    let payload = schedule.payload.as_ref().map(|payload| payload.get());
    facts.plain("payload", payload.filter(|payload| *payload != "null"));
    facts.plain("key", schedule.execution_key.as_deref());
    facts.plain("pool", schedule.pool.as_deref());
    facts.plain("catch up", Some(&schedule.catch_up));
    facts.plain("overlap", Some(&schedule.overlap));
    facts.add("start", moment(&schedule.start));
    facts.add("end", moment(&schedule.end));
    facts.plain("managed by", Some(&schedule.managed_by));
    facts.add("next fire", moment(&schedule.next_fire));
    facts.add("paused", moment(&schedule.paused_since));
    facts.plain("note", schedule.note.as_deref());
    let views::Schedule { active, held, failures_in_row, balance, .. } = schedule;
    let live = (active + held > 0).then(|| format!("{active} active, {held} held"));
    facts.add("live tasks", live);
    facts.add("failures", (*failures_in_row > 0).then(|| format!("{failures_in_row} in a row")));
    let views::Balance { expected, fired, coalesced, skipped, missed } = balance;
    facts.add(
        "occurrences",
        format!(
            "{expected} expected: {fired} fired, {coalesced} coalesced, {skipped} skipped, \
             {missed} missed"
        ),
    );
    facts
}

pub(super) fn told(answer: &Answer, out: &Output) -> Result<()> {
    let schedule: views::Schedule = answer.decode()?;
    let next = schedule.next_fire.as_deref().filter(|_| schedule.state == "active");
    let next = next.map(|at| format!(", next fire {}", out.moment(at, now())));
    output::line(&format!(
        "{} is {}{}",
        text::line(&schedule.name),
        out.tinted(tone_of(&schedule.state), &schedule.state),
        next.unwrap_or_default()
    ))
}

async fn act(global: &Global, name: &str, act: &str, body: &serde_json::Value) -> Result<()> {
    let session = Session::open(global)?;
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

/// A run that was asked for and does not come must not look like one that does.
async fn tell_if_deduplicated(session: &Session, answer: &Answer) -> Result<()> {
    let occurrence: views::Occurrence = answer.decode()?;
    let Some(holder) = occurrence.task_id.filter(|_| occurrence.deduplicated) else {
        return Ok(());
    };
    let shown = session.door.ask(Request::get(&["tasks", &holder])).await?;
    // A task whose row is gone had completed: the ledger remembers its key.
    let task = if shown.status == 200 { Some(shown.decode::<views::Task>()?) } else { None };
    let said = match task.filter(|task| task.state != "completed") {
        Some(task) => format!("its key is taken by this task, which is {}", task.word()),
        None => "its key has completed before, as this task".to_owned(),
    };
    output::note(&format!("deduplicated: {said}; nothing new is run"));
    Ok(())
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
        let session = Session::open(global)?;
        let request = Request::post(&["schedules", &self.name, "backfill"]).body(&body)?;
        if self.dry_run {
            let told = |answer: &Answer, _: &Output| {
                let run: BackfillDryRun = answer.decode()?;
                let said = format!(
                    "would run {} occurrences, {} of them deduplicated by their keys",
                    run.count, run.deduplicated
                );
                let labels = run.labels.iter().map(|label| text::line(label));
                let lines: Vec<String> = std::iter::once(said).chain(labels).collect();
                output::line(&lines.join("\n"))
            };
            return session.show(request, told).await.map(|_| ());
        }
        let answer = session.ask(request).await?;
        let operation: views::Operation = answer.decode()?;
        if !self.detach {
            return super::dead::follow(&session, &operation.id, "started").await;
        }
        if session.out.json { answer.print() } else { output::line(&operation.id) }
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
        let session = Session::detached(global)?;
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
    let notes = |fire: &views::Fire| {
        let notes = fire.notes.iter().map(|note| match &**note {
            "dst_gap" => "the clock skips it: right after the gap",
            "dst_fold" => "the clock shows it twice",
            "merged" => "several local times at once",
            other => other,
        });
        notes.collect::<Vec<_>>().join(", ")
    };
    let zone = text::line(&fires.timezone);
    if zone == "UTC" {
        let mut grid = out.grid(["UTC"]);
        fires.fires.iter().for_each(|fire| grid.row([fire.utc.as_str().into()]));
        return grid;
    }
    let mut grid = out.grid(["UTC", &zone, "NOTES"]);
    for fire in &fires.fires {
        grid.row([fire.utc.as_str().into(), fire.local.as_str().into(), notes(fire).into()]);
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
        let session = Session::open(global)?;
        let request = Request::get(&["schedules", &self.name, "occurrences"])
            .query("limit", Some(self.limit.to_string()))
            .query("cursor", self.cursor);
        session.show(request, occurrences).await.map(|_| ())
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
