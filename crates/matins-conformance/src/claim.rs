//! Handing out: order, what is passed over, and that nothing is handed out twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::lifecycle::Outcome;
use matins_core::store::{ClaimRequest, Frozen, LookRequest, SettingChange, TypeLimit, Types};
use matins_core::task::{NewTask, State, TaskId, WorkerId};

use crate::lab::{
    Lab, at, done, due_at, failure, id, ids, in_pool, keyed, limit, loss, of_kind, request,
    schedule, task, with_concurrency_key, worker,
};

fn only(kinds: &[&str]) -> Types {
    Types::Only(Arc::new(kinds.iter().map(|kind| (*kind).into()).collect()))
}

fn numbers(taken: &[TaskId]) -> Vec<u128> {
    taken.iter().map(|id| id.0.as_u128() & u128::from(u64::MAX)).collect()
}

pub async fn a_claim_starts_an_attempt(lab: Lab) {
    lab.accept([task(1)]).await;
    let before = lab.see(id(1)).await;
    let claimed = lab.take_one(7).await;
    assert_eq!(claimed.claim.id, id(1));
    assert_eq!(claimed.claim.token, 0x5eed);
    let mut expected = before;
    expected.state = State::Running;
    expected.attempt = 1;
    expected.started_at = Some(at(7));
    assert_eq!(claimed.task, expected);
    assert_eq!(lab.see(id(1)).await, expected);
    let attempts = lab.attempts(id(1)).await.unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].number, &*attempts[0].worker), (1, "w"));
    assert_eq!((attempts[0].started_at, attempts[0].finished_at), (at(7), None));
    assert_eq!((attempts[0].outcome, &attempts[0].error), (None, &None));
}

pub async fn what_was_due_first_goes_first(lab: Lab) {
    lab.accept([due_at(1, 30), due_at(2, 10), due_at(3, 20), due_at(4, 10)]).await;
    assert_eq!(numbers(&ids(&lab.take(9, 60).await)), [2, 4, 3, 1]);
}

pub async fn equals_go_in_the_order_they_were_accepted(lab: Lab) {
    let shuffled = [5, 3, 9, 1, 7, 2];
    lab.accept(shuffled.map(task)).await;
    assert_eq!(numbers(&ids(&lab.take(9, 1).await)), shuffled);
}

pub async fn a_step_of_priority_is_worth_a_minute(lab: Lab) {
    let at_priority = |n, seconds, priority| NewTask { priority, ..due_at(n, seconds) };
    lab.accept([
        at_priority(1, 0, 0),
        at_priority(2, 59, 1),
        at_priority(3, 61, 1),
        at_priority(4, 60, 1),
        at_priority(5, 100, -1),
        at_priority(6, 100, 100),
    ])
    .await;
    assert_eq!(numbers(&ids(&lab.take(9, 200).await)), [6, 2, 1, 4, 3, 5]);
}

pub async fn nothing_is_handed_out_before_it_is_due(lab: Lab) {
    let urgent = NewTask { priority: 100, ..due_at(1, 50) };
    lab.accept([urgent, due_at(2, 40), task(3)]).await;
    assert_eq!(numbers(&ids(&lab.take(9, 39).await)), [3]);
    assert_eq!(numbers(&ids(&lab.take(9, 40).await)), [2]);
    assert_eq!(numbers(&ids(&lab.take(9, 49).await)), []);
    assert_eq!(numbers(&ids(&lab.take(9, 50).await)), [1]);
}

pub async fn the_answer_says_when_to_ask_again(lab: Lab) {
    assert_eq!(lab.claim(request(9, 0)).await.unwrap().next_at, None);
    lab.accept([due_at(1, 40), due_at(2, 20)]).await;
    let mut now = at(0);
    let mut asked = 0;
    while now < at(20) {
        let batch = lab.claim(ClaimRequest { now, ..request(9, 0) }).await.unwrap();
        assert!(batch.claimed.is_empty());
        let next = batch.next_at.expect("something will be due");
        assert!(now < next && next <= at(20), "{next} after {now}");
        now = next;
        asked += 1;
        assert!(asked < 100, "asked too often");
    }
    assert_eq!(lab.take(9, 20).await.len(), 1);
}

