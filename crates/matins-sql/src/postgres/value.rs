//! A value of PostgreSQL as JSON, from its binary form: numbers with all their digits, instants in
//! UTC, bytes in hexadecimal, arrays as lists.

use std::error::Error;
use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time, date};
use jiff::{SignedDuration, ToSpan as _};
use tokio_postgres::types::{FromSql, Kind, Type};
use uuid::Uuid;

use crate::rows::{bytes, float, string};

/// Any value, as it came.
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Types that [`write`] can tell.
pub(super) fn is_known(ty: &Type) -> bool {
    match ty.kind() {
        Kind::Array(item) => is_known(item),
        Kind::Domain(inner) => is_known(inner),
        Kind::Enum(_) => true,
        _ => plain(ty).is_some(),
    }
}

type Writer = fn(&mut String, &[u8]) -> Option<()>;

/// `None` of a writer: the bytes are not of this type.
fn plain(ty: &Type) -> Option<Writer> {
    Some(match *ty {
        Type::BOOL => |out, raw| put(out, *raw.first()? != 0),
        Type::INT2 => |out, raw| put(out, i16::from_be_bytes(raw.try_into().ok()?)),
        Type::INT4 => |out, raw| put(out, int4(raw)?),
        Type::INT8 => |out, raw| put(out, int8(raw)?),
        Type::OID => |out, raw| put(out, u32::from_be_bytes(raw.try_into().ok()?)),
        Type::FLOAT4 => |out, raw| {
            let value = f32::from_be_bytes(raw.try_into().ok()?);
            // As many digits as it has, not those of its neighbour in f64.
            float(out, value.to_string().parse().unwrap_or(f64::from(value)));
            Some(())
        },
        Type::FLOAT8 => |out, raw| {
            float(out, f64::from_be_bytes(raw.try_into().ok()?));
            Some(())
        },
        Type::NUMERIC => numeric,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::CHAR => {
            |out, raw| quoted(out, &String::from_utf8_lossy(raw))
        }
        Type::JSON => |out, raw| put(out, std::str::from_utf8(raw).ok()?),
        Type::JSONB => |out, raw| put(out, std::str::from_utf8(raw.get(1..)?).ok()?),
        Type::UUID => |out, raw| quoted(out, &Uuid::from_slice(raw).ok()?.to_string()),
        Type::BYTEA => |out, raw| {
            bytes(out, raw);
            Some(())
        },
        Type::DATE => |out, raw| quoted(out, &day(int4(raw)?)),
        Type::TIME => |out, raw| quoted(out, &time(int8(raw)?)?.to_string()),
        Type::TIMESTAMP => |out, raw| quoted(out, &date_time(int8(raw)?)),
        Type::TIMESTAMPTZ => |out, raw| quoted(out, &instant(int8(raw)?)),
        Type::INTERVAL => |out, raw| {
            let (us, rest) = raw.split_first_chunk::<8>()?;
            let (days, months) = rest.split_first_chunk::<4>()?;
            let months = i32::from_be_bytes(months.try_into().ok()?);
            quoted(out, &interval(months, i32::from_be_bytes(*days), i64::from_be_bytes(*us)))
        },
        Type::VOID => |out, _| put(out, "null"),
        _ => return None,
    })
}

/// Adds a value to a JSON text.
pub(super) fn write(out: &mut String, ty: &Type, raw: Option<&[u8]>) {
    let Some(raw) = raw else {
        out.push_str("null");
        return;
    };
    let begin = out.len();
    let written = match (ty.kind(), plain(ty)) {
        (Kind::Array(item), _) => array(out, item, raw),
        (Kind::Domain(inner), _) => {
            write(out, inner, Some(raw));
            Some(())
        }
        (_, Some(writer)) => writer(out, raw),
        // An enumeration is its label.
        _ => quoted(out, &String::from_utf8_lossy(raw)),
    };
    if written.is_none() {
        // Not as the protocol says: what came is told.
        out.truncate(begin);
        bytes(out, raw);
    }
}

fn put(out: &mut String, value: impl std::fmt::Display) -> Option<()> {
    write!(out, "{value}").ok()
}

/// Always fits; an `Option` like that of the other writers.
#[expect(clippy::unnecessary_wraps, reason = "one form for all writers")]
fn quoted(out: &mut String, text: &str) -> Option<()> {
    string(out, text);
    Some(())
}

fn int4(raw: &[u8]) -> Option<i32> {
    Some(i32::from_be_bytes(raw.try_into().ok()?))
}

fn int8(raw: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(raw.try_into().ok()?))
}

/// Dimensions, whether there are NULLs, the items' type; then each dimension with its size and
/// first index; then the items with their lengths.
fn array(out: &mut String, item: &Type, raw: &[u8]) -> Option<()> {
    let mut rest = raw;
    let mut next = || {
        let (head, tail) = rest.split_first_chunk::<4>()?;
        rest = tail;
        Some(i32::from_be_bytes(*head))
    };
    let dimensions = next()?;
    let (_nulls, _type) = (next()?, next()?);
    let mut sizes = Vec::new();
    for _ in 0..dimensions {
        sizes.push(usize::try_from(next()?).ok()?);
        next()?;
    }
    if sizes.is_empty() {
        sizes.push(0);
    }
    items(out, item, &sizes, &mut rest)
}

