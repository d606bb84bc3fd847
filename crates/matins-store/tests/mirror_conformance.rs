//! The store that mirrors tasks in Redis keeps every contract of the port.

#![cfg(feature = "redis")]

#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::sync::Arc;

use matins_core::store::Store;
use matins_testbed::Redis;

async fn open() -> (Arc<dyn Store>, ground::WithRedis) {
    let redis = Redis::shared();
    let (url, prefix) = (redis.url(), redis.prefix());
    let (store, ground) = ground::open_mirrored(&url, &prefix, ground::patient(), 0).await;
    ground::until_mirrored(&store).await;
    (store, ground)
}

matins_conformance::suite!(open);
