//! What is true of every store at every moment, judged through the port alone.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use matins_core::dead_letter::DeadLetterFilter;
use matins_core::page::PageRequest;
use matins_core::schedule::{DueSchedule, Live, Occurrence, OccurrenceKind, OccurrenceOutcome};
use matins_core::store::{Order, Store, TaskFilter};
use matins_core::task::{AttemptOutcome, Name, State, Task, TaskId};

use crate::lab::every;

/// Looks at everything in the store and panics at the first thing that cannot be.
pub async fn check(store: &dyn Store, now: Timestamp) {
    let filter = TaskFilter::default();
    let tasks = every(async |page| store.tasks(&filter, &page).await.expect("tasks")).await;
    for task in &tasks {
        task_is_whole(task);
        assert_eq!(store.task(task.id).await.expect("task").as_ref(), Some(task));
        attempts_add_up(store, task).await;
    }
    let ids: BTreeSet<TaskId> = tasks.iter().map(|task| task.id).collect();
    assert_eq!(ids.len(), tasks.len(), "a task is listed twice");
    keys_have_one_holder(store, &tasks).await;
    figures_are_counts(store, &tasks, now).await;
    schedules_balance(store, &tasks).await;
}

fn task_is_whole(task: &Task) {
    let ended = !task.state.is_live();
    assert_eq!(task.finished_at.is_some(), ended, "ended, and when: {task:?}");
    assert!(!task.held || task.state == State::Pending, "held, but not waiting: {task:?}");
    let cancelled = task.state == State::Cancelled;
    assert_eq!(task.cancel_reason.is_some(), cancelled, "cancelled, and why: {task:?}");
    if task.state == State::Failed {
        assert!(task.error.is_some(), "failed without an error: {task:?}");
    }
    assert!(task.dismissed.is_none() || task.state == State::Failed, "dismissed: {task:?}");
    if task.state != State::Completed {
        assert_eq!((&task.result, task.deduplicated), (&None, false), "a result: {task:?}");
    }
    let has_run = task.attempt > 0;
    assert_eq!(task.started_at.is_some(), has_run, "started, and when: {task:?}");
    assert!(
        has_run || !matches!(task.state, State::Running | State::Failed),
        "never ran: {task:?}"
    );
    let accounted = task.retries + task.losses + task.interruptions;
    // An interruption beyond the limit counts as a loss, too.
    assert!(accounted <= 2 * task.attempt, "counters beyond the attempts: {task:?}");
}

async fn attempts_add_up(store: &dyn Store, task: &Task) {
    let attempts = store.attempts(task.id).await.expect("attempts");
    assert!(
        attempts.iter().map(|attempt| attempt.number).eq(1..=task.attempt),
        "attempts of {task:?}: {attempts:?}"
    );
    for attempt in &attempts {
        let runs = task.state == State::Running && attempt.number == task.attempt;
        assert_eq!(attempt.outcome.is_none(), runs, "{attempt:?} of {task:?}");
        assert_eq!(attempt.finished_at.is_none(), runs, "{attempt:?} of {task:?}");
    }
    let completed = attempts.iter().filter(|a| a.outcome == Some(AttemptOutcome::Completed));
    let by_run = task.state == State::Completed && !task.deduplicated;
    assert_eq!(completed.count(), usize::from(by_run), "completions of {task:?}");
    let last = attempts.last().map(|attempt| attempt.started_at);
    assert_eq!(last, task.started_at, "start of {task:?}");
}

async fn keys_have_one_holder(store: &dyn Store, tasks: &[Task]) {
    let mut holders: BTreeMap<(&str, &str), TaskId> = BTreeMap::new();
    for task in tasks.iter().filter(|task| task.state.is_live()) {
        let Some(key) = task.execution_key.as_deref() else { continue };
        let other = holders.insert((&task.kind, key), task.id);
        assert_eq!(other, None, "key {key:?} has two live tasks, {task:?} is one");
        let entry = store.ledger(&task.kind, key).await.expect("ledger");
        let entry = entry.unwrap_or_else(|| panic!("the ledger misses {task:?}"));
        assert_eq!((entry.task_id, entry.state), (task.id, task.state), "ledger of {task:?}");
        assert_eq!(entry.result, None);
    }
}

