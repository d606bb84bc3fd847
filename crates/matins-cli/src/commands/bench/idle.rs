//! What a server costs that has nothing to do.

use std::time::{Duration, Instant};

use super::Size;
use super::figures::{Figures, Spec, Unit};
use super::served::Served;
use super::workbench::Workbench;
use crate::failure::Result;

const CPU: Spec = Spec {
    name: "idle_cpu",
    what: "matins serve, nothing to do",
    unit: Unit::PercentOfCore,
    against: &[],
};
const MEMORY: Spec = Spec {
    name: "idle_memory",
    what: "matins serve, nothing to do, resident",
    unit: Unit::Mebibytes,
    against: &[],
};
const READY: Spec = Spec {
    name: "serve_ready",
    what: "matins serve, fresh store, until ready",
    unit: Unit::Seconds,
    against: &[],
};

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    bench.says("idle server");
    let place = bench.place("server")?;
    let begin = Instant::now();
    let server = Served::start(place.path(), "")?;
    server.until_ready().await?;
    figures.record(READY, begin.elapsed().as_secs_f64(), []);
    // What a start leaves behind is written back and given back after a few seconds.
    tokio::time::sleep(Duration::from_millis(size.pick(6_000, 1_000))).await;
    let (begin, before) = (Instant::now(), server.cpu_time()?);
    tokio::time::sleep(Duration::from_secs(size.pick(30, 1))).await;
    let used = server.cpu_time()?.saturating_sub(before);
    figures.record(CPU, used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0, []);
    figures.record(MEMORY, server.memory()?, []);
    Ok(())
}
