//! Every exit from `running`, row by row, and laws that hold for all of them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use matins_core::Json;
use matins_core::duration::Span;
use matins_core::lifecycle::{Next, Outcome, RetryAfter, Settlement, Trace, later, settle};
use matins_core::retry::{Backoff, RetryPolicy};
use matins_core::task::{
    AttemptOutcome, Claim, Claimed, ErrorClass, NewTask, Task, TaskError, TaskId,
};
use proptest::prelude::*;
use uuid::Uuid;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

const NOW: i64 = 1_000;

/// A running task with these counters.
fn claimed(retries: u32, losses: u32, interruptions: u32) -> Claimed {
    let id = TaskId(Uuid::from_u128(7));
    let new = NewTask::new(id, "sync", Json::null(), at(0));
    let task = Task {
        attempt: 1 + retries + losses + interruptions,
        retries,
        losses,
        interruptions,
        ..Task::from_new(&new, at(0))
    };
    Claimed { task, claim: Claim { id, fence: 41, token: 99 } }
}

fn error(class: ErrorClass) -> TaskError {
    TaskError::new(class, "it broke")
}

fn failed() -> Outcome {
    Outcome::Failed { error: error(ErrorClass::Exit), permanent: false, retry_after: None }
}

fn failed_with(retry_after: RetryAfter) -> Outcome {
    let error = error(ErrorClass::Http4xx);
    Outcome::Failed { error, permanent: false, retry_after: Some(retry_after) }
}

fn permanent() -> Outcome {
    Outcome::Failed { error: error(ErrorClass::Permanent), permanent: true, retry_after: None }
}

fn timed_out() -> Outcome {
    Outcome::TimedOut { error: error(ErrorClass::Timeout) }
}

fn lost() -> Outcome {
    Outcome::Lost { error: error(ErrorClass::WorkerLost) }
}

fn completed() -> Outcome {
    Outcome::Completed { result: Some(Json::string("done")), result_dropped_bytes: None }
}

/// The default policy without jitter.
fn exact() -> RetryPolicy {
    let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    RetryPolicy { backoff, ..RetryPolicy::default() }
}

fn run(claimed: &Claimed, outcome: Outcome) -> Settlement {
    settle(claimed, outcome, Trace::default(), &exact(), at(NOW), 0.0)
}

/// Seconds until the next attempt, or `None` when there is none.
fn wait(s: &Settlement) -> Option<i64> {
    match s.next {
        Next::Again { run_at } => Some(run_at.duration_since(at(NOW)).as_secs()),
        _ => None,
    }
}

const CANCELLED: Next = Next::Cancelled { reason: "cancelled" };

#[test]
fn each_row_of_the_table() {
    use AttemptOutcome as A;
    let snooze = Outcome::Snoozed { at: at(NOW + 5) };
    let release = Outcome::Released { at: at(NOW) };
    let done = Next::Completed { result: Some(Json::string("done")), result_dropped_bytes: None };
    let again = |seconds: i64| Next::Again { run_at: at(NOW + seconds) };
    // (retries, losses, interruptions) before, outcome, attempt's outcome, next, counters after
    let table = [
        ((0, 0, 0), completed(), A::Completed, done.clone(), (0, 0, 0)),
        ((3, 2, 9), completed(), A::Completed, done, (3, 2, 9)),
        ((0, 0, 0), failed(), A::Failed, again(60), (1, 0, 0)),
        ((1, 0, 0), failed(), A::Failed, again(120), (2, 0, 0)),
        ((2, 1, 4), failed(), A::Failed, again(240), (3, 1, 4)),
        ((3, 0, 0), failed(), A::Failed, Next::Failed, (3, 0, 0)),
        ((9, 0, 0), failed(), A::Failed, Next::Failed, (9, 0, 0)),
        ((0, 0, 0), permanent(), A::Failed, Next::Failed, (0, 0, 0)),
        ((2, 0, 0), permanent(), A::Failed, Next::Failed, (2, 0, 0)),
        ((0, 0, 0), timed_out(), A::Timeout, again(60), (1, 0, 0)),
        ((3, 0, 0), timed_out(), A::Timeout, Next::Failed, (3, 0, 0)),
        ((0, 0, 0), Outcome::SettledByRun, A::Failed, again(60), (1, 0, 0)),
        ((3, 0, 0), Outcome::SettledByRun, A::Failed, Next::Failed, (3, 0, 0)),
        ((3, 0, 0), lost(), A::Lost, again(0), (3, 1, 0)),
        ((0, 1, 0), lost(), A::Lost, again(60), (0, 2, 0)),
        ((0, 2, 0), lost(), A::Lost, Next::Failed, (0, 3, 0)),
        ((3, 0, 0), Outcome::Interrupted, A::Interrupted, again(0), (3, 0, 1)),
        ((0, 0, 9), Outcome::Interrupted, A::Interrupted, again(0), (0, 0, 10)),
        ((0, 0, 10), Outcome::Interrupted, A::Interrupted, again(0), (0, 1, 11)),
        ((0, 1, 10), Outcome::Interrupted, A::Interrupted, again(60), (0, 2, 11)),
        ((0, 2, 10), Outcome::Interrupted, A::Interrupted, Next::Failed, (0, 3, 11)),
        ((3, 2, 10), snooze, A::Snoozed, again(5), (3, 2, 10)),
        ((3, 2, 10), release, A::Released, again(0), (3, 2, 10)),
        ((3, 2, 10), Outcome::Cancelled, A::Cancelled, CANCELLED, (3, 2, 10)),
    ];
    for ((retries, losses, interruptions), outcome, ended, next, after) in table {
        let task = claimed(retries, losses, interruptions);
        let case = format!("{outcome:?} after {:?}", (retries, losses, interruptions));
        let s = run(&task, outcome);
        assert_eq!(s.outcome, ended, "{case}");
        assert_eq!(s.next, next, "{case}");
        assert_eq!((s.retries, s.losses, s.interruptions), after, "{case}");
        assert_eq!(s.claim, task.claim, "{case}");
        assert_eq!(s.attempt, task.task.attempt, "{case}");
        assert_eq!(s.finished_at, at(NOW), "{case}");
    }
}

