//! The port to a store. One conformance suite holds every implementation to the same behaviour.
//!
//! Verbs are batch-shaped and take `now`: a store decides nothing beyond atomicity and order.
//! Every call is one transaction unless it says otherwise: it happens as a whole or not at all,
//! and when it has answered, it is durable. Times are kept to the microsecond.
//!
//! [`MemoryStore`](crate::memory::MemoryStore) is the executable form of what is said here.
//!
//! # Words used below
//!
//! - *Key*: `execution_key`, unique per type among live and completed tasks. A task that fails
//!   or is cancelled lets go of its key.
//! - *In line*: pending, not held, `run_at <= now`. The line of a pool is ordered by
//!   [`order_key`](crate::task::order_key), then by order of acceptance (which never changes,
//!   through retries and replays).
//! - *Parked*: in line, but its `concurrency_key` has no slot left for it: running tasks of the
//!   same type and key, and those of them that stand before it in line, use up `per_key` (1 when
//!   the type has no limit entry). When a task of a key with no free slot stops running, the
//!   tasks of that key that are pending then take their place in line anew: none of them stands
//!   before `order_key(that instant, priority)`. So keys take turns.
//! - A claim *stands* while the task runs under the same fence and token, whatever its lease.
//! - An *act* of a person is recorded in the audit log with the task's id or the name it was
//!   about as target; one that found nothing to do (`AlreadyEnded`, `WrongState`,
//!   `Deduplicated`, `NotFound`, `false`) is not.
//! - *Overlap*: whenever a schedule has held tasks and no active one (pending and not held, or
//!   running), the held one that was accepted first is released: not held any more, and not
//!   due before the instant of its release.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::alert::Alert;
use crate::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use crate::json::Json;
use crate::lifecycle::Settlement;
use crate::operation::Operation;
use crate::page::{Page, PageRequest};
use crate::schedule::{DueSchedule, FirePlan, Live, Occurrence, ScheduleState};
use crate::task::{
    Attempt, Claim, Claimed, Durability, Name, NewTask, State, Task, TaskId, WorkerId,
};
use crate::why::Surroundings;

mod claim;
mod settings;

pub use claim::{ClaimBatch, ClaimRequest, Extended, Look, LookRequest, Settled, Types};
pub use settings::{Frozen, PoolChange, PoolSetting, SettingChange, Settings, TypeLimit};

/// What the heartbeat of any scheduler is kept under: Unix seconds, as decimal. Each node's own
/// has its name behind it.
pub const HEARTBEAT: &str = "scheduler:heartbeat";

/// Why a store could not do it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Cannot be reached, or is locked by somebody else for too long. Nothing was written, or,
    /// for a write whose answer was lost, it is unknown whether it was.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// No room. Nothing was written; what was accepted before is safe.
    #[error("the store is full: {0}")]
    Full(String),
    /// A cursor or filter that this store never gave out.
    #[error("{field}: {message}")]
    Invalid { field: &'static str, message: String },
    /// The database is away, and what could take its place may forget. Nothing was written.
    #[error("{0}")]
    NotDurable(String),
    /// There is none at this place, and none was to be made.
    #[error("no store at {0}")]
    Missing(String),
    /// The file or database is damaged, of another version, or not ours.
    #[error("the store cannot be used: {0}")]
    Broken(String),
}

impl StoreError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Full(_) | Self::NotDurable(_))
    }
}

pub type Result<T> = std::result::Result<T, StoreError>;

/// What a store says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreInfo {
    /// `sqlite`, `postgres`, `memory`: for people and metrics.
    pub kind: &'static str,
    pub store_id: Uuid,
    pub schema_version: u32,
    /// Where it is, without secrets.
    pub location: String,
}

