//! Stored forms that the databases share: how a value is written into a column, and read back.

use std::sync::Arc;
use std::time::Duration;

use matins_core::duration::{Span, Timeout};
use matins_core::retry::Backoff;
use matins_core::store::{Result, StoreError, Types, Worker};
use matins_core::task::Name;
use uuid::Uuid;

/// Numbers in the form that std reads back exactly.
pub(crate) fn write_backoff(backoff: &Backoff) -> String {
    let Backoff { initial, factor, max, jitter } = backoff;
    format!("{} {factor} {} {jitter}", initial.get().as_micros(), max.get().as_micros())
}

pub(crate) fn read_backoff(text: &str) -> Result<Backoff> {
    let parts: Vec<&str> = text.split(' ').collect();
    let span = |text: &str| Some(Span(Duration::from_micros(text.parse().ok()?)));
    let read = || match parts[..] {
        [initial, factor, max, jitter] => Some(Backoff {
            initial: span(initial)?,
            factor: factor.parse().ok()?,
            max: span(max)?,
            jitter: jitter.parse().ok()?,
        }),
        _ => None,
    };
    read().ok_or_else(|| StoreError::Broken(format!("{text:?} is not a stored backoff")))
}

const NO_TIMEOUT: i64 = -1;

pub(crate) fn write_timeout(timeout: Timeout) -> i64 {
    timeout.limit().map_or(NO_TIMEOUT, |limit| limit.as_micros() as i64)
}

pub(crate) fn read_timeout(us: i64) -> Timeout {
    match us {
        NO_TIMEOUT => Timeout::None,
        us => Timeout::After(Duration::from_micros(us as u64)),
    }
}

pub(crate) fn write_pools(worker: &Worker) -> serde_json::Result<String> {
    serde_json::to_string(&worker.pools)
}

pub(crate) fn read_pools(text: &str) -> serde_json::Result<Vec<(Name, u32)>> {
    serde_json::from_str(text)
}

/// `None`: any.
pub(crate) fn write_types(types: &Types) -> serde_json::Result<Option<String>> {
    match types {
        Types::Any => Ok(None),
        Types::Only(kinds) => serde_json::to_string(kinds).map(Some),
    }
}

pub(crate) fn read_types(text: Option<&str>) -> serde_json::Result<Types> {
    match text {
        None => Ok(Types::Any),
        Some(kinds) => Ok(Types::Only(Arc::new(serde_json::from_str(kinds)?))),
    }
}

/// First and last id that a text is the beginning of.
pub(crate) fn id_range(q: &str) -> Option<(Uuid, Uuid)> {
    let mut digits = String::new();
    for (index, c) in q.chars().enumerate() {
        match c {
            '-' if matches!(index, 8 | 13 | 18 | 23) => {}
            c if c.is_ascii_hexdigit() && !matches!(index, 8 | 13 | 18 | 23) => digits.push(c),
            _ => return None,
        }
    }
    if digits.is_empty() || digits.len() > 32 {
        return None;
    }
    let low = Uuid::try_parse(&format!("{digits:0<32}")).ok()?;
    let high = Uuid::try_parse(&format!("{digits:f<32}")).ok()?;
    Some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_comes_back_exactly() {
        for factor in [2.0, 1.1, std::f64::consts::PI, 999.999_999_999_9] {
            let backoff = Backoff { factor, jitter: 0.1 + 0.2, ..Backoff::default() };
            assert_eq!(read_backoff(&write_backoff(&backoff)).unwrap(), backoff);
        }
    }

    #[test]
    fn no_timeout_is_not_a_timeout_of_nothing() {
        for timeout in [Timeout::None, Timeout::After(Duration::from_micros(1))] {
            assert_eq!(read_timeout(write_timeout(timeout)), timeout);
        }
    }
}