#[test]
fn a_cancel_recorded_first_wins_over_everything_but_success() {
    let outcomes = [
        failed(),
        permanent(),
        timed_out(),
        lost(),
        Outcome::Interrupted,
        Outcome::SettledByRun,
        Outcome::Cancelled,
        Outcome::Snoozed { at: at(NOW + 9) },
        Outcome::Released { at: at(NOW + 9) },
    ];
    for outcome in outcomes {
        let case = format!("{outcome:?}");
        let s = run(&claimed(1, 0, 0), outcome);
        assert_eq!(s.taken(true), (&CANCELLED, 1), "{case}: and uses no retry");
        assert_eq!(s.taken(false), (&s.next, s.retries), "{case}");
    }
    let s = run(&claimed(0, 0, 0), completed());
    assert_eq!(s.next_if_cancelled, s.next);
    assert!(matches!(s.next, Next::Completed { .. }));
}

#[test]
fn the_error_says_what_happened() {
    let class = |s: &Settlement| s.error.as_ref().map(|error| error.class);
    assert_eq!(class(&run(&claimed(0, 0, 0), failed())), Some(ErrorClass::Exit));
    assert_eq!(class(&run(&claimed(0, 0, 0), timed_out())), Some(ErrorClass::Timeout));
    assert_eq!(class(&run(&claimed(0, 0, 0), lost())), Some(ErrorClass::WorkerLost));
    assert_eq!(class(&run(&claimed(0, 0, 0), Outcome::Cancelled)), Some(ErrorClass::Cancelled));
    assert_eq!(class(&run(&claimed(0, 0, 0), completed())), None);
    assert_eq!(class(&run(&claimed(0, 0, 0), Outcome::Interrupted)), None);
    assert_eq!(class(&run(&claimed(0, 0, 0), Outcome::Snoozed { at: at(NOW) })), None);

    let poison = run(&claimed(0, 2, 0), lost()).error.unwrap();
    assert_eq!(poison.class, ErrorClass::WorkerLost);
    assert!(poison.message.starts_with("worker died 3 times"), "{}", poison.message);
    let deployed = run(&claimed(0, 2, 10), Outcome::Interrupted).error.unwrap();
    assert!(deployed.message.contains("interrupted by 11 shutdowns"), "{}", deployed.message);
}

#[test]
fn deploys_use_up_no_retries() {
    let mut task = claimed(0, 0, 0);
    for deploy in 1..=10 {
        let s = run(&task, Outcome::Interrupted);
        assert_eq!(wait(&s), Some(0), "deploy {deploy}");
        assert_eq!((s.retries, s.losses), (0, 0), "deploy {deploy}");
        task.task.interruptions = s.interruptions;
    }
    assert!(matches!(run(&task, completed()).next, Next::Completed { .. }));
}

#[test]
fn a_task_that_kills_its_worker_is_a_dead_letter_after_three_losses() {
    let mut task = claimed(0, 0, 0);
    let mut waits = Vec::new();
    loop {
        let s = run(&task, lost());
        waits.push(wait(&s));
        task.task.losses = s.losses;
        if s.next == Next::Failed {
            break;
        }
        assert_eq!(task.task.in_quarantine(), s.losses >= 2);
    }
    assert_eq!(waits, [Some(0), Some(60), None]);
}

