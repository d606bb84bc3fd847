//! One tick, one task: across kills, clock steps, downtime and early timers.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::thread;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use matins_e2e::api::seconds_of;
use matins_e2e::clock::{now, unix_now};
use matins_e2e::process::Signal;
use matins_e2e::wait::seconds;
use matins_e2e::{Api, Server, Task, Value, eventually, json, together};
use rand::RngExt;

#[test]
fn clocks_and_restarts() {
    together(&[
        ("C01 thirty days of missed minutes", thirty_days_missed),
        ("C02 a mark in the downtime", mark_in_the_downtime),
        ("C04 kills around the marks", kills_around_marks),
        ("C07 a step of one hour forward", step_forward),
        ("C08 two hours ahead and back", two_hours_ahead_and_back),
        ("C10 an interval keeps its anchor", interval_keeps_its_anchor),
        ("C13 timers wake early", timers_wake_early),
    ]);
}

fn text<'a>(occurrence: &'a Value, field: &str) -> &'a str {
    occurrence[field].as_str().unwrap_or("")
}

fn of_outcome<'a>(occurrences: &'a [Value], outcome: &str) -> Vec<&'a Value> {
    occurrences.iter().filter(|occurrence| occurrence["outcome"] == outcome).collect()
}

fn count(occurrences: &[&Value]) -> i64 {
    occurrences.iter().map(|occurrence| occurrence["count"].as_i64().unwrap_or(1)).sum()
}

fn offset(at: Timestamp) -> String {
    let offset = at.duration_since(now()).as_secs_f64();
    format!("{offset:+.3}")
}

fn witnessed(server: &Server, schedule: &str) -> Value {
    json!({
        "schedule": schedule, "type": "command", "overlap": "allow",
        "payload": {"shell": server.witness.shell("true")}
    })
}

fn put(api: &Api, name: &str, schedule: &Value) {
    let answer = api.put(&format!("/schedules/{name}"), schedule);
    assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
}

/// C01: 1 000 schedules that were away for 30 days of minutes.
fn thirty_days_missed() {
    let away = SignedDuration::from_hours(30 * 24);
    let mut server = Server::builder().clock(&offset(now() - away)).prepare();
    let mut yaml = String::from("schedules:\n");
    for n in 0..1000 {
        let _ = writeln!(yaml, "  s{n}: {{schedule: \"* * * * *\", type: nobody_runs_this}}");
    }
    server.configure(&yaml);
    server.start();
    let created = (now() - away).as_second();
    assert_eq!(server.api().get("/schedules/s999").expect(200).json()["state"], "active");
    server.kill();

    server.clock().set("+0");
    let begin = Instant::now();
    server.start();
    let took = begin.elapsed();
    // One second is promised of a release build; this is a debug build among other tests.
    assert!(took < seconds(4.0), "the start took {took:?}");
    let api = server.api();
    for name in ["s0", "s999"] {
        let occurrences = eventually("the downtime is decided", seconds(10.0), || {
            let found = api.occurrences(name);
            (!of_outcome(&found, "fired").is_empty()).then_some(found)
        });
        let last = occurrences.iter().map(|o| seconds_of(text(o, "time")) as i64).max();
        let until = of_outcome(&occurrences, "fired")
            .iter()
            .map(|o| seconds_of(text(o, "time")) as i64)
            .max()
            .expect("one fired");
        assert!(now().as_second() - until < 120, "the newest fires: {occurrences:#?}");
        let missed = of_outcome(&occurrences, "missed");
        let coalesced = of_outcome(&occurrences, "coalesced");
        assert!(occurrences.len() <= 6, "runs of equal outcomes are one record: {occurrences:#?}");
        assert!(missed.iter().all(|o| o["reason"] == "window"), "{missed:#?}");
        assert!(coalesced.iter().all(|o| o["reason"] == "newer"), "{coalesced:#?}");
        assert!((1438..=1440).contains(&count(&coalesced)), "{}", count(&coalesced));
        assert!((41_755..=41_765).contains(&count(&missed)), "{}", count(&missed));
        let all: Vec<&Value> = occurrences.iter().collect();
        let expected = last.expect("one") / 60 - created / 60;
        assert!((count(&all) - expected).abs() <= 1, "{} of {expected}", count(&all));
    }
    let tasks = api.list("schedule=s7");
    assert_eq!(tasks.len(), 1, "one task for 30 days: {tasks:#?}");

    put(&api, "own", &json!({"schedule": "0 0 * * *", "type": "nobody_runs_this"}));
    let changed = unix_now();
    put(&api, "own", &json!({"schedule": "* * * * * *", "type": "nobody_runs_this"}));
    thread::sleep(seconds(2.2));
    for occurrence in api.occurrences("own") {
        assert!(seconds_of(text(&occurrence, "time")) > changed - 1.0, "{occurrence:#}");
    }
    server.assert_no_panic();
}

