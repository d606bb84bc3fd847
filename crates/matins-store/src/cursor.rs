//! Cursors: `LIST:POSITION`, so that one of another list is refused.

use std::fmt::Display;
use std::str::FromStr;

use matins_core::page::{PAGE_MAX, PageRequest};
use matins_core::store::{Result, StoreError};

pub(crate) fn limit(page: &PageRequest) -> usize {
    page.limit.clamp(1, PAGE_MAX)
}

pub(crate) fn write(list: &str, position: &impl Display) -> String {
    format!("{list}:{position}")
}

/// The position as it was written.
pub(crate) fn text<'p>(list: &str, page: &'p PageRequest) -> Result<Option<&'p str>> {
    let Some(cursor) = page.cursor.as_deref() else { return Ok(None) };
    let position = cursor.strip_prefix(list).and_then(|rest| rest.strip_prefix(':'));
    position.map(Some).ok_or_else(|| refused(list))
}

pub(crate) fn number<T: FromStr>(list: &str, page: &PageRequest) -> Result<Option<T>> {
    let Some(position) = text(list, page)? else { return Ok(None) };
    position.parse().map(Some).map_err(|_| refused(list))
}

/// Two numbers with a comma between them.
pub(crate) fn pair(list: &str, page: &PageRequest) -> Result<Option<(i64, i64)>> {
    let Some(position) = text(list, page)? else { return Ok(None) };
    let pair = position.split_once(',');
    let pair = pair.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    pair.map(Some).ok_or_else(|| refused(list))
}

pub(crate) fn refused(list: &str) -> StoreError {
    StoreError::Invalid {
        field: "cursor",
        message: format!("expected a cursor that this list of {list} gave out"),
    }
}
