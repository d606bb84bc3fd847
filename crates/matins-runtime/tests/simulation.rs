//! The engine in a seeded simulation: two nodes on one store, a paused clock, a bad line between
//! them, nodes cut off for a while or for ever. Whatever the seed, the promises hold.
//!
//! `MATINS_SIMULATION_SEEDS=N` runs the seeds 0..N (default 100); `MATINS_SIMULATION_SEED=S`
//! runs one of them.

#[path = "simulation/line.rs"]
mod line;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use matins_core::Json;
use matins_core::executor::{Executor, Finished, Run};
use matins_core::lifecycle::Outcome;
use matins_core::memory::MemoryStore;
use matins_core::page::PageRequest;
use matins_core::request::EnqueueRequest;
use matins_core::schedule::{OccurrenceKind, Overlap, ScheduleSpec};
use matins_core::store::{Stats, Store, TaskFilter};
use matins_core::task::{AttemptOutcome, ErrorClass, NewTask, State, TaskError, TaskId};
use matins_runtime::clock::{Clock as _, SimulatedClock};
use matins_runtime::engine::Executors;
use matins_runtime::rules::{PoolRule, Rules, TypeExecutor, TypeRule};
use matins_runtime::{Client, Engine, EngineConfig};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use line::Line;

const TASKS: usize = 60;
const LEASE: Duration = Duration::from_secs(10);

/// What an observer outside the program saw of one run.
#[derive(Debug, Clone)]
struct Seen {
    task: TaskId,
    began: tokio::time::Instant,
    ended: Option<tokio::time::Instant>,
}

type Witness = Arc<Mutex<Vec<Seen>>>;

/// Works for a while, then fails or succeeds as the dice say. Ends at once when told to.
struct Worker {
    witness: Witness,
    /// The process is gone: its work has stopped, and nobody hears of it.
    dead: CancellationToken,
    dice: Mutex<StdRng>,
}

#[async_trait]
impl Executor for Worker {
    async fn run(&self, run: Run) -> Finished {
        let task = run.claimed.task.id;
        let index = {
            let mut seen = self.witness.lock().unwrap();
            let began = tokio::time::Instant::now();
            seen.push(Seen { task, began, ended: None });
            seen.len() - 1
        };
        let (length, fate) = {
            let mut dice = self.dice.lock().unwrap();
            (dice.random_range(0..8_000u64), dice.random_range(0..10u32))
        };
        let told = tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(length)) => None,
            reason = run.supervision.stopped() => Some(reason),
            () = self.dead.cancelled() => {
                self.witness.lock().unwrap()[index].ended = Some(tokio::time::Instant::now());
                std::future::pending().await
            }
        };
        self.witness.lock().unwrap()[index].ended = Some(tokio::time::Instant::now());
        if told.is_some() {
            return Outcome::Interrupted.into();
        }
        let error = |text| TaskError::new(ErrorClass::Error, text);
        match fate {
            0 => Outcome::Failed { error: error("bad luck"), permanent: true, retry_after: None },
            1 | 2 => Outcome::Failed { error: error("again"), permanent: false, retry_after: None },
            _ => Outcome::Completed { result: Some(Json::null()), result_dropped_bytes: None },
        }
        .into()
    }
}

struct Node {
    engine: Engine,
    line: Arc<Line>,
    dead: CancellationToken,
}

