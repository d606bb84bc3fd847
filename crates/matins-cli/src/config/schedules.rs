//! `schedules:`: the same keys as in the API.

use std::time::Duration;

use jiff::Timestamp;
use matins_core::Json;
use matins_core::cron::{CronError, Dst, Fold, Gap, Timetable, Zone};
use matins_core::duration::Span;
use matins_core::limits::{Limits, PRIORITY_MAX, RETRIES_MAX};
use matins_core::request::{check_name, check_tags};
use matins_core::schedule::{Blackout, CatchUp, CatchUpWindow, OnResume, Overlap, ScheduleSpec};
use matins_runtime::cores;

use super::cursor::Cursor;
use super::payload::payload;
use super::problem::Problem;
use super::reference;
use super::yaml::{Place, Value};

pub(crate) fn schedules(at: &Cursor<'_>, limits: &Limits) -> Option<Vec<ScheduleSpec>> {
    let specs = cores::map(&at.named()?, |(key, entry)| {
        if let Err(error) = check_name("name", &key.text) {
            let problem = Problem::new(key.place.clone(), entry.path.clone(), error.message);
            at.reader.note(problem);
            return None;
        }
        schedule(entry, &key.text, limits)
    });
    Some(specs.into_iter().flatten().collect())
}

fn schedule(at: &Cursor<'_>, name: &str, limits: &Limits) -> Option<ScheduleSpec> {
    let table = at.table(&reference::SCHEDULE)?;
    let expression = table.need("schedule", "a cron expression such as \"0 2 * * *\"", cron);
    let kind = table.need("type", "the type of the tasks it starts", |c| named(c, "type"));
    let usual = ScheduleSpec::new(name, "", "");
    let priorities = -i64::from(PRIORITY_MAX)..=i64::from(PRIORITY_MAX);
    let spec = ScheduleSpec {
        timezone: table.get("timezone", timezone),
        payload: table.get("payload", payload).unwrap_or_else(Json::null),
        execution_key: table.get("execution_key", Cursor::filled),
        pool: table.get("pool", |c| named(c, "pool")),
        priority: table.get("priority", |c| c.integer(priorities)).map_or(0, |n| n as i16),
        grace: table.get("grace", Cursor::duration).map_or(usual.grace, Span),
        catch_up: table.get("catch_up", catch_up).unwrap_or_default(),
        catch_up_window: table.get("catch_up_window", catch_up_window).unwrap_or_default(),
        catch_up_max: table
            .get("catch_up_max", |c| c.count(1..=10_000))
            .unwrap_or(usual.catch_up_max),
        overlap: table.get("overlap", overlap).unwrap_or_default(),
        overlap_max: table
            .get("overlap_max", |c| c.count(1..=100_000))
            .unwrap_or(usual.overlap_max),
        dst: table.get("dst", dst).unwrap_or_default(),
        jitter: table
            .get("jitter", |c| c.duration_in(Duration::ZERO..=Duration::from_secs(86_400)))
            .map_or(usual.jitter, Span),
        pause_after_failures: table
            .get("pause_after_failures", |c| c.count(0..=100_000))
            .unwrap_or(0),
        start: table.get("start", instant),
        end: table.get("end", instant),
        blackout: table.get("blackout", |c| c.list(blackout)).unwrap_or_default(),
        timeout: table.get("timeout", Cursor::timeout),
        max_retries: table.get("max_retries", |c| c.count(0..=RETRIES_MAX)),
        tags: table.get("tags", tags).unwrap_or_default(),
        on_resume: table.get("on_resume", on_resume).unwrap_or_default(),
        paused: table.get("paused", Cursor::boolean).unwrap_or(false),
        note: table.get("note", Cursor::text),
        ..ScheduleSpec::new(name, &expression?, &kind?)
    };
    // Everything else is the core's to judge: templates, blackouts, what excludes each other.
    match spec.prepare(Timestamp::UNIX_EPOCH, limits) {
        Ok(_) => Some(spec),
        Err(error) => {
            let key = error.field.split(['.', '[']).next().unwrap_or_default();
            let place = table.cursor(key).unwrap_or_else(|| at.clone());
            place.fail(error.message)
        }
    }
}

fn named(at: &Cursor<'_>, field: &str) -> Option<String> {
    let name = at.text()?;
    match check_name(field, &name) {
        Ok(()) => Some(name),
        Err(error) => at.fail(error.message),
    }
}