pub async fn no_more_than_asked_for(lab: Lab) {
    lab.accept((1..=10).map(task)).await;
    assert_eq!(lab.take(0, 1).await, []);
    assert_eq!(numbers(&ids(&lab.take(3, 1).await)), [1, 2, 3]);
    assert_eq!(numbers(&ids(&lab.take(1, 1).await)), [4]);
    assert_eq!(lab.take(100, 1).await.len(), 6);
    assert_eq!(lab.take(100, 1).await, []);
}

pub async fn fences_grow_over_all_claims(lab: Lab) {
    let mut last = None;
    for round in 0..4 {
        lab.accept((0..3).map(|n| task(round * 10 + n))).await;
        for claimed in lab.take(9, 1).await {
            assert!(Some(claimed.claim.fence) > last, "{claimed:?} after {last:?}");
            last = Some(claimed.claim.fence);
            lab.finish(&claimed, done("x"), 1).await;
        }
    }
}

pub async fn of_many_claims_at_once_each_task_goes_to_one(lab: Lab) {
    lab.accept((0..60).map(task)).await;
    let claims: Vec<_> = (0..12_u64)
        .map(|token| {
            let lab = lab.clone();
            tokio::spawn(
                async move { lab.take_with(ClaimRequest { token, ..request(8, 1) }).await },
            )
        })
        .collect();
    let mut taken = Vec::new();
    for claim in claims {
        taken.extend(ids(&claim.await.unwrap()));
    }
    assert_eq!(taken.len(), 60);
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), 60);
}

pub async fn a_pool_is_claimed_by_itself(lab: Lab) {
    lab.accept([in_pool(1, "io"), in_pool(2, "cpu"), in_pool(3, "io")]).await;
    let of = |pool: &str| ClaimRequest { pool: Some(pool.into()), ..request(9, 1) };
    assert_eq!(numbers(&ids(&lab.take_with(of("nothing there")).await)), []);
    assert_eq!(numbers(&ids(&lab.take_with(of("io")).await)), [1, 3]);
    assert_eq!(numbers(&ids(&lab.take_with(of("cpu")).await)), [2]);
}

pub async fn any_pool_means_all_in_one_line(lab: Lab) {
    let due = |n, pool: &str, seconds| NewTask { run_at: at(seconds), ..in_pool(n, pool) };
    lab.accept([due(1, "io", 3), due(2, "cpu", 1), due(3, "io", 2), due(4, "new", 0)]).await;
    assert_eq!(numbers(&ids(&lab.take(9, 5).await)), [4, 2, 3, 1]);
}

pub async fn only_types_that_the_worker_runs(lab: Lab) {
    lab.accept([of_kind(1, "a"), of_kind(2, "b"), of_kind(3, "c"), of_kind(4, "a")]).await;
    let of = |kinds: &[&str]| ClaimRequest { types: only(kinds), ..request(9, 1) };
    assert_eq!(lab.take_with(of(&[])).await, []);
    assert_eq!(lab.take_with(of(&["unknown"])).await, []);
    assert_eq!(numbers(&ids(&lab.take_with(of(&["c", "a"])).await)), [1, 3, 4]);
    assert_eq!(lab.state(id(2)).await, State::Pending);
    assert_eq!(numbers(&ids(&lab.take(9, 1).await)), [2]);
}

pub async fn a_backlog_of_another_type_hides_nothing(lab: Lab) {
    lab.accept((0..300).map(|n| of_kind(n, "foreign"))).await;
    lab.accept([NewTask { run_at: at(5), ..of_kind(1_000, "mine") }]).await;
    let mine = ClaimRequest { types: only(&["mine"]), ..request(1, 6) };
    assert_eq!(numbers(&ids(&lab.take_with(mine).await)), [1_000]);
}

pub async fn named_tasks_only_when_asked_by_name(lab: Lab) {
    lab.accept([task(1), task(2), due_at(3, 90), task(4)]).await;
    let named = |names: &[u128]| ClaimRequest {
        ids: Some(names.iter().map(|n| id(*n)).collect()),
        ..request(9, 1)
    };
    assert_eq!(lab.take_with(named(&[])).await, []);
    assert_eq!(numbers(&ids(&lab.take_with(named(&[4, 3, 2, 99])).await)), [2, 4]);
    assert_eq!(numbers(&ids(&lab.take(9, 1).await)), [1]);
}

