//! Two processes at one file.

use std::collections::BTreeSet;
use std::time::Duration;

use matins_core::store::{
    PoolChange, PoolSetting, Queue, Records, SettingChange, Store, TypeLimit,
};
use matins_core::task::NewTask;

use super::bed::{Bed, at, done, keyed, task, worker};
use super::child::Process;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_remembered_is_trusted_after_another_has_written() {
    let (a, b) = {
        let a = Bed::new();
        let b = a.another();
        (a, b)
    };
    a.register().await;
    let mut fences = BTreeSet::new();
    for round in 0..20 {
        let kind = format!("kind-{round}");
        a.enqueue(vec![task(&kind), task("shared")], at(0)).await.unwrap();
        b.enqueue(vec![task(&kind), task("shared")], at(0)).await.unwrap();
        for (side, other) in [(&a, &b), (&b, &a)] {
            for claimed in side.claim(1).await {
                assert!(fences.insert(claimed.claim.fence), "a fence was given out twice");
                // Claimed here, ended there.
                other.end(&claimed, done("1")).await;
            }
        }
        let pause = PoolChange { paused: Some(round % 2 == 0), ..PoolChange::default() };
        let resize = PoolChange { size: Some(Some(round + 1)), ..PoolChange::default() };
        for (side, change) in [(&a, pause), (&b, resize)] {
            let change = SettingChange::Pool { name: "default".into(), change };
            side.change_setting(change, None).await.unwrap();
        }
        let expected = PoolSetting { paused: round % 2 == 0, note: None, size: Some(round + 1) };
        assert_eq!(a.settings().await.unwrap().pools["default"], expected);
        assert_eq!(b.claim(1).await.is_empty(), round % 2 == 0);
    }
    assert!(fences.iter().rev().take(2).all(|fence| *fence >= 20));
    a.assert_sound().await;
    assert_eq!(a.stats(at(0)).await.unwrap(), b.stats(at(0)).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_over_processes() {
    let a = Bed::new();
    let b = a.another();
    a.register().await;
    let limit = TypeLimit {
        kind: "one".into(),
        rate_limit: None,
        concurrency: Some(1),
        concurrency_key: None,
        per_key: 1,
    };
    a.change_setting(SettingChange::Limits(vec![limit]), None).await.unwrap();
    b.enqueue((0..4).map(|_| task("one")).collect(), at(0)).await.unwrap();
    let first = a.claim(9).await;
    assert_eq!((first.len(), b.claim(9).await.len()), (1, 0));
    b.end(&first[0], done("1")).await;
    assert_eq!((b.claim(9).await.len(), a.claim(9).await.len()), (1, 0));
    a.assert_sound().await;
}

/// F01: one key, 32 tasks at once from three stores on one file.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_with_one_key_one_is_accepted() {
    let a = Bed::new();
    let stores = [a.store.clone(), a.another().store, a.another().store];
    let rounds = 25;
    for round in 0..rounds {
        let calls: Vec<_> = (0..32)
            .map(|n| {
                let store = stores[n % stores.len()].clone();
                let task = keyed("once", &format!("round-{round}"));
                tokio::spawn(
                    async move { store.enqueue(vec![task], at(0)).await.unwrap().remove(0) },
                )
            })
            .collect();
        let mut created = 0;
        for call in calls {
            created += usize::from(call.await.unwrap() == matins_core::store::Enqueued::Created);
        }
        assert_eq!(created, 1, "round {round}");
    }
    assert_eq!(a.stats(at(0)).await.unwrap().ready["default"], rounds);
    a.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_is_noticed_and_oneself_is_not() {
    let bed = Bed::new();
    bed.enqueue(vec![task("mine")], at(0)).await.unwrap();
    let store = bed.store.clone();
    let mut noticed = tokio::spawn(async move { store.changed().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    bed.enqueue(vec![task("mine")], at(0)).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(400), &mut noticed).await;
    assert!(early.is_err(), "it noticed itself");
    let mut process = Process::start("one", &bed.path, "");
    process.expect("enqueued");
    tokio::time::timeout(Duration::from_secs(2), noticed).await.expect("noticed").unwrap();
    process.child.wait().unwrap();
    bed.register().await;
    let mut kinds: Vec<_> =
        bed.claim(9).await.iter().map(|claimed| claimed.task.kind.to_string()).collect();
    kinds.sort();
    assert_eq!(kinds, ["mine", "mine", "other"]);
}

#[tokio::test]
async fn a_new_task_of_another_process_meets_the_same_limits_and_names() {
    let a = Bed::new();
    let b = a.another();
    let tenant = |key: &str| NewTask { concurrency_key: Some(key.into()), ..task("sync") };
    a.register().await;
    a.enqueue(vec![tenant("x"), tenant("x")], at(0)).await.unwrap();
    b.enqueue(vec![tenant("x"), tenant("y")], at(0)).await.unwrap();
    b.register_as("v").await;
    let claimed = b.claim(9).await;
    assert_eq!(claimed.len(), 2, "one of each key");
    for claimed in &claimed {
        a.end(claimed, done("1")).await;
    }
    assert_eq!(a.claim(9).await.len(), 1);
    a.assert_sound().await;
}

impl Bed {
    async fn register_as(&self, name: &str) {
        self.store.register(worker(name)).await.unwrap();
    }
}
