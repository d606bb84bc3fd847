//! Schemas of values whose types belong to the core, which knows no schemas.

use matins_core::State;
use matins_core::schedule::{BackfillMode, CatchUp, Fold, Gap, OnResume, Overlap};
use matins_core::task::{AttemptOutcome, ErrorClass, OnDuplicate};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Serialize;

/// Any JSON value; kept and given back byte for byte.
pub fn json(_: &mut SchemaGenerator) -> Schema {
    json_schema!(true)
}

pub fn uuid(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "uuid" })
}

pub fn optional_uuid(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "null"], "format": "uuid" })
}

/// A length of time on the way in.
pub fn duration_in() -> Schema {
    json_schema!({
        "type": ["number", "string"],
        "minimum": 0,
        "examples": [300, 0.2, "200ms", "5m", "1h30m"]
    })
}

pub fn duration(_: &mut SchemaGenerator) -> Schema {
    duration_in()
}

pub fn seconds(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "number", "minimum": 0, "description": "Seconds." })
}

pub fn optional_seconds(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["number", "null"], "minimum": 0, "description": "Seconds." })
}

/// A limit on the way in.
pub fn timeout(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["number", "string", "null"],
        "description": "A duration above zero, or `none`; null: as the type's policy says.",
        "examples": [300, "5m", "none"]
    })
}

/// A limit on the way out: seconds, or `none`.
pub fn timeout_out(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "oneOf": [{ "type": "number" }, { "const": "none" }] })
}

pub fn backoff(_: &mut SchemaGenerator) -> Schema {
    let span = duration_in();
    json_schema!({
        "type": "object",
        "additionalProperties": false,
        "description": "min(initial × factor^n, max), less a jitter of up to that share.",
        "properties": {
            "initial": span,
            "factor": { "type": "number", "minimum": 1, "maximum": 1000, "default": 2 },
            "max": span,
            "jitter": { "type": "number", "minimum": 0, "maximum": 1, "default": 0.1 }
        }
    })
}

pub fn window(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["number", "string"],
        "description": "A duration, or `auto`: the longer of 24 h and one period.",
        "examples": ["auto", "24h"]
    })
}

pub fn blackout(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["from", "to"],
            "properties": { "from": { "type": "string" }, "to": { "type": "string" } }
        }
    })
}

pub fn dst(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "gap": words(&[Gap::Run, Gap::Skip]),
            "fold": words(&[Fold::First, Fold::Second, Fold::Both])
        }
    })
}

/// The words of an enumeration as the core writes them.
fn words<T: Serialize>(values: &[T]) -> Schema {
    let words: Vec<serde_json::Value> =
        values.iter().filter_map(|value| serde_json::to_value(value).ok()).collect();
    json_schema!({ "type": "string", "enum": words })
}

pub fn state(_: &mut SchemaGenerator) -> Schema {
    words(&State::ALL)
}

pub fn states(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": state(generator) })
}

pub fn outcome(_: &mut SchemaGenerator) -> Schema {
    let mut words = words(&AttemptOutcome::ALL);
    words.insert("description".to_owned(), "null while it runs".into());
    json_schema!({ "oneOf": [words, { "type": "null" }] })
}

pub fn class(_: &mut SchemaGenerator) -> Schema {
    words(&ErrorClass::ALL)
}

pub fn on_duplicate(_: &mut SchemaGenerator) -> Schema {
    words(&[OnDuplicate::Return, OnDuplicate::Reject, OnDuplicate::Replace])
}

pub fn catch_up(_: &mut SchemaGenerator) -> Schema {
    words(&[CatchUp::Latest, CatchUp::All, CatchUp::None])
}

pub fn overlap(_: &mut SchemaGenerator) -> Schema {
    words(&[
        Overlap::Skip,
        Overlap::BufferOne,
        Overlap::BufferAll,
        Overlap::CancelPrevious,
        Overlap::Allow,
    ])
}

pub fn on_resume(_: &mut SchemaGenerator) -> Schema {
    words(&[OnResume::Skip, OnResume::Latest, OnResume::All])
}

pub fn backfill_mode(_: &mut SchemaGenerator) -> Schema {
    words(&[BackfillMode::Missing, BackfillMode::MissingFailed, BackfillMode::All])
}
