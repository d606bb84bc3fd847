//! Workers in any language: claim, heartbeat, settle; and the list of all workers.

use std::time::Duration;

use axum::http::Method;
use axum::response::Response;
use matins_core::task::{Claimed, State};
use matins_runtime::Client;
use matins_runtime::client::remote::{RemoteClaim, RemoteOutcome, RemoteSettle};
use tokio::sync::oneshot;

use super::{NoQuery, Operation, operation};
use crate::api::{Api, json};
use crate::auth::{Access, Caller};
use crate::call::Call;
use crate::call::body::{Json, Nothing, Object, parse};
use crate::problem::{Code, Problem, Result};
use crate::wire::Time;
use crate::wire::task::ClaimedView;
use crate::wire::worker::{
    ClaimAnswer, ClaimBody, HeartbeatAnswer, HeartbeatBody, SettleAnswer, SettleBody, SettleItem,
    SettleItemView, WorkerList,
};

impl Object for ClaimBody {}
impl Object for HeartbeatBody {
    const WIDE: bool = true;
}
impl Object for SettleBody {
    const WIDE: bool = true;
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation(
            "worker.claim",
            Method::POST,
            "/api/v1/workers/claim",
            Access::Worker,
            "Take tasks to run, waiting for the first",
        )
        .answers::<ClaimAnswer<'_>>(200, "Tasks with the proof of their claims, or none.")
        .by(claim),
        operation(
            "worker.heartbeat",
            Method::POST,
            "/api/v1/workers/heartbeat",
            Access::Worker,
            "Renew claims; learn which are lost and which should end",
        )
        .answers::<HeartbeatAnswer>(200, "The new end of the lease.")
        .by(heartbeat),
        operation(
            "worker.settle",
            Method::POST,
            "/api/v1/workers/settle",
            Access::Worker,
            "Say how runs ended, each by itself",
        )
        .answers::<SettleAnswer<'_>>(200, "Per item 200, 409 `fenced`, or 422.")
        .by(settle),
        operation(
            "worker.list",
            Method::GET,
            "/api/v1/workers",
            Access::Viewer,
            "List workers by id",
        )
        .answers::<WorkerList<'_>>(200, "All that are known, live or not.")
        .by(list),
    ]
}

async fn claim(api: Api, call: Call<NoQuery, Json<ClaimBody>>) -> Result<Response> {
    let lease = api.node().lease();
    let request = claim_request(&call.caller, call.body.0)?;
    let client = api.client().clone();
    let closing = api.closing().clone();
    let (sender, receiver) = oneshot::channel();
    // A caller that hangs up must not take tasks with it: the claim goes on to its end, and is
    // given back when nobody is there to take it.
    api.tracker().spawn(async move {
        let claimed = tokio::select! {
            claimed = client.remote_claim(&request, lease) => claimed,
            () = closing.cancelled() => Ok((Vec::new(), client.now())),
        };
        if let Err(Ok((claimed, _))) = sender.send(claimed) {
            give_back(&client, claimed).await;
        }
    });
    let gone = |_| Problem::new(Code::Internal, "the claim was not answered");
    let (claimed, until) = receiver.await.map_err(gone)??;
    let eye = api.eye(&call.caller);
    let view = |claimed| ClaimedView::new(claimed, &eye, until);
    json(200, &ClaimAnswer { tasks: claimed.iter().map(view).collect() })
}

async fn give_back(client: &Client, claimed: Vec<Claimed>) {
    let at = client.now();
    let release = |claimed: Claimed| RemoteSettle {
        claim: claimed.claim,
        outcome: RemoteOutcome::Release { at },
        output: None,
    };
    let items: Vec<RemoteSettle> = claimed.into_iter().map(release).collect();
    if items.is_empty() {
        return;
    }
    if let Err(error) = client.remote_settle(items).await {
        tracing::warn!(%error, "could not give back tasks whose worker had hung up");
    }
}

fn claim_request(caller: &Caller, body: ClaimBody) -> Result<RemoteClaim> {
    let types = match &caller.types {
        Some(allowed) if body.types.is_empty() => allowed.iter().cloned().collect(),
        Some(allowed) => match body.types.iter().find(|kind| !allowed.contains(*kind)) {
            Some(kind) => {
                let detail = format!("token {} may not claim tasks of type {kind}", caller.who);
                return Err(Problem::new(Code::Forbidden, detail));
            }
            None => body.types,
        },
        None => body.types,
    };
    Ok(RemoteClaim {
        worker: body.worker,
        pools: body.pools,
        types,
        max: body.max.unwrap_or(1),
        wait: body.wait.map_or(Duration::ZERO, crate::wire::time::Length::get),
    })
}

async fn heartbeat(api: Api, call: Call<NoQuery, Json<HeartbeatBody>>) -> Result<Response> {
    let claims = call.body.0.claims();
    let (until, extended) = api.client().remote_heartbeat(&claims, api.node().lease()).await?;
    let (lost, cancel) = (extended.lost, extended.cancel);
    json(200, &HeartbeatAnswer { lease_until: Time(until), lost, cancel })
}

async fn settle(api: Api, call: Call<NoQuery, Json<SettleBody>>) -> Result<Response> {
    let client = api.client();
    let now = client.now();
    let text = call.body.0.items;
    let items = parse(text.as_str().as_bytes())?.items().map_err(|refusal| {
        Problem::from(crate::call::strict::Refusal { field: "items".to_owned(), ..refusal })
    })?;
    let max = client.rules().limits.batch_items;
    if items.len() > max {
        let detail = format!("{} items; the limit batch_items is {max}", items.len());
        return Err(Problem::new(Code::TooLarge, detail));
    }
    let mut known = Vec::new();
    let mut slots: Vec<Result<()>> = Vec::with_capacity(items.len());
    for item in items {
        let read = item.decode::<SettleItem>().map_err(Problem::from);
        slots.push(read.and_then(|item| item.settle(now)).map(|settle| known.push(settle)));
    }
    let mut states = client.remote_settle(known).await?.into_iter();
    let fenced = Problem::new(Code::Fenced, "the claim no longer stands: its result is refused");
    let refusals: Vec<Result<Option<&'static str>>> = slots
        .into_iter()
        .map(|slot| slot.map(|()| states.next().flatten().map(State::as_str)))
        .collect();
    let items = refusals.iter().enumerate().map(|(index, answer)| {
        let (state, problem): (_, Option<&Problem>) = match answer {
            Ok(Some(state)) => (Some(*state), None),
            Ok(None) => (None, Some(&fenced)),
            Err(problem) => (None, Some(problem)),
        };
        SettleItemView {
            index,
            status: problem.map_or(200, |problem| problem.code.status()),
            state,
            error: problem.map(Problem::view),
        }
    });
    json(200, &SettleAnswer { items: items.collect() })
}

async fn list(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let workers = api.client().workers().await?;
    json(200, &WorkerList::new(&workers, api.client().now()))
}
