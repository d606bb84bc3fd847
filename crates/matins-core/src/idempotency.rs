//! Who may have an `execution_key`, decided once for enqueue, replay and claim.

use crate::task::{OnDuplicate, State};

/// What the ledger knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// Never used, forgotten, or its last task failed or was cancelled.
    Free,
    Pending,
    Running,
    Completed,
}

impl From<State> for KeyState {
    fn from(state: State) -> Self {
        match state {
            State::Pending => Self::Pending,
            State::Running => Self::Running,
            State::Completed => Self::Completed,
            State::Failed | State::Cancelled => Self::Free,
        }
    }
}

/// What to do with a request for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDecision {
    /// The newcomer gets the key.
    Take,
    /// Answer with the holder.
    ReturnHolder,
    /// Put the newcomer's payload and times in the pending holder's place.
    ReplaceHolder,
    /// Refuse with `duplicate_key`.
    Reject,
}

pub const fn decide(holder: KeyState, wish: OnDuplicate) -> KeyDecision {
    match (holder, wish) {
        (KeyState::Free, _) => KeyDecision::Take,
        (_, OnDuplicate::Return) => KeyDecision::ReturnHolder,
        (KeyState::Pending, OnDuplicate::Replace) => KeyDecision::ReplaceHolder,
        (_, OnDuplicate::Reject | OnDuplicate::Replace) => KeyDecision::Reject,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completed_key_is_never_taken_again() {
        for wish in [OnDuplicate::Return, OnDuplicate::Reject, OnDuplicate::Replace] {
            assert_ne!(decide(KeyState::Completed, wish), KeyDecision::Take);
            assert_ne!(decide(KeyState::Running, wish), KeyDecision::Take);
            assert_ne!(decide(KeyState::Running, wish), KeyDecision::ReplaceHolder);
            assert_eq!(decide(KeyState::Free, wish), KeyDecision::Take);
        }
    }
}
