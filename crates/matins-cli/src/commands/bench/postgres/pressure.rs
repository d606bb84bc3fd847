//! Throughput while something else goes on in the database: a snapshot that holds vacuum back, a
//! history that is pruned.
//!
//! A stretch of work is the whole life of tasks, 1 000 at a time: enqueued, claimed, completed, on
//! top of a backlog that stays.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::store::{Retention, Store};
use matins_runtime::pruning;
use matins_store::postgres::filling::Filling;

use super::super::Size;
use super::super::claim::{KIND, Shelf};
use super::super::enqueue::BATCH;
use super::super::figures::{Figures, Spec, Unit, per_second};
use super::super::node::{self, POOL};
use super::super::workbench::Workbench;
use super::{PAYLOAD, Server};
use crate::failure::Result;

const fn rate(name: &'static str, what: &'static str, against: &'static [&'static str]) -> Spec {
    Spec { name, what, unit: Unit::PerSecond, against }
}

const SNAPSHOT: Spec = rate(
    "held_snapshot",
    "whole lives, a snapshot held open for 90 s",
    &["the same in its first 10 s"],
);

const PRUNE: Spec = rate(
    "while_pruning",
    "whole lives, while history is pruned",
    &["the same before and after that"],
);

const BACKLOG: usize = 10_000;

async fn filled(server: &Server, finished: usize) -> Result<Shelf> {
    let scratch = server.database().await?;
    let store = server.open(&scratch).await?;
    let filling = Filling {
        pool: POOL,
        kind: KIND,
        payload: PAYLOAD,
        pending: BACKLOG,
        later: 0,
        finished,
        days_ago: 30,
    };
    filling.pour(&scratch).await.map_err(node::said)?;
    Ok(server.shelf(store))
}

/// Tasks a second over a time.
async fn lives(shelf: &Shelf, time: Duration) -> Result<f64> {
    let (begin, mut n) = (Instant::now(), 0);
    while begin.elapsed() < time {
        shelf.put(BATCH, |_| {}).await?;
        n += shelf.run(BATCH).await?;
    }
    Ok(per_second(n, begin.elapsed()))
}

pub(in super::super) async fn snapshot(
    bench: &Workbench,
    server: &Server,
    size: &Size,
    figures: &mut Figures,
) -> Result<()> {
    let stretch = Duration::from_secs(size.pick(10, 2));
    let shelf = filled(server, 0).await?;
    bench.says("throughput under a held snapshot");
    lives(&shelf, stretch / 2).await?;
    // Any database of the server will do: the snapshot is of all of them.
    let aside = server.database().await?;
    let held = aside.hold().await.map_err(node::said)?;
    let first = lives(&shelf, stretch).await?;
    for _ in 0..7 {
        lives(&shelf, stretch).await?;
    }
    figures.record(SNAPSHOT, lives(&shelf, stretch).await?, [first]);
    drop(held);
    shelf.close().await?;
    server.clear().await
}

pub(in super::super) async fn prune(
    bench: &Workbench,
    server: &Server,
    size: &Size,
    figures: &mut Figures,
) -> Result<()> {
    let stretch = Duration::from_secs(size.pick(10, 2));
    bench.says("throughput while pruning: filling");
    let shelf = filled(server, size.pick(1_000_000, 50_000)).await?;
    lives(&shelf, stretch / 2).await?;
    for round in 1..=size.rounds.min(3) {
        bench.says(format!("throughput while pruning, round {round}"));
        let before = lives(&shelf, stretch).await?;
        let during = tokio::select! {
            rate = lives(&shelf, stretch) => rate?,
            pruned = prune_on(shelf.store()) => return pruned,
        };
        let after = lives(&shelf, stretch).await?;
        figures.record(PRUNE, during, [f64::midpoint(before, after)]);
    }
    shelf.close().await?;
    server.clear().await
}

/// As the server does it, but without an end.
async fn prune_on(store: &dyn Store) -> Result<()> {
    loop {
        let step = pruning::step(store, &Retention::default(), Timestamp::now()).await;
        tokio::time::sleep(step.map_err(node::said)?.1).await;
    }
}
