//! Whole tasks in Redis, so that a node without PostgreSQL can run them (`redis_mirror`).
//!
//! ```text
//!   connected   claim in PostgreSQL ─▶ take in Redis ─▶ commit what was taken; or, where hints say
//!               who is next, take in Redis ─▶ claim what was taken, if the generation
//!               and the attempt are still those that were read before
//!   in the dark due in Redis ─▶ claim in Redis, journalled in the same script ─▶ spool ─▶ run
//!   returning   spool and stream into PostgreSQL ─▶ runs handed over ─▶ announcement withdrawn
//! ```
//!
//! The decisions are those of [`matins_core::outage`]; a script in `lua/mirror/` is one step of a
//! [`Slot`](matins_core::outage::Slot), and `0017_outage.sql` and `0018_marks.sql` have the
//! statements. One thing is simpler than there: nobody remembers for each row under which
//! generation it was mirrored. While the regime has a Redis every row counts as mirrored, and while
//! it has none, none does.
//!
//! # Who may do what
//!
//! | regime | claims |
//! |---|---|
//! | has a Redis, settled | of what was taken in that Redis, by handles that mirror; others are refused while any member has an outage lease |
//! | has no Redis, settled | of anything, by all |
//! | not settled | none: somebody may still work in the dark under an earlier generation |
//!
//! A Redis is known by its `run_id` and by an epoch that lies in it: one that restarted, failed
//! over or was emptied is another. Each script compares both, and does nothing after a deadline on
//! Redis' own clock, so that a request which lay in a frozen server does nothing late.
//!
//! Only what can be judged without the database is mirrored: no key, no expiry, no schedule, no
//! limit of its type, not in quarantine. In the dark only types run that the node's own file
//! defines, and nothing runs from a Redis that may forget it. Schedules fire there, too: `marks`.
//!
//! # Keys
//!
//! | key | kind | what |
//! |---|---|---|
//! | `mirror:epoch` | string | which life of this Redis it is |
//! | `mirror:tasks`, `mirror:index` | hash | by id, what may be claimed or fired: entry; attempt, generation, whether it is for later, type and pool |
//! | `mirror:line:<pool>`, `mirror:later` | sorted set | of these, what is due, and what is due later |
//! | `mirror:claims`, `mirror:leases` | hash, sorted set | by id, claims made in the dark, and until when |
//! | `mirror:tombs:<n>` | hash | of this minute and the last: attempts below which a push comes too late |
//! | `mirror:holders`, `mirror:holding` | hash, set | by schedule, the task that holds it; of these, those that have not ended |
//! | `mirror:count` | string | how many of the entries are tasks |
//! | `mirror:dark` | set | members that work in the dark: id and episode |
//! | `mirror:paused`, `mirror:cancels` | set | pools that a person has stopped in the dark; of the claims made there, those that one has cancelled |
//! | `mirror:fence` | string | the last fence that was handed out in the dark |
//!
//! # Failure
//!
//! | what happens | what follows |
//! |---|---|
//! | Redis is away from some member for 3 s | a generation without Redis: claims go on from PostgreSQL alone when it is settled |
//! | the same while somebody is dark | the same, when that member's outage lease is over |
//! | a node is without PostgreSQL, others are not | they claim what their take found, the rest waits for the dark one to return or its outage lease to end |
//! | a node dies in the dark | its announcement counts until its outage lease ends; then its runs are judged |
//! | a run was claimed twice all the same, because Redis and its node were both lost | the later replay is *superseded*: it changes nothing, and an alert says so |

mod acts;
mod back;
mod dark;
mod keeper;
mod marks;
mod push;
mod take;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use matins_core::outage::{OutageLease, Standing};
use matins_core::store::{Settings, Worker};
use matins_core::task::{Claim, Claimed, Name, TaskId, WorkerId};
use redis::ScriptInvocation;
use tokio::sync::{Notify, RwLock, mpsc, watch};
use uuid::Uuid;

use super::known::Membership;
use super::link::{Link, Miss};
use super::outage::Outage;
use crate::own_thread::OwnThread;
use crate::postgres::PostgresStore;

/// What is mirrored, and what a node may do with it.
#[derive(Debug, Clone)]
pub struct MirrorOptions {
    /// How far ahead tasks are mirrored.
    pub horizon: Duration,
    /// Most tasks, and most bytes of them.
    pub tasks: usize,
    pub bytes: u64,
    /// How long a node may work from Redis alone.
    pub window: Duration,
    /// The name of this node.
    pub node: String,
    /// Types that its own file defines.
    pub types: Arc<HashSet<Name>>,
}

/// Of an outage lease: clocks may differ in speed, and a run must have ended before.
const MARGIN: Duration = Duration::from_secs(2);

