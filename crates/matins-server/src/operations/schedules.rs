//! Schedules: set, looked at, paused, triggered, backfilled, and previewed.

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use matins_core::cron::{self, Recurrence, Timetable, Zone};
use matins_core::page::PAGE_MAX;
use matins_core::schedule::SpecError;
use matins_runtime::ClientError;
use matins_runtime::client::schedules::BackfillRequest;

use super::{Content, NoQuery, Operation, operation};
use crate::api::{Api, json};
use crate::auth::Access;
use crate::call::body::{Json, Maybe, Nothing, Object};
use crate::call::{Call, page};
use crate::problem::{Code, Problem, Result};
use crate::wire::Time;
use crate::wire::dead_letter::OperationView;
use crate::wire::record::PageQuery;
use crate::wire::schedule::{
    BackfillBody, BackfillDryRun, OccurrenceList, PauseBody, PreviewAnswer, PreviewBody, READ_ONLY,
    ScheduleBody, ScheduleList, ScheduleView, TriggerAnswer, TriggerBody,
};

impl Object for ScheduleBody {
    const IGNORED: &'static [&'static str] = &READ_ONLY;
}
impl Object for PauseBody {}
impl Object for TriggerBody {}
impl Object for BackfillBody {}
impl Object for PreviewBody {}

const ONE: &str = "/api/v1/schedules/{name}";
const BAD_SPEC: &[Code] =
    &[Code::CronInvalid, Code::NeverFires, Code::UnknownTimezone, Code::ManagedByFile];

pub(super) fn operations() -> Vec<Operation> {
    let definitions = vec![
        operation(
            "schedule.list",
            Method::GET,
            "/api/v1/schedules",
            Access::Viewer,
            "List schedules by name",
        )
        .answers::<ScheduleList>(200, "A page.")
        .by(list),
        operation(
            "schedule.preview",
            Method::POST,
            "/api/v1/schedules/preview",
            Access::Viewer,
            "Show when an expression fires; nothing is stored",
        )
        .answers::<PreviewAnswer>(200, "The next fires, with notes about clock changes.")
        .fails(&[Code::CronInvalid, Code::NeverFires, Code::UnknownTimezone])
        .by(show_preview),
        operation("schedule.show", Method::GET, ONE, Access::Viewer, "Show a schedule")
            .answers::<ScheduleView>(200, "The schedule.")
            .fails(&[Code::NotFound])
            .by(show),
        operation(
            "schedule.put",
            Method::PUT,
            ONE,
            Access::Operator,
            "Create a schedule, or replace it",
        )
        .answers::<ScheduleView>(201, "Created.")
        .answers::<ScheduleView>(200, "Replaced; its history and balance go on.")
        .fails(BAD_SPEC)
        .by(put),
        operation(
            "schedule.remove",
            Method::DELETE,
            ONE,
            Access::Operator,
            "Remove a schedule; its history stays",
        )
        .answers_with(204, "Removed.", Content::Empty)
        .fails(&[Code::NotFound, Code::ManagedByFile])
        .by(remove),
    ];
    definitions.into_iter().chain(acts()).collect()
}

/// What people do to a schedule, and what came of it.
fn acts() -> Vec<Operation> {
    vec![
        operation(
            "schedule.pause",
            Method::POST,
            "/api/v1/schedules/{name}/pause",
            Access::Operator,
            "Stop a schedule from firing",
        )
        .answers::<ScheduleView>(200, "Paused.")
        .fails(&[Code::NotFound, Code::WrongState])
        .by(pause),
        operation(
            "schedule.resume",
            Method::POST,
            "/api/v1/schedules/{name}/resume",
            Access::Operator,
            "Let a schedule fire again",
        )
        .answers::<ScheduleView>(200, "Active; `on_resume` decides about what the pause covered.")
        .fails(&[Code::NotFound, Code::WrongState])
        .by(resume),
        operation(
            "schedule.trigger",
            Method::POST,
            "/api/v1/schedules/{name}/trigger",
            Access::Operator,
            "Run a schedule now, beside its timetable",
        )
        .answers::<TriggerAnswer<'_>>(200, "The occurrence, with the id of its task.")
        .fails(&[Code::NotFound, Code::WrongState])
        .by(trigger),
        operation(
            "schedule.backfill",
            Method::POST,
            "/api/v1/schedules/{name}/backfill",
            Access::Operator,
            "Run the occurrences of a range of time",
        )
        .answers::<BackfillDryRun>(200, "With `dry_run`: what would be run.")
        .answers::<OperationView<'_>>(202, "The operation to follow.")
        .fails(&[Code::NotFound, Code::WrongState])
        .by(backfill),
        operation(
            "schedule.occurrences",
            Method::GET,
            "/api/v1/schedules/{name}/occurrences",
            Access::Viewer,
            "List what became of a schedule's occurrences, the last first",
        )
        .answers::<OccurrenceList<'_>>(200, "A page.")
        .fails(&[Code::NotFound])
        .by(occurrences),
    ]
}

