//! Sends a canary through each pool now and then: a task that does nothing, by the same way as
//! any other. Silence of one whose pool has room is told.
//!
//! What is in flight is kept in memory alone: a canary that a restart forgets ends like any task,
//! and nobody waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use matins_core::alert::{Alert, Rule};
use matins_core::canary::{self, KIND, Pool, TAG, Verdict};
use matins_core::executor::{Executor, Finished, Run};
use matins_core::lifecycle::Outcome;
use matins_core::request::EnqueueRequest;
use matins_core::task::{Name, TaskId};
use tokio::time::Instant;

use super::Core;

/// How often those in flight are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Does nothing, successfully.
pub(super) struct Sing;

#[async_trait]
impl Executor for Sing {
    async fn run(&self, _run: Run) -> Finished {
        Outcome::Completed { result: None, result_dropped_bytes: None }.into()
    }
}

struct Flight {
    id: TaskId,
    sent: Instant,
    /// Since when its pool has had room, without a break.
    room_since: Option<Instant>,
}

pub(super) async fn run(core: Arc<Core>, every: Duration) {
    let mut flights: BTreeMap<Name, Flight> = BTreeMap::new();
    let mut next: BTreeMap<Name, Instant> = BTreeMap::new();
    let first = Instant::now() + every;
    let beat = core.progress.watch("canary", LOOK_EVERY);
    loop {
        beat.doing("look");
        let pools: Vec<(Name, u32)> =
            core.slots().iter().map(|(pool, slots)| (pool.clone(), slots.free())).collect();
        flights.retain(|pool, _| pools.iter().any(|(known, _)| known == pool));
        for (pool, free) in pools {
            if let Some(flight) = flights.get_mut(&pool) {
                if look(&core, &pool, flight, free).await {
                    flights.remove(&pool);
                }
            } else if core.progress.store_up()
                && *next.entry(pool.clone()).or_insert(first) <= Instant::now()
            {
                next.insert(pool.clone(), Instant::now() + every);
                if let Some(id) = send(&core, &pool).await {
                    let flight = Flight { id, sent: Instant::now(), room_since: None };
                    flights.insert(pool, flight);
                }
            }
        }
        beat.round().await;
        tokio::select! {
            () = core.quiet.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY.min(every)) => {}
        }
    }
}

async fn send(core: &Core, pool: &Name) -> Option<TaskId> {
    let request = EnqueueRequest {
        kind: KIND.to_owned(),
        pool: Some(pool.to_string()),
        priority: Some(100),
        max_retries: Some(0),
        tags: vec![TAG.to_owned()],
        ..EnqueueRequest::default()
    };
    match core.client.enqueue(request, TAG).await {
        Ok(answer) => Some(answer.task.id),
        Err(error) => {
            tracing::debug!(%error, %pool, "no canary can be sent");
            None
        }
    }
}

/// Whether its flight is over.
async fn look(core: &Core, pool: &Name, flight: &mut Flight, free: u32) -> bool {
    let task = core.store().task(flight.id).await;
    let Some(task) = task.ok().filter(|_| core.progress.store_up()) else {
        // Nothing is known while the store is away, also where something stands in for it: its
        // time begins anew.
        flight.room_since = None;
        return false;
    };
    let settings = core.settings.borrow().clone();
    let paused = settings.pools.get(pool).is_some_and(|setting| setting.paused);
    let is_stopped = settings.frozen.is_some() || paused || core.is_draining();
    match free > 0 && !is_stopped {
        true => _ = flight.room_since.get_or_insert_with(Instant::now),
        false => flight.room_since = None,
    }
    let waited = flight.room_since.map_or(Duration::ZERO, |since| since.elapsed());
    // Gone: somebody cancelled it, or it is pruned already.
    let came_back = task.is_none_or(|task| !task.state.is_live());
    let state = Pool { has_room: flight.room_since.is_some(), is_stopped };
    let (alerts, now) = (core.client.alerts(), core.client.now());
    let subject = format!("{}/{pool}", core.config.node_id);
    let patience = core.client.rules().alerts.after(Rule::Canary);
    match canary::judge(came_back, waited, patience, state) {
        Verdict::Sings => alerts.raise(Alert::resolved(Rule::Canary, subject, now)),
        Verdict::Waits => {}
        Verdict::Silent => alerts.raise(
            Alert::new(Rule::Canary, subject, now)
                .fact("node", &core.config.node_id)
                .fact("pool", pool)
                .fact("task", flight.id)
                .fact("waited_seconds", flight.sent.elapsed().as_secs()),
        ),
    }
    came_back
}