/// All keys of the mirror, but for those of lines.
pub(super) fn names() -> impl Iterator<Item = String> {
    KINDS.iter().map(|(name, _)| *name).filter(|name| *name != "journal").map(str::to_owned)
}

/// What the keys are that its scripts use.
const KINDS: [(&str, &str); 17] = [
    ("mirror:epoch", "string"),
    ("mirror:tasks", "hash"),
    ("mirror:index", "hash"),
    ("mirror:later", "zset"),
    ("mirror:claims", "hash"),
    ("mirror:leases", "zset"),
    ("mirror:dark", "set"),
    ("mirror:fence", "string"),
    ("mirror:holders", "hash"),
    ("mirror:holding", "set"),
    ("mirror:paused", "set"),
    ("mirror:cancels", "set"),
    ("mirror:tombs:0", "hash"),
    ("mirror:tombs:1", "hash"),
    ("mirror:tombs:2", "hash"),
    ("mirror:count", "string"),
    ("journal", "stream"),
];

/// How exactly the end of an outage lease is written down.
const KEPT_EVERY_NS: u64 = 10_000_000_000;

/// How long a script may be under way.
const UNDER_WAY: Duration = Duration::from_secs(5);

/// How long a Redis that has refused a script is left alone.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// A gap that the database's fences do not reach meanwhile.
const FENCE_GAP: u64 = 1 << 32;

/// The member that this node was when its last process died.
#[derive(Debug)]
pub(super) enum Before {
    /// This process goes on for it, without the database.
    Inherited(Membership),
    /// Nobody goes on for it.
    Gone(Uuid),
}

/// What is known of the regime.
#[derive(Debug, Default)]
struct Regime {
    generation: u64,
    redis: Option<String>,
    settled: bool,
    /// The generation that this member works under; 0: none.
    acknowledged: u64,
    /// The Redis of that generation.
    acknowledged_redis: Option<String>,
    lease: OutageLease,
    /// Fences of the dark lie above.
    fence_floor: u64,
    /// As last seen in Redis.
    announced: Vec<String>,
    /// Redis' clock in ms, and when it showed that.
    clock: Option<(u64, Instant)>,
    /// Which time in the dark this is.
    episode: u64,
}

impl Regime {
    /// As a process left it that died. Its claims are of an earlier time in the dark.
    fn of(before: Membership) -> Self {
        Self {
            generation: before.generation,
            redis: Some(before.redis.clone()),
            settled: true,
            acknowledged: before.generation,
            acknowledged_redis: Some(before.redis),
            lease: OutageLease::until(before.until_ns),
            fence_floor: before.fence_floor,
            episode: before.episode + 1,
            ..Self::default()
        }
    }
}

