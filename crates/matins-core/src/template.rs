//! `{{ occurrence.date | format('%Y%m%d') }}` in execution keys and payload strings.
//!
//! An expression is a name or a quoted text, then filters: `tz('Asia/Shanghai')`, `add('-1d')`,
//! `format('%Y%m%d')`. Everything about it is checked when the schedule is written (names, filters,
//! what a filter may be applied to, the format itself), so that nothing is left to go wrong at
//! three in the morning. `{{ '{{' }}` writes two braces.
//!
//! Must never change a byte of a payload outside the expressions in its string values.

use jiff::civil::Date;
use jiff::fmt::strtime::{self, BrokenDownTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ZonedDateTime};

use crate::Json;
use crate::cron::Zone;

const NAMES: &str = "occurrence.time, occurrence.local, occurrence.date, occurrence.key, \
                     schedule.name or a quoted text";
const FILTERS: &str = "tz('Asia/Shanghai'), add('-1d') or format('%Y%m%d')";
/// Largest number before a unit of `add`.
const ADD_MAX: i64 = 100_000;

/// What is wrong with a template, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template at position {}: {problem}", .offset + 1)]
pub struct TemplateError {
    /// Byte offset in the text.
    pub offset: usize,
    pub problem: String,
}

/// What the names of a template stand for.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Nominal instant of the occurrence.
    pub time: Timestamp,
    pub zone: &'a Zone,
    /// Date of the label in the schedule's zone.
    pub date: Date,
    /// The label.
    pub key: &'a str,
    pub schedule: &'a str,
}

/// A text with expressions, checked.
#[derive(Debug, Clone)]
pub struct Template {
    parts: Vec<Part>,
    /// The text is JSON and what is put in goes into a JSON string.
    json: bool,
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Expression { offset: usize, source: Source, filters: Vec<Filter> },
}

#[derive(Debug, Clone)]
enum Source {
    Time,
    Local,
    Date,
    Key,
    ScheduleName,
    Quoted(String),
}

#[derive(Debug, Clone)]
enum Filter {
    Zone(TimeZone),
    Add(Span),
    Format(String),
}

#[derive(Debug)]
enum Value {
    /// `plain`: shown as an instant of UTC rather than with an offset.
    Time {
        at: ZonedDateTime,
        plain: bool,
    },
    Date(Date),
    Text(String),
}

impl Template {
    /// Reads a plain text.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        scan(text, 0, false, &mut parts)?;
        Self { parts, json: false }.checked()
    }

    /// Reads a JSON text, of which only string values may hold expressions.
    pub fn parse_json(json: &Json) -> Result<Self, TemplateError> {
        let text = json.as_str();
        let mut parts = Vec::new();
        let mut done = 0;
        for (start, end) in string_values(text) {
            if text[start..end].contains("{{") {
                parts.push(Part::Text(text[done..start].to_owned()));
                scan(&text[start..end], start, true, &mut parts)?;
                done = end;
            }
        }
        parts.push(Part::Text(text[done..].to_owned()));
        Self { parts, json: true }.checked()
    }

    /// Tries it on a time whose names of day and month are the longest.
    fn checked(self) -> Result<Self, TemplateError> {
        self.render(&sample(&Zone::utc(), "sample", "2026-09-30T23:59:59"))?;
        Ok(self)
    }

    pub fn is_constant(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_)))
    }

    pub fn render(&self, context: &Context<'_>) -> Result<String, TemplateError> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(piece) => text.push_str(piece),
                Part::Expression { offset, source, filters } => {
                    let value = evaluate(source, filters, context)
                        .map_err(|problem| TemplateError { offset: *offset, problem })?;
                    if self.json {
                        let quoted = Json::string(&value);
                        let inner = &quoted.as_str()[1..quoted.byte_len() - 1];
                        text.push_str(inner);
                    } else {
                        text.push_str(&value);
                    }
                }
            }
        }
        Ok(text)
    }
}

/// A context for trying templates out: 30 September 2026, a Wednesday.
pub fn sample<'a>(zone: &'a Zone, schedule: &'a str, key: &'a str) -> Context<'a> {
    let date = jiff::civil::date(2026, 9, 30);
    let time = jiff::tz::Offset::UTC.to_timestamp(date.at(23, 59, 59, 0)).unwrap_or_default();
    Context { time, zone, date, key, schedule }
}