/// A part of a store that may be away while the rest works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// `redis`: for people and metrics.
    pub kind: &'static str,
    pub up: bool,
    /// Where it is, without secrets.
    pub location: String,
    /// Of the program at the other end, as last seen; empty: never.
    pub version: String,
    /// It stands in for the rest, which is away.
    pub stands_in: bool,
    /// Tasks run from it then.
    pub runs: bool,
    /// What it takes in then is kept.
    pub keeps: bool,
    pub figures: Vec<Figure>,
}

/// A figure that a part of a store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// Of its metric, without the prefix that all have.
    pub name: &'static str,
    pub about: &'static str,
    pub value: u64,
}

/// What a part of a store has of a task that the store itself does not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// Where in that part.
    pub place: String,
    /// The id, or what stands in its stead.
    pub task: String,
}

/// Answer to one enqueue.
#[derive(Debug, Clone, PartialEq)]
pub enum Enqueued {
    Created,
    /// The key, or the client's own id, is taken: the task that has it. Built from the ledger
    /// when the task's row has been pruned, even if a client has used its id again since.
    Existing(Box<Task>),
    /// A pending holder of the key got the new payload and times (`on_duplicate: replace`).
    Replaced(Box<Task>),
    /// `on_duplicate` forbids it: the holder.
    Rejected(Box<Task>),
    /// The database is away: kept for it. Keys are judged when it is back.
    Journalled(Durability),
}

/// A worker's entry in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    pub id: WorkerId,
    pub node_id: Name,
    pub started_at: Timestamp,
    pub seen_at: Timestamp,
    /// Until when its claims stand (its own; claims of remote workers carry their own leases).
    pub lease_until: Timestamp,
    /// It has recorded that it is shutting down: what dies under it now was interrupted.
    pub draining: bool,
    pub remote: bool,
    /// Slots per pool.
    pub pools: Vec<(Name, u32)>,
    pub types: Types,
}

/// A running task whose lease has lapsed, to be settled as lost or interrupted.
#[derive(Debug, Clone, PartialEq)]
pub struct Lapsed {
    pub claimed: Claimed,
    pub worker: WorkerId,
    pub draining: bool,
}

/// Who acts, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    pub who: String,
    pub reason: Option<String>,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Cancelled {
    /// It was pending and is cancelled now.
    Done(Box<Task>),
    /// It is running; its worker has been told to end it.
    Requested(Box<Task>),
    /// It had ended before.
    AlreadyEnded(Box<Task>),
    NotFound,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Retried {
    /// A dead letter is pending again, in a fresh round.
    Replayed(Box<Task>),
    /// A waiting task is due now.
    DueNow(Box<Task>),
    /// A dead letter whose key is live or completed elsewhere stays failed: the holder.
    Deduplicated(Box<Task>),
    /// Running, completed or cancelled.
    WrongState(Box<Task>),
    NotFound,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Dismissed {
    Done(Box<Task>),
    WrongState(Box<Task>),
    NotFound,
}

/// Which tasks are meant. Every field that is set must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFilter {
    /// Empty: any.
    pub states: Vec<State>,
    pub kind: Option<String>,
    pub pool: Option<String>,
    pub tag: Option<String>,
    pub schedule: Option<String>,
    pub execution_key: Option<String>,
    /// Prefix of id, key, type or tag.
    pub q: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    NewestFirst,
    OldestFirst,
}

/// How long ended things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub completed: Duration,
    pub cancelled: Duration,
    /// From the dismissal on; an undismissed dead letter stays.
    pub failed: Duration,
    /// `None`: for ever.
    pub ledger: Option<Duration>,
    pub occurrences: Duration,
    /// Acts of people: their records, and the operations that they began.
    pub audit: Duration,
    /// From when they were raised, whether anybody was told or not.
    pub alerts: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        Self {
            completed: DAY * 7,
            cancelled: DAY * 7,
            failed: DAY * 30,
            ledger: Some(DAY * 400),
            occurrences: DAY * 400,
            audit: DAY * 400,
            alerts: DAY * 30,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    pub tasks: u64,
    pub ledger: u64,
    pub occurrences: u64,
    pub audit: u64,
    pub operations: u64,
    pub workers: u64,
    pub alerts: u64,
    /// There is more than one call may take.
    pub more: bool,
}

/// Figures of a whole store, kept as counters, never by scanning history.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    /// Per pool and state.
    pub tasks: BTreeMap<(Name, State), u64>,
    /// Due and not parked, per pool.
    pub ready: BTreeMap<Name, u64>,
    /// When the foremost ready task of a pool became due.
    pub oldest_ready: BTreeMap<Name, Timestamp>,
    pub dead_letters: u64,
    /// Active schedules whose `next_due` lies more than a minute back.
    pub schedules_overdue: u64,
}

