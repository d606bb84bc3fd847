//! Every contract of the port is kept while Redis is killed and comes back empty all the time.

#![cfg(feature = "redis")]

#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use matins_core::store::Store;
use matins_store::redis::Times;
use matins_testbed::Redis;

/// A server that somebody kills a few times a second.
static UNSTEADY: LazyLock<Arc<Mutex<Redis>>> = LazyLock::new(|| {
    let redis = Arc::new(Mutex::new(Redis::start(&[])));
    let victim = redis.clone();
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_millis(300));
            let mut redis = victim.lock().expect("no panic holds it");
            redis.kill();
            thread::sleep(Duration::from_millis(50));
            redis.start_again();
        }
    });
    redis
});

async fn open() -> (Arc<dyn Store>, ground::WithRedis) {
    let (url, prefix) = {
        let redis = UNSTEADY.lock().expect("no panic holds it");
        (redis.url(), redis.prefix())
    };
    let times = Times { retry: Duration::from_millis(20), ..ground::patient() };
    let (store, ground) = ground::open_with(&url, &prefix, times, 0).await;
    (store, ground)
}

matins_conformance::suite!(open);