/// Splits `text` at `{{ … }}`; `offset` is where it begins in the whole.
fn scan(text: &str, offset: usize, json: bool, parts: &mut Vec<Part>) -> Result<(), TemplateError> {
    let mut done = 0;
    while let Some(open) = text[done..].find("{{").map(|at| done + at) {
        let error =
            |problem: &str| TemplateError { offset: offset + open, problem: problem.to_owned() };
        let close = text[open..].find("}}").ok_or_else(|| error("{{ is not closed by }}"))?;
        let written = &text[open + 2..open + close];
        // Inside JSON a quote of the expression may be written \".
        let inner = if json {
            let quoted = format!("\"{written}\"");
            serde_json::from_str(&quoted).map_err(|_| error("not valid text of JSON"))?
        } else {
            written.to_owned()
        };
        parts.push(Part::Text(text[done..open].to_owned()));
        parts.push(expression(&inner, offset + open)?);
        done = open + close + 2;
    }
    parts.push(Part::Text(text[done..].to_owned()));
    Ok(())
}

/// Ranges of the insides of string values in a valid JSON text; names of members are left out.
fn string_values(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut values = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'"' {
            at += 1;
            continue;
        }
        let start = at + 1;
        let mut end = start;
        while end < bytes.len() && bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        at = end + 1;
        let next = bytes[at.min(bytes.len())..].iter().find(|byte| !byte.is_ascii_whitespace());
        if next != Some(&b':') {
            values.push((start, end));
        }
    }
    values
}

fn expression(text: &str, offset: usize) -> Result<Part, TemplateError> {
    let error = |problem: String| TemplateError { offset, problem };
    let mut pieces = split_unquoted(text, '|').into_iter().map(str::trim);
    let name = pieces.next().unwrap_or_default();
    let source = match name {
        "occurrence.time" => Source::Time,
        "occurrence.local" => Source::Local,
        "occurrence.date" => Source::Date,
        "occurrence.key" => Source::Key,
        "schedule.name" => Source::ScheduleName,
        _ => match unquoted(name) {
            Some(text) => Source::Quoted(text.to_owned()),
            None => return Err(error(format!("unknown name {}; expected {NAMES}", cut(name)))),
        },
    };
    let filters =
        pieces.map(|piece| filter(piece).map_err(error)).collect::<Result<Vec<_>, _>>()?;
    Ok(Part::Expression { offset, source, filters })
}

fn filter(text: &str) -> Result<Filter, String> {
    let unknown = || format!("unknown filter {}; expected {FILTERS}", cut(text));
    let (name, rest) = text.split_once('(').ok_or_else(unknown)?;
    let argument = rest.strip_suffix(')').map(str::trim).and_then(unquoted).ok_or_else(unknown)?;
    match name.trim() {
        "tz" => match Zone::parse(argument) {
            Ok(zone) => Ok(Filter::Zone(zone.rules().clone())),
            Err(error) => Err(error.to_string()),
        },
        "add" => match span(argument) {
            Some(span) => Ok(Filter::Add(span)),
            None => Err(format!(
                "add({}): expected a sign and numbers with units y mo w d h m s, such as -1d or \
                 +1h30m",
                cut(argument)
            )),
        },
        "format" => Ok(Filter::Format(argument.to_owned())),
        _ => Err(unknown()),
    }
}

fn cut(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

/// The inside of `'…'` or `"…"`.
fn unquoted(text: &str) -> Option<&str> {
    ['\'', '"'].into_iter().find_map(|quote| {
        let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inner.contains(quote)).then_some(inner)
    })
}