async fn list(api: Api, call: Call<PageQuery, Nothing>) -> Result<Response> {
    let page = page(call.query.limit, call.query.cursor.as_ref())?;
    json(200, &ScheduleList::new(api.client().schedules(&page).await?, call.caller.secrets()))
}

async fn show(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    shown(&api, &call, 200).await
}

async fn shown<Q, B>(api: &Api, call: &Call<Q, B>, status: u16) -> Result<Response> {
    let due = api.client().schedule(call.param("name")).await?;
    json(status, &ScheduleView::new(due, call.caller.secrets()))
}

async fn put(api: Api, call: Call<NoQuery, Json<ScheduleBody>>) -> Result<Response> {
    let client = api.client();
    let name = call.param("name");
    let mut spec = call.body.0.0.clone();
    if spec.name.is_empty() {
        name.clone_into(&mut spec.name);
    }
    if spec.name != name {
        let message = format!("expected {name:?} as in the path, got {:?}", spec.name);
        return Err(Problem::field("name", message));
    }
    let status = match client.schedule(name).await {
        Ok(_) => 200,
        Err(ClientError::NotFound { .. }) => 201,
        Err(error) => return Err(error.into()),
    };
    client.put_schedule(spec, call.who()).await?;
    shown(&api, &call, status).await
}

async fn remove(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    api.client().remove_schedule(call.param("name"), call.who()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn pause(api: Api, call: Call<NoQuery, Maybe<PauseBody>>) -> Result<Response> {
    let note = call.body.0.note.clone();
    api.client().pause_schedule(call.param("name"), note, call.who()).await?;
    shown(&api, &call, 200).await
}

async fn resume(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    api.client().resume_schedule(call.param("name"), call.who()).await?;
    shown(&api, &call, 200).await
}

async fn trigger(api: Api, call: Call<NoQuery, Maybe<TriggerBody>>) -> Result<Response> {
    let label = call.body.0.r#for.clone();
    let triggered = api.client().trigger(call.param("name"), label, call.who()).await?;
    json(200, &TriggerAnswer::from(&triggered))
}

async fn backfill(api: Api, call: Call<NoQuery, Json<BackfillBody>>) -> Result<Response> {
    let body = &call.body.0;
    if body.to.0 <= body.from.0 {
        return Err(Problem::field("to", "must lie after from"));
    }
    let request = BackfillRequest {
        name: call.param("name").to_owned(),
        from: body.from.0,
        to: body.to.0,
        mode: body.mode,
        concurrency: match body.concurrency {
            Some(0) => return Err(Problem::field("concurrency", "expected at least 1")),
            given => given.unwrap_or(1),
        },
    };
    if body.dry_run {
        let plan = api.client().backfill_dry_run(&request).await?;
        return json(200, &BackfillDryRun::from(plan));
    }
    let operation = api.client().backfill(request, call.who()).await?;
    json(202, &OperationView::from(&operation))
}

async fn occurrences(api: Api, call: Call<PageQuery, Nothing>) -> Result<Response> {
    let name = call.param("name");
    let page = page(call.query.limit, call.query.cursor.as_ref())?;
    let occurrences = api.client().occurrences(Some(name), &page).await?;
    // A removed schedule keeps its history; a name that never was one has none.
    if occurrences.items.is_empty() && page.cursor.is_none() {
        api.client().schedule(name).await?;
    }
    json(200, &OccurrenceList::from(&occurrences))
}

async fn show_preview(api: Api, call: Call<NoQuery, Json<PreviewBody>>) -> Result<Response> {
    json(200, &preview(&call.body.0, api.client().now())?)
}

const PREVIEW_COUNT: usize = 10;

/// The next fires of an expression: pure, for the command line as well.
pub fn preview(body: &PreviewBody, now: Timestamp) -> Result<PreviewAnswer> {
    let refused = |error: SpecError| Problem::from(ClientError::Spec(error));
    let timetable = Timetable::parse(&body.schedule).map_err(|e| refused(e.into()))?;
    let zone = match &body.timezone {
        None => Zone::utc(),
        Some(name) => Zone::parse(name).map_err(|e| refused(e.into()))?,
    };
    let count = body.count.unwrap_or(PREVIEW_COUNT);
    if count == 0 || count > PAGE_MAX {
        return Err(Problem::field("count", format!("expected 1 to {PAGE_MAX}, got {count}")));
    }
    let after = body.after.map_or(now, |Time(at)| at);
    let recurrence = Recurrence::new(timetable, zone, body.dst, after);
    let fires = cron::preview(&recurrence, after, count);
    let (text, zone) = (recurrence.timetable().as_str(), recurrence.zone().name());
    Ok(PreviewAnswer::new(fires, text, zone, after))
}
