//! How a handler says that it failed.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::lifecycle::{Outcome, RetryAfter, later};
use matins_core::task::ErrorClass;

/// Why a run did not succeed, and whether another one may.
///
/// Any error converts into a retryable one, so `?` works in handlers.
#[derive(Debug, Clone)]
pub struct TaskError {
    message: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Retryable(Option<Duration>),
    Permanent,
    Snooze(Timestamp),
}

impl TaskError {
    /// May succeed when tried again, by the type's backoff.
    pub fn retryable(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), kind: Kind::Retryable(None) }
    }

    /// May succeed after that time at the earliest.
    pub fn retry_in(message: impl fmt::Display, wait: Duration) -> Self {
        Self { message: message.to_string(), kind: Kind::Retryable(Some(wait)) }
    }

    /// Cannot succeed however often it is tried: a dead letter at once.
    pub fn permanent(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), kind: Kind::Permanent }
    }

    /// Not an error: run again at that time, without using a retry.
    pub fn snooze_until(at: Timestamp) -> Self {
        Self { message: format!("snoozed until {at}"), kind: Kind::Snooze(at) }
    }

    /// What a run that ended with it at `now` comes to.
    pub(crate) fn into_outcome(self, now: Timestamp) -> Outcome {
        let failed = |class, message, permanent, retry_after| Outcome::Failed {
            error: matins_core::task::TaskError::new(class, message),
            permanent,
            retry_after,
        };
        match self.kind {
            Kind::Retryable(wait) => {
                // The task's own word, not a header: it is not held to the longest of those.
                let at = wait.map(|wait| RetryAfter::At(later(now, wait)));
                failed(ErrorClass::Error, self.message, false, at)
            }
            Kind::Permanent => failed(ErrorClass::Permanent, self.message, true, None),
            Kind::Snooze(at) => Outcome::Snoozed { at },
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// `TaskError` is no `std::error::Error` itself, so that every error type converts into it.
impl<E: std::error::Error> From<E> for TaskError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::retryable(message)
    }
}
