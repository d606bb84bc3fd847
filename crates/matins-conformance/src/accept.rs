//! Accepting: what is stored, and who has a key.

use std::time::Duration;

use matins_core::Json;
use matins_core::duration::{Span, Timeout};
use matins_core::retry::Backoff;
use matins_core::store::{Enqueued, Frozen, SettingChange};
use matins_core::task::{NewTask, OnDuplicate, State, Task};

use crate::lab::{
    Lab, at, done, due_at, failure, hopeless, id, keyed, of_kind, origin, schedule, task,
};

pub async fn an_accepted_task_is_all_that_was_asked_for(lab: Lab) {
    let plain = task(1);
    let full = NewTask {
        client_id: true,
        kind: "report".into(),
        pool: "cpu_pool".into(),
        priority: -7,
        run_at: at(30),
        expires_at: Some(at(90)),
        execution_key: Some("report-1".into()),
        concurrency_key: Some("tenant".into()),
        tags: vec!["a".to_owned(), "b c".to_owned(), "ü".to_owned()],
        max_retries: Some(9),
        backoff: Some(Backoff {
            initial: Span::secs(1),
            factor: 1.5,
            max: Span::secs(9),
            jitter: 0.25,
        }),
        timeout: Some(Timeout::After(Duration::from_millis(1_500))),
        origin: Some(origin(&schedule("nightly", 0), "label", 12)),
        created_by: "somebody".into(),
        ..task(2)
    };
    let endless = NewTask { timeout: Some(Timeout::None), priority: 100, ..task(3) };
    for new in [plain, full, endless] {
        assert_eq!(lab.offer(new.clone(), 5).await, Enqueued::Created);
        assert_eq!(lab.see(new.id).await, Task::from_new(&new, at(5)));
        assert_eq!(lab.attempts(new.id).await.unwrap(), []);
    }
}

pub async fn payloads_come_back_byte_for_byte(lab: Lab) {
    let big = format!("\"{}\"", "x".repeat(1 << 20));
    let texts = [
        r#"{"id":1970670598291982290,"m":9007199254740993,"n":-9223372036854775808}"#,
        r#"{"u":18446744073709551615,"d":0.1,"e":1E400,"z":-0,"z":1}"#,
        r#"{"a":"x\u0000y","s":"\ud800","é":"\u00e9 é 🦀"}"#,
        "[1,\n  2 ]",
        "null",
        &big,
    ];
    for (n, text) in texts.into_iter().enumerate() {
        let new = NewTask { payload: Json::parse(text).unwrap(), ..task(n as u128) };
        lab.accept([new.clone()]).await;
        assert_eq!(lab.see(new.id).await.payload.as_str(), text);
        let claimed = lab.take_one(1).await;
        assert_eq!(claimed.task.payload.as_str(), text);
    }
}

pub async fn answers_come_in_the_order_of_the_batch(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    let batch = vec![task(2), keyed(3, "k"), task(4), keyed(5, "k2"), keyed(6, "k")];
    let answers = lab.enqueue(batch, at(1)).await.unwrap();
    let holder = Enqueued::Existing(Box::new(lab.see(id(1)).await));
    let created = Enqueued::Created;
    assert_eq!(answers, [created.clone(), holder.clone(), created.clone(), created, holder]);
    assert_eq!(lab.task(id(3)).await.unwrap(), None);
}

pub async fn an_empty_batch_is_nothing(lab: Lab) {
    assert_eq!(lab.enqueue(Vec::new(), at(0)).await.unwrap(), []);
    assert_eq!(lab.all_tasks().await, []);
}

pub async fn a_pending_or_running_key_answers_its_holder(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    let Enqueued::Existing(holder) = lab.offer(keyed(2, "k"), 1).await else { panic!() };
    assert_eq!((holder.id, holder.state), (id(1), State::Pending));
    lab.take_one(1).await;
    let Enqueued::Existing(holder) = lab.offer(keyed(3, "k"), 1).await else { panic!() };
    assert_eq!((holder.id, holder.state), (id(1), State::Running));
    assert_eq!(lab.all_tasks().await.len(), 1);
}

