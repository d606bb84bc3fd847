//! Opening a store and starting an engine around the program's handlers.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use matins_core::executor::Executor;
use matins_core::schedule::ScheduleSpec;
use matins_core::store::{Store, StoreError};
use matins_core::task::Name;
use matins_runtime::clock::{Clock, HostClock};
use matins_runtime::engine::Executors;
use matins_runtime::lock::{LockError, NodeLock};
use matins_runtime::rules::{
    AllowCommands, DEFAULT_POOL, OnStuck, Policy, Rules, TypeExecutor, TypeRule,
};
use matins_runtime::sentry::{Sentry, Watcher};
use matins_runtime::{Client, ClientError, Engine, EngineConfig};
use matins_store::{Options, PostgresStore, SqliteStore, postgres};
use serde::Serialize;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::Task;
use crate::context::Context;
use crate::enqueue::{Enqueue, EnqueueMany};
use crate::error::TaskError;
use crate::handler::{Call, HandlerExecutor, asynchronous, blocking};
use crate::pool::Pool;

/// Why Matins could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Only how it begins is told: the rest may hold a password.
    #[error(
        "{begins:?} is no store: expected sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE"
    )]
    Url { begins: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(transparent)]
    Schedule(#[from] ClientError),
    #[error("type {0} has two handlers")]
    TwoHandlers(Name),
    #[error("type {kind} is in pools {first} and {second}")]
    TwoPools { kind: Name, first: Name, second: Name },
    #[error("cannot start threads: {0}")]
    Threads(#[from] io::Error),
}

/// What a program sets up before it starts.
pub struct MatinsBuilder {
    url: String,
    store: Option<Arc<dyn Store>>,
    clock: Arc<dyn Clock>,
    pools: Vec<Pool>,
    handlers: Vec<(Name, Call)>,
    policies: BTreeMap<Name, (Policy, OnStuck)>,
    schedules: Vec<ScheduleSpec>,
    config: EngineConfig,
    /// By a clock that a test sets nobody can judge whether a loop hangs.
    is_watched: bool,
}

/// A running Matins: enqueue through it, shut it down when the program ends.
pub struct Matins {
    engine: Engine,
    threads: Threads,
    _sentry: Option<Sentry>,
    _lock: Option<NodeLock>,
}

/// Nobody starts a program of others again: a loop that hangs is told and written down, and the
/// process lives on. [`Engine::health`] says it to whoever asks.
struct Unattended;

impl Watcher for Unattended {
    fn fresh(&mut self) {}

    fn stalled(&mut self, _loops: &[String]) {}

    fn is_restarted(&self) -> bool {
        false
    }
}

/// Engine loops and each pool's handlers run on threads of their own.
///
/// Dropped without [`Matins::shutdown`], or after a start that failed, they end at once, whoever
/// drops them; claims are recovered at the next start.
struct Threads {
    engine: Handle,
    all: Vec<Runtime>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.all.drain(..).for_each(Runtime::shutdown_background);
    }
}

/// Threads of the engine loops: enough that one blocked in the kernel does not stop the lease.
const ENGINE_THREADS: usize = 2;

impl Matins {
    /// A store by its URL: `sqlite:PATH`, or `postgres://USER:PASSWORD@HOST/DATABASE` with what
    /// libpq knows of TLS (`sslmode`, `sslrootcert`, `sslcert`, `sslkey`).
    pub fn open(url: impl Into<String>) -> MatinsBuilder {
        MatinsBuilder {
            url: url.into(),
            store: None,
            clock: Arc::new(HostClock),
            pools: Vec::new(),
            handlers: Vec::new(),
            policies: BTreeMap::new(),
            schedules: Vec::new(),
            config: EngineConfig { node_id: String::new(), ..EngineConfig::default() },
            is_watched: true,
        }
    }

    /// A store that is open already.
    pub fn with_store(store: Arc<dyn Store>) -> MatinsBuilder {
        MatinsBuilder { store: Some(store), ..Self::open("") }
    }

    pub fn enqueue<T: Task>(&self, payload: T) -> Enqueue {
        Enqueue::new(self.client().clone(), &payload)
    }