/// C02: killed just before noon, back just after; then away for three days.
fn mark_in_the_downtime() {
    let noon: Timestamp = "2026-12-01T12:00:00Z".parse().expect("a time");
    let before = offset(noon - SignedDuration::from_secs(15));
    let mut server = Server::builder().clock(&before).start();
    let api = server.api();
    put(&api, "noon", &witnessed(&server, "0 12 * * *"));
    let mut none = witnessed(&server, "0 12 * * *");
    none["catch_up"] = json!("none");
    put(&api, "none", &none);
    server.kill();
    server.clock().set(&offset(noon + SignedDuration::from_secs(20)));
    server.start();
    for name in ["noon", "none"] {
        let fired = eventually("the mark of the downtime fires", seconds(20.0), || {
            let found = api.occurrences(name);
            (!found.is_empty()).then_some(found)
        });
        assert_eq!(fired.len(), 1, "{fired:#?}");
        assert_eq!(fired[0]["outcome"], "fired", "within the grace of 60 s: {fired:#?}");
        assert_eq!(text(&fired[0], "time"), "2026-12-01T12:00:00Z", "{fired:#?}");
        let late = seconds_of(text(&fired[0], "fired_at")) - seconds_of(text(&fired[0], "time"));
        assert!((19.0..30.0).contains(&late), "late by {late}");
        let id = text(&fired[0], "task_id");
        api.wait_state(id, "completed", seconds(5.0));
        assert_eq!(server.witness.begins(id).len(), 1);
    }
    server.kill();
    server.clock().set(&offset(noon + SignedDuration::from_mins(3 * 24 * 60 + 30)));
    server.start();
    let all = eventually("the days are decided", seconds(5.0), || {
        let found = api.occurrences("noon");
        (of_outcome(&found, "fired").len() == 2).then_some(found)
    });
    let missed = of_outcome(&all, "missed");
    assert_eq!(count(&missed), 2, "{all:#?}");
    assert!(missed.iter().all(|o| o["reason"] == "window"), "{all:#?}");
    let all = eventually("the days are decided", seconds(5.0), || {
        let found = api.occurrences("none");
        (count(&of_outcome(&found, "missed")) == 3).then_some(found)
    });
    // What is out of the window and what the policy passes over are both `missed`.
    assert!(
        of_outcome(&all, "missed")
            .iter()
            .all(|o| o["reason"] == "catch_up_none" || o["reason"] == "window"),
        "{all:#?}"
    );
    assert_eq!(of_outcome(&all, "fired").len(), 1, "{all:#?}");
    eventually("they are counted", seconds(5.0), || {
        (api.metric("matins_occurrences_total", "missed")? >= 5.0).then_some(())
    });
    server.assert_no_panic();
}

