//! What is kept, for how long, and the store itself.

use std::time::Duration;

use matins_core::Json;
use matins_core::operation::{Operation, OperationState};
use matins_core::store::{ClaimRequest, Enqueued, Pruned, Retention, Retried};
use matins_core::task::{NewTask, OnDuplicate, State, Task, TaskId, WorkerId};

use crate::lab::{
    Lab, act, at, done, id, keyed, loss, occurrence, of_kind, plan, request, schedule, task, worker,
};
use crate::records::operation;

/// Everything is kept for ever, except what a contract is about.
fn keep() -> Retention {
    let ever = Duration::from_secs(1 << 40);
    Retention {
        completed: ever,
        cancelled: ever,
        failed: ever,
        ledger: None,
        occurrences: ever,
        audit: ever,
        alerts: ever,
    }
}

const MINUTE: Duration = Duration::from_secs(60);

async fn prune(lab: &Lab, retention: &Retention, seconds: i64) -> Pruned {
    lab.prune(retention, at(seconds), 1_000).await.unwrap()
}

async fn there(lab: &Lab, of: impl IntoIterator<Item = u128>) -> Vec<TaskId> {
    let mut there = Vec::new();
    for id in of.into_iter().map(id) {
        there.extend(lab.task(id).await.unwrap().map(|task| task.id));
    }
    there
}

/// Completed 1 at 10, cancelled 2 at 20, dead 3 at 30, dismissed 4 at 40, running 5, pending 6.
async fn one_of_each(lab: &Lab) {
    lab.accept((1..=2).map(task)).await;
    lab.run_one(done("x"), 10).await;
    lab.cancel_one(id(2), 20).await;
    lab.bury(task(3), "x", 30).await;
    lab.bury(task(4), "x", 30).await;
    lab.dismiss(&[id(4)], &act(40)).await.unwrap();
    lab.accept([task(5)]).await;
    lab.take_one(41).await;
    lab.accept([task(6)]).await;
}

pub async fn each_state_has_its_own_time(lab: Lab) {
    one_of_each(&lab).await;
    let cases = [
        (Retention { completed: MINUTE, ..keep() }, 70, 1),
        (Retention { cancelled: MINUTE, ..keep() }, 80, 2),
        (Retention { failed: MINUTE, ..keep() }, 100, 4),
    ];
    for (retention, seconds, gone) in cases {
        assert_eq!(prune(&lab, &retention, seconds - 1).await.tasks, 0, "{gone} too early");
        assert_eq!(prune(&lab, &retention, seconds).await.tasks, 1, "{gone}");
        assert_eq!(lab.task(id(gone)).await.unwrap(), None);
        assert_eq!(lab.attempts(id(gone)).await.unwrap(), []);
    }
    let nothing = Retention { completed: Duration::ZERO, cancelled: Duration::ZERO, ..keep() };
    let nothing = Retention { failed: Duration::ZERO, ledger: Some(Duration::ZERO), ..nothing };
    assert_eq!(prune(&lab, &nothing, 1 << 30).await.tasks, 0);
    assert_eq!(there(&lab, 1..=6).await, [3, 5, 6].map(id), "live and dead ones stay");
}

pub async fn the_defaults_keep_a_week(lab: Lab) {
    one_of_each(&lab).await;
    let day = 86_400;
    assert_eq!(prune(&lab, &Retention::default(), 7 * day).await, Pruned::default());
    assert_eq!(prune(&lab, &Retention::default(), 7 * day + 20).await.tasks, 2);
    assert_eq!(prune(&lab, &Retention::default(), 30 * day + 40).await.tasks, 1);
    assert_eq!(there(&lab, 1..=6).await, [3, 5, 6].map(id));
}

pub async fn a_call_takes_a_bounded_number(lab: Lab) {
    lab.accept((0..7).map(task)).await;
    for _ in 0..7 {
        lab.run_one(done("x"), 1).await;
    }
    let retention = Retention { completed: MINUTE, ..keep() };
    let mut counts = Vec::new();
    loop {
        let pruned = lab.prune(&retention, at(100), 3).await.unwrap();
        counts.push(pruned.tasks);
        assert!(counts.len() < 9, "{counts:?}");
        if !pruned.more {
            break;
        }
    }
    counts.retain(|count| *count > 0);
    assert_eq!(counts, [3, 3, 1]);
    assert!(lab.all_tasks().await.is_empty());
    assert_eq!(lab.stats(at(100)).await.unwrap().tasks.values().sum::<u64>(), 0);
}

