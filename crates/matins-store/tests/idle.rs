//! What an idle store costs. A process of its own, because the whole process is measured.

#![cfg(all(feature = "sqlite", target_os = "linux"))]

use std::sync::Arc;
use std::time::Duration;

use matins_core::store::Store as _;
use matins_store::{Options, SqliteStore};

/// Processor time of this process, in ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Watching for others must cost next to nothing.
#[tokio::test]
async fn an_idle_watch_is_cheap() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("matins.db"), Options::default()).unwrap();
    let store = Arc::new(store);
    let watched = store.clone();
    let watch = tokio::spawn(async move { watched.changed().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = cpu_ticks();
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Less than 1 % of a core is less than 3.
    let used = cpu_ticks() - before;
    assert!(used <= 3, "{used} ticks in 3 s");
    watch.abort();
}
