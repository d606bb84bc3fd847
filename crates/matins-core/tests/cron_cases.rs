//! The dialect against tables of cases: instants from an independent oracle, expressions that
//! must be refused, and the failures other schedulers were reported for.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::cron::{
    CronErrorKind, Dst, Field, Fold, Gap, Label, Note, Recurrence, Timetable, Zone, preview,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    id: String,
    expr: String,
    tz: String,
    after: Timestamp,
    next: Vec<Timestamp>,
}

#[derive(Deserialize)]
struct Refusal {
    id: String,
    expr: String,
    note: String,
    rule: String,
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn recurrence(expression: &str, zone: &str) -> Recurrence {
    with_dst(expression, zone, Gap::Run, Fold::First)
}

fn with_dst(expression: &str, zone: &str, gap: Gap, fold: Fold) -> Recurrence {
    let timetable = Timetable::parse(expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
    Recurrence::new(timetable, Zone::parse(zone).unwrap(), Dst { gap, fold }, Timestamp::UNIX_EPOCH)
}

/// Fires in `(after, until]`.
fn fires(recurrence: &Recurrence, after: &str, until: &str) -> Vec<String> {
    recurrence.between(at(after), at(until)).map(|fire| fire.time.to_string()).collect()
}

/// The next `expected.len()` fires, streamed and asked for one by one, and back again.
fn expect(expression: &str, zone: &str, after: &str, expected: &[&str]) {
    let recurrence = recurrence(expression, zone);
    let expected: Vec<Timestamp> = expected.iter().map(|text| at(text)).collect();
    check(&recurrence, at(after), &expected, expression);
}

fn check(recurrence: &Recurrence, after: Timestamp, expected: &[Timestamp], what: &str) {
    let streamed: Vec<Timestamp> = recurrence
        .between(after, Timestamp::MAX)
        .take(expected.len())
        .map(|fire| fire.time)
        .collect();
    assert_eq!(streamed, expected, "{what}");
    let mut instant = after;
    for &time in expected {
        let fire = recurrence.next_after(instant).unwrap();
        assert_eq!(fire.time, time, "{what}");
        assert!(recurrence.matches(time), "{what} matches {time}");
        assert_eq!(recurrence.resolve(fire.label).unwrap().time, time, "{what} {}", fire.label);
        if instant != after {
            assert_eq!(recurrence.previous(time).unwrap().time, instant, "{what} before {time}");
        }
        instant = time;
    }
    if let Some(&last) = expected.last() {
        assert_eq!(recurrence.tally(after, last).fires, expected.len() as u64, "{what} tally");
    }
}

#[test]
fn every_case_of_the_oracle() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("cases/cron.json")).unwrap();
    assert!(cases.len() > 100);
    for case in cases {
        let recurrence = recurrence(&case.expr, &case.tz);
        check(&recurrence, case.after, &case.next, &case.id);
    }
}

#[test]
fn every_refusal() {
    let cases: Vec<Refusal> =
        serde_json::from_str(include_str!("cases/cron_invalid.json")).unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let started = Instant::now();
        let Err(error) = Timetable::parse(&case.expr) else {
            panic!("{} accepted: {:?} ({})", case.id, case.expr, case.note);
        };
        assert!(started.elapsed() < Duration::from_millis(50), "{}", case.id);
        let text = error.to_string();
        assert!(!text.contains('\n') && text.len() < 400, "{}: {text}", case.id);
        assert!(case.expr.get(error.span.clone()).is_some(), "{}: {:?}", case.id, error.span);
        let never = case.rule == "D7" || case.id == "bad-101";
        let code = if never { "never_fires" } else { "cron_invalid" };
        assert_eq!(error.code(), code, "{}: {text}", case.id);
    }
}

