//! Failures that other schedulers have had.

use std::time::Duration;

use jiff::SignedDuration;
use matins_core::Json;
use matins_core::lifecycle::{Outcome, Trace, settle};
use matins_core::page::PageRequest;
use matins_core::retry::RetryPolicy;
use matins_core::store::{
    Enqueued, Queue, Records, Retention, Retried, Settled, Store, TaskFilter, Worker,
};
use matins_core::task::{ErrorClass, NewTask, Output, State, TaskError};

use super::bed::{Bed, act, at, done, ended, hopeless, keyed, lost, request, task, worker};

/// A05: a task that completed between the sweep's look and its write stays completed.
#[tokio::test]
async fn a_sweep_changes_nothing_that_ended_after_it_looked() {
    let bed = Bed::new();
    bed.register().await;
    bed.enqueue(vec![task("a"), task("b")], at(0)).await.unwrap();
    let claimed = bed.claim(2).await;
    bed.retire(&worker("w").id, at(0)).await.unwrap();
    let lapsed = bed.lapsed(at(0), 10).await.unwrap();
    assert_eq!(lapsed.len(), 2);

    assert_eq!(bed.end(&claimed[0], done("42")).await, Settled::Done(State::Completed));
    let before = bed.task(claimed[0].task.id).await.unwrap().unwrap();
    // The other one was judged by somebody else and runs again.
    bed.end(&claimed[1], lost()).await;
    bed.register().await;
    let again = bed.claim(2).await;
    assert_eq!(again[0].task.id, claimed[1].task.id);

    let judged = lapsed.iter().map(|lapsed| ended(&lapsed.claimed, lost())).collect();
    assert_eq!(bed.settle(judged).await.unwrap(), [Settled::Fenced, Settled::Fenced]);
    assert_eq!(bed.task(before.id).await.unwrap().unwrap(), before);
    let running = bed.task(again[0].task.id).await.unwrap().unwrap();
    assert_eq!((running.state, running.attempt), (State::Running, 2));
    bed.assert_sound().await;
}

/// E09: one task whose key is taken does not hold up a hundred others.
#[tokio::test]
async fn a_replay_that_collides_stops_no_other() {
    let bed = Bed::new();
    bed.register().await;
    let mut tasks: Vec<NewTask> = (0..100).map(|_| task("sync")).collect();
    tasks.insert(50, keyed("sync", "k"));
    bed.enqueue(tasks.clone(), at(0)).await.unwrap();
    for claimed in bed.claim(101).await {
        bed.end(&claimed, hopeless("exit 1")).await;
    }
    let newer = keyed("sync", "k");
    assert_eq!(bed.enqueue(vec![newer.clone()], at(0)).await.unwrap(), [Enqueued::Created]);
    let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
    let answers = bed.retry(&ids, None, &act()).await.unwrap();
    let replayed = answers.iter().filter(|a| matches!(a, Retried::Replayed(_))).count();
    assert_eq!(replayed, 100);
    assert!(matches!(&answers[50], Retried::Deduplicated(holder) if holder.id == newer.id));
    assert_eq!(bed.task(ids[50]).await.unwrap().unwrap().state, State::Failed);
    let now = request(200);
    let claim = matins_core::store::ClaimRequest { now: at(3), ..now };
    assert_eq!(bed.store.claim(claim).await.unwrap().claimed.len(), 101);
    bed.assert_sound().await;
}

