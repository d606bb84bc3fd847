//! Reports of jobs that others run.

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};

use super::{Content, NoQuery, Operation, operation};
use crate::api::{Api, json};
use crate::auth::Access;
use crate::call::Call;
use crate::call::body::Nothing;
use crate::problem::{Code, Result};
use crate::wire::ping::PingList;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation(
            "ping.list",
            Method::GET,
            "/api/v1/pings",
            Access::Viewer,
            "List the jobs of others that are expected to report, by name",
        )
        .answers::<PingList<'_>>(200, "Those of this node's file.")
        .by(list),
        operation(
            "ping.report",
            Method::POST,
            "/api/v1/pings/{name}",
            Access::Enqueue,
            "Report that a job of this name has run",
        )
        .answers_with(204, "Noted.", Content::Empty)
        .fails(&[Code::NotFound])
        .by(report),
    ]
}

async fn list(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let client = api.client();
    let pings = client.pings().await?;
    json(200, &PingList::new(&pings, client.now()))
}

async fn report(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    api.client().ping(call.param("name")).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