/// What the ledger knows of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerEntry {
    pub kind: Name,
    pub execution_key: Arc<str>,
    pub task_id: TaskId,
    pub state: State,
    pub result: Option<Json>,
    /// When it completed; while it is live: when it was accepted (pending) or started (running).
    pub at: Timestamp,
}

impl LedgerEntry {
    /// What an enqueue is answered when the row of the key's task has been pruned: everything
    /// that the ledger does not know is empty.
    pub fn task(&self) -> Task {
        let new = NewTask::new(self.task_id, self.kind.clone(), Json::null(), self.at);
        Task {
            state: self.state,
            execution_key: Some(self.execution_key.clone()),
            finished_at: Some(self.at),
            result: self.result.clone(),
            deduplicated: true,
            ..Task::from_new(&new, self.at)
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    pub time: Timestamp,
    pub who: String,
    pub action: String,
    pub target: String,
    pub reason: Option<String>,
}

/// A token that opens a front door. The secret itself is never stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub name: String,
    pub role: String,
    /// Types that a worker or enqueue-only token is limited to; empty: any.
    pub types: Vec<String>,
    /// SHA-256 of the secret, hexadecimal.
    pub hash: String,
    pub created_at: Timestamp,
    pub created_by: String,
}

/// How a schedule write is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No schedule of that name.
    Absent,
    /// The stored `rev`.
    Rev(u64),
}

/// Who wants to tell alerts, until when he is alone with it, and how many he can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub teller: String,
    pub now: Timestamp,
    pub until: Timestamp,
    pub limit: usize,
}

/// What the one who tells has before him.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tray {
    /// What he, or the one before him, left last.
    pub state: Option<String>,
    /// Unread alerts with their numbers, the first raised first.
    pub unread: Vec<(u64, Alert)>,
}

/// Alerts on their way to people.
///
/// A store raises two kinds by itself, in the transaction that is their cause: a dead letter
/// ([`of_dead_letter`](crate::alert::of_dead_letter)) and a missed occurrence
/// ([`of_occurrence`](crate::alert::of_occurrence)). One tells at a time, so that what belongs
/// together is told together whatever the number of nodes.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Adds alerts. Those that are `read` are there to be looked at only.
    async fn raise(&self, alerts: Vec<Alert>, read: bool) -> Result<()>;

    /// Takes or keeps the turn. `None`: it is another's, and was not over before `now`. One whose
    /// turn lasts for more than half of what he asks for keeps that end.
    async fn tray(&self, turn: &Turn) -> Result<Option<Tray>>;

    /// Marks alerts as read and keeps the state, together. `false`: it is not his turn any more,
    /// and nothing was changed.
    async fn file(&self, teller: &str, read: &[u64], state: &str) -> Result<bool>;

    /// The last raised first.
    async fn alerts(&self, page: &PageRequest) -> Result<Page<Alert>>;
}

/// Tasks: accepted, handed out, ended.
#[async_trait]
pub trait Queue: Send + Sync {
    /// Stores all of `tasks` in one commit; the answers are in their order. Each task meets those
    /// before it in the batch as if they had been stored already.
    ///
    /// An id that is stored already answers `Existing`; else a key is decided by
    /// [`idempotency::decide`](crate::idempotency::decide). `Replaced` gives the holder the new
    /// payload, `concurrency_key`, `run_at` and `expires_at` and lets it take its place in line by
    /// those; everything else of it stays.
    async fn enqueue(&self, tasks: Vec<NewTask>, now: Timestamp) -> Result<Vec<Enqueued>>;

