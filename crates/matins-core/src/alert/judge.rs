//! What figures say that nobody raises by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::desk::Desk;
use super::policy::Policy;
use super::{Alert, Rule};
use crate::duration;
use crate::lifecycle::later;
use crate::store::{Stats, Worker};
use crate::task::{Name, Task, until};

/// The subject of what is about the whole store.
pub const WHOLE: &str = "store";

/// Whether an alert must not wait for the store: it is about the store, or about a process that
/// may not reach it any more.
pub const fn is_local(rule: Rule) -> bool {
    matches!(rule, Rule::Store | Rule::Outage | Rule::Stalled | Rule::Restarted | Rule::CrashLoop)
}

/// States that begin or end by the figures of a store. The desk is the memory of what was told.
pub fn figures(stats: &Stats, policy: &Policy, desk: &Desk, now: Timestamp) -> Vec<Alert> {
    let mut alerts = Vec::new();
    let mut judge = |begun: Alert, holds: bool| {
        let stands = desk.stands(begun.rule, &begun.subject);
        match (holds, stands) {
            (true, false) => alerts.push(begun),
            (false, true) => alerts.push(Alert::resolved(begun.rule, begun.subject, now)),
            _ => {}
        }
    };
    let limit = policy.above(Rule::DeadLetters);
    let many = Alert::new(Rule::DeadLetters, WHOLE, now)
        .fact("count", stats.dead_letters)
        .fact("limit", limit);
    judge(many, stats.dead_letters > limit);

    let patience = policy.after(Rule::Backlog);
    for (pool, since) in &stats.oldest_ready {
        let age = until(now, *since);
        let backlog = Alert::new(Rule::Backlog, &**pool, now)
            .fact("age", duration::format(Duration::from_secs(age.as_secs())))
            .fact("tasks", stats.ready.get(pool).copied().unwrap_or_default());
        judge(backlog, age > patience);
    }
    for pool in desk.standing(Rule::Backlog) {
        if !stats.oldest_ready.contains_key(&*pool) {
            judge(Alert::new(Rule::Backlog, pool, now), false);
        }
    }
    alerts
}

/// Types of waiting tasks that have been due for `patience` and that no live worker runs, and how
/// many of them were seen.
pub fn unserved(
    waiting: &[Task],
    workers: &[Worker],
    patience: Duration,
    now: Timestamp,
) -> BTreeMap<Name, u64> {
    let live: Vec<&Worker> = workers.iter().filter(|worker| worker.lease_until >= now).collect();
    let mut unserved = BTreeMap::new();
    for task in waiting.iter().filter(|task| !task.held && later(task.run_at, patience) <= now) {
        if !live.iter().any(|worker| worker.types.contains(&task.kind)) {
            *unserved.entry(task.kind.clone()).or_default() += 1;
        }
    }
    unserved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_begin_and_end_once() {
        let policy = Policy::default();
        let start = Timestamp::UNIX_EPOCH;
        let at = |seconds| later(start, Duration::from_secs(seconds));
        let mut desk = Desk::default();
        let mut told = Vec::new();
        let stats = |dead, since: Option<u64>| Stats {
            dead_letters: dead,
            oldest_ready: since.map(|since| ("io".into(), at(since))).into_iter().collect(),
            ..Stats::default()
        };
        let looks = [
            (10, stats(100, Some(0))),
            (901, stats(101, Some(0))),
            (902, stats(500, Some(0))),
            (903, stats(3, None)),
            (904, stats(3, Some(900))),
        ];
        for (second, stats) in looks {
            for alert in figures(&stats, &policy, &desk, at(second)) {
                told.push((second, alert.rule, alert.resolved));
                desk.take_in(&alert, &policy, at(second));
            }
        }
        let expected = [
            (901, Rule::DeadLetters, false),
            (901, Rule::Backlog, false),
            (903, Rule::DeadLetters, true),
            (903, Rule::Backlog, true),
        ];
        assert_eq!(told, expected);
    }
}
