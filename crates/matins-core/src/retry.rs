//! When a failed attempt may run again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::Span;

/// `min(initial × factor^n, max)`, then jitter downwards: uniform in `[(1 − jitter)·d, d]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backoff {
    pub initial: Span,
    pub factor: f64,
    pub max: Span,
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Span::secs(60), factor: 2.0, max: Span::secs(3_600), jitter: 0.1 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("backoff.{field}: expected {expected}, got {got}")]
pub struct BackoffError {
    pub field: &'static str,
    pub expected: &'static str,
    pub got: String,
}

impl Backoff {
    pub fn validate(&self) -> Result<(), BackoffError> {
        let error =
            |field, expected, got: f64| Err(BackoffError { field, expected, got: got.to_string() });
        if !(self.factor.is_finite() && (1.0..=1_000.0).contains(&self.factor)) {
            return error("factor", "a number from 1 to 1000", self.factor);
        }
        if !(self.jitter.is_finite() && (0.0..=1.0).contains(&self.jitter)) {
            return error("jitter", "a number from 0 to 1", self.jitter);
        }
        if self.max.get() < self.initial.get() {
            return error("max", "at least backoff.initial", self.max.get().as_secs_f64());
        }
        Ok(())
    }

    /// Delay before retry number `retries` (0 = the first). `dice` is uniform in `[0, 1)`.
    pub fn delay(&self, retries: u32, dice: f64) -> Duration {
        let max = self.max.get().as_secs_f64();
        // A power that overflows is infinite, and `min` turns it into the cap; 0 × ∞ is NaN,
        // which `min` drops as well, so a zero initial delay is handled before.
        let uncapped = self.initial.get().as_secs_f64()
            * self.factor.powi(i32::try_from(retries).unwrap_or(i32::MAX));
        let capped = if self.initial.get().is_zero() { 0.0 } else { uncapped.min(max) };
        let dice = dice.clamp(0.0, 1.0);
        Duration::from_secs_f64((capped * (1.0 - self.jitter * dice)).max(0.0))
    }
}

/// What decides about a failing task: the type's policy, with the task's own values over it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    pub max_retries: u32,
    pub backoff: Backoff,
    /// Losses (worker or runner died under the task) at which it becomes a dead letter.
    pub max_losses: u32,
    /// Interruptions by our own shutdown beyond which each counts as a loss.
    pub max_interruptions: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_retries: 3, backoff: Backoff::default(), max_losses: 3, max_interruptions: 10 }
    }
}

/// Longest wait that a `Retry-After` of somebody else may impose.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;

    fn exact() -> Backoff {
        Backoff { jitter: 0.0, ..Backoff::default() }
    }

    #[test]
    fn never_overflows() {
        let expected = [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600, 3600];
        for (n, seconds) in expected.into_iter().enumerate() {
            assert_eq!(exact().delay(n as u32, 0.5), Duration::from_secs(seconds));
        }
        for n in [31, 32, 62, 63, 64, 1_024, 1 << 31, u32::MAX] {
            assert_eq!(exact().delay(n, 0.99), Duration::from_secs(3_600), "retry {n}");
        }
        let zero = Backoff { initial: Span::secs(0), ..exact() };
        assert_eq!(zero.delay(u32::MAX, 0.0), Duration::ZERO);
        let huge = Backoff {
            initial: Span::secs(1_000_000_000),
            max: Span::secs(1_000_000_000),
            ..exact()
        };
        assert_eq!(huge.delay(40, 0.0), Duration::from_secs(1_000_000_000));
    }

    #[test]
    fn jitter_only_shortens_and_after_the_cap() {
        let policy = Backoff::default();
        assert_eq!(policy.delay(9, 0.0), Duration::from_secs(3_600));
        let shortest = policy.delay(9, 1.0);
        assert_eq!(shortest, Duration::from_secs(3_240));
    }

    #[test]
    fn bad_settings_are_refused_by_name() {
        for (bad, field) in [
            (Backoff { factor: f64::NAN, ..exact() }, "factor"),
            (Backoff { factor: 1e300, ..exact() }, "factor"),
            (Backoff { factor: 0.5, ..exact() }, "factor"),
            (Backoff { jitter: 1.5, ..exact() }, "jitter"),
            (Backoff { jitter: f64::NAN, ..exact() }, "jitter"),
            (Backoff { max: Span::secs(1), ..exact() }, "max"),
        ] {
            assert_eq!(bad.validate().unwrap_err().field, field);
        }
    }
}
