//! Ended tasks lie in a partition for each day; a day of which everything is over goes as a whole.

#![cfg(feature = "postgres")]

#[path = "ground/database.rs"]
mod database;

use std::time::Duration;

use jiff::Timestamp;
use matins_conformance::{Ground as _, lab};
use matins_core::store::{ClaimRequest, Retention, Worker};
use matins_core::task::{NewTask, State};
use matins_testbed::Postgres;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_goes_when_all_of_it_is_over() {
    let (store, ground) = database::open(0).await;
    let place = store.info().location;
    let name = place.rsplit('/').next().expect("a name").to_owned();
    let sql = |text: &str| Postgres::shared().sql(&name, text);
    let day = |text: &str| format!("{text}T12:00:00Z").parse::<Timestamp>().expect("a time");
    sql("SELECT matins.make_partitions('2026-01-01T12:00:00Z', 1)");
    let worker = Worker { ..lab::worker("w", day("2030-01-01")) };
    store.register(worker).await.expect("register");
    for (n, date) in [(1, "2026-01-01"), (2, "2026-01-02")] {
        let now = day(date);
        let tasks = (0..10).map(|k| NewTask { run_at: now, ..lab::task(n * 100 + k) });
        store.enqueue(tasks.collect(), now).await.expect("enqueue");
        let request = ClaimRequest { now, ..lab::request(10, 0) };
        let claimed = store.claim(request).await.expect("claim").claimed;
        assert_eq!(claimed.len(), 10);
        let items = claimed.iter().map(|claimed| {
            let seconds = now.as_second() - lab::at(0).as_second();
            lab::settlement(claimed, lab::done("x"), seconds)
        });
        store.settle(items.collect()).await.expect("settle");
    }
    assert_eq!(sql("SELECT count(*) FROM matins.history_20260101"), "10");
    assert_eq!(sql("SELECT count(*) FROM matins.history_20260102"), "10");
    // All tasks are over, and so is the first day; the second has twelve hours to go.
    let week = Retention { completed: Duration::from_secs(7 * 86_400), ..Retention::default() };
    let pruned = store.prune(&week, day("2026-01-09"), 100).await.expect("prune");
    assert_eq!(pruned.tasks, 20);
    assert_eq!(sql("SELECT to_regclass('matins.history_20260101') IS NULL"), "t");
    assert_eq!(sql("SELECT to_regclass('matins.history_20260102') IS NULL"), "f");
    let stats = store.stats(day("2026-01-09")).await.expect("stats");
    let completed = stats.tasks.get(&("default".into(), State::Completed));
    assert_eq!(completed.copied().unwrap_or(0), 0);
    // Days to come have their partitions.
    let ahead = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname = 'history_' ||
                 to_char(clock_timestamp() AT TIME ZONE 'UTC' + interval '1 day', 'YYYYMMDD')";
    assert_eq!(sql(ahead), "1");
    ground.inspect().await;
}