pub async fn a_paused_pool_waits_and_others_do_not(lab: Lab) {
    lab.accept([in_pool(1, "io"), in_pool(2, "cpu")]).await;
    lab.pause("io", true).await;
    assert_eq!(numbers(&ids(&lab.take(9, 1).await)), [2]);
    let io = ClaimRequest { pool: Some("io".into()), ..request(9, 1) };
    assert_eq!(lab.take_with(io.clone()).await, []);
    lab.pause("io", false).await;
    assert_eq!(numbers(&ids(&lab.take_with(io).await)), [1]);
}

pub async fn a_frozen_store_hands_out_nothing(lab: Lab) {
    lab.accept([task(1), NewTask { expires_at: Some(at(1)), ..task(2) }]).await;
    let frozen = Frozen { by: "ann".to_owned(), at: at(1), reason: "audit".to_owned() };
    lab.set(SettingChange::Freeze(frozen)).await;
    assert_eq!(lab.take(9, 2).await, []);
    assert_eq!(lab.state(id(2)).await, State::Pending, "not even ended");
    lab.set(SettingChange::Thaw).await;
    assert_eq!(numbers(&ids(&lab.take(9, 2).await)), [1]);
}

pub async fn what_has_expired_is_cancelled_instead_of_run(lab: Lab) {
    let expiring = |n, seconds| NewTask { expires_at: Some(at(seconds)), ..task(n) };
    lab.accept([expiring(1, 10), expiring(2, 11), task(3)]).await;
    assert_eq!(numbers(&ids(&lab.take(9, 10).await)), [2, 3]);
    let expired = lab.see(id(1)).await;
    assert_eq!(expired.state, State::Cancelled);
    assert_eq!(expired.cancel_reason.as_deref(), Some("expired"));
    assert_eq!(expired.finished_at, Some(at(10)));
    assert_eq!((expired.attempt, expired.started_at), (0, None));
}

pub async fn expired_tasks_use_up_no_place_in_the_batch(lab: Lab) {
    lab.accept((0..5).map(|n| NewTask { expires_at: Some(at(1)), ..task(n) })).await;
    lab.accept([task(10), task(11)]).await;
    assert_eq!(numbers(&ids(&lab.take(1, 2).await)), [10]);
}

pub async fn a_running_task_does_not_expire(lab: Lab) {
    lab.accept([NewTask { expires_at: Some(at(10)), ..task(1) }]).await;
    let claimed = lab.take_one(9).await;
    assert_eq!(lab.expire(at(20), 9).await.unwrap(), 0);
    lab.finish(&claimed, done("x"), 30).await;
    assert_eq!(lab.state(id(1)).await, State::Completed);
}

pub async fn a_worker_without_a_standing_lease_gets_nothing(lab: Lab) {
    lab.accept([task(1)]).await;
    let by = |name: &str| ClaimRequest { worker: WorkerId(name.into()), ..request(9, 10) };
    assert_eq!(lab.take_with(by("unknown")).await, []);
    lab.register(worker("late", at(9))).await.unwrap();
    assert_eq!(lab.take_with(by("late")).await, []);
    lab.register(worker("gone", at(99))).await.unwrap();
    lab.retire(&WorkerId("gone".into()), at(5)).await.unwrap();
    assert_eq!(lab.take_with(by("gone")).await, []);
    assert_eq!(lab.state(id(1)).await, State::Pending);
    lab.register(worker("just", at(10))).await.unwrap();
    assert_eq!(lab.take_with(by("just")).await.len(), 1);
}

pub async fn a_claim_with_its_own_lease_needs_no_entry(lab: Lab) {
    lab.accept([task(1)]).await;
    let remote = ClaimRequest {
        worker: WorkerId("remote".into()),
        lease_until: Some(at(40)),
        ..request(9, 10)
    };
    assert_eq!(numbers(&ids(&lab.take_with(remote).await)), [1]);
    assert_eq!(&*lab.attempts(id(1)).await.unwrap()[0].worker, "remote");
}

