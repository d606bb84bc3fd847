//! Schedules: written as expected, fired as a whole, and what waits for what.

use matins_core::lifecycle::Outcome;
use matins_core::schedule::{
    FirePlan, Live, OccurrenceKind, OccurrenceOutcome, Reason, ScheduleState, ScheduleStatus,
};
use matins_core::store::{Expect, Settled, TaskFilter};
use matins_core::task::{NewTask, State};

use crate::lab::{
    Lab, act, at, done, every, failure, first_page, held, hopeless, id, keyed, occurrence, origin,
    plan, schedule, task,
};

async fn put(lab: &Lab, expect: Expect, state: &ScheduleState) -> bool {
    lab.put_schedules(vec![(expect, state.clone())]).await.unwrap().remove(0)
}

async fn stored(lab: &Lab, name: &str) -> Option<ScheduleState> {
    lab.schedule(name).await.unwrap().map(|due| due.state)
}

/// What is listed by name: how many hold the schedule, wait, and failed in a row.
async fn live(lab: &Lab, state: &ScheduleState) -> (u32, u32, u32) {
    let live = lab.live(state.uid).await.unwrap();
    assert_eq!(lab.schedule(&state.spec.name).await.unwrap().unwrap().live, live);
    (live.active, live.held, live.failures_in_row)
}