fn items(out: &mut String, item: &Type, sizes: &[usize], rest: &mut &[u8]) -> Option<()> {
    let (size, inner) = sizes.split_first()?;
    out.push('[');
    for index in 0..*size {
        if index > 0 {
            out.push(',');
        }
        if !inner.is_empty() {
            items(out, item, inner, rest)?;
            continue;
        }
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let length = i32::from_be_bytes(*length);
        let Ok(length) = usize::try_from(length) else {
            *rest = tail;
            write(out, item, None);
            continue;
        };
        write(out, item, Some(tail.get(..length)?));
        *rest = &tail[length..];
    }
    out.push(']');
    Some(())
}

/// Groups of four digits, the place of the first, a sign, digits behind the point.
fn numeric(out: &mut String, raw: &[u8]) -> Option<()> {
    let words: Vec<u16> =
        raw.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
    let (head, groups) = words.split_first_chunk::<4>()?;
    let [count, weight, sign, scale] = *head;
    let weight = i32::from(weight.cast_signed());
    match sign {
        0x0000 => {}
        0x4000 => out.push('-'),
        0xC000 => return put(out, "\"NaN\""),
        0xD000 => return put(out, "\"Infinity\""),
        0xF000 => return put(out, "\"-Infinity\""),
        _ => return None,
    }
    let groups = groups.get(..usize::from(count))?;
    let group = |place: i32| {
        let index = usize::try_from(weight - place).ok();
        index.and_then(|index| groups.get(index)).copied().unwrap_or(0)
    };
    put(out, group(weight.max(0)))?;
    for place in (0..weight.max(0)).rev() {
        write!(out, "{:04}", group(place)).ok()?;
    }
    let mut fraction = String::new();
    for place in 1..=i32::from(scale).div_euclid(4) + 1 {
        write!(fraction, "{:04}", group(-place)).ok()?;
    }
    if scale > 0 {
        out.push('.');
        out.push_str(&fraction[..usize::from(scale)]);
    }
    Some(())
}

const EPOCH: Date = date(2000, 1, 1);
const EPOCH_US: i64 = 946_684_800_000_000;

fn infinite(is_first: bool) -> String {
    if is_first { "-infinity" } else { "infinity" }.to_owned()
}

fn day(days: i32) -> String {
    if days == i32::MIN || days == i32::MAX {
        return infinite(days < 0);
    }
    let known = EPOCH.checked_add(days.days());
    known.map_or_else(|_| format!("2000-01-01 + {days} days"), |date| date.to_string())
}

fn time(us: i64) -> Option<Time> {
    // 24:00:00 is a time of its own there.
    Time::midnight().checked_add(SignedDuration::from_micros(us.min(86_399_999_999))).ok()
}

fn date_time(us: i64) -> String {
    if us == i64::MIN || us == i64::MAX {
        return infinite(us < 0);
    }
    let epoch: DateTime = EPOCH.at(0, 0, 0, 0);
    let known = epoch.checked_add(SignedDuration::from_micros(us));
    known.map_or_else(|_| format!("2000-01-01T00:00:00 + {us} us"), |time| time.to_string())
}

fn instant(us: i64) -> String {
    if us == i64::MIN || us == i64::MAX {
        return infinite(us < 0);
    }
    let known = Timestamp::from_microsecond(us.saturating_add(EPOCH_US));
    known.map_or_else(|_| format!("2000-01-01T00:00:00Z + {us} us"), |at| at.to_string())
}

/// ISO 8601.
fn interval(months: i32, days: i32, us: i64) -> String {
    let mut text = "P".to_owned();
    let (years, months) = (months / 12, months % 12);
    for (value, unit) in [(years, 'Y'), (months, 'M'), (days, 'D')] {
        if value != 0 {
            let _ = write!(text, "{value}{unit}");
        }
    }
    let (minutes, us) = (us / 60_000_000, us % 60_000_000);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    if (hours, minutes, us) != (0, 0, 0) || text.len() == 1 {
        text.push('T');
        for (value, unit) in [(hours, 'H'), (minutes, 'M')] {
            if value != 0 {
                let _ = write!(text, "{value}{unit}");
            }
        }
        if us != 0 || text.ends_with('T') {
            let sign = if us < 0 { "-" } else { "" };
            let (secs, us) = (us.unsigned_abs() / 1_000_000, us.unsigned_abs() % 1_000_000);
            let fraction = format!("{us:06}");
            let fraction = fraction.trim_end_matches('0');
            let point = if fraction.is_empty() { "" } else { "." };
            let _ = write!(text, "{sign}{secs}{point}{fraction}S");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_written_as_iso_8601() {
        for (value, expected) in [
            ((0, 0, 0), "PT0S"),
            ((14, 3, 0), "P1Y2M3D"),
            ((0, 0, 3_723_500_000), "PT1H2M3.5S"),
            ((0, -1, -500_000), "P-1DT-0.5S"),
        ] {
            assert_eq!(interval(value.0, value.1, value.2), expected);
        }
    }

    #[test]
    fn bytes_that_are_not_of_the_type_are_told_as_they_are() {
        let mut out = String::new();
        write(&mut out, &Type::INT4, Some(&[1, 2]));
        write(&mut out, &Type::INT4_ARRAY, Some(&[0, 0, 0, 1]));
        assert_eq!(out, r#""\\x0102""\\x00000001""#);
    }
}
