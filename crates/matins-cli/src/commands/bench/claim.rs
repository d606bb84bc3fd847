//! What a claim costs against what else is in the store. It must not depend on it.
//!
//! Two stores, a small and a large one, are claimed from by turns; both keep their backlog. The
//! large one has pending, future-dated and finished tasks, and at the head of its line tasks
//! that the worker may not or cannot run. All of it is put there through the store itself:
//! accepted, claimed and settled like any other task.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::Json;
use matins_core::lifecycle::{Outcome, Settlement, Trace, later, settle};
use matins_core::rate::Rate;
use matins_core::retry::RetryPolicy;
use matins_core::store::{ClaimRequest, PoolChange, SettingChange, Store, TypeLimit, Types};
use matins_core::task::{Claimed, ErrorClass, Name, NewTask, TaskError, WorkerId};
use matins_runtime::client::new_id;

use super::Size;
use super::figures::{Figures, Spec, Unit, median, ms};
use super::node::{self, POOL};
use super::workbench::Workbench;
use crate::failure::{Failure, Result};

/// Tasks of one call while a store is filled.
pub(super) const FILL: usize = 5_000;

pub(super) const KIND: &str = "noop";
/// A type that the worker does not run, one with a rate that is spent, one whose key is taken.
const UNKNOWN: &str = "unknown";
const LIMITED: &str = "limited";
const KEYED: &str = "keyed";
const PAUSED_POOL: &str = "paused";

const fn against_small(name: &'static str, what: &'static str) -> Spec {
    let against = &["the same with 10 000 pending and nothing else"];
    Spec { name, what, unit: Unit::Millis, against }
}

/// Tasks of one claim. The larger ones say more: there the commit is the smaller part.
const CLAIMS: [(usize, Spec); 2] = [
    (100, against_small("claim_100", "claim of 100, large store, commit included")),
    (1_000, against_small("claim_1000", "claim of 1 000, large store, commit included")),
];

#[derive(Clone, Copy)]
pub(super) struct Amounts {
    pub(super) pending: usize,
    pub(super) later: usize,
    pub(super) finished: usize,
    /// Of each kind of task that stands before all others and cannot run.
    pub(super) blocked: usize,
}

pub(super) const SMALL: Amounts = Amounts { pending: 10_000, later: 0, finished: 0, blocked: 0 };

fn amounts(size: &Size) -> Amounts {
    match (size.quick, size.large) {
        (true, _) => Amounts { pending: 20_000, later: 5_000, finished: 10_000, blocked: 1_000 },
        (_, false) => {
            Amounts { pending: 200_000, later: 100_000, finished: 200_000, blocked: 10_000 }
        }
        (_, true) => {
            Amounts { pending: 2_000_000, later: 1_000_000, finished: 5_000_000, blocked: 100_000 }
        }
    }
}

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    let large = amounts(size);
    bench.says("claim: filling the small store");
    let places = [bench.place("small")?, bench.place("large")?];
    let small = Shelf::fill(bench, "small", node::store(&places[0]).await?, SMALL).await?;
    let large = Shelf::fill(bench, "large", node::store(&places[1]).await?, large).await?;
    compare(bench, size, figures, [small, large]).await
}

/// Claims from a small store and a large one, by turns.
pub(super) async fn compare(
    bench: &Workbench,
    size: &Size,
    figures: &mut Figures,
    shelves: [Shelf; 2],
) -> Result<()> {
    for round in 1..=size.rounds {
        bench.says(format!("claim, round {round} of {}", size.rounds));
        for (tasks, spec) in CLAIMS {
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..size.pick(30, 5) {
                for (times, shelf) in times.iter_mut().zip(&shelves) {
                    times.push(ms(shelf.claim(tasks).await?));
                }
            }
            let [small, large] = times.map(|times| median(&times));
            figures.record(spec, large, [small]);
        }
    }
    for shelf in shelves {
        shelf.store.close().await.map_err(node::said)?;
    }
    Ok(())
}

/// A store with something in it, and a worker that claims from it.
pub(super) struct Shelf {
    store: Arc<dyn Store>,
    worker: WorkerId,
    /// `None`: any.
    pool: Option<Name>,
    kinds: Arc<BTreeSet<Name>>,
}

impl Shelf {
    pub(super) fn on(store: Arc<dyn Store>, pool: Option<Name>) -> Self {
        Self::of_types(store, pool, [KIND, LIMITED, KEYED].map(Name::from))
    }

    pub(super) fn of_types(
        store: Arc<dyn Store>,
        pool: Option<Name>,
        kinds: impl IntoIterator<Item = Name>,
    ) -> Self {
        let kinds = Arc::new(kinds.into_iter().collect());
        Self { store, worker: WorkerId("bench".into()), pool, kinds }
    }

    async fn fill(
        bench: &Workbench,
        name: &str,
        store: Arc<dyn Store>,
        amounts: Amounts,
    ) -> Result<Self> {
        let shelf = Self::on(store, None);
        let says = |what: &str, n: usize| bench.says(format!("claim: {name} store, {n} {what}"));
        says("finished", amounts.finished);
        shelf.put(amounts.finished, |_| {}).await?;
        while shelf.run(FILL).await? > 0 {}
        says("later", amounts.later);
        let tomorrow = later(Timestamp::now(), Duration::from_secs(86_400));
        shelf.put(amounts.later, |task| task.run_at = tomorrow).await?;
        says("in the way", amounts.blocked * 4);
        shelf.block(amounts.blocked).await?;
        says("pending", amounts.pending);
        shelf.put(amounts.pending, |_| {}).await?;
        Ok(shelf)
    }

