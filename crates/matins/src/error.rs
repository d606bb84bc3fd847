//! How a handler says that it failed.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::lifecycle::{Outcome, RetryAfter};
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
    Retryable(Option<RetryAfter>),
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
        let kind = Kind::Retryable(Some(RetryAfter::In(wait)));
        Self { message: message.to_string(), kind }
    }

    /// Cannot succeed however often it is tried: a dead letter at once.
    pub fn permanent(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), kind: Kind::Permanent }
    }

    /// Not an error: run again at that time, without using a retry.
    pub fn snooze_until(at: Timestamp) -> Self {
        Self { message: format!("snoozed until {at}"), kind: Kind::Snooze(at) }
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        let failed = |class, message, permanent, retry_after| Outcome::Failed {
            error: matins_core::task::TaskError::new(class, message),
            permanent,
            retry_after,
        };
        match self.kind {
            Kind::Retryable(after) => failed(ErrorClass::Error, self.message, false, after),
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
