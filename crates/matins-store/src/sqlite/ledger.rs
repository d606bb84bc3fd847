//! The ledger of keys, as people read and clear it.

use std::sync::Arc;

use matins_core::Json;
use matins_core::store::{Act, LedgerEntry};
use matins_core::task::{State, TaskId};
use rusqlite::params;
use uuid::Uuid;

use super::error::{Failure, Res};
use super::reader::Reader;
use super::sql::Sql;
use super::time::ts;
use super::tx::Tx;

impl Reader {
    pub(super) fn ledger(&mut self, kind: &str, key: &str) -> Res<Option<LedgerEntry>> {
        let Some(kind_id) = self.known_name(kind)? else { return Ok(None) };
        let entry: Option<(Uuid, Option<i64>, Option<Arc<str>>)> =
            self.one(Sql::KeyGet, params![kind_id, key], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        let Some((id, completed_at, kept)) = entry else { return Ok(None) };
        let task = self.stored_by_id(TaskId(id))?.map(|stored| stored.task);
        let (state, at, result) = match (completed_at, task) {
            (Some(at), task) => {
                let result = task.and_then(|task| task.result).or(kept.map(Json::trusted));
                (State::Completed, ts(at), result)
            }
            (None, Some(task)) => {
                let started = task.started_at.filter(|_| task.state == State::Running);
                (task.state, started.unwrap_or(task.created_at), None)
            }
            (None, None) => return Err(Failure::broken(format!("live task {id} has no row"))),
        };
        Ok(Some(LedgerEntry {
            kind: kind.into(),
            execution_key: key.into(),
            task_id: TaskId(id),
            state,
            result,
            at,
        }))
    }
}

impl Tx<'_> {
    pub(super) fn forget_key(&mut self, kind: &str, key: &str, act: &Act) -> Res<bool> {
        let Some(kind_id) = self.known_name(kind)? else { return Ok(false) };
        if self.run(Sql::KeyForget, params![kind_id, key])? == 0 {
            return Ok(false);
        }
        self.audit_act("ledger.forget", &format!("{kind}/{key}"), act)?;
        Ok(true)
    }
}
