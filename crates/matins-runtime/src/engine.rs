//! The engine of a node: loops around a store.
//!
//! ```text
//!  wake-up ─▶ producer (one per pool) ─ claim ─▶ attempt (one per slot) ─▶ completer ─ settle
//!                                                   ▲ stop, lease             │
//!     │          cancels ── lease keeper ───────────┘                        events, metrics
//!  lookout ─ look (for all who wait)
//!  scheduler ─ due ─ decide ─ fire        reaper ─ lapsed ─ settle       upkeep ─ expire, prune
//! ```
//!
//! Shutdown, in this order: record `draining` (what dies from here on was interrupted, not
//! lost), stop firing and claiming, let attempts end, end those that do not, write what they
//! left, give the worker's entry back, close the store.

mod attempt;
mod auditor;
mod canary;
mod clocks;
mod completer;
mod dead_man;
mod doorway;
mod health;
mod lease;
mod lookout;
mod operations;
mod pings;
mod producer;
mod reaper;
mod scheduler;
mod signs;
mod slots;
mod traces;
mod upkeep;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use matins_core::alert::judge;
use matins_core::store::{Settings, Stats, StoreError};
use matins_core::task::{Name, TaskId, WorkerId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::client::Client;
pub use crate::executors::Executors;
use crate::progress::Progress;
use crate::rules::Rules;

pub use health::{Health, Status};
pub use traces::Traces;

use attempt::Control;
use completer::Done;
use producer::Trouble;
use slots::Slots;

/// What a node is asked to be.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub node_id: String,
    pub lease: Duration,
    pub heartbeat: Duration,
    /// Called with every heartbeat: an outside service that is told when the calls stop.
    pub heartbeat_url: Option<String>,
    /// Where traces of tasks that have ended go.
    pub traces: Option<Traces>,
    /// How often a task that only shows that a pool works goes through each; `None`: never.
    pub canary: Option<Duration>,
    /// A loop that has not turned for this long, while the store answers, has stalled.
    pub stall_after: Duration,
    /// Time between two looks at the store without a wake-up; up to a quarter longer, so that nodes
    /// do not look together.
    pub poll: Duration,
    pub drain_timeout: Duration,
    pub roles: Roles,
    /// Run only this task, then nothing more: the one-task worker of `matins run`.
    pub only: Option<TaskId>,
    /// Tells this process from every other that ever had the node's name.
    pub incarnation: Uuid,
    /// No other server runs on this store, because this one holds the lock that only one can
    /// have: whoever was the server before is gone, whatever its node was called.
    pub sole: bool,
    /// What only servers that follow each other have in common, because a lock lets one at a time
    /// have it: this node's folder and name. Where it is set, it and not the name tells who the
    /// predecessor was.
    pub home: Option<String>,
    /// Where this node keeps what it tells by itself.
    pub alerts_file: Option<std::path::PathBuf>,
    /// Commands are run here, so that a dead predecessor may have left processes: they are ended
    /// before anything is taken over.
    pub runs_commands: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    pub scheduler: bool,
    pub worker: bool,
}

impl Roles {
    pub const ALL: Self = Self { scheduler: true, worker: true };
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            node_id: "local".to_owned(),
            lease: matins_core::lease::LEASE,
            heartbeat: Duration::from_secs(30),
            heartbeat_url: None,
            traces: None,
            canary: None,
            stall_after: Duration::from_secs(45),
            poll: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(30),
            roles: Roles::ALL,
            only: None,
            incarnation: Uuid::new_v4(),
            sole: false,
            home: None,
            alerts_file: None,
            runs_commands: false,
        }
    }
}

/// The mark of a node's processes. The store's id is part of it, and the node's home where it has
/// one, so that a node with the same name that is no predecessor is left alone.
pub fn run_mark(store_id: Uuid, home: Option<&str>, node_id: &str) -> String {
    format!("{}-{}", store_id.simple(), home.unwrap_or(node_id))
}

/// A running engine. Dropping it does not stop it; [`Engine::shutdown`] does.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
}

/// What the loops share.
pub(crate) struct Core {
    pub(crate) config: EngineConfig,
    pub(crate) client: Client,
    executors: Mutex<Arc<Executors>>,
    pub(crate) progress: Progress,
    settings: watch::Sender<Arc<Settings>>,
    slots: Mutex<BTreeMap<Name, Arc<Slots>>>,
    running: Mutex<HashMap<TaskId, Arc<Control>>>,
    worker: Mutex<WorkerId>,
    /// Held while the lease is renewed.
    renewing: tokio::sync::Mutex<()>,
    /// `CLOCK_BOOTTIME` nanoseconds until which this worker's claims stand.
    lease_until: watch::Sender<u64>,
    draining: AtomicBool,
    /// No more claims and fires.
    quiet: CancellationToken,
    /// Loops end.
    stop: CancellationToken,
    loops: TaskTracker,
    producers: TaskTracker,
    attempts: TaskTracker,
    done: tokio::sync::mpsc::Sender<Done>,
    heartbeat_ns: AtomicU64,
    /// A settlement cannot be written: this incarnation's claims are given up.
    lapsed: AtomicBool,
    /// The lease ran out before it could be renewed, and attempts were ended for it.
    overdue: AtomicBool,
    /// Before this reading of `CLOCK_BOOTTIME` no lease is judged.
    judge_from_ns: AtomicU64,
    /// This node has its place among those of the store.
    joined: watch::Sender<bool>,
}

