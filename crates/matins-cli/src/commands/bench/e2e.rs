//! End to end: tasks that wait in the store are claimed, run by handlers in this process that do
//! nothing, and recorded as completed.

use std::sync::Arc;
use std::time::Instant;

use matins_core::store::Store;
use matins_store::sqlite::raw::Raw;

use super::Size;
use super::enqueue::BATCH;
use super::figures::{FSYNC, Figures, Spec, Unit, per_second};
use super::floor::Floor;
use super::node::{self, Node};
use super::workbench::Workbench;
use crate::failure::Result;

/// Slots of the pool. Handlers that do nothing leave the store as the only limit, if there are
/// enough of them to fill batches.
pub(super) const SLOTS: u32 = 2_000;

const WAITING: Spec = Spec {
    name: "e2e",
    what: "run, pool of 2 000, tasks wait",
    unit: Unit::PerSecond,
    against: &["bare, claim + complete by 1 000", "narrow table, claim + complete by 1 000"],
};

const FEW_SLOTS: u32 = 10;

const FEW: Spec = Spec {
    name: "e2e_pool_10",
    what: "run, pool of 10, tasks wait",
    unit: Unit::PerSecond,
    against: &["bare, claim + complete by 10", "narrow table, claim + complete by 10"],
};

const WHOLE: Spec = Spec {
    name: "e2e_whole",
    what: "enqueue 1 000 a call and run, at once",
    unit: Unit::PerSecond,
    against: &["bare, insert + claim + complete by 1 000"],
};

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    let few = size.pick(2_000, 500);
    for round in 1..=size.rounds {
        bench.says(format!("end to end, round {round} of {}", size.rounds));
        figures.record(FSYNC, bench.fsync()?.median(size.pick(50, 20))?, []);
        let bare = bare(bench, size.tasks, few).await?;
        figures.record(WAITING, waiting(bench, SLOTS, size.tasks).await?, bare.complete);
        figures.record(FEW, waiting(bench, FEW_SLOTS, few).await?, bare.complete_few);
        figures.record(WHOLE, whole(bench, size.tasks).await?, [bare.whole]);
    }
    Ok(())
}

/// Tasks a second without Matins, of the store's own shape and of the floor's.
struct Bare {
    complete: [f64; 2],
    complete_few: [f64; 2],
    whole: f64,
}

async fn bare(bench: &Workbench, tasks: usize, few: usize) -> Result<Bare> {
    let place = bench.place("bare")?;
    let measured = tokio::task::spawn_blocking(move || {
        let payloads = node::payloads(BATCH)?;
        let mut raw = Raw::new(place.path()).map_err(node::said)?;
        let mut floor = Floor::open(&place.file())?;
        let mut run = |n: usize, rows: usize| -> Result<[f64; 2]> {
            raw.insert(n as u64, BATCH as u64, &payloads[0]).map_err(node::said)?;
            let same = raw.claim_and_complete(n as u64, rows as u64).map_err(node::said)?;
            for _ in 0..n.div_ceil(BATCH) {
                floor.insert(&payloads)?;
            }
            Ok([same.per_second(), complete(&mut floor, rows)?])
        };
        let (complete, complete_few) = (run(tasks, BATCH)?, run(few, FEW_SLOTS as usize)?);
        let begin = Instant::now();
        for _ in 0..tasks.div_ceil(BATCH) {
            raw.insert(BATCH as u64, BATCH as u64, &payloads[0]).map_err(node::said)?;
            raw.claim_and_complete(BATCH as u64, BATCH as u64).map_err(node::said)?;
        }
        let whole = per_second(tasks.div_ceil(BATCH) * BATCH, begin.elapsed());
        Ok(Bare { complete, complete_few, whole })
    });
    measured.await.map_err(node::said)?
}

/// All that is there, `rows` in each commit.
fn complete(floor: &mut Floor, rows: usize) -> Result<f64> {
    let begin = Instant::now();
    let mut n = 0;
    loop {
        let claimed = floor.claim(rows)?;
        if claimed.is_empty() {
            return Ok(per_second(n, begin.elapsed()));
        }
        floor.complete(&claimed)?;
        n += claimed.len();
    }
}

/// From the thaw of a frozen store to the commit of the last completion.
async fn waiting(bench: &Workbench, slots: u32, tasks: usize) -> Result<f64> {
    let place = bench.place("store")?;
    waiting_in(node::store(&place).await?, slots, tasks).await
}

pub(super) async fn waiting_in(store: Arc<dyn Store>, slots: u32, tasks: usize) -> Result<f64> {
    let node = Node::on(store, slots, None).await?;
    node.client().freeze("bench", "until all tasks wait").await.map_err(node::said)?;
    for from in (0..tasks).step_by(BATCH) {
        node.enqueue(from, BATCH.min(tasks - from)).await?;
    }
    let begin = Instant::now();
    node.client().thaw("bench").await.map_err(node::said)?;
    let end = node.until_completed(tasks).await?;
    node.stop().await;
    Ok(per_second(tasks, end - begin))
}

/// From the first enqueue to the commit of the last completion.
async fn whole(bench: &Workbench, tasks: usize) -> Result<f64> {
    let place = bench.place("store")?;
    whole_in(node::store(&place).await?, tasks).await
}

pub(super) async fn whole_in(store: Arc<dyn Store>, tasks: usize) -> Result<f64> {
    let node = Node::on(store, SLOTS, None).await?;
    let batches = tasks.div_ceil(BATCH);
    let begin = Instant::now();
    for batch in 0..batches {
        node.enqueue(batch * BATCH, BATCH).await?;
    }
    let end = node.until_completed(batches * BATCH).await?;
    node.stop().await;
    Ok(per_second(batches * BATCH, end - begin))
}
