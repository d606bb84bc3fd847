//! Tasks accepted and run a second, and the same by bare statements.

use std::time::Instant;

use matins_store::postgres::bare::{Bare, Scratch};

use super::super::Size;
use super::super::claim::Shelf;
use super::super::e2e::{self, SLOTS};
use super::super::enqueue::{self, BATCH};
use super::super::figures::{Figures, Spec, Unit, ms, per_second};
use super::super::node::{self, Node};
use super::super::workbench::Workbench;
use super::{COMMIT, Server};
use crate::failure::Result;

const fn rate(name: &'static str, what: &'static str, against: &'static [&'static str]) -> Spec {
    Spec { name, what, unit: Unit::PerSecond, against }
}

const SINGLE: Spec =
    rate("enqueue_single", "enqueue, 1 caller, 1 task a call", &["bare, 1 row a commit"]);

const CALLERS: usize = 16;

const CONCURRENT: Spec = rate(
    "enqueue_concurrent",
    "enqueue, 16 callers, 1 task a call",
    &["bare, 16 clients, 1 row a commit"],
);

const BATCHED: Spec =
    rate("enqueue_batch", "enqueue, 1 caller, 1 000 tasks a call", &["bare, 1 000 rows a commit"]);

const COMPLETE: &[&str] = &["bare, claim + complete by 1 000"];

const STORE: Spec = rate("claim_complete", "the store alone: claim + settle by 1 000", COMPLETE);

const WAITING: Spec = rate("e2e", "run, pool of 2 000, tasks wait", COMPLETE);

const WHOLE: Spec = rate(
    "e2e_whole",
    "enqueue 1 000 a call and run, at once",
    &["bare, insert + claim + complete by 1 000"],
);

pub(in super::super) async fn measure(
    bench: &Workbench,
    server: &Server,
    size: &Size,
    figures: &mut Figures,
) -> Result<()> {
    let (singles, concurrent) = (size.pick(300, 60), size.pick(16_000, 800));
    for round in 1..=size.rounds {
        bench.says(format!("throughput, round {round} of {}", size.rounds));
        let scratch = server.database().await?;
        let bare = Bare::open(&scratch).await.map_err(node::said)?;
        figures.record(COMMIT, ms(bare.commit(50).await.map_err(node::said)?), []);
        let node = Node::on(server.open(&scratch).await?, 0, None).await?;

        let ours = enqueue::one_by_one(&node, singles).await?;
        figures.record(SINGLE, ours, [one_by_one(&bare, singles).await?]);
        let ours = enqueue::by_many(&node, CALLERS, concurrent).await?;
        figures.record(CONCURRENT, ours, [by_many(&scratch, concurrent).await?]);
        let ours = enqueue::in_batches(&node, 1, size.tasks).await?;
        let inserted = insert(&bare, size.tasks).await?;
        figures.record(BATCHED, ours, [inserted]);
        node.stop().await;

        let completed = complete(&bare).await?;
        let shelf = server.shelf(server.open(&scratch).await?);
        figures.record(STORE, run(&shelf).await?, [completed]);
        shelf.close().await?;

        let fresh = server.database().await?;
        let ours = e2e::waiting_in(server.open(&fresh).await?, SLOTS, size.tasks).await?;
        figures.record(WAITING, ours, [completed]);
        let ours = e2e::whole_in(server.open(&fresh).await?, size.tasks).await?;
        figures.record(WHOLE, ours, [1.0 / (1.0 / inserted + 1.0 / completed)]);
        server.clear().await?;
    }
    Ok(())
}

async fn one_by_one(bare: &Bare, n: usize) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..n {
        bare.insert_one(&node::payloads(1)?[0]).await.map_err(node::said)?;
    }
    Ok(per_second(n, begin.elapsed()))
}

async fn by_many(scratch: &Scratch, n: usize) -> Result<f64> {
    let mut clients = Vec::new();
    for _ in 0..CALLERS {
        clients.push(Bare::open(scratch).await.map_err(node::said)?);
    }
    let each = n.div_ceil(CALLERS);
    let begin = Instant::now();
    let running = clients.iter().map(|bare| one_by_one(bare, each));
    for rate in futures_util::future::join_all(running).await {
        rate?;
    }
    Ok(per_second(each * CALLERS, begin.elapsed()))
}

async fn insert(bare: &Bare, n: usize) -> Result<f64> {
    let batches = n.div_ceil(BATCH);
    let begin = Instant::now();
    for _ in 0..batches {
        bare.insert(&node::payloads(BATCH)?).await.map_err(node::said)?;
    }
    Ok(per_second(batches * BATCH, begin.elapsed()))
}

/// All that is there.
async fn complete(bare: &Bare) -> Result<f64> {
    let (begin, mut n) = (Instant::now(), 0);
    loop {
        match bare.claim_and_complete(BATCH).await.map_err(node::said)? {
            0 => return Ok(per_second(n, begin.elapsed())),
            some => n += some,
        }
    }
}

async fn run(shelf: &Shelf) -> Result<f64> {
    let (begin, mut n) = (Instant::now(), 0);
    loop {
        match shelf.run(BATCH).await? {
            0 => return Ok(per_second(n, begin.elapsed())),
            some => n += some,
        }
    }
}