pub async fn the_ledger_answers_for_a_pruned_task(lab: Lab) {
    lab.accept([NewTask { pool: "io".into(), priority: 5, ..keyed(1, "k") }]).await;
    lab.run_one(done("42"), 10).await;
    let pruned = prune(&lab, &Retention { completed: MINUTE, ..keep() }, 100).await;
    assert_eq!((pruned.tasks, pruned.ledger), (1, 0));
    assert_eq!(lab.task(id(1)).await.unwrap(), None);
    let entry = lab.ledger("sync", "k").await.unwrap().unwrap();
    assert_eq!((entry.task_id, entry.at), (id(1), at(10)));
    assert_eq!(entry.result, Some(Json::string("42")));

    let Enqueued::Existing(answer) = lab.offer(keyed(2, "k"), 101).await else { panic!() };
    assert_eq!(*answer, entry.task());
    assert_eq!((answer.id, answer.state), (id(1), State::Completed));
    assert_eq!((&*answer.kind, answer.execution_key.as_deref()), ("sync", Some("k")));
    assert_eq!((&answer.result, answer.finished_at), (&entry.result, Some(at(10))));
    assert!(answer.deduplicated);
    for on_duplicate in [OnDuplicate::Reject, OnDuplicate::Replace] {
        let answer = lab.offer(NewTask { on_duplicate, ..keyed(3, "k") }, 101).await;
        assert_eq!(answer, Enqueued::Rejected(Box::new(entry.task())));
    }
    assert!(lab.take(9, 200).await.is_empty());
}

pub async fn the_ledger_stops_a_replay_after_the_task_was_pruned(lab: Lab) {
    lab.bury(keyed(1, "k"), "x", 1).await;
    lab.accept([keyed(2, "k")]).await;
    lab.run_one(done("42"), 10).await;
    prune(&lab, &Retention { completed: MINUTE, ..keep() }, 100).await;
    let entry = lab.ledger("sync", "k").await.unwrap().unwrap();
    let answer = lab.retry(&[id(1)], None, &act(101)).await.unwrap().remove(0);
    assert_eq!(answer, Retried::Deduplicated(Box::new(entry.task())));
}

pub async fn a_pruned_ledger_frees_its_keys(lab: Lab) {
    lab.accept([keyed(1, "old"), keyed(2, "new"), keyed(3, "live")]).await;
    lab.run_one(done("x"), 10).await;
    lab.run_one(done("x"), 20).await;
    let retention = Retention { ledger: Some(MINUTE), ..keep() };
    assert_eq!(prune(&lab, &retention, 69).await, Pruned::default());
    let pruned = prune(&lab, &retention, 70).await;
    assert_eq!((pruned.tasks, pruned.ledger), (0, 1));
    assert_eq!(lab.ledger("sync", "old").await.unwrap(), None);
    assert_eq!(lab.state(id(1)).await, State::Completed);
    assert_eq!(lab.offer(keyed(11, "old"), 71).await, Enqueued::Created);
    assert!(matches!(lab.offer(keyed(12, "new"), 71).await, Enqueued::Existing(_)));
    assert!(matches!(lab.offer(keyed(13, "live"), 71).await, Enqueued::Existing(_)));
    assert_eq!(prune(&lab, &Retention { ledger: None, ..keep() }, 1 << 30).await.ledger, 0);
}

pub async fn a_forgotten_key_outlives_no_pruning(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    lab.run_one(done("x"), 10).await;
    prune(&lab, &Retention { completed: MINUTE, ..keep() }, 100).await;
    assert!(lab.forget_key("sync", "k", &act(101)).await.unwrap());
    assert_eq!(lab.offer(keyed(2, "k"), 102).await, Enqueued::Created);
}

pub async fn the_id_of_a_pruned_task_is_free(lab: Lab) {
    lab.accept([task(1)]).await;
    lab.run_one(done("x"), 10).await;
    prune(&lab, &Retention { completed: MINUTE, ..keep() }, 100).await;
    let again = task(1);
    assert_eq!(lab.offer(again.clone(), 101).await, Enqueued::Created);
    assert_eq!(lab.see(id(1)).await, Task::from_new(&again, at(101)));
    assert_eq!(lab.attempts(id(1)).await.unwrap(), []);
    assert_eq!(lab.take_one(102).await.task.attempt, 1);
}

pub async fn a_key_answers_for_its_own_task_although_its_id_is_used_again(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    lab.run_one(done("42"), 10).await;
    prune(&lab, &Retention { completed: MINUTE, ..keep() }, 100).await;
    lab.accept([of_kind(1, "other")]).await;
    let entry = lab.ledger("sync", "k").await.unwrap().unwrap();
    assert_eq!((entry.task_id, entry.state), (id(1), State::Completed));
    assert_eq!(entry.result, Some(Json::string("42")));
    let answer = lab.offer(keyed(2, "k"), 101).await;
    assert_eq!(answer, Enqueued::Existing(Box::new(entry.task())));
}

