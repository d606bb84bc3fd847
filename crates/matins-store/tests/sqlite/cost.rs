//! What a claim costs. The long ones measure; they are run by hand:
//! `cargo nextest run --release -p matins-store --run-ignored only cost`

use std::time::{Duration, Instant};

use jiff::SignedDuration;
use matins_core::dead_letter::DeadLetterFilter;
use matins_core::page::PageRequest;
use matins_core::store::{Order, Queue, Records, SettingChange, TaskFilter, TypeLimit};
use matins_core::task::{NewTask, State};

use super::bed::{Bed, at, done, ended, hopeless, task};

async fn fill(bed: &Bed, count: usize, make: impl Fn(usize) -> NewTask) {
    for begin in (0..count).step_by(10_000) {
        let end = count.min(begin + 10_000);
        bed.enqueue((begin..end).map(&make).collect(), at(0)).await.unwrap();
    }
}

async fn finish(bed: &Bed, count: usize, outcome: impl Fn() -> matins_core::lifecycle::Outcome) {
    let mut left = count;
    while left > 0 {
        let claimed = bed.claim(left.min(5_000)).await;
        assert!(!claimed.is_empty());
        left -= claimed.len();
        let items = claimed.iter().map(|claimed| ended(claimed, outcome())).collect();
        bed.settle(items).await.unwrap();
    }
}

/// The median of some claims of `max`, each given back by completing it.
async fn claim_cost(bed: &Bed, max: usize, times: usize) -> Duration {
    let mut costs = Vec::new();
    for _ in 0..times {
        let begin = Instant::now();
        let claimed = bed.claim(max).await;
        costs.push(begin.elapsed());
        assert_eq!(claimed.len(), max);
        let items = claimed.iter().map(|claimed| ended(claimed, done("1"))).collect();
        bed.settle(items).await.unwrap();
    }
    costs.sort();
    costs[costs.len() / 2]
}

/// H13, in full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a million rows"]
async fn a_million_future_tasks_hide_nothing_and_cost_nothing() {
    let bed = Bed::new();
    bed.register().await;
    let month = at(0) + SignedDuration::from_hours(30 * 24);
    fill(&bed, 1_000_000, |_| NewTask { run_at: month, priority: 100, ..task("future") }).await;
    fill(&bed, 100_000, |_| task("past")).await;
    finish(&bed, 100_000, || done("1")).await;
    fill(&bed, 100, |_| NewTask { priority: -100, ..task("due") }).await;
    // What the disk takes for any commit is not the claim's.
    let begin = Instant::now();
    bed.put_note("a", "commit").await.unwrap();
    let commit = begin.elapsed();
    let begin = Instant::now();
    let claimed = bed.claim(100).await;
    let cost = begin.elapsed();
    assert_eq!(claimed.len(), 100);
    println!("claim of 100: {cost:?}, a commit alone: {commit:?}");
    assert!(cost < commit + Duration::from_millis(5), "{cost:?}, {commit:?}");
}

/// G12: backlog, a saturated type at the head, history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two million rows"]
async fn a_claim_costs_the_same_whatever_else_there_is() {
    let bed = Bed::new();
    bed.register().await;
    fill(&bed, 10_000, |_| task("work")).await;
    let small = claim_cost(&bed, 100, 30).await;
    let limit = TypeLimit {
        kind: "saturated".into(),
        rate_limit: None,
        concurrency: Some(0),
        concurrency_key: None,
        per_key: 1,
    };
    bed.change_setting(SettingChange::Limits(vec![limit]), None).await.unwrap();
    let early = at(-3_600);
    fill(&bed, 300_000, |_| NewTask { run_at: early, ..task("saturated") }).await;
    let tenant = |n: usize| Some(format!("tenant-{}", n % 10).into());
    fill(&bed, 300_000, |n| NewTask { concurrency_key: tenant(n), run_at: early, ..task("keyed") })
        .await;
    // The first of each key goes, so that the rest of its 30 000 are in nobody's way.
    bed.claim(10).await;
    fill(&bed, 1_000_000, |_| task("work")).await;
    let large = claim_cost(&bed, 100, 30).await;
    println!("claim of 100: {small:?} with 10 thousand, {large:?} with 1.6 million in line");
    assert!(large < small * 3 + Duration::from_millis(1), "{small:?} and {large:?}");
}

/// Lists of a large store stay usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a million rows"]
async fn lists_of_a_large_store_are_quick() {
    let bed = Bed::new();
    bed.register().await;
    fill(&bed, 200_000, |_| task("dead")).await;
    let failing = std::sync::atomic::AtomicUsize::new(0);
    finish(&bed, 200_000, || {
        let n = failing.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let words = ["refused", "denied", "missing", "broken", "late"];
        hopeless(words[n % words.len()])
    })
    .await;
    fill(&bed, 1_000_000, |_| task("past")).await;
    finish(&bed, 1_000_000, || done("1")).await;
    fill(&bed, 1_000, |_| task("waiting")).await;
    let page = PageRequest::default();
    let dead = DeadLetterFilter::default();
    let tag = DeadLetterFilter { tag: Some("none".to_owned()), ..DeadLetterFilter::default() };
    let mut slow = Vec::new();
    let mut note = |what: String, begin: Instant| {
        let cost = begin.elapsed();
        println!("{what}: {cost:?}");
        if cost > Duration::from_millis(300) {
            slow.push(format!("{what}: {cost:?}"));
        }
    };
    let all = TaskFilter::default;
    for filter in [
        all(),
        TaskFilter { states: vec![State::Failed], ..all() },
        TaskFilter { states: vec![State::Pending], ..all() },
        TaskFilter { states: vec![State::Running], ..all() },
        TaskFilter { states: vec![State::Cancelled], ..all() },
        TaskFilter { kind: Some("dead".to_owned()), ..all() },
        TaskFilter { tag: Some("none".to_owned()), ..all() },
        TaskFilter { q: Some("0199".to_owned()), ..all() },
        TaskFilter { q: Some("nothing".to_owned()), ..all() },
    ] {
        let begin = Instant::now();
        bed.tasks(&filter, &page).await.unwrap();
        note(format!("{filter:?}"), begin);
    }
    for filter in [dead, tag] {
        let begin = Instant::now();
        bed.dead_letters(&filter, Order::NewestFirst, &page).await.unwrap();
        note(format!("dead letters {filter:?}"), begin);
        let begin = Instant::now();
        bed.dead_letter_groups(&filter).await.unwrap();
        note(format!("groups {filter:?}"), begin);
    }
    let begin = Instant::now();
    bed.stats(at(0)).await.unwrap();
    note("stats".to_owned(), begin);
    assert!(slow.is_empty(), "{slow:#?}");
}