/// Expression, field, the faulty piece, and words of the text.
const FAULTS: &[(&str, Field, &str, &str)] = &[
    ("0 22-2 * * *", Field::Hour, "22-2", "22-23,0-2"),
    ("0 0 * * FRI-MON", Field::Weekday, "FRI-MON", "5-7,1"),
    ("0 0 * * SAT-SUN,6-0", Field::Weekday, "6-0", "write 6-7"),
    ("0 0 * * 7-2", Field::Weekday, "7-2", "write 7,1-2"),
    ("58-2/2 * * * *", Field::Minute, "58-2/2", "58-59/2,0-2/2"),
    ("50-10/7 * * * *", Field::Minute, "50-10/7", "50-59/7,4-10/7"),
    ("0 0 1 NOV-FEB *", Field::Month, "NOV-FEB", "11-12,1-2"),
    ("*/90 * * * *", Field::Minute, "*/90", "@every 90m"),
    ("0 */25 * * *", Field::Hour, "*/25", "@every 25h"),
    ("*/61 * * * * *", Field::Second, "*/61", "@every 61s"),
    ("0 0 */32 * *", Field::Day, "*/32", "@every 32d"),
    ("0 0 1 */13 *", Field::Month, "*/13", "1 to 12"),
    ("0 0 * * */8", Field::Weekday, "*/8", "1 to 7"),
    ("0 0 32 * *", Field::Day, "32", "a day 1-31"),
    ("61 0 0 * * *", Field::Second, "61", "a second 0-59"),
    ("0 0 0 * * * 2200", Field::Year, "2200", "1970-2199"),
    ("0 0 0 * * * 1969", Field::Year, "1969", "1970-2199"),
    ("0 0 * * 5#6", Field::Weekday, "5#6", "1 to 5"),
    ("0 0 * * L", Field::Weekday, "L", "last Friday"),
    ("0 0 L-31 * *", Field::Day, "L-31", "L-1 to L-30"),
    ("0 0 L-3W * *", Field::Day, "L-3W", "L-1 to L-30"),
    ("0 0 32W * *", Field::Day, "32W", "1W to 31W"),
    ("0 0 * * +", Field::Weekday, "", "missing"),
    ("0 0 +1 * *", Field::Day, "+1", "a day"),
    ("0 0\u{a0}* * *", Field::Expression, "\u{a0}", "plain spaces"),
    ("0 0 * * *\n", Field::Weekday, "\n", "plain spaces"),
    ("٥ * * * *", Field::Minute, "٥", "digits 0-9"),
    ("0，30 * * * *", Field::Minute, "，", "U+FF0C"),
    ("0 2 * * * # nightly", Field::Expression, "#", "comments"),
    ("TZ=UTC 0 2 * * * * *", Field::Expression, "TZ=UTC 0 2 * * * * *", "`timezone`"),
    ("@every 1mo", Field::Interval, "1mo", "@monthly"),
    ("@every 999ms", Field::Interval, "999ms", "at least 1s"),
    ("@every 1500ms", Field::Interval, "1500ms", "whole seconds"),
    ("@every 0", Field::Interval, "0", "at least 1s"),
    ("@every  99999999999999999999h ", Field::Interval, "99999999999999999999h", "hundred years"),
    ("@at 2027-01-01", Field::Moment, "2027-01-01", "2027-01-01T09:00"),
    ("@at 2027-01-01T09:00Z", Field::Moment, "2027-01-01T09:00Z", "`timezone`"),
    ("@at 2027-02-29T09:00", Field::Moment, "2027-02-29T09:00", "no such date"),
    ("@at 2027-01-01T23:59:60", Field::Moment, "2027-01-01T23:59:60", "no such date"),
    ("@daily 5", Field::Expression, "5", "stands alone"),
    ("@reboot", Field::Expression, "@reboot", "@hourly"),
];

