//! What one look at a schedule decides, case by case.

#[path = "cases/world.rs"]
mod world;

use std::time::{Duration, Instant};

use matins_core::duration::Span;
use matins_core::limits::Limits;
use matins_core::schedule::*;
use matins_core::{Json, State};
use uuid::Uuid;
use world::{World, at, plus, spec};

fn blackout(from: &str, to: &str) -> Blackout {
    Blackout { from: from.to_owned(), to: to.to_owned() }
}

#[test]
fn a_due_occurrence_fires_once_and_the_next_is_armed() {
    let mut world = World::new(spec("0 2 * * *"), "2026-11-28T12:00:00.5Z");
    assert_eq!(world.state.next_due, Some(at("2026-11-29T02:00:00Z")));
    world.tick("2026-11-29T01:59:59.999Z");
    assert!(world.occurrences.is_empty(), "nothing fires before its mark");
    world.tick("2026-11-29T02:00:00.01Z").tick("2026-11-29T02:00:00.02Z");
    assert_eq!(world.story(0), ["2026-11-29T02:00:00 fired"]);
    let occurrence = &world.occurrences[0];
    assert_eq!(occurrence.time, at("2026-11-29T02:00:00Z"));
    assert_eq!(occurrence.fired_at, Some(at("2026-11-29T02:00:00.01Z")));
    assert_eq!(world.state.next_fire, Some(at("2026-11-30T02:00:00Z")));
    let task = &world.tasks[0];
    assert_eq!(&*task.created_by, "schedule:tick");
    assert_eq!(task.origin.as_ref().unwrap().time, occurrence.time);
}

/// A timer that wakes early, and then at the mark: one run, and next from the mark.
#[test]
fn an_early_wake_up_fires_nothing() {
    let mut world = World::new(spec("0 4 * * *"), "2026-11-29T00:00:00Z");
    for now in ["2026-11-29T03:59:53Z", "2026-11-29T03:59:59.07Z", "2026-11-29T04:00:00Z"] {
        world.tick(now);
    }
    world.finish_tasks();
    world.tick("2026-11-29T04:00:00.93Z");
    assert_eq!(world.story(0), ["2026-11-29T04:00:00 fired"]);
    assert_eq!(world.state.next_due, Some(at("2026-11-30T04:00:00Z")));
}

/// A restart over the mark: late within grace, late within the window, and too late.
#[test]
fn a_mark_during_a_deploy_is_not_swallowed() {
    let mut world = World::new(spec("0 12 * * *"), "2026-11-28T13:00:00Z");
    world.tick("2026-11-29T12:00:20Z");
    assert_eq!(world.story(0), ["2026-11-29T12:00:00 fired"]);
    world.finish_tasks();
    world.tick("2026-11-30T15:00:00Z");
    assert_eq!(world.story(1), ["2026-11-30T12:00:00 fired"]);

    let mut strict = spec("0 12 * * *");
    strict.catch_up_window = CatchUpWindow::Within(Span::secs(3_600));
    let mut world = World::new(strict, "2026-11-28T13:00:00Z");
    world.tick("2026-11-29T13:00:01Z");
    assert_eq!(world.story(0), ["2026-11-29T12:00:00 missed(window)"]);
    assert!(world.tasks.is_empty());
}

