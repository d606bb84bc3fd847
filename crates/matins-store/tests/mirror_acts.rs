//! What people do without PostgreSQL, and a Redis that is emptied while nodes mirror tasks in it.

#![cfg(feature = "redis")]

#[path = "ground/bed.rs"]
mod bed;
#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_conformance::lab::id;
use matins_core::lifecycle::Outcome;
use matins_core::page::PageRequest;
use matins_core::store::{
    Act, AuditEntry, Cancelled, ClaimRequest, Forgotten, PoolChange, Queue as _, Records as _,
    SettingChange, Settled, Store as _, StoreError,
};
use matins_core::task::State;

use bed::{Bed, Node, due, mirrored, sound, state, until};
use matins_store::postgres::PostgresStore;
use matins_testbed::Postgres;

fn act() -> Act {
    Act { who: "ann".to_owned(), reason: Some("not any more".to_owned()), at: Timestamp::now() }
}

async fn audited(store: &PostgresStore, action: &str) -> Vec<(String, Option<String>)> {
    let page = PageRequest { limit: 200, cursor: None };
    let all = store.audit(&page).await.unwrap().items;
    let ours = all.into_iter().filter(|entry| entry.action == action && entry.who == "ann");
    ours.map(|entry| (entry.target, entry.reason)).collect()
}

fn pause() -> (SettingChange, AuditEntry) {
    let change = PoolChange { paused: Some(true), note: Some("too hot".to_owned()), size: None };
    let audit = AuditEntry {
        time: Timestamp::now(),
        who: "ann".to_owned(),
        action: "pool.pause".to_owned(),
        target: "default".to_owned(),
        reason: Some("too hot".to_owned()),
    };
    (SettingChange::Pool { name: "default".into(), change }, audit)
}

/// Waiting ones, whoever accepted them, never start; running ones hear of it wherever they run. All
/// of it is in PostgreSQL and its audit log afterwards, whichever spool comes first.
#[tokio::test(flavor = "multi_thread")]
async fn who_cancels_in_the_dark_is_obeyed() {
    for first in ["runner", "canceller"] {
        let bed = Bed::new().await;
        let (runner, other) = (bed.node("runner").await, bed.node("other").await);
        runner.store.enqueue(vec![due(1), due(2)], Timestamp::now()).await.unwrap();
        mirrored(&bed, 2).await;
        runner.cut_pg().await;
        other.cut_pg().await;
        let running = runner.claim(1).await;
        assert_eq!(running[0].task.id, id(1));
        runner.store.enqueue(vec![due(3)], Timestamp::now()).await.unwrap();

        let ids = [id(1), id(2), id(3)];
        let answers = other.store.cancel(&ids, &act()).await.unwrap();
        let [Cancelled::Requested(one), Cancelled::Done(two), Cancelled::Done(three)] =
            &answers[..]
        else {
            panic!("{answers:?}");
        };
        assert!(one.cancel_requested_at.is_some() && one.attempt == 1, "{one:?}");
        assert!(two.state == State::Cancelled && three.state == State::Cancelled);
        assert_eq!((two.id, three.id), (id(2), id(3)));
        let unknown = other.store.cancel(&[id(77)], &act()).await;
        assert!(matches!(unknown, Err(StoreError::Unavailable(_))), "{unknown:?}");
        // Once more is as good as once for what runs; the others are gone from there.
        let again = other.store.cancel(&[id(1)], &act()).await.unwrap();
        assert!(matches!(again[0], Cancelled::Requested(_)), "{again:?}");

        let worker = runner.worker.lock().unwrap().clone();
        assert_eq!(runner.store.cancel_requests(&worker).await.unwrap(), [id(1)]);
        assert!(runner.claim(5).await.is_empty() && other.claim(5).await.is_empty());
        let ended = runner.settle(&running[0], Outcome::Cancelled).await;
        assert_eq!(ended, Settled::Done(State::Cancelled));
        assert_eq!(runner.store.cancel_requests(&worker).await.unwrap(), []);

        // Without the stream, in either order.
        let (one, two) = if first == "runner" { (&runner, &other) } else { (&other, &runner) };
        bed.redis.ask(&["del", "matins:journal"]);
        one.heal().await;
        two.heal().await;
        let inspector = bed.inspector().await;
        for n in 1..=3 {
            assert_eq!(state(&inspector, n).await, State::Cancelled, "{first} first, task {n}");
        }
        let attempts = async |n| inspector.attempts(id(n)).await.unwrap().len();
        assert_eq!((attempts(1).await, attempts(2).await, attempts(3).await), (1, 0, 0));
        let mut noted = audited(&inspector, "task.cancel").await;
        noted.sort();
        noted.dedup();
        let reason = Some("not any more".to_owned());
        assert_eq!(noted, ids.map(|id| (id.to_string(), reason.clone())));
        assert!(runner.claim(5).await.is_empty() && other.claim(5).await.is_empty());
        sound(&inspector).await;
    }
}