#[test]
fn a_refusal_names_field_place_and_remedy() {
    for (expression, field, piece, words) in FAULTS {
        let error = Timetable::parse(expression).expect_err(expression);
        assert_eq!(error.field, *field, "{expression}: {error}");
        assert_eq!(&expression[error.span.clone()], *piece, "{expression}: {error}");
        assert_eq!(error.kind, CronErrorKind::Invalid, "{expression}");
        assert!(error.to_string().contains(words), "{expression}: {error}");
        assert!(error.to_string().starts_with(field.name()), "{expression}: {error}");
    }
}

#[test]
fn what_can_never_fire_is_refused_at_once() {
    for expression in [
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 0 29 2 * 2100",
        "0 0 0 29 2 * 2025-2027,2030",
        "0 0 0 29 2 +MON 2028",
        "0 0 31 2,4 +FRI",
        "0 0 29 2 +1#1",
        "0 0 L-30 2,4,6,9,11 *",
        "0 0 30W,31W 2 *",
        "* * * 31 6 ? *",
    ] {
        let started = Instant::now();
        let error = Timetable::parse(expression).expect_err(expression);
        assert!(started.elapsed() < Duration::from_millis(50), "{expression}");
        assert_eq!(error.code(), "never_fires", "{expression}: {error}");
        assert!(error.to_string().contains("never fire"), "{expression}: {error}");
    }
    // The weekday rescues the first of them.
    expect(
        "0 0 30 2 1",
        "UTC",
        "2026-01-20T00:00:00Z",
        &["2026-02-02T00:00:00Z", "2026-02-09T00:00:00Z"],
    );
}

#[test]
fn parsing_is_bounded() {
    let list = |item: &str, bytes: usize| {
        format!("{} * * * *", vec![item; bytes / (item.len() + 1)].join(","))
    };
    for expression in [list("0", 4_000), list("0-59", 4_000), list("*/1", 4_000)] {
        let started = Instant::now();
        Timetable::parse(&expression).unwrap();
        assert!(started.elapsed() < Duration::from_millis(50));
    }
    for expression in [list("0", 1 << 20), "*".repeat(1 << 20), " ".repeat(1 << 20)] {
        let started = Instant::now();
        let error = Timetable::parse(&expression).unwrap_err();
        assert!(started.elapsed() < Duration::from_millis(50));
        assert!(error.to_string().len() < 400 && error.to_string().contains("4096 bytes"));
    }
    let zeros = format!("{}5 0 * * *", "0".repeat(500));
    assert_eq!(Timetable::parse(&zeros).unwrap(), Timetable::parse("5 0 * * *").unwrap());
}

#[test]
fn equal_sets_are_equal_timetables() {
    for group in [
        &["* * * * *", "0-59 0-23 1/1 1-12 *", "*/1 */1 * JAN-DEC ?", "0 * * * * *"][..],
        &["0 0 * * 0", "0 0 * * 7", "0 0 * * sun", "0 0 * * 0,7", "@weekly", "0 0 ? * SUN"][..],
        &["0 0 1 1 *", "@yearly", "@annually", "00 00 01 01 *", "0 0 1 jan ?"][..],
        &["0 0 * * 5-7", "0 0 * * FRI-SUN", "0 0 * * 0,5,6", "0 0 * * FRI-7"][..],
        &["0 0 L * *", "0 0 l * *", "0 0 L,L * ?"][..],
        &["@every 90m", "@every 1h30m", "@every 5400", "@every 5400s", " @EVERY  90m "][..],
        &["@at 2027-01-01T09:00", "@at 2027-01-01T09:00:00"][..],
        &["0 0 1 * +MON", "0 0 1 * +1", "0 0 1 * +mon"][..],
    ] {
        let first = Timetable::parse(group[0]).unwrap();
        for text in group {
            assert_eq!(Timetable::parse(text).unwrap(), first, "{text}");
        }
    }
    // A spelled-out range is the same set but asks for either day field.
    assert_ne!(Timetable::parse("0 9 1 * 0-6").unwrap(), Timetable::parse("0 9 1 * *").unwrap());
}

const NEW_YORK: &str = "America/New_York";

