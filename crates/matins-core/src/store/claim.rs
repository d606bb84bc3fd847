//! Handing out runs: what is asked for, what there may be, and what becomes of them.

use std::sync::Arc;

use jiff::Timestamp;

use crate::task::{Claimed, Name, State, TaskId, WorkerId};

/// Which types a worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Types {
    Any,
    Only(Arc<std::collections::BTreeSet<Name>>),
}

impl Types {
    pub fn contains(&self, kind: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(kinds) => kinds.contains(kind),
        }
    }
}

#[derive(Debug, Clone)]
pub struct ClaimRequest {
    pub worker: WorkerId,
    /// `None`: any pool (remote workers).
    pub pool: Option<Name>,
    pub types: Types,
    /// Only these tasks, if they are due and nothing else forbids them; `None`: any.
    pub ids: Option<Vec<TaskId>>,
    pub max: usize,
    /// Random, fresh per call.
    pub token: u64,
    /// The answer to an earlier call with this token was lost: if that call claimed anything
    /// that still stands, hand out exactly that again, in the order of the claim and whatever
    /// now forbids new claims; else claim as ever.
    pub repeated: bool,
    /// A lease of these claims' own (remote workers, which beat or register before they claim);
    /// `None`: the worker's lease covers them.
    pub lease_until: Option<Timestamp>,
    pub now: Timestamp,
}

#[derive(Debug, Clone, Default)]
pub struct ClaimBatch {
    pub claimed: Vec<Claimed>,
    /// When this call is worth repeating without a wake-up: the next due task, the next opening
    /// of a rate limit. `None`: only a wake-up will bring something. May be earlier than that,
    /// never later; not later than `now` only when the call stopped short, so that the next one
    /// gets on. Says nothing when the batch is full.
    pub next_at: Option<Timestamp>,
}

/// What a node waits for.
#[derive(Debug, Clone)]
pub struct LookRequest {
    /// Pools with free slots.
    pub pools: Vec<Name>,
    pub types: Types,
    pub now: Timestamp,
    /// Whether upkeep is to be looked after as well, and which claims have lapsed by then
    /// ([`Queue::lapsed`](super::Queue::lapsed)): that takes more than a glance, and is asked less often.
    pub upkeep: Option<Timestamp>,
}

/// What there may be to do for a node that waits. May promise too much or too early, never too
/// little: where it says nothing, a claim finds nothing, and no schedule is due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// Pools from which a claim may get something now.
    pub pools: Vec<Name>,
    /// When a claim may get something from any pool. What a claim itself said of that
    /// ([`ClaimBatch::next_at`]) is not told again.
    pub later: Option<Timestamp>,
    /// When the next schedule is due.
    pub schedules: Option<Timestamp>,
    /// Claims may have lapsed, pending tasks expired; said when it was asked.
    pub lapsed: bool,
    pub expired: bool,
    /// The store's clock ([`Store::clock`](super::Store::clock)).
    pub clock: Option<Timestamp>,
}

impl Look {
    /// Nothing is known, so anything may be there.
    pub fn anything(request: &LookRequest) -> Self {
        let upkeep = request.upkeep.is_some();
        Self {
            pools: request.pools.clone(),
            schedules: Some(request.now),
            lapsed: upkeep,
            expired: upkeep,
            ..Self::default()
        }
    }

    /// When the first of what is not there yet comes.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.later.into_iter().chain(self.schedules).min()
    }
}

/// Answer to one settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Written; the state the task is in now.
    Done(State),
    /// The claim no longer stands. Nothing was changed.
    Fenced,
}

/// Answer to a renewal of claims with leases of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extended {
    /// Claims that no longer stand.
    pub lost: Vec<TaskId>,
    /// Claims that stand, but whose tasks should end.
    pub cancel: Vec<TaskId>,
}
