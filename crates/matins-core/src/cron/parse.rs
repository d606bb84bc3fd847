//! From text to masks: the dialect.
//!
//! - Five fields: minute hour day month weekday. Six: second first. Seven: year last, 1970-2199.
//!   Blanks and tabs separate; there are no comments and no zone prefix.
//! - A field is a list of values, ranges and steps: `*`, `5`, `1-5`, `*/10`, `1-30/2`, and `n/s`,
//!   which runs from n to the field's maximum. A range never runs backwards and a step is never
//!   larger than the number of values, because other crons read those as something nobody means.
//! - Months and weekdays have three-letter names. Weekdays are 0-7, Sunday being 0 and 7, and
//!   `SUN` at the right end of a range is 7.
//! - Days also: `L` last, `L-n` n days before it, `LW` last workday, `nW` workday nearest to n.
//!   Weekdays also: `d#k` the k-th, `dL` the last. `?` is `*` in these two fields.
//! - When neither day field begins with `*`, a day that satisfies either is named; otherwise it
//!   must satisfy both. A leading `+` in the weekday asks for both.
//! - Nicknames: `@yearly @annually @monthly @weekly @daily @midnight @hourly`; `@every D` with D
//!   in whole seconds; `@at` with one local date and time.
//!
//! Must never guess: what is not in this list is refused with its place and what was expected.

use std::ops::Range;

use super::calendar::Calendar;
use super::days::{DayField, DayTable, WeekdayField, YearSet};
use super::field::{Field, YEAR_MIN};
use super::label::civil_seconds;
use super::{Civil, CronError, CronErrorKind, EXPRESSION_BYTES_MAX, Rule};
use crate::duration;

/// A piece of the expression and where it begins.
#[derive(Debug, Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    start: usize,
}

impl Piece<'_> {
    fn slice(self, range: Range<usize>) -> Self {
        Self { text: &self.text[range.clone()], start: self.start + range.start }
    }

    fn from(self, at: usize) -> Self {
        self.slice(at..self.text.len())
    }

    fn split_once(self, separator: char) -> (Self, Option<Self>) {
        match self.text.find(separator) {
            Some(at) => (self.slice(0..at), Some(self.from(at + separator.len_utf8()))),
            None => (self, None),
        }
    }

    fn split(self, separator: char) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let (head, tail) = rest?.split_once(separator);
            rest = tail;
            Some(head)
        })
    }

    fn error(self, field: Field, problem: impl Into<String>) -> CronError {
        CronError::invalid(field, self.start..self.start + self.text.len(), self.text, problem)
    }

    fn strip_suffix_ignoring_case(self, suffix: char) -> Option<Self> {
        let last = self.text.chars().next_back()?;
        last.eq_ignore_ascii_case(&suffix).then(|| self.slice(0..self.text.len() - 1))
    }
}

pub(super) fn rule(text: &str) -> Result<Rule, CronError> {
    let whole = Piece { text, start: 0 };
    if text.len() > EXPRESSION_BYTES_MAX {
        let problem = format!("longer than {EXPRESSION_BYTES_MAX} bytes");
        return Err(whole.error(Field::Expression, problem));
    }
    let tokens: Vec<Piece<'_>> = tokens(whole).collect();
    let Some(first) = tokens.first() else {
        let problem = format!("nothing is written; expected {}", Field::Expression.expected());
        return Err(whole.error(Field::Expression, problem));
    };
    if first.text.starts_with('@') {
        return nickname(*first, whole);
    }
    let fields = field_names(&tokens);
    refuse_strange_characters(whole, &tokens, fields)?;
    let Some(fields) = fields else {
        let found = tokens.len();
        let problem =
            format!("{found} fields are written; expected {}", Field::Expression.expected());
        let error = whole.error(Field::Expression, problem);
        return Err(if first.text.contains('=') {
            error.hint("the zone is not part of the expression; set `timezone`")
        } else {
            error
        });
    };
    calendar(&tokens, fields)
}

