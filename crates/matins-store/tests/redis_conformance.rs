//! The store with Redis in front of it keeps every contract of the port.

#![cfg(feature = "redis")]

#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::sync::Arc;

use matins_core::store::Store;
use matins_testbed::Redis;

async fn open() -> (Arc<dyn Store>, ground::WithRedis) {
    let (store, ground) = ground::open_at(Redis::shared(), ground::patient(), 0).await;
    (store, ground)
}

matins_conformance::suite!(open);
