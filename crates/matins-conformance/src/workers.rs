//! Workers, their leases, and what becomes of claims that nobody holds any more.

use std::sync::Arc;

use matins_core::lifecycle::Outcome;
use matins_core::store::{ClaimRequest, Extended, Settled, Types, Worker};
use matins_core::task::{Claim, Claimed, State, TaskId, WorkerId};

use crate::lab::{Lab, at, done, id, ids, loss, request, task, worker};

fn by(name: &str, max: usize, seconds: i64) -> ClaimRequest {
    ClaimRequest { worker: WorkerId(name.into()), ..request(max, seconds) }
}

async fn hire(lab: &Lab, name: &str, lease: i64) -> Worker {
    let worker = worker(name, at(lease));
    lab.register(worker.clone()).await.unwrap();
    worker
}

/// What lapsed, by name of the worker.
async fn lapsed(lab: &Lab, seconds: i64) -> Vec<(TaskId, String)> {
    let lapsed = lab.lapsed(at(seconds), 100).await.unwrap();
    lapsed.iter().map(|l| (l.claimed.task.id, l.worker.to_string())).collect()
}

pub async fn an_entry_is_all_that_was_registered(lab: Lab) {
    let full = Worker {
        draining: true,
        remote: true,
        pools: vec![("io".into(), 20), ("cpu".into(), 4)],
        types: Types::Only(Arc::new(["a".into(), "b c".into()].into())),
        ..worker("node:1:abc", at(30))
    };
    let plain = Worker { pools: Vec::new(), ..worker("a", at(20)) };
    for worker in [full.clone(), plain.clone()] {
        lab.register(worker).await.unwrap();
    }
    let lab_worker = lab.workers().await.unwrap().pop().unwrap();
    assert_eq!(&*lab_worker.id.0, "w", "by id");
    assert_eq!(lab.workers().await.unwrap(), [plain, full.clone(), lab_worker.clone()]);
    let changed = Worker { draining: false, lease_until: at(99), ..full };
    lab.register(changed.clone()).await.unwrap();
    assert_eq!(lab.workers().await.unwrap()[1], changed);
}

pub async fn a_beat_renews_lease_slots_and_draining(lab: Lab) {
    let entry = hire(&lab, "a", 30).await;
    let renewed = Worker {
        seen_at: at(10),
        lease_until: at(40),
        draining: true,
        pools: vec![("io".into(), 7)],
        types: Types::Only(Arc::new(["x".into()].into())),
        ..entry
    };
    assert!(lab.beat(&renewed).await.unwrap());
    assert_eq!(lab.workers().await.unwrap()[0], renewed);
}

pub async fn a_beat_without_an_entry_is_told_so(lab: Lab) {
    assert!(!lab.beat(&worker("never", at(30))).await.unwrap());
    let entry = hire(&lab, "gone", 30).await;
    lab.retire(&entry.id, at(1)).await.unwrap();
    assert!(!lab.beat(&entry).await.unwrap());
    assert_eq!(lab.workers().await.unwrap().len(), 1, "a beat brings no entry back");
}

pub async fn a_lapsed_lease_gives_its_claims_away_in_the_order_they_were_made(lab: Lab) {
    hire(&lab, "a", 30).await;
    hire(&lab, "b", 50).await;
    lab.accept((1..=5).map(task)).await;
    lab.take_with(by("b", 1, 1)).await;
    lab.take_with(by("a", 2, 2)).await;
    lab.take_with(by("b", 1, 3)).await;
    lab.take(1, 4).await;
    assert_eq!(lapsed(&lab, 30).await, [], "a lease stands at its end");
    let of = |n: u128, name: &str| (id(n), name.to_owned());
    assert_eq!(lapsed(&lab, 31).await, [of(2, "a"), of(3, "a")]);
    assert_eq!(lapsed(&lab, 51).await, [of(1, "b"), of(2, "a"), of(3, "a"), of(4, "b")]);
    assert_eq!(lab.lapsed(at(51), 3).await.unwrap().len(), 3);
}

pub async fn what_lapsed_is_handed_over_with_its_claim(lab: Lab) {
    hire(&lab, "a", 30).await;
    lab.accept([task(1)]).await;
    let claimed = lab.take_with(by("a", 1, 1)).await.remove(0);
    let found = lab.lapsed(at(31), 9).await.unwrap().remove(0);
    assert_eq!(found.claimed, claimed);
    assert!(!found.draining);
    assert_eq!(lab.finish(&found.claimed, loss(), 31).await, Settled::Done(State::Pending));
    let second = lab.take_one(32).await;
    assert_eq!((second.task.attempt, second.task.losses), (2, 1));
    assert_eq!(lab.finish(&claimed, done("late"), 33).await, Settled::Fenced);
}

pub async fn looking_for_lapsed_claims_changes_nothing(lab: Lab) {
    hire(&lab, "a", 30).await;
    lab.accept([task(1), task(2)]).await;
    let claimed = lab.take_with(by("a", 2, 1)).await;
    let found = lab.lapsed(at(31), 9).await.unwrap();
    assert_eq!(lab.state(id(1)).await, State::Running);
    // The worker was only slow: what it ends now counts, and the judge comes too late for it.
    assert_eq!(lab.finish(&claimed[0], done("x"), 32).await, Settled::Done(State::Completed));
    assert_eq!(lab.finish(&found[0].claimed, loss(), 32).await, Settled::Fenced);
    assert_eq!(lab.finish(&found[1].claimed, loss(), 32).await, Settled::Done(State::Pending));
    assert_eq!(lab.see(id(1)).await.losses, 0);
}