/// Expression, zone, after, until, and the times of day of the fires in UTC.
const GOLDEN: &[(&str, &str, &str, &str, &str)] = &[
    ("0 1-4 * * *", NEW_YORK, "2026-03-08T05:30:00Z", "2026-03-08T12:00:00Z", "06:00 07:00 08:00"),
    (
        "0 */2 * * *",
        NEW_YORK,
        "2026-03-08T04:30:00Z",
        "2026-03-08T10:30:00Z",
        "05:00 07:00 08:00 10:00",
    ),
    (
        "*/30 * * * *",
        NEW_YORK,
        "2026-03-08T06:05:00Z",
        "2026-03-08T08:05:00Z",
        "06:30 07:00 07:30 08:00",
    ),
    ("30 1 * * *", NEW_YORK, "2026-11-01T00:00:00Z", "2026-11-02T05:00:00Z", "05:30"),
    ("*/30 1 * * *", NEW_YORK, "2026-11-01T00:00:00Z", "2026-11-02T05:00:00Z", "05:00 05:30"),
    (
        "*/30 * * * *",
        NEW_YORK,
        "2026-11-01T04:45:00Z",
        "2026-11-01T07:15:00Z",
        "05:00 05:30 06:00 06:30 07:00",
    ),
    (
        "0 */2 * * *",
        "Europe/Berlin",
        "2026-10-24T23:30:00Z",
        "2026-10-25T05:30:00Z",
        "00:00 03:00 05:00",
    ),
    ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00:00Z", "2026-04-25T12:00:00Z", "22:00 21:00"),
    (
        "0 */2 * * *",
        "Africa/Cairo",
        "2026-04-23T19:00:00Z",
        "2026-04-24T06:00:00Z",
        "20:00 22:00 23:00 01:00 03:00 05:00",
    ),
    (
        "0 0 * * *",
        "America/Santiago",
        "2026-09-05T12:00:00Z",
        "2026-09-07T12:00:00Z",
        "04:00 03:00",
    ),
    (
        "30 23 * * *",
        "America/Santiago",
        "2026-04-04T12:00:00Z",
        "2026-04-06T12:00:00Z",
        "02:30 03:30",
    ),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", "2026-10-04T00:00:00Z", "15:30"),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", "2026-04-05T00:00:00Z", "14:45"),
    (
        "*/15 * * * *",
        "Australia/Lord_Howe",
        "2026-04-04T14:20:00Z",
        "2026-04-04T15:50:00Z",
        "14:30 14:45 15:00 15:15 15:30 15:45",
    ),
];

#[test]
fn golden_vectors() {
    let ny = NEW_YORK;
    expect("30 2 * * *", ny, "2026-03-08T00:00:00Z", &["2026-03-08T07:00:00Z"]);
    expect(
        "*/15 2 * * *",
        ny,
        "2026-03-08T00:00:00Z",
        &["2026-03-08T07:00:00Z", "2026-03-09T06:00:00Z"],
    );
    for (expression, zone, after, until, expected) in GOLDEN {
        let found: Vec<String> = fires(&recurrence(expression, zone), after, until)
            .iter()
            .map(|time| time[11..16].to_owned())
            .collect();
        assert_eq!(found.join(" "), *expected, "{expression} {zone}");
    }
}

