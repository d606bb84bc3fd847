//! What people do: cancel, retry, replay, dismiss. And that it is on record.

use jiff::Timestamp;
use matins_core::Json;
use matins_core::dead_letter::DeadLetterFilter;
use matins_core::lifecycle::Outcome;
use matins_core::store::{AuditEntry, Cancelled, Dismissed, Order, Retried, Settled};
use matins_core::task::{Dismissal, ErrorClass, NewTask, State, Task, TaskError, TaskId};

use crate::lab::{
    Lab, act, at, done, due_at, every, failure, first_page, hopeless, id, in_pool, keyed, loss,
    of_kind, origin, schedule, task, with_concurrency_key,
};

/// The last audit entry is this act about this task, and there are so many.
async fn on_record(lab: &Lab, action: &str, id: TaskId, seconds: i64, count: usize) {
    let entries = lab.all_audit().await;
    assert_eq!(entries.len(), count, "{entries:?}");
    let expected = AuditEntry {
        time: at(seconds),
        who: "ann".to_owned(),
        action: action.to_owned(),
        target: id.to_string(),
        reason: Some("because".to_owned()),
    };
    assert_eq!(entries[0], expected);
}

async fn retry_one(lab: &Lab, id: TaskId, payload: Option<Json>, seconds: i64) -> Retried {
    lab.retry(&[id], payload, &act(seconds)).await.unwrap().remove(0)
}

async fn dead(lab: &Lab) -> Vec<Task> {
    let filter = DeadLetterFilter::default();
    every(async |page| lab.dead_letters(&filter, Order::OldestFirst, &page).await.unwrap()).await
}

pub async fn a_pending_task_is_cancelled_at_once(lab: Lab) {
    lab.accept([task(1), due_at(2, 500)]).await;
    for (n, count) in [(1, 1), (2, 2)] {
        let Cancelled::Done(task) = lab.cancel_one(id(n), 5).await else { panic!() };
        assert_eq!(*task, lab.see(id(n)).await);
        assert_eq!(task.state, State::Cancelled);
        assert_eq!(task.cancel_reason.as_deref(), Some("cancelled"));
        assert_eq!((task.finished_at, task.cancel_requested_at), (Some(at(5)), None));
        on_record(&lab, "task.cancel", id(n), 5, count).await;
    }
    assert_eq!(lab.take(9, 1_000).await, []);
}

pub async fn a_running_task_is_asked_to_end(lab: Lab) {
    lab.accept([task(1)]).await;
    lab.take_one(1).await;
    let Cancelled::Requested(task) = lab.cancel_one(id(1), 5).await else { panic!() };
    assert_eq!(*task, lab.see(id(1)).await);
    assert_eq!((task.state, task.cancel_requested_at), (State::Running, Some(at(5))));
    on_record(&lab, "task.cancel", id(1), 5, 1).await;
    let Cancelled::Requested(task) = lab.cancel_one(id(1), 9).await else { panic!() };
    assert_eq!(task.cancel_requested_at, Some(at(5)), "the first request counts");
    on_record(&lab, "task.cancel", id(1), 9, 2).await;
}

pub async fn what_has_ended_cannot_be_cancelled(lab: Lab) {
    lab.accept([task(1), task(2)]).await;
    lab.run_one(done("x"), 1).await;
    lab.run_one(hopeless("x"), 1).await;
    for n in [1, 2] {
        let before = lab.see(id(n)).await;
        let answer = lab.cancel_one(id(n), 5).await;
        assert_eq!(answer, Cancelled::AlreadyEnded(Box::new(before.clone())));
        assert_eq!(lab.see(id(n)).await, before);
    }
    assert_eq!(lab.cancel_one(id(9), 5).await, Cancelled::NotFound);
    assert_eq!(lab.all_audit().await, []);
}