    /// Hands out due tasks in order: promotes what has become due, passes over what is paused,
    /// frozen, limited, parked or of another type at a cost that does not grow with it. Expired
    /// tasks are cancelled, and tasks whose key has completed are completed, on the way: exactly
    /// those that would have been handed out otherwise, and they use up no limit.
    ///
    /// As if, until there are `max`, the foremost task that may run were taken: of a pool that is
    /// not paused, of one of the types, with room under its type's `concurrency` and rate, with
    /// fewer than `per_key` running tasks of its type and `concurrency_key`, and not in
    /// quarantine while another task in quarantine runs. A worker whose entry
    /// is missing, retired or lapsed gets nothing unless it brings a `lease_until`.
    async fn claim(&self, request: ClaimRequest) -> Result<ClaimBatch>;

    /// Ends attempts. Each item is fenced by itself, and all are written together: a call that is
    /// repeated because its answer was lost finds all of them fenced, or none. The task's `error`
    /// becomes that of the attempt, also when it is `None`.
    async fn settle(&self, items: Vec<Settlement>) -> Result<Vec<Settled>>;

    /// Adds a worker's entry or replaces it.
    async fn register(&self, worker: Worker) -> Result<()>;

    /// Renews a worker's lease, slots and `draining`; when it started stays. `false`: its entry is gone (whoever judges
    /// a lapsed worker retires it first); its claims are judged or about to be.
    async fn beat(&self, worker: &Worker) -> Result<bool>;

    /// Takes a worker's entry away; claims that it still has lapse at once, those with leases of
    /// their own too, and are still known as `draining` if it was.
    async fn retire(&self, worker: &WorkerId, now: Timestamp) -> Result<()>;

    /// By id.
    async fn workers(&self) -> Result<Vec<Worker>>;

    /// Renews claims with leases of their own; answers the ids whose claims no longer stand and
    /// those that should be cancelled, in the order of `claims`.
    async fn extend(&self, claims: &[Claim], lease_until: Timestamp) -> Result<Extended>;

    /// Whether a claim that this store handed out has a lease of its own, which its holder renews
    /// by `extend`, because it was made while the database was away.
    fn is_journalled(&self, claim: &Claim) -> bool {
        let _ = claim;
        false
    }

    /// Running tasks of this worker that somebody wants to end, in the order they were claimed.
    async fn cancel_requests(&self, worker: &WorkerId) -> Result<Vec<TaskId>>;

    /// Running tasks whose lease ended before `now` (it stands at `lease_until` itself), in the
    /// order they were claimed. Changes nothing: each is then settled with the claim that was
    /// read here, so one that ended meanwhile stays ended.
    async fn lapsed(&self, now: Timestamp, limit: usize) -> Result<Vec<Lapsed>>;

    /// Cancels pending tasks with `expires_at <= now`, held ones too, with the reason `expired`.
    async fn expire(&self, now: Timestamp, limit: usize) -> Result<u64>;