/// A clock that only grows, and counts suspension too.
fn now_ns() -> u64 {
    #[cfg(target_os = "linux")]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Which boot of the machine that clock belongs to; empty where nobody can tell.
fn this_boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// A run under a claim made in the dark, and not handed over.
#[derive(Debug, Clone)]
struct Held {
    claimed: Claimed,
    /// Until when its claim stands if it is not renewed.
    until_ns: u64,
    /// Its claim does not stand any more, and it must end.
    given_up: bool,
}

/// What the pusher is told.
#[derive(Debug)]
enum Offer {
    /// These may wait now.
    Tasks(Vec<TaskId>),
    /// These are new.
    New(push::New),
    Marks(Vec<marks::Ahead>),
    /// These hold their schedules no more.
    Ended(Vec<TaskId>),
}

pub(super) struct Mirror {
    store: Arc<PostgresStore>,
    link: Arc<Link>,
    outage: Option<Arc<Outage>>,
    options: MirrorOptions,
    /// As a member; a handle without a journal is none, and never works in the dark.
    id: Uuid,
    regime: Mutex<Regime>,
    /// What this member runs from the journal, by fence.
    held: Mutex<HashMap<u64, Held>>,
    /// Fences of all runs that began in the dark and have not ended, handed over or not.
    began: Mutex<HashSet<u64>>,
    /// Whether this node works in the dark: from the beginning of an outage until everything of it
    /// is handed over. Shared by what is done there, and held alone by the return.
    dark: RwLock<()>,
    open: AtomicBool,
    /// It goes on for a process that died in the dark, whose claims are to be judged.
    inherits: AtomicBool,
    /// The member that was this node before, and whose process is gone.
    gone: Mutex<Option<Uuid>>,
    settings: Mutex<Option<Settings>>,
    /// Claims sent to PostgreSQL whose answers were lost.
    owed: Mutex<Vec<(WorkerId, u64)>>,
    /// Of this node's workers' leases.
    lease_ns: AtomicU64,
    keep: Notify,
    /// When Redis last refused a script.
    refused: Mutex<Option<Instant>>,
    offered: mpsc::Sender<Offer>,
    to_offer: Mutex<Option<mpsc::Receiver<Offer>>>,
    mirrored: AtomicU64,
    /// Schedules whose marks cannot be judged without the database, by revision.
    unfit: Mutex<HashMap<Uuid, u64>>,
    /// Whether nothing is to be agreed on.
    calm: watch::Sender<bool>,
}

impl Mirror {
    pub(super) fn new(
        store: &Arc<PostgresStore>,
        link: &Arc<Link>,
        outage: Option<Arc<Outage>>,
        options: MirrorOptions,
        before: Option<Before>,
    ) -> Arc<Self> {
        let same_boot = |before: &Membership| !before.boot.is_empty() && before.boot == this_boot();
        let (before, gone) = match before {
            Some(Before::Inherited(before)) if same_boot(&before) => (Some(before), None),
            Some(Before::Inherited(before)) => (None, Some(before.id)),
            Some(Before::Gone(id)) => (None, Some(id)),
            None => (None, None),
        };
        let (offered, to_offer) = mpsc::channel(1_024);
        Arc::new(Self {
            store: store.clone(),
            link: link.clone(),
            outage,
            options,
            id: before.as_ref().map_or_else(Uuid::new_v4, |before| before.id),
            inherits: AtomicBool::new(before.is_some()),
            gone: Mutex::new(gone),
            lease_ns: AtomicU64::new(before.as_ref().map_or(0, |before| before.lease_ns)),
            // An outage that a process begins in.
            open: AtomicBool::new(before.is_some()),
            regime: Mutex::new(before.map(Regime::of).unwrap_or_default()),
            held: Mutex::default(),
            began: Mutex::default(),
            dark: RwLock::default(),
            settings: Mutex::default(),
            owed: Mutex::default(),
            keep: Notify::new(),
            refused: Mutex::default(),
            offered,
            to_offer: Mutex::new(Some(to_offer)),
            mirrored: AtomicU64::new(0),
            unfit: Mutex::default(),
            calm: watch::channel(false).0,
        })
    }

    /// A member turns up; a handle that only takes does not.
    pub(super) fn start(self: &Arc<Self>, thread: &OwnThread) {
        if self.outage.is_some() {
            thread.spawn(self.clone().keep());
            let offered = self.to_offer.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(offered) = offered {
                thread.spawn(self.clone().push(offered));
            }
        }
    }

    fn is_member(&self) -> bool {
        self.outage.is_some()
    }

    fn regime(&self) -> MutexGuard<'_, Regime> {
        self.regime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn began(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unfit(&self) -> MutexGuard<'_, HashMap<Uuid, u64>> {
        self.unfit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it began in the dark: then its claim has a lease of its own.
    pub(super) fn began_in_the_dark(&self, claim: &Claim) -> bool {
        self.began().contains(&claim.fence)
    }

    /// What the process that comes after this one may go by.
    pub(super) fn membership(&self) -> Option<Membership> {
        let regime = self.regime();
        let redis = regime.acknowledged_redis.clone().filter(|_| regime.acknowledged > 0)?;
        // Coarse, so that it is not written each time.
        let until_ns = regime.lease.until_ns() / KEPT_EVERY_NS * KEPT_EVERY_NS;
        (until_ns > now_ns()).then(|| Membership {
            id: self.id,
            generation: regime.acknowledged,
            redis,
            episode: regime.episode,
            until_ns,
            boot: this_boot(),
            lease_ns: self.lease_ns.load(Ordering::Relaxed),
            fence_floor: regime.fence_floor,
        })
    }

    fn is_dark(&self) -> bool {
        self.outage.as_ref().is_some_and(|outage| outage.is_on())
    }

    fn note(&self, episode: u64) -> String {
        format!("{}:{episode}", self.id)
    }

    pub(super) fn is_leased(&self) -> bool {
        let regime = self.regime();
        regime.settled && regime.lease.stands(now_ns())
    }

    /// Resolves when this member has nothing to agree on with others.
    pub(super) async fn agreed(&self) {
        let mut calm = self.calm.subscribe();
        let _ = calm.wait_for(|calm| *calm).await;
    }

    /// Whether it may work without the database, if need be.
    pub(super) fn may_run(&self) -> bool {
        self.right().is_ok()
    }

    pub(super) fn count(&self) -> u64 {
        self.mirrored.load(Ordering::Relaxed)
    }

    /// Tasks may wait that are to be mirrored.
    pub(super) fn offer(&self, ids: &[TaskId]) {
        if self.is_member() && !ids.is_empty() && self.regime().redis.is_some() {
            // What does not fit is found by the next reading.
            let _ = self.offered.try_send(Offer::Tasks(ids.to_vec()));
        }
    }

    /// How long a worker's lease is.
    pub(super) fn heed_lease(&self, worker: &Worker) {
        if !worker.remote {
            let lease = worker.lease_until.duration_since(worker.seen_at).unsigned_abs();
            self.lease_ns.store(lease.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease_ns.load(Ordering::Relaxed))
    }

    /// What PostgreSQL would lack if this member said that it has nothing of the dark.
    fn standing(&self) -> Standing {
        Standing {
            spooled: self.outage.as_ref().is_some_and(|outage| !outage.is_spool_empty()),
            journal_runs: !self.held().is_empty(),
            scripts: self.dark.try_write().is_err(),
        }
    }

    /// An outage has begun.
    pub(super) fn enter(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.keep.notify_one();
    }

    /// There may be something to agree on.
    pub(super) fn heed_generation(&self, generation: u64) {
        if generation > self.regime().generation {
            self.keep.notify_one();
        }
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    pub(super) fn heed_settings(&self, settings: &Settings) {
        let mut known = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(settings.clone());
    }

    fn known_settings(&self) -> Option<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The generation that all have agreed on, this member too, and its Redis.
    fn agreed_on(&self) -> Option<(u64, String)> {
        let regime = self.regime();
        let agreed = regime.settled && regime.acknowledged == regime.generation;
        regime.redis.clone().filter(|_| agreed).map(|redis| (regime.generation, redis))
    }

    /// Until when a script that is sent now may be under way, on Redis' clock in ms. `None`: that is
    /// not known.
    fn deadline(&self) -> Option<u64> {
        let (shown, at) = self.regime().clock?;
        Some(shown + (at.elapsed() + UNDER_WAY).as_millis() as u64)
    }

    /// A script of the mirror with what all of them begin with. `None`: Redis' clock is not known.
    fn begin<'s>(&self, script: &'s redis::Script, identity: &str) -> Option<ScriptInvocation<'s>> {
        Some(self.begin_by(script, identity, self.deadline()?))
    }

    fn begin_by<'s>(
        &self,
        script: &'s redis::Script,
        identity: &str,
        deadline: u64,
    ) -> ScriptInvocation<'s> {
        let mut call = script.prepare_invoke();
        call.key(self.link.key("store_id"));
        call.arg(&self.link.prefix).arg(self.link.store_id()).arg(identity).arg(deadline);
        call
    }

    /// Somebody else wrote keys of another kind: they go, and this Redis counts as another one,
    /// because what was in them is lost.
    async fn clear_away(&self) -> Result<bool, Miss> {
        let limit = self.link.times.background;
        let mut cleared = false;
        for (name, kind) in KINDS {
            let key = self.link.key(name);
            let mut ask = redis::cmd("TYPE");
            let found: String = self.link.command(limit, ask.arg(&key)).await?;
            if found != kind && found != "none" {
                tracing::error!(key, found, expected = kind, "somebody else wrote it: removed");
                let mut remove = redis::cmd("DEL");
                remove.arg(key).arg(self.link.key("mirror:epoch"));
                let _: i64 = self.link.command(limit, &remove).await?;
                cleared = true;
            }
        }
        Ok(cleared)
    }

    /// What stands in the way of its scripts goes; a Redis that refuses them all the same is as
    /// good as none for some time.
    async fn heed_refusal(&self, miss: &Miss) {
        let Miss::Refused(error) = miss else { return };
        if miss.is_wrong_type() && self.clear_away().await.unwrap_or(true) {
            return;
        }
        tracing::error!(%error, "Redis refuses what mirrors tasks: they go by PostgreSQL alone");
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.keep.notify_one();
    }

    fn is_refused(&self) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.is_some_and(|at| at.elapsed() < REFUSED_FOR)
    }

    /// What it answers; [`Miss::Away`] also when it is another Redis, or too late.
    async fn ask(&self, call: &ScriptInvocation<'_>) -> Result<Vec<String>, Miss> {
        self.ask_within(self.link.times.background, call).await
    }

    async fn ask_within(
        &self,
        limit: Duration,
        call: &ScriptInvocation<'_>,
    ) -> Result<Vec<String>, Miss> {
        let answer = self.link.script::<Vec<String>>(limit, call).await;
        if let Err(miss) = &answer {
            self.heed_refusal(miss).await;
        }
        let mut answer = answer?;
        match answer.first().map(String::as_str) {
            Some("ok") => {
                answer.remove(0);
                Ok(answer)
            }
            word => {
                tracing::debug!(?word, "the mirror's Redis refuses");
                self.keep.notify_one();
                Err(Miss::Away)
            }
        }
    }
}