fn cron(at: &Cursor<'_>) -> Option<String> {
    let text = at.text()?;
    match Timetable::parse(&text) {
        Ok(_) => Some(text),
        Err(error) => {
            at.reader.note(cron_problem(at, &error));
            None
        }
    }
}

/// Points into the expression where the text of the file is the text of the value: unquoted,
/// or in quotes with nothing escaped before the fault.
fn cron_problem(at: &Cursor<'_>, error: &CronError) -> Problem {
    let CronError { field, found, problem, hint, .. } = error;
    let found = if found.is_empty() { String::new() } else { format!(" ({found})") };
    let position = error.position();
    let message = format!("{} at position {position}{found}: {problem}", field.name());
    let mut told = at.problem(message);
    if let (Place::File(bytes), Value::Scalar(scalar)) = (&at.node.place, &at.node.value) {
        let quotes = bytes.len().saturating_sub(scalar.text.len());
        if quotes == 0 || quotes == 2 {
            let begin = bytes.start + quotes / 2;
            told.place = Place::File(begin + error.span.start..begin + error.span.end);
        }
    }
    told.hint.clone_from(hint);
    told
}

pub(crate) fn timezone(at: &Cursor<'_>) -> Option<String> {
    let text = at.text()?;
    match Zone::parse(&text) {
        Ok(zone) => Some(zone.name().to_owned()),
        Err(error) => {
            let problem = at.problem(format!(
                "unknown time zone {:?}: expected UTC or an IANA name such as Asia/Shanghai",
                error.name
            ));
            at.reader.note(match error.suggestion {
                Some(suggestion) => problem.hint(format!("did you mean {suggestion}?")),
                None => problem,
            });
            None
        }
    }
}

fn instant(at: &Cursor<'_>) -> Option<Timestamp> {
    match at.text()?.parse::<Timestamp>() {
        Ok(instant) => Some(instant),
        Err(_) => at.expected("a time with offset such as 2027-01-01T09:00:00Z"),
    }
}

fn catch_up(at: &Cursor<'_>) -> Option<CatchUp> {
    at.word(&[("latest", CatchUp::Latest), ("all", CatchUp::All), ("none", CatchUp::None)])
}

fn catch_up_window(at: &Cursor<'_>) -> Option<CatchUpWindow> {
    match &at.node.value {
        Value::Scalar(scalar) if scalar.text == "auto" => Some(CatchUpWindow::Auto),
        _ => at.duration().map(|span| CatchUpWindow::Within(Span(span))),
    }
}

fn overlap(at: &Cursor<'_>) -> Option<Overlap> {
    at.word(&[
        ("skip", Overlap::Skip),
        ("buffer_one", Overlap::BufferOne),
        ("buffer_all", Overlap::BufferAll),
        ("cancel_previous", Overlap::CancelPrevious),
        ("allow", Overlap::Allow),
    ])
}

fn on_resume(at: &Cursor<'_>) -> Option<OnResume> {
    at.word(&[("skip", OnResume::Skip), ("latest", OnResume::Latest), ("all", OnResume::All)])
}

fn dst(at: &Cursor<'_>) -> Option<Dst> {
    let table = at.table(&reference::DST)?;
    let gaps = [("run", Gap::Run), ("skip", Gap::Skip)];
    let folds = [("first", Fold::First), ("second", Fold::Second), ("both", Fold::Both)];
    Some(Dst {
        gap: table.get("gap", |c| c.word(&gaps)).unwrap_or_default(),
        fold: table.get("fold", |c| c.word(&folds)).unwrap_or_default(),
    })
}

fn blackout(at: &Cursor<'_>) -> Option<Blackout> {
    let table = at.table(&reference::BLACKOUT)?;
    let what = "HH:MM or a local date-time";
    let from = table.need("from", what, Cursor::filled);
    let to = table.need("to", what, Cursor::filled);
    Some(Blackout { from: from?, to: to? })
}

fn tags(at: &Cursor<'_>) -> Option<Vec<String>> {
    let tags = at.list(Cursor::text)?;
    match check_tags(&tags) {
        Ok(()) => Some(tags),
        Err(error) => at.fail(format!("{}: {}", error.field, error.message)),
    }
}