/// E11: a key outlives neither its task nor its holder's death.
#[tokio::test]
async fn a_dead_workers_key_is_told_and_then_freed() {
    let bed = Bed::new();
    let lease = at(0) + SignedDuration::from_secs(10);
    bed.store.register(Worker { lease_until: lease, ..worker("w") }).await.unwrap();
    let first = keyed("sync", "orders");
    bed.enqueue(vec![first.clone()], at(0)).await.unwrap();
    bed.claim(1).await;
    for seconds in [1, 9] {
        match bed.enqueue(vec![keyed("sync", "orders")], at(seconds)).await.unwrap().remove(0) {
            Enqueued::Existing(holder) => {
                assert_eq!((holder.id, holder.state), (first.id, State::Running));
            }
            other => panic!("{other:?}"),
        }
    }
    let lapsed = bed.lapsed(at(11), 10).await.unwrap();
    bed.settle(vec![ended(&lapsed[0].claimed, lost())]).await.unwrap();
    bed.register().await;
    let again = bed.claim_at(20, 1).await.remove(0);
    assert_eq!((again.task.id, again.task.attempt), (first.id, 2));
    bed.end(&again, hopeless("no")).await;
    let answer = bed.enqueue(vec![keyed("sync", "orders")], at(60)).await.unwrap();
    assert_eq!(answer, [Enqueued::Created]);
    bed.assert_sound().await;
}

/// F03: keys are compared byte by byte, and a failure frees one.
#[tokio::test]
async fn keys_are_bytes() {
    let bed = Bed::new();
    let keys = ["0", "a", "A", "é", "e\u{301}", "a\0", "a\0b", "\0", "k\u{10ffff}", " a"];
    let tasks: Vec<_> = keys.iter().map(|key| keyed("sync", key)).collect();
    let answers = bed.enqueue(tasks.clone(), at(0)).await.unwrap();
    assert!(answers.iter().all(|answer| *answer == Enqueued::Created));
    for (key, task) in keys.iter().zip(&tasks) {
        let answer = bed.enqueue(vec![keyed("sync", key)], at(0)).await.unwrap().remove(0);
        assert!(matches!(answer, Enqueued::Existing(holder) if holder.id == task.id), "{key:?}");
        let stored = bed.task(task.id).await.unwrap().unwrap();
        assert_eq!(stored.execution_key.as_deref(), Some(*key));
    }
    bed.assert_sound().await;
}

/// H01 and H03: nothing about content can stop a task from being stored or from ending.
#[tokio::test]
async fn every_byte_is_kept_and_no_content_stops_an_end() {
    let bed = Bed::new();
    bed.register().await;
    let payload = r#"{"id":1970670598291982290,"m":9007199254740993,"u":18446744073709551615,"e":1E400,"z":-0,"s":"\ud800\u0000","a":"x\u0000y"}"#;
    let nul = "x\0y \u{7f}";
    let new = NewTask {
        payload: Json::trusted(payload),
        tags: vec![nul.to_owned(), "\"quoted\"".to_owned()],
        concurrency_key: Some(nul.into()),
        created_by: nul.into(),
        ..keyed(nul, nul)
    };
    bed.enqueue(vec![new.clone()], at(0)).await.unwrap();
    let claimed = bed.claim(1).await.remove(0);
    assert_eq!(claimed.task.payload.as_str(), payload);
    let error = TaskError::new(ErrorClass::Exit, format!("bad {nul}"));
    let trace = Trace {
        exit_code: Some(-1),
        http_status: None,
        output: Output { bytes: vec![0, 255, 0xc3, b'\n'], dropped: 7, gap_at: 2 },
    };
    let outcome = Outcome::Failed { error: error.clone(), permanent: false, retry_after: None };
    let settlement = settle(&claimed, outcome, trace.clone(), &RetryPolicy::default(), at(1), 0.0);
    assert_eq!(bed.settle(vec![settlement]).await.unwrap(), [Settled::Done(State::Pending)]);
    let attempts = bed.attempts(new.id).await.unwrap();
    assert_eq!(attempts[0].error, Some(error));
    assert_eq!(attempts[0].output, trace.output);

    let claimed = bed.claim_at(1_000, 1).await.remove(0);
    let result = r#""\ud800""#;
    bed.end(&claimed, done(result)).await;
    let stored = bed.task(new.id).await.unwrap().unwrap();
    assert_eq!(stored.result.unwrap().as_str(), result);
    assert_eq!(stored.payload.as_str(), payload);
    assert_eq!((&*stored.kind, &stored.tags), (nul, &new.tags));
    assert_eq!(bed.ledger(nul, nul).await.unwrap().unwrap().result.unwrap().as_str(), result);
    bed.assert_sound().await;
}