#[test]
fn a_round_is_the_first_try_and_max_retries_more() {
    for max_retries in [0, 1, 3, 7] {
        let mut task = claimed(0, 0, 0);
        task.task.max_retries = Some(max_retries);
        let mut runs = 0;
        loop {
            runs += 1;
            let s = run(&task, failed());
            task.task.retries = s.retries;
            if s.next == Next::Failed {
                break;
            }
        }
        assert_eq!(runs, max_retries + 1);
    }
}

#[test]
fn the_tasks_own_policy_wins_over_the_types() {
    let mut task = claimed(0, 0, 0);
    let own = Backoff { initial: Span::secs(5), factor: 3.0, max: Span::secs(40), jitter: 0.0 };
    task.task.backoff = Some(own);
    task.task.max_retries = Some(5);
    let mut waits = Vec::new();
    for retries in 0..6 {
        task.task.retries = retries;
        waits.push(wait(&run(&task, failed())));
    }
    assert_eq!(waits, [Some(5), Some(15), Some(40), Some(40), Some(40), None]);
    task.task.losses = 1;
    assert_eq!(wait(&run(&task, lost())), Some(5), "later losses back off by it too");
}

#[test]
fn limits_of_the_policy_are_the_policys() {
    let policy = RetryPolicy { max_losses: 1, max_interruptions: 0, ..exact() };
    let with =
        |outcome| settle(&claimed(0, 0, 0), outcome, Trace::default(), &policy, at(NOW), 0.0);
    assert_eq!(with(lost()).next, Next::Failed);
    let s = with(Outcome::Interrupted);
    assert_eq!((s.next, s.losses, s.interruptions), (Next::Failed, 1, 1));
}

#[test]
fn a_wish_for_later_delays_and_never_hastens() {
    let secs = Duration::from_secs;
    let cases = [
        (RetryAfter::In(secs(120)), 120),
        (RetryAfter::In(secs(0)), 60),
        (RetryAfter::In(secs(59)), 60),
        (RetryAfter::In(secs(86_400_000)), 3_600),
        (RetryAfter::In(Duration::MAX), 3_600),
        (RetryAfter::At(at(NOW + 90)), 90),
        (RetryAfter::At(at(NOW - 90)), 60),
        (RetryAfter::At(at(NOW + 7_200)), 7_200),
    ];
    for (wish, expected) in cases {
        let s = run(&claimed(0, 0, 0), failed_with(wish));
        assert_eq!(wait(&s), Some(expected), "{wish:?}");
        assert_eq!(s.retries, 1, "{wish:?}");
    }
    // The back-off counts when it is the longer one, and a wish gives no further retry.
    let wish = RetryAfter::In(secs(120));
    assert_eq!(wait(&run(&claimed(2, 0, 0), failed_with(wish))), Some(240));
    assert_eq!(run(&claimed(3, 0, 0), failed_with(wish)).next, Next::Failed);
}

#[test]
fn a_time_that_has_passed_means_now() {
    for outcome in [Outcome::Snoozed { at: at(-5) }, Outcome::Released { at: at(-5) }] {
        assert_eq!(wait(&run(&claimed(0, 0, 0), outcome)), Some(0));
    }
}

#[test]
fn jitter_shortens_by_at_most_its_share_in_whole_microseconds() {
    let policy = RetryPolicy::default();
    for (retries, full) in [(0, 60.0), (1, 120.0), (2, 240.0)] {
        for dice in [0.0, 0.123_456_789, 0.5, 0.999_999] {
            let task = claimed(retries, 0, 0);
            let s = settle(&task, failed(), Trace::default(), &policy, at(NOW), dice);
            let Next::Again { run_at } = s.next else { panic!("{:?}", s.next) };
            let waited = run_at.duration_since(at(NOW)).as_secs_f64();
            assert!((full * 0.9 - 1e-6..=full).contains(&waited), "{waited} of {full}");
            assert_eq!(run_at.subsec_nanosecond() % 1_000, 0);
        }
    }
}

#[test]
fn later_stays_inside_the_range_of_time() {
    assert_eq!(later(at(0), Duration::MAX), Timestamp::MAX);
    assert_eq!(later(Timestamp::MAX, Duration::from_secs(1)), Timestamp::MAX);
    assert_eq!(later(at(0), Duration::from_nanos(1_999)), at(0) + SignedDuration::from_micros(1));
}