pub async fn a_completed_key_answers_with_its_result_and_never_runs_again(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    lab.run_one(done("42"), 1).await;
    for n in 2..5 {
        let Enqueued::Existing(holder) = lab.offer(keyed(n, "k"), 2).await else { panic!() };
        assert_eq!((holder.id, holder.state), (id(1), State::Completed));
        assert_eq!(holder.result, Some(Json::string("42")));
    }
    assert!(lab.take(10, 100).await.is_empty());
}

pub async fn a_waiting_retry_keeps_its_key(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    lab.run_one(failure("once"), 1).await;
    assert!(matches!(lab.offer(keyed(2, "k"), 2).await, Enqueued::Existing(_)));
    let again = lab.run_one(done("x"), 1_000).await;
    assert_eq!((again.id, again.state), (id(1), State::Completed));
}

pub async fn a_failed_cancelled_or_expired_task_lets_go_of_its_key(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    lab.run_one(hopeless("no"), 1).await;
    lab.accept([keyed(2, "k")]).await;
    lab.cancel_one(id(2), 2).await;
    lab.accept([NewTask { expires_at: Some(at(3)), ..keyed(3, "k") }]).await;
    assert_eq!(lab.expire(at(3), 10).await.unwrap(), 1);
    lab.accept([keyed(4, "k")]).await;
    assert_eq!(lab.take_one(5).await.task.id, id(4));
}

pub async fn a_key_is_unique_within_its_type_only(lab: Lab) {
    let other = NewTask { kind: "other".into(), ..keyed(2, "k") };
    lab.accept([keyed(1, "k"), other]).await;
    let elsewhere = NewTask { pool: "another".into(), ..keyed(3, "k") };
    assert!(matches!(lab.offer(elsewhere, 1).await, Enqueued::Existing(_)));
}

pub async fn keys_are_compared_byte_by_byte(lab: Lab) {
    let long = "k".repeat(255);
    let keys = ["0", "null", "K", "k", " k", "k ", "k\0", "k\0a", "é", "e\u{301}", "%", "_", &long];
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(lab.offer(keyed(n as u128, key), 0).await, Enqueued::Created, "{key:?}");
    }
    for (n, key) in keys.iter().enumerate() {
        let Enqueued::Existing(holder) = lab.offer(keyed(100 + n as u128, key), 0).await else {
            panic!("{key:?} was taken")
        };
        assert_eq!(holder.id, id(n as u128), "{key:?}");
        assert_eq!(lab.ledger("sync", key).await.unwrap().unwrap().task_id, id(n as u128));
    }
}

pub async fn tasks_without_a_key_never_meet(lab: Lab) {
    lab.accept((1..=5).map(task)).await;
    assert_eq!(lab.take(10, 1).await.len(), 5);
}

pub async fn duplicates_inside_a_batch_meet_the_first(lab: Lab) {
    let answers = lab.enqueue(vec![keyed(1, "k"), keyed(2, "k"), task(1)], at(0)).await.unwrap();
    assert_eq!(answers[0], Enqueued::Created);
    let first = Enqueued::Existing(Box::new(lab.see(id(1)).await));
    assert_eq!(answers[1..], [first.clone(), first]);
}

pub async fn a_duplicate_in_a_large_batch_affects_itself_alone(lab: Lab) {
    lab.accept([keyed(1, "k-500")]).await;
    let batch = (0..1_000).map(|n| keyed(10_000 + n, &format!("k-{n}"))).collect();
    let answers = lab.enqueue(batch, at(1)).await.unwrap();
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(*answer == Enqueued::Created, n != 500, "item {n}: {answer:?}");
    }
}

pub async fn reject_names_the_holder_of_a_taken_key(lab: Lab) {
    let rejecting = |n| NewTask { on_duplicate: OnDuplicate::Reject, ..keyed(n, "k") };
    lab.accept([rejecting(1)]).await;
    let rejected = async |n, state| {
        let Enqueued::Rejected(holder) = lab.offer(rejecting(n), 1).await else { panic!() };
        assert_eq!((holder.id, holder.state), (id(1), state));
    };
    rejected(2, State::Pending).await;
    let claimed = lab.take_one(1).await;
    rejected(3, State::Running).await;
    lab.finish(&claimed, done("x"), 2).await;
    rejected(4, State::Completed).await;
}

