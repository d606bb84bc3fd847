//! Random schedules under random clocks: whatever happens, every occurrence is decided exactly
//! once and every decision is small.

#[path = "cases/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::cron::{Dst, Fold, Gap};
use matins_core::duration::Span;
use matins_core::schedule::*;
use proptest::prelude::*;
use world::{World, at, plus, spec};

/// What happens next to a schedule.
#[derive(Debug, Clone)]
enum Event {
    /// Time passes, with a look at the end: a beat, a night, a month of downtime.
    Pass(i64),
    /// The clock is set back.
    Back(i64),
    Pause,
    Resume,
    Freeze(bool),
    Edit(Box<ScheduleSpec>),
    /// All tasks end; as many of them badly.
    Finish(u32),
}

const EXPRESSIONS: [&str; 14] = [
    "* * * * *",
    "*/20 * * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "*/15 1-3 * * *",
    "0 */2 * * *",
    "0 0 * * MON",
    "0 0 L * *",
    "@hourly",
    "@daily",
    "@every 13m",
    "@every 25h",
    "15,45 2 * 3,10,11 0",
    "0 0 0 1 1 * 2026-2032",
];

const ZONES: [&str; 9] = [
    "UTC",
    "Asia/Shanghai",
    "America/New_York",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Africa/Casablanca",
    "America/St_Johns",
    "Pacific/Apia",
];

prop_compose! {
    fn any_spec()(
        expression in 0..EXPRESSIONS.len(),
        zone in 0..ZONES.len(),
        catch_up in prop_oneof![Just(CatchUp::Latest), Just(CatchUp::All), Just(CatchUp::None)],
        window in prop_oneof![
            3 => Just(CatchUpWindow::Auto),
            1 => (0u64..200_000).prop_map(|s| CatchUpWindow::Within(Span::secs(s))),
        ],
        catch_up_max in 1u32..200,
        grace in prop_oneof![Just(60u64), 1u64..10_000],
        overlap in prop_oneof![
            Just(Overlap::Skip), Just(Overlap::BufferOne), Just(Overlap::BufferAll),
            Just(Overlap::CancelPrevious), Just(Overlap::Allow),
        ],
        gap in prop_oneof![Just(Gap::Run), Just(Gap::Skip)],
        fold in prop_oneof![Just(Fold::First), Just(Fold::Second), Just(Fold::Both)],
        on_resume in prop_oneof![Just(OnResume::Skip), Just(OnResume::Latest), Just(OnResume::All)],
        jitter in prop_oneof![Just(0u64), 1u64..100_000],
        black in prop_oneof![
            3 => Just(Vec::new()),
            1 => Just(vec![("22:00", "06:00")]),
            1 => Just(vec![("01:30", "02:30"), ("2026-12-24T00:00", "2026-12-27T00:00")]),
        ],
        bounds in prop_oneof![
            4 => Just((None, None)),
            1 => (0i64..90).prop_map(|day| (Some(day), None)),
            1 => (90i64..400).prop_map(|day| (None, Some(day))),
        ],
        pause_after_failures in prop_oneof![3 => Just(0u32), 1 => 1u32..4],
    ) -> ScheduleSpec {
        let origin = at("2026-10-20T00:00:00Z");
        ScheduleSpec {
            timezone: Some(ZONES[zone].to_owned()),
            catch_up,
            catch_up_window: window,
            catch_up_max,
            grace: Span::secs(grace),
            overlap,
            overlap_max: 5,
            dst: Dst { gap, fold },
            on_resume,
            jitter: Span::secs(jitter),
            blackout: black
                .into_iter()
                .map(|(from, to)| Blackout { from: from.to_owned(), to: to.to_owned() })
                .collect(),
            start: bounds.0.map(|day| plus(origin, day * 86_400)),
            end: bounds.1.map(|day| plus(origin, day * 86_400)),
            pause_after_failures,
            ..spec(EXPRESSIONS[expression])
        }
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => prop_oneof![
            0i64..200, 0i64..5_000, Just(3_600), Just(86_400), 0i64..200_000, 0i64..8_000_000,
        ].prop_map(Event::Pass),
        2 => prop_oneof![1i64..10, 1i64..20_000, 1i64..2_000_000].prop_map(Event::Back),
        1 => Just(Event::Pause),
        2 => Just(Event::Resume),
        1 => any::<bool>().prop_map(Event::Freeze),
        2 => any_spec().prop_map(|spec| Event::Edit(Box::new(spec))),
        4 => (0u32..3).prop_map(Event::Finish),
    ]
}

