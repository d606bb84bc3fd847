//! Instants as PostgreSQL keeps them: microseconds since 2000-01-01 UTC.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use jiff::Timestamp;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// 2000-01-01 in microseconds since 1970.
const EPOCH_US: i64 = 946_684_800_000_000;

/// 4713-01-01 BC, the first that PostgreSQL can store.
const FIRST_US: i64 = -210_866_803_200_000_000;

/// How PostgreSQL writes `-infinity`.
const MINUS_INFINITY: i64 = i64::MIN;

/// A `timestamptz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At(pub(super) Timestamp);

impl ToSql for At {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let us = self.0.as_microsecond();
        // What lies before all that PostgreSQL knows is before everything.
        out.put_i64(if us < FIRST_US { MINUS_INFINITY } else { us - EPOCH_US });
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for At {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let us = i64::from_be_bytes(raw.try_into()?);
        if us == MINUS_INFINITY {
            return Ok(Self(Timestamp::MIN));
        }
        Ok(Self(Timestamp::from_microsecond(us.saturating_add(EPOCH_US))?))
    }

    accepts!(TIMESTAMPTZ);
}

pub(super) fn opt_at(at: Option<Timestamp>) -> Option<At> {
    at.map(At)
}

/// An instant in a JSON text, to the microsecond like everywhere.
pub(super) fn stamp(at: Timestamp) -> String {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at).to_string()
}
