//! PostgreSQL with Redis in front of it, for dispatch.
//!
//! ```text
//!   enqueue ──▶ PostgreSQL: commit ──▶ pusher ──▶ hint in Redis ──▶ other nodes are told
//!   claim ────▶ Redis: ids off the head of the line ──▶ PostgreSQL: fenced claim of those ids
//!                  └── not known, refused, too few, away ──▶ PostgreSQL: claim as ever
//!   reconciler ──▶ reads both, pushes what is missing, drops what is gone: the drift
//! ```
//!
//! What is in Redis is a hint, never the truth: one that is wrong, stale, twice there or missing
//! costs a look or a moment, never a task. So nothing here may decide what becomes of a task, and
//! no caller may wait for Redis longer than [`Times::patience`].
//!
//! # Keys, all behind the prefix
//!
//! | key | kind | what |
//! |---|---|---|
//! | `task:pending:<pool>` | sorted set | tasks that are due, by place in line |
//! | `task:delayed` | sorted set | tasks that are due later, by when, in microseconds |
//! | `task:known` | hash | up to which place each line is complete; a pool without a field is not known |
//! | `task:cut` | hash | where tasks came in that lines are not told of, since these were last read |
//! | `task:stamp` | string | gone when hints may have been lost since it was made |
//! | `task:dead_letter` | sorted set | the newest dead letters, by when they failed |
//! | `scheduler:heartbeat`, `scheduler:heartbeat:<node>` | string | Unix seconds, for 120 s |
//! | `store_id` | string | whose hints these are |
//! | `drift`, `reconciled`, `reconciling` | string | the last drift; who reads the lines, and when |
//! | `mirror:…` | | whole tasks: `mirror` |
//! | `journal` | stream | what was promised while PostgreSQL was away, and is not in it yet |
//! | `journal:tasks` | hash | by id, the entries of tasks in it |
//! | `journal:refused` | list | what was found in the stream and is no entry |
//! | `changed` | channel | a line has got longer |
//!
//! A member of a line is acceptance number and mark, id, priority, pool and type, with tabs
//! between them. The mark `!` says that the place depends on other tasks (a `concurrency_key`, an
//! overlap): a claim through hints stops there.
//!
//! # Failure
//!
//! | what happens | what follows |
//! |---|---|
//! | Redis is away, slow, full, or read-only | claims from PostgreSQL alone, at once; back when it answers |
//! | it is emptied, or evicts | lines are not known: claims from PostgreSQL until they are read anew |
//! | a node dies between commit and push | the hint comes with the next reading; until then the task is found by a look at PostgreSQL, once a second |
//! | a node dies between take and claim | the same |
//! | somebody else writes to the keys | what the database refuses is dropped, keys of another kind are removed |
//! | it has the hints of another store | the start is refused; later it counts as away |
//! | PostgreSQL is away | enqueues are journalled (`outage`); the rest as without Redis: `Unavailable` |

mod address;
mod claim;
mod glance;
pub(crate) mod hint;
mod journal;
mod known;
mod link;
mod mirror;
mod outage;
mod port;
mod pusher;
mod reconcile;
mod script;
mod spool;
mod strays;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use matins_core::store::{Figure, HEARTBEAT, Part, Result, StoreError};
use matins_core::task::{Task, TaskId};
use tokio::sync::Notify;

use address::Address;
use claim::Looks;
pub use glance::Glance;
use known::Known;
use link::Link;
pub use link::{Identity, Times};
pub use mirror::MirrorOptions;
use mirror::{Before, Mirror};
use outage::Outage;
pub use outage::OutageOptions;
use pusher::{Note, Pusher};
use reconcile::Reconciler;

use crate::own_thread::OwnThread;
use crate::postgres::{self, PostgresStore};

/// How long a heartbeat is shown.
const HEARTBEAT_SECONDS: u64 = 120;

/// The node that tells people that PostgreSQL is away.
const TELLER: &str = "outage:teller";

