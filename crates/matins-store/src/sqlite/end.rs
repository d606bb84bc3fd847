//! A task ends, and what waited for it goes on: its key, its schedule, its concurrency key.

use std::sync::Arc;

use rusqlite::params;

use super::error::Res;
use super::lanes::Place;
use super::row::Facts;
use super::sql::Sql;
use super::tx::Tx;

/// How a task left the living.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Completed,
    Failed,
    Cancelled,
}

impl Tx<'_> {
    /// Cancels a task that waits.
    pub(super) fn cancel_pending(&mut self, task: &Facts, reason: &str, at: i64) -> Res<()> {
        self.leave(task)?;
        self.cancel_left(task, reason, at)
    }

    /// Cancels a task that waited until just now.
    pub(super) fn cancel_left(&mut self, task: &Facts, reason: &str, at: i64) -> Res<()> {
        self.run(Sql::TaskCancel, params![task.seq, at, reason])?;
        self.mem.lanes.add(task.lane, Place::Cancelled, 1)?;
        self.let_go(task, Ending::Cancelled, at)
    }

    /// Completes a task that waited until just now with the result of the one that had its key.
    pub(super) fn deduplicate_left(
        &mut self,
        task: &Facts,
        result: Option<&Arc<str>>,
        at: i64,
    ) -> Res<()> {
        self.run(Sql::TaskDeduplicate, params![task.seq, at, result])?;
        self.mem.lanes.add(task.lane, Place::Completed, 1)?;
        self.let_go(task, Ending::Completed, at)
    }

    /// What a task held, it holds no longer. Its own row has been written.
    pub(super) fn let_go(&mut self, task: &Facts, ending: Ending, at: i64) -> Res<()> {
        // A completed task keeps its key: its row says so.
        if let Some(key) = &task.execution_key
            && ending != Ending::Completed
        {
            let kind = self.mem.lanes.get(task.lane)?.kind_id;
            self.run(Sql::KeyFree, params![kind, &**key, task.id])?;
        }
        let Some(uid) = task.schedule_uid else { return Ok(()) };
        self.run(Sql::LiveDelete, params![uid, task.held, task.seq])?;
        match ending {
            Ending::Completed => self.run(Sql::FailuresClear, params![uid])?,
            Ending::Failed => self.run(Sql::FailuresAdd, params![uid])?,
            Ending::Cancelled => 0,
        };
        self.release_held(uid, at)
    }
}