/// Longest pause between two tries to join a store that was away at the start.
const JOIN_EVERY: Duration = Duration::from_secs(1);

/// How long a drain waits for a claim under way.
const PRODUCER_PATIENCE: Duration = Duration::from_secs(5);

/// Part of the drain limit that the kill ladder may take at most.
const LADDER_SHARE: u32 = 3;

/// How long the last processes may take to go after the ladder.
const SWEEP_PATIENCE: Duration = Duration::from_secs(2);

/// Finished attempts that may wait to be written before attempts have to wait.
const DONE_QUEUE: usize = 4_096;

impl Engine {
    /// Registers this incarnation, takes over what a dead predecessor of the same node left,
    /// and starts the loops on the current tokio runtime.
    pub async fn start(
        client: Client,
        config: EngineConfig,
        executors: Executors,
    ) -> Result<Self, StoreError> {
        let (done, finished) = tokio::sync::mpsc::channel(DONE_QUEUE);
        let clock = client.inner.clock.clone();
        let settings = client.inner.store.settings().await?;
        let worker = WorkerId::local(&config.node_id, std::process::id(), config.incarnation);
        let core = Arc::new(Core {
            progress: Progress::new(clock.clone()),
            settings: watch::Sender::new(Arc::new(settings)),
            slots: Mutex::default(),
            running: Mutex::default(),
            worker: Mutex::new(worker),
            renewing: tokio::sync::Mutex::new(()),
            lease_until: watch::Sender::new(0),
            draining: AtomicBool::new(false),
            quiet: CancellationToken::new(),
            stop: CancellationToken::new(),
            loops: TaskTracker::new(),
            producers: TaskTracker::new(),
            attempts: TaskTracker::new(),
            executors: Mutex::new(Arc::new(with_canary(executors, &config))),
            done,
            heartbeat_ns: AtomicU64::new(clock.boot_ns()),
            lapsed: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            judge_from_ns: AtomicU64::new(0),
            joined: watch::Sender::new(false),
            client,
            config,
        });
        core.sync_slots();
        let engine = Self { core };
        match engine.join(false).await {
            Ok(()) => {
                engine.spawn_first(finished);
                engine.spawn_running();
                engine.spawn_joined();
            }
            Err(error) if error.is_transient() && health::journals(&engine.core) => {
                tracing::warn!(%error, "this node takes tasks in, and runs them when it can");
                engine.spawn_first(finished);
                let runs = health::runs(&engine.core);
                if runs {
                    lease::end_own_leftovers(&engine.core).await;
                    engine.spawn_running();
                }
                engine.core.loops.spawn(engine.clone().join_later(runs));
            }
            Err(error) => return Err(error),
        }
        Ok(engine)
    }

    /// Takes its place among the nodes of the store: before it, nothing may be claimed there.
    /// `runs`: tasks run already, from what stood in for the store.
    async fn join(&self, runs: bool) -> Result<(), StoreError> {
        let core = &self.core;
        if health::journals(core) {
            // What is read now may be as it was before.
            return Err(StoreError::Unavailable("what stands in for it still does".to_owned()));
        }
        doorway::write(core).await?;
        core.client.follow_clock().await?;
        lease::take_over(core, runs).await?;
        lease::register(core).await?;
        reaper::hold_judgement(core);
        reaper::sweep(core).await?;
        core.joined.send_replace(true);
        Ok(())
    }

