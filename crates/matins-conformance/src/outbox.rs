//! Alerts on their way to people.

use matins_core::alert::{Alert, Rule, Severity, of_dead_letter, of_occurrence};
use matins_core::page::PageRequest;
use matins_core::schedule::OccurrenceOutcome;
use matins_core::store::{Tray, Turn};
use matins_core::task::NewTask;

use crate::lab::{
    Lab, at, done, failure, hopeless, id, keyed, occurrence, origin, plan, schedule, task,
};

fn turn(teller: &str, now: i64, until: i64) -> Turn {
    Turn { teller: teller.to_owned(), now: at(now), until: at(until), limit: 1_000 }
}

fn alert(subject: &str, seconds: i64) -> Alert {
    Alert::new(Rule::Backlog, subject, at(seconds)).fact("age", "900 s").fact("why", "a\0\u{f8ff}b")
}

async fn tray(lab: &Lab, turn: &Turn) -> Tray {
    lab.tray(turn).await.unwrap().expect("it is his turn")
}

async fn all_alerts(lab: &Lab) -> Vec<Alert> {
    let mut all = Vec::new();
    let mut page = PageRequest { limit: 3, cursor: None };
    loop {
        let part = lab.alerts(&page).await.unwrap();
        all.extend(part.items);
        match part.next {
            None => return all,
            next => page.cursor = next,
        }
    }
}

pub async fn alerts_are_kept_as_they_were_raised(lab: Lab) {
    let over = Alert { resolved: true, severity: Severity::Critical, ..alert("中文", 5) };
    let raised = vec![alert("a", 9), over, alert("", 1)];
    lab.raise(raised.clone(), false).await.unwrap();
    lab.raise(vec![alert("seen", 10)], true).await.unwrap();
    lab.raise(Vec::new(), false).await.unwrap();
    let found: Vec<_> =
        tray(&lab, &turn("x", 0, 9)).await.unread.into_iter().map(|(_, alert)| alert).collect();
    assert_eq!(found, raised, "in the order of raising, without the one that was read");
    let listed: Vec<_> = all_alerts(&lab).await.iter().map(|a| a.subject.clone()).collect();
    assert_eq!(listed, ["seen", "", "中文", "a"], "the last raised first");
}

pub async fn a_dead_letter_raises_an_alert_with_it(lab: Lab) {
    let origin = Some(origin(&schedule("nightly", 0), "2027-01-15T08:00:00", 0));
    lab.accept([task(1), keyed(2, "orders-1"), NewTask { origin, ..task(3) }]).await;
    for _ in 0..3 {
        lab.run_one(hopeless("403 \0 Forbidden"), 10).await;
    }
    let mut expected = Vec::new();
    for n in 1..=3 {
        expected.push(of_dead_letter(&lab.see(id(n)).await));
    }
    let unread = tray(&lab, &turn("x", 0, 9)).await.unread;
    assert_eq!(unread.into_iter().map(|(_, alert)| alert).collect::<Vec<_>>(), expected);
    assert_eq!(expected[1].facts.iter().filter(|f| f.name == "execution_key").count(), 1);
    assert_eq!(expected[2].facts.iter().filter(|f| f.name == "label").count(), 1);
}

pub async fn only_giving_up_raises_an_alert(lab: Lab) {
    lab.accept([task(1), task(2), task(3)]).await;
    lab.run_one(done("x"), 10).await;
    lab.run_one(failure("again"), 10).await;
    lab.cancel_one(id(3), 10).await;
    assert_eq!(all_alerts(&lab).await, []);
}

pub async fn a_refused_end_raises_nothing(lab: Lab) {
    lab.accept([task(1)]).await;
    let claimed = lab.take_one(1).await;
    lab.finish(&claimed, hopeless("x"), 2).await;
    lab.settle(vec![crate::lab::settlement(&claimed, hopeless("x"), 3)]).await.unwrap();
    assert_eq!(all_alerts(&lab).await.len(), 1);
}

