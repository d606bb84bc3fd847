//! Who is told what and when: the desk, driven by hand.

use std::collections::BTreeMap;

use jiff::civil::Time;
use jiff::{SignedDuration, Timestamp};
use matins_core::alert::answer::Verdict;
use matins_core::alert::channel::{Channel, Lang, Quiet, Secret, To};
use matins_core::alert::desk::{Desk, Order};
use matins_core::alert::policy::{Policy, RuleSpec};
use matins_core::alert::{Alert, Rule, Severity};
use matins_core::cron::Zone;

fn at(seconds: i64) -> Timestamp {
    // 2027-01-15T08:00:00Z
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_800_000_000 + seconds)
}

fn channel(name: &str) -> Channel {
    Channel {
        name: name.to_owned(),
        to: To::Slack { url: Secret::new("http://x") },
        lang: Lang::En,
        at_least: Severity::Info,
        quiet: None,
        per_minute: 30,
    }
}

fn policy(channels: impl IntoIterator<Item = Channel>) -> Policy {
    let channels = channels.into_iter().map(|channel| (channel.name.clone(), channel));
    Policy { channels: channels.collect(), ..Policy::default() }
}

fn dead(kind: &str, seconds: i64) -> Alert {
    Alert::new(Rule::DeadLetter, kind, at(seconds)).fact("error", "exit: boom")
}

/// Rule, subject, count and whether it is over.
type Matter = (Rule, String, u64, bool);

/// A desk, and every message that it sent: instant, channel, matters with their counts.
struct Play {
    desk: Desk,
    policy: Policy,
    sent: Vec<(i64, Order)>,
    answer: BTreeMap<String, Verdict>,
}

impl Play {
    fn new(policy: Policy) -> Self {
        Self { desk: Desk::default(), policy, sent: Vec::new(), answer: BTreeMap::new() }
    }

    fn raise(&mut self, alert: Alert) {
        let now = alert.at;
        self.desk.take_in(&alert, &self.policy, now);
    }

    /// Lets time pass, a second at a time. The state is written and read in each.
    fn until(&mut self, from: i64, to: i64) {
        for second in from..=to {
            self.desk.turn(&self.policy, at(second));
            let orders = self.desk.orders(&self.policy, at(second));
            self.desk = Desk::read(&self.desk.write()).unwrap();
            for order in orders {
                let verdict = self.answer.get(&order.channel).cloned().unwrap_or(Verdict::Sent);
                let name = order.channel.clone();
                self.sent.push((second, order));
                let told = self.desk.settled(&name, verdict, &self.policy, at(second));
                if let Some(alert) = told {
                    self.desk.take_in(&alert, &self.policy, at(second));
                }
            }
        }
    }

    fn to(&self, channel: &str) -> Vec<(i64, Vec<Matter>)> {
        let of = |(second, order): &(i64, Order)| {
            let matters = order.digests.iter();
            let matters = matters.map(|d| (d.rule, d.subject.clone(), d.count, d.resolved));
            (*second, matters.collect())
        };
        self.sent.iter().filter(|(_, order)| order.channel == channel).map(of).collect()
    }
}

fn later(why: &str) -> Verdict {
    Verdict::Later { after: None, why: why.to_owned() }
}

fn off(why: &str) -> Verdict {
    Verdict::Off { why: why.to_owned() }
}

#[test]
fn a_thousand_dead_letters_in_a_second_are_one_message() {
    let mut play = Play::new(policy([channel("ops")]));
    for n in 0..1_000 {
        play.raise(dead("sync", 0).fact("task", n));
    }
    play.until(0, 1_000);
    assert_eq!(play.to("ops"), [(1, vec![(Rule::DeadLetter, "sync".to_owned(), 1_000, false)])]);
    let digest = &play.sent[0].1.digests[0];
    assert_eq!(digest.samples.len(), 5);
    assert_eq!(digest.causes.values().sum::<u64>(), 1_000);
}