pub async fn occurrences_are_as_old_as_their_firing(lab: Lab) {
    let mut state = schedule("s", 60);
    lab.add_schedule(&state).await;
    state = lab.fire_one(plan(&state, task(1), 60), 60).await;
    let mut late = plan(&state, task(2), 61);
    late.occurrences[0].fired_at = Some(at(500));
    state = lab.fire_one(late, 500).await;
    let mut missed = plan(&state, task(3), 62);
    missed.starts.clear();
    let outcome = matins_core::schedule::OccurrenceOutcome::Missed;
    missed.occurrences[0] = occurrence(&state, "missed", 62, outcome);
    missed.state.balance = state.balance;
    missed.state.balance.expected += 1;
    missed.state.balance.missed += 1;
    lab.fire_one(missed, 501).await;
    let retention = Retention { occurrences: MINUTE, ..keep() };
    assert_eq!(prune(&lab, &retention, 119).await.occurrences, 0);
    assert_eq!(prune(&lab, &retention, 120).await.occurrences, 1);
    assert_eq!(prune(&lab, &retention, 122).await.occurrences, 1);
    assert_eq!(prune(&lab, &retention, 559).await.occurrences, 0);
    assert_eq!(lab.all_occurrences(None).await.len(), 1);
    assert_eq!(prune(&lab, &retention, 560).await.occurrences, 1);
}

pub async fn a_fired_occurrence_outlives_its_task(lab: Lab) {
    let state = schedule("s", 60);
    lab.add_schedule(&state).await;
    lab.fire_one(plan(&state, task(1), 60), 60).await;
    lab.run_one(done("x"), 60).await;
    prune(&lab, &Retention { completed: MINUTE, ..keep() }, 200).await;
    let fired = lab.fired_between(state.uid, at(0), at(99)).await.unwrap();
    assert_eq!(fired.len(), 1);
    assert_eq!((fired[0].0.task_id, fired[0].1), (Some(id(1)), None));
}

pub async fn the_audit_log_is_pruned_by_time(lab: Lab) {
    lab.accept([task(1), task(2)]).await;
    lab.cancel_one(id(1), 10).await;
    lab.cancel_one(id(2), 20).await;
    let retention = Retention { audit: MINUTE, ..keep() };
    assert_eq!(prune(&lab, &retention, 69).await.audit, 0);
    assert_eq!(prune(&lab, &retention, 79).await.audit, 1);
    assert_eq!(lab.all_audit().await[0].target, id(2).to_string());
}

pub async fn an_operation_is_kept_for_as_long_as_the_audit_log_from_its_end_on(lab: Lab) {
    let ended = |n, created, finished| Operation {
        finished_at: Some(at(finished)),
        ..operation(n, created, OperationState::Completed)
    };
    let stopped = Operation { state: OperationState::Stopped, ..ended(3, 1, 40) };
    let all = [ended(1, 1, 10), ended(2, 2, 10), stopped, operation(4, 1, OperationState::Running)];
    for operation in &all {
        lab.put_operation(operation).await.unwrap();
    }
    let left = async || {
        let mut left = Vec::new();
        for operation in &all {
            left.extend(lab.operation(operation.id).await.unwrap());
        }
        left
    };
    let retention = Retention { audit: MINUTE, ..keep() };
    assert_eq!(prune(&lab, &retention, 69).await, Pruned::default());
    for more in [true, false] {
        let pruned = lab.prune(&retention, at(70), 1).await.unwrap();
        assert_eq!((pruned.operations, pruned.more), (1, more));
    }
    assert_eq!(left().await, all[2..]);
    assert_eq!(prune(&lab, &retention, 1 << 30).await.operations, 1);
    assert_eq!(left().await, all[3..], "what runs stays");
}

pub async fn a_worker_is_forgotten_long_after_its_lease_unless_it_has_claims(lab: Lab) {
    for (name, lease) in [("gone", 10), ("retired", 10), ("busy", 10), ("later", 50)] {
        lab.register(worker(name, at(lease))).await.unwrap();
    }
    lab.retire(&WorkerId("retired".into()), at(9)).await.unwrap();
    lab.accept([task(1)]).await;
    let busy = ClaimRequest { worker: WorkerId("busy".into()), ..request(1, 5) };
    let claimed = lab.take_with(busy).await.remove(0);
    let names = async || {
        let workers = lab.workers().await.unwrap();
        workers.iter().map(|worker| worker.id.to_string()).collect::<Vec<_>>()
    };
    let retention = Retention { completed: MINUTE, ..keep() };
    assert_eq!(prune(&lab, &retention, 69).await, Pruned::default());
    assert_eq!(names().await, ["busy", "gone", "later", "w"]);
    for more in [true, false] {
        let pruned = lab.prune(&retention, at(70), 1).await.unwrap();
        assert_eq!((pruned.workers, pruned.more), (1, more));
    }
    assert_eq!(names().await, ["busy", "later", "w"]);
    assert!(!lab.beat(&worker("gone", at(99))).await.unwrap(), "its entry is gone");
    lab.finish(&claimed, loss(), 71).await;
    assert_eq!(prune(&lab, &retention, 110).await.workers, 2);
    assert_eq!(names().await, ["w"]);
    lab.register(worker("gone", at(999))).await.unwrap();
    assert_eq!(names().await, ["gone", "w"], "it may come back");
}

pub async fn a_store_says_what_it_is_and_answers(lab: Lab) {
    let info = lab.info();
    assert!(!info.kind.is_empty() && !info.location.is_empty());
    assert!(info.schema_version > 0);
    assert_eq!(info, lab.info());
    lab.ping().await.unwrap();
}