async fn figures_are_counts(store: &dyn Store, tasks: &[Task], now: Timestamp) {
    let stats = store.stats(now).await.expect("stats");
    let mut counted: BTreeMap<(Name, State), u64> = BTreeMap::new();
    for task in tasks {
        *counted.entry((task.pool.clone(), task.state)).or_default() += 1;
    }
    let kept = stats.tasks.iter().filter(|(_, count)| **count > 0);
    let kept: BTreeMap<_, _> = kept.map(|(key, count)| (key.clone(), *count)).collect();
    assert_eq!(kept, counted, "tasks by pool and state");

    let dead: BTreeSet<TaskId> =
        tasks.iter().filter(|task| task.is_dead_letter()).map(|task| task.id).collect();
    assert_eq!(stats.dead_letters, dead.len() as u64, "dead letters");
    let filter = DeadLetterFilter::default();
    let read = async |page: PageRequest| {
        store.dead_letters(&filter, Order::OldestFirst, &page).await.expect("dead_letters")
    };
    let listed: BTreeSet<TaskId> = every(read).await.iter().map(|task| task.id).collect();
    assert_eq!(listed, dead, "dead letters listed");
    let groups = store.dead_letter_groups(&filter).await.expect("dead_letter_groups");
    let grouped: u64 = groups.iter().map(|group| group.count).sum();
    assert_eq!(grouped, stats.dead_letters, "dead letters grouped");

    for (pool, ready) in &stats.ready {
        let waiting = |task: &&Task| {
            task.pool == *pool && task.state == State::Pending && !task.held && task.run_at <= now
        };
        let due = tasks.iter().filter(waiting).count() as u64;
        assert!(*ready <= due, "{ready} ready in {pool}, but {due} due");
    }
}

async fn schedules_balance(store: &dyn Store, tasks: &[Task]) {
    let schedules = every(async |page| store.schedules(&page).await.expect("schedules")).await;
    let occurrences =
        every(async |page| store.occurrences(None, &page).await.expect("occurrences")).await;
    let mut labels = BTreeSet::new();
    for occurrence in occurrences.iter().filter(|o| o.kind == OccurrenceKind::Scheduled) {
        let label = (occurrence.schedule_uid, &occurrence.label);
        assert!(labels.insert(label), "decided twice: {occurrence:?}");
        let fired = occurrence.outcome == OccurrenceOutcome::Fired;
        assert_eq!(occurrence.task_id.is_some(), fired, "fired, and what: {occurrence:?}");
        assert_eq!(occurrence.fired_at.is_some(), fired, "fired, and when: {occurrence:?}");
    }
    for schedule in &schedules {
        let live = store.live(schedule.state.uid).await.expect("live");
        assert_eq!(live, schedule.live, "{}", schedule.state.spec.name);
        live_is_counted(schedule, tasks);
        balance_covers(schedule, &occurrences);
    }
}

fn live_is_counted(schedule: &DueSchedule, tasks: &[Task]) {
    let name = &schedule.state.spec.name;
    let live = tasks.iter().filter(|task| {
        let origin = task.origin.as_ref();
        task.state.is_live() && origin.is_some_and(|o| o.schedule_uid == schedule.state.uid)
    });
    let (held, active): (Vec<_>, Vec<_>) = live.partition(|task| task.held);
    let failures_in_row = schedule.live.failures_in_row;
    let counted = Live { active: active.len() as u32, held: held.len() as u32, failures_in_row };
    assert_eq!(schedule.live, counted, "live tasks of {name}");
    assert!(held.is_empty() || !active.is_empty(), "{name}: held by nobody: {held:?}");
}

/// Pruned occurrences stay in the balance.
fn balance_covers(schedule: &DueSchedule, occurrences: &[Occurrence]) {
    let balance = schedule.state.balance;
    let sum = balance.fired + balance.coalesced + balance.skipped + balance.missed;
    assert_eq!(balance.expected, sum, "balance of {}", schedule.state.spec.name);
    for (outcome, decided) in [
        (OccurrenceOutcome::Fired, balance.fired),
        (OccurrenceOutcome::Coalesced, balance.coalesced),
        (OccurrenceOutcome::Skipped, balance.skipped),
        (OccurrenceOutcome::Missed, balance.missed),
    ] {
        let recorded: u64 = occurrences
            .iter()
            .filter(|o| o.schedule_uid == schedule.state.uid && o.outcome == outcome)
            .filter(|o| o.kind == OccurrenceKind::Scheduled)
            .map(|o| o.count)
            .sum();
        assert!(recorded <= decided, "{recorded} {outcome}, but {decided} in the balance");
    }
}
