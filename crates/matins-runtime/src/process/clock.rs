//! The clock that Matins and its runner share.
//!
//! A deadline crosses the pipe as an absolute reading of one kernel clock, never as "in so many
//! milliseconds": a message that lay in the pipe while either side was stopped would otherwise
//! give the lease a new life that nobody granted.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// On Linux the clock that also counts suspend: a host that slept past a lease has lost it.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// An instant of the host's monotonic clock, the same in every process of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    pub fn now() -> Self {
        let time = clock_gettime(CLOCK);
        Self((time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_nsec as u64)
    }

    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }

    /// How long after `earlier` this is; zero when it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub fn as_nanos(self) -> u64 {
        self.0
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
