//! PostgreSQL away, Redis carries on: the decisions of that protocol, and nothing else.
//!
//! Times and answers come in, decisions come out. What here is a transition of [`Slot`] is a
//! script in Redis, what is a predicate about rows is part of a statement in PostgreSQL; both
//! are held to these functions by `matins-outage-model`, which explores every order of steps
//! and faults it can reach.
//!
//! # Words
//!
//! - *Member*: a node's incarnation that PostgreSQL knows and that may claim or fire.
//! - *Dark*: a member without PostgreSQL that works from Redis alone.
//! - *Mirror*: whole tasks in Redis, in *slots*. An entry is *available* when it may be claimed.
//! - *Mark*: the next instant of a schedule. It is mirrored, taken and fired by the same rules as
//!   a task is claimed, in a slot of its own.
//! - *Generation*: a number in PostgreSQL, stored with the [`Identity`] of the Redis it belongs to.
//!   *Settled* when every member has acknowledged it, or may no longer work in the dark.
//! - *Spool*: entries that a node has written and PostgreSQL does not have yet, on its disk.
//!
//! # Why a lease
//!
//! In a partition one node sees only Redis and another only PostgreSQL, and each thinks that it
//! may go on alone. Attempt numbers cannot tell them apart afterwards. So the right to work from
//! Redis alone is a lease that PostgreSQL granted before, and the right to ignore Redis needs the
//! word of everybody who might hold one. When in doubt, wait.
//!
//! ```text
//!  CONNECTED ── no answer for `outage_after` ──▶ DARK
//!   take in Redis, then claim the row; or,        announced in Redis; until the outage lease
//!   Redis away: a settled generation above        ends: claim slots of the acknowledged
//!   the row's, then claim                         generation; journal and spool
//!      ▲                                             │
//!      │ spool replayed, no journal run,             │ PostgreSQL answers again
//!      │ no script under way: withdraw               ▼
//!      └────────────────────────────────────── RETURNING
//!                                                 replay spool and stream; re-attach or end
//!                                                 journal runs; acknowledge
//! ```
//!
//! # Invariants
//!
//! 1. No task runs under two live claims. (A frozen host may hold one that is over; its result
//!    is refused, and what it ran ends when it wakes.)
//! 2. What was answered with success is in PostgreSQL, in the stream or in a spool.
//! 3. A task completes once. Where a run that had ended was out of everybody's reach (its node
//!    *and* Redis gone), a second run may follow; the first is then *superseded*, changes nothing
//!    and raises an alert.
//! 4. Nobody who has answered "cancelled" sees the task start afterwards.
//! 5. When everything is healed, everything goes on.
//!
//! # What the explorer taught
//!
//! Beside the rules that each function states:
//!
//! - A claim carries the attempt that was read before its take, as well as the generation.
//! - A node gives up its right under the old generation before it sends an acknowledgement: the
//!   answer may be lost.
//! - What is claimed or renewed in the dark is bounded by the outage lease as it was when the
//!   script was sent. A lease renewed after it had ended brings nothing back.
//! - A spool is replayed without what others wrote in between, so a later claim of the journal
//!   replaces an earlier one that was not seen to end.
//! - A member that withdraws says that all its claims of that time in the dark are over: an answer
//!   that was lost may have left one that nobody knows. It says so to itself first.
//! - It deletes its note in Redis by what stands there: a failover may bring it back.
//! - A mark is mirrored and taken like a task; a cancel of a pending task is taken like a claim.
//! - Who sees a stream that is not replayed neither claims without Redis nor judges claims of the
//!   journal.
//!
//! # Failure
//!
//! | what happens | what is done |
//! |---|---|
//! | Redis restarts, fails over or returns empty | its identity differs: as if away, until a new generation is settled |
//! | an answer is lost | the claim is not run and given back; a run is not started after its lease |
//! | a dark member dies | its outage lease is waited for; then its claims are judged |
//! | a member freezes and wakes | its leases are over on its own clock, and its runs ended |
//! | the stream is lost | spools are replayed |
//! | a node is lost with its disk | the stream is replayed |

mod entering;
mod generation;
mod journal;
mod replay;
mod slot;
mod way;

pub use entering::{Contact, Mode};
pub use generation::{
    Announced, Generation, Identity, Member, OutageLease, Standing, announcement_counts,
    may_acknowledge, may_renew, may_withdraw, settled,
};
pub use journal::{
    Change, DarkCancel, DarkClaim, DarkPause, Entry, Persistence, Seal, Unsealed, durability,
};
pub use replay::{ClaimReplay, Recorded, RowState, RowView, claim, read_from, settlement_counts};
pub use slot::{Available, Grant, JournalClaim, Slot, Taken};
pub use way::{Sight, Way, Word, way, word_stands};
