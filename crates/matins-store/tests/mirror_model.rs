//! The store that mirrors tasks in Redis answers like the in-memory model, whatever is done to it.

#![cfg(feature = "redis")]

#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::sync::Arc;

use matins_conformance::model;
use matins_core::store::Store;
use matins_testbed::Redis;

async fn open(others: usize) -> (Arc<dyn Store>, ground::WithRedis) {
    let redis = Redis::shared();
    let (url, prefix) = (redis.url(), redis.prefix());
    let (store, ground) = ground::open_mirrored(&url, &prefix, ground::patient(), others).await;
    ground::until_mirrored(&store).await;
    (store, ground)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mirror_is_like_the_model() {
    model::compare(10, async || open(0).await).await;
}

/// Several nodes: what one has written, the next call of another knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_mirroring_nodes_are_like_one_model() {
    model::compare(8, async || open(2).await).await;
}
