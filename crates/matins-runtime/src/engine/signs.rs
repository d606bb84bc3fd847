//! What a look at the store says that somebody must be told: types that nobody runs, schedules that
//! nobody fires, nodes that fell silent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use matins_core::alert::{Alert, Rule, Severity, judge};
use matins_core::lifecycle::later;
use matins_core::page::PageRequest;
use matins_core::store::{HEARTBEAT, Stats, StoreError, TaskFilter, Worker};
use matins_core::task::{Name, State, until};
use tokio::time::Instant;

use super::Core;

/// Tasks looked at in a pool that does not get on.
const WAITING_SEEN: usize = 200;
/// Schedules that are told by name.
const OVERDUE_SEEN: usize = 100;

/// What is remembered between two looks.
#[derive(Default)]
pub(super) struct Signs {
    looked: Option<Instant>,
    /// When a node was first and last seen alive.
    seen: BTreeMap<Name, (Timestamp, Timestamp)>,
}

impl Signs {
    pub(super) fn is_due(&self, core: &Core, every: Duration) -> bool {
        let every = every.min(patience(core));
        self.looked.is_none_or(|at| at.elapsed() >= every)
    }

    pub(super) async fn look(
        &mut self,
        core: &Core,
        stats: &Stats,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let workers = core.store().workers().await?;
        tell_unserved(core, stats, &workers, now).await?;
        tell_overdue(core, stats, now).await?;
        self.tell_silent(core, &workers, now).await?;
        self.looked = Some(Instant::now());
        Ok(())
    }

    /// Nodes that were there, did not say that they leave, and have not been there for too long.
    async fn tell_silent(
        &mut self,
        core: &Core,
        workers: &[Worker],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let live = |worker: &&Worker| !worker.remote && worker.lease_until >= now;
        for worker in workers.iter().filter(live) {
            self.seen.entry(worker.node_id.clone()).or_insert((now, now)).1 = now;
        }
        let (alerts, patience) = (core.client.alerts(), patience(core));
        let mut left = Vec::new();
        for (node, (first, last)) in &self.seen {
            let silent = until(now, *last);
            if silent < patience {
                // One of which nothing is known, since a start of this node, has not come back.
                alerts.raise(Alert::resolved(Rule::Heartbeat, &**node, now));
            } else if later(*first, patience) > *last || has_left(core, node).await? {
                // Nobody misses a program that was there for a moment.
                left.push(node.clone());
            } else if core.counted(silent) >= patience {
                let alert = Alert::new(Rule::Heartbeat, &**node, now).fact("node", node);
                let alert = alert.fact("silent_seconds", until(now, *last).as_secs());
                alerts.raise(alert.of_severity(Severity::Warning));
            }
        }
        self.seen.retain(|node, _| !left.contains(node));
        Ok(())
    }
}

/// The note in which a node keeps its sign of life, and which it empties when it leaves.
fn own_note(node: &str) -> String {
    format!("{HEARTBEAT}:{node}")
}

/// Says good-bye, so that nobody waits for this node.
pub(super) async fn leave(core: &Core) -> Result<(), StoreError> {
    core.store().put_note(&own_note(&core.config.node_id), "").await
}

async fn has_left(core: &Core, node: &str) -> Result<bool, StoreError> {
    Ok(core.store().note(&own_note(node)).await?.is_some_and(|note| note.is_empty()))
}

fn patience(core: &Core) -> Duration {
    core.client.rules().alerts.after(Rule::Heartbeat)
}

/// The heartbeat of the schedulers as a node sees it that is none.
#[derive(Default)]
pub(super) struct Schedulers {
    value: Option<String>,
    moved: Option<Instant>,
}

impl Schedulers {
    pub(super) async fn look(&mut self, core: &Core, now: Timestamp) -> Result<(), StoreError> {
        const SUBJECT: &str = "scheduler";
        let value = core.store().note(HEARTBEAT).await?;
        let moved = self.moved.get_or_insert_with(Instant::now);
        let alerts = core.client.alerts();
        if value != self.value {
            (self.value, *moved) = (value, Instant::now());
            alerts.raise(Alert::resolved(Rule::Heartbeat, SUBJECT, now));
        } else if core.counted(moved.elapsed()) >= patience(core) {
            let alert = Alert::new(Rule::Heartbeat, SUBJECT, now);
            alerts.raise(alert.fact("silent_seconds", moved.elapsed().as_secs()));
        }
        Ok(())
    }
}

/// Tells what holds, and of what was told and does not hold any more, that it is over.
fn settle(core: &Core, rule: Rule, holds: Vec<Alert>, now: Timestamp) {
    let alerts = core.client.alerts();
    let subjects: BTreeSet<String> = holds.iter().map(|alert| alert.subject.clone()).collect();
    for alert in holds {
        alerts.raise(alert);
    }
    for subject in alerts.standing(rule) {
        if !subjects.contains(&subject) {
            alerts.raise(Alert::resolved(rule, subject, now));
        }
    }
}

/// Types that no live worker runs: only where tasks wait for long is it worth a look, and only
/// after others have had the time to come up.
async fn tell_unserved(
    core: &Core,
    stats: &Stats,
    workers: &[Worker],
    now: Timestamp,
) -> Result<(), StoreError> {
    let patience = core.client.rules().alerts.after(Rule::NoWorker);
    if core.counted(Duration::MAX) < patience {
        return Ok(());
    }
    let mut unserved = BTreeMap::new();
    for (pool, _) in stats.oldest_ready.iter().filter(|(_, at)| later(**at, patience) <= now) {
        let filter = TaskFilter {
            states: vec![State::Pending],
            pool: Some(pool.to_string()),
            ..TaskFilter::default()
        };
        let page = PageRequest { limit: WAITING_SEEN, cursor: None };
        let waiting = core.store().tasks(&filter, &page).await?.items;
        unserved.extend(judge::unserved(&waiting, workers, patience, now));
    }
    let alert =
        |(kind, tasks): (Name, u64)| Alert::new(Rule::NoWorker, &*kind, now).fact("tasks", tasks);
    settle(core, Rule::NoWorker, unserved.into_iter().map(alert).collect(), now);
    Ok(())
}

/// Schedules that are past due although somebody had the time to fire them.
async fn tell_overdue(core: &Core, stats: &Stats, now: Timestamp) -> Result<(), StoreError> {
    let patience = core.client.rules().alerts.after(Rule::Overdue);
    if core.counted(Duration::MAX) < patience {
        return Ok(());
    }
    let mut overdue = Vec::new();
    if stats.schedules_overdue > 0 {
        for due in core.store().due(now, OVERDUE_SEEN).await?.0 {
            let state = &due.state;
            let Some(since) = state.next_due else { continue };
            if later(since, patience.max(state.spec.grace.0)) <= now {
                let alert = Alert::new(Rule::Overdue, &*state.spec.name, now);
                overdue.push(alert.fact("since", format!("{since:.0}")));
            }
        }
    }
    settle(core, Rule::Overdue, overdue, now);
    Ok(())
}