pub async fn a_batch_of_cancels_is_answered_in_order(lab: Lab) {
    lab.accept([task(1), task(2)]).await;
    lab.take_one(1).await;
    let answers = lab.cancel(&[id(2), id(9), id(1), id(2)], &act(3)).await.unwrap();
    assert!(matches!(answers[0], Cancelled::Done(_)));
    assert_eq!(answers[1], Cancelled::NotFound);
    assert!(matches!(answers[2], Cancelled::Requested(_)));
    assert!(matches!(answers[3], Cancelled::AlreadyEnded(_)), "one after another");
    assert_eq!(lab.cancel(&[], &act(3)).await.unwrap(), []);
}

pub async fn a_waiting_task_can_be_made_due(lab: Lab) {
    lab.accept([due_at(1, 500), task(2)]).await;
    lab.run_one(failure("x"), 1).await;
    for (n, count) in [(1, 1), (2, 2)] {
        let before = lab.see(id(n)).await;
        let Retried::DueNow(task) = retry_one(&lab, id(n), None, 5).await else { panic!() };
        assert_eq!(*task, Task { run_at: at(5), ..before });
        assert_eq!(lab.see(id(n)).await, *task);
        on_record(&lab, "task.retry", id(n), 5, count).await;
    }
    let claimed = lab.take(9, 5).await;
    assert_eq!(claimed.len(), 2);
    assert_eq!((claimed[1].task.attempt, claimed[1].task.retries), (2, 1), "retries stay used");
}

pub async fn a_task_that_is_due_keeps_its_place(lab: Lab) {
    lab.accept([task(1), task(2)]).await;
    let Retried::DueNow(first) = retry_one(&lab, id(1), None, 50).await else { panic!() };
    assert_eq!(first.run_at, at(0));
    assert_eq!(lab.take_one(60).await.task.id, id(1));
}