pub async fn a_beat_in_time_keeps_the_claims(lab: Lab) {
    let entry = hire(&lab, "a", 30).await;
    lab.accept([task(1)]).await;
    lab.take_with(by("a", 1, 1)).await;
    let renewed = Worker { lease_until: at(60), started_at: at(29), ..entry.clone() };
    assert!(lab.beat(&renewed).await.unwrap());
    let kept = lab.workers().await.unwrap().into_iter().find(|worker| worker.id == entry.id);
    assert_eq!(kept, Some(Worker { started_at: entry.started_at, ..renewed }));
    assert_eq!(lapsed(&lab, 60).await, []);
    assert_eq!(lapsed(&lab, 61).await.len(), 1);
}

pub async fn what_a_retired_worker_left_lapses_at_once(lab: Lab) {
    let entry = hire(&lab, "a", 900).await;
    lab.accept([task(1), task(2)]).await;
    lab.take_with(by("a", 1, 1)).await;
    lab.take_with(ClaimRequest { lease_until: Some(at(900)), ..by("a", 1, 1) }).await;
    assert!(lab.beat(&Worker { draining: true, ..entry.clone() }).await.unwrap());
    lab.retire(&entry.id, at(2)).await.unwrap();
    let found = lab.lapsed(at(2), 9).await.unwrap();
    assert_eq!(found.iter().map(|l| l.claimed.task.id).collect::<Vec<_>>(), [id(1), id(2)]);
    assert!(found.iter().all(|l| l.draining && l.worker == entry.id));
    for lapsed in found {
        assert_eq!(
            lab.finish(&lapsed.claimed, Outcome::Interrupted, 3).await,
            Settled::Done(State::Pending)
        );
    }
    assert_eq!(lapsed(&lab, 1_000).await, []);
    assert_eq!(lab.take(9, 3).await.len(), 2);
}

pub async fn retiring_a_stranger_changes_nothing(lab: Lab) {
    lab.retire(&WorkerId("never".into()), at(1)).await.unwrap();
    assert_eq!(lab.workers().await.unwrap().len(), 1);
}

async fn remote(lab: &Lab, max: usize, seconds: i64, lease: i64) -> Vec<Claimed> {
    lab.take_with(ClaimRequest { lease_until: Some(at(lease)), ..by("far", max, seconds) }).await
}

pub async fn a_claims_own_lease_lapses_by_itself(lab: Lab) {
    lab.accept((1..=3).map(task)).await;
    remote(&lab, 1, 1, 40).await;
    remote(&lab, 1, 2, 35).await;
    remote(&lab, 1, 3, 90).await;
    assert_eq!(lapsed(&lab, 35).await, []);
    assert_eq!(lapsed(&lab, 36).await, [(id(2), "far".to_owned())]);
    assert_eq!(lapsed(&lab, 41).await.len(), 2);
    assert!(!lab.lapsed(at(41), 9).await.unwrap()[0].draining);
}

pub async fn renewing_claims_tells_what_was_lost_and_what_should_end(lab: Lab) {
    lab.accept((1..=4).map(task)).await;
    let claimed = remote(&lab, 4, 1, 40).await;
    lab.finish(&claimed[1], done("x"), 2).await;
    lab.cancel_one(id(3), 2).await;
    let mut claims: Vec<Claim> = claimed.iter().map(|claimed| claimed.claim).collect();
    claims[3].token ^= 1;
    let answer = lab.extend(&claims, at(80)).await.unwrap();
    assert_eq!(answer, Extended { lost: vec![id(2), id(4)], cancel: vec![id(3)] });
    let left: Vec<_> = lapsed(&lab, 41).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, [id(4)], "a wrong token renews nothing");
    assert_eq!(lapsed(&lab, 81).await.len(), 3);
    assert_eq!(lab.extend(&[], at(80)).await.unwrap(), Extended::default());
}

pub async fn a_lapsed_claim_stands_until_it_is_judged(lab: Lab) {
    lab.accept([task(1)]).await;
    let claimed = remote(&lab, 1, 1, 40).await.remove(0);
    assert_eq!(lapsed(&lab, 50).await.len(), 1);
    assert_eq!(lab.extend(&[claimed.claim], at(90)).await.unwrap(), Extended::default());
    assert_eq!(lapsed(&lab, 50).await, []);
    lab.finish(&claimed, loss(), 91).await;
    let answer = lab.extend(&[claimed.claim], at(200)).await.unwrap();
    assert_eq!(answer.lost, [id(1)]);
}

pub async fn a_worker_hears_of_its_own_cancels_only(lab: Lab) {
    hire(&lab, "a", 900).await;
    hire(&lab, "b", 900).await;
    lab.accept((1..=4).map(task)).await;
    let of_a = lab.take_with(by("a", 3, 1)).await;
    assert_eq!(ids(&of_a), [id(1), id(2), id(3)]);
    lab.take_with(by("b", 1, 1)).await;
    let asked = async |name: &str| lab.cancel_requests(&WorkerId(name.into())).await.unwrap();
    assert_eq!(asked("a").await, []);
    for n in [4, 3, 1] {
        lab.cancel_one(id(n), 2).await;
    }
    assert_eq!(asked("a").await, [id(1), id(3)], "in the order they were claimed");
    assert_eq!(asked("b").await, [id(4)]);
    assert_eq!(asked("nobody").await, []);
    lab.finish(&of_a[0], Outcome::Cancelled, 3).await;
    assert_eq!(asked("a").await, [id(3)]);
}