/// It was replayed, and gave up again.
#[test]
fn the_same_task_is_counted_once() {
    let id = |n: u128| matins_core::task::TaskId(uuid::Uuid::from_u128(n));
    let mut play = Play::new(policy([channel("ops")]));
    for n in [1, 1, 2] {
        play.raise(dead("sync", 0).fact("task", id(n)));
    }
    play.until(0, 10);
    // The channel takes nothing while two more messages come together.
    play.answer.insert("ops".to_owned(), later("connection refused"));
    for (second, n) in [(11, 3), (12, 3), (330, 3), (331, 4)] {
        play.raise(dead("sync", second).fact("task", id(n)));
        play.until(second, if n == 4 { 900 } else { second + 300 });
    }
    play.answer.clear();
    play.until(901, 2_000);
    let told = play.to("ops");
    let count = |matters: Option<&(i64, Vec<Matter>)>| matters.map(|(_, matters)| matters[0].2);
    assert_eq!((count(told.first()), count(told.last())), (Some(2), Some(2)), "{told:?}");
}

#[test]
fn a_storm_is_told_at_its_beginning_and_then_together_and_another_matter_at_once() {
    let mut play = Play::new(policy([channel("ops")]));
    for second in 0..60 {
        for _ in 0..42 {
            play.raise(dead("sync", second));
        }
        play.until(second, second);
    }
    play.raise(dead("other", 60));
    play.until(60, 2_000);
    let told = play.to("ops");
    let sync: Vec<_> = told.iter().filter(|(_, m)| m[0].1 == "sync").collect();
    assert!(sync.len() <= 2, "{told:?}");
    assert_eq!(sync.iter().map(|(_, matters)| matters[0].2).sum::<u64>(), 60 * 42);
    let other: Vec<_> = told.iter().filter(|(_, m)| m[0].1 == "other").collect();
    assert_eq!(other.len(), 1);
    assert!(other[0].0 <= 62, "{told:?}");
}

#[test]
fn a_state_is_told_once_and_its_end_once() {
    let mut play = Play::new(policy([channel("ops")]));
    for second in [0, 10, 20] {
        play.raise(Alert::new(Rule::Store, "sqlite", at(second)));
    }
    play.until(20, 30);
    play.raise(Alert::resolved(Rule::Store, "sqlite", at(40)));
    play.raise(Alert::resolved(Rule::Store, "sqlite", at(41)));
    play.until(41, 1_000);
    let told: Vec<_> = play.to("ops").iter().map(|(at, m)| (*at, m[0].2, m[0].3)).collect();
    assert_eq!(told, [(20, 1, false), (41, 0, true)]);
}

#[test]
fn the_end_of_what_was_never_told_is_not_told() {
    let mut play = Play::new(policy([channel("ops")]));
    play.raise(Alert::resolved(Rule::Store, "sqlite", at(0)));
    play.until(0, 100);
    assert!(play.sent.is_empty());
}

#[test]
fn a_dead_channel_is_tried_ever_more_rarely_and_everything_gets_there_in_the_end() {
    let mut play = Play::new(policy([channel("ops")]));
    play.answer.insert("ops".to_owned(), later("connection refused"));
    play.raise(dead("sync", 0));
    play.until(0, 3_000);
    let tries: Vec<i64> = play.to("ops").iter().map(|(second, _)| *second).collect();
    assert_eq!(tries, [1, 6, 21, 66, 186, 486, 1_086, 1_686, 2_286, 2_886]);
    for n in 0..100 {
        play.raise(dead("sync", 3_000 + n));
    }
    play.answer.clear();
    play.until(3_100, 4_000);
    let counts: Vec<u64> = play.to("ops")[10..].iter().map(|(_, matters)| matters[0].2).collect();
    assert_eq!(counts.iter().sum::<u64>(), 101, "{counts:?}");
}

#[test]
fn a_wish_for_later_is_obeyed() {
    let mut play = Play::new(policy([channel("ops")]));
    let after = Some(std::time::Duration::from_secs(600));
    play.answer.insert("ops".to_owned(), Verdict::Later { after, why: "410100".to_owned() });
    play.raise(dead("sync", 0));
    play.until(0, 599);
    play.answer.clear();
    play.until(600, 700);
    let tries: Vec<i64> = play.to("ops").iter().map(|(second, _)| *second).collect();
    assert_eq!(tries, [1, 601]);
}

