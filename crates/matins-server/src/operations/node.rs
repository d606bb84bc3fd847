//! What a node says of itself: health, readiness, metrics, status, and its own description.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use matins_core::task::{State, until};
use matins_runtime::engine::Status;

use super::{Content, NoQuery, Operation, operation};
use crate::api::{Api, json};
use crate::auth::Access;
use crate::call::Call;
use crate::call::body::Nothing;
use crate::problem::Result;
use crate::wire::certificate::CertificateView;
use crate::wire::node::{HealthAnswer, PartView, ReadyAnswer, StatusAnswer, StoreView};
use crate::wire::pool::FrozenView;
use crate::wire::seconds;

pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation(
            "node.health",
            Method::GET,
            "/healthz",
            Access::Open,
            "Tell whether the loops of this process turn",
        )
        .answers::<HealthAnswer>(
            200,
            "They do, or the store is away, which a restart does not mend.",
        )
        .answers::<HealthAnswer>(503, "A loop does not turn.")
        .by(health),
        operation(
            "node.ready",
            Method::GET,
            "/readyz",
            Access::Open,
            "Tell whether this process takes work",
        )
        .answers::<ReadyAnswer>(200, "It does.")
        .answers::<ReadyAnswer>(503, "The store is away, a loop stalls, or a shutdown has begun.")
        .by(ready),
        operation(
            "node.metrics",
            Method::GET,
            "/metrics",
            Access::Metrics,
            "Give the metrics in the Prometheus text format",
        )
        .answers_with(200, "The metrics.", Content::Text)
        .by(metrics),
        operation(
            "node.openapi",
            Method::GET,
            "/api/openapi.json",
            Access::Open,
            "Describe this API",
        )
        .answers::<serde_json::Map<String, serde_json::Value>>(200, "An OpenAPI 3.1 document.")
        .by(openapi),
        operation(
            "store.status",
            Method::GET,
            "/api/v1/status",
            Access::Viewer,
            "Show the store at a glance",
        )
        .answers::<StatusAnswer>(200, "Figures that are kept as counters.")
        .by(status),
        operation(
            "store.certify",
            Method::GET,
            "/api/v1/certificate",
            Access::Viewer,
            "Judge the store by what must always hold of it",
        )
        .answers::<CertificateView<'_>>(200, "What was looked at and what is wrong with it.")
        .by(certify),
    ]
}

async fn health(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let health = api.node().health().await;
    let code = if health.status == Status::Stalled { 503 } else { 200 };
    json(code, &HealthAnswer { status: health.status.as_str(), stalled: health.stalled })
}

async fn ready(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let health = api.node().health().await;
    let ready = health.ready && health.status != Status::Stalled && !api.closing().is_cancelled();
    let word = |up| if up { "up" } else { "down" };
    let parts = api.client().store().parts();
    let parts = parts.iter().map(|part| (part.kind, word(part.up))).collect();
    if ready {
        json(200, &ReadyAnswer { status: "ready", parts })
    } else {
        json(503, &ReadyAnswer { status: "not_ready", parts })
    }
}

async fn metrics(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    api.node().refresh_metrics();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], api.client().metrics().render()).into_response())
}

async fn openapi(_: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let kind = crate::gate::JSON;
    Ok(([(header::CONTENT_TYPE, kind)], crate::openapi::text()).into_response())
}

async fn certify(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let certificate = api.client().certify(api.node().lease(), || ()).await?;
    json(200, &CertificateView::from(&certificate))
}

async fn status(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let client = api.client();
    let now = client.now();
    let health = api.node().health().await;
    let stats = client.store().stats(now).await?;
    let settings = client.settings().await?;
    let workers = client.workers().await?;
    let mut tasks: BTreeMap<&'static str, u64> =
        State::ALL.into_iter().map(|state| (state.as_str(), 0)).collect();
    for ((_, state), count) in &stats.tasks {
        *tasks.entry(state.as_str()).or_default() += count;
    }
    let beat = match api.node().node_id() {
        Some(_) => Some(health.heartbeat_age),
        // Without an engine of its own, the last sign of any node counts.
        None => workers.iter().filter(|w| !w.remote).map(|w| until(now, w.seen_at)).min(),
    };
    let info = client.store().info();
    let parts = client.store().parts();
    let whole = health.status != Status::Degraded && parts.iter().all(|part| part.up);
    let oldest = |(pool, since): (&matins_core::task::Name, &jiff::Timestamp)| {
        (pool.to_string(), seconds(until(now, *since)))
    };
    json(
        200,
        &StatusAnswer {
            version: env!("CARGO_PKG_VERSION"),
            mode: match (parts.iter().any(|part| part.stands_in), whole) {
                (true, _) => "outage",
                (false, true) => "normal",
                (false, false) => "degraded",
            },
            health: health.status.as_str(),
            node_id: api.node().node_id().map(str::to_owned),
            heartbeat_age: beat.map(|age: Duration| seconds(age)),
            tasks,
            ready: stats.ready.iter().map(|(pool, n)| (pool.to_string(), *n)).collect(),
            oldest_ready: stats.oldest_ready.iter().map(oldest).collect(),
            dead_letters: stats.dead_letters,
            schedules_overdue: stats.schedules_overdue,
            workers: workers.iter().filter(|worker| worker.lease_until >= now).count(),
            frozen: settings.frozen.map(FrozenView::from),
            store: StoreView {
                kind: info.kind,
                store_id: info.store_id,
                schema_version: info.schema_version,
                parts: parts.into_iter().map(PartView::from).collect(),
            },
        },
    )
}
