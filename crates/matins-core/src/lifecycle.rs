//! Every exit from `running` is decided here, once, for every store and executor.
//!
//! ```text
//!            enqueue                 claim (attempt + 1, new fence)
//!   (none) ───────────▶ pending ───────────────────────────────────▶ running
//!                        ▲   │ cancel, expired, key completed           │
//!                        │   ▼                                          │ settle
//!                        │  cancelled / completed                       ▼
//!                        ├──────────── again at run_at ◀─────────── [decision]
//!                        │                                              │
//!                        └── replay ◀── failed ◀── gave up ─────────────┤
//!                                                    completed ◀────────┤
//!                                                    cancelled ◀────────┘
//! ```
//!
//! Success, failure, timeout, cancel, loss, interruption and snooze all pass through
//! [`settle`]. A store executes the [`Settlement`]; it decides nothing but whether the claim
//! still stands and whether a cancel arrived before the write.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Json;
use crate::retry::{RETRY_AFTER_MAX, RetryPolicy};
use crate::task::{AttemptOutcome, Claim, Claimed, ErrorClass, Output, State, Task, TaskError};

/// Losses from which a task runs alone.
pub const QUARANTINE_LOSSES: u32 = 2;

/// How a run ended, in the words of whoever ran it.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Completed {
        result: Option<Json>,
        result_dropped_bytes: Option<u64>,
    },
    Failed {
        error: TaskError,
        permanent: bool,
        retry_after: Option<RetryAfter>,
    },
    /// Ended by its time limit.
    TimedOut {
        error: TaskError,
    },
    /// Ended because somebody asked for it.
    Cancelled,
    /// The worker or the runner died under it.
    Lost {
        error: TaskError,
    },
    /// Ended by our own shutdown.
    Interrupted,
    /// Wants to run later without using a retry.
    Snoozed {
        at: Timestamp,
    },
    /// The run recorded its own completion in a transaction of its own. If that was committed,
    /// this settlement is fenced; if it was not, the work is not done.
    SettledByRun,
    /// Given back: never started, or handed back by a remote worker.
    Released {
        at: Timestamp,
    },
}

impl Outcome {
    /// Success with a result within its limit, or with its size alone.
    pub fn completed(result: Option<Json>, result_bytes_max: usize) -> Self {
        match result {
            Some(json) if json.byte_len() > result_bytes_max => {
                Self::Completed { result: None, result_dropped_bytes: Some(json.byte_len() as u64) }
            }
            result => Self::Completed { result, result_dropped_bytes: None },
        }
    }
}

/// An explicit wish for the time of the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    /// Somebody else's `Retry-After`, as seconds or as a date: held to [`RETRY_AFTER_MAX`].
    In(Duration),
    /// The task's own word: taken as it is.
    At(Timestamp),
}

/// What a run left behind beside its outcome.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Trace {
    pub exit_code: Option<i32>,
    pub http_status: Option<u16>,
    pub output: Output,
}

/// Where a task goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    Completed {
        result: Option<Json>,
        result_dropped_bytes: Option<u64>,
    },
    /// Pending again.
    Again {
        run_at: Timestamp,
    },
    /// A dead letter.
    Failed,
    Cancelled {
        /// There is one alone that a run can end for.
        #[serde(skip, default = "cancelled")]
        reason: &'static str,
    },
}

fn cancelled() -> &'static str {
    "cancelled"
}

/// One fenced write: how the attempt ended and where the task goes.
///
/// Its serialised form is that of the outage journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    pub claim: Claim,
    pub attempt: u32,
    pub outcome: AttemptOutcome,
    pub error: Option<TaskError>,
    pub trace: Trace,
    pub finished_at: Timestamp,
    pub next: Next,
    /// Taken instead of `next` when a cancel was recorded before this write.
    pub next_if_cancelled: Next,
    /// Retries of the task before this attempt: a cancelled run uses none.
    pub retries_before: u32,
    /// Counters of the task after this attempt.
    pub retries: u32,
    pub losses: u32,
    pub interruptions: u32,
}

impl Settlement {
    /// The pending task that its task becomes, when it is to run again; `None`: it has ended.
    pub fn again(&self, task: &Task) -> Option<Task> {
        let Next::Again { run_at } = self.next else { return None };
        Some(Task {
            state: State::Pending,
            run_at,
            attempt: self.attempt,
            retries: self.retries,
            losses: self.losses,
            interruptions: self.interruptions,
            error: self.error.clone(),
            ..task.clone()
        })
    }

    /// Where the task goes and its retries then, now that it is known whether a cancel was
    /// recorded before this write.
    pub fn taken(&self, cancel_requested: bool) -> (&Next, u32) {
        match cancel_requested {
            true => (&self.next_if_cancelled, self.retries_before),
            false => (&self.next, self.retries),
        }
    }
}

