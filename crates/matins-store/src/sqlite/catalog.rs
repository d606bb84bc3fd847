//! Interned names and lanes by number. Both are written once and never changed or deleted, so
//! what a connection has seen committed it may keep for ever.

use matins_core::task::Name;
use rusqlite::{Connection, OptionalExtension, params};

use super::error::{Failure, Res};
use super::sql::Sql;

#[derive(Debug, Default)]
pub(super) struct Catalog {
    names: Vec<Option<Name>>,
    lanes: Vec<Option<(Name, Name)>>,
}

fn slot<T: Clone>(list: &mut Vec<Option<T>>, id: i64) -> &mut Option<T> {
    let index = id.max(0) as usize;
    if list.len() <= index {
        list.resize(index + 1, None);
    }
    &mut list[index]
}

impl Catalog {
    pub(super) fn name(&mut self, conn: &Connection, id: i64) -> Res<Name> {
        if let Some(Some(name)) = self.names.get(id as usize) {
            return Ok(name.clone());
        }
        let text: Option<String> = conn
            .prepare_cached(Sql::NameText.text())?
            .query_row(params![id], |row| row.get(0))
            .optional()?;
        let name: Name = text.ok_or_else(|| Failure::broken(format!("no name {id}")))?.into();
        *slot(&mut self.names, id) = Some(name.clone());
        Ok(name)
    }

    /// Pool and type of a lane.
    pub(super) fn lane(&mut self, conn: &Connection, id: i64) -> Res<(Name, Name)> {
        if let Some(Some(lane)) = self.lanes.get(id as usize) {
            return Ok(lane.clone());
        }
        let found: Option<(i64, i64)> = conn
            .prepare_cached(Sql::LaneGet.text())?
            .query_row(params![id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let (pool, kind) = found.ok_or_else(|| Failure::broken(format!("no lane {id}")))?;
        let lane = (self.name(conn, pool)?, self.name(conn, kind)?);
        *slot(&mut self.lanes, id) = Some(lane.clone());
        Ok(lane)
    }

    /// What a rolled-back transaction may have put here never was.
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.lanes.clear();
    }
}
