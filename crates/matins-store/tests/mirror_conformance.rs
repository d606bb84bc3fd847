//! The store that mirrors tasks in Redis keeps every contract of the port.

#![cfg(feature = "redis")]

#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::sync::Arc;

use matins_core::store::Store;
use matins_store::redis::Times;
use matins_testbed::Redis;

async fn open() -> (Arc<dyn Store>, ground::WithRedis) {
    let redis = Redis::shared();
    let (url, prefix) = (redis.url(), redis.prefix());
    // On a busy machine a late answer is no silence of Redis: a claim would be put off.
    let long = ground::patient().patience;
    let times = Times { background: long, watch: long, ..ground::patient() };
    let (store, ground) = ground::open_mirrored(&url, &prefix, times, 0).await;
    ground::until_mirrored(&store).await;
    (store, ground)
}

matins_conformance::suite!(open);
