//! Foreign text never panics, and never takes long.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::cron::{Dst, Recurrence, Timetable, Zone};
use matins_core::limits::Limits;
use matins_core::schedule::ScheduleSpec;
use matins_core::{Json, duration, template};

/// Long enough for a busy machine, short enough for anything that grows with its input.
const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn expressions() {
    let zone = Zone::parse("America/New_York").unwrap();
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let seeds: [&[u8]; 9] = [
        b"*/15 2 * * *",
        b"0 0 29 2 * 2100",
        b"30 2 LW * MON#2",
        b"0 0 L-3 1-12/2 +FRI",
        b"1,2,3-9/2 0-23 ? * SUN",
        b"@every 1h30m",
        b"@at 2027-01-01T09:00",
        b"@daily",
        b"0 0 0 31W 12 * 1970-2199",
    ];
    matins_fuzz::fuzz(&seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let began = Instant::now();
        match Timetable::parse(text) {
            Ok(timetable) => {
                let recurrence = Recurrence::new(timetable, zone.clone(), Dst::default(), now);
                let mut at = now;
                for _ in 0..5 {
                    let Some(fire) = recurrence.next_after(at) else { break };
                    assert!(fire.time > at, "{text:?}: {} after {at}", fire.time);
                    at = fire.time;
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(began.elapsed() < LIMIT, "{text:?} took {:?}", began.elapsed());
    });
}

#[test]
fn schedules_templates_and_durations() {
    let seeds: [&[u8]; 5] = [
        br#"{"name":"a","schedule":"0 2 * * *","timezone":"Asia/Shanghai","type":"t","payload":{"d":"{{ occurrence.date }}"},"execution_key":"k-{{ occurrence.time | tz('Asia/Tokyo') | add('-1d') | format('%Y') }}"}"#,
        br#"{"name":"b","schedule":"@every 5m","type":"t","grace":"90s","catch_up":"all","overlap":"buffer_all","jitter":0.5,"blackout":[{"from":"22:00","to":"06:00"}]}"#,
        b"{{ occurrence.key }}",
        b"1h30m",
        b"{\"s\":\"\\ud800\"}",
    ];
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    matins_fuzz::fuzz(&seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let began = Instant::now();
        let _ = duration::parse(text);
        let _ = Json::parse(text);
        let _ = template::Template::parse(text);
        if let Ok(spec) = serde_json::from_str::<ScheduleSpec>(text) {
            let _ = spec.prepare(now, &Limits::default());
        }
        assert!(began.elapsed() < LIMIT, "{text:?} took {:?}", began.elapsed());
    });
}
