//! Long acts of people, followed by id and resumed after a restart.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Json;
use crate::dead_letter::DeadLetterFilter;
use crate::schedule::BackfillMode;
use crate::task::TaskId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    Running,
    Completed,
    /// Stopped by itself: the canary failed, or the work could not be done.
    Stopped,
}

/// What an operation does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case")]
pub enum OperationKind {
    Replay {
        ids: Option<Vec<TaskId>>,
        filter: Option<DeadLetterFilter>,
        payload: Option<Json>,
        /// One first, the rest only when it has completed.
        canary: bool,
        canary_id: Option<TaskId>,
        /// Most replays per minute.
        per_minute: Option<u32>,
        /// Position in `ids`, or cursor in the list that `filter` selects, so that a restart
        /// goes on where it stopped.
        done: Option<String>,
    },
    Backfill {
        schedule: String,
        from: Timestamp,
        to: Timestamp,
        mode: BackfillMode,
        concurrency: u32,
        /// Everything up to here is started.
        done_to: Option<Timestamp>,
        /// Its tasks that have not ended.
        live: Vec<TaskId>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    pub id: Uuid,
    pub kind: OperationKind,
    pub state: OperationState,
    pub by: String,
    pub reason: Option<String>,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub total: u64,
    pub replayed: u64,
    pub deduplicated: u64,
    pub failed: u64,
    /// Why it stopped, or what it waits for.
    pub detail: Option<String>,
}
