//! Dead letters: looked at, replayed, put aside; and the operations that replay them.

use axum::http::Method;
use axum::response::Response;
use matins_core::dead_letter::DeadLetterFilter;
use matins_core::task::TaskId;
use matins_runtime::client::acts::{ReplayRequest, Selection};
use matins_runtime::rules::AD_HOC;
use uuid::Uuid;

use super::{NoQuery, Operation, operation};
use crate::api::{Api, json};
use crate::auth::{Access, Caller, Role};
use crate::call::body::{Json, Nothing, Object};
use crate::call::{Call, page, shown};
use crate::problem::{Code, Problem, Result};
use crate::wire::dead_letter::{
    DeadLetterAnswer, DeadLetterList, DeadLetterQuery, DismissAnswer, DismissBody, DryRunView,
    GroupBy, Groups, OperationView, ReplayBody, per_minute, selection,
};

impl Object for ReplayBody {}
impl Object for DismissBody {}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation(
            "dead_letter.list",
            Method::GET,
            "/api/v1/dead_letters",
            Access::Viewer,
            "List dead letters, the last failed first, or group them by error",
        )
        .answers::<DeadLetterAnswer>(200, "A page of them, or all groups.")
        .by(list),
        operation(
            "dead_letter.replay",
            Method::POST,
            "/api/v1/dead_letters/replay",
            Access::Operator,
            "Put dead letters back into their pools",
        )
        .answers::<DryRunView<'_>>(200, "With `dry_run`: what would be replayed.")
        .answers::<OperationView<'_>>(202, "The operation to follow.")
        .fails(&[Code::NotFound])
        .by(replay),
        operation(
            "dead_letter.dismiss",
            Method::POST,
            "/api/v1/dead_letters/dismiss",
            Access::Operator,
            "Put dead letters aside",
        )
        .answers::<DismissAnswer>(200, "They stay failed, and leave the queue.")
        .by(dismiss),
        operation(
            "operation.show",
            Method::GET,
            "/api/v1/operations/{id}",
            Access::Viewer,
            "Show how far a replay or backfill is",
        )
        .answers::<OperationView<'_>>(200, "The operation.")
        .fails(&[Code::NotFound])
        .by(show_operation),
    ]
}

async fn list(api: Api, call: Call<DeadLetterQuery, Nothing>) -> Result<Response> {
    let client = api.client();
    let query = call.query;
    match query.group_by {
        Some(GroupBy::Error) => {
            if query.cursor.is_some() {
                return Err(Problem::field("cursor", "groups come in one piece"));
            }
            let groups = client.dead_letter_groups(&query.filter()).await?;
            json(200, &Groups::new(&groups))
        }
        None => {
            let page = page(query.limit, query.cursor.as_ref())?;
            let letters = client.dead_letters(&query.filter(), &page).await?;
            json(200, &DeadLetterList::new(&letters, &api.eye(&call.caller)))
        }
    }
}

async fn replay(api: Api, call: Call<NoQuery, Json<ReplayBody>>) -> Result<Response> {
    let client = api.client();
    let body = call.body.0;
    let per_minute = body.rate.map(per_minute).transpose()?;
    let selection = selection(body.ids, body.filter)?;
    if body.payload.is_some() {
        check_edit(&api, &call.caller, &selection).await?;
    }
    if body.dry_run {
        let run = client.replay_dry_run(&selection).await?;
        return json(200, &DryRunView::new(&run, &api.eye(&call.caller)));
    }
    let request = ReplayRequest {
        selection,
        canary: body.canary,
        per_minute,
        payload: body.payload,
        reason: body.reason,
    };
    let operation = client.replay(request, &call.caller.who).await?;
    json(202, &OperationView::from(&operation))
}

/// One payload for many: allowed when none of them can be of a type that runs what its payload
/// says.
async fn check_edit(api: &Api, caller: &Caller, selection: &Selection) -> Result<()> {
    if caller.role == Role::Admin {
        return Ok(());
    }
    match selection {
        Selection::Ids(ids) => {
            for id in ids {
                caller.check_edit(&api.client().task(*id).await?.kind)?;
            }
            Ok(())
        }
        Selection::Filter(DeadLetterFilter { kind: Some(kind), .. }) => caller.check_edit(kind),
        Selection::Filter(_) => {
            let kinds = AD_HOC.join(", ");
            let detail =
                format!("editing payloads that may be of type {kinds} needs the role admin");
            Err(Problem::new(Code::Forbidden, detail).hint("name another type in filter.type"))
        }
    }
}

async fn dismiss(api: Api, call: Call<NoQuery, Json<DismissBody>>) -> Result<Response> {
    let body = call.body.0;
    let selection = selection(body.ids, body.filter)?;
    let dismissed = api.client().dismiss(&selection, &call.caller.who, &body.reason).await?;
    let (dismissed, refused): (u64, Vec<TaskId>) = dismissed;
    json(200, &DismissAnswer { dismissed, refused })
}

async fn show_operation(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    let text = call.param("id");
    let id: Uuid = text.parse().map_err(|_| Problem::not_found("operation", &shown(text)))?;
    json(200, &OperationView::from(&api.client().operation(id).await?))
}
