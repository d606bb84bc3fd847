//! Named limits. Each is enforced where data enters; none is enforced by cutting in silence.

use serde::{Deserialize, Serialize};

/// Sizes in bytes unless the name says otherwise. Set under `limits:` in `matins.yaml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest payload of a task.
    pub payload_bytes: usize,
    /// Largest result that is kept; a larger one is dropped and its size recorded.
    pub result_bytes: usize,
    /// Output kept per attempt: the first quarter and the last three quarters.
    pub output_bytes: usize,
    /// Longest `execution_key`, `concurrency_key` and name.
    pub key_bytes: usize,
    /// Most tasks in one batch.
    pub batch_items: usize,
    /// Largest body of a batch.
    pub batch_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: 1 << 20,
            result_bytes: 256 << 10,
            output_bytes: 64 << 10,
            key_bytes: 255,
            batch_items: 10_000,
            batch_bytes: 64 << 20,
        }
    }
}

/// Longest error text kept with an attempt.
pub const ERROR_BYTES_MAX: usize = 8 << 10;
/// Most tags on a task, and the longest one.
pub const TAGS_MAX: usize = 32;
pub const TAG_BYTES_MAX: usize = 100;
/// Longest type, pool, schedule and worker name.
pub const NAME_BYTES_MAX: usize = 200;
/// Bounds of `priority`.
pub const PRIORITY_MAX: i16 = 100;
/// Most retries a policy may ask for.
pub const RETRIES_MAX: u32 = 1_000_000;