fn split_unquoted(text: &str, separator: char) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut quote = None;
    let mut start = 0;
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) => quote = (c != open).then_some(open),
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == separator => {
                pieces.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            None => {}
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// `-1d`, `+1h30m`, `2mo`.
fn span(text: &str) -> Option<Span> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut span = Span::new();
    let mut units = Vec::new();
    while !rest.is_empty() || units.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: i64 = rest[..digits].parse().ok().filter(|number| *number <= ADD_MAX)?;
        let tail = &rest[digits..];
        let (unit, tail) =
            tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        if units.contains(&unit) {
            return None;
        }
        units.push(unit);
        span = match unit {
            "y" => span.try_years(number),
            "mo" => span.try_months(number),
            "w" => span.try_weeks(number),
            "d" => span.try_days(number),
            "h" => span.try_hours(number),
            "m" => span.try_minutes(number),
            "s" => span.try_seconds(number),
            _ => return None,
        }
        .ok()?;
        rest = tail;
    }
    Some(if negative { span.negate() } else { span })
}

fn evaluate(source: &Source, filters: &[Filter], context: &Context<'_>) -> Result<String, String> {
    let in_zone = |rules: &TimeZone| context.time.to_zoned_datetime(rules.clone());
    let mut value = match source {
        Source::Time => Value::Time { at: in_zone(&TimeZone::UTC), plain: true },
        Source::Local => Value::Time { at: in_zone(context.zone.rules()), plain: false },
        Source::Date => Value::Date(context.date),
        Source::Key => Value::Text(context.key.to_owned()),
        Source::ScheduleName => Value::Text(context.schedule.to_owned()),
        Source::Quoted(text) => Value::Text(text.clone()),
    };
    for filter in filters {
        value = apply(filter, value)?;
    }
    Ok(match value {
        Value::Time { at, plain: true } => at.timestamp().to_string(),
        Value::Time { at, plain: false } => {
            at.timestamp().display_with_offset(at.offset()).to_string()
        }
        Value::Date(date) => date.to_string(),
        Value::Text(text) => text,
    })
}

fn apply(filter: &Filter, value: Value) -> Result<Value, String> {
    match (filter, value) {
        (Filter::Zone(rules), Value::Time { at, .. }) => {
            Ok(Value::Time { at: at.with_time_zone(rules.clone()), plain: false })
        }
        (Filter::Zone(_), _) => Err("tz applies to a time: occurrence.time or .local".to_owned()),
        (Filter::Add(span), Value::Time { at, plain }) => match at.checked_add(*span) {
            Ok(at) => Ok(Value::Time { at, plain }),
            Err(_) => Err("add leaves the calendar".to_owned()),
        },
        (Filter::Add(span), Value::Date(date)) => {
            if span.get_hours() != 0 || span.get_minutes() != 0 || span.get_seconds() != 0 {
                return Err("a date takes whole days only: y mo w d".to_owned());
            }
            let sum = date.checked_add(*span);
            sum.map(Value::Date).map_err(|_| "add leaves the calendar".to_owned())
        }
        (Filter::Add(_), Value::Text(_)) => Err("add applies to a time or a date".to_owned()),
        (Filter::Format(format), Value::Time { at, .. }) => strftime(format, &at),
        (Filter::Format(format), Value::Date(date)) => strftime(format, date),
        (Filter::Format(_), Value::Text(_)) => Err("format applies to a time or a date".to_owned()),
    }
}