    /// Tasks that stand before all others and cannot run.
    pub(super) async fn block(&self, n: usize) -> Result<()> {
        if n == 0 {
            return Ok(());
        }
        let rate = "1/d".parse::<Rate>().map_err(node::said)?;
        let limit = TypeLimit {
            kind: LIMITED.into(),
            rate_limit: Some(rate),
            concurrency: None,
            concurrency_key: None,
            per_key: 1,
        };
        let change = PoolChange { paused: Some(true), ..PoolChange::default() };
        let pause = SettingChange::Pool { name: PAUSED_POOL.into(), change };
        for change in [SettingChange::Limits(vec![limit]), pause] {
            self.store.change_setting(change, None).await.map_err(node::said)?;
        }
        self.put(n, |task| task.kind = UNKNOWN.into()).await?;
        self.put(n, |task| task.pool = PAUSED_POOL.into()).await?;
        for kind in [LIMITED, KEYED] {
            let first = |task: &mut NewTask| {
                task.kind = kind.into();
                task.priority = 100;
                task.concurrency_key = (kind == KEYED).then(|| "one".into());
            };
            self.put(n, first).await?;
        }
        // One of each runs and uses up its type's limit.
        let blocked = Arc::new([LIMITED, KEYED].into_iter().map(Name::from).collect());
        let claimed = self.hand_out_of(blocked, FILL).await?;
        match claimed.len() {
            2 => Ok(()),
            n => Err(Failure::failed(format!("{n} tasks of limited types run, not 2"))),
        }
    }

    pub(super) async fn put(&self, n: usize, change: impl Fn(&mut NewTask)) -> Result<()> {
        let payload: Json = node::json(n)?;
        for from in (0..n).step_by(FILL) {
            let now = Timestamp::now();
            let new = |_| {
                let mut task = NewTask::new(new_id(), KIND, payload.clone(), now);
                task.pool = POOL.into();
                change(&mut task);
                task
            };
            let tasks = (from..n.min(from + FILL)).map(new).collect();
            self.store.enqueue(tasks, now).await.map_err(node::said)?;
        }
        Ok(())
    }

    async fn hand_out(&self, max: usize) -> Result<Vec<Claimed>> {
        self.hand_out_of(self.kinds.clone(), max).await
    }

    async fn hand_out_of(&self, kinds: Arc<BTreeSet<Name>>, max: usize) -> Result<Vec<Claimed>> {
        let now = Timestamp::now();
        let request = ClaimRequest {
            worker: self.worker.clone(),
            pool: self.pool.clone(),
            types: Types::Only(kinds),
            ids: None,
            max,
            token: 1,
            repeated: false,
            lease_until: Some(later(now, Duration::from_secs(86_400))),
            now,
        };
        Ok(self.store.claim(request).await.map_err(node::said)?.claimed)
    }

    async fn settle(&self, claimed: &[Claimed], outcome: fn(&Claimed) -> Outcome) -> Result<()> {
        let now = Timestamp::now();
        let policy = RetryPolicy::default();
        let ended = |claimed: &Claimed| -> Settlement {
            settle(claimed, outcome(claimed), Trace::default(), &policy, now, 0.0)
        };
        let items = claimed.iter().map(ended).collect();
        self.store.settle(items).await.map_err(node::said).map(drop)
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// What it knows elsewhere is cleared only after it has gone.
    pub(super) async fn close(self) -> Result<()> {
        self.store.close().await.map_err(node::said)
    }

    /// Runs at most `max` tasks; how many there were.
    pub(super) async fn run(&self, max: usize) -> Result<usize> {
        let claimed = self.hand_out(max).await?;
        self.settle(&claimed, completed).await?;
        Ok(claimed.len())
    }

    /// Makes dead letters of at most `max` tasks; how many there were.
    pub(super) async fn fail(&self, max: usize) -> Result<usize> {
        let claimed = self.hand_out(max).await?;
        self.settle(&claimed, hopeless).await?;
        Ok(claimed.len())
    }

    /// Time of one claim; what it took is settled and replaced.
    async fn claim(&self, tasks: usize) -> Result<Duration> {
        let begin = Instant::now();
        let claimed = self.hand_out(tasks).await?;
        let time = begin.elapsed();
        if claimed.len() != tasks {
            let what = format!("a claim of {tasks} brought {}", claimed.len());
            return Err(Failure::failed(what));
        }
        self.settle(&claimed, completed).await?;
        self.put(tasks, |_| {}).await?;
        Ok(time)
    }
}

const fn completed(_: &Claimed) -> Outcome {
    Outcome::Completed { result: None, result_dropped_bytes: None }
}

/// For one of a few reasons.
fn hopeless(claimed: &Claimed) -> Outcome {
    const REASONS: [&str; 5] = ["refused", "denied", "missing", "broken", "late"];
    let reason = REASONS[claimed.claim.fence as usize % REASONS.len()];
    let error = TaskError::new(ErrorClass::Exit, reason);
    Outcome::Failed { error, permanent: true, retry_after: None }
}
