//! How long a worker's word counts.
//!
//! A lease belongs to a worker's incarnation and covers all its claims; a remote worker's
//! claims have leases of their own, because its name is all that is known of it. A lease is
//! renewed every third of its length. The holder counts from when it *sent* the renewal, on its
//! own monotonic clock; the store counts from when it *received* it. So the holder's end always
//! comes first, and the runner has ended the process tree before a peer may start the next
//! attempt.

use std::time::Duration;

/// Default length of a lease.
pub const LEASE: Duration = Duration::from_secs(30);

/// How often a lease of this length is renewed.
pub fn renew_every(lease: Duration) -> Duration {
    lease / 3
}

/// How long after the last renewal was sent the holder must have ended its work.
///
/// A tenth is kept back for the kill itself and for clocks that run at different speeds.
pub fn holder_limit(lease: Duration) -> Duration {
    lease.checked_sub(lease / 10).unwrap()
}

/// How often lapsed leases are looked for, so that loss + sweep stays within lease + 5 s.
pub fn sweep_every(lease: Duration) -> Duration {
    (lease / 6).clamp(Duration::from_millis(250), Duration::from_secs(5))
}

/// Whether a store was away, for one who watches it, for so long that others may have missed a
/// renewal for that reason alone: then no lease is judged for one lease's time.
pub fn excuses(away: Duration, lease: Duration) -> bool {
    away >= renew_every(lease)
}