/// C04: ten marks, and a kill or a stop at each of them.
fn kills_around_marks() {
    let mut server = Server::with(
        "lease: 5s\ndefaults:\n  max_losses: 100\n  backoff: {initial: 50ms, max: 200ms}\n",
    );
    let api = server.api();
    put(&api, "mark", &witnessed(&server, "*/2 * * * * *"));
    let begin = unix_now();
    for turn in 0..10 {
        let mark = (unix_now() / 2.0).floor() * 2.0 + 2.0;
        let at = mark + rand::rng().random_range(-0.08..0.12);
        thread::sleep(seconds((at - unix_now()).max(0.0)));
        if turn % 3 == 2 {
            assert!(server.stop(seconds(35.0)).success());
            server.start();
        } else {
            server.restart();
        }
    }
    thread::sleep(seconds(2.5));
    let end = unix_now() - 1.5;
    let occurrences = eventually("all tasks have ended", seconds(20.0), || {
        api.list("schedule=mark").iter().all(Task::ended).then(|| api.occurrences("mark"))
    });
    let mut by_mark = HashMap::<i64, Vec<&Value>>::new();
    for occurrence in &occurrences {
        by_mark.entry(seconds_of(text(occurrence, "time")) as i64).or_default().push(occurrence);
    }
    let mut mark = (begin / 2.0).ceil() as i64 * 2;
    while (mark as f64) < end {
        let found = by_mark.get(&mark).map_or(0, Vec::len);
        assert_eq!(found, 1, "mark {mark}: {:#?}", by_mark.get(&mark));
        assert_eq!(by_mark[&mark][0]["outcome"], "fired", "{:#?}", by_mark[&mark]);
        mark += 2;
    }
    let ids: HashSet<&str> = occurrences.iter().map(|o| text(o, "task_id")).collect();
    let tasks = api.list("schedule=mark");
    assert_eq!((ids.len(), tasks.len()), (occurrences.len(), occurrences.len()));
    for task in &tasks {
        assert_eq!(task.state(), "completed", "{:#}", task.0);
        let runs = server.witness.begins(task.id()).len() as i64;
        assert!(runs >= 1 && runs <= task.number("attempt"), "{runs} runs of {:#}", task.0);
        let explained = task.number("losses") + task.number("interruptions");
        assert!(runs - 1 <= explained, "{runs} runs of {:#}", task.0);
    }
    server.witness.assert_no_overlap();
    server.assert_no_panic();
}

/// C07: the clock jumps an hour; a task due within that hour runs at once.
fn step_forward() {
    let server = Server::builder().clock("+0").start();
    let api = server.api();
    let id = api.shell(&server.witness.shell("true"), &json!({"delay": "50m"})).id().to_owned();
    thread::sleep(seconds(2.0));
    assert!(server.witness.begins(&id).is_empty());
    server.clock().set("+1h");
    server.witness.wait_begin(&id, 1, seconds(5.0));
    api.wait_state(&id, "completed", seconds(5.0));
}

/// C08: the clock stood two hours ahead for three marks, and is corrected.
fn two_hours_ahead_and_back() {
    let server = Server::builder().clock("+0").start();
    let api = server.api();
    put(&api, "elapsed", &witnessed(&server, "*/4 * * * * *"));
    // The same marks by the wall clock: all hours but one that is not near.
    let hour = (now().as_second() / 3600 + 12) % 24;
    let hours: Vec<String> = (0..24).filter(|h| *h != hour).map(|h| h.to_string()).collect();
    put(&api, "wall", &witnessed(&server, &format!("*/4 * {} * * *", hours.join(","))));
    let fired = |name: &str| of_outcome(&api.occurrences(name), "fired").len();
    eventually("it fires", seconds(12.0), || (fired("elapsed") >= 2).then_some(()));
    server.clock().set("+2h");
    thread::sleep(seconds(13.0));
    server.clock().set("+0");
    let back = unix_now();
    let (elapsed, wall) = (fired("elapsed"), fired("wall"));
    thread::sleep(seconds(10.0));
    let after = api.occurrences("elapsed");
    let fresh: Vec<&Value> = of_outcome(&after, "fired")
        .into_iter()
        .filter(|o| {
            let at = seconds_of(text(o, "fired_at"));
            at >= back - 0.5 && at < back + 60.0
        })
        .collect();
    assert!(fresh.len() >= 2, "{elapsed} before, and then {fresh:#?} of {after:#?}");
    for occurrence in &fresh {
        let late = seconds_of(text(occurrence, "fired_at")) - seconds_of(text(occurrence, "time"));
        assert!((0.0..2.5).contains(&late), "late by {late}: {occurrence:#}");
    }
    let labels: Vec<&str> =
        of_outcome(&after, "fired").into_iter().map(|o| text(o, "label")).collect();
    let distinct: HashSet<&str> = labels.iter().copied().collect();
    assert_eq!(labels.len(), distinct.len(), "a label fired twice: {labels:?}");
    assert_eq!(fired("wall"), wall, "wall-clock schedules wait until time passes the cursor");
    let runs = server.witness.begun();
    assert_eq!(runs, fired("elapsed") + fired("wall"), "a run for each fire");
    let log = server.log_text().to_lowercase();
    assert!(log.contains("clock"), "the log tells of the step: {}", server.log_tail());
    server.assert_no_panic();
}

