//! Pick-up: how long a task that comes alone waits for its handler. Nothing else is going on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Size;
use super::figures::{Figures, Spec, Unit, median, ms, percentile};
use super::node::{self, Node, Noop, OnStart};
use super::workbench::Workbench;
use crate::failure::{Failure, Result};

const FSYNC: &[&str] = &["one fsync, in between"];

const fn pickup(name: &'static str, what: &'static str) -> Spec {
    Spec { name, what, unit: Unit::Millis, against: FSYNC }
}

const P50: Spec = pickup("pickup_p50", "accepted → handler begins, p50");
const P95: Spec = pickup("pickup_p95", "accepted → handler begins, p95");
const P99: Spec = pickup("pickup_p99", "accepted → handler begins, p99");
const OVER_FSYNC: Spec = Spec {
    name: "pickup_over_fsync",
    what: "accepted → handler begins, p50 less one fsync",
    unit: Unit::Millis,
    against: &[],
};
const CALL_P50: Spec = pickup("call_to_start_p50", "call of enqueue → handler begins, p50");
const CALL_P99: Spec = pickup("call_to_start_p99", "call of enqueue → handler begins, p99");

const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    let samples = size.pick(100, 25);
    let pause = Duration::from_millis(size.pick(40, 10));
    let place = bench.place("store")?;
    let (told, mut begun) = mpsc::unbounded_channel();
    let on_start: OnStart = Arc::new(move |n| {
        // The measuring side is gone only when the run was given up.
        let _ = told.send((n, Instant::now()));
    });
    let node = Node::start(&place, 10, Some(on_start)).await?;
    let mut fsync = bench.fsync()?;
    for round in 1..=size.rounds {
        bench.says(format!("pick-up, round {round} of {}", size.rounds));
        let mut taken = Samples::default();
        for n in 0..samples {
            tokio::time::sleep(pause).await;
            let called = Instant::now();
            node.matins.enqueue(Noop::new(n)).await.map_err(node::said)?;
            let accepted = Instant::now();
            let (_, start) =
                tokio::time::timeout(PATIENCE, begun.recv()).await.ok().flatten().ok_or_else(
                    || Failure::failed(format!("task {n} was not run in {PATIENCE:?}")),
                )?;
            taken.accepted.push(ms(start.saturating_duration_since(accepted)));
            taken.called.push(ms(start - called));
            // Its end is written meanwhile; the probe must not share the disk with that.
            tokio::time::sleep(pause).await;
            taken.fsync.push(ms(tokio::task::block_in_place(|| fsync.one())?));
        }
        taken.record(figures);
    }
    node.stop().await;
    Ok(())
}

/// Milliseconds.
#[derive(Default)]
struct Samples {
    accepted: Vec<f64>,
    called: Vec<f64>,
    fsync: Vec<f64>,
}

impl Samples {
    fn record(&self, figures: &mut Figures) {
        let fsync = median(&self.fsync);
        let p50 = percentile(&self.accepted, 50.0);
        figures.record(P50, p50, [fsync]);
        figures.record(P95, percentile(&self.accepted, 95.0), [fsync]);
        figures.record(P99, percentile(&self.accepted, 99.0), [fsync]);
        figures.record(OVER_FSYNC, p50 - fsync, []);
        figures.record(CALL_P50, percentile(&self.called, 50.0), [fsync]);
        figures.record(CALL_P99, percentile(&self.called, 99.0), [fsync]);
    }
}