/// How it is reached.
#[derive(Debug, Clone)]
pub struct Options {
    pub prefix: String,
    pub times: Times,
    /// What is done when PostgreSQL is away; `None`: nothing, calls are refused.
    pub outage: Option<OutageOptions>,
    /// Whole tasks are in Redis, and run from there then; `None`: hints alone.
    pub mirror: Option<MirrorOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self { prefix: "matins:".to_owned(), times: Times::default(), outage: None, mirror: None }
    }
}

/// A PostgreSQL store whose lines are also in Redis.
pub struct RedisStore {
    store: Arc<PostgresStore>,
    link: Arc<Link>,
    pusher: Pusher,
    looks: Looks,
    counts: Counts,
    drift: Arc<AtomicU64>,
    wanted: Arc<Notify>,
    reconciler: Mutex<Option<Reconciler>>,
    reconciling: OnceLock<()>,
    outage: Option<Arc<Outage>>,
    mirror: Option<Arc<Mirror>>,
    /// Answers of the database that stand in for it while it is away.
    known: Arc<Known>,
    thread: Mutex<Option<OwnThread>>,
}

impl RedisStore {
    /// An error when the address is none, or Redis has the hints of another store. One that is
    /// away is no error: it may come.
    pub async fn open(store: PostgresStore, address: &str, options: Options) -> Result<Self> {
        Self::over(store, address, options, None, false).await
    }

    /// Opens both. A database that is away is no error where this node has worked for it before
    /// and can journal: what it needs to know of it is in a file beside its spool.
    pub async fn open_both(
        url: &str,
        connections: postgres::Options,
        address: &str,
        options: Options,
    ) -> Result<Self> {
        let location = postgres::location(url)?;
        let file = options.outage.as_ref().map(|outage| known::File::beside(&outage.spool));
        let kept = file.and_then(|file| file.read()).filter(|kept| kept.location == location);
        match (PostgresStore::open(url, connections).await, kept) {
            (Ok(store), kept) => Self::over(store, address, options, kept, false).await,
            (Err(error @ StoreError::Unavailable(_)), Some(kept)) => {
                tracing::error!(%error, "PostgreSQL is away: beginning with what is known of it");
                let store = PostgresStore::open_away(url, connections, kept.store_id)?;
                Self::over(store, address, options, Some(kept), true).await
            }
            (Err(error), _) => Err(error),
        }
    }

    async fn over(
        store: PostgresStore,
        address: &str,
        options: Options,
        kept: Option<known::Kept>,
        is_away: bool,
    ) -> Result<Self> {
        use matins_core::store::{Records as _, Store as _};
        let Options { prefix, times, outage, mirror } = options;
        if prefix.is_empty() {
            return Err(StoreError::Broken("redis_prefix: must not be empty".to_owned()));
        }
        let store = Arc::new(store);
        let address = Address::parse(address)?;
        let thread = OwnThread::start("matins-redis").map_err(|error| {
            StoreError::Unavailable(format!("no thread for connections: {error}"))
        })?;
        let link = Arc::new(Link::new(address, &prefix, store.info().store_id, times));
        link::open(&link, &thread).await?;
        let pusher = Pusher::start(&link, &store, &thread);
        let reconciler = Reconciler::new(&link, &store);
        let known = kept.as_ref().filter(|_| is_away);
        let known = Arc::new(known.map_or_else(Known::default, Known::of));
        let outage = outage
            .map(|options| Outage::start(&store, &link, &thread, &known, options, is_away))
            .transpose()?;
        let before = kept.and_then(|kept| kept.member).map(|member| match is_away {
            true => Before::Inherited(member),
            false => Before::Gone(member.id),
        });
        let mirror =
            mirror.map(|options| Mirror::new(&store, &link, outage.clone(), options, before));
        if let (Some(outage), Some(mirror)) = (&outage, &mirror) {
            outage.goes_on_with(mirror);
        }
        let store = Self {
            drift: reconciler.drift.clone(),
            wanted: reconciler.wanted.clone(),
            reconciler: Mutex::new(Some(reconciler)),
            reconciling: OnceLock::new(),
            outage,
            mirror,
            known,
            store,
            link,
            pusher,
            looks: Looks::default(),
            counts: Counts::default(),
            thread: Mutex::new(Some(thread)),
        };
        if let Some(outage) = store.outage.as_ref().filter(|_| !is_away) {
            // What was promised before comes first.
            Box::pin(outage.replay_soon()).await;
            // What an enqueue asks for must be known when the database goes.
            tokio::try_join!(store.settings(), store.tokens(), store.stats(Timestamp::now()))?;
            outage.keep_known();
        }
        if let Some(mirror) = &store.mirror {
            let thread = store.thread.lock().unwrap_or_else(PoisonError::into_inner);
            thread.iter().for_each(|thread| mirror.start(thread));
        }
        Ok(store)
    }