pub async fn a_type_runs_no_more_than_its_concurrency(lab: Lab) {
    lab.set_limit(TypeLimit { concurrency: Some(2), ..limit("sync") }).await;
    lab.accept([task(1), in_pool(2, "io"), task(3), in_pool(4, "io"), of_kind(5, "other")]).await;
    let first = lab.take(9, 1).await;
    assert_eq!(numbers(&ids(&first)), [1, 2, 5], "over all pools, others unhindered");
    assert_eq!(lab.take(9, 1).await, []);
    lab.finish(&first[0], failure("x"), 2).await;
    assert_eq!(numbers(&ids(&lab.take(9, 2).await)), [3]);
    lab.finish(&first[1], done("x"), 3).await;
    assert_eq!(numbers(&ids(&lab.take(9, 3).await)), [4]);
}

pub async fn a_raised_concurrency_lets_more_run(lab: Lab) {
    let most = |n| TypeLimit { concurrency: n, ..limit("sync") };
    lab.set_limit(most(Some(1))).await;
    lab.accept((1..=5).map(task)).await;
    assert_eq!(lab.take(9, 1).await.len(), 1);
    lab.set_limit(most(Some(3))).await;
    assert_eq!(lab.take(9, 1).await.len(), 2);
    lab.set_limit(most(None)).await;
    assert_eq!(lab.take(9, 1).await.len(), 2);
}

pub async fn a_type_starts_no_faster_than_its_rate(lab: Lab) {
    let rate = Some("3/s".parse().unwrap());
    lab.set_limit(TypeLimit { rate_limit: rate, ..limit("sync") }).await;
    lab.accept((1..=20).map(task)).await;
    lab.accept([of_kind(100, "other")]).await;
    let mut started: Vec<Timestamp> = Vec::new();
    let mut now = at(0);
    while now < at(4) {
        let batch = lab.claim(ClaimRequest { now, ..request(50, 0) }).await.unwrap();
        let of_type = batch.claimed.iter().filter(|claimed| &*claimed.task.kind == "sync");
        started.extend(of_type.map(|_| now));
        let next = batch.next_at.expect("the rate opens again");
        assert!(next > now);
        now = next;
    }
    assert_eq!(lab.state(id(100)).await, State::Running, "others unhindered");
    let last_start = started.last().copied();
    assert!(last_start > Some(at(3)), "{started:?}");
    for (n, first) in started.iter().enumerate() {
        let within = started[n..].iter().filter(|t| first.duration_until(**t).as_millis() < 1_000);
        assert!(within.count() <= 6, "a burst and the long run: {started:?}");
    }
    assert!((12..=15).contains(&started.len()), "3 a second for 4 s, and a burst: {started:?}");
}

pub async fn what_is_not_started_uses_up_no_rate(lab: Lab) {
    let rate = Some("1/h".parse().unwrap());
    lab.set_limit(TypeLimit { rate_limit: rate, ..limit("sync") }).await;
    lab.accept((0..3).map(|n| NewTask { expires_at: Some(at(1)), ..task(n) })).await;
    lab.accept([task(9)]).await;
    assert_eq!(numbers(&ids(&lab.take(9, 1).await)), [9]);
}

pub async fn one_task_of_a_concurrency_key_runs_at_a_time(lab: Lab) {
    lab.accept([
        with_concurrency_key(1, "a"),
        with_concurrency_key(2, "a"),
        with_concurrency_key(3, "b"),
        NewTask { kind: "other".into(), ..with_concurrency_key(4, "a") },
        NewTask { pool: "io".into(), ..with_concurrency_key(5, "b") },
    ])
    .await;
    let first = lab.take(9, 1).await;
    assert_eq!(numbers(&ids(&first)), [1, 3, 4], "per type, over all pools");
    assert_eq!(lab.take(9, 1).await, []);
    lab.finish(&first[1], done("x"), 2).await;
    assert_eq!(numbers(&ids(&lab.take(9, 2).await)), [5]);
    lab.finish(&first[0], failure("x"), 3).await;
    assert_eq!(numbers(&ids(&lab.take(9, 3).await)), [2]);
    assert_eq!(lab.take(9, 500).await, [], "its own retry waits as well");
}

