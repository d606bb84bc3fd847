//! Ending attempts: fenced, recorded, decided elsewhere.

use matins_core::Json;
use matins_core::lifecycle::{Outcome, RetryAfter, Trace};
use matins_core::store::{Cancelled, Settled};
use matins_core::task::{AttemptOutcome, Claim, Claimed, ErrorClass, Output, State, TaskError};

use crate::lab::{Lab, at, done, failure, hopeless, id, keyed, loss, settlement, task};

pub async fn success_completes_with_its_result(lab: Lab) {
    lab.accept([task(1)]).await;
    let claimed = lab.take_one(3).await;
    assert_eq!(lab.finish(&claimed, done("42"), 8).await, Settled::Done(State::Completed));
    let ended = lab.see(id(1)).await;
    assert_eq!(ended.state, State::Completed);
    assert_eq!(ended.result, Some(Json::string("42")));
    assert_eq!((ended.started_at, ended.finished_at), (Some(at(3)), Some(at(8))));
    assert_eq!((ended.error, ended.deduplicated), (None, false));
    assert_eq!(lab.take(9, 10_000).await, []);
}

pub async fn results_come_back_byte_for_byte(lab: Lab) {
    let texts = [r#"{"n":1970670598291982290,"s":"\ud800\u0000"}"#, "null", "[1 , 2]", "1E400"];
    for (n, text) in (1..).zip(texts) {
        lab.accept([task(n)]).await;
        let result = Some(Json::parse(text).unwrap());
        let ended = lab.run_one(Outcome::Completed { result, result_dropped_bytes: None }, 1).await;
        assert_eq!(ended.result.unwrap().as_str(), text);
    }
}

pub async fn a_result_too_large_is_missed_by_its_size(lab: Lab) {
    lab.accept([task(1)]).await;
    let large = Outcome::Completed { result: None, result_dropped_bytes: Some(5_000_000) };
    let ended = lab.run_one(large, 1).await;
    assert_eq!((ended.result, ended.result_dropped_bytes), (None, Some(5_000_000)));
}

pub async fn a_failure_waits_for_its_time_and_keeps_count(lab: Lab) {
    lab.accept([task(1)]).await;
    let mut now = 0;
    for (retries, wait) in [(1, 60), (2, 120), (3, 240)] {
        let waiting = lab.run_one(failure("it broke"), now).await;
        assert_eq!(waiting.state, State::Pending);
        assert_eq!((waiting.retries, waiting.run_at), (retries, at(now + wait)));
        assert_eq!(waiting.finished_at, None);
        assert_eq!(waiting.error.unwrap().message, "it broke");
        assert_eq!(lab.take(9, now + wait - 1).await, []);
        now += wait;
    }
    let dead = lab.run_one(failure("it broke"), now).await;
    assert_eq!((dead.state, dead.retries, dead.attempt), (State::Failed, 3, 4));
    assert_eq!(dead.finished_at, Some(at(now)));
    assert!(dead.is_dead_letter());
    assert_eq!(lab.take(9, 100_000).await, []);
}

pub async fn a_hopeless_failure_is_a_dead_letter_at_once(lab: Lab) {
    lab.accept([task(1)]).await;
    let dead = lab.run_one(hopeless("403"), 5).await;
    assert_eq!((dead.state, dead.retries, dead.attempt), (State::Failed, 0, 1));
    let error = dead.error.unwrap();
    assert_eq!((error.class, &*error.message), (ErrorClass::Permanent, "403"));
    assert!(!error.fingerprint.is_empty());
}

pub async fn a_wish_for_later_is_kept(lab: Lab) {
    lab.accept([task(1)]).await;
    let error = TaskError::new(ErrorClass::Http4xx, "429");
    let retry_after = Some(RetryAfter::At(at(900)));
    let waiting = lab.run_one(Outcome::Failed { error, permanent: false, retry_after }, 1).await;
    assert_eq!(waiting.run_at, at(900));
    assert_eq!(lab.take(9, 899).await, []);
    assert_eq!(lab.take(9, 900).await.len(), 1);
}

pub async fn every_attempt_is_kept_with_what_it_left(lab: Lab) {
    lab.accept([task(1)]).await;
    let first = lab.take_one(1).await;
    let mut broken = settlement(&first, failure("tab\tNUL\0 é \u{fffd}"), 2);
    let output = Output { bytes: vec![0, 159, 146, 150, 255, b'\n'], dropped: 7, gap_at: 2 };
    broken.trace = Trace { exit_code: Some(-1), http_status: None, output: output.clone() };
    assert_eq!(lab.settle(vec![broken.clone()]).await.unwrap(), [Settled::Done(State::Pending)]);
    let second = lab.take_one(100).await;
    let mut web = settlement(&second, hopeless("no"), 101);
    web.trace.http_status = Some(403);
    lab.settle(vec![web]).await.unwrap();

    let attempts = lab.attempts(id(1)).await.unwrap();
    assert_eq!(attempts.len(), 2);
    let first = &attempts[0];
    assert_eq!((first.number, &*first.worker), (1, "w"));
    assert_eq!((first.started_at, first.finished_at), (at(1), Some(at(2))));
    assert_eq!(first.outcome, Some(AttemptOutcome::Failed));
    assert_eq!(first.error, broken.error);
    assert_eq!((first.exit_code, first.http_status), (Some(-1), None));
    assert_eq!(first.output, output);
    let second = &attempts[1];
    assert_eq!((second.number, second.http_status), (2, Some(403)));
    assert_eq!(second.error.as_ref().unwrap().message, "no");
    assert!(second.output.is_empty());
}

pub async fn every_outcome_of_an_attempt_is_told(lab: Lab) {
    let timed_out = || Outcome::TimedOut { error: TaskError::new(ErrorClass::Timeout, "5m") };
    lab.accept([task(1)]).await;
    let outcomes = [
        (failure("x"), AttemptOutcome::Failed),
        (timed_out(), AttemptOutcome::Timeout),
        (loss(), AttemptOutcome::Lost),
        (Outcome::Interrupted, AttemptOutcome::Interrupted),
        (Outcome::Snoozed { at: at(0) }, AttemptOutcome::Snoozed),
        (Outcome::Released { at: at(0) }, AttemptOutcome::Released),
        (done("x"), AttemptOutcome::Completed),
    ];
    let expected: Vec<_> = outcomes.iter().map(|(_, outcome)| Some(*outcome)).collect();
    for (n, (outcome, _)) in (1..).zip(outcomes) {
        lab.run_one(outcome, n * 1_000).await;
    }
    let attempts = lab.attempts(id(1)).await.unwrap();
    assert_eq!(attempts.iter().map(|attempt| attempt.outcome).collect::<Vec<_>>(), expected);
    assert!(attempts.iter().map(|attempt| attempt.number).eq(1..=7));
    let ended = lab.see(id(1)).await;
    assert_eq!((ended.retries, ended.losses, ended.interruptions), (2, 1, 1));
    assert_eq!(ended.error, None, "the last attempt had none");
}

pub async fn an_interruption_or_first_loss_runs_again_at_once(lab: Lab) {
    lab.accept([task(1)]).await;
    assert_eq!(lab.run_one(Outcome::Interrupted, 1).await.run_at, at(1));
    assert_eq!(lab.run_one(loss(), 1).await.run_at, at(1));
    let again = lab.take_one(1).await;
    assert_eq!((again.task.attempt, again.task.retries), (3, 0));
    assert_eq!((again.task.losses, again.task.interruptions), (1, 1));
}

pub async fn three_losses_make_a_dead_letter(lab: Lab) {
    lab.accept([task(1)]).await;
    for now in [0, 100, 200] {
        lab.run_one(loss(), now).await;
    }
    let dead = lab.see(id(1)).await;
    assert_eq!((dead.state, dead.losses), (State::Failed, 3));
    assert_eq!(dead.error.unwrap().class, ErrorClass::WorkerLost);
}

/// Tries to complete the task with a claim that no longer stands, and sees nothing change.
async fn is_fenced(lab: &Lab, claimed: &Claimed, claim: Claim) {
    let before = (lab.see(claimed.task.id).await, lab.attempts(claimed.task.id).await.unwrap());
    let stale = Claimed { claim, ..claimed.clone() };
    assert_eq!(lab.finish(&stale, done("stale"), 500).await, Settled::Fenced, "{claim:?}");
    let after = (lab.see(claimed.task.id).await, lab.attempts(claimed.task.id).await.unwrap());
    assert_eq!(after, before);
}

pub async fn an_attempt_ends_once(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    let claimed = lab.take_one(1).await;
    lab.finish(&claimed, done("first"), 2).await;
    is_fenced(&lab, &claimed, claimed.claim).await;
    assert_eq!(lab.see(id(1)).await.result, Some(Json::string("first")));
}

pub async fn a_wrong_fence_or_token_changes_nothing(lab: Lab) {
    lab.accept([task(1), task(2)]).await;
    let claimed = lab.take(2, 1).await;
    let (mine, other) = (&claimed[0], &claimed[1]);
    let right = mine.claim;
    is_fenced(&lab, mine, Claim { fence: right.fence + 100, ..right }).await;
    is_fenced(&lab, mine, Claim { token: right.token ^ 1, ..right }).await;
    is_fenced(&lab, mine, Claim { token: u64::MAX, ..right }).await;
    is_fenced(&lab, mine, Claim { fence: other.claim.fence, ..right }).await;
    assert_eq!(lab.finish(mine, done("x"), 2).await, Settled::Done(State::Completed));
}

pub async fn a_token_may_be_any_number(lab: Lab) {
    for (n, token) in (1..).zip([0, 1, u64::MAX, i64::MAX as u64, i64::MAX as u64 + 1]) {
        lab.accept([task(n)]).await;
        let request = matins_core::store::ClaimRequest { token, ..crate::lab::request(1, 1) };
        let claimed = lab.take_with(request).await.remove(0);
        assert_eq!(claimed.claim.token, token);
        assert_eq!(lab.finish(&claimed, done("x"), 2).await, Settled::Done(State::Completed));
    }
}

pub async fn a_worker_that_lost_its_claim_changes_nothing(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    let first = lab.take_one(1).await;
    lab.finish(&first, loss(), 50).await;
    is_fenced(&lab, &first, first.claim).await;
    let second = lab.take_one(51).await;
    is_fenced(&lab, &first, first.claim).await;
    let error = failure("late");
    assert_eq!(lab.finish(&first, error, 52).await, Settled::Fenced);
    assert_eq!(lab.finish(&second, done("second"), 53).await, Settled::Done(State::Completed));
    is_fenced(&lab, &first, first.claim).await;
    assert_eq!(lab.see(id(1)).await.result, Some(Json::string("second")));
}

pub async fn an_unknown_task_is_fenced(lab: Lab) {
    lab.accept([task(1)]).await;
    let claimed = lab.take_one(1).await;
    let claim = Claim { id: id(99), ..claimed.claim };
    let nobody = Claimed { claim, ..claimed.clone() };
    assert_eq!(lab.finish(&nobody, done("x"), 2).await, Settled::Fenced);
    assert_eq!(lab.task(id(99)).await.unwrap(), None);
}

pub async fn one_fenced_item_does_not_stop_the_others(lab: Lab) {
    lab.accept((1..=4).map(task)).await;
    let claimed = lab.take(4, 1).await;
    lab.finish(&claimed[1], done("before"), 2).await;
    let items = claimed.iter().map(|claimed| settlement(claimed, done("x"), 3)).collect();
    let done = Settled::Done(State::Completed);
    assert_eq!(lab.settle(items).await.unwrap(), [done, Settled::Fenced, done, done]);
    assert_eq!(lab.settle(Vec::new()).await.unwrap(), []);
}

pub async fn of_many_ends_at_once_one_is_written(lab: Lab) {
    lab.accept([task(1)]).await;
    let claimed = lab.take_one(1).await;
    let ends: Vec<_> = (0..8)
        .map(|n| {
            let (lab, claimed) = (lab.clone(), claimed.clone());
            tokio::spawn(async move { lab.finish(&claimed, done(&n.to_string()), 2).await })
        })
        .collect();
    let mut written = 0;
    for end in ends {
        written += usize::from(end.await.unwrap() != Settled::Fenced);
    }
    assert_eq!(written, 1);
}

pub async fn a_cancel_recorded_first_ends_it_for_good(lab: Lab) {
    let outcomes = [
        failure("x"),
        hopeless("x"),
        loss(),
        Outcome::Interrupted,
        Outcome::Cancelled,
        Outcome::Snoozed { at: at(9) },
        Outcome::Released { at: at(9) },
    ];
    for (n, outcome) in (1..).zip(outcomes) {
        lab.accept([task(n)]).await;
        let claimed = lab.take_one(1).await;
        assert!(matches!(lab.cancel_one(id(n), 2).await, Cancelled::Requested(_)));
        let case = format!("{outcome:?}");
        let settled = lab.finish(&claimed, outcome, 3).await;
        assert_eq!(settled, Settled::Done(State::Cancelled), "{case}");
        let ended = lab.see(id(n)).await;
        assert_eq!(ended.cancel_reason.as_deref(), Some("cancelled"), "{case}");
        assert_eq!(ended.cancel_requested_at, Some(at(2)), "{case}");
        assert_eq!(ended.finished_at, Some(at(3)), "{case}");
        assert_eq!(ended.retries, 0, "{case}");
        assert_eq!(ended.retries, 0, "{case}");
    }
    assert_eq!(lab.take(9, 10_000).await, []);
}

pub async fn success_counts_although_a_cancel_was_asked_for(lab: Lab) {
    lab.accept([task(1)]).await;
    let claimed = lab.take_one(1).await;
    lab.cancel_one(id(1), 2).await;
    assert_eq!(lab.finish(&claimed, done("x"), 3).await, Settled::Done(State::Completed));
    assert_eq!(lab.see(id(1)).await.cancel_reason, None);
}

pub async fn a_worker_may_end_its_task_as_cancelled(lab: Lab) {
    lab.accept([task(1)]).await;
    let ended = lab.run_one(Outcome::Cancelled, 2).await;
    assert_eq!(ended.state, State::Cancelled);
    assert_eq!(ended.cancel_reason.as_deref(), Some("cancelled"));
}

pub async fn an_ended_key_is_in_the_ledger(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    lab.run_one(done("42"), 7).await;
    let entry = lab.ledger("sync", "k").await.unwrap().unwrap();
    assert_eq!((entry.task_id, entry.state), (id(1), State::Completed));
    assert_eq!((entry.result, entry.at), (Some(Json::string("42")), at(7)));
}
