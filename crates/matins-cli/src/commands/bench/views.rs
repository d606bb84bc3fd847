//! What is looked at: a scrape, and the views of the API that people have open while they wonder
//! what is wrong. None of it may depend on how many tasks there are.
//!
//! Two servers, each a process of its own on a store that was filled before, are asked by turns:
//! one with few tasks, one with many. Both have run tasks of more types than get a label of their
//! own, so that the text of a scrape is as long as it can become.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::lifecycle::later;
use matins_core::store::Store;
use matins_core::task::Name;
use serde_json::{Value, json};

use super::Size;
use super::claim::{FILL, Shelf};
use super::figures::{Figures, Spec, Unit, median, ms, percentile};
use super::node;
use super::served::Served;
use super::workbench::{Place, Workbench};
use crate::door::{Answer, HttpDoor, Request};
use crate::failure::Result;

const fn view(name: &'static str, what: &'static str) -> Spec {
    Spec { name, what, unit: Unit::Millis, against: &["the same with few tasks"] }
}

const SCRAPE: (Spec, Spec) =
    (view("scrape_p50", "scrape of /metrics, p50"), view("scrape_p95", "scrape of /metrics, p95"));

/// Medians. The last ones of the tasks are asked for something that is not there, so that every
/// row a page may look at is looked at.
const VIEWS: [(Spec, &str); 12] = [
    (view("view_status", "status"), "/api/v1/status"),
    (view("view_pools", "pools"), "/api/v1/pools"),
    (view("view_tasks", "tasks"), "/api/v1/tasks"),
    (view("view_completed", "tasks, completed"), "/api/v1/tasks?state=completed"),
    (view("view_failed", "tasks, failed"), "/api/v1/tasks?state=failed"),
    (view("view_type", "tasks of a type that is rare"), "/api/v1/tasks?type=type-1"),
    (view("view_tag", "tasks with a tag that none has"), "/api/v1/tasks?tag=none"),
    (view("view_search", "tasks, a search that finds none"), "/api/v1/tasks?q=none"),
    (view("view_dead_letters", "dead letters"), "/api/v1/dead_letters"),
    (
        view("view_dead_tag", "dead letters with a tag that none has"),
        "/api/v1/dead_letters?tag=none",
    ),
    (view("view_dead_groups", "dead letters by error"), "/api/v1/dead_letters?group_by=error"),
    (view("view_alerts", "alerts"), "/api/v1/alerts"),
];

const PATIENCE: Duration = Duration::from_secs(120);

/// Tasks of a store, by what becomes of them.
#[derive(Clone, Copy)]
pub(super) struct Amounts {
    pub(super) finished: usize,
    pub(super) dead: usize,
    pub(super) later: usize,
    pub(super) pending: usize,
}

const FEW: Amounts = Amounts { finished: 1_000, dead: 100, later: 100, pending: 100 };

impl Amounts {
    const fn sum(self) -> usize {
        self.finished + self.dead + self.later + self.pending
    }
}

/// Of the store with few tasks, and of the one with many.
pub(super) fn amounts(size: &Size) -> [Amounts; 2] {
    let many = match (size.quick, size.large) {
        (true, _) => Amounts { finished: 5_000, dead: 1_000, later: 1_000, pending: 3_000 },
        (_, false) => Amounts { finished: 300_000, dead: 20_000, later: 80_000, pending: 100_000 },
        (_, true) => {
            Amounts { finished: 5_000_000, dead: 200_000, later: 300_000, pending: 500_000 }
        }
    };
    [FEW, many]
}

pub(super) const NAMES: [&str; 2] = ["few", "many"];

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    let mut stands = Vec::new();
    for (name, amounts) in NAMES.into_iter().zip(amounts(size)) {
        let place = bench.place(name)?;
        let store = node::store(&place).await?;
        bench.says(format!("views: filling the store with {name} tasks"));
        bury(&store, None, amounts.dead).await?;
        let shelf = Shelf::on(store, None);
        shelf.put(amounts.finished, |_| {}).await?;
        while shelf.run(FILL).await? > 0 {}
        let tomorrow = later(Timestamp::now(), Duration::from_secs(86_400));
        shelf.put(amounts.later, |task| task.run_at = tomorrow).await?;
        shelf.put(amounts.pending, |_| {}).await?;
        shelf.close().await?;
        stands.push(Stand::open(bench, size, place, "store: sqlite:bench.db\n", amounts).await?);
    }
    compare(bench, size, figures, &stands).await
}