#[test]
fn a_missing_day_is_a_change_of_zone() {
    let apia = recurrence("0 9 * * *", "Pacific/Apia");
    let (from, to) = (at("2011-12-29T00:00:00Z"), at("2011-12-31T00:00:00Z"));
    assert_eq!(
        fires(&apia, "2011-12-29T00:00:00Z", "2011-12-31T00:00:00Z"),
        ["2011-12-29T19:00:00Z", "2011-12-30T19:00:00Z"]
    );
    let lost = apia.lost(from, to);
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].time, at("2011-12-30T10:00:00Z"));
    assert_eq!(lost[0].labels.first.to_string(), "2011-12-30T09:00:00");
    assert_eq!(lost[0].labels.count, 1);
    let tally = apia.tally(from, to);
    assert_eq!((tally.fires, tally.merged, tally.lost), (2, 0, 1));
    assert!(apia.resolve("2011-12-30T09:00:00".parse().unwrap()).is_none());

    // Kwajalein left out 21 August 1993; Casey's three hours are still a gap.
    let kwajalein = recurrence("0 12 * * *", "Pacific/Kwajalein");
    let lost = kwajalein.lost(at("1993-08-01T00:00:00Z"), at("1993-09-01T00:00:00Z"));
    assert_eq!(lost[0].labels.first.to_string(), "1993-08-21T12:00:00");
    assert!(kwajalein.lost(at("1994-01-01T00:00:00Z"), at("2050-01-01T00:00:00Z")).is_empty());
}

#[test]
fn labels_of_a_gap_merge_into_one_fire() {
    let fire = |expression: &str| {
        recurrence(expression, "America/New_York").next_after(at("2027-03-14T06:59:59Z")).unwrap()
    };
    // The regular label of 03:00 wins.
    let regular = fire("0 2,3 * * *");
    assert_eq!(regular.time, at("2027-03-14T07:00:00Z"));
    assert_eq!(regular.label.to_string(), "2027-03-14T03:00:00");
    assert_eq!(regular.merged.unwrap().first.to_string(), "2027-03-14T02:00:00");
    assert_eq!(regular.notes(), [Note::Merged]);
    // Without one, the latest of the gap.
    let gap = fire("15,45 2 * * *");
    assert_eq!(gap.label.to_string(), "2027-03-14T02:45:00");
    let merged = gap.merged.unwrap();
    assert_eq!((merged.first, merged.last, merged.count), (merged.first, merged.first, 1));
    assert_eq!(merged.first.to_string(), "2027-03-14T02:15:00");
    assert_eq!(gap.notes(), [Note::DstGap, Note::Merged]);
    // A merged label stands for the same instant.
    let recurrence = recurrence("15,45 2 * * *", "America/New_York");
    assert_eq!(recurrence.resolve(merged.first).unwrap().time, gap.time);
    assert!(recurrence.resolve("2027-03-14T02:16:00".parse().unwrap()).is_none());
    // Ten thousand are counted, not listed.
    let many = fire("* * 2 * * *").merged.unwrap();
    assert_eq!(many.count, 3_599);
}

#[test]
fn gap_and_fold_rules() {
    let ny = "America/New_York";
    let spring = ("2027-03-13T12:00:00Z", "2027-03-15T12:00:00Z");
    let skip = with_dst("30 2 * * *", ny, Gap::Skip, Fold::First);
    assert_eq!(fires(&skip, spring.0, spring.1), ["2027-03-15T06:30:00Z"]);
    let lost = skip.lost(at(spring.0), at(spring.1));
    assert_eq!(lost[0].labels.first.to_string(), "2027-03-14T02:30:00");
    assert_eq!(skip.tally(at(spring.0), at(spring.1)).labels(), 2);

    let labels = |fold| {
        let recurrence = with_dst("30 1 * * *", ny, Gap::Run, fold);
        let found: Vec<(String, String)> = recurrence
            .between(at("2026-10-31T12:00:00Z"), at("2026-11-02T12:00:00Z"))
            .map(|fire| (fire.time.to_string(), fire.label.to_string()))
            .collect();
        for (time, label) in &found {
            let resolved = recurrence.resolve(label.parse::<Label>().unwrap()).unwrap();
            assert_eq!(resolved.time.to_string(), *time);
        }
        found
    };
    let pair = |time: &str, label: &str| (time.to_owned(), label.to_owned());
    let first = pair("2026-11-01T05:30:00Z", "2026-11-01T01:30:00");
    let next_day = pair("2026-11-02T06:30:00Z", "2026-11-02T01:30:00");
    assert_eq!(labels(Fold::First), [first.clone(), next_day.clone()]);
    assert_eq!(
        labels(Fold::Second),
        [pair("2026-11-01T06:30:00Z", "2026-11-01T01:30:00"), next_day.clone()]
    );
    assert_eq!(
        labels(Fold::Both),
        [first, pair("2026-11-01T06:30:00Z", "2026-11-01T01:30:00#2"), next_day]
    );
}

