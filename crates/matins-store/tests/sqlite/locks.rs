//! Other people's locks, and commits that are shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use matins_core::store::{Queue, Records, Store, StoreError};
use matins_store::Options;

use super::bed::{Bed, at, done, task};

/// Commits in the write-ahead log, counted by its frames that end one.
fn commits(path: &std::path::Path) -> usize {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    let log = std::fs::read(name).unwrap();
    let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    let salt = &log[16..24];
    let frames = log[32..].chunks_exact(24 + page);
    frames.take_while(|f| f[8..16] == *salt).filter(|f| f[4..8] != [0; 4]).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_together_are_committed_together() {
    let bed = Bed::new();
    bed.enqueue(vec![task("first")], at(0)).await.unwrap();
    let before = commits(&bed.path);
    let other = bed.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let store = bed.store.clone();
            tokio::spawn(async move { store.enqueue(vec![task("many")], at(0)).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    other.execute_batch("COMMIT").unwrap();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let shared = commits(&bed.path) - before;
    assert!((1..=3).contains(&shared), "200 calls, {shared} commits");
    bed.enqueue(vec![task("alone")], at(0)).await.unwrap();
    assert_eq!(commits(&bed.path) - before, shared + 1, "nobody waits for company");
    bed.assert_sound().await;
}

/// H15: a second process holds the write lock again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_neighbour_delays_and_nothing_is_lost() {
    let bed = Bed::new();
    bed.register().await;
    let stop = Arc::new(AtomicBool::new(false));
    let neighbour = {
        let (conn, stop) = (bed.connect(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                conn.execute_batch("BEGIN IMMEDIATE").unwrap();
                std::thread::sleep(Duration::from_millis(1_200));
                conn.execute_batch("COMMIT").unwrap();
                std::thread::sleep(Duration::from_millis(150));
            }
        })
    };
    let begin = Instant::now();
    let mut accepted = 0;
    while begin.elapsed() < Duration::from_secs(4) {
        accepted += bed.enqueue(vec![task("a"), task("b")], at(0)).await.unwrap().len();
        for claimed in bed.claim(1).await {
            bed.end(&claimed, done("1")).await;
        }
        // Whoever reads waits for nobody.
        let asked = Instant::now();
        bed.stats(at(0)).await.unwrap();
        bed.ping().await.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    neighbour.join().unwrap();
    let stats = bed.stats(at(0)).await.unwrap();
    assert_eq!(stats.tasks.values().sum::<u64>(), accepted as u64);
    bed.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_ends_and_the_store_goes_on_afterwards() {
    let bed = Bed::with(Options { patience: Duration::from_millis(300), ..Options::default() });
    bed.enqueue(vec![task("before")], at(0)).await.unwrap();
    let other = bed.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begin = Instant::now();
    let refused = bed.enqueue(vec![task("refused")], at(0)).await;
    assert!(matches!(&refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    assert!((250..3_000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    bed.ping().await.unwrap();
    assert!(bed.task(task("x").id).await.unwrap().is_none(), "reads do not wait");
    other.execute_batch("COMMIT").unwrap();
    bed.enqueue(vec![task("after")], at(0)).await.unwrap();
    assert_eq!(super::crash::all_tasks(&bed).await.len(), 2, "what was refused was not written");
    bed.assert_sound().await;
}

/// A claim whose caller has gone away is nobody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_vanished_caller_was_given_goes_back_in_line() {
    let bed = Bed::new();
    bed.register().await;
    bed.enqueue((0..100).map(|_| task("a")).collect(), at(0)).await.unwrap();
    for pause in 0..60 {
        let claim = bed.claim(1);
        let patience = Duration::from_micros(pause * 20);
        // Dropped before, during or after the commit.
        if let Ok(claimed) = tokio::time::timeout(patience, claim).await {
            for claimed in claimed {
                bed.end(&claimed, done("1")).await;
            }
        }
    }
    // Everything before this has been settled by the time it is answered.
    bed.enqueue(vec![task("b")], at(0)).await.unwrap();
    let workers = bed.cancel_requests(&matins_core::task::WorkerId("w".into())).await.unwrap();
    assert_eq!(workers, []);
    let running = bed.stats(at(0)).await.unwrap().tasks;
    let running = running.iter().filter(|((_, s), _)| *s == matins_core::State::Running).count();
    assert_eq!(running, 0, "a claim was left to nobody");
    bed.assert_sound().await;
}
