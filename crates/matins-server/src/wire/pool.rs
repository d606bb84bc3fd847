//! Pools and the switches of a store.

use std::collections::BTreeMap;

use matins_core::store::{Frozen, PoolSetting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Time;

/// A pool over all nodes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Pool")]
pub struct PoolView {
    pub name: String,
    pub paused: bool,
    /// Why it is paused.
    pub note: Option<String>,
    /// Workers per node: as set by `resize`, else as this node's file says.
    pub size: Option<u32>,
    /// `size` was set by `resize`.
    pub resized: bool,
    /// Tasks that run.
    pub busy: u64,
    /// Tasks that are due and may run.
    pub ready: u64,
    /// How long the foremost ready task has waited, in seconds.
    #[schemars(schema_with = "super::schema::optional_seconds")]
    pub oldest_ready: Option<matins_core::duration::Span>,
    /// Tasks by state.
    pub tasks: BTreeMap<&'static str, u64>,
    /// Live workers that serve it, and their slots.
    pub workers: Vec<PoolWorker>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolWorker {
    pub id: String,
    pub slots: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolList {
    pub pools: Vec<PoolView>,
}

/// What people set on a pool; it outlives restarts.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PoolSetting")]
pub struct SettingView<'a> {
    name: &'a str,
    paused: bool,
    note: Option<&'a str>,
    /// Null: as the file says.
    size: Option<u32>,
}

impl<'a> SettingView<'a> {
    pub fn new(name: &'a str, setting: &'a PoolSetting) -> Self {
        Self { name, paused: setting.paused, note: setting.note.as_deref(), size: setting.size }
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolNoteBody {
    /// Why, for whoever finds it so.
    pub note: Option<String>,
}

/// Workers per node, or `default` for what the file says.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeBody {
    pub size: Size,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub Option<u32>);

struct SizeVisitor;

impl serde::de::Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a whole number of at least 1, or \"default\"")
    }

    fn visit_u64<E: serde::de::Error>(self, size: u64) -> Result<Size, E> {
        match u32::try_from(size) {
            Ok(size) if size > 0 => Ok(Size(Some(size))),
            _ => Err(E::invalid_value(serde::de::Unexpected::Unsigned(size), &self)),
        }
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Size, E> {
        match word {
            "default" => Ok(Size(None)),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl JsonSchema for Size {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "oneOf": [{ "type": "integer", "minimum": 1 }, { "const": "default" }]
        })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FreezeBody {
    /// Whoever finds the store frozen will ask.
    pub reason: String,
}

/// Who froze the store, when and why.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Frozen")]
pub struct FrozenView {
    by: String,
    at: Time,
    reason: String,
}

impl From<Frozen> for FrozenView {
    fn from(frozen: Frozen) -> Self {
        Self { by: frozen.by, at: Time(frozen.at), reason: frozen.reason }
    }
}

/// Whether anything is claimed or fires at all.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FreezeAnswer {
    /// Null: the store works.
    pub frozen: Option<FrozenView>,
}
