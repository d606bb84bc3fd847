//! Pools, and the freeze of a whole store.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use axum::response::Response;
use matins_core::store::{PoolChange, Settings, Stats, Worker};
use matins_core::task::{Name, State};

use super::{NoQuery, Operation, operation};
use crate::api::{Api, json};
use crate::auth::Access;
use crate::call::Call;
use crate::call::body::{Json, Maybe, Nothing, Object};
use crate::problem::{Code, Result};
use crate::wire::pool::{
    FreezeAnswer, FreezeBody, FrozenView, PoolList, PoolNoteBody, PoolView, PoolWorker, ResizeBody,
    SettingView,
};
use crate::wire::seconds;

impl Object for PoolNoteBody {}
impl Object for ResizeBody {}
impl Object for FreezeBody {}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation("pool.list", Method::GET, "/api/v1/pools", Access::Viewer, "List pools by name")
            .answers::<PoolList>(200, "Every pool that is configured, set, served or used.")
            .by(list),
        operation(
            "pool.pause",
            Method::POST,
            "/api/v1/pools/{name}/pause",
            Access::Operator,
            "Stop a pool from taking tasks, on every node",
        )
        .answers::<SettingView<'_>>(200, "Paused; what runs goes on.")
        .fails(&[Code::NotFound])
        .by(pause),
        operation(
            "pool.resume",
            Method::POST,
            "/api/v1/pools/{name}/resume",
            Access::Operator,
            "Let a pool take tasks again",
        )
        .answers::<SettingView<'_>>(200, "Resumed.")
        .fails(&[Code::NotFound])
        .by(resume),
        operation(
            "pool.resize",
            Method::POST,
            "/api/v1/pools/{name}/resize",
            Access::Operator,
            "Set the workers per node of a pool",
        )
        .answers::<SettingView<'_>>(200, "Resized; it outlives restarts.")
        .fails(&[Code::NotFound])
        .by(resize),
        operation(
            "store.freeze",
            Method::POST,
            "/api/v1/freeze",
            Access::Operator,
            "Stop all claims and fires of the store",
        )
        .answers::<FreezeAnswer>(200, "Frozen; what runs goes on.")
        .by(freeze),
        operation(
            "store.thaw",
            Method::POST,
            "/api/v1/thaw",
            Access::Operator,
            "Let the store work again",
        )
        .answers::<FreezeAnswer>(200, "Thawed.")
        .by(thaw),
    ]
}

async fn list(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let client = api.client();
    let now = client.now();
    let stats = client.store().stats(now).await?;
    let settings = client.settings().await?;
    let workers = client.workers().await?;
    let workers: Vec<Worker> = workers.into_iter().filter(|w| w.lease_until >= now).collect();
    let sizes = client.rules().pool_sizes();
    let served = workers.iter().flat_map(|worker| worker.pools.iter().map(|(name, _)| name));
    let names: BTreeSet<&Name> = sizes
        .keys()
        .chain(settings.pools.keys())
        .chain(stats.tasks.keys().map(|(pool, _)| pool))
        .chain(served)
        .collect();
    let pool = |name: &Name| {
        let mut view = view(name, &settings, &stats, &workers, now);
        view.size = view.size.or_else(|| sizes.get(name).copied());
        view
    };
    json(200, &PoolList { pools: names.into_iter().map(pool).collect() })
}

fn view(
    name: &Name,
    settings: &Settings,
    stats: &Stats,
    workers: &[Worker],
    now: jiff::Timestamp,
) -> PoolView {
    let setting = settings.pools.get(name);
    let tasks: BTreeMap<&'static str, u64> = State::ALL
        .into_iter()
        .map(|state| {
            (state.as_str(), stats.tasks.get(&(name.clone(), state)).copied().unwrap_or(0))
        })
        .collect();
    let slots = |worker: &Worker| {
        let (_, slots) = worker.pools.iter().find(|(pool, _)| pool == name)?;
        Some(PoolWorker { id: worker.id.to_string(), slots: *slots })
    };
    PoolView {
        name: name.to_string(),
        paused: setting.is_some_and(|setting| setting.paused),
        note: setting.and_then(|setting| setting.note.clone()),
        size: setting.and_then(|setting| setting.size),
        resized: setting.is_some_and(|setting| setting.size.is_some()),
        busy: tasks.get(State::Running.as_str()).copied().unwrap_or(0),
        ready: stats.ready.get(name).copied().unwrap_or(0),
        oldest_ready: stats
            .oldest_ready
            .get(name)
            .map(|since| seconds(matins_core::task::until(now, *since))),
        tasks,
        workers: workers.iter().filter_map(slots).collect(),
    }
}

async fn change(api: &Api, name: &str, change: PoolChange, who: &str) -> Result<Response> {
    let setting = api.client().set_pool(name, change, who).await?;
    json(200, &SettingView::new(name, &setting))
}

async fn pause(api: Api, call: Call<NoQuery, Maybe<PoolNoteBody>>) -> Result<Response> {
    let note = call.body.0.note.clone();
    let wish = PoolChange { paused: Some(true), note, ..PoolChange::default() };
    change(&api, call.param("name"), wish, call.who()).await
}

async fn resume(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    let wish = PoolChange { paused: Some(false), ..PoolChange::default() };
    change(&api, call.param("name"), wish, call.who()).await
}

async fn resize(api: Api, call: Call<NoQuery, Json<ResizeBody>>) -> Result<Response> {
    let wish = PoolChange { size: Some(call.body.0.size.0), ..PoolChange::default() };
    change(&api, call.param("name"), wish, call.who()).await
}

async fn frozen(api: &Api) -> Result<Response> {
    let frozen = api.client().settings().await?.frozen;
    json(200, &FreezeAnswer { frozen: frozen.map(FrozenView::from) })
}

async fn freeze(api: Api, call: Call<NoQuery, Json<FreezeBody>>) -> Result<Response> {
    api.client().freeze(call.who(), &call.body.0.reason).await?;
    frozen(&api).await
}

async fn thaw(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    api.client().thaw(call.who()).await?;
    frozen(&api).await
}
