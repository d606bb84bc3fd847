//! The store with Redis in front of it answers like the in-memory model, whatever is done to it.

#![cfg(feature = "redis")]

#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use matins_conformance::model;
use matins_core::store::Store;
use matins_testbed::Redis;

use std::sync::Arc;

async fn open(others: usize) -> (Arc<dyn Store>, ground::WithRedis) {
    let (store, ground) = ground::open_at(Redis::shared(), ground::patient(), others).await;
    (store, ground)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_like_the_model() {
    model::compare(25, async || open(0).await).await;
}

/// Several nodes: what one has written, the next call of another knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_are_like_one_model() {
    model::compare(15, async || open(2).await).await;
}
