//! Tasks that only show that the whole way works: accepted, claimed, run, recorded. One of each
//! pool at a time; they do nothing and leave a record that says so.

use std::time::Duration;

/// The type of such a task, and its tag.
pub const KIND: &str = "matins.canary";
pub const TAG: &str = "canary";

/// What is known of a pool when its canary is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Slots that nothing runs in, for as long as the canary has waited.
    pub has_room: bool,
    /// Somebody stopped it: paused, or the store is frozen, or this node drains.
    pub is_stopped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It came back.
    Sings,
    /// It may still come back, or nothing can be said of the pool.
    Waits,
    /// It should have come back.
    Silent,
}

/// Judges a canary that has been waited for so long, of which `patience` is allowed. One behind
/// tasks that fill its pool is late for a reason that others tell of.
pub fn judge(came_back: bool, waited: Duration, patience: Duration, pool: Pool) -> Verdict {
    if came_back {
        Verdict::Sings
    } else if waited < patience || pool.is_stopped || !pool.has_room {
        Verdict::Waits
    } else {
        Verdict::Silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_or_stopped_pool_silences_its_canary_for_a_reason() {
        let (patience, open) =
            (Duration::from_secs(60), Pool { has_room: true, is_stopped: false });
        let judge = |came_back, waited, pool| judge(came_back, waited, patience, pool);
        assert_eq!(judge(true, patience * 9, open), Verdict::Sings);
        assert_eq!(judge(false, patience / 2, open), Verdict::Waits);
        assert_eq!(judge(false, patience, open), Verdict::Silent);
        assert_eq!(judge(false, patience, Pool { has_room: false, ..open }), Verdict::Waits);
        assert_eq!(judge(false, patience, Pool { is_stopped: true, ..open }), Verdict::Waits);
    }
}
