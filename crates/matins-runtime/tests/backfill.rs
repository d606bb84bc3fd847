//! A backfill whose process dies between a step and the record of it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use matins_core::memory::MemoryStore;
use matins_core::operation::{Operation, OperationState};
use matins_core::page::PageRequest;
use matins_core::schedule::{BackfillMode, ScheduleSpec};
use matins_core::store::{Store, TaskFilter, Timetables};
use matins_core::task::{State, Task};
use matins_runtime::client::schedules::BackfillRequest;
use matins_runtime::{Client, Rules};
use uuid::Uuid;

const PAGE: PageRequest = PageRequest { limit: 100, cursor: None };

async fn tasks(store: &dyn Store) -> Vec<Task> {
    store.tasks(&TaskFilter::default(), &PAGE).await.unwrap().items
}

/// Carries a step out whose progress is lost, as by a crash right after it.
async fn crash_in_step(client: &Client, id: Uuid) {
    let before = client.operation(id).await.unwrap();
    client.step_operation(&mut before.clone()).await.unwrap();
    client.store().put_operation(&before).await.unwrap();
}

async fn end(client: &Client, id: Uuid) -> Operation {
    loop {
        let mut operation = client.operation(id).await.unwrap();
        if operation.state != OperationState::Running {
            return operation;
        }
        client.step_operation(&mut operation).await.unwrap();
        let live = tasks(&**client.store()).await.into_iter().filter(|task| task.state.is_live());
        let ids: Vec<_> = live.map(|task| task.id).collect();
        client.cancel(&ids, "ann", None).await.unwrap();
    }
}

async fn backfill(mode: BackfillMode, key: Option<&str>) {
    let store = Arc::new(MemoryStore::new(Uuid::now_v7()));
    let client = Client::new(store.clone(), Rules::default());
    let mut spec = ScheduleSpec::new("nightly", "0 2 * * *", "sync");
    spec.execution_key = key.map(str::to_owned);
    client.put_schedule(spec, "ann").await.unwrap();
    let to = Timestamp::now();
    let request = BackfillRequest {
        name: "nightly".to_owned(),
        from: to - SignedDuration::from_hours(7 * 24),
        to,
        mode,
        concurrency: 3,
    };
    let id = client.backfill(request, "ann").await.unwrap().id;
    for _ in 0..2 {
        crash_in_step(&client, id).await;
        assert_eq!(tasks(&*store).await.len(), 3, "{mode:?}: each occurrence is started once");
    }
    let ended = end(&client, id).await;
    assert_eq!((ended.total, ended.replayed, ended.failed), (7, 7, 7), "{mode:?}");
    assert_eq!(tasks(&*store).await.len(), 7);
    assert!(tasks(&*store).await.iter().all(|task| task.state == State::Cancelled));
    let occurrences = store.occurrences(Some("nightly"), &PAGE).await.unwrap().items;
    assert_eq!(occurrences.len(), 7, "{mode:?}: and recorded once");
}

#[tokio::test]
async fn a_repeated_step_starts_nothing_twice() {
    for mode in [BackfillMode::All, BackfillMode::Missing, BackfillMode::MissingFailed] {
        backfill(mode, None).await;
        backfill(mode, Some("nightly-{{ occurrence.date }}")).await;
    }
}

/// The task of the crashed step may be gone by the time somebody goes on.
#[tokio::test]
async fn a_step_whose_tasks_have_ended_meanwhile_is_not_repeated_either() {
    let store = Arc::new(MemoryStore::new(Uuid::now_v7()));
    let client = Client::new(store.clone(), Rules::default());
    client.put_schedule(ScheduleSpec::new("s", "0 2 * * *", "sync"), "ann").await.unwrap();
    let to = Timestamp::now();
    let from = to - SignedDuration::from_hours(3 * 24);
    let mode = BackfillMode::All;
    let request = BackfillRequest { name: "s".to_owned(), from, to, mode, concurrency: 2 };
    let id = client.backfill(request, "ann").await.unwrap().id;
    crash_in_step(&client, id).await;
    let ids: Vec<_> = tasks(&*store).await.into_iter().map(|task| task.id).collect();
    assert_eq!(ids.len(), 2);
    client.cancel(&ids, "ann", None).await.unwrap();
    end(&client, id).await;
    assert_eq!(tasks(&*store).await.len(), 3);
}
