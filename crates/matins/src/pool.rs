//! A pool as the program asks for it.

use std::collections::BTreeSet;

use matins_core::task::Name;
use matins_runtime::rules::PoolRule;

/// Slots of their own for some types, so that one kind of work cannot hold up another.
#[derive(Debug, Clone)]
pub struct Pool {
    pub(crate) name: Name,
    pub(crate) rule: PoolRule,
}

impl Pool {
    pub fn new(name: impl Into<Name>, max_workers: u32) -> Self {
        Self { name: name.into(), rule: PoolRule { max_workers, types: BTreeSet::new() } }
    }

    /// The types that run in this pool unless a task says otherwise.
    pub fn types<T: Into<Name>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        self.rule.types.extend(types.into_iter().map(Into::into));
        self
    }
}
