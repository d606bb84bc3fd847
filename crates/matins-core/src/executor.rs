//! The port through which work is done.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::duration::Timeout;
use crate::lifecycle::{Outcome, Trace};
use crate::task::Claimed;

/// Types that need no entry in a file: their payload says what to run, and `allow_commands` of the
/// worker whether it does.
pub const AD_HOC_COMMAND: &str = "command";
pub const AD_HOC_HTTP: &str = "http_call";
pub const AD_HOC_SQL: &str = "db_query";
pub const AD_HOC: [&str; 3] = [AD_HOC_COMMAND, AD_HOC_HTTP, AD_HOC_SQL];

/// Why a run is asked to end before it has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Its time limit has passed.
    Timeout,
    /// Somebody cancelled the task.
    Cancel,
    /// The claim is lost or about to be: nothing this run does counts any more.
    LeaseLost,
    /// Our own process is going away.
    Shutdown,
}

/// What the engine tells a run while it runs.
#[async_trait]
pub trait Supervision: Send + Sync {
    /// Resolves when the run should end. An executor that enforces the limits itself (the
    /// process runner) still obeys it.
    async fn stopped(&self) -> StopReason;

    /// The instant, on `CLOCK_BOOTTIME` in nanoseconds, by which the work must have ended unless
    /// the lease is renewed before. `None`: no lease governs this run.
    fn lease_deadline(&self) -> Option<u64>;

    /// Resolves with the next deadline after `seen`.
    async fn lease_renewed(&self, seen: Option<u64>) -> Option<u64>;

    /// How long a run that was told to end may take for it: its own grace, or less when a
    /// shutdown leaves less.
    fn patience(&self, grace: Duration) -> Duration {
        grace
    }

    /// Offers freshly written output to whoever follows. Never blocks, may drop.
    fn output(&self, chunk: &[u8]);

    /// The same, of what was written to standard error.
    fn error_output(&self, chunk: &[u8]) {
        self.output(chunk);
    }

    /// The run ignores its end and cannot be ended from within the process.
    fn stuck(&self) {}
}

/// One run: the claimed task and the rules for it.
pub struct Run {
    pub claimed: Arc<Claimed>,
    pub timeout: Timeout,
    /// Between asking a run to end and ending it.
    pub grace: Duration,
    pub supervision: Arc<dyn Supervision>,
}

/// How a run ended and what it left behind.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    pub outcome: Outcome,
    pub trace: Trace,
}

impl From<Outcome> for Finished {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, trace: Trace::default() }
    }
}

/// Does the work of a type. Implementations hold no state that a restart would lose.
#[async_trait]
pub trait Executor: Send + Sync {
    /// Runs to an end of its own, or ends the work by its own ladder (ask, wait `grace`, force)
    /// when `supervision` says so, and comes back when nothing of the work is left.
    async fn run(&self, run: Run) -> Finished;
}