pub async fn a_missed_occurrence_raises_an_alert_with_it(lab: Lab) {
    let state = schedule("s", 60);
    lab.add_schedule(&state).await;
    let missed = occurrence(&state, "missed", 60, OccurrenceOutcome::Missed);
    let mut plan = plan(&state, task(1), 61);
    plan.occurrences.insert(0, missed.clone());
    plan.state.balance.expected += 1;
    plan.state.balance.missed += 1;
    let mut old = plan.clone();
    old.expected_rev += 7;
    lab.fire(vec![old, plan], at(99)).await.unwrap();
    let expected = of_occurrence(&missed, at(99)).unwrap();
    assert_eq!(all_alerts(&lab).await, [expected], "what is refused raises nothing");
}

pub async fn one_tells_at_a_time(lab: Lab) {
    lab.raise(vec![alert("a", 1)], false).await.unwrap();
    assert_eq!(tray(&lab, &turn("x", 0, 60)).await.unread.len(), 1);
    assert_eq!(lab.tray(&turn("y", 60, 120)).await.unwrap(), None, "the turn includes its end");
    assert!(!lab.file("y", &[], "{}").await.unwrap());
    assert!(lab.file("x", &[], "{\"by\": \"x\"}").await.unwrap());
    let taken = tray(&lab, &turn("y", 61, 120)).await;
    assert_eq!(taken.state.as_deref(), Some("{\"by\": \"x\"}"));
    assert_eq!(taken.unread.len(), 1, "nothing that was not filed is lost");
    assert!(!lab.file("x", &[], "{}").await.unwrap(), "he was too slow");
    assert_eq!(lab.tray(&turn("x", 62, 120)).await.unwrap(), None);
}

pub async fn a_turn_is_prolonged_when_half_of_it_is_over(lab: Lab) {
    tray(&lab, &turn("x", 0, 60)).await;
    tray(&lab, &turn("x", 29, 89)).await;
    assert!(lab.tray(&turn("y", 61, 99)).await.unwrap().is_some(), "it stayed as it was");
    tray(&lab, &turn("y", 99, 200)).await;
    tray(&lab, &turn("y", 150, 251)).await;
    assert_eq!(lab.tray(&turn("x", 250, 300)).await.unwrap(), None);
}

pub async fn what_was_filed_is_not_told_again_and_still_listed(lab: Lab) {
    lab.raise(vec![alert("a", 1), alert("b", 2), alert("c", 3)], false).await.unwrap();
    let numbers: Vec<u64> = tray(&lab, &Turn { limit: 2, ..turn("x", 0, 60) })
        .await
        .unread
        .iter()
        .map(|u| u.0)
        .collect();
    assert_eq!(numbers.len(), 2);
    assert!(lab.file("x", &numbers, "two\0").await.unwrap());
    let taken = tray(&lab, &turn("x", 1, 61)).await;
    assert_eq!(taken.state.as_deref(), Some("two\0"));
    assert_eq!(taken.unread.iter().map(|(_, a)| &*a.subject).collect::<Vec<_>>(), ["c"]);
    assert_eq!(all_alerts(&lab).await.len(), 3);
}

pub async fn of_many_who_want_to_tell_at_once_one_does(lab: Lab) {
    let tellers: Vec<_> = (0..16)
        .map(|n| {
            let lab = lab.clone();
            tokio::spawn(async move {
                let turn = turn(&format!("teller-{n}"), 0, 60);
                lab.tray(&turn).await.unwrap().is_some()
            })
        })
        .collect();
    let mut turns = 0;
    for teller in tellers {
        turns += usize::from(teller.await.unwrap());
    }
    assert_eq!(turns, 1);
}

pub async fn alerts_are_pruned_by_time(lab: Lab) {
    lab.raise(vec![alert("old", 10), alert("new", 20)], false).await.unwrap();
    let retention = matins_core::store::Retention {
        alerts: std::time::Duration::from_secs(60),
        ..matins_core::store::Retention::default()
    };
    assert_eq!(lab.prune(&retention, at(69), 10).await.unwrap().alerts, 0);
    for (limit, gone, more) in [(1, 1, true), (1, 1, false), (1, 0, false)] {
        let pruned = lab.prune(&retention, at(80), limit).await.unwrap();
        assert_eq!((pruned.alerts, pruned.more), (gone, more));
    }
    assert_eq!(all_alerts(&lab).await, []);
}
