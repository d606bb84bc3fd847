//! Switches of a whole store, and how one change of them is applied. It never reads a store: the
//! merge of a change with what is stored happens inside the store's own transaction.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::rate::Rate;
use crate::task::Name;

/// Limits of a type that hold over all nodes. Written by the node whose file defines the type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeLimit {
    pub kind: Name,
    pub rate_limit: Option<Rate>,
    pub concurrency: Option<u32>,
    /// JSON pointer into the payload that yields the `concurrency_key`.
    pub concurrency_key: Option<String>,
    pub per_key: u32,
}

/// What people set on a pool; outlives restarts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PoolSetting {
    pub paused: bool,
    pub note: Option<String>,
    /// Overrides `max_workers` on every node.
    pub size: Option<u32>,
}

/// A change of a pool; fields that are `None` stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolChange {
    pub paused: Option<bool>,
    /// Why it is paused: a pause brings its own or none, and nothing else touches it.
    pub note: Option<String>,
    /// `Some(None)`: back to the size of the file.
    pub size: Option<Option<u32>>,
}

impl PoolSetting {
    pub fn apply(&mut self, change: &PoolChange) {
        if let Some(paused) = change.paused {
            self.paused = paused;
            self.note = change.note.clone().filter(|_| paused);
        }
        if let Some(size) = change.size {
            self.size = size;
        }
    }
}

/// Switches of a whole store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Nothing is claimed and nothing fires.
    pub frozen: Option<Frozen>,
    pub pools: BTreeMap<Name, PoolSetting>,
    pub limits: BTreeMap<Name, TypeLimit>,
    /// The pool of each type that a file puts in one, for those who enqueue in the database
    /// itself.
    pub routes: BTreeMap<Name, Name>,
    /// Sizes that hold for them, by the name of the limit.
    pub sizes: BTreeMap<Name, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    pub by: String,
    pub at: Timestamp,
    pub reason: String,
}

/// One change of [`Settings`].
#[derive(Debug, Clone, PartialEq)]
pub enum SettingChange {
    Freeze(Frozen),
    Thaw,
    Pool {
        name: Name,
        change: PoolChange,
    },
    /// Replaces the limits of these types; types not named keep theirs.
    Limits(Vec<TypeLimit>),
    /// Sets the pools of these types, or takes them away; types not named keep theirs.
    Routes(BTreeMap<Name, Option<Name>>),
    /// Replaces the sizes of these names.
    Sizes(BTreeMap<Name, u64>),
}