struct World {
    store: Arc<dyn Store>,
    clock: SimulatedClock,
    witness: Witness,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let wall = Timestamp::from_second(1_800_000_000).unwrap();
        Self {
            store: Arc::new(MemoryStore::new(Uuid::from_u64_pair(seed, 1))),
            clock: SimulatedClock::starting_at(wall, seed),
            witness: Witness::default(),
            seed,
        }
    }

    async fn start(&self, n: usize, round: u64) -> Node {
        let seed = self.seed_of(n, round);
        self.start_on(Line::new(self.store.clone(), seed, 3), n, round).await
    }

    fn seed_of(&self, n: usize, round: u64) -> u64 {
        self.seed.wrapping_mul(31).wrapping_add(n as u64 * 7 + round)
    }

    async fn start_on(&self, line: Line, n: usize, round: u64) -> Node {
        let (seed, line) = (self.seed_of(n, round), Arc::new(line));
        let rules = Rules {
            types: BTreeMap::from([("work".into(), TypeRule::new(TypeExecutor::Handler))]),
            pools: BTreeMap::from([(
                "default".into(),
                PoolRule { max_workers: 5, types: [].into() },
            )]),
            ..Rules::default()
        };
        let client = Client::with_clock(line.clone(), rules, Arc::new(self.clock.clone()));
        let dice = Mutex::new(StdRng::seed_from_u64(seed));
        let dead = CancellationToken::new();
        let worker = Worker { witness: self.witness.clone(), dead: dead.clone(), dice };
        let executors: Executors = BTreeMap::from([("work".into(), Arc::new(worker) as _)]);
        let config = EngineConfig {
            node_id: format!("node-{n}"),
            lease: LEASE,
            incarnation: Uuid::from_u64_pair(seed, round),
            ..EngineConfig::default()
        };
        loop {
            match Engine::start(client.clone(), config.clone(), executors.clone()).await {
                Ok(engine) => return Node { engine, line, dead },
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    async fn tasks(&self) -> Vec<matins_core::Task> {
        let mut page = PageRequest { limit: 1_000, cursor: None };
        let mut tasks = Vec::new();
        loop {
            let found = self.store.tasks(&TaskFilter::default(), &page).await.unwrap();
            tasks.extend(found.items);
            match found.next {
                Some(next) => page.cursor = Some(next),
                None => return tasks,
            }
        }
    }
}

async fn simulate(seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let world = World::new(seed);
    let front =
        Client::with_clock(world.store.clone(), Rules::default(), Arc::new(world.clock.clone()));
    let mut accepted = Vec::new();
    for n in 0..TASKS {
        let mut request = EnqueueRequest::new("work", Json::trusted(n.to_string()));
        request.delay = Some(Duration::from_millis(dice.random_range(0..60_000)));
        if n % 3 == 0 {
            request.execution_key = Some(format!("key-{}", n / 6));
        }
        accepted.push(front.enqueue(request, "test").await.unwrap().task.id);
    }
    for (name, when, overlap) in [
        ("beat", "@every 7s", Overlap::Skip),
        ("line", "*/10 * * * * *", Overlap::BufferAll),
        ("wall", "*/3 8,9,10 * * *", Overlap::CancelPrevious),
    ] {
        let mut spec = ScheduleSpec::new(name, when, "work");
        spec.overlap = overlap;
        spec.max_retries = Some(0);
        front.put_schedule(spec, "test").await.unwrap();
    }
    let mut nodes = [world.start(0, 0).await, world.start(1, 0).await];
    for round in 1..=6u64 {
        tokio::time::sleep(Duration::from_millis(dice.random_range(500..25_000))).await;
        let n = dice.random_range(0..2usize);
        match dice.random_range(0..5u32) {
            // Cut off for a while: shorter or longer than its lease.
            0 | 1 => {
                nodes[n].line.cut(true);
                tokio::time::sleep(Duration::from_millis(dice.random_range(500..30_000))).await;
                nodes[n].line.cut(false);
            }
            // Killed; a successor of the same name starts.
            2 => {
                nodes[n].line.cut(true);
                nodes[n].dead.cancel();
                tokio::task::yield_now().await;
                let node = world.start(n, round).await;
                nodes[n] = node;
            }
            3 => world.clock.step(dice.random_range(-7_200..7_200) * 1_000_000),
            _ => {
                nodes[n].engine.shutdown().await;
                nodes[n] = world.start(n, round).await;
            }
        }
    }
    for name in ["beat", "line", "wall"] {
        front.pause_schedule(name, Some("the end".to_owned()), "test").await.unwrap();
    }
    settle_down(&world).await;
    check(&world, &accepted).await;
    check_schedules(&world).await;
}

/// Waits until nothing is live any more; ten hours of simulated time are plenty.
async fn settle_down(world: &World) {
    for _ in 0..2_000 {
        if world.tasks().await.iter().all(|task| !task.state.is_live()) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    panic!("seed {}: tasks are still live: {:#?}", world.seed, world.tasks().await);
}

async fn check(world: &World, accepted: &[TaskId]) {
    let seed = world.seed;
    let tasks: HashMap<TaskId, _> =
        world.tasks().await.into_iter().map(|task| (task.id, task)).collect();
    for id in accepted {
        assert!(tasks.contains_key(id), "seed {seed}: task {id} is lost");
    }
    let mut completed_keys: HashMap<&str, TaskId> = HashMap::new();
    for task in tasks.values().filter(|task| task.state == State::Completed) {
        if let Some(key) = &task.execution_key {
            let before = completed_keys.insert(key, task.id);
            assert_eq!(before, None, "seed {seed}: key {key} completed twice");
        }
    }
    let seen = world.witness.lock().unwrap().clone();
    no_two_at_once(seed, &seen);
    for task in tasks.values() {
        let runs = seen.iter().filter(|run| run.task == task.id).count();
        let attempts = world.store.attempts(task.id).await.unwrap();
        let completed =
            attempts.iter().filter(|a| a.outcome == Some(AttemptOutcome::Completed)).count();
        assert!(completed <= 1, "seed {seed}: task {} completed {completed} times", task.id);
        assert!(
            runs <= attempts.len(),
            "seed {seed}: task {} ran {runs} times in {} recorded attempts",
            task.id,
            attempts.len()
        );
        assert!(attempts.iter().all(|attempt| attempt.outcome.is_some()), "seed {seed}");
    }
}

/// What was expected is what became of it, and no label fired twice.
async fn check_schedules(world: &World) {
    let seed = world.seed;
    let page = PageRequest { limit: 1_000, cursor: None };
    let schedules = world.store.schedules(&page).await.unwrap().items;
    assert_eq!(schedules.len(), 3);
    for due in schedules {
        let (name, balance) = (&due.state.spec.name, due.state.balance);
        let decided = balance.fired + balance.coalesced + balance.skipped + balance.missed;
        assert_eq!(balance.expected, decided, "seed {seed}: {name} does not balance: {balance:?}");
        let mut recorded = 0;
        let mut labels = HashSet::new();
        let mut page = page.clone();
        loop {
            let found = world.store.occurrences(Some(name), &page).await.unwrap();
            for one in found.items.iter().filter(|o| o.kind == OccurrenceKind::Scheduled) {
                recorded += one.count;
                let fresh = labels.insert(one.label.clone());
                assert!(fresh, "seed {seed}: {name} decided {} twice", one.label);
            }
            match found.next {
                Some(next) => page.cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(recorded, decided, "seed {seed}: {name}: records and balance differ");
    }
}

/// The holder of a lapsed lease ends its work before anybody else may begin.
fn no_two_at_once(seed: u64, seen: &[Seen]) {
    for (n, one) in seen.iter().enumerate() {
        for other in &seen[n + 1..] {
            if one.task != other.task {
                continue;
            }
            let apart = one.ended.is_some_and(|end| end <= other.began)
                || other.ended.is_some_and(|end| end <= one.began);
            assert!(apart, "seed {seed}: two runs at once: {one:?} and {other:?}");
        }
    }
}

fn on_a_paused_clock(what: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(what);
}

fn run_seed(seed: u64) {
    on_a_paused_clock(simulate(seed));
}

#[test]
fn promises_hold_whatever_the_seed() {
    if let Ok(seed) = std::env::var("MATINS_SIMULATION_SEED") {
        return run_seed(seed.parse().expect("MATINS_SIMULATION_SEED is a number"));
    }
    let seeds = std::env::var("MATINS_SIMULATION_SEEDS").map_or(100, |n| n.parse().unwrap());
    for seed in 0..seeds {
        run_seed(seed);
    }
}

/// Half a minute of expiring does not make the figures older than they may be.
#[test]
fn figures_stay_young_whatever_else_upkeep_has_to_do() {
    const AGE_MAX: usize = 15;
    on_a_paused_clock(async {
        let world = World::new(0);
        let now = || world.clock.now();
        let task = |n: u64| NewTask {
            expires_at: Some(now() + Duration::from_secs(30)),
            ..NewTask::new(TaskId(Uuid::from_u64_pair(n, 0)), "work", Json::null(), far(now()))
        };
        world.store.enqueue((0..30_000).map(task).collect(), now()).await.unwrap();
        let line = Line::paced(world.store.clone(), Duration::from_secs(1));
        let node = world.start_on(line, 0, 0).await;
        let mut true_ones = Vec::new();
        for second in 0..120 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            true_ones.push(pending(&world.store.stats(now()).await.unwrap()));
            let shown = shown(&node.engine.client().metrics().render());
            if second > AGE_MAX {
                let young = &true_ones[true_ones.len() - AGE_MAX..];
                assert!(young.contains(&shown), "second {second}: {shown} is none of {young:?}");
            }
        }
        assert!(true_ones.contains(&30_000) && true_ones.ends_with(&[0]), "{true_ones:?}");
    });
}

fn far(now: Timestamp) -> Timestamp {
    now + Duration::from_secs(86_400)
}

fn pending(stats: &Stats) -> u64 {
    stats.tasks.iter().filter(|((_, state), _)| *state == State::Pending).map(|(_, n)| n).sum()
}

fn shown(metrics: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with("matins_tasks{state=\"pending\""));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}