/// What the ledger answers once the row has been pruned, also for a result.
#[tokio::test]
async fn the_ledger_takes_the_result_over() {
    let bed = Bed::new();
    bed.register().await;
    let first = keyed("sync", "k");
    bed.enqueue(vec![first.clone()], at(0)).await.unwrap();
    let claimed = bed.claim(1).await.remove(0);
    bed.end(&claimed, done("[1, 2]")).await;
    let week = at(8 * 86_400);
    let pruned = bed.prune(&Retention::default(), week, 100).await.unwrap();
    assert_eq!(pruned.tasks, 1);
    assert!(bed.task(first.id).await.unwrap().is_none());
    match bed.enqueue(vec![keyed("sync", "k")], week).await.unwrap().remove(0) {
        Enqueued::Existing(task) => {
            assert_eq!((task.id, task.state), (first.id, State::Completed));
            assert_eq!(task.result.unwrap().as_str(), "[1, 2]");
            assert_eq!(task.finished_at, Some(at(1)));
        }
        other => panic!("{other:?}"),
    }
    bed.assert_sound().await;
}

/// Many rows in one call, as large as they may be.
#[tokio::test]
async fn a_batch_of_ten_thousand_is_one_commit() {
    let bed = Bed::new();
    let mut tasks: Vec<NewTask> = (0..10_000).map(|_| task("bulk")).collect();
    tasks[10] = keyed("bulk", "twice");
    tasks[9_990] = keyed("bulk", "twice");
    let answers = bed.enqueue(tasks.clone(), at(0)).await.unwrap();
    let created = answers.iter().filter(|answer| **answer == Enqueued::Created).count();
    assert_eq!(created, 9_999);
    assert!(matches!(&answers[9_990], Enqueued::Existing(holder) if holder.id == tasks[10].id));
    assert_eq!(bed.stats(at(0)).await.unwrap().ready["default"], 9_999);
    bed.assert_sound().await;
}

/// A clock that is set back takes nothing out of order and starts nothing early.
#[tokio::test]
async fn a_clock_that_is_set_back_starts_nothing_early() {
    let bed = Bed::new();
    bed.register().await;
    let later = NewTask { run_at: at(50), ..task("later") };
    bed.enqueue(vec![later.clone(), task("now")], at(0)).await.unwrap();
    let put_in_line = bed.stats(at(100)).await.unwrap();
    assert_eq!(put_in_line.ready["default"], 2);
    let claimed = bed.claim(9).await;
    assert_eq!(claimed.len(), 1, "{claimed:?}");
    assert_eq!(bed.stats(at(0)).await.unwrap().ready.get("default"), None);
    assert_eq!(bed.claim_at(50, 9).await[0].task.id, later.id);
    bed.assert_sound().await;
}

impl Bed {
    async fn claim_at(&self, seconds: i64, max: usize) -> Vec<matins_core::task::Claimed> {
        let lease = at(seconds) + SignedDuration::from_hours(1);
        let request = matins_core::store::ClaimRequest {
            now: at(seconds),
            lease_until: Some(lease),
            ..request(max)
        };
        self.store.claim(request).await.unwrap().claimed
    }
}

