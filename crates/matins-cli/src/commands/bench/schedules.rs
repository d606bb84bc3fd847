//! Schedules: many of them written, found again at a start, doing nothing, and all due at once.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp, ToSpan as _, Unit as Calendar};
use matins_core::schedule::{self, ManagedBy, ScheduleSpec};
use matins_core::store::Expect;
use serde_json::json;

use super::Size;
use super::figures::{Figures, Spec, Unit};
use super::node::{self, Node, POOL};
use super::served::cpu_time;
use super::workbench::Workbench;
use crate::failure::{Failure, Result};

const fn seconds(name: &'static str, what: &'static str) -> Spec {
    Spec { name, what, unit: Unit::Seconds, against: &[] }
}

const WRITTEN: Spec = seconds("schedules_written", "100 000 schedules of a file written");
const LOADED: Spec = seconds("schedules_loaded", "start with 100 000 schedules, until one fires");
const IDLE: Spec = Spec {
    name: "schedules_idle",
    what: "100 000 schedules, none due",
    unit: Unit::PercentOfCore,
    against: &[],
};
const FIRED: Spec =
    seconds("schedules_fired", "10 000 due in the same second, until all have fired");

const WRITTEN_QUICK: Spec = seconds("schedules_written", "5 000 schedules of a file written");
const LOADED_QUICK: Spec =
    seconds("schedules_loaded", "start with 5 000 schedules, until one fires");
const IDLE_QUICK: Spec = Spec { what: "5 000 schedules, none due", ..IDLE };
const FIRED_QUICK: Spec =
    seconds("schedules_fired", "1 000 due in the same second, until all have fired");

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    let [written, loaded, idle, fired] = size.pick(
        [WRITTEN, LOADED, IDLE, FIRED],
        [WRITTEN_QUICK, LOADED_QUICK, IDLE_QUICK, FIRED_QUICK],
    );
    let (many, due) = size.pick((100_000, 10_000), (5_000, 1_000));
    let place = bench.place("store")?;

    bench.says(format!("schedules: writing {many}"));
    let specs = dormant(many)?;
    let node = Node::start(&place, 100, None).await?;
    let begin = Instant::now();
    node.client().apply_file(&specs).await.map_err(node::said)?;
    figures.record(written, begin.elapsed().as_secs_f64(), []);
    // One that comes due while nobody is there to fire it.
    let soon = Timestamp::now() + SignedDuration::from_secs(1);
    node.client().put_schedule(once("soon", soon)?, "bench").await.map_err(node::said)?;
    node.stop().await;

    bench.says(format!("schedules: starting with {many}"));
    until(soon).await;
    let begin = Instant::now();
    let node = Node::start(&place, 100, None).await?;
    node.until_completed(1).await?;
    figures.record(loaded, begin.elapsed().as_secs_f64(), []);

    bench.says(format!("schedules: {many} that do nothing"));
    tokio::time::sleep(Duration::from_millis(size.pick(3_000, 500))).await;
    let (begin, before) = (Instant::now(), cpu_time(std::process::id())?);
    tokio::time::sleep(Duration::from_secs(size.pick(10, 1))).await;
    let used = cpu_time(std::process::id())?.saturating_sub(before);
    figures.record(idle, used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0, []);

    bench.says(format!("schedules: {due} due at once"));
    let at = Timestamp::now() + SignedDuration::from_secs(size.pick(10, 2));
    let at = at.round(Calendar::Second).map_err(node::said)?;
    let specs: Result<Vec<_>> = (0..due).map(|n| once(&format!("due-{n}"), at)).collect();
    put(&node, specs?).await?;
    if Timestamp::now() >= at {
        return Err(Failure::failed("writing the schedules took until they were due"));
    }
    until(at).await;
    let begin = Instant::now();
    while tasks(&node).await? < due as u64 + 1 {
        if begin.elapsed() > PATIENCE {
            return Err(Failure::failed(format!("not all fired within {PATIENCE:?}")));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    figures.record(fired, begin.elapsed().as_secs_f64(), []);
    node.stop().await;
    Ok(())
}

/// Waits on the wall clock.
async fn until(at: Timestamp) {
    while Timestamp::now() < at {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn spec(name: &str, schedule: &str) -> Result<ScheduleSpec> {
    let spec = json!({
        "name": name,
        "schedule": schedule,
        "type": "noop",
        "pool": POOL,
        "payload": {"n": 1, "day": "{{ occurrence.date }}"},
    });
    serde_json::from_value(spec).map_err(node::said)
}

fn once(name: &str, at: Timestamp) -> Result<ScheduleSpec> {
    spec(name, &at.strftime("@at %Y-%m-%dT%H:%M:%S").to_string())
}

/// Yearly ones, the next of which is half a year away.
fn dormant(n: usize) -> Result<Vec<ScheduleSpec>> {
    let today = jiff::tz::Offset::UTC.to_datetime(Timestamp::now()).date();
    let month = (today + 6.months()).month();
    let one = |n: usize| {
        let (minute, hour, day) = (n % 60, n / 60 % 24, 1 + n / 1_440 % 28);
        spec(&format!("dormant-{n}"), &format!("{minute} {hour} {day} {month} *"))
    };
    (0..n).map(one).collect()
}

/// In one commit.
async fn put(node: &Node, specs: Vec<ScheduleSpec>) -> Result<()> {
    let limits = node.client().rules().limits;
    let now = Timestamp::now();
    let new = |spec| {
        let uid = uuid::Uuid::now_v7();
        let state = schedule::create(uid, spec, ManagedBy::Api, &limits, now);
        Ok((Expect::Absent, state.map_err(node::said)?))
    };
    let writes = specs.into_iter().map(new).collect::<Result<Vec<_>>>()?;
    let written = node.client().store().put_schedules(writes).await.map_err(node::said)?;
    node.client().wake().ring_schedules();
    match written.iter().all(|written| *written) {
        true => Ok(()),
        false => Err(Failure::failed("a schedule of the same name was there before")),
    }
}

/// Tasks of the pool, whatever became of them.
async fn tasks(node: &Node) -> Result<u64> {
    let stats = node.client().store().stats(node.client().now()).await.map_err(node::said)?;
    Ok(stats.tasks.iter().filter(|((pool, _), _)| **pool == *POOL).map(|(_, n)| n).sum())
}
