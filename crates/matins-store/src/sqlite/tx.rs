//! A write transaction: the connection, what is kept in memory about the file, and the prepared
//! statements in use.
//!
//! Nothing in memory is trusted across transactions without a look at `data_version`: another
//! process, or the caller's own connection, may have written in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use matins_core::store::Settings;
use matins_core::task::Name;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row, params};

use super::catalog::Catalog;
use super::error::Res;
use super::lanes::Lanes;
use super::sql::Sql;

/// What is remembered between transactions.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// `data_version` at which the rest was read; `None`: it is worth nothing.
    version: Option<i64>,
    /// `data_version` when it was last looked at, and whether it had changed since the time
    /// before.
    seen: Option<i64>,
    foreign: bool,
    /// The latest `now` that anything was put in line by. Shared with whoever looks at the line.
    pub(super) clock: Arc<AtomicI64>,
    pub(super) catalog: Catalog,
    name_ids: HashMap<Name, i64>,
    pub(super) lanes: Lanes,
    pub(super) settings: Settings,
    /// Per type: until when its rate limit is spent.
    pub(super) spent: HashMap<i64, i64>,
    pub(super) fence: i64,
    saved_fence: i64,
}

impl Memory {
    /// After a rollback: what it holds may never have happened.
    pub(super) fn forget(&mut self) {
        self.version = None;
        self.catalog.clear();
        self.name_ids.clear();
    }

    /// What was in line at this time may be believed to be.
    pub(super) fn advance(&self, now: i64) {
        self.clock.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn observe(&mut self, version: i64) {
        let before = self.seen.replace(version);
        self.foreign |= before.is_some_and(|before| before != version);
    }

    /// Whether somebody else has written since the last call.
    pub(super) fn take_foreign(&mut self) -> bool {
        std::mem::take(&mut self.foreign)
    }
}

/// Prepared statements of a transaction, found by number.
pub(super) struct Statements<'a> {
    conn: &'a Connection,
    slots: Vec<Option<CachedStatement<'a>>>,
}

impl<'a> Statements<'a> {
    fn new(conn: &'a Connection) -> Self {
        Self { conn, slots: Sql::ALL.iter().map(|_| None).collect() }
    }

    pub(super) fn get(&mut self, sql: Sql) -> Res<&mut CachedStatement<'a>> {
        match &mut self.slots[sql as usize] {
            Some(statement) => Ok(statement),
            empty => Ok(empty.insert(self.conn.prepare_cached(sql.text())?)),
        }
    }
}

pub(super) struct Tx<'a> {
    pub(super) conn: &'a Connection,
    pub(super) mem: &'a mut Memory,
    pub(super) stmts: Statements<'a>,
}

impl<'a> Tx<'a> {
    /// Inside a transaction that has begun. Brings `mem` up to date.
    pub(super) fn new(conn: &'a Connection, mem: &'a mut Memory) -> Res<Self> {
        let mut tx = Self { conn, mem, stmts: Statements::new(conn) };
        let version: Option<i64> = tx.one(Sql::DataVersion, params![], |row| row.get(0))?;
        if let Some(version) = version {
            tx.mem.observe(version);
        }
        if version.is_none() || tx.mem.version != version {
            tx.load()?;
            tx.mem.version = version;
        }
        Ok(tx)
    }

    fn load(&mut self) -> Res<()> {
        self.load_lanes()?;
        self.load_settings()?;
        let spent = self.all(Sql::RateLoad, params![], |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.mem.spent = spent.into_iter().collect();
        self.mem.fence = self.one(Sql::FenceLoad, params![], |row| row.get(0))?.unwrap_or(0);
        self.mem.saved_fence = self.mem.fence;
        Ok(())
    }

    /// Writes what was kept back until the end: counters and the fence. Must come before the
    /// commit.
    pub(super) fn finish(mut self) -> Res<()> {
        self.save_lanes()?;
        if self.mem.fence != self.mem.saved_fence {
            let fence = self.mem.fence;
            self.run(Sql::FenceSave, params![fence])?;
            self.mem.saved_fence = fence;
        }
        Ok(())
    }

    pub(super) fn run(&mut self, sql: Sql, params: impl Params) -> Res<usize> {
        Ok(self.stmts.get(sql)?.execute(params)?)
    }

    pub(super) fn one<T>(
        &mut self,
        sql: Sql,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Res<Option<T>> {
        Ok(self.stmts.get(sql)?.query_row(params, read).optional()?)
    }

    pub(super) fn all<T>(
        &mut self,
        sql: Sql,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Res<Vec<T>> {
        let rows = self.stmts.get(sql)?.query_map(params, read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    pub(super) fn name(&mut self, id: i64) -> Res<Name> {
        self.mem.catalog.name(self.conn, id)
    }

    /// The number of a name, made when it is new.
    pub(super) fn name_id(&mut self, name: &Name) -> Res<i64> {
        if let Some(id) = self.mem.name_ids.get(name) {
            return Ok(*id);
        }
        let id = match self.known_name(name)? {
            Some(id) => id,
            None => {
                self.run(Sql::NameAdd, params![&**name])?;
                self.conn.last_insert_rowid()
            }
        };
        self.mem.name_ids.insert(name.clone(), id);
        Ok(id)
    }

    /// The number of a name, if it was ever used.
    pub(super) fn known_name(&mut self, name: &str) -> Res<Option<i64>> {
        if let Some(id) = self.mem.name_ids.get(name) {
            return Ok(Some(*id));
        }
        self.one(Sql::NameFind, params![name], |row| row.get(0))
    }
}
