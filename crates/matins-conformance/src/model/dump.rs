//! Everything that can be seen of a store, as lines that can be compared.

use std::fmt::{Debug, Write};

use matins_core::dead_letter::DeadLetterFilter;
use matins_core::page::PageRequest;
use matins_core::store::{Order, Store, TaskFilter};
use matins_core::task::State;

use super::side::Side;
use super::step::{KEYS, KINDS, SCHEDULES, WORKERS};
use crate::invariants;
use crate::lab::{at, every};

/// Lines with a title each.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, title: &str, items: impl IntoIterator<Item = impl Debug>) {
        for item in items {
            writeln!(self.0, "{title}: {item:?}").expect("a string takes it");
        }
    }
}

/// What every step may have changed.
pub(super) async fn glance(side: &Side) -> String {
    let store = &*side.store;
    let mut lines = Lines::default();
    lines.add("task", all_tasks(store, &TaskFilter::default()).await);
    let mut stats = store.stats(side.now).await.expect("stats");
    stats.tasks.retain(|_, count| *count > 0);
    stats.ready.retain(|_, count| *count > 0);
    lines.add("stats", [stats]);
    for name in SCHEDULES {
        lines.add("schedule", store.schedule(name).await.expect("schedule"));
    }
    let lapsed = store.lapsed(side.now, 1_000).await.expect("lapsed");
    lines.add("lapsed", lapsed.iter().map(|l| (l.claimed.task.id, &l.worker, l.draining)));
    lines.0
}

async fn all_tasks(store: &dyn Store, filter: &TaskFilter) -> Vec<matins_core::Task> {
    let read = async |page: PageRequest| store.tasks(filter, &page).await.expect("tasks");
    every(read).await
}

/// Everything. Looks at the invariants, too.
pub(super) async fn whole(side: &Side) -> String {
    let (store, now) = (&*side.store, side.now);
    invariants::check(store, now).await;
    let mut lines = Lines(glance(side).await);
    for id in &side.ids {
        lines.add(&format!("attempt of {id}"), store.attempts(*id).await.expect("attempts"));
        let Some(task) = store.task(*id).await.expect("task") else { continue };
        if task.state.is_live() {
            let around = store.surroundings(&task, now).await.expect("surroundings");
            lines.add(&format!("around {id}"), [around]);
        }
    }
    for kind in KINDS {
        for key in KEYS {
            lines.add("key", store.ledger(kind, key).await.expect("ledger"));
        }
    }
    for worker in WORKERS {
        let worker = matins_core::task::WorkerId(worker.into());
        lines.add("asked to end", store.cancel_requests(&worker).await.expect("cancel_requests"));
    }
    lines.add("worker", store.workers().await.expect("workers"));
    lines.add("settings", [store.settings().await.expect("settings")]);
    lines.add("due", [store.due(now, 10).await.expect("due")]);
    lines.0 += &lists(store).await;
    lines.0 += &dead_letters(store).await;
    for name in SCHEDULES {
        let Some(due) = store.schedule(name).await.expect("schedule") else { continue };
        let fired = store.fired_between(due.state.uid, at(0), now).await.expect("fired_between");
        lines.add(&format!("fired by {name}"), fired);
    }
    lines.0
}

async fn lists(store: &dyn Store) -> String {
    let mut lines = Lines::default();
    let small = |page: PageRequest| PageRequest { limit: 7, ..page };
    for schedule in [None, Some(SCHEDULES[0])] {
        let read =
            async |page| store.occurrences(schedule, &small(page)).await.expect("occurrences");
        lines.add("occurrence", every(read).await);
    }
    let read = async |page| store.audit(&small(page)).await.expect("audit");
    lines.add("audit", every(read).await);
    let read = async |page| store.alerts(&small(page)).await.expect("alerts");
    lines.add("alert", every(read).await);
    let all = TaskFilter::default;
    let filters = [
        TaskFilter { states: vec![State::Pending, State::Failed], ..all() },
        TaskFilter { kind: Some(KINDS[1].to_owned()), ..all() },
        TaskFilter { pool: Some("io".to_owned()), ..all() },
        TaskFilter { tag: Some("tag-1".to_owned()), ..all() },
        TaskFilter { schedule: Some(SCHEDULES[0].to_owned()), ..all() },
        TaskFilter { execution_key: Some(KEYS[0].to_owned()), ..all() },
        TaskFilter { q: Some("k".to_owned()), states: vec![State::Completed], ..all() },
        TaskFilter { q: Some("s".to_owned()), ..all() },
    ];
    for filter in filters {
        let read = async |page| store.tasks(&filter, &small(page)).await.expect("tasks");
        let found: Vec<_> = every(read).await.into_iter().map(|task| task.id).collect();
        lines.add(&format!("{filter:?}"), [found]);
    }
    lines.0
}

async fn dead_letters(store: &dyn Store) -> String {
    let mut lines = Lines::default();
    let all = DeadLetterFilter::default;
    let filters = [
        all(),
        DeadLetterFilter { kind: Some(KINDS[0].to_owned()), ..all() },
        DeadLetterFilter { tag: Some("tag-0".to_owned()), ..all() },
        DeadLetterFilter { schedule: Some(SCHEDULES[1].to_owned()), ..all() },
        DeadLetterFilter { failed_after: Some(at(100)), failed_before: Some(at(9_000)), ..all() },
    ];
    for filter in filters {
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let read = async |page| {
                let page = PageRequest { limit: 3, ..page };
                store.dead_letters(&filter, order, &page).await.expect("dead_letters")
            };
            let found: Vec<_> = every(read).await.into_iter().map(|task| task.id).collect();
            lines.add(&format!("{filter:?} {order:?}"), [found]);
        }
        let groups = store.dead_letter_groups(&filter).await.expect("dead_letter_groups");
        lines.add("group", groups);
    }
    lines.0
}