/// A pool that was stopped in the dark stands still on every node there, and afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn who_stops_a_pool_in_the_dark_is_obeyed() {
    let bed = Bed::new().await;
    let (one, two) = (bed.node("one").await, bed.node("two").await);
    for node in [&one, &two] {
        // As an engine does: what is known in an outage was asked before.
        node.store.settings().await.unwrap();
    }
    one.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
    mirrored(&bed, 1).await;
    one.cut_pg().await;
    two.cut_pg().await;
    let (change, audit) = pause();
    one.store.change_setting(change, Some(audit)).await.unwrap();
    assert!(one.store.settings().await.unwrap().pools["default"].paused);
    assert!(one.claim(5).await.is_empty() && two.claim(5).await.is_empty());
    let resume = PoolChange { paused: Some(false), note: None, size: None };
    let resume = SettingChange::Pool { name: "default".into(), change: resume };
    let refused = one.store.change_setting(resume.clone(), None).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");

    one.heal().await;
    two.heal().await;
    let inspector = bed.inspector().await;
    let pool = &inspector.settings().await.unwrap().pools["default"];
    assert!(pool.paused && pool.note.as_deref() == Some("too hot"), "{pool:?}");
    let reason = Some("too hot".to_owned());
    assert_eq!(audited(&inspector, "pool.pause").await, [("default".to_owned(), reason)]);
    assert!(two.claim(5).await.is_empty());
    one.store.change_setting(resume, None).await.unwrap();
    until("it is run", async || !two.claim(5).await.is_empty()).await;

    // In the next outage nothing is left of it.
    until("Redis has forgotten it", async || {
        bed.redis.ask(&["exists", "matins:mirror:paused"]) == "0"
    })
    .await;
    sound(&inspector).await;
}

/// Runs what there is, and counts.
async fn work(node: &Node) -> usize {
    let claimed = node.claim(5).await;
    for one in &claimed {
        assert_eq!(node.finish(one).await, Settled::Done(State::Completed));
    }
    claimed.len()
}

/// A Redis that is emptied each second is left alone, and work goes on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_redis_holds_nobody_up_for_long() {
    let bed = Bed::new().await;
    let (one, two) = (bed.node("one").await, bed.node("two").await);
    let began = Instant::now();
    let (mut n, mut done, mut flushed, mut last) = (0, 0, 0, Instant::now());
    let mut longest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(8) {
        if began.elapsed() > Duration::from_secs(flushed) {
            bed.redis.ask(&["flushall"]);
            flushed += 1;
        }
        n += 1;
        one.store.enqueue(vec![due(n)], Timestamp::now()).await.unwrap();
        let ended = work(&one).await + work(&two).await;
        if ended > 0 {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        done += ended as u128;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(longest < Duration::from_secs(4), "nothing was claimed for {longest:?}");
    until("all have run", async || {
        done += (work(&one).await + work(&two).await) as u128;
        done >= n
    })
    .await;
    assert!(bed.witness.lock().unwrap().runs.values().all(|runs| *runs == 1));
    until("tasks are mirrored again", async || one.store.mirrors() && two.store.mirrors()).await;
    sound(&bed.inspector().await).await;
}

/// A node that died holds the others up when Redis is lost as well: it might run what was there. A
/// person who knows better says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_node_is_waited_for_until_a_person_says_so() {
    let bed = Bed::new().await;
    let (dead, other) = (bed.node("dead").await, bed.node("other").await);
    assert_eq!(other.store.forget_node("dead").await.unwrap(), Forgotten::Lives);
    assert_eq!(other.store.forget_node("nobody").await.unwrap(), Forgotten::Unknown);
    dead.to_pg.set(matins_testbed::Weather::Refused);
    dead.to_redis.set(matins_testbed::Weather::Refused);
    other.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
    bed.redis.ask(&["flushall"]);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(16) {
        assert!(other.claim(1).await.is_empty());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let task = other.store.task(id(1)).await.unwrap().unwrap();
    let around = other.store.surroundings(&task, Timestamp::now()).await.unwrap();
    let (node, until_when) = around.waits_for.expect("somebody is waited for");
    assert!(&*node == "dead" && until_when > Timestamp::now(), "{node} until {until_when}");
    assert_eq!(other.store.forget_node("dead").await.unwrap(), Forgotten::Done);
    let around = other.store.surroundings(&task, Timestamp::now()).await.unwrap();
    assert_eq!(around.waits_for, None);
    until("it is run", async || !other.claim(1).await.is_empty()).await;
}

/// What hints led to is claimed when the question for the rest fails: whoever asks again gets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_fails_halfway_loses_nothing() {
    for mirrors in [false, true] {
        let bed = Bed::new().await;
        let node = match mirrors {
            true => bed.node("node").await,
            false => bed.node_with("node", None).await,
        };
        node.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
        until("it is known in Redis", async || {
            bed.redis.ask(&["zcard", "matins:task:pending:default"]) == "1"
                && bed.redis.ask(&["hexists", "matins:task:known", "default"]) == "1"
        })
        .await;
        let database = bed.url.rsplit('/').next().unwrap();
        let rename = |from: &str, to: &str| {
            let sql = format!("ALTER FUNCTION matins.{from} RENAME TO {to}");
            Postgres::shared().sql(database, &sql);
        };
        rename("claim", "claim_gone");
        let request = node.request(5);
        let failed = node.store.claim(request.clone()).await;
        assert!(failed.is_err(), "{failed:?}");
        assert_eq!(bed.redis.ask(&["zcard", "matins:task:pending:default"]), "0", "it was led to");
        rename("claim_gone", "claim");
        let again = ClaimRequest { repeated: true, ..request };
        let claimed = node.store.claim(again).await.unwrap().claimed;
        assert_eq!(claimed.iter().map(|one| one.task.id).collect::<Vec<_>>(), [id(1)]);
    }
}