/// Pruning goes in short steps, so that somebody else gets a turn in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruning_holds_nobody_up() {
    let bed = Bed::new();
    bed.register().await;
    for _ in 0..3 {
        bed.enqueue((0..2_000).map(|_| task("old")).collect(), at(0)).await.unwrap();
        let ended: Vec<_> =
            bed.claim(2_000).await.iter().map(|claimed| ended(claimed, done("1"))).collect();
        bed.settle(ended).await.unwrap();
    }
    let store = bed.store.clone();
    let pruning = tokio::spawn(async move {
        store.prune(&Retention::default(), at(8 * 86_400), 100_000).await.unwrap()
    });
    let mut between = 0;
    while !pruning.is_finished() {
        bed.enqueue(vec![task("new")], at(0)).await.unwrap();
        between += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let pruned = pruning.await.unwrap();
    assert_eq!((pruned.tasks, pruned.more), (6_000, false));
    assert!(between >= 3, "{between} enqueues got through");
    bed.assert_sound().await;
}

/// A page looks at so many rows and no more; what an index knows is found all the same, once.
#[tokio::test]
async fn a_key_or_id_is_found_behind_more_rows_than_a_page_walks() {
    let bed = Bed::new();
    bed.register().await;
    let (old, dead) = (keyed("sync", "orders-1"), keyed("sync", "orders-2"));
    bed.enqueue(vec![dead.clone(), old.clone()], at(0)).await.unwrap();
    let claimed = bed.claim(1).await.remove(0);
    assert_eq!(claimed.task.id, dead.id);
    bed.end(&claimed, hopeless("no")).await;
    for _ in 0..6 {
        bed.enqueue((0..10_000).map(|_| task("bulk")).collect(), at(0)).await.unwrap();
    }
    let all = TaskFilter::default;
    for (filter, expected) in [
        (TaskFilter { execution_key: Some("orders-1".to_owned()), ..all() }, vec![old.id]),
        (TaskFilter { execution_key: Some("orders-2".to_owned()), ..all() }, vec![dead.id]),
        (TaskFilter { q: Some("orders-".to_owned()), ..all() }, vec![old.id, dead.id]),
        (TaskFilter { q: Some(old.id.to_string()), ..all() }, vec![old.id]),
        (TaskFilter { q: Some("nothing".to_owned()), ..all() }, vec![]),
    ] {
        let mut page = PageRequest { limit: 10, cursor: None };
        let first = bed.tasks(&filter, &page).await.unwrap();
        let mut found: Vec<_> = first.items.iter().map(|task| task.id).collect();
        assert_eq!(found, expected, "{filter:?}");
        page.cursor = first.next;
        while page.cursor.is_some() {
            let next = bed.tasks(&filter, &page).await.unwrap();
            found.extend(next.items.iter().map(|task| task.id));
            page.cursor = next.next;
        }
        assert_eq!(found, expected, "{filter:?}, all pages");
    }
}

/// Keys of tasks that are kept for longer than their keys are.
#[tokio::test]
async fn a_ledger_that_ends_before_the_tasks_frees_their_keys_once() {
    let bed = Bed::new();
    bed.register().await;
    let tasks: Vec<_> = (0..5).map(|n| keyed("sync", &format!("k{n}"))).collect();
    bed.enqueue(tasks.clone(), at(0)).await.unwrap();
    for claimed in bed.claim(5).await {
        bed.end(&claimed, done("1")).await;
    }
    let hour = Duration::from_secs(3_600);
    let retention = Retention { ledger: Some(hour), ..Retention::default() };
    let later = at(2 * 3_600);
    for (limit, freed, more) in [(2, 2, true), (2, 2, true), (2, 1, false), (2, 0, false)] {
        let pruned = bed.prune(&retention, later, limit).await.unwrap();
        assert_eq!((pruned.tasks, pruned.ledger, pruned.more), (0, freed, more));
    }
    for task in &tasks {
        let key = task.execution_key.as_deref().unwrap();
        assert_eq!(bed.ledger("sync", key).await.unwrap(), None);
        assert_eq!(
            bed.enqueue(vec![keyed("sync", key)], later).await.unwrap(),
            [Enqueued::Created]
        );
        assert_eq!(bed.task(task.id).await.unwrap().unwrap().state, State::Completed);
    }
    bed.assert_sound().await;
}