pub async fn per_key_many_of_a_concurrency_key_run(lab: Lab) {
    lab.set_limit(TypeLimit { per_key: 3, ..limit("sync") }).await;
    lab.accept((1..=5).map(|n| with_concurrency_key(n, "a"))).await;
    let first = lab.take(9, 1).await;
    assert_eq!(numbers(&ids(&first)), [1, 2, 3]);
    lab.finish(&first[1], done("x"), 2).await;
    assert_eq!(numbers(&ids(&lab.take(9, 2).await)), [4]);
    lab.set_limit(TypeLimit { per_key: 4, ..limit("sync") }).await;
    assert_eq!(numbers(&ids(&lab.take(9, 2).await)), [5]);
}

pub async fn a_cancelled_waiter_of_a_key_makes_way(lab: Lab) {
    lab.accept((1..=3).map(|n| with_concurrency_key(n, "a"))).await;
    lab.cancel_one(id(1), 1).await;
    let claimed = lab.take(9, 2).await;
    assert_eq!(numbers(&ids(&claimed)), [2]);
    lab.cancel_one(id(3), 2).await;
    lab.finish(&claimed[0], done("x"), 3).await;
    assert_eq!(lab.take(9, 3).await, []);
}

pub async fn a_task_of_a_key_in_a_paused_pool_hinders_nobody(lab: Lab) {
    lab.accept([NewTask { pool: "io".into(), ..with_concurrency_key(1, "a") }]).await;
    lab.accept([with_concurrency_key(2, "a")]).await;
    lab.pause("io", true).await;
    assert_eq!(numbers(&ids(&lab.take(9, 1).await)), [2]);
}

pub async fn concurrency_keys_take_turns(lab: Lab) {
    lab.accept((0..6).map(|n| with_concurrency_key(n, "a"))).await;
    let later = |n, key: &str| NewTask { run_at: at(1), ..with_concurrency_key(n, key) };
    lab.accept((10..13).map(|n| later(n, "b"))).await;
    lab.accept((20..22).map(|n| later(n, "c"))).await;
    let mut order = Vec::new();
    for step in 0..9 {
        let claimed = lab.take_one(10 + 2 * step).await;
        order.push(claimed.task.concurrency_key.clone().unwrap().to_string());
        lab.finish(&claimed, done("x"), 11 + 2 * step).await;
    }
    assert_eq!(order.concat(), "abcabcaba");
}

pub async fn a_key_with_room_waits_for_no_turn(lab: Lab) {
    lab.set_limit(TypeLimit { per_key: 2, ..limit("sync") }).await;
    lab.accept([with_concurrency_key(1, "a"), with_concurrency_key(2, "a")]).await;
    lab.accept([NewTask { run_at: at(1), ..with_concurrency_key(3, "b") }]).await;
    let first = lab.take_one(5).await;
    lab.finish(&first, done("x"), 6).await;
    assert_eq!(lab.take_one(7).await.task.id, id(2), "the key was not saturated");
}

pub async fn a_backlog_of_one_key_hides_nothing(lab: Lab) {
    lab.accept((0..300).map(|n| with_concurrency_key(n, "busy"))).await;
    lab.accept([NewTask { run_at: at(1), ..with_concurrency_key(1_000, "idle") }]).await;
    lab.accept([due_at(1_001, 1)]).await;
    assert_eq!(numbers(&ids(&lab.take(3, 2).await)), [0, 1_000, 1_001]);
}

/// Claims what is foremost and loses it.
async fn lose(lab: &Lab, n: u128, seconds: i64) {
    let named = ClaimRequest { ids: Some(vec![id(n)]), ..request(1, seconds) };
    let claimed = lab.take_with(named).await.remove(0);
    lab.finish(&claimed, loss(), seconds).await;
}