    /// Many tasks of a type in one commit.
    pub fn enqueue_many<T: Task>(&self, payloads: impl IntoIterator<Item = T>) -> EnqueueMany {
        EnqueueMany::new(self.client().clone(), payloads)
    }

    /// Enqueues in the caller's own transaction: the task exists when that commits.
    pub async fn enqueue_in<T: Task>(
        &self,
        tx: &mut impl crate::Transaction,
        payload: T,
    ) -> Result<matins_runtime::client::Answer, ClientError> {
        self.enqueue(payload).in_transaction(tx).await
    }

    /// Everything else: look, cancel, replay, schedules.
    pub fn client(&self) -> &Client {
        self.engine.client()
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Lets running tasks end within the drain limit, gives the rest back, closes the store.
    pub async fn shutdown(self) {
        let engine = self.engine.clone();
        let stopped = self.threads.engine.spawn(async move { engine.shutdown().await });
        if stopped.await.is_err() {
            tracing::error!("the engine panicked while it shut down");
        }
    }
}

impl MatinsBuilder {
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pools.push(pool);
        self
    }

    /// An async handler of `T`.
    pub fn handler<T, O, F, Fut>(mut self, handler: F) -> Self
    where
        T: Task,
        O: Serialize + Send + 'static,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, TaskError>> + Send + 'static,
    {
        self.handlers.push((T::TYPE.into(), asynchronous(handler)));
        self
    }

    /// A handler of `T` that blocks or computes: it runs on threads that may.
    pub fn blocking_handler<T, O, F>(mut self, handler: F) -> Self
    where
        T: Task,
        O: Serialize + Send + 'static,
        F: Fn(T, Context) -> Result<O, TaskError> + Send + Sync + 'static,
    {
        self.handlers.push((T::TYPE.into(), blocking(handler)));
        self
    }

    /// Time limit, retries and backoff of a type.
    pub fn policy<T: Task>(mut self, policy: Policy) -> Self {
        self.policies.entry(T::TYPE.into()).or_default().0 = policy;
        self
    }

    /// What a blocking handler of `T` that ignores its end means.
    pub fn on_stuck<T: Task>(mut self, on_stuck: OnStuck) -> Self {
        self.policies.entry(T::TYPE.into()).or_default().1 = on_stuck;
        self
    }

    /// A schedule that this program owns: its specification is written at every start.
    pub fn schedule(mut self, spec: ScheduleSpec) -> Self {
        self.schedules.push(spec);
        self
    }

    /// Name of this node, `library` when it is not given; on PostgreSQL, where several may live at
    /// the same time and each needs a name of its own, `library-` and something random.
    pub fn node_id(mut self, node_id: impl Into<String>) -> Self {
        self.config.node_id = node_id.into();
        self
    }

    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    pub fn drain_timeout(mut self, limit: Duration) -> Self {
        self.config.drain_timeout = limit;
        self
    }

