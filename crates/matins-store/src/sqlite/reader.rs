//! Reads, on connections of their own: they see the last commit and wait for no writer.

use matins_core::task::TaskId;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::catalog::Catalog;
use super::error::{Failure, Res};
use super::row::{self, Stored};
use super::sql::Sql;

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) conn: Connection,
    pub(super) catalog: Catalog,
}

impl Reader {
    pub(super) fn new(conn: Connection) -> Self {
        Self { conn, catalog: Catalog::default() }
    }

    /// Several statements that see the same commit.
    pub(super) fn snapshot<T>(&mut self, read: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        // One that could not be ended the last time must not stand in the way of this one.
        if !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK")?;
        }
        self.conn.execute_batch("BEGIN")?;
        let answer = read(self);
        self.conn.execute_batch(if answer.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        answer
    }

    pub(super) fn one<T>(
        &self,
        sql: Sql,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Res<Option<T>> {
        Ok(self.conn.prepare_cached(sql.text())?.query_row(params, read).optional()?)
    }

    pub(super) fn all<T>(
        &self,
        sql: Sql,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Res<Vec<T>> {
        let mut statement = self.conn.prepare_cached(sql.text())?;
        let rows = statement.query_map(params, read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    pub(super) fn ping(&self) -> Res<()> {
        let found = self.one(Sql::MetaGet, params![], |_| Ok(()))?;
        found.ok_or_else(|| Failure::broken("it does not know who it is"))
    }

    pub(super) fn known_name(&self, name: &str) -> Res<Option<i64>> {
        self.one(Sql::NameFind, params![name], |row| row.get(0))
    }

    pub(super) fn stored_by_id(&mut self, id: TaskId) -> Res<Option<Stored>> {
        self.stored(Sql::TaskById, params![id.0])
    }

    pub(super) fn stored_by_seq(&mut self, seq: i64) -> Res<Stored> {
        self.stored(Sql::TaskBySeq, params![seq])?
            .ok_or_else(|| Failure::broken(format!("task number {seq} has no row")))
    }

    fn stored(&mut self, sql: Sql, params: impl Params) -> Res<Option<Stored>> {
        let Self { conn, catalog } = self;
        let mut statement = conn.prepare_cached(sql.text())?;
        let mut rows = statement.query(params)?;
        match rows.next()? {
            Some(row) => Ok(Some(row::stored(row, conn, catalog)?)),
            None => Ok(None),
        }
    }
}