/// C10: restarts do not move an interval.
fn interval_keeps_its_anchor() {
    let mut server = Server::with("");
    let api = server.api();
    let before = unix_now().floor() as i64;
    put(&api, "interval", &witnessed(&server, "@every 4s"));
    let after = unix_now().floor() as i64;
    let begin = Instant::now();
    while begin.elapsed() < seconds(17.5) {
        thread::sleep(seconds(1.1));
        server.restart();
    }
    let times: HashSet<i64> =
        api.occurrences("interval").iter().map(|o| seconds_of(text(o, "time")) as i64).collect();
    let mut times: Vec<i64> = times.into_iter().collect();
    times.sort_unstable();
    assert!(times.len() >= 4, "{times:?}");
    assert!((before + 4..=after + 4).contains(&times[0]), "{times:?} after {before}..{after}");
    for (n, time) in times.iter().enumerate() {
        assert_eq!(*time, times[0] + 4 * n as i64, "{times:?}");
    }
    assert_eq!(api.occurrences("interval").len(), times.len());
}

/// C13: the wall clock goes slower than the timers, so each sleep ends before its mark.
fn timers_wake_early() {
    let mark: Timestamp = "2026-12-01T04:00:00Z".parse().expect("a time");
    let slow = format!("{} x0.9", offset(mark - SignedDuration::from_secs(15)));
    let server = Server::builder().clock(&slow).start();
    let api = server.api();
    put(&api, "daily", &witnessed(&server, "0 4 * * *"));
    put(&api, "wall", &witnessed(&server, "0 4 1-31 * *"));
    thread::sleep(seconds(24.0));
    for name in ["daily", "wall"] {
        let occurrences = api.occurrences(name);
        assert_eq!(occurrences.len(), 1, "{occurrences:#?}");
        let fired = &occurrences[0];
        assert_eq!(fired["outcome"], "fired", "{fired:#}");
        let early = seconds_of(text(fired, "time")) - seconds_of(text(fired, "fired_at"));
        assert!(early <= 0.0, "fired {early} s before its mark: {fired:#}");
        assert_eq!(api.list(&format!("schedule={name}")).len(), 1);
    }
    assert_eq!(server.witness.begun(), 2);
}