pub async fn a_schedule_is_stored_as_it_was_given(lab: Lab) {
    let mut state = schedule("nightly", 60);
    state.spec.timezone = Some("Asia/Shanghai".to_owned());
    state.spec.payload = matins_core::Json::parse(r#"{"big": 1970670598291982290}"#).unwrap();
    state.spec.tags = vec!["t".to_owned()];
    state.spec.note = Some("näh".to_owned());
    state.rev = 7;
    state.epoch = 2;
    state.paused_since = Some(at(5));
    (state.balance.expected, state.balance.missed) = (43_199, 43_199);
    lab.add_schedule(&state).await;
    assert_eq!(stored(&lab, "nightly").await, Some(state));
    assert_eq!(stored(&lab, "Nightly").await, None);
    assert_eq!(stored(&lab, "").await, None);
}

pub async fn a_schedule_is_written_only_from_what_was_read(lab: Lab) {
    let first = schedule("s", 60);
    assert!(!put(&lab, Expect::Rev(0), &first).await, "there is none");
    assert!(put(&lab, Expect::Absent, &first).await);
    let second = ScheduleState { rev: 2, epoch: 2, ..first.clone() };
    assert!(!put(&lab, Expect::Absent, &second).await);
    assert!(!put(&lab, Expect::Rev(2), &second).await);
    assert_eq!(stored(&lab, "s").await, Some(first.clone()));
    assert!(put(&lab, Expect::Rev(1), &second).await);
    assert!(!put(&lab, Expect::Rev(1), &first).await);
    assert_eq!(stored(&lab, "s").await, Some(second));
}

pub async fn many_schedules_are_written_each_by_itself(lab: Lab) {
    let (a, b) = (schedule("a", 60), schedule("b", 60));
    let again = ScheduleState { rev: 2, ..a.clone() };
    let writes = vec![
        (Expect::Absent, a.clone()),
        (Expect::Rev(4), b.clone()),
        (Expect::Absent, a),
        (Expect::Rev(1), again.clone()),
        (Expect::Absent, b.clone()),
    ];
    assert_eq!(lab.put_schedules(writes).await.unwrap(), [true, false, false, true, true]);
    assert_eq!(stored(&lab, "a").await, Some(again));
    assert_eq!(stored(&lab, "b").await, Some(b));
}

pub async fn schedules_are_listed_by_name(lab: Lab) {
    for name in ["b", "a", "ä", "B", "a b"] {
        lab.add_schedule(&schedule(name, 60)).await;
    }
    for limit in [1, 2, 50] {
        let all = every(async |page| {
            let page = matins_core::page::PageRequest { limit, ..page };
            lab.schedules(&page).await.unwrap()
        });
        let names: Vec<_> = all.await.into_iter().map(|due| due.state.spec.name).collect();
        assert_eq!(names, ["B", "a", "a b", "b", "ä"], "byte by byte");
    }
}

pub async fn what_is_due_comes_earliest_first(lab: Lab) {
    assert_eq!(lab.due(at(999), 9).await.unwrap(), (vec![], None));
    for (name, due) in [("a", 30), ("b", 10), ("c", 20), ("d", 10), ("e", 70)] {
        lab.add_schedule(&schedule(name, due)).await;
    }
    let due = async |seconds, limit| {
        let (due, next) = lab.due(at(seconds), limit).await.unwrap();
        (due.into_iter().map(|due| due.state.spec.name).collect::<String>(), next)
    };
    assert_eq!(due(9, 9).await, (String::new(), Some(at(10))));
    assert_eq!(due(10, 9).await, ("bd".to_owned(), Some(at(20))));
    assert_eq!(due(30, 9).await, ("bdca".to_owned(), Some(at(70))));
    assert_eq!(due(30, 1).await, ("b".to_owned(), Some(at(10))), "the next one is due, too");
    assert_eq!(due(99, 9).await, ("bdcae".to_owned(), None));
}

pub async fn only_active_schedules_are_due(lab: Lab) {
    let statuses = [
        (ScheduleStatus::Paused, "p"),
        (ScheduleStatus::Disabled, "d"),
        (ScheduleStatus::Exhausted, "e"),
    ];
    for (status, name) in statuses {
        lab.add_schedule(&ScheduleState { status, ..schedule(name, 10) }).await;
    }
    lab.add_schedule(&ScheduleState { next_due: None, ..schedule("never", 10) }).await;
    assert_eq!(lab.due(at(99), 9).await.unwrap(), (vec![], None));
    assert_eq!(lab.stats(at(9_999)).await.unwrap().schedules_overdue, 0);
}

pub async fn a_plan_is_applied_as_a_whole(lab: Lab) {
    let state = schedule("s", 60);
    lab.add_schedule(&state).await;
    let mut plan = plan(&state, NewTask { run_at: at(60), ..task(1) }, 60);
    let skipped = OccurrenceOutcome::Skipped;
    let mut range = occurrence(&state, "a", 10, skipped);
    (range.label_to, range.count) = (Some("z".to_owned()), 43_199);
    range.reason = Some(Reason::CatchUpNone);
    plan.occurrences.insert(0, range);
    plan.state.balance.expected += 43_199;
    plan.state.balance.skipped += 43_199;
    let occurrences = plan.occurrences.clone();
    let after = lab.fire_one(plan, 61).await;
    assert_eq!(stored(&lab, "s").await, Some(after));
    let mut recorded = lab.all_occurrences(Some("s")).await;
    recorded.reverse();
    assert_eq!(recorded, occurrences);
    let fired = lab.see(id(1)).await;
    assert_eq!((fired.state, fired.created_at), (State::Pending, at(61)));
    assert_eq!(fired.origin, Some(origin(&state, "label-60", 60)));
    assert_eq!(live(&lab, &state).await, (1, 0, 0));
    assert_eq!(lab.take_one(61).await.task.id, id(1));
}

/// Nothing of a refused plan is there.
async fn refused(lab: &Lab, plan: FirePlan) {
    let (new, name) = (plan.starts[0].task.id, plan.state.spec.name.clone());
    let before = (lab.all_occurrences(None).await, stored(lab, &name).await);
    assert_eq!(lab.fire(vec![plan], at(900)).await.unwrap(), [false]);
    assert_eq!((lab.all_occurrences(None).await, stored(lab, &name).await), before);
    assert_eq!(lab.task(new).await.unwrap(), None);
}

pub async fn a_plan_from_an_old_reading_is_refused(lab: Lab) {
    let state = schedule("s", 60);
    refused(&lab, plan(&state, task(1), 60)).await;
    lab.add_schedule(&state).await;
    let newer = ScheduleState { rev: 2, ..state.clone() };
    assert!(put(&lab, Expect::Rev(1), &newer).await);
    refused(&lab, plan(&state, task(1), 60)).await;
    let recreated = ScheduleState { uid: uuid::Uuid::from_u128(99), ..state.clone() };
    assert!(lab.remove_schedule("s", &act(1)).await.unwrap());
    lab.add_schedule(&recreated).await;
    refused(&lab, plan(&state, task(1), 60)).await;
}

pub async fn a_refused_plan_stops_no_other(lab: Lab) {
    let (a, b) = (schedule("a", 60), schedule("b", 60));
    lab.add_schedule(&a).await;
    lab.add_schedule(&b).await;
    let twice = plan(&a, task(2), 120);
    let plans = vec![plan(&a, task(1), 60), twice, plan(&b, task(3), 60)];
    assert_eq!(lab.fire(plans, at(61)).await.unwrap(), [true, false, true]);
    assert_eq!(lab.task(id(2)).await.unwrap(), None);
    assert_eq!(lab.take(9, 61).await.len(), 2);
}

pub async fn a_label_fires_once(lab: Lab) {
    let state = schedule("s", 60);
    lab.add_schedule(&state).await;
    let after = lab.fire_one(plan(&state, task(1), 60), 61).await;
    refused(&lab, plan(&after, task(2), 60)).await;
    let manual = |n| {
        let mut manual = plan(&after, task(n), 60);
        manual.occurrences[0].kind = OccurrenceKind::Manual;
        manual.state.balance = after.balance;
        manual
    };
    lab.fire_one(manual(3), 62).await;
    assert_eq!(lab.all_occurrences(None).await.len(), 2);
}

pub async fn of_many_nodes_that_fire_one_label_one_does(lab: Lab) {
    let mut state = schedule("s", 60);
    lab.add_schedule(&state).await;
    for round in 0..4_u128 {
        let seconds = 60 * (1 + round as i64);
        let fires: Vec<_> = (0..8)
            .map(|node| {
                let plan = plan(&state, task(100 * round + node), seconds);
                let lab = lab.clone();
                tokio::spawn(async move { lab.fire(vec![plan], at(seconds)).await.unwrap()[0] })
            })
            .collect();
        let mut applied = 0;
        for fire in fires {
            applied += usize::from(fire.await.unwrap());
        }
        assert_eq!(applied, 1, "round {round}");
        state = stored(&lab, "s").await.unwrap();
    }
    assert_eq!(lab.all_tasks().await.len(), 4);
    assert_eq!(lab.all_occurrences(None).await.len(), 4);
}

pub async fn an_occurrence_names_the_task_that_has_its_key(lab: Lab) {
    lab.accept([keyed(1, "orders-2024-01-15")]).await;
    lab.run_one(done("x"), 1).await;
    let state = schedule("s", 60);
    lab.add_schedule(&state).await;
    let after = lab.fire_one(plan(&state, keyed(2, "orders-2024-01-15"), 60), 61).await;
    lab.fire_one(plan(&after, keyed(3, "orders-2024-01-16"), 120), 121).await;
    let occurrences = lab.all_occurrences(Some("s")).await;
    assert_eq!(occurrences[0].task_id, Some(id(3)));
    assert_eq!(occurrences[1].task_id, Some(id(1)), "the holder");
    assert_eq!(lab.task(id(2)).await.unwrap(), None);
    assert_eq!(lab.take_one(122).await.task.id, id(3));
}

pub async fn the_last_recorded_occurrence_is_listed_first(lab: Lab) {
    let (mut a, b) = (schedule("a", 60), schedule("b", 60));
    lab.add_schedule(&a).await;
    lab.add_schedule(&b).await;
    for n in 1..=3 {
        a = lab.fire_one(plan(&a, task(n), 60 * n as i64), 200).await;
    }
    lab.fire_one(plan(&b, task(9), 60), 200).await;
    let list = async |schedule, limit| {
        let pages = every(async |page| {
            let page = matins_core::page::PageRequest { limit, ..page };
            lab.occurrences(schedule, &page).await.unwrap()
        });
        pages.await.into_iter().filter_map(|o| o.task_id).collect::<Vec<_>>()
    };
    for limit in [1, 2, 50] {
        assert_eq!(list(None, limit).await, [id(9), id(3), id(2), id(1)]);
        assert_eq!(list(Some("a"), limit).await, [id(3), id(2), id(1)]);
        assert_eq!(list(Some("none"), limit).await, []);
    }
}

pub async fn fired_occurrences_are_found_by_their_time(lab: Lab) {
    let mut state = schedule("s", 60);
    lab.add_schedule(&state).await;
    for n in [3, 1, 2, 4] {
        state = lab.fire_one(plan(&state, task(n), 60 * n as i64), 300).await;
    }
    let mut skipped = plan(&state, task(5), 90);
    skipped.starts.clear();
    skipped.occurrences[0] = occurrence(&state, "skipped", 90, OccurrenceOutcome::Skipped);
    skipped.state.balance = state.balance;
    skipped.state.balance.expected += 1;
    skipped.state.balance.skipped += 1;
    lab.fire_one(skipped, 301).await;
    lab.run_one(done("x"), 302).await;
    lab.run_one(hopeless("x"), 302).await;
    let found = lab.fired_between(state.uid, at(60), at(240)).await.unwrap();
    let found: Vec<_> = found.into_iter().map(|(o, state)| (o.task_id.unwrap(), state)).collect();
    let pending = Some(State::Pending);
    let expected =
        [(id(1), Some(State::Failed)), (id(2), pending), (id(3), Some(State::Completed))];
    assert_eq!(found, expected, "by time, the right end excluded");
    assert_eq!(lab.fired_between(uuid::Uuid::nil(), at(0), at(999)).await.unwrap(), []);
}

/// A schedule with a running task (1) and held ones.
async fn with_held(lab: &Lab, count: u128) -> ScheduleState {
    let mut state = schedule("s", 60);
    lab.add_schedule(&state).await;
    state = lab.fire_one(plan(&state, task(1), 60), 60).await;
    for n in 2..2 + count {
        state = lab.fire_one(plan(&state, held(task(n)), 60 * n as i64), 200).await;
    }
    state
}

pub async fn a_held_task_waits_until_the_previous_has_ended(lab: Lab) {
    let state = with_held(&lab, 1).await;
    assert_eq!(live(&lab, &state).await, (1, 1, 0));
    assert!(lab.see(id(2)).await.held);
    let claimed = lab.take(9, 250).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(lab.take(9, 250).await, []);
    lab.finish(&claimed[0], done("x"), 300).await;
    let released = lab.see(id(2)).await;
    assert_eq!((released.held, released.run_at), (false, at(300)));
    assert_eq!(live(&lab, &state).await, (1, 0, 0));
    assert_eq!(lab.take_one(300).await.task.id, id(2));
}

pub async fn held_tasks_go_on_one_at_a_time_in_order(lab: Lab) {
    let state = with_held(&lab, 3).await;
    for n in 1..=4 {
        assert_eq!(live(&lab, &state).await, (1, 4 - n as u32, 0));
        let claimed = lab.take(9, 300 + n as i64).await;
        assert_eq!(claimed.iter().map(|c| c.task.id).collect::<Vec<_>>(), [id(n)]);
        lab.finish(&claimed[0], done("x"), 300 + n as i64).await;
    }
    assert_eq!(live(&lab, &state).await, (0, 0, 0));
}

pub async fn a_retry_of_the_previous_still_holds(lab: Lab) {
    let state = with_held(&lab, 1).await;
    let claimed = lab.take_one(250).await;
    lab.finish(&claimed, failure("x"), 251).await;
    assert_eq!(live(&lab, &state).await, (1, 1, 0));
    assert_eq!(lab.take(9, 252).await, []);
    let claimed = lab.take_one(400).await;
    assert_eq!(claimed.task.id, id(1));
    lab.finish(&claimed, Outcome::Snoozed { at: at(500) }, 401).await;
    assert_eq!(lab.take(9, 402).await, []);
}

pub async fn a_dead_letter_a_cancel_and_an_expiry_let_the_next_go(lab: Lab) {
    let mut state = with_held(&lab, 3).await;
    lab.run_one(hopeless("x"), 250).await;
    assert!(!lab.see(id(2)).await.held, "a dead letter does not hold");
    lab.cancel_one(id(2), 260).await;
    assert!(!lab.see(id(3)).await.held, "nor a cancelled one");
    let expiring = NewTask { expires_at: Some(at(600)), ..held(task(8)) };
    state = lab.fire_one(plan(&state, expiring, 500), 500).await;
    lab.run_one(done("x"), 510).await;
    lab.run_one(done("x"), 510).await;
    assert!(!lab.see(id(8)).await.held);
    lab.fire_one(plan(&state, held(task(9)), 520), 520).await;
    assert!(lab.see(id(9)).await.held);
    assert_eq!(lab.expire(at(600), 9).await.unwrap(), 1);
    assert_eq!(lab.take_one(600).await.task.id, id(9));
}

pub async fn a_held_task_that_comes_too_late_goes_at_once(lab: Lab) {
    let state = schedule("s", 60);
    lab.add_schedule(&state).await;
    let after = lab.fire_one(plan(&state, task(1), 60), 60).await;
    // The plan was made while task 1 was live; it ends before the plan is applied.
    let late = plan(&after, held(task(2)), 120);
    lab.run_one(done("x"), 121).await;
    lab.fire_one(late, 122).await;
    assert!(!lab.see(id(2)).await.held);
    assert_eq!(lab.take_one(122).await.task.id, id(2));
}

pub async fn retrying_a_held_task_does_not_let_it_overlap(lab: Lab) {
    with_held(&lab, 1).await;
    lab.retry(&[id(2)], None, &act(250)).await.unwrap();
    assert!(lab.see(id(2)).await.held);
    assert_eq!(lab.take(9, 260).await.len(), 1);
}

pub async fn a_held_task_can_be_cancelled_or_expire(lab: Lab) {
    let state = with_held(&lab, 2).await;
    lab.cancel_one(id(2), 250).await;
    assert_eq!(lab.state(id(2)).await, State::Cancelled);
    assert_eq!(live(&lab, &state).await, (1, 1, 0));
    let expiring = NewTask { expires_at: Some(at(300)), ..held(task(5)) };
    lab.fire_one(plan(&state, expiring, 290), 290).await;
    assert_eq!(lab.expire(at(300), 9).await.unwrap(), 1);
    assert_eq!(lab.state(id(5)).await, State::Cancelled);
    assert!(lab.see(id(3)).await.held);
}

pub async fn a_new_task_may_cancel_the_previous_ones(lab: Lab) {
    let state = with_held(&lab, 2).await;
    let running = lab.take_one(250).await;
    let backfilled = NewTask { origin: Some(origin(&state, "old", 1)), ..task(20) };
    lab.accept([backfilled]).await;
    let mut plan = plan(&state, held(task(9)), 300);
    plan.cancel_previous = true;
    lab.fire_one(plan, 300).await;
    let asked = lab.see(id(1)).await;
    assert_eq!((asked.state, asked.cancel_requested_at), (State::Running, Some(at(300))));
    for n in [2, 3, 20] {
        let cancelled = lab.see(id(n)).await;
        assert_eq!(cancelled.state, State::Cancelled, "{n}");
        assert_eq!(cancelled.cancel_reason.as_deref(), Some("overlap"), "{n}");
        assert_eq!(cancelled.finished_at, Some(at(300)), "{n}");
    }
    assert_eq!(live(&lab, &state).await, (1, 1, 0));
    assert_eq!(lab.take(9, 301).await, []);
    let settled = lab.finish(&running, failure("ended"), 302).await;
    assert_eq!(settled, Settled::Done(State::Cancelled));
    assert_eq!(lab.take_one(302).await.task.id, id(9));
    assert_eq!(lab.all_audit().await, [], "nobody's act");
}

pub async fn failures_in_a_row_are_counted(lab: Lab) {
    let mut state = schedule("s", 60);
    lab.add_schedule(&state).await;
    let ends = [
        (hopeless("x"), 1),
        (failure("retried"), 1),
        (hopeless("x"), 2),
        (Outcome::Cancelled, 2),
        (hopeless("x"), 3),
        (done("x"), 0),
        (hopeless("x"), 1),
    ];
    for (n, (outcome, expected)) in (1..).zip(ends) {
        let seconds = 1_000 * n as i64;
        state = lab.fire_one(plan(&state, task(n), seconds), seconds).await;
        lab.run_one(outcome, seconds).await;
        assert_eq!(live(&lab, &state).await.2, expected, "after {n}");
        lab.cancel_one(id(n), seconds).await;
    }
    lab.accept([task(50)]).await;
    lab.run_one(hopeless("of no schedule"), 9_000).await;
    assert_eq!(lab.live(uuid::Uuid::nil()).await.unwrap(), Live::default());
}

pub async fn a_removed_schedule_leaves_its_history(lab: Lab) {
    let state = with_held(&lab, 2).await;
    assert!(lab.remove_schedule("s", &act(250)).await.unwrap());
    assert!(!lab.remove_schedule("s", &act(251)).await.unwrap());
    assert_eq!(stored(&lab, "s").await, None);
    assert_eq!(lab.due(at(9_999), 9).await.unwrap(), (vec![], None));
    assert_eq!(lab.all_occurrences(Some("s")).await.len(), 3);
    assert_eq!(lab.fired_between(state.uid, at(0), at(999)).await.unwrap().len(), 3);
    for n in [2, 3] {
        let cancelled = lab.see(id(n)).await;
        assert_eq!(cancelled.state, State::Cancelled);
        assert_eq!(cancelled.cancel_reason.as_deref(), Some("schedule_removed"));
    }
    assert_eq!(lab.take_one(260).await.task.id, id(1), "what is under way goes on");
    let audit = lab.all_audit().await;
    assert_eq!(audit.len(), 1);
    assert_eq!((&*audit[0].action, &*audit[0].target), ("schedule.remove", "s"));
    let filter = TaskFilter { schedule: Some("s".to_owned()), ..TaskFilter::default() };
    assert_eq!(lab.matching(&filter).await.len(), 3);
}

pub async fn overdue_schedules_are_counted(lab: Lab) {
    for (name, due) in [("a", 10), ("b", 39), ("c", 40), ("d", 200)] {
        lab.add_schedule(&schedule(name, due)).await;
    }
    assert_eq!(lab.stats(at(100)).await.unwrap().schedules_overdue, 2, "more than a minute");
    assert_eq!(lab.schedules(&first_page(9)).await.unwrap().items.len(), 4);
}
