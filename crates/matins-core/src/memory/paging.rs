//! Pages of a list by position, so that a later write does not move a reader.

use crate::page::{PAGE_MAX, Page, PageRequest};
use crate::store::{Result, StoreError};

/// A position in a list: unique in it, and smaller the earlier it comes.
pub(super) trait Position: Ord + Sized {
    fn encode(&self) -> String;
    fn decode(text: &str) -> Option<Self>;
}

impl Position for String {
    fn encode(&self) -> String {
        self.clone()
    }

    fn decode(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Position for (i64, i64) {
    fn encode(&self) -> String {
        format!("{},{}", self.0, self.1)
    }

    fn decode(text: &str) -> Option<Self> {
        let (first, second) = text.split_once(',')?;
        Some((first.parse().ok()?, second.parse().ok()?))
    }
}

/// Cuts a page out of `rows`. `list` names the list, so that a cursor of another one is refused.
pub(super) fn page<P: Position, T>(
    mut rows: Vec<(P, T)>,
    request: &PageRequest,
    list: &str,
) -> Result<Page<T>> {
    let after = request.cursor.as_deref().map(|cursor| position(cursor, list)).transpose()?;
    rows.retain(|(position, _)| after.as_ref().is_none_or(|after| position > after));
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    let limit = request.limit.clamp(1, PAGE_MAX);
    let next = (rows.len() > limit).then(|| format!("{list}:{}", rows[limit - 1].0.encode()));
    rows.truncate(limit);
    Ok(Page { items: rows.into_iter().map(|(_, item)| item).collect(), next })
}

fn position<P: Position>(cursor: &str, list: &str) -> Result<P> {
    let text = cursor.strip_prefix(list).and_then(|rest| rest.strip_prefix(':'));
    text.and_then(P::decode).ok_or_else(|| StoreError::Invalid {
        field: "cursor",
        message: format!("expected a cursor that this list of {list} gave out"),
    })
}
