//! The ledger of keys, as people read and clear it.

use std::sync::Arc;

use matins_core::store::{Act, LedgerEntry};
use matins_core::task::TaskId;
use rusqlite::params;
use uuid::Uuid;

use super::enqueue::Holder;
use super::error::Res;
use super::reader::Reader;
use super::sql::Sql;
use super::tx::Tx;

impl Reader {
    pub(super) fn ledger(&mut self, kind: &str, key: &str) -> Res<Option<LedgerEntry>> {
        let Some(kind_id) = self.known_name(kind)? else { return Ok(None) };
        let entry: Option<(Uuid, Option<i64>, Option<Arc<str>>)> =
            self.one(Sql::KeyGet, params![kind_id, key], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        let Some((id, at, kept)) = entry else { return Ok(None) };
        let row = self.stored_by_id(TaskId(id))?;
        Ok(Some(Holder::new(&kind.into(), key, id, at, kept, row)?.entry))
    }
}

impl Tx<'_> {
    pub(super) fn forget_key(&mut self, kind: &str, key: &str, act: &Act) -> Res<bool> {
        let Some(kind_id) = self.known_name(kind)? else { return Ok(false) };
        let holder = self.key_holder(&kind.into(), key)?;
        let Some(holder) = holder.filter(|holder| !holder.state.is_live()) else {
            return Ok(false);
        };
        self.run(Sql::KeyFree, params![kind_id, key, holder.entry.task_id.0])?;
        self.audit_act("ledger.forget", &format!("{kind}/{key}"), act)?;
        Ok(true)
    }
}