pub async fn a_waiting_task_may_get_another_payload(lab: Lab) {
    lab.accept([due_at(1, 500)]).await;
    let payload = Json::parse(r#"{"edited": 1E400}"#).unwrap();
    retry_one(&lab, id(1), Some(payload.clone()), 5).await;
    assert_eq!(lab.take_one(5).await.task.payload, payload);
}

pub async fn a_replay_starts_a_fresh_round_with_its_history(lab: Lab) {
    let new =
        NewTask { priority: 3, max_retries: Some(1), tags: vec!["t".to_owned()], ..keyed(1, "k") };
    lab.accept([new]).await;
    for now in [0, 200] {
        lab.run_one(Outcome::Interrupted, now).await;
        lab.run_one(loss(), now).await;
        lab.run_one(failure("broken"), now + 80).await;
    }
    let dead = lab.see(id(1)).await;
    assert_eq!((dead.state, dead.attempt), (State::Failed, 6));
    assert_eq!((dead.retries, dead.losses, dead.interruptions), (1, 2, 2));

    let Retried::Replayed(task) = retry_one(&lab, id(1), None, 500).await else { panic!() };
    let expected = Task {
        state: State::Pending,
        run_at: at(500),
        retries: 0,
        losses: 0,
        interruptions: 0,
        replays: 1,
        finished_at: None,
        error: None,
        ..dead
    };
    assert_eq!(*task, expected);
    assert_eq!(lab.see(id(1)).await, expected);
    on_record(&lab, "dead_letter.replay", id(1), 500, 1).await;

    // Partly repaired: the first run of the new round fails, the second works.
    let waiting = lab.run_one(failure("again"), 501).await;
    assert_eq!((waiting.attempt, waiting.retries, waiting.run_at), (7, 1, at(561)));
    let ended = lab.run_one(done("x"), 561).await;
    assert_eq!((ended.state, ended.attempt, ended.replays), (State::Completed, 8, 1));
    let numbers: Vec<_> = lab.attempts(id(1)).await.unwrap().iter().map(|a| a.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
}

pub async fn replays_keep_their_order(lab: Lab) {
    for n in [3, 1, 2] {
        lab.bury(task(n), "x", 1).await;
    }
    lab.retry(&[id(2), id(1), id(3)], None, &act(5)).await.unwrap();
    let order: Vec<_> = lab.take(9, 5).await.iter().map(|c| c.task.id).collect();
    assert_eq!(order, [id(3), id(1), id(2)], "as they were accepted");
}

pub async fn a_replay_may_get_another_payload(lab: Lab) {
    lab.bury(task(1), "bad payload", 1).await;
    let payload = Json::string("repaired");
    let Retried::Replayed(task) = retry_one(&lab, id(1), Some(payload.clone()), 5).await else {
        panic!()
    };
    assert_eq!(task.payload, payload);
    assert_eq!(lab.take_one(5).await.task.payload, payload);
}

pub async fn a_replay_takes_its_key_again(lab: Lab) {
    lab.bury(keyed(1, "k"), "x", 1).await;
    assert_eq!(lab.ledger("sync", "k").await.unwrap(), None);
    retry_one(&lab, id(1), None, 5).await;
    let entry = lab.ledger("sync", "k").await.unwrap().unwrap();
    assert_eq!((entry.task_id, entry.state), (id(1), State::Pending));
    lab.run_one(done("x"), 5).await;
    assert_eq!(lab.ledger("sync", "k").await.unwrap().unwrap().state, State::Completed);
}

pub async fn a_replay_whose_key_is_taken_stays_dead(lab: Lab) {
    let dead = lab.bury(keyed(1, "k"), "x", 1).await;
    lab.accept([keyed(2, "k")]).await;
    let deduplicated = async |state| {
        let answer = retry_one(&lab, id(1), None, 5).await;
        assert_eq!(answer, Retried::Deduplicated(Box::new(lab.see(id(2)).await)));
        assert_eq!(lab.state(id(2)).await, state);
        assert_eq!(lab.see(id(1)).await, dead);
    };
    deduplicated(State::Pending).await;
    let claimed = lab.take_one(2).await;
    deduplicated(State::Running).await;
    lab.finish(&claimed, done("x"), 3).await;
    deduplicated(State::Completed).await;
    assert_eq!(lab.all_audit().await, []);
}

pub async fn two_dead_letters_of_one_key_are_replayed_once(lab: Lab) {
    lab.bury(keyed(1, "k"), "x", 1).await;
    lab.bury(keyed(2, "k"), "x", 1).await;
    let answers = lab.retry(&[id(2), id(1)], None, &act(5)).await.unwrap();
    assert!(matches!(&answers[0], Retried::Replayed(task) if task.id == id(2)));
    assert!(matches!(&answers[1], Retried::Deduplicated(task) if task.id == id(2)));
}

pub async fn a_replay_outlives_the_old_rounds_end(lab: Lab) {
    let expiring = |n, seconds| NewTask { expires_at: Some(at(seconds)), ..task(n) };
    lab.bury(expiring(1, 10), "x", 1).await;
    lab.bury(expiring(2, 900), "x", 1).await;
    lab.retry(&[id(1), id(2)], None, &act(10)).await.unwrap();
    assert_eq!(lab.see(id(1)).await.expires_at, None, "it had passed");
    assert_eq!(lab.see(id(2)).await.expires_at, Some(at(900)));
    assert_eq!(lab.take(9, 20).await.len(), 2);
}

pub async fn a_replayed_task_keeps_its_concurrency_key(lab: Lab) {
    lab.bury(with_concurrency_key(1, "a"), "x", 1).await;
    lab.accept([with_concurrency_key(2, "a")]).await;
    lab.take_one(2).await;
    retry_one(&lab, id(1), None, 3).await;
    assert_eq!(lab.take(9, 4).await, []);
}

pub async fn only_what_waits_or_failed_can_be_retried(lab: Lab) {
    lab.accept((1..=3).map(task)).await;
    lab.run_one(done("x"), 1).await;
    lab.cancel_one(id(2), 1).await;
    lab.take_one(1).await;
    for n in 1..=3 {
        let before = lab.see(id(n)).await;
        let answer = retry_one(&lab, id(n), Some(Json::null()), 5).await;
        assert_eq!(answer, Retried::WrongState(Box::new(before.clone())));
        assert_eq!(lab.see(id(n)).await, before);
    }
    assert_eq!(retry_one(&lab, id(9), None, 5).await, Retried::NotFound);
    on_record(&lab, "task.cancel", id(2), 1, 1).await;
}

pub async fn a_dismissed_dead_letter_stays_failed_and_leaves_the_queue(lab: Lab) {
    let before = lab.bury(keyed(1, "k"), "x", 1).await;
    let answers = lab.dismiss(&[id(1), id(1), id(9)], &act(5)).await.unwrap();
    let reason = "because".to_owned();
    let dismissed = Some(Dismissal { by: "ann".to_owned(), at: at(5), reason });
    let expected = Task { dismissed, ..before };
    assert_eq!(answers[0], Dismissed::Done(Box::new(expected.clone())));
    assert_eq!(answers[1], Dismissed::WrongState(Box::new(expected.clone())));
    assert_eq!(answers[2], Dismissed::NotFound);
    assert_eq!(lab.see(id(1)).await, expected);
    assert_eq!(dead(&lab).await, []);
    assert_eq!(lab.stats(at(5)).await.unwrap().dead_letters, 0);
    on_record(&lab, "dead_letter.dismiss", id(1), 5, 1).await;
}

pub async fn only_dead_letters_can_be_dismissed(lab: Lab) {
    lab.accept((1..=3).map(task)).await;
    lab.run_one(done("x"), 1).await;
    lab.take_one(1).await;
    for n in 1..=3 {
        let before = lab.see(id(n)).await;
        let answer = lab.dismiss(&[id(n)], &act(5)).await.unwrap().remove(0);
        assert_eq!(answer, Dismissed::WrongState(Box::new(before)));
    }
    assert_eq!(lab.all_audit().await, []);
}

pub async fn a_dismissed_task_can_still_be_replayed(lab: Lab) {
    lab.bury(task(1), "x", 1).await;
    lab.dismiss(&[id(1)], &act(5)).await.unwrap();
    let Retried::Replayed(task) = retry_one(&lab, id(1), None, 6).await else { panic!() };
    assert_eq!((task.state, &task.dismissed), (State::Pending, &None));
    lab.run_one(hopeless("again"), 7).await;
    assert_eq!(dead(&lab).await.len(), 1);
}

pub async fn dead_letters_are_listed_by_the_time_they_failed(lab: Lab) {
    for (n, seconds) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
        lab.bury(task(n), "x", seconds).await;
    }
    let oldest = [id(2), id(4), id(3), id(1)];
    let list = async |order, limit| {
        let filter = DeadLetterFilter::default();
        let pages = every(async |page| {
            let page = matins_core::page::PageRequest { limit, ..page };
            lab.dead_letters(&filter, order, &page).await.unwrap()
        });
        pages.await.iter().map(|task| task.id).collect::<Vec<_>>()
    };
    for limit in [1, 2, 3, 100] {
        assert_eq!(list(Order::OldestFirst, limit).await, oldest);
        let newest: Vec<_> = oldest.into_iter().rev().collect();
        assert_eq!(list(Order::NewestFirst, limit).await, newest);
    }
}

pub async fn dead_letters_are_found_by_each_field(lab: Lab) {
    let origin = Some(origin(&schedule("nightly", 0), "label", 0));
    lab.bury(of_kind(1, "report"), "a", 10).await;
    lab.bury(in_pool(2, "io"), "b", 20).await;
    lab.bury(NewTask { tags: vec!["t".to_owned(), "u".to_owned()], ..task(3) }, "c", 30).await;
    lab.bury(NewTask { origin, ..task(4) }, "d", 40).await;
    lab.accept([task(5)]).await;
    let fingerprint = lab.see(id(2)).await.error.unwrap().fingerprint;
    let own = |text: &str| Some(text.to_owned());
    let at = |seconds: i64| -> Option<Timestamp> { Some(at(seconds)) };
    let all = DeadLetterFilter::default;
    let cases = [
        (all(), vec![1, 2, 3, 4]),
        (DeadLetterFilter { kind: own("report"), ..all() }, vec![1]),
        (DeadLetterFilter { pool: own("io"), ..all() }, vec![2]),
        (DeadLetterFilter { fingerprint: Some(fingerprint), ..all() }, vec![2]),
        (DeadLetterFilter { tag: own("u"), ..all() }, vec![3]),
        (DeadLetterFilter { schedule: own("nightly"), ..all() }, vec![4]),
        (DeadLetterFilter { failed_after: at(20), ..all() }, vec![2, 3, 4]),
        (DeadLetterFilter { failed_before: at(20), ..all() }, vec![1]),
        (DeadLetterFilter { failed_after: at(15), failed_before: at(40), ..all() }, vec![2, 3]),
        (DeadLetterFilter { pool: own("io"), kind: own("report"), ..all() }, vec![]),
        (DeadLetterFilter { tag: own("%"), ..all() }, vec![]),
        (DeadLetterFilter { kind: own("nothing"), ..all() }, vec![]),
    ];
    for (filter, expected) in cases {
        let page = lab.dead_letters(&filter, Order::OldestFirst, &first_page(50)).await.unwrap();
        let found: Vec<_> = page.items.iter().map(|task| task.id).collect();
        let expected: Vec<_> = expected.into_iter().map(id).collect();
        assert_eq!(found, expected, "{filter:?}");
        let groups = lab.dead_letter_groups(&filter).await.unwrap();
        let counted: u64 = groups.iter().map(|group| group.count).sum();
        assert_eq!(counted, found.len() as u64, "{filter:?}");
    }
}

pub async fn dead_letters_are_grouped_by_their_kind_of_error(lab: Lab) {
    for (n, seconds) in [(1, 10), (2, 50), (3, 30)] {
        lab.bury(task(n), &format!("order {n} refused"), seconds).await;
    }
    lab.bury(task(4), "disk full", 20).await;
    lab.accept([task(5)]).await;
    let error = TaskError::new(ErrorClass::Timeout, "disk full");
    let timed_out = Outcome::Failed { error, permanent: true, retry_after: None };
    lab.run_one(timed_out, 25).await;
    let groups = lab.dead_letter_groups(&DeadLetterFilter::default()).await.unwrap();
    assert_eq!(groups.iter().map(|group| group.count).collect::<Vec<_>>(), [3, 1, 1]);
    let orders = &groups[0];
    assert_eq!((orders.oldest, orders.newest), (at(10), at(50)));
    assert_eq!(orders.message, "order 2 refused", "of the newest");
    assert_eq!(orders.class, ErrorClass::Permanent);
    assert!(groups[1].fingerprint < groups[2].fingerprint, "equals by fingerprint");
    lab.dismiss(&[id(1), id(2)], &act(60)).await.unwrap();
    let groups = lab.dead_letter_groups(&DeadLetterFilter::default()).await.unwrap();
    let orders = groups.iter().find(|group| group.fingerprint == orders.fingerprint).unwrap();
    assert_eq!((orders.count, orders.oldest, orders.newest), (1, at(30), at(30)));
    assert_eq!(orders.message, "order 3 refused");
}

pub async fn a_dead_letter_waits_whatever_else_happens(lab: Lab) {
    let before = lab.bury(keyed(1, "k"), "x", 1).await;
    lab.accept([keyed(2, "k")]).await;
    lab.run_one(done("x"), 2).await;
    assert_eq!(lab.expire(at(9_999), 9).await.unwrap(), 0);
    let claimed = lab.take(9, 9_999).await;
    assert_eq!(claimed, []);
    assert_eq!(lab.see(id(1)).await, before);
    assert_eq!(lab.settle(Vec::new()).await.unwrap(), Vec::<Settled>::new());
}
