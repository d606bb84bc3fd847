//! The outage protocol, explored: nodes, PostgreSQL and Redis as small values, the decisions of
//! `matins_core::outage` between them, and every order of steps and faults up to a bound.
//!
//! - [`world`]: what there is, and what must hold in every state.
//! - [`step`]: what may happen next, and what it does.
//! - [`explore`]: breadth first with fingerprints of the states seen, or at random and deep.
//!
//! A [`Clause`] can be dropped: the model then does without it, by telling the decision something
//! that is not so. Every clause has a test that expects the explorer to find what goes wrong; a
//! model that cannot fail proves nothing.
//!
//! # Abstractions
//!
//! Time is in ticks: a task's lease is one, the outage lease two; a tick may come at any moment.
//! A statement or a script is one step; what a node does between two of them is interrupted by
//! anything. Each node does one of each kind of step at a time. Ends of leases at both sides fall
//! on the same tick: margins and drift are not modelled. A request is applied when it is sent, or
//! never; its answer may be lost.

pub mod explore;
pub mod step;
pub mod world;

/// A rule of the protocol that closes a found hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Clause {
    /// A take leaves a tombstone even if it found nothing.
    F1,
    /// A Redis of another identity is as good as none.
    F2,
    /// A claim fails when the generation has changed since before the take.
    F3,
    /// A claim without Redis requires a generation above the one the row was mirrored under.
    F4,
    /// Until a generation is settled nobody claims through Redis or mirrors.
    F5,
    /// The outage lease is renewed under the current generation only.
    F6,
    /// A generation is acknowledged with nothing left over.
    F7,
    /// An announcement is withdrawn with nothing left over.
    F8,
    /// A journal run ends with the outage lease.
    F9,
    /// The outage lease is looked at again before a start.
    F10,
    /// Re-attaching deletes the journal claim first.
    F11,
    /// A take deletes the journal claim.
    F12,
    /// A replayed enqueue counts as mirrored.
    F13,
    /// A replayed claim inserts a missing row.
    F14,
    /// A settlement is matched by fence.
    F15,
    /// An announcement counts until its member's outage lease ends.
    F16,
    /// A position in the stream is valid for one identity.
    F17,
    /// A later claim of the journal replaces an earlier one that has not been seen to end.
    Overtake,
    /// A claim carries the attempt that was read before the take.
    Attempt,
    /// The old right is given up before a new generation is acknowledged.
    Farewell,
    /// A cancel of a pending task takes it in Redis first.
    CancelTakes,
    /// Who can see an unreplayed stream neither claims without Redis nor judges journal runs.
    Backlog,
    /// A mark is fired in the dark only when it was mirrored under the generation.
    Mirrored,
    /// A journal run settles through Redis only.
    SettleThere,
}