/// A clock read in microseconds, so that fires never fall together with a look by chance alone.
fn moment() -> impl Strategy<Value = Timestamp> {
    (0i64..30_000_000, 0i32..1_000).prop_map(|(second, milli)| {
        let origin = at("2026-10-20T00:00:00Z").as_second();
        Timestamp::new(origin + second, milli * 1_000_000).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_occurrence_is_decided_once(
        first in any_spec(),
        start in moment(),
        events in prop::collection::vec(any_event(), 1..25),
    ) {
        let Ok(mut world) = World::try_new(first, start) else { return Ok(()) };
        let mut now = start;
        let mut epochs = world.state.epoch;
        for event in events {
            let cursor = world.state.cursor;
            let began = Instant::now();
            match event {
                Event::Pass(seconds) => now = plus(now, seconds),
                Event::Back(seconds) => {
                    now = plus(now, -seconds);
                    world.clock_stepped(now);
                }
                Event::Pause => world.pause(now),
                Event::Resume => world.resume(now),
                Event::Freeze(frozen) => world.frozen = frozen,
                Event::Edit(spec) => {
                    let _ = world.edit(*spec, now);
                }
                Event::Finish(failures) => {
                    world.live = Live { failures_in_row: failures, ..Live::default() };
                }
            }
            world.tick_at(now);
            prop_assert!(began.elapsed() < Duration::from_secs(5));
            // The cursor moves back with the clock alone, and then a new epoch begins.
            if world.state.cursor < cursor {
                prop_assert!(world.state.epoch > epochs);
            }
            epochs = world.state.epoch;
            check(&world, now)?;
        }
    }
}

fn check(world: &World, now: Timestamp) -> Result<(), TestCaseError> {
    let state = &world.state;
    match state.status {
        ScheduleStatus::Active => prop_assert!(state.next_due.is_some_and(|due| due > now)),
        _ => prop_assert!(state.next_due.is_none(), "{:?}", state.status),
    }
    prop_assert!(state.cursor <= state.high_water);
    // No label fires twice, nor in two epochs.
    let mut labels = BTreeSet::new();
    let mut times: BTreeMap<(Timestamp, String), u32> = BTreeMap::new();
    for occurrence in &world.occurrences {
        if occurrence.outcome == OccurrenceOutcome::Fired {
            let plain = occurrence.label.split("#e").next().unwrap_or_default().to_owned();
            prop_assert!(labels.insert(plain.clone()), "{} fired twice", occurrence.label);
            *times.entry((occurrence.time, plain)).or_default() += 1;
        }
        prop_assert!(occurrence.count > 0);
    }
    prop_assert!(times.values().all(|count| *count == 1));
    for task in &world.tasks {
        let origin = task.origin.as_ref().unwrap();
        prop_assert!(labels.contains(origin.label.split("#e").next().unwrap_or_default()));
    }
    Ok(())
}

/// The balance against the timetable itself, without steps and edits.
#[test]
fn the_balance_is_that_of_the_timetable() {
    for expression in EXPRESSIONS {
        for zone in ZONES {
            let spec = ScheduleSpec { timezone: Some(zone.to_owned()), ..spec(expression) };
            let start = at("2026-10-20T12:00:00.5Z");
            let mut world = World::try_new(spec, start).unwrap();
            let mut now = start;
            for seconds in [59, 3_000, 86_400, 40, 5_000_000, 7, 9_000_000, 61, 3_600] {
                now = plus(now, seconds);
                world.tick_at(now);
                world.finish_tasks();
            }
            // Look once more past the next occurrence, so that the cursor has seen everything.
            if let Some(due) = world.state.next_due {
                world.tick_at(due);
            }
            let counted = world.prepared().recurrence().tally(start, world.state.cursor);
            assert_eq!(world.state.balance.expected, counted.labels(), "{expression} {zone}");
        }
    }
}