/// Decides where a running task goes. `dice` is uniform in `[0, 1)`.
pub fn settle(
    claimed: &Claimed,
    outcome: Outcome,
    trace: Trace,
    policy: &RetryPolicy,
    now: Timestamp,
    dice: f64,
) -> Settlement {
    let task = &claimed.task;
    let mut s = Settlement {
        claim: claimed.claim,
        attempt: task.attempt,
        outcome: AttemptOutcome::Failed,
        error: None,
        trace,
        finished_at: now,
        next: Next::Failed,
        next_if_cancelled: Next::Cancelled { reason: cancelled() },
        retries_before: task.retries,
        retries: task.retries,
        losses: task.losses,
        interruptions: task.interruptions,
    };
    match outcome {
        Outcome::Completed { result, result_dropped_bytes } => {
            s.outcome = AttemptOutcome::Completed;
            s.next = Next::Completed { result, result_dropped_bytes };
            s.next_if_cancelled = s.next.clone();
        }
        Outcome::Failed { error, permanent, retry_after } => {
            s.error = Some(error);
            if !permanent {
                retry_or_fail(&mut s, task, policy, retry_after, now, dice);
            }
        }
        Outcome::TimedOut { error } => {
            s.outcome = AttemptOutcome::Timeout;
            s.error = Some(error);
            retry_or_fail(&mut s, task, policy, None, now, dice);
        }
        Outcome::Cancelled => {
            s.outcome = AttemptOutcome::Cancelled;
            s.error = Some(TaskError::new(ErrorClass::Cancelled, "cancelled while running"));
            s.next = Next::Cancelled { reason: cancelled() };
        }
        Outcome::Lost { error } => {
            s.outcome = AttemptOutcome::Lost;
            lose(&mut s, task, error, policy, now, dice);
        }
        Outcome::Interrupted => {
            s.outcome = AttemptOutcome::Interrupted;
            s.interruptions = s.interruptions.saturating_add(1);
            if s.interruptions > policy.max_interruptions {
                let text = format!("interrupted by {} shutdowns of its worker", s.interruptions);
                lose(&mut s, task, TaskError::new(ErrorClass::WorkerLost, text), policy, now, dice);
            } else {
                s.next = Next::Again { run_at: now };
            }
        }
        Outcome::SettledByRun => {
            let text = "the transaction that was to complete the task was not committed";
            s.error = Some(TaskError::new(ErrorClass::Error, text));
            retry_or_fail(&mut s, task, policy, None, now, dice);
        }
        Outcome::Snoozed { at } => {
            s.outcome = AttemptOutcome::Snoozed;
            s.next = Next::Again { run_at: at.max(now) };
        }
        Outcome::Released { at } => {
            s.outcome = AttemptOutcome::Released;
            s.next = Next::Again { run_at: at.max(now) };
        }
    }
    s
}

fn retry_or_fail(
    s: &mut Settlement,
    task: &Task,
    policy: &RetryPolicy,
    retry_after: Option<RetryAfter>,
    now: Timestamp,
    dice: f64,
) {
    let max_retries = task.max_retries.unwrap_or(policy.max_retries);
    if s.retries >= max_retries {
        return;
    }
    let backoff = task.backoff.unwrap_or(policy.backoff);
    let own = later(now, backoff.delay(s.retries, dice));
    let asked = match retry_after {
        Some(RetryAfter::In(delay)) => later(now, delay.min(RETRY_AFTER_MAX)),
        Some(RetryAfter::At(at)) => at,
        None => own,
    };
    s.retries += 1;
    s.next = Next::Again { run_at: own.max(asked) };
}

/// The first loss runs again at once, later ones back off, the last one is a dead letter.
fn lose(
    s: &mut Settlement,
    task: &Task,
    error: TaskError,
    policy: &RetryPolicy,
    now: Timestamp,
    dice: f64,
) {
    s.losses = s.losses.saturating_add(1);
    if s.losses >= policy.max_losses {
        let text = format!("worker died {} times: {}", s.losses, error.message);
        s.error = Some(TaskError::new(ErrorClass::WorkerLost, text));
        s.next = Next::Failed;
        return;
    }
    s.error = Some(error);
    let backoff = task.backoff.unwrap_or(policy.backoff);
    let wait = match s.losses {
        0 | 1 => Duration::ZERO,
        losses => backoff.delay(losses - 2, dice),
    };
    s.next = Next::Again { run_at: later(now, wait) };
}

/// `now + wait` in the grain of a store, held inside the range of a timestamp.
pub fn later(now: Timestamp, wait: Duration) -> Timestamp {
    let micros = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
    now.saturating_add(SignedDuration::from_micros(micros)).unwrap_or(Timestamp::MAX)
}
