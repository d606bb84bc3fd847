//! What must always hold of a store, judged from what was read of it. It repairs nothing: a store
//! that breaks one of these was written to by somebody else, or by a mistake of ours.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::limits::Limits;
use crate::schedule::{self, DueSchedule, ScheduleState, ScheduleStatus};
use crate::store::{Stray, Worker};
use crate::task::{Task, WorkerId, until};
use crate::words::words;

/// One thing that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// Every enabled schedule is armed for the occurrence that its timetable names next.
    Armed,
    /// None is past due without a reason.
    Overdue,
    /// What was expected is what fired, was coalesced, skipped and missed.
    Balance,
    /// What runs is held by a live worker.
    Running,
    /// Redis lists no task that the database does not have.
    Redis,
}

words!(
    Invariant,
    "invariant",
    Armed = "armed",
    Overdue = "overdue",
    Balance = "balance",
    Running = "running",
    Redis = "redis",
);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub invariant: Invariant,
    /// The schedule or the task.
    pub subject: String,
    pub detail: String,
}

/// What was looked at, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub at: Timestamp,
    pub schedules: u64,
    /// Decided occurrences that the balances account for.
    pub occurrences: u64,
    pub running: u64,
    pub violations: Vec<Violation>,
}

impl Certificate {
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

/// A schedule that is looked at later than this has been forgotten.
pub const OVERDUE_AFTER: Duration = Duration::from_secs(60);

/// Judges a schedule.
pub fn schedule(due: &DueSchedule, limits: &Limits, now: Timestamp) -> Vec<Violation> {
    let state = &due.state;
    let mut found = Vec::new();
    let mut violated = |invariant, detail: String| {
        found.push(Violation { invariant, subject: state.spec.name.clone(), detail });
    };
    if let Some(detail) = unarmed(state, limits) {
        violated(Invariant::Armed, detail);
    }
    if let Some(next) = state.next_due.filter(|_| state.status == ScheduleStatus::Active) {
        let late = until(now, next);
        if late > OVERDUE_AFTER.max(state.spec.grace.0) {
            let late = late.as_secs();
            violated(Invariant::Overdue, format!("due at {next:.0}, {late} s ago"));
        }
    }
    let balance = state.balance;
    let sum = balance.fired + balance.coalesced + balance.skipped + balance.missed;
    if balance.expected != sum {
        let expected = balance.expected;
        violated(Invariant::Balance, format!("{expected} were expected, {sum} are decided"));
    }
    found
}

fn unarmed(state: &ScheduleState, limits: &Limits) -> Option<String> {
    if state.status != ScheduleStatus::Active {
        return None;
    }
    match (schedule::armed_for(state, limits), state.next_due) {
        (Err(error), _) => Some(format!("cannot be read: {error}")),
        // The rules of its zone have changed: the scheduler is about to arm it anew.
        _ if state.zone_table != crate::cron::tz_release() => None,
        (Ok(wanted), armed) if wanted == armed => None,
        (Ok(wanted), armed) => {
            let shown =
                |at: Option<Timestamp>| at.map_or("nothing".to_owned(), |t| format!("{t:.0}"));
            Some(format!("armed for {}, not for {}", shown(armed), shown(wanted)))
        }
    }
}

/// Judges running tasks, each with the worker that its attempt names. `patience` is how long a
/// lapsed lease may wait for whoever judges it.
pub fn running(
    tasks: &[(Task, Option<WorkerId>)],
    workers: &[Worker],
    patience: Duration,
    now: Timestamp,
) -> Vec<Violation> {
    let known: BTreeMap<&WorkerId, &Worker> = workers.iter().map(|w| (&w.id, w)).collect();
    let judge = |(task, worker): &(Task, Option<WorkerId>)| {
        let detail = match worker {
            None => "runs, and no attempt of it does".to_owned(),
            Some(id) => match known.get(id) {
                None => format!("runs on {id}, which is gone"),
                // The claims of remote workers have leases of their own.
                Some(worker) if worker.remote => return None,
                Some(worker) => {
                    let lapsed = until(now, worker.lease_until);
                    if lapsed <= patience {
                        return None;
                    }
                    format!("runs on {id}, whose lease ended {} s ago", lapsed.as_secs())
                }
            },
        };
        Some(Violation { invariant: Invariant::Running, subject: task.id.to_string(), detail })
    };
    tasks.iter().filter_map(judge).collect()
}

/// What Redis lists and the database does not have.
pub fn stray(stray: &Stray) -> Violation {
    let detail = format!("listed in {}, and no task that is pending", stray.place);
    Violation { invariant: Invariant::Redis, subject: stray.task.clone(), detail }
}