pub async fn replace_gives_a_pending_holder_the_new_payload_and_times(lab: Lab) {
    lab.accept([NewTask { priority: 5, ..keyed(1, "k") }]).await;
    let new = NewTask {
        on_duplicate: OnDuplicate::Replace,
        expires_at: Some(at(900)),
        concurrency_key: Some("tenant".into()),
        run_at: at(60),
        ..keyed(2, "k")
    };
    let before = lab.see(id(1)).await;
    let Enqueued::Replaced(holder) = lab.offer(new.clone(), 1).await else { panic!() };
    let expected = Task {
        payload: new.payload.clone(),
        run_at: new.run_at,
        expires_at: new.expires_at,
        concurrency_key: new.concurrency_key.clone(),
        ..before
    };
    assert_eq!(*holder, expected);
    assert_eq!(lab.see(id(1)).await, expected);
    assert_eq!(lab.task(id(2)).await.unwrap(), None);
    assert!(lab.take(9, 59).await.is_empty(), "the new time holds");
    assert_eq!(lab.take_one(60).await.task.payload, new.payload);
}

pub async fn replace_can_make_a_waiting_task_due(lab: Lab) {
    lab.accept([NewTask { run_at: at(500), ..keyed(1, "k") }]).await;
    let new = NewTask { on_duplicate: OnDuplicate::Replace, ..keyed(2, "k") };
    assert!(matches!(lab.offer(new, 1).await, Enqueued::Replaced(_)));
    assert_eq!(lab.take_one(1).await.task.id, id(1));
}

pub async fn replace_is_refused_once_the_holder_runs(lab: Lab) {
    let replacing = |n| NewTask { on_duplicate: OnDuplicate::Replace, ..keyed(n, "k") };
    lab.accept([keyed(1, "k")]).await;
    let claimed = lab.take_one(1).await;
    let before = lab.see(id(1)).await;
    assert_eq!(lab.offer(replacing(2), 1).await, Enqueued::Rejected(Box::new(before)));
    lab.finish(&claimed, done("x"), 2).await;
    let completed = lab.see(id(1)).await;
    assert_eq!(lab.offer(replacing(3), 3).await, Enqueued::Rejected(Box::new(completed)));
}

pub async fn the_same_id_again_is_the_same_request(lab: Lab) {
    let new = NewTask { client_id: true, ..task(1) };
    lab.accept([new.clone()]).await;
    let changed = NewTask { payload: Json::string("other"), ..new.clone() };
    let Enqueued::Existing(first) = lab.offer(changed, 1).await else { panic!() };
    assert_eq!(*first, Task::from_new(&new, at(0)));
    lab.run_one(done("x"), 2).await;
    let Enqueued::Existing(first) = lab.offer(new, 3).await else { panic!() };
    assert_eq!(first.state, State::Completed);
    assert!(lab.take(9, 9).await.is_empty());
}

pub async fn of_many_enqueues_with_one_key_at_once_one_creates(lab: Lab) {
    for round in 0..5_u128 {
        let offers: Vec<_> = (0..16_u128)
            .map(|n| {
                let lab = lab.clone();
                let new = keyed(1_000 * round + n, &format!("round-{round}"));
                tokio::spawn(async move { lab.offer(new, 0).await })
            })
            .collect();
        let mut created = 0;
        for offer in offers {
            created += usize::from(offer.await.unwrap() == Enqueued::Created);
        }
        assert_eq!(created, 1, "round {round}");
    }
    assert_eq!(lab.take(100, 1).await.len(), 5);
}

pub async fn acceptance_asks_neither_for_a_thaw_nor_for_a_worker(lab: Lab) {
    let frozen = Frozen { by: "ann".to_owned(), at: at(0), reason: "audit".to_owned() };
    lab.set(SettingChange::Freeze(frozen)).await;
    lab.pause("default", true).await;
    lab.accept([task(1), due_at(2, 9), of_kind(3, "nobody runs it")]).await;
    assert_eq!(lab.all_tasks().await.len(), 3);
}
