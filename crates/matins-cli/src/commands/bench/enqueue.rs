//! Enqueueing: one by one, by many callers at once, in batches.

use std::time::Instant;

use matins_store::sqlite::raw::Raw;

use super::Size;
use super::figures::{FSYNC, Figures, Spec, Unit, per_second};
use super::floor::Floor;
use super::node::{self, Node, Noop};
use super::workbench::Workbench;
use crate::failure::Result;

const fn rate(name: &'static str, what: &'static str, against: &'static [&'static str]) -> Spec {
    Spec { name, what, unit: Unit::PerSecond, against }
}

const SINGLE: Spec = rate(
    "enqueue_single",
    "enqueue, 1 caller, 1 task a call",
    &["bare, 1 task a commit", "narrow table, 1 row a commit"],
);

const CALLERS: usize = 64;

const CONCURRENT: Spec = rate(
    "enqueue_concurrent",
    "enqueue, 64 callers, 1 task a call",
    &["bare, 64 tasks a commit", "narrow table, 64 rows a commit"],
);

pub(super) const BATCH: usize = 1_000;

const BY_THOUSAND: &[&str] = &["bare, 1 000 tasks a commit", "narrow table, 1 000 rows a commit"];
const BATCHED: Spec = rate("enqueue_batch", "enqueue, 1 caller, 1 000 tasks a call", BY_THOUSAND);
const BATCHED_BY_FOUR: Spec =
    rate("enqueue_batch_4", "enqueue, 4 callers, 1 000 tasks a call", BY_THOUSAND);

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    for round in 1..=size.rounds {
        bench.says(format!("enqueue, round {round} of {}", size.rounds));
        let singles = size.pick(200, 60);
        let concurrent = size.pick(10_000, 2_000);
        figures.record(FSYNC, bench.fsync()?.median(size.pick(50, 20))?, []);
        let shapes = [(1, singles), (CALLERS, concurrent), (BATCH, size.tasks)];
        let [single, by_callers, batched] = bare(bench, shapes).await?;
        let place = bench.place("store")?;
        let node = Node::start(&place, 0, None).await?;
        figures.record(SINGLE, one_by_one(&node, singles).await?, single);
        figures.record(CONCURRENT, by_many(&node, CALLERS, concurrent).await?, by_callers);
        figures.record(BATCHED, in_batches(&node, 1, size.tasks).await?, batched);
        figures.record(BATCHED_BY_FOUR, in_batches(&node, 4, size.tasks).await?, batched);
        node.stop().await;
    }
    Ok(())
}

/// Rows a second at each (rows a commit, rows): of the store's own shape, and of the floor's.
async fn bare<const N: usize>(
    bench: &Workbench,
    shapes: [(usize, usize); N],
) -> Result<[[f64; 2]; N]> {
    let place = bench.place("bare")?;
    let measured = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::new(place.path()).map_err(node::said)?;
        let mut floor = Floor::open(&place.file())?;
        let mut rates = [[0.0; 2]; N];
        for (rates, (rows, total)) in rates.iter_mut().zip(shapes) {
            let payloads = node::payloads(rows)?;
            let same = raw.insert(total as u64, rows as u64, &payloads[0]);
            rates[0] = same.map_err(node::said)?.per_second();
            let begin = Instant::now();
            let commits = total.div_ceil(rows);
            for _ in 0..commits {
                floor.insert(&payloads)?;
            }
            rates[1] = per_second(commits * rows, begin.elapsed());
        }
        Ok(rates)
    });
    measured.await.map_err(node::said)?
}

pub(super) async fn one_by_one(node: &Node, n: usize) -> Result<f64> {
    let begin = Instant::now();
    for n in 0..n {
        node.matins.enqueue(Noop::new(n)).await.map_err(node::said)?;
    }
    Ok(per_second(n, begin.elapsed()))
}

pub(super) async fn by_many(node: &Node, callers: usize, n: usize) -> Result<f64> {
    let each = n.div_ceil(callers);
    let begin = Instant::now();
    let running = (0..callers).map(|_| one_by_one(node, each));
    for rate in futures_util::future::join_all(running).await {
        rate?;
    }
    Ok(per_second(each * callers, begin.elapsed()))
}

pub(super) async fn in_batches(node: &Node, callers: usize, n: usize) -> Result<f64> {
    let each = n.div_ceil(callers * BATCH);
    let begin = Instant::now();
    let caller = || async {
        for batch in 0..each {
            node.enqueue(batch * BATCH, BATCH).await?;
        }
        Ok(())
    };
    for done in futures_util::future::join_all((0..callers).map(|_| caller())).await {
        let done: Result<()> = done;
        done?;
    }
    Ok(per_second(callers * each * BATCH, begin.elapsed()))
}