    /// Which Redis it is, as last seen.
    pub fn identity(&self) -> Identity {
        self.link.identity()
    }

    /// A part of what it says of itself; `None`: it does not answer.
    pub async fn info(&self, section: &str) -> Option<BTreeMap<String, String>> {
        self.link.info(section).await.ok()
    }

    /// Tasks claimed through hints, and without them, by this process.
    pub fn claimed(&self) -> (u64, u64) {
        self.counts.read()
    }

    /// Whether tasks lie in Redis, so that this process could run them without PostgreSQL.
    pub fn mirrors(&self) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| mirror.is_leased())
    }

    /// Resolves when it is agreed whether tasks lie in Redis, or nobody can tell for so long.
    pub async fn agreed(&self, patience: Duration) {
        if let Some(mirror) = &self.mirror {
            let _ = tokio::time::timeout(patience, mirror.agreed()).await;
        }
    }

    /// Ends, and removes what stores with this prefix have put into Redis, but for heartbeats, which
    /// go by themselves.
    pub async fn forget(&self) -> Result<()> {
        let mut names: Vec<String> = ["delayed", "known", "cut", "stamp", "dead_letter"]
            .map(|name| format!("task:{name}"))
            .into();
        names.extend(["store_id", "drift", "reconciled", "reconciling"].map(str::to_owned));
        names.extend(["journal", "journal:tasks", "journal:refused", TELLER].map(str::to_owned));
        names.extend(mirror::names());
        for pool in self.store.pools().await? {
            names.extend([format!("task:pending:{pool}"), format!("mirror:line:{pool}")]);
        }
        let mut forget = redis::cmd("DEL");
        for name in names {
            forget.arg(self.link.key(&name));
        }
        let failed = |error: redis::RedisError| StoreError::Unavailable(format!("Redis: {error}"));
        let mut line = self.link.another().await.map_err(failed)?;
        // What keeps the line up would say again whose it is.
        self.stop();
        line.command::<i64>(&forget).await.map(drop).map_err(failed)
    }

    /// The store underneath.
    pub fn database(&self) -> &PostgresStore {
        &self.store
    }

    /// Only a process that claims or works keeps the lines right: one that enqueues and goes does
    /// not.
    fn begin_to_reconcile(&self) {
        self.reconciling.get_or_init(|| {
            let reconciler = self.reconciler.lock().unwrap_or_else(PoisonError::into_inner).take();
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Some(reconciler), Some(thread)) = (reconciler, &*thread) {
                thread.spawn(reconciler.run());
                self.wanted.notify_one();
            }
        });
    }

    /// These may stand in line elsewhere now.
    async fn moved(&self, ids: Vec<TaskId>) {
        self.offer(&ids);
        if !ids.is_empty() {
            self.tell(Note::Ask(ids)).await;
        }
    }

    /// Tasks may wait that are to be mirrored.
    fn offer(&self, ids: &[TaskId]) {
        if let Some(mirror) = &self.mirror {
            mirror.offer(ids);
        }
    }

    async fn tell(&self, note: Note) {
        if !self.pusher.tell(note).await {
            // Whoever is woken by what has happened must not find a line that says nothing of it.
            self.looks.doubt_all();
        }
    }

    /// Whether PostgreSQL is away, and tasks are journalled.
    fn stands_in(&self) -> bool {
        self.outage.as_ref().is_some_and(|outage| outage.is_on())
    }

    /// Whether the journal has entries that the database may lack.
    fn journals(&self) -> bool {
        self.outage.as_ref().is_some_and(|outage| outage.entries() > 0)
    }

    /// A task that waits in the journal for the database.
    async fn journalled(&self, id: TaskId) -> Result<Option<Task>> {
        match &self.outage {
            Some(outage) if outage.is_on() => outage.task(id).await,
            _ => Ok(None),
        }
    }

    async fn not_replayed(&self, id: TaskId) -> Result<Option<Task>> {
        match &self.outage {
            // Without an answer from Redis, it is as the database says.
            Some(outage) => Ok(outage.task(id).await.unwrap_or_default()),
            None => Ok(None),
        }
    }

    /// Resolves when journalled tasks have come into the database.
    async fn replayed(&self) {
        match &self.outage {
            Some(outage) => outage.replayed.notified().await,
            None => std::future::pending().await,
        }
    }

    /// What the database answers; while it is away, what it answered last.
    async fn or_known<T: Clone>(
        &self,
        known: &Mutex<Option<T>>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(outage) = &self.outage else { return call.await };
        let known = || known.lock().unwrap_or_else(PoisonError::into_inner);
        match outage.meanwhile(call).await {
            Ok(answer) => {
                *known() = Some(answer.clone());
                Ok(answer)
            }
            Err(error @ StoreError::Unavailable(_)) => known().clone().ok_or(error),
            Err(error) => Err(error),
        }
    }

    fn part(&self) -> Part {
        let journalled = self.outage.as_ref().map_or(0, |outage| outage.entries());
        Part {
            kind: "redis",
            up: self.link.is_up(),
            location: self.link.location().to_owned(),
            version: self.link.identity().version,
            stands_in: self.stands_in(),
            runs: self.mirror.as_ref().is_some_and(|mirror| mirror.may_run()),
            keeps: self.link.is_up() && self.outage.as_ref().is_some_and(|outage| outage.keeps()),
            figures: vec![
                Figure {
                    name: "redis_drift",
                    about: "Due tasks that Redis did not know, and hints of none, at the last \
                            reading",
                    value: self.drift.load(Ordering::Relaxed),
                },
                Figure {
                    name: "journal_entries",
                    about: "Entries of the outage journal that PostgreSQL does not have yet",
                    value: journalled,
                },
                Figure {
                    name: "redis_mirrored",
                    about: "Tasks in Redis that can run while PostgreSQL is away",
                    value: self.mirror.as_ref().map_or(0, |mirror| mirror.count()),
                },
                Figure {
                    name: "outage_mode",
                    about: "1 while PostgreSQL is away and tasks are journalled",
                    value: u64::from(self.stands_in()),
                },
            ],
        }
    }

    async fn show_heartbeat(&self, node_id: &str, schedules: bool, at: Timestamp) {
        let mut pipeline = redis::pipe();
        let seconds = at.as_second().to_string();
        let own = format!("{HEARTBEAT}:{node_id}");
        for name in [Some(&*own), schedules.then_some(HEARTBEAT)].into_iter().flatten() {
            pipeline.set_ex(self.link.key(name), &seconds, HEARTBEAT_SECONDS).ignore();
        }
        let shown: std::result::Result<(), _> =
            self.link.pipeline(self.link.times.background, &pipeline).await;
        if let Err(error) = shown {
            tracing::debug!(?error, "the heartbeat is not in Redis");
        }
    }

    fn stop(&self) {
        // Its tasks and connections go with it.
        drop(self.thread.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore")
            .field("location", &self.link.location())
            .finish_non_exhaustive()
    }
}

/// Where an address leads, without secrets; an error when it is none.
pub fn location(address: &str) -> Result<String> {
    Ok(Address::parse(address)?.location())
}

#[derive(Debug, Default)]
struct Counts {
    hinted: AtomicU64,
    plain: AtomicU64,
}

impl Counts {
    fn hinted(&self, count: usize) {
        self.hinted.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn plain(&self, count: usize) {
        self.plain.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.hinted.load(Ordering::Relaxed), self.plain.load(Ordering::Relaxed))
    }
}