fn any_time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        4 => (-4_000_000_000_i64..4_000_000_000)
            .prop_map(|us| at(0) + SignedDuration::from_micros(us)),
        1 => Just(Timestamp::MIN),
        1 => Just(Timestamp::MAX),
    ]
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    let class = (0..ErrorClass::ALL.len()).prop_map(|n| error(ErrorClass::ALL[n]));
    let wait = prop_oneof![any::<u32>().prop_map(u64::from), any::<u64>()];
    let wish = prop_oneof![
        Just(None),
        wait.prop_map(|s| Some(RetryAfter::In(Duration::from_secs(s)))),
        any_time().prop_map(|at| Some(RetryAfter::At(at))),
    ];
    prop_oneof![
        Just(completed()),
        (class, any::<bool>(), wish).prop_map(|(error, permanent, retry_after)| {
            Outcome::Failed { error, permanent, retry_after }
        }),
        Just(timed_out()),
        Just(Outcome::Cancelled),
        Just(lost()),
        Just(Outcome::Interrupted),
        Just(Outcome::SettledByRun),
        any_time().prop_map(|at| Outcome::Snoozed { at }),
        any_time().prop_map(|at| Outcome::Released { at }),
    ]
}

fn any_count() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..12_u32, 1 => Just(u32::MAX - 1), 1 => Just(u32::MAX)]
}

fn any_backoff() -> impl Strategy<Value = Backoff> {
    (0..200_000_u64, 1.0..1_000.0_f64, 0..4_000_000_000_u64, 0.0..=1.0_f64).prop_map(
        |(initial, factor, more, jitter)| Backoff {
            initial: Span(Duration::from_millis(initial)),
            factor,
            max: Span(Duration::from_millis(initial.saturating_add(more))),
            jitter,
        },
    )
}

fn any_policy() -> impl Strategy<Value = RetryPolicy> {
    (any_count(), any_backoff(), any_count(), any_count()).prop_map(
        |(max_retries, backoff, max_losses, max_interruptions)| RetryPolicy {
            max_retries,
            backoff,
            max_losses,
            max_interruptions,
        },
    )
}

proptest! {
    #[test]
    fn laws_of_every_settlement(
        counters in (any_count(), any_count(), any_count()),
        own in (proptest::option::of(any_count()), proptest::option::of(any_backoff())),
        policy in any_policy(),
        outcome in any_outcome(),
        now in any_time(),
        dice in 0.0..1.0_f64,
    ) {
        let (retries, losses, interruptions) = counters;
        let mut task = claimed(0, 0, 0);
        task.task.retries = retries;
        task.task.losses = losses;
        task.task.interruptions = interruptions;
        (task.task.max_retries, task.task.backoff) = own;
        let max_retries = own.0.unwrap_or(policy.max_retries);
        let s = settle(&task, outcome.clone(), Trace::default(), &policy, now, dice);

        let lives_on = matches!(s.next_if_cancelled, Next::Again { .. } | Next::Failed);
        prop_assert!(!lives_on);
        prop_assert!(s.retries >= retries && s.retries <= max_retries.max(retries));
        prop_assert!(s.losses >= losses && s.losses - losses <= 1);
        prop_assert!(s.interruptions >= interruptions && s.interruptions - interruptions <= 1);
        prop_assert_eq!(&s.claim, &task.claim);
        prop_assert_eq!(s.finished_at, now);
        if let Next::Again { run_at } = s.next {
            prop_assert!(run_at >= now, "{run_at} before {now}");
        }
        let succeeded = matches!(outcome, Outcome::Completed { .. });
        prop_assert_eq!(matches!(s.next, Next::Completed { .. }), succeeded);
        if s.next == Next::Failed {
            prop_assert!(s.error.is_some(), "a dead letter says why");
            prop_assert_eq!(s.retries, retries);
        }
        // Whatever does not use a retry says so; whatever does gets exactly one more try.
        let again = matches!(s.next, Next::Again { .. });
        let retries_use = matches!(
            outcome,
            Outcome::Failed { permanent: false, .. }
                | Outcome::TimedOut { .. }
                | Outcome::SettledByRun
        );
        prop_assert_eq!(s.retries > retries, again && retries_use);
        let hopeless = matches!(outcome, Outcome::Failed { permanent: true, .. });
        prop_assert!(!(hopeless && again));
    }

    #[test]
    fn no_sequence_of_failures_runs_for_ever(
        max_retries in 0..20_u32,
        max_losses in 0..6_u32,
        max_interruptions in 0..20_u32,
        kinds in proptest::collection::vec(0..4_u8, 64),
    ) {
        let policy = RetryPolicy { max_retries, max_losses, max_interruptions, ..exact() };
        let mut task = claimed(0, 0, 0);
        let most = max_retries + max_losses + max_interruptions + 1;
        for run in 1.. {
            let outcome = match kinds[run as usize % kinds.len()] {
                0 => failed(),
                1 => timed_out(),
                2 => lost(),
                _ => Outcome::Interrupted,
            };
            let s = settle(&task, outcome, Trace::default(), &policy, at(NOW), 0.5);
            (task.task.retries, task.task.losses) = (s.retries, s.losses);
            task.task.interruptions = s.interruptions;
            if s.next == Next::Failed {
                break;
            }
            prop_assert!(run <= most, "still alive after {run} of at most {most} runs");
        }
    }
}