fn tokens(whole: Piece<'_>) -> impl Iterator<Item = Piece<'_>> {
    whole.split(' ').flat_map(|piece| piece.split('\t')).filter(|piece| !piece.text.is_empty())
}

const FIELDS: [Field; 7] = [
    Field::Second,
    Field::Minute,
    Field::Hour,
    Field::Day,
    Field::Month,
    Field::Weekday,
    Field::Year,
];

fn field_names(tokens: &[Piece<'_>]) -> Option<&'static [Field]> {
    match tokens.len() {
        5 => Some(&FIELDS[1..6]),
        6 => Some(&FIELDS[..6]),
        7 => Some(&FIELDS),
        _ => None,
    }
}

/// Pasted text brings no-break spaces, full-width commas and foreign digits; they look right
/// and would otherwise show up as a baffling count of fields.
fn refuse_strange_characters(
    whole: Piece<'_>,
    tokens: &[Piece<'_>],
    fields: Option<&[Field]>,
) -> Result<(), CronError> {
    if let Some(comment) = tokens.iter().find(|token| token.text.starts_with('#')) {
        let problem = "an expression has no comments";
        return Err(comment.error(Field::Expression, problem).hint("use the schedule's `note`"));
    }
    let strange = |c: &char| !c.is_ascii_graphic() && *c != ' ' && *c != '\t';
    let Some((at, found)) = whole.text.char_indices().find(|(_, c)| strange(c)) else {
        return Ok(());
    };
    let index = tokens.iter().position(|t| (t.start..t.start + t.text.len()).contains(&at));
    let field = match (fields, index) {
        (Some(fields), Some(index)) => fields[index],
        _ => Field::Expression,
    };
    let problem = format!("U+{:04X} is not a character of cron expressions", found as u32);
    let error = whole.slice(at..at + found.len_utf8()).error(field, problem);
    Err(if found.is_whitespace() {
        error.hint("separate the fields by plain spaces or tabs")
    } else if found.is_numeric() {
        error.hint("write numbers with the digits 0-9")
    } else {
        error
    })
}

fn nickname(name: Piece<'_>, whole: Piece<'_>) -> Result<Rule, CronError> {
    let rest = whole.from(name.start + name.text.len());
    let argument = {
        let left = rest.text.len() - rest.text.trim_start_matches([' ', '\t']).len();
        let right = rest.text.trim_end_matches([' ', '\t']).len();
        rest.slice(left.min(right)..right)
    };
    let fields = match name.text.to_ascii_lowercase().as_str() {
        "@every" => return every(argument),
        "@at" => return moment(argument),
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let problem = "not a nickname; expected @yearly, @annually, @monthly, @weekly, \
                           @daily, @midnight, @hourly, @every or @at";
            return Err(name.error(Field::Expression, problem));
        }
    };
    if argument.text.is_empty() {
        rule(fields)
    } else {
        Err(argument.error(Field::Expression, format!("{} stands alone", name.text)))
    }
}

fn every(argument: Piece<'_>) -> Result<Rule, CronError> {
    let field = Field::Interval;
    if argument.text.is_empty() {
        let problem = format!("the duration is missing; expected {}", field.expected());
        return Err(argument.error(field, problem));
    }
    let Ok(interval) = duration::parse(argument.text) else {
        let problem = "not a fixed duration of at least 1s; expected one such as 45m, 1h30m or \
                       90s (units s m h d w, at most a hundred years)";
        let error = argument.error(field, problem);
        return Err(if argument.text.to_ascii_lowercase().contains(['y', 'o']) {
            error.hint("months and years vary; use @monthly, @yearly or five fields")
        } else {
            error
        });
    };
    if interval.as_secs() < 1 {
        return Err(argument.error(field, "too short; an interval is at least 1s"));
    }
    if interval.subsec_nanos() != 0 {
        return Err(argument.error(field, "not whole seconds; fires lie on whole seconds"));
    }
    Ok(Rule::Every(interval.as_secs()))
}

fn moment(argument: Piece<'_>) -> Result<Rule, CronError> {
    let field = Field::Moment;
    let problem = format!("expected {}", field.expected());
    let shape = |text: &str| {
        text.len() == 19
            && text.bytes().enumerate().all(|(at, byte)| match at {
                4 | 7 => byte == b'-',
                10 => byte == b'T',
                13 | 16 => byte == b':',
                _ => byte.is_ascii_digit(),
            })
    };
    let text = match argument.text.len() {
        16 => format!("{}:00", argument.text),
        _ => argument.text.to_owned(),
    };
    if !shape(&text) {
        let error = argument.error(field, problem);
        return Err(if argument.text.ends_with(['Z', 'z']) || argument.text.contains('+') {
            error.hint("the time is local; the offset comes from `timezone`")
        } else {
            error
        });
    }
    // jiff folds second 60 into 59.
    let reading = text.parse().ok().filter(|_| !text.ends_with(":60")).and_then(civil_seconds);
    match reading {
        Some(local) => Ok(Rule::Civil(Civil::Once(local))),
        None => Err(argument.error(field, format!("no such date or time; {problem}"))),
    }
}

fn calendar(tokens: &[Piece<'_>], fields: &[Field]) -> Result<Rule, CronError> {
    let mut calendar =
        Calendar { seconds: 1, minutes: 0, hours: 0, days: DayTable::EMPTY, years: None };
    let mut months = 0;
    let mut day = DayField::default();
    let mut weekday = WeekdayField::default();
    for (&token, &field) in tokens.iter().zip(fields) {
        match field {
            Field::Second => calendar.seconds = plain(token, field)?.low(),
            Field::Minute => calendar.minutes = plain(token, field)?.low(),
            Field::Hour => calendar.hours = plain(token, field)?.low(),
            Field::Day => day = day_field(token)?,
            Field::Month => months = plain(token, field)?.low() as u32,
            Field::Weekday => weekday = weekday_field(token)?,
            _ => calendar.years = Some(YearSet(plain(token, field)?.bits)),
        }
    }
    calendar.days = DayTable::new(months, &day, &weekday);
    if calendar.has_days() {
        return Ok(Rule::Civil(Civil::Calendar(Box::new(calendar))));
    }
    let token = tokens[fields.iter().position(|&field| field == Field::Day).unwrap_or(0)];
    let mut error = token.error(Field::Day, "can never fire: no year has such a day");
    error.kind = CronErrorKind::NeverFires;
    let late = day.days | day.near_workday;
    Err(if late >> 29 != 0 && calendar.years.is_none() {
        error.hint("L is the last day of a month, whatever its length")
    } else {
        error
    })
}

/// The numbers a field names, as bits.
struct Values {
    bits: [u64; 4],
    /// The number of the lowest bit.
    base: u32,
}

impl Values {
    const fn new(field: Field) -> Self {
        let base = if matches!(field, Field::Year) { YEAR_MIN } else { 0 };
        Self { bits: [0; 4], base }
    }

    fn insert(&mut self, value: u32) {
        let bit = value - self.base;
        self.bits[bit as usize / 64] |= 1 << (bit % 64);
    }

    const fn low(&self) -> u64 {
        self.bits[0]
    }
}

fn plain(token: Piece<'_>, field: Field) -> Result<Values, CronError> {
    let mut values = Values::new(field);
    for item in token.split(',') {
        item_values(item, field, &mut values)?;
    }
    Ok(values)
}

/// `*`, `v`, `v-v`, each with an optional `/step`.
fn item_values(item: Piece<'_>, field: Field, values: &mut Values) -> Result<(), CronError> {
    let (base, step_text) = item.split_once('/');
    let step = match step_text {
        Some(text) => step(text, item, field)?,
        None => 1,
    };
    let (min, max) = field.bounds();
    let (from, to) = if base.text == "*" {
        // Weekday 7 is Sunday again: the star means each day once.
        (min, min + field.size() - 1)
    } else {
        match base.split_once('-') {
            (single, None) => {
                let from = value(single, field)?;
                (from, if step_text.is_some() { max } else { from })
            }
            (left, Some(right)) => {
                let from = value(left, field)?;
                let sunday = field == Field::Weekday && right.text.eq_ignore_ascii_case("SUN");
                let to = if sunday { 7 } else { value(right, field)? };
                if from > to {
                    let hint = forwards(from, to, step, field);
                    let problem = "the range runs backwards";
                    return Err(item.error(field, problem).hint(format!("write {hint}")));
                }
                (from, to)
            }
        }
    };
    for value in (from..=to).step_by(step as usize) {
        values.insert(value);
    }
    Ok(())
}

/// How to say a range that wraps: `22-2` → `22-23,0-2`.
fn forwards(from: u32, to: u32, step: u32, field: Field) -> String {
    let (min, max) = field.bounds();
    // Sunday is 7 in the first part, so the second begins on Monday.
    let restart = if field == Field::Weekday { 1 } else { min };
    let part = |from: u32, to: u32| match (from == to, step) {
        (true, _) => from.to_string(),
        (false, 1) => format!("{from}-{to}"),
        (false, step) => format!("{from}-{to}/{step}"),
    };
    let first = part(from, max);
    // The step goes on over the wrap.
    let behind = (max - from) % step;
    let second = restart + (step - 1 - behind);
    if second > to { first } else { format!("{first},{}", part(second, to)) }
}

fn step(text: Piece<'_>, item: Piece<'_>, field: Field) -> Result<u32, CronError> {
    let size = field.size();
    let Some(step) = number(text.text) else {
        return Err(text.error(field, format!("expected a step from 1 to {size}")));
    };
    if step == 0 {
        return Err(text.error(field, format!("a step of 0; expected 1 to {size}")));
    }
    if step > size {
        let problem = format!("the step is larger than the field; expected 1 to {size}");
        let error = item.error(field, problem);
        return Err(match field.interval_unit() {
            Some(unit) if step < u32::MAX => error.hint(format!("write @every {step}{unit}")),
            _ => error,
        });
    }
    Ok(step)
}

fn value(text: Piece<'_>, field: Field) -> Result<u32, CronError> {
    let expected = field.expected();
    if text.text.is_empty() {
        return Err(text.error(field, format!("a value is missing; expected {expected}")));
    }
    let (min, max) = field.bounds();
    match number(text.text) {
        Some(number) if (min..=max).contains(&number) => Ok(number),
        Some(_) => Err(text.error(field, format!("out of range; expected {expected}"))),
        None => {
            field.named(text.text).ok_or_else(|| text.error(field, format!("expected {expected}")))
        }
    }
}

/// ASCII digits only; what does not fit becomes the largest number, which no field allows.
fn number(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.bytes().fold(0u32, |number, digit| {
        number.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
    }))
}

fn is_starred(token: Piece<'_>) -> bool {
    token.text.starts_with('*') || token.text == "?"
}

/// `?` may stand alone only, so it becomes `*` before the list is looked at.
fn star_for_question_mark(token: Piece<'_>) -> Piece<'_> {
    if token.text == "?" { Piece { text: "*", ..token } } else { token }
}

fn day_field(token: Piece<'_>) -> Result<DayField, CronError> {
    let field = Field::Day;
    let mut day = DayField { starred: is_starred(token), ..DayField::default() };
    let mut values = Values::new(field);
    for item in star_for_question_mark(token).split(',') {
        if item.text.eq_ignore_ascii_case("L") {
            day.from_last |= 1;
        } else if item.text.eq_ignore_ascii_case("LW") {
            day.last_workday = true;
        } else if item.text.starts_with(['L', 'l']) {
            let back = item.text[1..].strip_prefix('-').and_then(number);
            match back {
                Some(back @ 1..=30) => day.from_last |= 1 << back,
                _ => return Err(item.error(field, "expected L, LW or L-1 to L-30")),
            }
        } else if let Some(near) = item.strip_suffix_ignoring_case('W') {
            match number(near.text) {
                Some(near @ 1..=31) => day.near_workday |= 1 << near,
                _ => return Err(item.error(field, "W follows one day, 1W to 31W, or L")),
            }
        } else {
            item_values(item, field, &mut values)?;
        }
    }
    day.days = values.low() as u32;
    Ok(day)
}

fn weekday_field(token: Piece<'_>) -> Result<WeekdayField, CronError> {
    let field = Field::Weekday;
    let and = token.text.starts_with('+');
    let token = if and { token.from(1) } else { token };
    let mut weekday = WeekdayField { starred: is_starred(token), and, ..WeekdayField::default() };
    let mut values = Values::new(field);
    for item in star_for_question_mark(token).split(',') {
        if let (left, Some(right)) = item.split_once('#') {
            let bit = 1 << (value(left, field)? % 7);
            match number(right.text) {
                Some(nth @ 1..=5) => weekday.nth[nth as usize - 1] |= bit,
                _ => return Err(item.error(field, "# is followed by 1 to 5")),
            }
        } else if let Some(day) = item.strip_suffix_ignoring_case('L') {
            if day.text.is_empty() {
                let error = item.error(field, "L alone names no weekday");
                return Err(error.hint("5L is the last Friday; 6 or SAT is every Saturday"));
            }
            weekday.last |= 1 << (value(day, field)? % 7);
        } else {
            item_values(item, field, &mut values)?;
        }
    }
    let bits = values.low() as u32;
    weekday.weekdays = (bits | bits >> 7) & 0x7f;
    Ok(weekday)
}
