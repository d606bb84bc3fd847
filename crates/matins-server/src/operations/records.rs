//! What is kept for people: the audit log, the ledger of keys, and events as they happen.

use axum::http::{Method, StatusCode};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::Serialize;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

use super::{Content, NoQuery, Operation, operation};
use crate::api::{Api, json};
use crate::auth::Access;
use crate::call::body::Nothing;
use crate::call::{Call, page};
use crate::problem::{Code, Result};
use crate::sse;
use crate::wire::record::{AlertList, AuditList, EventView, LedgerView, PageQuery};

pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation(
            "audit.list",
            Method::GET,
            "/api/v1/audit",
            Access::Viewer,
            "List the acts of people, the last first",
        )
        .answers::<AuditList<'_>>(200, "A page.")
        .by(audit),
        operation(
            "alert.list",
            Method::GET,
            "/api/v1/alerts",
            Access::Viewer,
            "List alerts, the last first",
        )
        .answers::<AlertList<'_>>(200, "A page.")
        .by(alerts),
        operation(
            "event.follow",
            Method::GET,
            "/api/v1/events",
            Access::Viewer,
            "Follow what happens on this node",
        )
        .answers_with(
            200,
            "Events `task.enqueued`, `task.started`, `task.settled`, \
                 `task.cancelled`, `task.fenced`, `schedule.fired`, \
                 `clock.stepped`, each with `{\"time\", \"event\", …}`; `lagged` \
                 with `{\"missed\"}` when the listener was too slow. Hints: the \
                 lists are the truth.",
            Content::Events,
        )
        .fails(&[Code::RateLimited])
        .by(events),
        operation(
            "ledger.show",
            Method::GET,
            "/api/v1/ledger/{type}/{key}",
            Access::Viewer,
            "Show which task has a key",
        )
        .answers::<LedgerView<'_>>(200, "The entry.")
        .fails(&[Code::NotFound])
        .by(ledger),
        operation(
            "ledger.forget",
            Method::DELETE,
            "/api/v1/ledger/{type}/{key}",
            Access::Admin,
            "Free a completed key, so that it may run again",
        )
        .answers_with(204, "Forgotten.", Content::Empty)
        .fails(&[Code::NotFound, Code::WrongState])
        .by(forget),
    ]
}

async fn audit(api: Api, call: Call<PageQuery, Nothing>) -> Result<Response> {
    let page = page(call.query.limit, call.query.cursor.as_ref())?;
    json(200, &AuditList::from(&api.client().audit(&page).await?))
}

async fn alerts(api: Api, call: Call<PageQuery, Nothing>) -> Result<Response> {
    let page = page(call.query.limit, call.query.cursor.as_ref())?;
    json(200, &AlertList::from(&api.client().alert_list(&page).await?))
}

#[derive(Serialize)]
struct Missed {
    missed: u64,
}

async fn events(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    let events = BroadcastStream::new(api.client().events().subscribe()).map(|next| match next {
        Ok(event) => {
            let view = EventView::new(&event);
            // The instant serves as id: events are not replayed, so it is for people and logs.
            sse::event(view.name(), &view).id(event.at.as_microsecond().to_string())
        }
        Err(BroadcastStreamRecvError::Lagged(missed)) => sse::event("lagged", &Missed { missed }),
    });
    // Said at once, so that a listener knows from when on it misses nothing.
    let hello = futures_util::stream::once(async { Event::default().comment("listening") });
    sse::stream(&api, call.connection.as_ref(), hello.chain(events))
}

async fn ledger(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    let entry = api.client().ledger(call.param("type"), call.param("key")).await?;
    json(200, &LedgerView::from(&entry))
}

async fn forget(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    api.client().forget_key(call.param("type"), call.param("key"), call.who()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