#[test]
fn a_channel_that_is_shut_is_left_alone_and_the_others_hear_of_it() {
    let mut play = Play::new(policy([channel("chat"), channel("mail")]));
    play.answer.insert("chat".to_owned(), off("errcode 93000"));
    play.raise(dead("sync", 0));
    play.until(0, 10);
    play.raise(dead("other", 11));
    play.until(11, 2_000);
    assert_eq!(play.to("chat").len(), 1, "not once more");
    let mail: Vec<_> = play.to("mail").iter().map(|(_, m)| (m[0].0, m[0].1.clone())).collect();
    let expected = [
        (Rule::DeadLetter, "sync".to_owned()),
        (Rule::Channel, "chat".to_owned()),
        (Rule::DeadLetter, "other".to_owned()),
    ];
    assert_eq!(mail, expected);
    // Whoever repairs it and starts anew gets what was missed.
    play.answer.clear();
    play.desk.resume(|_| false, &play.policy, at(2_000));
    play.until(2_000, 2_010);
    let chat: Vec<_> = play.to("chat")[1..].iter().flat_map(|(_, m)| m.clone()).collect();
    let subjects: Vec<_> = chat.iter().map(|(_, subject, ..)| subject.as_str()).collect();
    assert_eq!(subjects, ["sync", "other"]);
    let last = play.to("mail").last().cloned().unwrap();
    assert_eq!(last.1[0], (Rule::Channel, "chat".to_owned(), 0, true), "and they hear of that");
}

#[test]
fn the_first_of_the_fallback_that_can_be_told_is_told_instead() {
    let names = ["chat", "mail", "phone"];
    let mut with = policy(names.map(channel));
    let spec = RuleSpec {
        channels: Some(vec!["chat".to_owned()]),
        fallback: vec!["mail".to_owned(), "phone".to_owned()],
        ..RuleSpec::default()
    };
    with.rules.insert(Rule::DeadLetter, spec);
    let silent = RuleSpec { enabled: false, ..RuleSpec::default() };
    with.rules.insert(Rule::Channel, silent);
    let mut play = Play::new(with);
    play.raise(dead("a", 0));
    play.until(0, 10);
    assert_eq!((play.to("chat").len(), play.to("mail").len()), (1, 0));
    play.answer.insert("chat".to_owned(), later("dead"));
    play.answer.insert("mail".to_owned(), off("550"));
    play.raise(dead("b", 400));
    play.until(400, 600);
    assert_eq!(play.to("mail").len(), 1, "tried after chat had failed four times");
    assert_eq!(play.to("phone")[0].1[0].1, "b");
    play.until(600, 3_000);
    assert_eq!(play.to("phone").len(), 1);
}

#[test]
fn nobody_is_told_more_often_than_a_channel_bears() {
    let mut play = Play::new(policy([Channel { per_minute: 5, ..channel("ops") }]));
    for n in 0..200 {
        play.raise(dead(&format!("type-{n}"), n));
        play.until(n, n);
    }
    play.until(200, 700);
    for (second, _) in &play.sent {
        let near = play.sent.iter().filter(|(other, _)| (*second..second + 60).contains(other));
        assert!(near.count() <= 5);
    }
    let told: u64 = play.sent.iter().flat_map(|(_, o)| &o.digests).map(|d| d.count).sum();
    assert_eq!(told, 200, "each is told once");
}

#[test]
fn at_night_only_what_is_grave_is_told_and_the_rest_in_the_morning() {
    // 08:00Z is 16:00 in Shanghai; the night begins at once and ends at 17:00.
    let quiet = Quiet {
        from: Time::constant(16, 0, 0, 0),
        to: Time::constant(17, 0, 0, 0),
        zone: Zone::parse("Asia/Shanghai").unwrap(),
        except: Severity::Critical,
    };
    let mut play = Play::new(policy([Channel { quiet: Some(quiet), ..channel("ops") }]));
    play.raise(dead("sync", 5));
    play.raise(Alert::new(Rule::Store, "sqlite", at(5)));
    play.raise(dead("sync", 1_000));
    play.until(5, 3_700);
    let told: Vec<_> = play.to("ops").iter().map(|(s, m)| (*s, m[0].0, m[0].2)).collect();
    assert_eq!(told, [(5, Rule::Store, 1), (3_600, Rule::DeadLetter, 2)]);
}