/// D13, D26, D01, D03, D15, D21, D22: what the preview says does not depend on the host's zone.
#[test]
fn previews_in_any_zone() {
    let server = Server::builder().prepare();
    let cases: [(&str, &str, &str, &[&str]); 9] = [
        (
            "0 0 * * * *",
            "UTC",
            "2025-10-05T02:00:00Z",
            &["2025-10-05T03:00:00Z", "2025-10-05T04:00:00Z"],
        ),
        (
            "30 1 * * *",
            "UTC",
            "2026-10-24T12:00:00Z",
            &["2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        ("0 2 * * *", "Asia/Shanghai", "2026-11-29T00:00:00Z", &["2026-11-29T18:00:00Z"]),
        ("0 18 * * *", "UTC", "2026-11-29T00:00:00Z", &["2026-11-29T18:00:00Z"]),
        (
            "0 2 * * *",
            "Europe/Berlin",
            "2023-10-28T12:00:00Z",
            &["2023-10-29T00:00:00Z", "2023-10-30T01:00:00Z"],
        ),
        (
            "15,45 2 * * *",
            "America/New_York",
            "2027-03-13T12:00:00Z",
            &["2027-03-14T07:00:00Z", "2027-03-15T06:15:00Z", "2027-03-15T06:45:00Z"],
        ),
        (
            "0 0 */2 * 1",
            "UTC",
            "2024-12-31T23:59:00Z",
            &["2025-01-13T00:00:00Z", "2025-01-27T00:00:00Z", "2025-02-03T00:00:00Z"],
        ),
        (
            "0 0 * * 0",
            "America/Santiago",
            "2022-08-21T12:00:00Z",
            &[
                "2022-08-28T04:00:00Z",
                "2022-09-04T04:00:00Z",
                "2022-09-11T04:00:00Z",
                "2022-09-18T03:00:00Z",
            ],
        ),
        ("0 9 * * *", "America/Vancouver", "2026-11-29T00:00:00Z", &["2026-11-29T16:00:00Z"]),
    ];
    for zone in ["UTC", "Australia/Sydney", "Europe/London", "America/Los_Angeles"] {
        for (cron, timezone, after, expected) in cases {
            let count = expected.len().to_string();
            let mut command = server.command();
            command.env("TZ", zone).args(["schedule", "preview", "--json", "--cron", cron]);
            command.args(["--timezone", timezone, "--after", after, "--count", &count]);
            let answer = matins_e2e::server::run(command, b"").expect(0).json();
            let fires: Vec<&str> = answer["fires"]
                .as_array()
                .expect("fires")
                .iter()
                .map(|fire| text(fire, "utc"))
                .collect();
            assert_eq!(fires, expected, "{cron} {timezone} under TZ={zone}: {answer}");
        }
    }
    for (cron, hint) in [
        ("0 22-2 * * *", "22-23,0-2"),
        ("0 0 * * FRI-MON", "5-7,1"),
        ("*/90 * * * *", "@every 90m"),
        ("0 0 30 2 *", ""),
        ("61 * * * *", "minute"),
    ] {
        let arguments = ["schedule", "preview", "--cron", cron, "--timezone", "UTC"];
        let output = server.cli(&arguments).expect(2);
        assert!(output.err().contains(hint), "{cron}: hint {hint:?} in {}", output.err());
    }
}

/// D19: an expression that can never fire is refused at once, and nothing spins.
#[test]
fn what_never_fires_is_refused_at_once() {
    let server = Server::with("");
    let api = server.api();
    for cron in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 29 2 * 2100", "@at 2001-01-01T00:00"] {
        let begin = Instant::now();
        let schedule = json!({"schedule": cron, "type": "command", "payload": {"argv": ["true"]}});
        let answer = api.put("/schedules/never", &schedule).expect(422);
        assert_eq!(answer.problem(), "never_fires", "{cron}: {}", answer.text());
        assert!(begin.elapsed() < seconds(0.5), "{cron} took {:?}", begin.elapsed());
    }
    api.get("/schedules/never").expect(404);
}

/// A schedule paused, frozen, or under a server that stands still: each mark has its reason.
#[test]
fn every_mark_has_its_reason() {
    let mut server = Server::with("");
    let api = server.api();
    put(&api, "tick", &witnessed(&server, "* * * * * *"));
    let begin = unix_now().ceil() as i64;
    thread::sleep(seconds(2.1));
    api.post("/schedules/tick/pause", &json!({"note": "a reason"})).expect(200);
    thread::sleep(seconds(2.1));
    server.restart();
    assert_eq!(api.get("/schedules/tick").expect(200).json()["state"], "paused");
    api.post("/schedules/tick/resume", &json!({})).expect(200);
    thread::sleep(seconds(2.1));
    api.post("/freeze", &json!({"reason": "maintenance"})).expect(200);
    let frozen_runs = server.witness.begun();
    thread::sleep(seconds(2.1));
    let meanwhile = api.shell(&server.witness.shell("true"), &json!({})).id().to_owned();
    let why = api.get(&format!("/tasks/{meanwhile}/why")).expect(200).json();
    assert_eq!(why["reason"], "frozen", "{why}");
    assert!(server.witness.begun() <= frozen_runs + 1, "nothing runs while frozen");
    api.post("/thaw", &json!({})).expect(200);
    api.wait_state(&meanwhile, "completed", seconds(5.0));
    server.signal(Signal::STOP);
    thread::sleep(seconds(2.0));
    server.signal(Signal::CONT);
    thread::sleep(seconds(2.1));
    let end = unix_now().floor() as i64 - 1;
    let occurrences = api.occurrences("tick");
    let decided: i64 = occurrences
        .iter()
        .filter(|o| (begin..end).contains(&(seconds_of(text(o, "time")) as i64)))
        .map(|o| o["count"].as_i64().unwrap_or(1))
        .sum();
    assert!((decided - (end - begin)).abs() <= 1, "{decided} of {}: {occurrences:#?}", end - begin);
    for outcome in ["fired", "skipped"] {
        assert!(!of_outcome(&occurrences, outcome).is_empty(), "{outcome}: {occurrences:#?}");
    }
    let reasons: HashSet<&str> =
        of_outcome(&occurrences, "skipped").into_iter().map(|o| text(o, "reason")).collect();
    assert_eq!(reasons, HashSet::from(["paused", "frozen"]), "{occurrences:#?}");
}