fn strftime(format: &str, time: impl Into<BrokenDownTime>) -> Result<Value, String> {
    strtime::format(format, time).map(Value::Text).map_err(|_| {
        format!(
            "format({}): expected strftime directives such as %Y%m%d or, for a time, %H:%M",
            cut(format)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> String {
        let zone = Zone::parse("Asia/Shanghai").unwrap();
        let context = Context {
            time: "2026-11-29T18:00:00Z".parse().unwrap(),
            zone: &zone,
            date: jiff::civil::date(2026, 11, 30),
            key: "2026-11-30T02:00:00",
            schedule: "orders \"sync\"",
        };
        if text.starts_with(['[', '{']) && !text.starts_with("{{") {
            Template::parse_json(&Json::parse(text).unwrap())
        } else {
            Template::parse(text)
        }
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .render(&context)
        .unwrap()
    }

    #[test]
    fn names_and_filters() {
        for (template, expected) in [
            ("orders-{{ occurrence.date }}", "orders-2026-11-30"),
            ("{{occurrence.time}}", "2026-11-29T18:00:00Z"),
            ("{{ occurrence.local }}", "2026-11-30T02:00:00+08:00"),
            ("{{ occurrence.key }}", "2026-11-30T02:00:00"),
            ("{{ schedule.name }}!", "orders \"sync\"!"),
            ("{{ occurrence.time | tz('America/New_York') }}", "2026-11-29T13:00:00-05:00"),
            ("{{ occurrence.time | tz(\"Asia/Shanghai\") | format('%Y%m%d') }}", "20261130"),
            ("{{ occurrence.time|format('%Y%m%d') }}", "20261129"),
            ("{{ occurrence.date | add('-1d') | format('%Y%m%d') }}", "20261129"),
            ("{{ occurrence.date | add('-1mo') | format('%Y-%m') }}", "2026-10"),
            ("{{ occurrence.time | add('+1h30m') }}", "2026-11-29T19:30:00Z"),
            ("{{ occurrence.local | add('-2w') | format('%G-W%V') }}", "2026-W47"),
            ("{{ occurrence.time | format('a|b}') }}", "a|b}"),
            ("{{ '{{' }} x }}", "{{ x }}"),
            ("no braces { } }}", "no braces { } }}"),
            ("", ""),
        ] {
            assert_eq!(render(template), expected, "{template}");
        }
    }

    #[test]
    fn a_payload_keeps_every_other_byte() {
        let payload = r#"{ "{{ name }}" : "day {{ occurrence.date }}",  "n":1970670598291982290,"e":1E400,
            "deep":[ "\ud800{{ schedule.name }}\u0000", {"x": "{{ occurrence.time | format(\"%Y\") }}"} ], "k":1,"k":2 }"#;
        let expected = r#"{ "{{ name }}" : "day 2026-11-30",  "n":1970670598291982290,"e":1E400,
            "deep":[ "\ud800orders \"sync\"\u0000", {"x": "2026"} ], "k":1,"k":2 }"#;
        assert_eq!(render(payload), expected);
        assert!(Json::parse(&render(payload)).is_ok());
        let plain = r#"["\"{", "}}", "\\", {"a{{":"b"}]"#;
        assert_eq!(render(plain), plain);
        let template = Template::parse_json(&Json::parse(plain).unwrap()).unwrap();
        assert!(template.is_constant());
    }

    #[test]
    fn what_cannot_work_is_refused_when_it_is_written() {
        for (template, words) in [
            ("x {{ occurrence.tmie }}", "occurrence.time"),
            ("{{ env.HOME }}", "unknown name"),
            ("{{ }}", "unknown name"),
            ("{{ occurrence.time", "not closed"),
            ("{{ occurrence.time | upper }}", "unknown filter"),
            ("{{ occurrence.time | upper('x') }}", "unknown filter"),
            ("{{ occurrence.time | tz(Asia/Shanghai) }}", "unknown filter"),
            ("{{ occurrence.time | tz('CST') }}", "Asia/Shanghai"),
            ("{{ occurrence.date | tz('UTC') }}", "applies to a time"),
            ("{{ occurrence.time | add('1') }}", "such as -1d"),
            ("{{ occurrence.time | add('') }}", "such as -1d"),
            ("{{ occurrence.time | add('-1d1d') }}", "such as -1d"),
            ("{{ occurrence.time | add('99999999999999999999d') }}", "such as -1d"),
            ("{{ occurrence.time | add('99999y') }}", "such as -1d"),
            ("{{ occurrence.time | add('9999y') }}", "calendar"),
            ("{{ occurrence.date | add('1h') }}", "whole days"),
            ("{{ occurrence.key | format('%Y') }}", "applies to"),
            ("{{ occurrence.date | format('%FT%H') }}", "%Y%m%d"),
            ("{{ occurrence.time | format('%!') }}", "%Y%m%d"),
            ("{{ occurrence.time | format('%Y') | add('1d') }}", "applies to"),
        ] {
            let error = Template::parse(template).expect_err(template);
            assert!(error.to_string().contains(words), "{template}: {error}");
            assert_eq!(error.offset, template.find("{{").unwrap(), "{template}");
        }
        let json = Json::parse(r#"{"a":"ok","b":["{{ nope }}"]}"#).unwrap();
        assert_eq!(Template::parse_json(&json).unwrap_err().offset, 16);
    }
}
