//! What people and the runtime keep: audit log, operations, tokens, notes.

use matins_core::Json;
use matins_core::operation::{Operation, OperationKind, OperationState};
use matins_core::page::{Page, PageRequest};
use matins_core::store::{AuditEntry, Token};
use rusqlite::params;
use uuid::Uuid;

use super::error::Res;
use super::reader::Reader;
use super::sql::Sql;
use super::time::{ts, us};
use super::tx::Tx;
use crate::cursor;

/// The payload has a column of its own: inside a tagged kind its text would not survive.
fn read_operation(value: String, stored: Option<String>) -> Res<Operation> {
    let mut operation: Operation = serde_json::from_str(&value)?;
    if let OperationKind::Replay { payload, .. } = &mut operation.kind {
        *payload = stored.map(Json::trusted);
    }
    Ok(operation)
}

impl Reader {
    pub(super) fn audit(&self, page: &PageRequest) -> Res<Page<AuditEntry>> {
        let before = cursor::number("audit", page)?.unwrap_or(i64::MAX);
        let limit = cursor::limit(page);
        let mut rows: Vec<(i64, AuditEntry)> =
            self.all(Sql::AuditPage, params![before, limit as i64 + 1], |row| {
                let entry = AuditEntry {
                    time: ts(row.get(1)?),
                    who: row.get(2)?,
                    action: row.get(3)?,
                    target: row.get(4)?,
                    reason: row.get(5)?,
                };
                Ok((row.get(0)?, entry))
            })?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|(number, _)| cursor::write("audit", number));
        Ok(Page { items: rows.into_iter().map(|(_, entry)| entry).collect(), next })
    }

    pub(super) fn operation(&self, id: Uuid) -> Res<Option<Operation>> {
        let row = self.one(Sql::OperationGet, params![id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        row.map(|(value, payload)| read_operation(value, payload)).transpose()
    }

    pub(super) fn running_operations(&self) -> Res<Vec<Operation>> {
        let rows = self.all(Sql::OperationList, params![], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.into_iter().map(|(value, payload)| read_operation(value, payload)).collect()
    }

    pub(super) fn tokens(&self) -> Res<Vec<Token>> {
        let texts: Vec<String> = self.all(Sql::TokenList, params![], |row| row.get(0))?;
        texts.iter().map(|text| Ok(serde_json::from_str(text)?)).collect()
    }

    pub(super) fn note(&self, key: &str) -> Res<Option<String>> {
        self.one(Sql::NoteGet, params![key], |row| row.get(0))
    }
}

impl Tx<'_> {
    pub(super) fn put_operation(&mut self, operation: &Operation) -> Res<()> {
        let running = operation.state == OperationState::Running;
        let mut rest = operation.clone();
        let payload = match &mut rest.kind {
            OperationKind::Replay { payload, .. } => payload.take(),
            OperationKind::Backfill { .. } => None,
        };
        let text = serde_json::to_string(&rest)?;
        let payload = payload.as_ref().map(Json::as_str);
        let row = params![operation.id, running, us(operation.created_at), text, payload];
        self.run(Sql::OperationPut, row)?;
        Ok(())
    }

    pub(super) fn put_token(&mut self, token: &Token) -> Res<()> {
        let text = serde_json::to_string(token)?;
        self.run(Sql::TokenPut, params![token.name, text])?;
        Ok(())
    }

    pub(super) fn revoke_token(&mut self, name: &str) -> Res<bool> {
        Ok(self.run(Sql::TokenDelete, params![name])? == 1)
    }

    pub(super) fn put_note(&mut self, key: &str, value: &str) -> Res<()> {
        self.run(Sql::NotePut, params![key, value])?;
        Ok(())
    }
}