    /// A clock of the program's own, for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self.is_watched = false;
        self
    }

    /// Opens the store, takes over what a dead predecessor left, and starts to work.
    pub async fn start(self) -> Result<Matins, OpenError> {
        let (store, lock) = self.open_store().await?;
        let kind = store.info().kind.to_owned();
        let rules = self.rules()?;
        let client = Client::with_clock(store, rules.clone(), self.clock.clone());
        let engine_threads = Builder::new_multi_thread()
            .worker_threads(ENGINE_THREADS)
            .thread_name("matins-engine")
            .enable_all()
            .build()?;
        let engine = engine_threads.handle().clone();
        let mut threads = Threads { engine, all: vec![engine_threads] };
        let executors = self.executors(&client, &rules, &mut threads.all)?;
        let mut config = EngineConfig { sole: lock.is_some(), ..self.config };
        if config.node_id.is_empty() {
            config.node_id = match &*kind {
                "postgres" => format!("library-{}", uuid::Uuid::new_v4().simple()),
                _ => "library".to_owned(),
            };
        }
        let starting = threads.engine.spawn(Engine::start(client, config, executors));
        let engine = starting.await.map_err(io::Error::other)??;
        let watched = self
            .is_watched
            .then(|| Sentry::start(engine.clone(), threads.engine.clone(), Box::new(Unattended)));
        let sentry = watched.transpose()?;
        let matins = Matins { engine, threads, _sentry: sentry, _lock: lock };
        for spec in self.schedules {
            matins.client().put_schedule(spec, "library").await?;
        }
        Ok(matins)
    }

    async fn open_store(&self) -> Result<(Arc<dyn Store>, Option<NodeLock>), OpenError> {
        if let Some(store) = &self.store {
            return Ok((store.clone(), None));
        }
        if ["postgres:", "postgresql:"].iter().any(|scheme| self.url.starts_with(scheme)) {
            let store = PostgresStore::open(&self.url, postgres::Options::default()).await?;
            return Ok((Arc::new(store), None));
        }
        let path = sqlite_path(&self.url)?;
        let lock = NodeLock::acquire(&lock_path(&path))?;
        let opened =
            tokio::task::spawn_blocking(move || SqliteStore::open(&path, Options::default()));
        let store = opened.await.map_err(io::Error::other)??;
        Ok((Arc::new(store), Some(lock)))
    }

    fn rules(&self) -> Result<Rules, OpenError> {
        let mut rules = Rules { allow_commands: AllowCommands::None, ..Rules::default() };
        for pool in &self.pools {
            for kind in &pool.rule.types {
                let other = rules.pools.iter().find(|(_, rule)| rule.types.contains(kind));
                if let Some((first, _)) = other {
                    let (first, second) = (first.clone(), pool.name.clone());
                    return Err(OpenError::TwoPools { kind: kind.clone(), first, second });
                }
            }
            rules.pools.insert(pool.name.clone(), pool.rule.clone());
        }
        for (kind, _) in &self.handlers {
            let mut rule = TypeRule::new(TypeExecutor::Handler);
            if let Some((policy, on_stuck)) = self.policies.get(kind) {
                (rule.policy, rule.on_stuck) = (*policy, *on_stuck);
            }
            if rules.types.insert(kind.clone(), rule).is_some() {
                return Err(OpenError::TwoHandlers(kind.clone()));
            }
        }
        Ok(rules)
    }

    fn executors(
        &self,
        client: &Client,
        rules: &Rules,
        runtimes: &mut Vec<Runtime>,
    ) -> Result<Executors, OpenError> {
        let mut handles: BTreeMap<Name, Handle> = BTreeMap::new();
        for (pool, size) in rules.pool_sizes() {
            let runtime = pool_threads(&pool, size)?;
            handles.insert(pool, runtime.handle().clone());
            runtimes.push(runtime);
        }
        let mut executors = Executors::new();
        for (kind, call) in &self.handlers {
            let pool = rules.pool_of(kind);
            let threads = handles.get(&pool).or_else(|| handles.get(DEFAULT_POOL));
            let Some(threads) = threads.cloned() else { continue };
            let on_stuck = rules.types.get(kind).map_or_else(OnStuck::default, |r| r.on_stuck);
            let (call, client) = (call.clone(), client.clone());
            let executor: Arc<dyn Executor> =
                Arc::new(HandlerExecutor { call, client, threads, on_stuck });
            executors.insert(kind.clone(), executor);
        }
        Ok(executors)
    }
}

/// A pool's threads: async handlers share a few, blocking ones have one each.
fn pool_threads(pool: &str, size: u32) -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    Builder::new_multi_thread()
        .worker_threads((size as usize).clamp(1, cores))
        .max_blocking_threads(size.max(1) as usize)
        .thread_name(format!("matins-{pool}"))
        .enable_all()
        .build()
}

fn sqlite_path(url: &str) -> Result<PathBuf, OpenError> {
    match url.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => {
            let begins = url.split_once(':').map_or(url, |(scheme, _)| scheme);
            Err(OpenError::Url { begins: begins.to_owned() })
        }
    }
}

/// Beside the file, so that whoever opens the file finds it.
fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    path.with_file_name(name)
}
