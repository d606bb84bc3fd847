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
//! | `task:stamp` | string | gone when hints may have been lost since it was made |
//! | `task:dead_letter` | sorted set | the newest dead letters, by when they failed |
//! | `scheduler:heartbeat`, `scheduler:heartbeat:<node>` | string | Unix seconds, for 120 s |
//! | `store_id` | string | whose hints these are |
//! | `drift`, `reconciled`, `reconciling` | string | the last drift; who reads the lines, and when |
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
//! | PostgreSQL is away | as without Redis: `Unavailable` |

mod address;
mod claim;
mod glance;
pub(crate) mod hint;
mod link;
mod port;
mod pusher;
mod reconcile;
mod script;
mod strays;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jiff::Timestamp;
use matins_core::store::{Figure, HEARTBEAT, Part, Result, StoreError};
use matins_core::task::TaskId;
use tokio::sync::Notify;

use address::Address;
use claim::Looks;
pub use glance::Glance;
use link::Link;
pub use link::{Identity, Times};
use pusher::{Note, Pusher};
use reconcile::Reconciler;

use crate::own_thread::OwnThread;
use crate::postgres::PostgresStore;

/// How long a heartbeat is shown.
const HEARTBEAT_SECONDS: u64 = 120;

/// How it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub prefix: String,
    pub times: Times,
}

impl Default for Options {
    fn default() -> Self {
        Self { prefix: "matins:".to_owned(), times: Times::default() }
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
    thread: Mutex<Option<OwnThread>>,
}

impl RedisStore {
    /// An error when the address is none, or Redis has the hints of another store. One that is
    /// away is no error: it may come.
    pub async fn open(store: PostgresStore, address: &str, options: Options) -> Result<Self> {
        use matins_core::store::Store as _;
        let Options { prefix, times } = options;
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
        Ok(Self {
            drift: reconciler.drift.clone(),
            wanted: reconciler.wanted.clone(),
            reconciler: Mutex::new(Some(reconciler)),
            reconciling: OnceLock::new(),
            store,
            link,
            pusher,
            looks: Looks::default(),
            counts: Counts::default(),
            thread: Mutex::new(Some(thread)),
        })
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
        if !ids.is_empty() && !self.pusher.tell(Note::Ask(ids)).await {
            // Whoever is woken by what has happened must not find a line that says nothing of it.
            self.looks.doubt_all();
        }
    }

    fn part(&self) -> Part {
        Part {
            kind: "redis",
            up: self.link.is_up(),
            location: self.link.location().to_owned(),
            version: self.link.identity().version,
            figures: vec![Figure {
                name: "redis_drift",
                about: "Due tasks that Redis did not know, and hints of none, at the last reading",
                value: self.drift.load(Ordering::Relaxed),
            }],
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