#[test]
fn what_was_being_sent_when_the_sender_died_is_sent_once_more() {
    let mut play = Play::new(policy([channel("ops")]));
    play.raise(dead("sync", 0));
    play.desk.turn(&play.policy, at(1));
    let orders = play.desk.orders(&play.policy, at(1));
    assert_eq!(orders.len(), 1);
    let stored = play.desk.write();
    // Killed here: after sending, before recording.
    play.desk = Desk::read(&stored).unwrap();
    assert!(play.desk.orders(&play.policy, at(2)).is_empty(), "it is on its way");
    play.desk.resume(|_| false, &play.policy, at(3));
    play.until(3, 100);
    assert_eq!(play.to("ops").len(), 1, "once more, and not again");
    assert_eq!(play.to("ops")[0].1[0].2, 1);
}

#[test]
fn a_state_that_nobody_confirms_after_a_restart_is_over() {
    let mut play = Play::new(policy([channel("ops")]));
    play.raise(Alert::new(Rule::Store, "sqlite", at(0)));
    play.raise(Alert::new(Rule::Stalled, "scheduler", at(0)));
    play.until(0, 5);
    play.desk.resume(|_| true, &play.policy, at(10));
    play.raise(Alert::new(Rule::Stalled, "scheduler", at(20)));
    play.until(20, 400);
    let over: Vec<_> =
        play.to("ops").into_iter().flat_map(|(_, m)| m).filter(|matter| matter.3).collect();
    assert_eq!(over, [(Rule::Store, "sqlite".to_owned(), 0, true)]);
}

#[test]
fn what_comes_in_does_not_make_the_desk_grow_without_bound() {
    let mut play = Play::new(policy([channel("ops")]));
    play.answer.insert("ops".to_owned(), off("gone"));
    let error = "告".repeat(300);
    for n in 0..20_000 {
        let alert = Alert::new(Rule::DeadLetter, format!("type-{n}"), at(n)).fact("error", &error);
        play.desk.take_in(&alert, &play.policy, at(n));
        if n % 50 == 0 {
            play.until(n, n);
        }
    }
    let bytes = play.desk.write().len();
    assert!(bytes < 4 << 20, "{bytes}");
    let state = play.desk.channels();
    assert!(state[0].waiting <= 230, "{state:?}");
}

#[test]
fn a_severity_that_does_not_reach_a_channel_is_not_told_there() {
    let grave = Channel { at_least: Severity::Critical, ..channel("phone") };
    let mut play = Play::new(policy([grave, channel("chat")]));
    play.raise(dead("sync", 0));
    play.raise(Alert::new(Rule::Stalled, "scheduler", at(0)));
    play.until(0, 30);
    assert_eq!(play.to("phone").len(), 1);
    assert_eq!(play.to("chat").len(), 2);
}

/// Somebody replaces a channel that does not deliver by another, while something waits for it or
/// is on its way.
#[test]
fn what_waits_for_a_channel_that_is_taken_away_is_told_by_the_others() {
    for restarted in [false, true] {
        let mut play = Play::new(policy([channel("old")]));
        play.answer.insert("old".to_owned(), later("no answer"));
        play.raise(dead("sync", 0));
        play.until(0, 10);
        assert!(!play.to("old").is_empty() && play.desk.is_busy());
        play.policy = policy([channel("new")]);
        match restarted {
            false => play.desk.reopen(&play.policy),
            true => play.desk.resume(|_| false, &play.policy, at(11)),
        }
        play.until(11, 20);
        assert_eq!(play.to("new"), [(11, vec![(Rule::DeadLetter, "sync".to_owned(), 1, false)])]);
        assert!(!play.desk.is_busy() && play.desk.channels().len() == 1, "{:?}", play.desk);
    }
}

#[test]
fn what_is_on_its_way_when_its_channel_is_taken_away_is_told_by_the_others_if_it_fails() {
    for (verdict, told) in [(later("no answer"), 1), (off("gone"), 1), (Verdict::Sent, 0)] {
        let mut play = Play::new(policy([channel("old")]));
        play.raise(dead("sync", 0));
        play.desk.turn(&play.policy, at(2));
        assert_eq!(play.desk.orders(&play.policy, at(2)).len(), 1);
        play.policy = policy([channel("new")]);
        play.desk.reopen(&play.policy);
        assert_eq!(play.desk.settled("old", verdict, &play.policy, at(3)), None);
        play.until(4, 20);
        assert_eq!(play.to("new").len(), told);
    }
}