/// The next reading is a year away, but the clock is about to show the last one again.
#[test]
fn a_second_copy_is_not_jumped_over() {
    let after = "2026-11-01T05:45:00Z";
    for fold in [Fold::Second, Fold::Both] {
        let yearly = with_dst("30 1 1 11 *", NEW_YORK, Gap::Run, fold);
        let second = at("2026-11-01T06:30:00Z");
        assert_eq!(yearly.next_after(at(after)).unwrap().time, second, "{fold:?}");
        assert_eq!(yearly.previous(at("2027-06-01T00:00:00Z")).unwrap().time, second, "{fold:?}");
    }
    let first = with_dst("30 1 1 11 *", NEW_YORK, Gap::Run, Fold::First);
    assert_eq!(first.next_after(at(after)).unwrap().time, at("2027-11-01T05:30:00Z"));
    // Elapsed, on a day whose last hour comes twice.
    expect(
        "30 * 17 2 *",
        "America/Sao_Paulo",
        "2018-02-18T00:45:00Z",
        &["2018-02-18T01:30:00Z", "2018-02-18T02:30:00Z", "2019-02-17T03:30:00Z"],
    );
}

#[test]
fn one_shot() {
    let shanghai = recurrence("@at 2027-01-01T09:00", "Asia/Shanghai");
    let fire = shanghai.next_after(at("2026-11-29T00:00:00Z")).unwrap();
    assert_eq!(fire.time, at("2027-01-01T01:00:00Z"));
    assert_eq!(fire.label.to_string(), "2027-01-01T09:00:00");
    assert_eq!(shanghai.next_after(fire.time), None);
    assert_eq!(shanghai.previous(at("2030-01-01T00:00:00Z")), Some(fire));
    // In a gap: the first instant after it. In a fold: the first copy.
    let zones = [
        ("@at 2027-03-14T02:30", "2027-03-14T07:00:00Z"),
        ("@at 2026-11-01T01:30", "2026-11-01T05:30:00Z"),
    ];
    for (expression, expected) in zones {
        expect(expression, "America/New_York", "2026-01-01T00:00:00Z", &[expected]);
    }
    let never = recurrence("@at 2011-12-30T09:00", "Pacific/Apia");
    assert_eq!(never.next_after(at("2000-01-01T00:00:00Z")), None);
}

#[test]
fn intervals_count_from_their_anchor() {
    let timetable = Timetable::parse("@every 10m").unwrap();
    let anchor = at("2026-11-29T12:00:00.75Z");
    let every = Recurrence::new(timetable, Zone::utc(), Dst::default(), anchor);
    let first = at("2026-11-29T12:10:00Z");
    assert_eq!(every.next_after(anchor).unwrap().time, first);
    assert_eq!(every.next_after(at("1999-01-01T00:00:00Z")).unwrap().time, first);
    assert_eq!(every.previous(first), None);
    assert!(!every.matches(at("2026-11-29T12:00:00Z")), "the anchor itself does not fire");
    // However often it is asked, and from where: no drift.
    let mut instant = anchor;
    for number in 1..=100 {
        let fire = every.next_after(instant).unwrap();
        assert_eq!(fire.time.as_second(), anchor.as_second() + number * 600);
        instant = fire.time.checked_add(jiff::SignedDuration::from_secs(number * 5 % 599)).unwrap();
    }
    assert_eq!(every.tally(anchor, at("2026-12-29T12:00:00Z")).fires, 30 * 144);
    assert_eq!(every.next_after(anchor).unwrap().label.to_string(), "2026-11-29T12:10:00Z");
}

