//! Laws that hold for every expression in every zone, checked on random ones: against a walk over
//! every minute, against croner on ordinary days, and against themselves.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use croner::errors::CronError;
use croner::{CivilDate, CivilDateTime, CivilTime, CronDateTime, Resolution};
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};
use matins_core::cron::{Dst, Fold, Gap, Label, Recurrence, Tally, Timetable, Zone};
use proptest::prelude::*;

/// Small, seeded and repeatable (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len() as u64) as usize]
    }

    fn set(&mut self, min: u32, max: u32) -> BTreeSet<u32> {
        let size = u64::from(max - min + 1);
        let wanted = match self.roll(4) {
            0 => size,
            1 => 1,
            _ => 1 + self.roll(size.min(6)),
        };
        if wanted == size {
            return (min..=max).collect();
        }
        (0..wanted).map(|_| min + self.roll(size) as u32).collect()
    }
}

/// An expression as plain sets, with one of the texts that say it.
#[derive(Debug)]
struct Plain {
    text: String,
    seconds: BTreeSet<u32>,
    minutes: BTreeSet<u32>,
    hours: BTreeSet<u32>,
    days: BTreeSet<u32>,
    months: BTreeSet<u32>,
    weekdays: BTreeSet<u32>,
    both: bool,
}

/// `*`, a range, ranges and values in any order, values twice.
fn spelled(dice: &mut Dice, set: &BTreeSet<u32>, min: u32, max: u32) -> String {
    if set.len() as u32 == max - min + 1 && dice.roll(2) == 0 {
        return "*".to_owned();
    }
    let mut pieces = Vec::new();
    let mut values = set.iter().copied().peekable();
    while let Some(first) = values.next() {
        let mut last = first;
        while dice.roll(4) > 0 && values.peek() == Some(&(last + 1)) {
            last += 1;
            values.next();
        }
        pieces.push(match first == last {
            true if dice.roll(4) == 0 => format!("0{first}"),
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
    }
    if dice.roll(3) == 0 {
        pieces.reverse();
        pieces.push(pieces[0].clone());
    }
    pieces.join(",")
}

impl Plain {
    fn random(dice: &mut Dice, with_seconds: bool) -> Self {
        let seconds = if with_seconds { dice.set(0, 59) } else { BTreeSet::from([0]) };
        let minutes = dice.set(0, 59);
        let hours = if dice.roll(3) == 0 { (0..24).collect() } else { dice.set(0, 23) };
        let (days, months, weekdays) = match dice.roll(4) {
            0 => (dice.set(1, 28), dice.set(1, 12), dice.set(0, 6)),
            1 => (dice.set(1, 28), (1..=12).collect(), (0..7).collect()),
            _ => ((1..=31).collect(), (1..=12).collect(), dice.set(0, 6)),
        };
        let day_text = spelled(dice, &days, 1, 31);
        let weekday_text = spelled(dice, &weekdays, 0, 6);
        let plus = dice.roll(4) == 0;
        let both = plus || day_text == "*" || weekday_text == "*";
        let mut text = [
            spelled(dice, &minutes, 0, 59),
            spelled(dice, &hours, 0, 23),
            day_text,
            spelled(dice, &months, 1, 12),
            format!("{}{weekday_text}", if plus { "+" } else { "" }),
        ]
        .join(" ");
        if with_seconds {
            text = format!("{} {text}", spelled(dice, &seconds, 0, 59));
        }
        Self { text, seconds, minutes, hours, days, months, weekdays, both }
    }

    fn names(&self, reading: DateTime) -> bool {
        let day = self.days.contains(&(reading.day() as u32));
        let weekday = self.weekdays.contains(&(reading.weekday().to_sunday_zero_offset() as u32));
        self.seconds.contains(&(reading.second() as u32))
            && self.minutes.contains(&(reading.minute() as u32))
            && self.hours.contains(&(reading.hour() as u32))
            && self.months.contains(&(reading.month() as u32))
            && if self.both { day && weekday } else { day || weekday }
    }

    fn is_elapsed(&self) -> bool {
        self.hours.len() == 24
    }
}

fn zones() -> Vec<(String, TimeZone)> {
    let table = TimeZoneDatabase::bundled();
    let names = table.available().map(|name| name.as_str().to_owned());
    let sound = names.filter(|name| Zone::parse(name).is_ok());
    sound.map(|name| (name.clone(), table.get(&name).unwrap())).collect()
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn rules() -> [Dst; 6] {
    [Gap::Run, Gap::Skip]
        .map(|gap| [Fold::First, Fold::Second, Fold::Both].map(|fold| Dst { gap, fold }))
        .concat()
        .try_into()
        .unwrap()
}

/// What the walk over every minute finds: label by instant, and the tally.
fn walk(
    plain: &Plain,
    zone: &TimeZone,
    dst: Dst,
    from: i64,
    to: i64,
) -> (BTreeMap<i64, String>, Tally) {
    let mut found = BTreeMap::new();
    let mut tally = Tally::default();
    let read = |at: i64| zone.to_datetime(second(at));
    let minutes = |reading: DateTime| Offset::UTC.to_timestamp(reading).unwrap().as_second() / 60;
    // A day of run-up and a day of outlook show which readings come twice.
    let (first, last) = (from - 90_000, to + 90_000);
    let mut times: BTreeMap<i64, u32> = BTreeMap::new();
    for at in (first..last).step_by(60) {
        *times.entry(minutes(read(at))).or_default() += 1;
    }
    let mut seen: BTreeMap<i64, u32> = BTreeMap::new();
    let mut before = minutes(read(first)) - 1;
    for at in (first..last).step_by(60) {
        let reading = read(at);
        let number = minutes(reading);
        let copy = *seen.entry(number).and_modify(|copies| *copies += 1).or_insert(1);
        let jumped = before + 1..number;
        before = number;
        if !(from..to).contains(&at) {
            continue;
        }
        if plain.is_elapsed() {
            if plain.names(reading) {
                found.insert(at, format!("{}Z", Offset::UTC.to_datetime(second(at))));
            }
            continue;
        }
        let regular = plain.names(reading)
            && match dst.fold {
                Fold::First => copy == 1,
                Fold::Second => copy == times[&number],
                Fold::Both => true,
            };
        if regular {
            let mark = if dst.fold == Fold::Both && copy == 2 { "#2" } else { "" };
            found.insert(at, format!("{reading}{mark}"));
        }
        let width = jumped.end - jumped.start;
        let skipped: Vec<DateTime> = jumped
            .map(|number| Offset::UTC.to_datetime(second(number * 60)))
            .filter(|reading| plain.names(*reading))
            .collect();
        if dst.gap == Gap::Skip || width > 180 {
            tally.lost += skipped.len() as u64;
        } else if let Some(latest) = skipped.last() {
            tally.merged += skipped.len() as u64 - u64::from(!regular);
            found.entry(at).or_insert_with(|| latest.to_string());
        }
    }
    tally.fires = found.len() as u64;
    (found, tally)
}

#[test]
fn a_walk_over_every_minute_of_a_change_agrees() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let start = "1973-01-01T00:00:00Z".parse::<Timestamp>().unwrap();
    let mut compared = 0;
    for (name, rules_of_zone) in zones() {
        let changes: Vec<i64> = rules_of_zone
            .following(start)
            .map(|change| change.timestamp().as_second())
            .take_while(|&at| at < 2_208_988_800)
            .filter(|at| at % 60 == 0)
            .collect();
        if changes.is_empty() {
            continue;
        }
        let middle = *dice.pick(&changes);
        let plain = Plain::random(&mut dice, false);
        let dst = *dice.pick(&rules());
        let (from, to) = (middle - 30 * 3_600, middle + 30 * 3_600);
        let what = format!("{:?} {name} {} {dst:?}", plain.text, second(middle));
        let timetable = Timetable::parse(&plain.text).unwrap_or_else(|e| panic!("{what} {e}"));
        assert_eq!(timetable.is_elapsed(), plain.is_elapsed(), "{what}");
        let recurrence =
            Recurrence::new(timetable, Zone::parse(&name).unwrap(), dst, Timestamp::UNIX_EPOCH);
        let (expected, tally) = walk(&plain, &rules_of_zone, dst, from, to);
        let found: BTreeMap<i64, String> = recurrence
            .between(second(from - 1), second(to - 1))
            .map(|fire| (fire.time.as_second(), fire.label.to_string()))
            .collect();
        assert_eq!(found, expected, "{what}");
        assert_eq!(recurrence.tally(second(from - 1), second(to - 1)), tally, "{what}");
        // Backwards, and instant by instant.
        let mut back = BTreeSet::new();
        let mut at = second(to);
        while let Some(fire) = recurrence.previous(at).filter(|f| f.time >= second(from)) {
            back.insert(fire.time.as_second());
            at = fire.time;
        }
        assert!(back.iter().eq(expected.keys()), "{what}");
        for at in (middle - 7_200..middle + 7_200).step_by(60) {
            let fires = recurrence.matches(second(at));
            assert_eq!(fires, expected.contains_key(&at), "{what} {}", second(at));
        }
        compared += expected.len();
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn every_expression_keeps_the_laws() {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let special = [
        "0 0 L * *",
        "0 3 LW * *",
        "30 2 L-2 * *",
        "0 2 1W,15W * *",
        "15 1 * * 0#2",
        "30 1 * * 0L",
        "0 0 29 2 *",
        "*/7 * * * *",
        "@hourly",
        "0 */2 * * *",
        "30 0-2 * 3,10,11 0",
        "@every 47m",
        "0 30 2 * * * 1970-2100/3",
    ];
    for (name, _) in zones() {
        for round in 0..8 {
            let text = match round {
                0..3 => (*dice.pick(&special)).to_owned(),
                _ => Plain::random(&mut dice, round == 3).text,
            };
            let dst = *dice.pick(&rules());
            // 1900 to 2150, at any nanosecond.
            let from = -2_208_988_800 + dice.roll(7_889_238_000) as i64;
            let from = Timestamp::new(from, dice.roll(2) as i32 * 500_000_000).unwrap();
            laws(&text, &name, dst, from);
        }
    }
}

fn laws(text: &str, zone: &str, dst: Dst, from: Timestamp) {
    let what = format!("{text:?} {zone} {dst:?} {from}");
    let timetable = Timetable::parse(text).unwrap_or_else(|error| panic!("{what} {error}"));
    let anchor = "1890-01-01T00:00:00Z".parse().unwrap();
    let recurrence = Recurrence::new(timetable, Zone::parse(zone).unwrap(), dst, anchor);
    let streamed: Vec<_> = recurrence.between(from, Timestamp::MAX).take(25).collect();
    let mut instant = from;
    let mut labels = BTreeSet::new();
    let mut merged = 0;
    for fire in &streamed {
        assert!(fire.time > instant, "{what} does not advance at {instant}");
        assert_eq!(recurrence.next_after(instant), Some(*fire), "{what}");
        assert_eq!(recurrence.at(fire.time), Some(*fire), "{what}");
        assert_eq!(fire.time.subsec_nanosecond(), 0, "{what}");
        assert!(labels.insert(fire.label), "{what} {} twice", fire.label);
        let resolved = recurrence.resolve(fire.label).unwrap_or_else(|| panic!("{what}"));
        assert_eq!((resolved.time, resolved.label), (fire.time, fire.label), "{what}");
        assert_eq!(fire.label.to_string().parse(), Ok(fire.label), "{what}");
        if instant != from {
            assert_eq!(recurrence.previous(fire.time).unwrap().time, instant, "{what}");
        }
        let just_after = fire.time.checked_add(SignedDuration::from_nanos(1)).unwrap();
        assert_eq!(recurrence.previous(just_after), Some(*fire), "{what}");
        assert!(!recurrence.matches(just_after), "{what}");
        merged += fire.merged.map_or(0, |labels| labels.count);
        instant = fire.time;
    }
    let tally = recurrence.tally(from, instant);
    assert_eq!((tally.fires, tally.merged), (streamed.len() as u64, merged), "{what}");
    let lost: u64 = recurrence.lost(from, instant).iter().map(|lost| lost.labels.count).sum();
    assert_eq!(tally.lost, lost, "{what}");
    // A stretch counted in two parts gives the same as in one.
    let later = instant.checked_add(SignedDuration::from_hours(9_000)).unwrap();
    let (left, right) = (tally, recurrence.tally(instant, later));
    let whole = recurrence.tally(from, later);
    assert_eq!(whole.labels(), left.labels() + right.labels(), "{what}");
}

/// A UTC clock for croner.
#[derive(Clone)]
struct Utc(Timestamp);

impl CronDateTime for Utc {
    fn to_civil(&self) -> CivilDateTime {
        let t = Offset::UTC.to_datetime(self.0);
        CivilDateTime::new(
            CivilDate::from_parts_unchecked(t.year().into(), t.month() as u32, t.day() as u32),
            CivilTime::from_parts_unchecked(t.hour() as u32, t.minute() as u32, t.second() as u32),
        )
    }

    fn civil_weekday(&self) -> croner::Weekday {
        let days = Offset::UTC.to_datetime(self.0).weekday().to_sunday_zero_offset();
        croner::Weekday::from_days_from_sunday(days as u32)
    }

    fn resolve_civil(&self, t: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let (month, day) = (t.month() as i8, t.day() as i8);
        let time = DateTime::new(
            t.year() as i16,
            month,
            day,
            t.hour() as i8,
            t.minute() as i8,
            t.second() as i8,
            0,
        );
        Ok(Resolution::Single(Self(Offset::UTC.to_timestamp(time.unwrap()).unwrap())))
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Self)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

#[test]
fn croner_agrees_on_ordinary_days() {
    let mut dice = Dice(0xd134_2543_de82_ef95);
    let items = |dice: &mut Dice, words: &[&str]| (*dice.pick(words)).to_owned();
    for _ in 0..1_500 {
        let minute = items(&mut dice, &["0", "*/7", "5-40/9", "1,2,58", "*", "59"]);
        let hour = items(&mut dice, &["0", "*/5", "9-17", "23,1", "*", "3-20/4"]);
        let (day, weekday) = match dice.roll(3) {
            0 => (
                items(&mut dice, &["L", "LW", "15W", "1W", "31", "29", "1,L", "10-20/3"]),
                "*".to_owned(),
            ),
            1 => (
                "*".to_owned(),
                items(&mut dice, &["MON-FRI", "0", "7", "FRI#2", "5L", "SAT,SUN", "1#1,3#3"]),
            ),
            _ => (
                items(&mut dice, &["1,15", "13", "28-31", "7-14"]),
                items(&mut dice, &["5", "MON,WED", "1-5/2"]),
            ),
        };
        let month = items(&mut dice, &["*", "2", "JAN-MAR", "*/5", "6,12", "FEB,NOV"]);
        let text = format!("{minute} {hour} {day} {month} {weekday}");
        // Days that a month never has: croner finds out only by searching.
        let Ok(ours) = Timetable::parse(&text) else { continue };
        let theirs: croner::Cron = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        let ours = Recurrence::new(ours, Zone::utc(), Dst::default(), Timestamp::UNIX_EPOCH);
        let mut instant = second(1_600_000_000 + dice.roll(900_000_000) as i64);
        for _ in 0..5 {
            let found = theirs.find_next_occurrence(&Utc(instant), false);
            let Utc(expected) = found.unwrap_or_else(|error| panic!("{text}: {error}"));
            let time = ours.next_after(instant).map(|fire| fire.time);
            assert_eq!(time, Some(expected), "{text} after {instant}");
            instant = expected;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever is written is either read, and then read back as the same, or refused in one line
    /// that points into the text.
    #[test]
    fn any_text_is_read_or_refused(
        text in prop_oneof![
            "[0-9*/,\\-LW#?+ ]{0,40}",
            prop::collection::vec(
                "[0-9]{1,2}|\\*|\\*/[0-9]{1,2}|[0-9]-[0-9]{1,2}|L|LW|L-[0-9]|[0-9][WL]|[0-9]#[0-9]",
                5..8,
            )
            .prop_map(|fields| fields.join(" ")),
            "@(every|at|daily|yearly) ?[0-9a-zT:. -]{0,20}",
            "\\PC{0,40}",
        ],
        after in -62_000_000_000i64..250_000_000_000,
    ) {
        match Timetable::parse(&text) {
            Ok(timetable) => {
                let again = Timetable::parse(timetable.as_str());
                prop_assert_eq!(again.as_ref(), Ok(&timetable));
                let zone = Zone::parse("America/New_York").unwrap();
                let anchor = Timestamp::UNIX_EPOCH;
                let recurrence = Recurrence::new(timetable, zone, Dst::default(), anchor);
                if let Some(fire) = recurrence.next_after(second(after)) {
                    prop_assert!(fire.time > second(after));
                    prop_assert!(recurrence.matches(fire.time));
                }
            }
            Err(error) => {
                prop_assert!(text.get(error.span.clone()).is_some(), "{:?}", error.span);
                let shown = error.to_string();
                prop_assert!(!shown.chars().any(char::is_control) && shown.len() < 500);
            }
        }
        if let Err(error) = Zone::parse(&text) {
            prop_assert!(!error.to_string().chars().any(char::is_control));
        }
        if let Ok(label) = text.parse::<Label>() {
            prop_assert_eq!(label.to_string(), text);
        }
    }
}

/// Set for the copy of this test that runs under another zone of the host.
const CHILD: &str = "MATINS_TEST_CRON_CHILD";

#[test]
fn the_zone_of_the_host_changes_nothing() {
    let report: String = [
        ("0 0 * * * *", "UTC", "2025-10-05T02:00:00Z"),
        ("30 1 * * *", "UTC", "2026-10-24T12:00:00Z"),
        ("30 2 * * *", "America/New_York", "2027-03-13T12:00:00Z"),
        ("@at 2027-01-01T09:00", "Asia/Shanghai", "2026-11-29T00:00:00Z"),
        ("*/30 * * * *", "Australia/Lord_Howe", "2026-04-04T13:45:00Z"),
    ]
    .iter()
    .flat_map(|(text, zone, after)| {
        let timetable = Timetable::parse(text).unwrap();
        let zone = Zone::parse(zone).unwrap();
        let recurrence = Recurrence::new(timetable, zone, Dst::default(), Timestamp::UNIX_EPOCH);
        let shown = matins_core::cron::preview(&recurrence, after.parse().unwrap(), 3);
        shown.into_iter().map(|fire| format!("{} {};", fire.utc, fire.local)).collect::<Vec<_>>()
    })
    .collect();
    if std::env::var_os(CHILD).is_some() {
        println!("report={report}");
        return;
    }
    assert!(report.starts_with("2025-10-05T03:00:00Z"), "{report}");
    for zone in ["UTC", "Australia/Sydney", "Europe/London", "America/St_Johns", "Asia/Kolkata"] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_zone_of_the_host_changes_nothing", "--nocapture"])
            .env("TZ", zone)
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("report={report}")), "TZ={zone}: {text}");
    }
}