pub async fn tasks_that_lost_two_workers_run_alone(lab: Lab) {
    lab.accept((1..=4).map(task)).await;
    for n in 1..=3 {
        lose(&lab, n, 1).await;
        if n < 3 {
            lose(&lab, n, 2).await;
        }
    }
    assert!(lab.see(id(1)).await.in_quarantine() && lab.see(id(2)).await.in_quarantine());
    let first = lab.take(9, 100).await;
    assert_eq!(numbers(&ids(&first)), [4, 3, 1], "one of the two, and everybody else");
    assert_eq!(lab.take(9, 100).await, []);
    lab.finish(&first[2], done("x"), 101).await;
    assert_eq!(numbers(&ids(&lab.take(9, 101).await)), [2]);
}

pub async fn a_retried_task_gets_the_next_number_and_a_later_fence(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    let first = lab.take_one(1).await;
    lab.finish(&first, failure("x"), 2).await;
    assert_eq!(lab.take(9, 61).await, []);
    let second = lab.take_one(62).await;
    assert_eq!((second.task.attempt, second.task.retries), (2, 1));
    assert!(second.claim.fence > first.claim.fence);
    assert_eq!(second.task.started_at, Some(at(62)));
    let snoozed = Outcome::Snoozed { at: at(70) };
    lab.finish(&second, snoozed, 63).await;
    assert_eq!(lab.take_one(70).await.task.attempt, 3);
}

pub async fn a_claim_whose_answer_was_lost_can_be_had_again(lab: Lab) {
    lab.accept((1..=5).map(task)).await;
    let asked = ClaimRequest { token: 77, ..request(3, 1) };
    let claimed = lab.take_with(asked.clone()).await;
    lab.finish(&claimed[0], done("x"), 2).await;
    let frozen = Frozen { by: "ann".to_owned(), at: at(2), reason: "audit".to_owned() };
    lab.set(SettingChange::Freeze(frozen)).await;
    let again = ClaimRequest { repeated: true, ..asked.clone() };
    assert_eq!(lab.take_with(again.clone()).await, claimed[1..], "what still stands");
    let fenced: Vec<_> = claimed[1..].iter().map(|claimed| claimed.claim.fence).collect();
    lab.set(SettingChange::Thaw).await;
    for claimed in &claimed[1..] {
        lab.finish(claimed, done("x"), 3).await;
    }
    let fresh = lab.take_with(again).await;
    assert_eq!(numbers(&ids(&fresh)), [4, 5], "nothing stands: a claim as ever");
    assert!(fresh.iter().all(|claimed| !fenced.contains(&claimed.claim.fence)));
    let other = ClaimRequest { repeated: true, token: 78, ..asked };
    assert_eq!(lab.take_with(other).await, [], "another call's claims are not its own");
}

pub async fn a_lease_may_be_short(lab: Lab) {
    let until = at(1) + Duration::from_millis(1);
    lab.register(worker("brief", until)).await.unwrap();
    lab.accept([task(1)]).await;
    let by = ClaimRequest { worker: WorkerId("brief".into()), now: until, ..request(1, 1) };
    assert_eq!(lab.take_with(by).await.len(), 1);
}

/// What those who wait go by between wake-ups: too much or too early is no harm.
pub async fn a_look_never_says_too_little(lab: Lab) {
    let look = async |seconds: i64| {
        let pools = vec!["default".into(), "io".into()];
        let (types, now) = (Types::Any, at(seconds));
        let request = LookRequest { pools, types, now, upkeep: Some(now) };
        lab.look(&request).await.unwrap()
    };
    let later = NewTask { pool: "io".into(), ..due_at(2, 60) };
    let short = NewTask { expires_at: Some(at(100)), ..due_at(3, 90) };
    lab.accept([task(1), later, short]).await;
    lab.add_schedule(&schedule("nightly", 30)).await;
    let early = look(1).await;
    assert!(early.pools.contains(&"default".into()), "{early:?}");
    let comes = early.later.is_some_and(|due| due <= at(60));
    assert!(comes || early.pools.contains(&"io".into()), "{early:?}");
    assert!(early.schedules.is_some_and(|due| due <= at(30)), "{early:?}");
    let due = look(60).await;
    assert!(due.pools.contains(&"io".into()), "{due:?}");
    lab.take_with(ClaimRequest { lease_until: Some(at(70)), ..request(1, 61) }).await;
    assert!(look(71).await.lapsed, "the claim's own lease is over");
    assert!(look(100).await.expired);
}