#[test]
fn reported_failures() {
    let cases: &[(&str, &str, &str, &[&str])] = &[
        // A clock that goes back for Ramadan.
        (
            "30 2 * * *",
            "Africa/Casablanca",
            "2026-03-21T12:00:00Z",
            &["2026-03-22T02:00:00Z", "2026-03-23T01:30:00Z"],
        ),
        // Thirty minutes of summer time.
        (
            "0 * * * *",
            "Australia/Lord_Howe",
            "2026-10-03T14:00:00Z",
            &["2026-10-03T14:30:00Z", "2026-10-03T16:00:00Z", "2026-10-03T17:00:00Z"],
        ),
        (
            "0 2,3 * * *",
            "America/New_York",
            "2027-03-13T12:00:00Z",
            &["2027-03-14T07:00:00Z", "2027-03-15T06:00:00Z", "2027-03-15T07:00:00Z"],
        ),
        (
            "30 1 * * *",
            "UTC",
            "2026-10-24T12:00:00Z",
            &["2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        (
            "0 0 */2 * 1",
            "UTC",
            "2024-12-31T23:59:00Z",
            &["2025-01-13T00:00:00Z", "2025-01-27T00:00:00Z", "2025-02-03T00:00:00Z"],
        ),
        (
            "0 0 * * SAT-SUN",
            "UTC",
            "2026-11-28T12:00:00Z",
            &["2026-11-29T00:00:00Z", "2026-12-05T00:00:00Z"],
        ),
        ("0 18 * * *", "UTC", "2026-11-29T00:00:00Z", &["2026-11-29T18:00:00Z"]),
        // A leading + makes it the day and the weekday: Friday the 13th.
        (
            "0 0 13 * +FRI",
            "UTC",
            "2026-01-01T00:00:00Z",
            &["2026-02-13T00:00:00Z", "2026-03-13T00:00:00Z", "2026-11-13T00:00:00Z"],
        ),
        // Present rules of zones that changed lately.
        ("0 9 * * *", "America/Vancouver", "2026-11-29T00:00:00Z", &["2026-11-29T16:00:00Z"]),
        ("0 9 * * *", "America/Edmonton", "2026-11-29T00:00:00Z", &["2026-11-29T15:00:00Z"]),
        ("0 9 * * *", "America/Winnipeg", "2026-11-29T00:00:00Z", &["2026-11-29T14:00:00Z"]),
        ("0 9 * * *", "Africa/Casablanca", "2026-11-29T00:00:00Z", &["2026-11-29T09:00:00Z"]),
        ("0 9 * * *", "America/Havana", "2026-11-29T00:00:00Z", &["2026-11-29T13:00:00Z"]),
        // Two hours of summer time: three labels of the gap are one fire.
        ("0,30 1-2 * * *", "Antarctica/Troll", "2027-03-27T12:00:00Z", &["2027-03-28T01:00:00Z"]),
        // A century that is no leap year.
        ("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", &["2104-02-29T00:00:00Z"]),
        ("0 0 L 2 *", "UTC", "2100-01-01T00:00:00Z", &["2100-02-28T00:00:00Z"]),
        // Workdays at the ends of months.
        (
            "0 0 1W * *",
            "UTC",
            "2026-07-15T00:00:00Z",
            &["2026-08-03T00:00:00Z", "2026-09-01T00:00:00Z"],
        ),
        (
            "0 0 LW * *",
            "UTC",
            "2026-05-30T00:00:00Z",
            &["2026-06-30T00:00:00Z", "2026-07-31T00:00:00Z"],
        ),
        (
            "0 0 L-3 * *",
            "UTC",
            "2028-02-01T00:00:00Z",
            &["2028-02-26T00:00:00Z", "2028-03-28T00:00:00Z"],
        ),
        (
            "0 0 * * MON#5",
            "UTC",
            "2026-01-01T00:00:00Z",
            &["2026-03-30T00:00:00Z", "2026-06-29T00:00:00Z"],
        ),
        ("0 0 0 29 2 * 2000-2199", "UTC", "2096-03-01T00:00:00Z", &["2104-02-29T00:00:00Z"]),
        ("59 59 23 31 12 * 2199", "UTC", "1970-01-01T00:00:00Z", &["2199-12-31T23:59:59Z"]),
    ];
    for (expression, zone, after, expected) in cases {
        expect(expression, zone, after, expected);
    }
    let last = recurrence("59 59 23 31 12 * 2199", "UTC");
    assert_eq!(last.next_after(at("2199-12-31T23:59:59Z")), None);
}

#[test]
fn any_question_is_answered_fast() {
    let rare = [
        ("0 0 29 2 */7", "Europe/London"),
        ("59 59 23 31 12 * 2199", "America/New_York"),
        ("30 2 29 2 +SUN", "America/New_York"),
        ("0 0 0 1 1 * 1970", "Africa/Casablanca"),
        ("0 0 31 12 *", "Asia/Tehran"),
    ];
    for (expression, zone) in rare {
        let recurrence = recurrence(expression, zone);
        for from in [
            "0001-01-01T00:00:00Z",
            "1970-01-01T00:00:00Z",
            "2026-11-29T00:00:00Z",
            "9990-01-01T00:00:00Z",
        ] {
            let started = Instant::now();
            let _ = (recurrence.next_after(at(from)), recurrence.previous(at(from)));
            assert!(started.elapsed() < Duration::from_millis(50), "{expression} {zone} {from}");
        }
    }
    // The ends of time are answered, not overflowed.
    for end in [Timestamp::MIN, Timestamp::MAX] {
        for expression in ["* * * * * *", "0 0 1 1 *", "@every 1s", "@at 9998-12-31T23:59:59"] {
            let recurrence = recurrence(expression, "Pacific/Kiritimati");
            let _ = (recurrence.next_after(end), recurrence.previous(end), recurrence.at(end));
            let _ = recurrence.tally(Timestamp::MIN, end);
        }
    }
}

#[test]
fn a_month_of_missed_minutes_is_counted_not_walked() {
    let minutes = recurrence("* * * * *", "Europe/Berlin");
    let (from, to) = (at("2026-10-30T00:00:00Z"), at("2026-11-29T00:00:00Z"));
    let started = Instant::now();
    for _ in 0..1_000 {
        assert_eq!(minutes.tally(from, to).labels(), 43_200);
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn a_preview_shows_both_clocks() {
    let shanghai = recurrence("0 2 * * *", "Asia/Shanghai");
    let shown = preview(&shanghai, at("2026-11-29T00:00:00Z"), 1);
    assert_eq!(
        serde_json::to_string(&shown).unwrap(),
        r#"[{"utc":"2026-11-29T18:00:00Z","local":"2026-11-30T02:00:00+08:00","notes":[]}]"#
    );
    let ny = recurrence("15,45 2 * * *", "America/New_York");
    let shown = preview(&ny, at("2027-03-13T12:00:00Z"), 1);
    assert_eq!(
        serde_json::to_string(&shown).unwrap(),
        concat!(
            r#"[{"utc":"2027-03-14T07:00:00Z","local":"2027-03-14T03:00:00-04:00","#,
            r#""notes":["dst_gap","merged"]}]"#
        )
    );
    let fold =
        preview(&recurrence("30 1 * * *", "America/New_York"), at("2026-10-31T12:00:00Z"), 1);
    assert_eq!(fold[0].notes, [Note::DstFold]);
    let steps = preview(&recurrence("*/7 * * * *", "UTC"), at("2026-01-01T00:50:00Z"), 2);
    assert_eq!((&steps[0].local[14..16], &steps[1].local[14..16]), ("56", "00"));
    assert!(preview(&ny, at("2027-03-13T12:00:00Z"), 0).is_empty());
}
