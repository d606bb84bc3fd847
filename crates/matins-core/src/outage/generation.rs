//! Who may work from Redis alone, and whose word is needed before Redis may be ignored.

use jiff::Timestamp;
use uuid::Uuid;

/// Counts how often the Redis that is mirrored to was given up or exchanged.
pub type Generation = u64;

/// Which Redis, and which life of it: a restart and a failover change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    pub run_id: [u8; 20],
    pub store_id: Uuid,
}

/// What PostgreSQL knows of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pub acknowledged: Generation,
    /// Until when it may work from Redis alone, in database time.
    pub outage_until: Timestamp,
}

/// Whether nobody can work from Redis under an earlier generation any more.
pub fn settled(
    members: impl IntoIterator<Item = Member>,
    current: Generation,
    now: Timestamp,
) -> bool {
    members.into_iter().all(|member| member.acknowledged == current || member.outage_until <= now)
}

/// The outage lease is renewed only under the current generation, in the statement that compares.
pub fn may_renew(acknowledged: Generation, current: Generation) -> bool {
    acknowledged == current
}

/// What a node has under way that belongs to the generation it acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Entries that PostgreSQL does not have yet.
    pub spooled: bool,
    /// Runs under a claim of the journal.
    pub journal_runs: bool,
    /// Scripts sent whose outcome is not settled: no answer yet, or an answer not yet acted on.
    pub scripts: bool,
}

/// A new generation is acknowledged only with nothing left over from the old one. The right to
/// work under the old one is given up *before* this is sent: the answer may be lost.
pub fn may_acknowledge(standing: Standing) -> bool {
    !standing.spooled && !standing.journal_runs && !standing.scripts
}

/// A member that was dark is connected again only with nothing of the dark left.
pub fn may_withdraw(standing: Standing) -> bool {
    may_acknowledge(standing)
}

/// A member's note in Redis that it works in the dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// As PostgreSQL has it; `None`: it knows no such member any more.
    pub outage_until: Option<Timestamp>,
}

/// An announcement holds others up only as long as its member may work in the dark.
pub fn announcement_counts(announced: Announced, now: Timestamp) -> bool {
    announced.outage_until.is_some_and(|until| until > now)
}

/// A node's own view of its outage lease, on its own monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutageLease {
    until_ns: u64,
}

impl OutageLease {
    /// Counted from when the renewal was *sent*, less a margin for clocks that differ in speed.
    pub fn granted(sent_ns: u64, window_ns: u64, margin_ns: u64) -> Self {
        Self { until_ns: sent_ns.saturating_add(window_ns.saturating_sub(margin_ns)) }
    }

    /// None: never granted, or given up.
    pub const NONE: Self = Self { until_ns: 0 };

    pub fn until(until_ns: u64) -> Self {
        Self { until_ns }
    }

    pub fn until_ns(self) -> u64 {
        self.until_ns
    }

    pub fn stands(self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// Until when what is claimed or renewed in the dark may go on: its claim and the outage lease
    /// bound it. Fixed when the script is *sent*: an outage lease that is renewed after it had
    /// ended brings nothing back, because others may have judged meanwhile.
    pub fn bound(self, claim_until_ns: u64) -> u64 {
        self.until_ns.min(claim_until_ns)
    }
}
