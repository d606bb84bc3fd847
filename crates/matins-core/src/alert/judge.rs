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

/// How long all must have gone on, after a start or an outage, before anything is held against
/// what is late: it is being caught up.
const BREATH: Duration = Duration::from_secs(10);

/// How much of `age`, for which something has been late or silent, counts: only the time in which
/// it could have been otherwise, because whoever judges was there and the store answered. Both have
/// been so without a break for `steady`.
pub fn counted(age: Duration, steady: Duration) -> Duration {
    age.min(steady.saturating_sub(BREATH))
}

/// A store, as the one who tells of it sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    Fine,
    /// It does not answer, or takes nothing, for so long.
    Away(Duration),
    /// It is away, and something stands in for it.
    StoodInFor,
}

/// How long the store may be away before somebody is told.
pub const AWAY_TOLD_AFTER: Duration = Duration::from_secs(10);

/// The rule under which somebody is told that the store is away; `told`: the one that he was told
/// under. An outage is one matter, whatever becomes of it before it is over.
pub fn away(state: StoreState, told: Option<Rule>) -> Option<Rule> {
    match (state, told) {
        (StoreState::Fine, _) => None,
        (_, Some(told)) => Some(told),
        (StoreState::StoodInFor, None) => Some(Rule::Outage),
        (StoreState::Away(since), None) => (since >= AWAY_TOLD_AFTER).then_some(Rule::Store),
    }
}

/// States that begin or end by the figures of a store, as they were at `now`. The desk is the memory
/// of what was told.
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
    fn an_outage_is_one_matter() {
        let away_for = |seconds| StoreState::Away(Duration::from_secs(seconds));
        let play = |states: &[StoreState]| {
            let mut told = None;
            let states = states.iter().map(|state| {
                told = away(*state, told);
                told
            });
            states.collect::<Vec<_>>()
        };
        let (fine, stood_in) = (StoreState::Fine, StoreState::StoodInFor);
        let (store, outage) = (Some(Rule::Store), Some(Rule::Outage));
        assert_eq!(play(&[away_for(9), away_for(10), fine]), [None, store, None]);
        assert_eq!(play(&[away_for(5), stood_in, fine]), [None, outage, None]);
        assert_eq!(play(&[stood_in, away_for(60), fine]), [outage, outage, None]);
        assert_eq!(play(&[away_for(60), stood_in, fine]), [store, store, None]);
    }

    #[test]
    fn only_time_in_which_it_could_be_otherwise_counts() {
        let secs = Duration::from_secs;
        assert_eq!(counted(secs(3_600), secs(5)), Duration::ZERO);
        assert_eq!(counted(secs(3_600), BREATH + secs(60)), secs(60));
        assert_eq!(counted(secs(30), secs(3_600)), secs(30));
    }

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
