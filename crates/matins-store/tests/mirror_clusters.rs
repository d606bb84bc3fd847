//! Whole tasks in a Redis that is several: a cluster, and a pair under Sentinels that fails over.

#![cfg(feature = "redis")]

#[path = "ground/bed.rs"]
mod bed;
#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use jiff::Timestamp;
use matins_core::store::{Queue as _, Settled, Store as _};
use matins_core::task::State;
use matins_testbed::{Redis, RedisCluster, RedisSentinel};

use bed::{Bed, DURABLE, Node, due, sound, state, until};

/// Under which generation a server has how many entries.
fn mirrored_on(server: &Redis) -> Option<(u64, usize)> {
    let found = server.try_ask(&["--raw", "keys", "*mirror:index"]).ok()?;
    // One that is down, or has the slots of other keys, has none.
    let index = server.try_ask(&["--raw", "hvals", found.lines().next()?]).ok()?;
    let generation = index.lines().next()?.split('\t').nth(1)?.parse().ok()?;
    Some((generation, index.lines().count()))
}

/// Two tasks that PostgreSQL had accepted, and one that comes when it is away.
async fn works_on(bed: &Bed, node: &Node) {
    node.cut_pg().await;
    node.store.enqueue(vec![due(3)], Timestamp::now()).await.expect("journalled");
    let mut done = 0;
    until("all three have run", async || {
        for claimed in node.claim(5).await {
            assert_eq!(node.finish(&claimed).await, Settled::Done(State::Completed));
            done += 1;
        }
        done == 3
    })
    .await;
    node.heal().await;
    let inspector = bed.inspector().await;
    for n in 1..=3 {
        assert_eq!(state(&inspector, n).await, State::Completed);
    }
    assert!(bed.witness.lock().unwrap().runs.values().all(|runs| *runs == 1));
    sound(&inspector).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_works_on_from_a_cluster() {
    let cluster = RedisCluster::start(&DURABLE);
    let bed = Bed { instead: Some(cluster.url()), ..Bed::new().await };
    let node = bed.node("node").await;
    node.store.enqueue(vec![due(1), due(2)], Timestamp::now()).await.unwrap();
    let mirrored = || cluster.nodes.iter().find_map(mirrored_on);
    until("they are mirrored", async || mirrored().is_some_and(|(_, n)| n == 2)).await;
    works_on(&bed, &node).await;
}

/// The new master is another Redis: all agree on it and mirror anew, and then it serves as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_works_on_after_a_failover() {
    let sentinels = RedisSentinel::start(&DURABLE);
    let bed = Bed { instead: Some(sentinels.url()), ..Bed::new().await };
    let node = bed.node("node").await;
    node.store.enqueue(vec![due(1), due(2)], Timestamp::now()).await.unwrap();
    let [first, second] = &sentinels.servers[..] else { panic!("a pair") };
    until("they are mirrored", async || mirrored_on(first).is_some_and(|(_, n)| n == 2)).await;
    let (before, _) = mirrored_on(first).expect("mirrored");
    first.kill();
    until("they are mirrored anew", async || {
        let _ = node.store.ping().await;
        mirrored_on(second).is_some_and(|(generation, n)| generation > before && n == 2)
    })
    .await;
    works_on(&bed, &node).await;
}
