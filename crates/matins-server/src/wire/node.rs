//! What a node and its store say of themselves.

use std::collections::BTreeMap;

use matins_core::duration::Span;
use matins_core::store::Part;
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::pool::FrozenView;
use super::schema;

/// The loops of this process.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HealthAnswer {
    /// `ok`, `degraded` (the store does not answer) or `stalled` (a loop does not turn).
    pub status: &'static str,
    /// Loops that do not turn.
    pub stalled: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ReadyAnswer {
    /// `ready`, or `not_ready`.
    pub status: &'static str,
    /// Parts of the store that it works without, if it must: `up` or `down`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<&'static str, &'static str>,
}

/// A store at a glance.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusAnswer {
    pub version: &'static str,
    /// `normal`; `degraded` while the store, or a part of it, does not answer; `outage` while the
    /// database is away and tasks are journalled: figures are then as they were last.
    pub mode: &'static str,
    /// The state of this process: `ok`, `degraded` or `stalled`.
    pub health: &'static str,
    pub node_id: Option<String>,
    /// Seconds since a scheduler last beat; null: none ever did.
    #[schemars(schema_with = "schema::optional_seconds")]
    pub heartbeat_age: Option<Span>,
    /// Tasks by state.
    pub tasks: BTreeMap<&'static str, u64>,
    /// Due tasks by pool.
    pub ready: BTreeMap<String, u64>,
    /// Seconds that the foremost ready task of a pool has waited.
    #[schemars(with = "BTreeMap<String, f64>")]
    pub oldest_ready: BTreeMap<String, Span>,
    pub dead_letters: u64,
    pub schedules_overdue: u64,
    /// Live workers.
    pub workers: usize,
    /// Null: the store works.
    pub frozen: Option<FrozenView>,
    pub store: StoreView,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Store")]
pub struct StoreView {
    /// `sqlite`, `postgres`, `memory`.
    pub kind: &'static str,
    #[schemars(schema_with = "schema::uuid")]
    pub store_id: Uuid,
    pub schema_version: u32,
    /// What it works without, if it must.
    pub parts: Vec<PartView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StorePart")]
pub struct PartView {
    /// `redis`.
    pub kind: &'static str,
    /// Whether it answers.
    pub up: bool,
    /// Its own version, as last seen.
    pub version: String,
    /// What it counts, by the names of the metrics.
    pub figures: BTreeMap<&'static str, u64>,
}

impl From<Part> for PartView {
    fn from(part: Part) -> Self {
        let figures = part.figures.iter().map(|figure| (figure.name, figure.value)).collect();
        Self { kind: part.kind, up: part.up, version: part.version, figures }
    }
}