/// Thirty days of missed minutes: computed, not enumerated.
#[test]
fn a_month_of_downtime() {
    let start = at("2026-10-30T12:00:00Z");
    let now = at("2026-11-29T12:00:00.4Z");
    let mut sums = Vec::new();
    for catch_up in [CatchUp::Latest, CatchUp::All, CatchUp::None] {
        let mut world =
            World::try_new(ScheduleSpec { catch_up, ..spec("* * * * *") }, start).unwrap();
        world.tick_at(now);
        assert_eq!(world.state.balance.expected, 43_200);
        sums.push(world.sums().into_iter().map(|(k, n)| format!("{k}={n}")).collect::<Vec<_>>());
        world.finish_tasks();
        let before = world.occurrences.len();
        world.tick_at(plus(now, 60));
        assert_eq!(world.story(before), ["2026-11-29T12:01:00Z fired"]);
    }
    // The mark of this very minute is on time; of those before it 1 439 lie within 24 hours.
    assert_eq!(sums[0], ["coalesced(newer)=1439", "fired=1", "missed(window)=41760"]);
    // Overlap is judged after: the first of a hundred runs, and holds the rest.
    assert_eq!(
        sums[1],
        ["fired=1", "missed(limit)=1339", "missed(window)=41760", "skipped(overlap)=100"]
    );
    assert_eq!(sums[2], ["fired=1", "missed(catch_up_none)=43199"]);

    let mut all = ScheduleSpec { catch_up: CatchUp::All, ..spec("* * * * *") };
    all.overlap = Overlap::Allow;
    let mut world = World::try_new(all, start).unwrap();
    world.tick_at(now);
    assert_eq!(world.tasks.len(), 101, "a hundred late ones, oldest first, and the one on time");
    assert_eq!(world.tasks[0].origin.as_ref().unwrap().label, "2026-11-29T10:20:00Z");

    let worlds: Vec<World> =
        (0..1_000).map(|_| World::try_new(spec("* * * * *"), start).unwrap()).collect();
    let started = Instant::now();
    for mut world in worlds {
        world.tick_at(now);
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn the_window_covers_one_period() {
    // Three months of downtime: the last month is made up for, the others are not.
    let mut world = World::new(spec("0 2 1 * *"), "2026-08-15T00:00:00Z");
    world.tick("2026-11-29T00:00:00Z");
    assert_eq!(
        world.story(0),
        ["2026-09-01T02:00:00..2026-10-01T02:00:00 x2 missed(window)", "2026-11-01T02:00:00 fired"]
    );
    // The last occurrence of all, after a weekend: one day is the window of what has no period.
    let mut world = World::new(spec("@at 2026-11-28T09:00"), "2026-11-27T00:00:00Z");
    world.tick("2026-11-29T08:59:59Z");
    assert_eq!(world.story(0), ["2026-11-28T09:00:00 fired"]);
    assert_eq!(world.state.status, ScheduleStatus::Exhausted);
    let mut world = World::new(spec("@at 2026-11-28T09:00"), "2026-11-27T00:00:00Z");
    world.tick("2026-11-29T09:00:01Z");
    assert_eq!(world.story(0), ["2026-11-28T09:00:00 missed(window)"]);
    assert_eq!((world.state.status, world.state.next_due), (ScheduleStatus::Exhausted, None));
}

/// A paused machine: the job that came due meanwhile fires on waking.
#[test]
fn a_sleep_is_a_downtime() {
    let mut world = World::new(spec("@at 2026-11-29T12:01"), "2026-11-29T12:00:00Z");
    world.tick("2026-11-29T12:01:30Z");
    assert_eq!(world.story(0), ["2026-11-29T12:01:00 fired"]);
    // One hour forward in a step.
    let mut world = World::new(spec("*/10 * * * *"), "2026-11-29T12:00:00Z");
    world.tick("2026-11-29T13:00:05Z");
    assert_eq!(
        world.story(0),
        [
            "2026-11-29T12:10:00Z..2026-11-29T12:50:00Z x5 coalesced(newer)",
            "2026-11-29T13:00:00Z fired"
        ]
    );
}

/// Two hours ahead for three marks, then back.
#[test]
fn a_clock_set_back_stops_nothing_and_repeats_nothing() {
    let mut world = World::new(spec("* * * * *"), "2026-11-29T12:00:30Z");
    for now in ["2026-11-29T14:00:30Z", "2026-11-29T14:01:00Z", "2026-11-29T14:02:00Z"] {
        world.tick(now);
        world.finish_tasks();
    }
    assert_eq!(world.sums()["fired"], 3);
    assert_eq!(world.sums()["coalesced(newer)"], 119);
    let before = world.occurrences.len();

    world.clock_stepped(at("2026-11-29T12:03:20Z"));
    assert_eq!((world.state.epoch, world.state.next_due), (1, Some(at("2026-11-29T12:04:00Z"))));
    let mut now = at("2026-11-29T12:04:00Z");
    while now < at("2026-11-29T14:05:00Z") {
        world.tick_at(now);
        world.finish_tasks();
        now = plus(now, 60);
    }
    let story = world.story(before);
    assert_eq!(story[0], "2026-11-29T12:04:00Z#e1 fired");
    assert!(!story.iter().any(|line| line.starts_with("2026-11-29T14:00:00Z")), "fired before");
    assert_eq!(
        story[story.len() - 2..],
        ["2026-11-29T14:03:00Z fired", "2026-11-29T14:04:00Z fired"]
    );
    // 12:04 to 13:59 anew, 14:03 and 14:04.
    assert_eq!(story.len(), 116 + 2);

    // A wall-clock schedule waits until its clock passes the cursor.
    let mut world = World::new(spec("0 13,15 * * *"), "2026-11-29T12:00:30Z");
    world.tick("2026-11-29T14:00:30Z");
    world.finish_tasks();
    assert_eq!(world.story(0), ["2026-11-29T13:00:00 fired"]);
    world.clock_stepped(at("2026-11-29T12:03:20Z"));
    world.tick("2026-11-29T13:00:00Z").tick("2026-11-29T14:30:00Z");
    assert_eq!(world.occurrences.len(), 1);
    world.tick("2026-11-29T15:00:00Z");
    assert_eq!(world.story(1), ["2026-11-29T15:00:00 fired"]);
}

#[test]
fn a_beat_survives_a_clock_that_was_ahead_when_it_began() {
    let mut world = World::new(spec("@every 10m"), "2026-11-29T14:03:07Z");
    world.tick("2026-11-29T14:13:07Z");
    world.finish_tasks();
    world.clock_stepped(at("2026-11-29T12:00:00Z"));
    assert_eq!(world.state.next_due, Some(at("2026-11-29T12:03:07Z")), "the same beat, earlier");
    world.tick("2026-11-29T12:03:07Z");
    assert_eq!(world.story(1), ["2026-11-29T12:03:07Z#e1 fired"]);
    // Two seconds are no step.
    let mut world = World::new(spec("* * * * *"), "2026-11-29T12:00:00Z");
    world.clock_stepped(at("2026-11-29T11:59:58Z"));
    assert_eq!(world.state.epoch, 0);
}

/// An interval keeps its anchor over restarts, pauses and reloads.
#[test]
fn an_interval_does_not_drift() {
    let mut world = World::new(spec("@every 10m"), "2026-11-29T12:00:03.9Z");
    let start = at("2026-11-29T12:00:03Z");
    let mut now = start;
    for minute in 1..=1_000 {
        now = plus(start, minute * 60);
        world.tick_at(plus(now, minute % 7));
        world.finish_tasks();
        if minute % 40 == 0 {
            world.pause(plus(now, 8));
            world.resume(plus(now, 9));
            let same = world.state.spec.clone();
            world.edit(same, plus(now, 9)).unwrap();
        }
    }
    assert_eq!(world.sums(), [("fired".to_owned(), 100)].into());
    for (n, occurrence) in (1..).zip(&world.occurrences) {
        assert_eq!(occurrence.time, plus(start, n * 600));
    }
    // Another interval begins anew.
    world.edit(spec("@every 7m"), now).unwrap();
    assert_eq!(world.state.next_fire, Some(plus(now, 420)));
}

#[test]
fn five_ways_to_overlap() {
    let run = |overlap: Overlap, live: Live| {
        let mut world = World::new(
            ScheduleSpec { overlap, overlap_max: 3, ..spec("0 * * * *") },
            "2026-11-29T00:30:00Z",
        );
        world.live = live;
        world.tick("2026-11-29T01:00:00Z");
        let held = world.tasks.first().map(|task| task.held);
        (world.story(0)[0].clone(), held, world.cancelled)
    };
    let busy = Live { active: 1, held: 0, failures_in_row: 0 };
    let buffered = |held| Live { active: 1, held, failures_in_row: 0 };
    let fired = "2026-11-29T01:00:00Z fired".to_owned();
    let skipped = "2026-11-29T01:00:00Z skipped(overlap)".to_owned();
    for overlap in [
        Overlap::Skip,
        Overlap::BufferOne,
        Overlap::BufferAll,
        Overlap::CancelPrevious,
        Overlap::Allow,
    ] {
        assert_eq!(
            run(overlap, Live::default()),
            (fired.clone(), Some(false), false),
            "{overlap:?}"
        );
    }
    assert_eq!(run(Overlap::Skip, busy), (skipped.clone(), None, false));
    assert_eq!(run(Overlap::BufferOne, busy), (fired.clone(), Some(true), false));
    assert_eq!(run(Overlap::BufferOne, buffered(1)), (skipped.clone(), None, false));
    assert_eq!(run(Overlap::BufferAll, buffered(2)), (fired.clone(), Some(true), false));
    assert_eq!(run(Overlap::BufferAll, buffered(3)), (skipped, None, false));
    assert_eq!(run(Overlap::CancelPrevious, busy), (fired.clone(), Some(true), true));
    assert_eq!(run(Overlap::Allow, busy), (fired, Some(false), false));

    // Several in one look: each would only cancel the one before it.
    let mut replace = spec("* * * * * *");
    replace.overlap = Overlap::CancelPrevious;
    let mut world = World::new(replace, "2026-11-29T00:00:00Z");
    world.tick("2026-11-29T00:00:05Z");
    assert_eq!(
        world.story(0),
        [
            "2026-11-29T00:00:01Z..2026-11-29T00:00:04Z x4 skipped(overlap)",
            "2026-11-29T00:00:05Z fired"
        ]
    );
    assert!(!world.cancelled);
}

#[test]
fn jitter_spreads_and_never_reaches_the_next_slot() {
    let mut jittery = spec("*/5 * * * *");
    jittery.jitter = Span::secs(3_600);
    jittery.overlap = Overlap::Allow;
    let mut world = World::new(jittery.clone(), "2026-11-29T00:00:00Z");
    let mut delays = Vec::new();
    for n in 1..=288 {
        let mark = plus(at("2026-11-29T00:00:00Z"), n * 300);
        world.tick_at(mark);
        let task = world.tasks.last().unwrap();
        assert_eq!(task.origin.as_ref().unwrap().time, mark, "the label stays nominal");
        delays.push(task.run_at.duration_since(mark).as_millis() as i64);
    }
    assert!(delays.iter().all(|delay| (0..300_000).contains(delay)));
    let mean = delays.iter().sum::<i64>() / 288;
    assert!((110_000..190_000).contains(&mean), "{mean}");
    // The same schedule and label have the same share, whenever it is asked.
    let mut again = World::new(jittery, "2026-11-29T00:00:00Z");
    again.tick("2026-11-29T00:05:00Z");
    assert_eq!(again.tasks[0].run_at, world.tasks[0].run_at);
    // What is late already waits no longer.
    let mut late = World::new(
        ScheduleSpec { jitter: Span::secs(30), ..spec("0 2 * * *") },
        "2026-11-28T00:00:00Z",
    );
    late.tick("2026-11-28T05:00:00Z");
    assert_eq!(late.tasks[0].run_at, at("2026-11-28T05:00:00Z"));
}

#[test]
fn a_pause_is_a_decision_not_a_miss() {
    let paused = |on_resume: OnResume| {
        let mut schedule = ScheduleSpec { on_resume, ..spec("0 * * * *") };
        schedule.overlap = Overlap::Allow;
        let mut world = World::new(schedule, "2026-11-29T00:30:00Z");
        world.tick("2026-11-29T01:00:00Z");
        world.pause(at("2026-11-29T01:10:00Z"));
        assert_eq!(world.state.status, ScheduleStatus::Paused);
        assert_eq!(world.state.spec.note.as_deref(), Some("deploy"));
        assert_eq!((world.state.next_due, world.state.next_fire), (None, None));
        world.tick("2026-11-29T03:00:00Z");
        assert_eq!(world.occurrences.len(), 1);
        world.resume(at("2026-11-29T04:00:20Z"));
        assert_eq!(world.state.status, ScheduleStatus::Active);
        assert_eq!(world.state.next_due, Some(at("2026-11-29T05:00:00Z")));
        world.story(1)
    };
    assert_eq!(
        paused(OnResume::Skip),
        ["2026-11-29T02:00:00Z..2026-11-29T04:00:00Z x3 skipped(paused)"]
    );
    assert_eq!(
        paused(OnResume::Latest),
        [
            "2026-11-29T02:00:00Z..2026-11-29T03:00:00Z x2 coalesced(newer)",
            "2026-11-29T04:00:00Z fired"
        ]
    );
    assert_eq!(
        paused(OnResume::All),
        ["2026-11-29T02:00:00Z fired", "2026-11-29T03:00:00Z fired", "2026-11-29T04:00:00Z fired"]
    );
}

#[test]
fn failures_in_a_row_pause_it() {
    let mut careful = spec("0 * * * *");
    careful.pause_after_failures = 3;
    let mut world = World::new(careful, "2026-11-29T00:30:00Z");
    world.live.failures_in_row = 2;
    world.tick("2026-11-29T01:00:00Z");
    assert_eq!(world.story(0), ["2026-11-29T01:00:00Z fired"]);
    world.live = Live { failures_in_row: 3, ..Live::default() };
    world.tick("2026-11-29T02:00:00Z");
    assert_eq!(world.state.status, ScheduleStatus::Paused);
    assert_eq!(world.state.spec.note.as_deref(), Some("paused after 3 failures in a row"));
    // A person has looked at those: the count starts again.
    world.resume(at("2026-11-29T02:30:00Z"));
    assert_eq!(world.story(1), ["2026-11-29T02:00:00Z skipped(paused)"]);
    world.tick("2026-11-29T03:00:00Z");
    world.live = Live { failures_in_row: 5, ..Live::default() };
    world.tick("2026-11-29T04:00:00Z");
    assert_eq!(world.state.balance.fired, 3);
    world.live = Live { failures_in_row: 6, ..Live::default() };
    world.tick("2026-11-29T05:00:00Z");
    assert_eq!(world.state.status, ScheduleStatus::Paused);
}

#[test]
fn a_freeze_skips() {
    let mut world = World::new(spec("0 * * * *"), "2026-11-29T00:30:00Z");
    world.frozen = true;
    world.tick("2026-11-29T01:00:00Z").tick("2026-11-29T03:30:00Z");
    world.frozen = false;
    world.tick("2026-11-29T04:00:00Z");
    assert_eq!(
        world.story(0),
        [
            "2026-11-29T01:00:00Z skipped(frozen)",
            "2026-11-29T02:00:00Z..2026-11-29T03:00:00Z x2 skipped(frozen)",
            "2026-11-29T04:00:00Z fired"
        ]
    );
}

#[test]
fn blackouts_are_judged_on_the_nominal_time() {
    let mut quiet = spec("0 */4 * * *");
    quiet.timezone = Some("Europe/Berlin".to_owned());
    quiet.blackout =
        vec![blackout("22:00", "06:00"), blackout("2026-12-24T00:00", "2026-12-27T00:00")];
    let mut world = World::new(quiet.clone(), "2026-11-29T18:00:00Z");
    assert_eq!(world.state.next_fire, Some(at("2026-11-29T19:00:00Z")));
    world.tick("2026-11-29T19:00:00Z");
    world.finish_tasks();
    // Berlin midnight and four o'clock are black, eight o'clock is not.
    assert_eq!(world.state.next_due, Some(at("2026-11-29T23:00:00Z")));
    assert_eq!(world.state.next_fire, Some(at("2026-11-30T07:00:00Z")));
    world.tick("2026-11-29T23:00:00Z").tick("2026-11-30T07:00:00Z");
    assert_eq!(
        world.story(0),
        [
            "2026-11-29T20:00:00 fired",
            "2026-11-30T00:00:00 skipped(blackout)",
            "2026-11-30T04:00:00 skipped(blackout)",
            "2026-11-30T08:00:00 fired"
        ]
    );
    // A downtime over Christmas: the newest that is not black fires.
    let mut world = World::new(quiet, "2026-12-23T20:00:00Z");
    world.tick("2026-12-27T04:00:00Z");
    assert_eq!(world.story(0), ["2026-12-24T00:00:00..2026-12-27T04:00:00 x20 skipped(blackout)"]);
    world.tick("2026-12-27T12:00:00Z");
    assert_eq!(
        world.story(1),
        ["2026-12-27T08:00:00 coalesced(newer)", "2026-12-27T12:00:00 fired"]
    );
}

#[test]
fn start_and_end() {
    let mut bounded = spec("0 * * * *");
    bounded.start = Some(at("2026-11-29T02:00:00Z"));
    bounded.end = Some(at("2026-11-29T04:00:00Z"));
    let mut world = World::new(bounded.clone(), "2026-11-29T00:30:00Z");
    assert_eq!(world.state.next_due, Some(at("2026-11-29T02:00:00Z")), "start is included");
    world.tick("2026-11-29T02:00:00Z");
    world.finish_tasks();
    world.tick("2026-11-29T03:00:00Z");
    assert_eq!(world.state.status, ScheduleStatus::Exhausted, "end is not");
    assert_eq!(world.state.balance.expected, 2);
    // Whatever a downtime left over when it ended.
    let mut world = World::new(bounded.clone(), "2026-11-29T00:30:00Z");
    world.tick("2026-11-29T05:00:00Z");
    assert_eq!(world.story(0), ["2026-11-29T02:00:00Z..2026-11-29T03:00:00Z x2 skipped(ended)"]);
    assert_eq!(world.state.status, ScheduleStatus::Exhausted);
    let error = World::try_new(bounded, at("2026-11-29T03:30:00Z")).err().unwrap();
    assert_eq!((error.code, error.field.as_str()), ("never_fires", "end"));
}

#[test]
fn labels_of_a_gap_are_accounted_for() {
    let mut gap = spec("15,45 2 * * *");
    gap.timezone = Some("America/New_York".to_owned());
    let mut world = World::new(gap, "2027-03-14T05:00:00Z");
    world.tick("2027-03-14T07:00:00Z");
    assert_eq!(
        world.story(0),
        ["2027-03-14T02:45:00 fired", "2027-03-14T02:15:00 coalesced(same_instant)"]
    );
    let mut apia = spec("0 9 * * *");
    apia.timezone = Some("Pacific/Apia".to_owned());
    let mut world = World::new(apia, "2011-12-29T00:00:00Z");
    world.tick("2011-12-29T19:00:00Z");
    world.finish_tasks();
    world.tick("2011-12-30T19:00:00Z");
    assert_eq!(
        world.story(0),
        [
            "2011-12-29T09:00:00 fired",
            "2011-12-30T09:00:00 skipped(zone_change)",
            "2011-12-31T09:00:00 fired"
        ]
    );
    assert_eq!(world.state.balance.expected, 3);
}

#[test]
fn a_skipped_gap_is_recorded_in_its_place() {
    let mut nightly = spec("30 1-4 * * *");
    nightly.timezone = Some("America/New_York".to_owned());
    nightly.dst.gap = Gap::Skip;
    nightly.catch_up = CatchUp::All;
    nightly.overlap = Overlap::Allow;
    let mut world = World::new(nightly, "2027-03-14T05:00:00Z");
    world.tick("2027-03-14T12:00:00Z");
    assert_eq!(
        world.story(0),
        [
            "2027-03-14T01:30:00 fired",
            "2027-03-14T02:30:00 skipped(zone_change)",
            "2027-03-14T03:30:00 fired",
            "2027-03-14T04:30:00 fired"
        ]
    );
}

#[test]
fn a_new_specification_starts_from_now() {
    let mut world = World::new(spec("0 0 * * *"), "2026-10-29T12:00:00Z");
    world.tick("2026-11-28T00:00:00Z");
    world.finish_tasks();
    let before = world.occurrences.len();
    // Minutely instead of daily: nothing is owed for the past.
    world.edit(spec("* * * * *"), at("2026-11-28T17:30:10Z")).unwrap();
    assert_eq!(world.occurrences.len(), before);
    assert_eq!(world.state.next_due, Some(at("2026-11-28T17:31:00Z")));
    // What came due under the old one is decided under the old one.
    world.edit(spec("30 * * * *"), at("2026-11-28T17:32:05Z")).unwrap();
    assert_eq!(
        world.story(before),
        ["2026-11-28T17:31:00Z coalesced(newer)", "2026-11-28T17:32:00Z fired"]
    );
    assert_eq!(world.state.next_due, Some(at("2026-11-28T18:30:00Z")));
}

#[test]
fn a_label_that_was_decided_does_not_come_back_with_another_zone() {
    let in_zone =
        |zone: &str| ScheduleSpec { timezone: Some(zone.to_owned()), ..spec("0 2 * * *") };
    let mut world = World::new(in_zone("Asia/Shanghai"), "2026-11-27T20:00:00Z");
    world.tick("2026-11-28T18:00:00Z");
    world.finish_tasks();
    assert_eq!(world.story(0), ["2026-11-29T02:00:00 fired"]);
    // In New York it is still the 28th: the label of the 29th would be next.
    world.edit(in_zone("America/New_York"), at("2026-11-28T20:00:00Z")).unwrap();
    assert_eq!(world.state.next_due, Some(at("2026-11-30T07:00:00Z")));
    world.tick("2026-11-29T07:00:00Z").tick("2026-11-30T07:00:00Z");
    assert_eq!(world.story(1), ["2026-11-30T02:00:00 fired"]);
}

#[test]
fn a_pause_outlives_an_edit() {
    let mut world = World::new(spec("0 * * * *"), "2026-11-29T00:30:00Z");
    world.pause(at("2026-11-29T00:40:00Z"));
    world.edit(spec("30 * * * *"), at("2026-11-29T02:10:00Z")).unwrap();
    assert_eq!(world.state.status, ScheduleStatus::Paused);
    assert_eq!(world.state.spec.note.as_deref(), Some("deploy"));
    assert_eq!(world.story(0), ["2026-11-29T01:00:00Z..2026-11-29T02:00:00Z x2 skipped(paused)"]);
    world.resume(at("2026-11-29T02:20:00Z"));
    assert_eq!(world.state.next_due, Some(at("2026-11-29T02:30:00Z")));
    // Written as paused, and written as running again.
    let stopped = ScheduleSpec { paused: true, ..spec("30 * * * *") };
    world.edit(stopped, at("2026-11-29T02:21:00Z")).unwrap();
    assert_eq!(world.state.status, ScheduleStatus::Paused);
    world.edit(spec("30 * * * *"), at("2026-11-29T02:50:00Z")).unwrap();
    assert_eq!(world.state.status, ScheduleStatus::Active);
    assert_eq!(world.story(1), ["2026-11-29T02:30:00Z skipped(paused)"]);
    // The same again changes nothing.
    let rev = world.state.rev;
    world.edit(spec("30 * * * *"), at("2026-11-29T02:51:00Z")).unwrap();
    assert_eq!(world.state.rev, rev);
}

#[test]
fn what_can_never_fire_again_is_refused() {
    let now = at("2026-11-29T00:00:00Z");
    for (schedule, code, field) in [
        ("@at 2026-11-28T09:00", "never_fires", "schedule"),
        ("0 0 0 1 1 * 2020-2026", "never_fires", "schedule"),
        ("0 0 30 2 *", "never_fires", "schedule"),
        ("0 0 * *", "cron_invalid", "schedule"),
        ("0 2 * * *", "never_fires", "blackout"),
    ] {
        let mut wrong = spec(schedule);
        if field == "blackout" {
            wrong.blackout = vec![blackout("01:00", "03:00")];
        }
        let error = World::try_new(wrong.clone(), now).err().unwrap();
        assert_eq!((error.code, error.field.as_str()), (code, field), "{schedule}: {error}");
        let mut world = World::try_new(spec("0 0 * * *"), now).unwrap();
        assert_eq!(world.edit(wrong, now).unwrap_err().code, code);
        assert_eq!(world.state.spec.schedule, "0 0 * * *", "the old one stays");
    }
}

type Change<'a> = &'a dyn Fn(&mut ScheduleSpec);

#[test]
fn every_key_is_checked() {
    let now = at("2026-11-29T00:00:00Z");
    let refused = |change: &dyn Fn(&mut ScheduleSpec)| {
        let mut wrong = spec("0 2 * * *");
        change(&mut wrong);
        let error = World::try_new(wrong, now).err().expect("refused");
        (error.code, error.field)
    };
    let cases: &[(Change<'_>, &str)] = &[
        (&|s| s.name.clear(), "name"),
        (&|s| s.kind = "\u{7}".to_owned(), "type"),
        (&|s| s.pool = Some(String::new()), "pool"),
        (&|s| s.priority = 101, "priority"),
        (&|s| s.catch_up_max = 0, "catch_up_max"),
        (&|s| s.overlap_max = 0, "overlap_max"),
        (&|s| s.execution_key = Some(String::new()), "execution_key"),
        (&|s| s.execution_key = Some("{{ day }}".to_owned()), "execution_key"),
        (&|s| s.execution_key = Some("{{ occurrence.key }}".repeat(9)), "execution_key"),
        (&|s| s.payload = Json::parse(r#"{"a":["{{ nope }}"]}"#).unwrap(), "payload"),
        (&|s| s.tags = vec![String::new()], "tags[0]"),
        (&|s| s.max_retries = Some(u32::MAX), "max_retries"),
        (
            &|s| s.blackout = vec![blackout("01:00", "02:00"), blackout("1", "2")],
            "blackout[1].from",
        ),
        (&|s| (s.catch_up, s.grace) = (CatchUp::None, Span::default()), "grace"),
        (&|s| (s.start, s.end) = (Some(now), Some(now)), "end"),
        (&|s| s.note = Some("x".repeat(5_000)), "note"),
    ];
    for (change, field) in cases {
        assert_eq!(refused(*change).1, *field);
    }
    assert_eq!(
        refused(&|s| s.timezone = Some("CST".to_owned())),
        ("unknown_timezone", "timezone".to_owned())
    );
    let huge = Json::string(&"x".repeat(2 << 20));
    assert_eq!(refused(&|s| s.payload = huge.clone()).0, "too_large");
}

#[test]
fn templates_reach_the_task() {
    let mut orders = spec("0 2 * * *");
    orders.timezone = Some("Asia/Shanghai".to_owned());
    orders.execution_key = Some("orders-{{ occurrence.date }}".to_owned());
    orders.payload = Json::parse(
        r#"{"day": "{{ occurrence.date | add('-1d') | format('%Y%m%d') }}", "n": 1E400}"#,
    )
    .unwrap();
    let mut world = World::new(orders, "2026-11-28T00:00:00Z");
    world.tick("2026-11-28T18:00:00Z");
    let task = &world.tasks[0];
    assert_eq!(task.execution_key.as_deref(), Some("orders-2026-11-29"));
    assert_eq!(task.payload.as_str(), r#"{"day": "20261128", "n": 1E400}"#);
}

#[test]
fn triggered_by_hand() {
    let mut orders = spec("0 2 * * *");
    orders.execution_key = Some("orders-{{ occurrence.key }}".to_owned());
    let mut world = World::new(orders, "2026-11-28T00:00:00Z");
    let prepared = world.prepared();
    let run = |world: &mut World, label: Option<&str>, now: &str| {
        world.with(at(now), |due, look, maker| {
            trigger(&due.state, &prepared, label, look.now, maker).map(Some)
        })
    };
    run(&mut world, None, "2026-11-28T09:30:15.25Z").unwrap();
    run(&mut world, None, "2026-11-28T09:30:15.250001Z").unwrap();
    run(&mut world, Some("2026-11-20T02:00:00"), "2026-11-28T09:31:00Z").unwrap();
    let keys: Vec<_> = world.tasks.iter().map(|task| task.execution_key.clone().unwrap()).collect();
    assert_eq!(*keys[0], *"orders-2026-11-28T09:30:15.250000");
    assert_eq!(*keys[1], *"orders-2026-11-28T09:30:15.250001", "two within a second are two");
    assert_eq!(*keys[2], *"orders-2026-11-20T02:00:00");
    assert_eq!(world.occurrences[0].label, "2026-11-28T09:30:15.250000");
    assert!(world.occurrences.iter().all(|o| o.kind == OccurrenceKind::Manual));
    assert_eq!(world.state.balance, Balance::default(), "manual ones stay out of the balance");
    assert_eq!(world.state.next_due, Some(at("2026-11-28T02:00:00Z")), "and move no cursor");
    for wrong in ["2026-11-20T02:00:01", "2026-11-20T02:00:00Z", "yesterday", ""] {
        let error = run(&mut world, Some(wrong), "2026-11-28T09:32:00Z").unwrap_err();
        assert_eq!(error.field, "label", "{wrong}: {error}");
    }
}

const OPERATION: Uuid = Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001);

#[test]
fn backfill_of_a_half_open_range() {
    let mut orders = spec("0 2 * * *");
    orders.execution_key = Some("orders-{{ occurrence.date }}".to_owned());
    orders.blackout = vec![blackout("2026-11-04T00:00", "2026-11-05T00:00")];
    let mut world = World::new(orders, "2026-11-09T12:00:00Z");
    let now = at("2026-11-10T12:00:00Z");
    world.tick_at(plus(now, -36_000));
    let prepared = world.prepared();
    let template = world.occurrences[0].clone();
    let known = |day: u8, state: Option<matins_core::State>| {
        let time = at(&format!("2026-11-0{day}T02:00:00Z"));
        (Occurrence { time, kind: OccurrenceKind::Backfill, ..template.clone() }, state)
    };
    let fired = [
        known(1, Some(State::Completed)),
        known(2, Some(State::Failed)),
        known(3, Some(State::Running)),
        known(5, Some(State::Failed)),
        known(5, Some(State::Completed)),
        known(6, None),
    ];
    let range = (at("2026-11-01T02:00:00Z"), at("2026-11-12T02:00:00Z"));
    let days = |mode| {
        let plan = backfill(&world.state, &prepared, range, mode, &fired, now).unwrap();
        assert_eq!((plan.live, plan.blackout, plan.future), (1, 1, 1));
        plan.items
            .iter()
            .map(|item| item.execution_key.clone().unwrap()[7..].to_owned())
            .collect::<Vec<_>>()
    };
    let missing = ["2026-11-07", "2026-11-08", "2026-11-09", "2026-11-10"];
    assert_eq!(days(BackfillMode::Missing), missing);
    assert_eq!(days(BackfillMode::MissingFailed), [&["2026-11-02"][..], &missing].concat());
    let rest = ["2026-11-01", "2026-11-02", "2026-11-05", "2026-11-06"];
    assert_eq!(days(BackfillMode::All), [&rest[..], &missing].concat());

    let plan =
        backfill(&world.state, &prepared, range, BackfillMode::Missing, &fired, now).unwrap();
    let balance = world.state.balance;
    let cursor = world.state.cursor;
    world
        .with(now, |due, look, maker| {
            backfill_plan(&due.state, &prepared, OPERATION, &plan.items, look.now, maker).map(Some)
        })
        .unwrap();
    assert_eq!((world.state.balance, world.state.cursor), (balance, cursor));
    assert_eq!(world.tasks.len(), 1 + 4);
    assert_eq!(world.occurrences[1].kind, OccurrenceKind::Backfill);

    let backwards = (range.1, range.0);
    let error = backfill(&world.state, &prepared, backwards, BackfillMode::All, &[], now);
    assert_eq!(error.unwrap_err().field, "to");
    let seconds = World::new(spec("* * * * * *"), "2026-11-09T12:00:00Z");
    let error = backfill(&seconds.state, &seconds.prepared(), range, BackfillMode::All, &[], now);
    assert!(error.unwrap_err().message.contains("at most 10000"));
}

#[test]
fn a_task_that_cannot_be_made_pauses_the_schedule() {
    let mut world = World::new(spec("0 * * * *"), "2026-11-29T00:30:00Z");
    // Limits that shrank since the schedule was written.
    world.state.spec.payload = Json::string(&"x".repeat(2 << 20));
    let prepared = World::new(spec("0 * * * *"), "2026-11-29T00:30:00Z").prepared();
    world
        .with(at("2026-11-29T01:00:00Z"), |due, look, maker| {
            Ok::<_, SpecError>(Some(decide(due, &prepared, look, maker)))
        })
        .unwrap();
    assert_eq!(world.state.status, ScheduleStatus::Paused);
    assert!(world.state.spec.note.as_ref().unwrap().contains("payload"));
    assert!(world.occurrences.is_empty(), "nothing is decided yet");
}

#[test]
fn removed_from_its_file() {
    let mut world = World::new(spec("0 * * * *"), "2026-11-29T00:30:00Z");
    let prepared = world.prepared();
    world
        .with(at("2026-11-29T01:00:30Z"), |due, look, maker| {
            Ok::<_, SpecError>(Some(disable(due, &prepared, look, maker)))
        })
        .unwrap();
    assert_eq!(world.state.status, ScheduleStatus::Disabled);
    assert_eq!(world.story(0), ["2026-11-29T01:00:00Z skipped(ended)"]);
    // Back again: from now on.
    world.edit(spec("0 * * * *"), at("2026-11-29T05:30:00Z")).unwrap();
    assert_eq!(world.state.status, ScheduleStatus::Active);
    assert_eq!(world.state.next_due, Some(at("2026-11-29T06:00:00Z")));
}

#[test]
fn a_new_zone_table_moves_the_next_time() {
    let mut world = World::new(spec("0 9 * * *"), "2026-11-29T00:30:00Z");
    let limits = Limits::default();
    assert!(rearm(&world.state, &limits).is_none());
    world.state.zone_table = "2025b".to_owned();
    world.state.next_due = Some(at("2026-11-29T17:00:00Z"));
    let plan = rearm(&world.state, &limits);
    assert_eq!(plan.unwrap().state.next_due, Some(at("2026-11-29T09:00:00Z")));
}

#[test]
fn a_last_fire_of_the_past_is_refused_by_hand_and_exhausted_in_a_file() {
    let (limits, now) = (Limits::default(), at("2026-11-28T00:00:00Z"));
    let once = spec("@at 2026-01-01T09:00");
    let mut ended = spec("0 2 * * *");
    ended.end = Some(at("2026-01-01T00:00:00Z"));
    for past in [once.clone(), ended] {
        let make = |by| create(Uuid::nil(), past.clone(), by, &limits, now);
        assert_eq!(make(ManagedBy::Api).unwrap_err().code, "never_fires");
        let state = make(ManagedBy::File).unwrap();
        assert_eq!(state.status, ScheduleStatus::Exhausted);
        assert_eq!((state.next_due, state.next_fire), (None, None));
    }
    let mut world = World::new(spec("0 2 * * *"), "2026-11-28T00:00:00Z");
    let edited =
        world.with(now, |due, look, maker| edit(due, once.clone(), ManagedBy::Api, look, maker));
    assert_eq!(edited.unwrap_err().code, "never_fires");
    world.with(now, |due, look, maker| edit(due, once, ManagedBy::File, look, maker)).unwrap();
    assert_eq!(world.state.status, ScheduleStatus::Exhausted);
    let never = create(Uuid::nil(), spec("0 0 30 2 *"), ManagedBy::File, &limits, now);
    assert_eq!(never.unwrap_err().code, "never_fires", "what cannot fire at all is a mistake");
}
