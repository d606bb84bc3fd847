//! One task's place in Redis. Each method is one script: it happens as a whole or not at all.
//!
//! ```text
//!          push, not below the tombstone       claim, in the dark
//!  (none) ───────────────────────────▶ available ─────────────▶ claimed ─┐ renew
//!    ▲                                  │     ▲                  │ │ ▲ ◀─┘
//!    │ take: tombstone = attempt + 1    │     └─ release,        │ │ └── lease over: by another
//!    │                                  │        failure ────────┘ │
//!    └──────────────────────────────────┴──── take, success, detach┘
//! ```
//!
//! The clock of a slot is that of Redis, in milliseconds.

use super::Generation;

/// A task that may be claimed in the dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Available {
    pub attempt: u32,
    pub generation: Generation,
}

/// A task that runs under a claim that PostgreSQL does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JournalClaim {
    pub attempt: u32,
    pub generation: Generation,
    pub fence: u64,
    pub lease_until: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Slot {
    pub available: Option<Available>,
    pub claim: Option<JournalClaim>,
    /// Pushes of an attempt below this come too late. Kept for longer than an outage lease.
    pub tombstone: u32,
}

/// What a take found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The entry that was expected: nobody else can have it now.
    Found,
    /// Nothing; nor will there be, because the tombstone stands.
    Nothing,
    /// Somebody is dark, or the stream is not replayed: only what is surely free may be taken.
    /// Nothing was changed.
    Wait,
}

/// A claim made in the dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    pub attempt: u32,
    /// The claim that was lost before: its holder did not renew it.
    pub lost: Option<u64>,
}

impl Slot {
    /// Before a claim in PostgreSQL of a row with this attempt. `guarded`: an announcement counts,
    /// or the stream holds entries.
    pub fn take(&mut self, attempt: u32, generation: Generation, guarded: bool) -> Taken {
        let found = self.available == Some(Available { attempt, generation });
        if guarded && !found {
            return Taken::Wait;
        }
        self.available = None;
        self.claim = None;
        self.tombstone = self.tombstone.max(attempt + 1);
        if found { Taken::Found } else { Taken::Nothing }
    }

    /// Mirrors a pending task. `false`: it has been taken meanwhile.
    pub fn push(&mut self, attempt: u32, generation: Generation) -> bool {
        if attempt < self.tombstone || self.claim.is_some() {
            return false;
        }
        self.available = Some(Available { attempt, generation });
        true
    }

    /// A claim in the dark, by a member that acknowledged `generation`.
    pub fn claim(
        &mut self,
        generation: Generation,
        now: u64,
        fence: u64,
        lease_until: u64,
    ) -> Option<Grant> {
        let grant = match (self.claim, self.available) {
            (Some(old), _) if old.generation == generation && old.lease_until <= now => {
                Grant { attempt: old.attempt + 1, lost: Some(old.fence) }
            }
            (None, Some(entry)) if entry.generation == generation => {
                Grant { attempt: entry.attempt + 1, lost: None }
            }
            _ => return None,
        };
        let attempt = grant.attempt;
        self.available = None;
        self.tombstone = self.tombstone.max(attempt);
        self.claim = Some(JournalClaim { attempt, generation, fence, lease_until });
        Some(grant)
    }

    /// `false`: the claim no longer stands, and the run must end.
    pub fn renew(&mut self, fence: u64, lease_until: u64) -> bool {
        match &mut self.claim {
            Some(claim) if claim.fence == fence => {
                claim.lease_until = lease_until;
                true
            }
            _ => false,
        }
    }

    /// A run under the journal has ended; `again`: it may be claimed anew. `false`: refused.
    pub fn finish(&mut self, fence: u64, again: bool) -> bool {
        let Some(claim) = self.claim.filter(|claim| claim.fence == fence) else { return false };
        self.claim = None;
        if again {
            let (attempt, generation) = (claim.attempt, claim.generation);
            self.available = Some(Available { attempt, generation });
        }
        true
    }

    /// Before a run is handed over to PostgreSQL. `false`: the claim no longer stands.
    pub fn detach(&mut self, fence: u64) -> bool {
        self.finish(fence, false)
    }

    /// A cancel in the dark, or the fire of a mark: what waits under this generation waits no
    /// more. `false`: it runs, or is not here; an entry of an earlier generation says nothing.
    pub fn withdraw(&mut self, generation: Generation) -> bool {
        let waits = |entry: &Available| entry.generation == generation;
        let Some(entry) = self.available.filter(waits).filter(|_| self.claim.is_none()) else {
            return false;
        };
        self.available = None;
        self.tombstone = self.tombstone.max(entry.attempt + 1);
        true
    }
}
