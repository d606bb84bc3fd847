//! Pick-up: how long a task that comes alone waits for its handler. Nothing else is going on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use matins_core::store::Store;
use tokio::sync::mpsc;

use super::Size;
use super::figures::{Figures, Spec, Unit, median, ms, percentile};
use super::node::{self, Node, Noop, OnStart};
use super::workbench::Workbench;
use crate::failure::{Failure, Result};

const fn pickup(name: &'static str, what: &'static str, against: &'static [&'static str]) -> Spec {
    Spec { name, what, unit: Unit::Millis, against }
}

const PATIENCE: Duration = Duration::from_secs(10);

/// What the disk takes by itself, measured in between.
pub(super) struct Probe<F> {
    pub(super) against: &'static [&'static str],
    /// Name and text of the median less one of these.
    pub(super) less: (&'static str, &'static str),
    pub(super) one: F,
}

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    let place = bench.place("store")?;
    let mut fsync = bench.fsync()?;
    let probe = Probe {
        against: &["one fsync, in between"],
        less: ("pickup_over_fsync", "accepted → handler begins, p50 less one fsync"),
        one: async || tokio::task::block_in_place(|| fsync.one()),
    };
    on(bench, size, figures, node::store(&place).await?, probe).await
}

/// Of a store that nobody else uses.
pub(super) async fn on(
    bench: &Workbench,
    size: &Size,
    figures: &mut Figures,
    store: Arc<dyn Store>,
    mut probe: Probe<impl AsyncFnMut() -> Result<Duration>>,
) -> Result<()> {
    let samples = size.pick(100, 25);
    let pause = Duration::from_millis(size.pick(40, 10));
    let (told, mut begun) = mpsc::unbounded_channel();
    let on_start: OnStart = Arc::new(move |n| {
        // The measuring side is gone only when the run was given up.
        let _ = told.send((n, Instant::now()));
    });
    let node = Node::on(store, 10, Some(on_start)).await?;
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
            taken.probe.push(ms((probe.one)().await?));
        }
        taken.record(figures, probe.against, probe.less);
    }
    node.stop().await;
    Ok(())
}

/// Milliseconds.
#[derive(Default)]
struct Samples {
    accepted: Vec<f64>,
    called: Vec<f64>,
    probe: Vec<f64>,
}

impl Samples {
    fn record(
        &self,
        figures: &mut Figures,
        against: &'static [&'static str],
        less: (&'static str, &'static str),
    ) {
        let probe = median(&self.probe);
        let mut one = |name, what, value| {
            figures.record(pickup(name, what, against), value, [probe]);
        };
        let [p50, p95, p99] = [50.0, 95.0, 99.0].map(|p| percentile(&self.accepted, p));
        one("pickup_p50", "accepted → handler begins, p50", p50);
        one("pickup_p95", "accepted → handler begins, p95", p95);
        one("pickup_p99", "accepted → handler begins, p99", p99);
        let called = |p| percentile(&self.called, p);
        one("call_to_start_p50", "call of enqueue → handler begins, p50", called(50.0));
        one("call_to_start_p99", "call of enqueue → handler begins, p99", called(99.0));
        figures.record(pickup(less.0, less.1, &[]), p50 - probe, []);
    }
}