    /// Cancels what is pending (`cancel_reason` is `cancelled`) and asks what is running to end;
    /// the first request's time stays. Audited as `task.cancel`.
    async fn cancel(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Cancelled>>;

    /// A waiting task becomes due now (one that is due keeps its place, one that is held stays
    /// held); audited as `task.retry`. A failed task, dismissed or not, starts a new round due
    /// now, if its key is free, which it takes again: counters of retries, losses and
    /// interruptions at 0, `replays` + 1, error, dismissal and an `expires_at` that has passed
    /// dropped, attempts kept and numbered on; audited as `dead_letter.replay`. Either gets
    /// `payload` instead of its own if that is given.
    async fn retry(&self, ids: &[TaskId], payload: Option<Json>, act: &Act)
    -> Result<Vec<Retried>>;

    /// Puts dead letters aside. Audited as `dead_letter.dismiss`.
    async fn dismiss(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Dismissed>>;
}

/// Schedules and their occurrences.
#[async_trait]
pub trait Timetables: Send + Sync {
    /// Writes schedules as they are given, by name, each by itself and in order; the answer says
    /// which writes found what they expected.
    async fn put_schedules(&self, writes: Vec<(Expect, ScheduleState)>) -> Result<Vec<bool>>;

    /// Removes a schedule; its history stays, its held tasks are cancelled with the reason
    /// `schedule_removed`. Audited as `schedule.remove`.
    async fn remove_schedule(&self, name: &str, act: &Act) -> Result<bool>;

    async fn schedule(&self, name: &str) -> Result<Option<DueSchedule>>;

    /// By name.
    async fn schedules(&self, page: &PageRequest) -> Result<Page<DueSchedule>>;

    /// Active schedules with `next_due <= now`, earliest first (equals by name), and when the
    /// next one after those is due. A freeze changes nothing here: what it means for an
    /// occurrence is decided by whoever fires.
    async fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueSchedule>, Option<Timestamp>)>;

    /// Applies plans, each by itself: occurrences, tasks and cursor together, or `false` when
    /// the schedule has changed since it was read (another `uid`, another `rev`, or it is gone),
    /// or when it already has a `scheduled` occurrence of one of the plan's `scheduled` labels.
    ///
    /// First `cancel_previous`: running tasks of the schedule are asked to end, pending ones are
    /// cancelled with the reason `overlap`. Then the starts, decided as by `enqueue`; each one's
    /// occurrence names the task that has the key, be it the new one or the holder.
    async fn fire(&self, plans: Vec<FirePlan>, now: Timestamp) -> Result<Vec<bool>>;

    /// The last recorded first.
    async fn occurrences(
        &self,
        schedule: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<Occurrence>>;

    /// Fired occurrences of a schedule, of any kind, with nominal time in `[from, to)`, by that
    /// time, and the state of their tasks (`None` when pruned).
    async fn fired_between(
        &self,
        schedule_uid: Uuid,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<(Occurrence, Option<State>)>>;

    async fn live(&self, schedule_uid: Uuid) -> Result<Live>;
}

/// What people look at and keep.
#[async_trait]
pub trait Records: Send + Sync {
    /// The last accepted first.
    async fn tasks(&self, filter: &TaskFilter, page: &PageRequest) -> Result<Page<Task>>;

    async fn task(&self, id: TaskId) -> Result<Option<Task>>;

    /// By number; the running one last, with `outcome: None`.
    async fn attempts(&self, id: TaskId) -> Result<Vec<Attempt>>;

    async fn surroundings(&self, task: &Task, now: Timestamp) -> Result<Surroundings>;

    /// By the time they failed, equals by order of acceptance.
    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        order: Order,
        page: &PageRequest,
    ) -> Result<Page<Task>>;

    /// Largest group first, equals by fingerprint.
    async fn dead_letter_groups(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetterGroup>>;

    async fn settings(&self) -> Result<Settings>;

    /// Changes what it is asked to and nothing else, whatever others change beside it. The audit
    /// entry, if any, is written with the change.
    async fn change_setting(&self, change: SettingChange, audit: Option<AuditEntry>) -> Result<()>;

    async fn stats(&self, now: Timestamp) -> Result<Stats>;

    /// The task that has a key, live or completed; `None` when it is free.
    async fn ledger(&self, kind: &str, key: &str) -> Result<Option<LedgerEntry>>;

    /// Frees a completed key. `false`: there is none, or its task is live. Audited as
    /// `ledger.forget` with the target `TYPE/KEY`.
    async fn forget_key(&self, kind: &str, key: &str, act: &Act) -> Result<bool>;

    /// The last recorded first.
    async fn audit(&self, page: &PageRequest) -> Result<Page<AuditEntry>>;

    async fn record(&self, entry: AuditEntry) -> Result<()>;

    async fn put_operation(&self, operation: &Operation) -> Result<()>;

    async fn operation(&self, id: Uuid) -> Result<Option<Operation>>;

    /// Oldest first.
    async fn running_operations(&self) -> Result<Vec<Operation>>;

    /// By name.
    async fn tokens(&self) -> Result<Vec<Token>>;

    /// Adds a token or replaces the one of that name.
    async fn put_token(&self, token: &Token) -> Result<()>;

    async fn revoke_token(&self, name: &str) -> Result<bool>;

    /// A word kept for the runtime itself: content hash of the applied file, last clock reading.
    async fn note(&self, key: &str) -> Result<Option<String>>;

    async fn put_note(&self, key: &str, value: &str) -> Result<()>;
}

/// What became of a node that is said to be dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// Nobody waits for one of that name.
    Unknown,
    /// It was here a moment ago.
    Lives,
    Done,
}

/// A store: everything above, and its own upkeep.
#[async_trait]
pub trait Store: Queue + Timetables + Records + Outbox {
    fn info(&self) -> StoreInfo;

    /// What else it consists of.
    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }

    /// What its parts list and it does not have, for longer than something may be on its way. May
    /// take a while when there is something.
    async fn strays(&self) -> Result<Vec<Stray>> {
        Ok(Vec::new())
    }

    /// A trivial round trip on a path of its own, so that it answers while the store works.
    async fn ping(&self) -> Result<()>;

    /// Takes or keeps, for `lasts`, the right to tell people that the store is away. `false`:
    /// another node has it. A store without a part in which nodes could agree gives it to each.
    async fn may_tell_of_outage(&self, _node_id: &str, _lasts: Duration) -> Result<bool> {
        Ok(true)
    }

    /// The clock that instants are to be taken from, where several machines share the store;
    /// `None`: that of the host.
    async fn clock(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    /// A node's sign of life, given while all of its loops turn: under its own name, and if it
    /// `schedules`, as that of any scheduler too.
    async fn heartbeat(&self, node_id: &str, schedules: bool, at: Timestamp) -> Result<()> {
        let seconds = at.as_second().to_string();
        self.put_note(&format!("{HEARTBEAT}:{node_id}"), &seconds).await?;
        if schedules { self.put_note(HEARTBEAT, &seconds).await } else { Ok(()) }
    }

    /// What those who wait for something in the store ask for, in one go and without a lock, so
    /// that a node with nothing to do asks once in a while instead of once for each of its loops.
    /// A store to which questions cost nothing answers that anything may be there, if it answers.
    async fn look(&self, request: &LookRequest) -> Result<Look> {
        self.ping().await?;
        Ok(Look::anything(request))
    }

    /// Resolves when somebody outside this process may have changed the store, at the latest
    /// with the next real change after the call. A hint: polling is the truth.
    async fn changed(&self);

    /// Resolves when a worker was found dead before its lease was over: it is retired, and its
    /// claims have lapsed. A store that has no other sign of life than leases never does.
    async fn worker_died(&self) {
        std::future::pending::<()>().await;
    }

    /// A person says that a node is dead: nobody need wait for what it may do without the store.
    async fn forget_node(&self, _node: &str) -> Result<Forgotten> {
        Ok(Forgotten::Unknown)
    }

    /// Deletes things whose time is over, at most `limit` of each kind. An occurrence is as old
    /// as its `fired_at`, or its nominal time when it did not fire. The ledger answers for a
    /// completed key after the task's row has gone, and no longer once its own entry has gone.
    /// An operation that has finished is kept like the record of the act that began it; a
    /// worker's entry, retired or not, for as long as a completed task from the end of its lease
    /// on, and while it has claims.
    async fn prune(&self, retention: &Retention, now: Timestamp, limit: usize) -> Result<Pruned>;

    /// Writes out what is pending and lets go of files and connections.
    async fn close(&self) -> Result<()>;
}