    /// `runs`: tasks run already.
    async fn join_later(self, runs: bool) {
        let beat = self.core.progress.watch("join", JOIN_EVERY);
        let mut trouble = Trouble::of(&self.core, &beat);
        loop {
            beat.doing("join");
            let Err(error) = self.join(runs).await else { break };
            let pause = trouble.again("join", &error).min(JOIN_EVERY);
            tokio::select! {
                () = self.core.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
        drop(beat);
        if !self.core.is_draining() {
            tracing::info!("the store is back: this node has joined it");
            self.core.sync_slots();
            if !runs {
                self.spawn_running();
            }
            self.spawn_joined();
        }
    }

    pub fn has_joined(&self) -> bool {
        *self.core.joined.borrow()
    }

    /// Resolves when this node has its place among the nodes of the store.
    pub async fn joined(&self) {
        let mut joined = self.core.joined.subscribe();
        if joined.wait_for(|joined| *joined).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What goes on whether the store is there or not.
    fn spawn_first(&self, finished: tokio::sync::mpsc::Receiver<Done>) {
        let core = &self.core;
        if core.config.only.is_none() {
            let place = crate::alerts::office::Place {
                teller: core.config.node_id.clone(),
                file: core.config.alerts_file.clone(),
            };
            crate::alerts::office::start(
                &core.client,
                place,
                &core.progress,
                &core.loops,
                &core.stop,
            );
        }
        core.loops.spawn(completer::run(core.clone(), finished));
        core.loops.spawn(health::watch_store(core.clone()));
        core.loops.spawn(health::heartbeat(core.clone()));
    }

    /// What runs tasks and fires schedules: also before it has joined, from what stands in for the
    /// store.
    fn spawn_running(&self) {
        let core = &self.core;
        core.loops.spawn(lease::enforce(core.clone()));
        core.loops.spawn(lease::keep_own(core.clone()));
        let Roles { worker, scheduler } = core.config.roles;
        if worker || scheduler {
            // Where no node is a worker, remote ones may be lost all the same.
            core.loops.spawn(reaper::run(core.clone()));
        }
        if worker {
            producer::start_missing(core);
        }
        if scheduler {
            core.loops.spawn(scheduler::run(core.clone()));
        }
    }

    /// What needs a place among the nodes of the store.
    fn spawn_joined(&self) {
        let core = &self.core;
        core.loops.spawn(lease::keep(core.clone()));
        core.loops.spawn(lease::watch_cancels(core.clone()));
        core.loops.spawn(upkeep::watch_changes(core.clone()));
        if let Some(traces) = core.config.traces.clone() {
            core.loops.spawn(traces::run(core.clone(), traces));
        }
        core.loops.spawn(lookout::run(core.clone()));
        let Roles { worker, scheduler } = core.config.roles;
        if worker {
            producer::start_missing(core);
            if let Some(every) = core.config.canary {
                core.loops.spawn(canary::run(core.clone(), every));
            }
        }
        if scheduler {
            core.loops.spawn(operations::run(core.clone()));
            core.loops.spawn(upkeep::run(core.clone()));
            core.loops.spawn(auditor::run(core.clone()));
            core.loops.spawn(pings::run(core.clone()));
        } else if core.config.only.is_none() {
            core.loops.spawn(upkeep::show_figures(core.clone()));
        }
    }

    pub fn client(&self) -> &Client {
        &self.core.client
    }

    pub fn config(&self) -> &EngineConfig {
        &self.core.config
    }

    /// Brings the ages of heartbeat and loops up to now, for a scrape: the loop that does it
    /// otherwise may be what hangs.
    pub fn refresh_metrics(&self) {
        health::refresh(&self.core);
    }

    pub fn health(&self) -> Health {
        health::health(&self.core)
    }

    /// What each loop does, and since when.
    pub fn loops(&self) -> Vec<crate::progress::LoopReport> {
        self.core.progress.report()
    }

    /// This process could not run until now: no loop is blamed for it.
    pub(crate) fn excuse(&self) {
        self.core.progress.excuse();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.core.stop.is_cancelled()
    }

    /// Records that what dies here from now on is no fault of the tasks: the process is about to
    /// be ended. There is no way back.
    pub(crate) async fn give_notice(&self) {
        self.core.draining.store(true, Ordering::SeqCst);
        self.core.quiet.cancel();
        if let Err(error) = lease::renew(&self.core).await {
            tracing::warn!(%error, "what runs will count as lost");
        }
    }

    pub fn worker(&self) -> WorkerId {
        self.core.worker()
    }

    /// Busy and total slots of each pool of this node.
    pub fn pools(&self) -> BTreeMap<Name, (u32, u32)> {
        let slots = self.core.slots();
        slots.iter().map(|(name, slots)| (name.clone(), (slots.busy(), slots.size()))).collect()
    }

    /// New rules and executors from the file; running attempts keep what they began with.
    pub async fn reload(&self, rules: Rules, executors: Executors) -> Result<(), StoreError> {
        if !self.has_joined() {
            let text = "this node has not joined its store yet";
            return Err(StoreError::Unavailable(text.to_owned()));
        }
        self.core.client.replace_rules(rules);
        let executors = Arc::new(with_canary(executors, &self.core.config));
        *self.core.executors.lock().unwrap_or_else(PoisonError::into_inner) = executors;
        doorway::write(&self.core).await?;
        self.core.sync_slots();
        if self.core.config.roles.worker {
            producer::start_missing(&self.core);
        }
        lease::register(&self.core).await?;
        self.core.client.inner.wake.ring_all();
        Ok(())
    }

    /// Records that this node is going away. Whatever dies under it from now on was interrupted.
    pub async fn begin_drain(&self) {
        self.core.draining.store(true, Ordering::SeqCst);
        self.core.quiet.cancel();
        if let Err(error) = lease::renew(&self.core).await {
            tracing::warn!(%error, "could not record that this node is draining");
        }
        // A claim under way gives back what it brings.
        self.core.producers.close();
        if tokio::time::timeout(PRODUCER_PATIENCE, self.core.producers.wait()).await.is_err() {
            tracing::warn!("a claim is still under way; what it brings will lapse");
        }
        self.core.attempts.close();
    }

    /// Drains and stops. Tasks that do not end in time are ended and given back.
    pub async fn shutdown(&self) {
        self.begin_drain().await;
        let limit = self.core.config.drain_timeout;
        // The ladder of what runs has to fit into the limit, and must leave time to end by itself.
        let grace = self.core.running().values().map(|control| control.grace()).max();
        let ladder = grace.unwrap_or_default().min(limit / LADDER_SHARE);
        self.end_attempts(limit.checked_sub(ladder).unwrap(), ladder).await;
        self.stop_loops().await;
    }

    /// Ends everything at once: the second signal.
    pub async fn shutdown_now(&self) {
        self.begin_drain().await;
        self.end_attempts(Duration::ZERO, Duration::ZERO).await;
        self.stop_loops().await;
    }

    /// Waits for attempts to end by themselves, then ends them within `ladder`.
    async fn end_attempts(&self, patience: Duration, ladder: Duration) {
        let attempts = &self.core.attempts;
        if tokio::time::timeout(patience, attempts.wait()).await.is_ok() {
            return;
        }
        for control in self.core.running().values() {
            control.stop_within(ladder);
        }
        if tokio::time::timeout(ladder + SWEEP_PATIENCE, attempts.wait()).await.is_err() {
            tracing::error!("attempts did not end within the drain limit; they are given up");
        }
    }

    async fn stop_loops(&self) {
        let core = &self.core;
        core.stop.cancel();
        core.loops.close();
        if tokio::time::timeout(Duration::from_secs(10), core.loops.wait()).await.is_err() {
            tracing::error!(
                "loops did not end; what they had not written is recovered at the next start"
            );
        }
        let now = core.client.now();
        if let Err(error) = core.client.inner.store.retire(&core.worker(), now).await {
            tracing::warn!(%error, "could not give back this worker's entry; its lease will lapse");
        } else if let Err(error) = signs::leave(core).await {
            tracing::warn!(%error, "could not say good-bye; the others will miss this node");
        }
        if let Err(error) = core.client.inner.store.close().await {
            tracing::warn!(%error, "the store did not close cleanly");
        }
    }
}

fn with_canary(mut executors: Executors, config: &EngineConfig) -> Executors {
    if config.canary.is_some() {
        executors.insert(matins_core::canary::KIND.into(), Arc::new(canary::Sing));
    }
    executors
}

impl Core {
    pub(crate) fn store(&self) -> &dyn matins_core::store::Store {
        &*self.client.inner.store
    }

    pub(crate) fn worker(&self) -> WorkerId {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_worker(&self, worker: WorkerId) {
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = worker;
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, BTreeMap<Name, Arc<Slots>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Arc<Control>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn executors(&self) -> Arc<Executors> {
        self.executors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How much of the time for which something has been late or silent counts.
    fn counted(&self, age: Duration) -> Duration {
        judge::counted(age, self.progress.steady_for())
    }

    /// Figures for whoever tells.
    fn offer_figures(&self, stats: Stats, at: Timestamp) {
        let steady = self.progress.steady_for();
        self.client.alerts().set_figures(judge::Figures { stats, at, steady });
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Sets each pool's slots to the stored size, else the file's.
    fn sync_slots(&self) {
        let settings = self.settings.borrow().clone();
        let sizes = match self.config.only {
            Some(_) => BTreeMap::from([(crate::rules::DEFAULT_POOL.into(), 1)]),
            None => self.client.rules().pool_sizes(),
        };
        let mut slots = self.slots();
        for (pool, size) in &sizes {
            let stored = settings.pools.get(pool).and_then(|setting| setting.size);
            let size = stored.unwrap_or(*size);
            slots.entry(pool.clone()).or_insert_with(|| Arc::new(Slots::new(size))).resize(size);
        }
        // A pool that left the file claims nothing more; its running tasks end by themselves.
        for (pool, gone) in slots.iter().filter(|(pool, _)| !sizes.contains_key(*pool)) {
            tracing::info!(%pool, "the pool is no longer in the file");
            gone.resize(0);
        }
    }
}