/// Types that are run and types of the dead; more than get a label of their own.
fn types(size: &Size) -> impl Iterator<Item = String> {
    (0..size.pick(250, 20)).map(type_name)
}

fn type_name(n: usize) -> String {
    format!("type-{n}")
}

/// Puts dead letters of many types and of a few errors into a store.
pub(super) async fn bury(store: &Arc<dyn Store>, pool: Option<Name>, n: usize) -> Result<()> {
    const TYPES: usize = 100;
    let kinds: Vec<Name> = (0..TYPES).map(|n| type_name(n).into()).collect();
    let shelf = Shelf::of_types(store.clone(), pool, kinds.iter().cloned());
    let by_chance = |id: uuid::Uuid| id.as_u128() as usize % TYPES;
    shelf.put(n, |task| task.kind = kinds[by_chance(task.id.0)].clone()).await?;
    while shelf.fail(FILL).await? > 0 {}
    Ok(())
}

/// A server that is looked at.
pub(super) struct Stand {
    door: HttpDoor,
    served: Served,
    _place: Place,
}

impl Stand {
    /// Starts a server on a filled store, lets it run something of each type, and waits until it
    /// shows what is there.
    pub(super) async fn open(
        bench: &Workbench,
        size: &Size,
        place: Place,
        store: &str,
        amounts: Amounts,
    ) -> Result<Self> {
        bench.says("views: starting a server");
        let config = json!(
            types(size)
                .enumerate()
                .map(|(n, kind)| (kind, ["true", "false"][n % 2]))
                .map(|(kind, word)| (kind, json!({"executor": "command", "command": [word]})))
                .collect::<serde_json::Map<_, _>>()
        );
        let served = Served::start(place.path(), &format!("{store}tasks: {config}\n"))?;
        let stand = Self { door: served.door().await?, served, _place: place };
        let task = |kind| json!({"type": kind, "max_retries": 0});
        let tasks: Vec<Value> = types(size).map(task).collect();
        let request = Request::post(&["tasks", "batch"]).body(&tasks)?;
        stand.door.ask(request).await?.accepted()?;
        let begin = Instant::now();
        loop {
            let scrape = stand.scrape().await?;
            let shows = sum(&scrape, "matins_tasks{") >= (amounts.sum() + tasks.len()) as f64;
            if shows && sum(&scrape, "matins_attempts_total{") >= tasks.len() as f64 {
                return Ok(stand);
            }
            if begin.elapsed() > PATIENCE {
                let what = format!("the server does not show its tasks in {PATIENCE:?}");
                return Err(stand.served.failed(&what));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn scrape(&self) -> Result<String> {
        let answer = self.door.ask(Request::plain("/metrics")).await?.accepted()?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    async fn time(&self, path: &str) -> Result<f64> {
        let begin = Instant::now();
        let answer = self.door.ask(Request::plain(path)).await.and_then(Answer::accepted);
        answer.map_err(|error| {
            self.served.failed(&format!("{path}: {}", error.message.unwrap_or_default()))
        })?;
        Ok(ms(begin.elapsed()))
    }
}

/// Of all series of a metric.
fn sum(scrape: &str, series: &str) -> f64 {
    let lines = scrape.lines().filter(|line| line.starts_with(series));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// By turns, the one with few tasks first.
pub(super) async fn compare(
    bench: &Workbench,
    size: &Size,
    figures: &mut Figures,
    stands: &[Stand],
) -> Result<()> {
    for round in 1..=size.rounds {
        bench.says(format!("views, round {round} of {}", size.rounds));
        let [few, many] = times(stands, "/metrics", size.pick(50, 10)).await?;
        figures.record(SCRAPE.0, median(&many), [median(&few)]);
        figures.record(SCRAPE.1, percentile(&many, 95.0), [percentile(&few, 95.0)]);
        for (spec, path) in VIEWS {
            let [few, many] = times(stands, path, size.pick(5, 2)).await?;
            figures.record(spec, median(&many), [median(&few)]);
        }
    }
    Ok(())
}

async fn times(stands: &[Stand], path: &str, samples: usize) -> Result<[Vec<f64>; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..samples {
        for (times, stand) in times.iter_mut().zip(stands) {
            times.push(stand.time(path).await?);
        }
    }
    Ok(times)
}
