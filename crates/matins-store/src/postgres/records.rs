//! What people and the runtime keep: switches, audit log, operations, tokens, notes.

use matins_core::Json;
use matins_core::operation::{Operation, OperationKind, OperationState};
use matins_core::page::{Page, PageRequest};
use matins_core::store::{AuditEntry, PoolSetting, SettingChange, Settings, Token, TypeLimit};
use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::Json as Jsonb;
use uuid::Uuid;

use super::PostgresStore;
use super::error::Res;
use super::row::{self, get};
use super::sql::Sql;
use super::text::{Text, encode};
use super::time::{At, opt_at};
use crate::cursor;

const FROZEN: &str = "frozen";
const POOL: &str = "pool";
const LIMIT: &str = "limit";
const ROUTE: &str = "route";
const SIZE: &str = "size";

/// A row of a change: what is in its place now, `None` when it goes.
fn row_of(scope: &str, name: &str, value: Option<&str>) -> Value {
    json!({"scope": scope, "name": encode(name), "value": value.map(encode)})
}

impl PostgresStore {
    pub(super) async fn load_settings(&self) -> Res<Settings> {
        let mut settings = Settings::default();
        for row in self.work.rows(Sql::SettingLoad, &[]).await? {
            let (name, value) = (row::name(&row, 1)?, row::text(&row, 2)?);
            match get::<&str>(&row, 0)? {
                FROZEN => settings.frozen = Some(serde_json::from_str(&value)?),
                POOL => {
                    let setting: PoolSetting = serde_json::from_str(&value)?;
                    settings.pools.insert(name, setting);
                }
                LIMIT => {
                    let limit: TypeLimit = serde_json::from_str(&value)?;
                    settings.limits.insert(name, limit);
                }
                ROUTE => {
                    settings.routes.insert(name, value.into());
                }
                SIZE => {
                    settings.sizes.insert(name, serde_json::from_str(&value)?);
                }
                // A newer program's; an older one has no use for it.
                _ => {}
            }
        }
        Ok(settings)
    }

    pub(super) async fn write_setting(
        &self,
        change: &SettingChange,
        audit: Option<AuditEntry>,
    ) -> Res<()> {
        loop {
            let changes = Jsonb(Value::from(self.rows_of(change).await?));
            let entry = audit.as_ref();
            let params: [super::link::Param<'_>; 6] = [
                &changes,
                &entry.map(|entry| Text(&entry.who)),
                &entry.map(|entry| Text(&entry.action)),
                &entry.map(|entry| Text(&entry.target)),
                &entry.and_then(|entry| entry.reason.as_deref()).map(Text),
                &entry.map(|entry| At(entry.time)),
            ];
            let row = self.work.one(Sql::SettingChange, &params).await?;
            if row.map(|row| get::<bool>(&row, 0)).transpose()?.unwrap_or(false) {
                return Ok(());
            }
            // Somebody else has changed the pool since it was read.
        }
    }

    async fn rows_of(&self, change: &SettingChange) -> Res<Vec<Value>> {
        Ok(match change {
            SettingChange::Freeze(frozen) => {
                vec![row_of(FROZEN, "", Some(&serde_json::to_string(frozen)?))]
            }
            SettingChange::Thaw => vec![row_of(FROZEN, "", None)],
            SettingChange::Pool { name, change } => {
                let found = self.work.one(Sql::SettingGet, &[&POOL, &Text(name)]).await?;
                let before = found.map(|row| row::text(&row, 0)).transpose()?;
                let mut setting: PoolSetting = match &before {
                    Some(before) => serde_json::from_str(before)?,
                    None => PoolSetting::default(),
                };
                setting.apply(change);
                let mut row = row_of(POOL, name, Some(&serde_json::to_string(&setting)?));
                row["expected"] = before.iter().map(|before| json!(encode(before))).collect();
                vec![row]
            }
            SettingChange::Limits(limits) => {
                let mut rows = Vec::with_capacity(limits.len());
                for limit in limits {
                    let value = serde_json::to_string(limit)?;
                    rows.push(row_of(LIMIT, &limit.kind, Some(&value)));
                }
                rows
            }
            SettingChange::Routes(routes) => {
                routes.iter().map(|(kind, pool)| row_of(ROUTE, kind, pool.as_deref())).collect()
            }
            SettingChange::Sizes(sizes) => sizes
                .iter()
                .map(|(name, size)| row_of(SIZE, name, Some(&size.to_string())))
                .collect(),
        })
    }

    pub(super) async fn page_of_audit(&self, page: &PageRequest) -> Res<Page<AuditEntry>> {
        let before = cursor::number("audit", page)?.unwrap_or(i64::MAX);
        let limit = cursor::limit(page);
        let rows = self.work.rows(Sql::AuditPage, &[&before, &(limit as i64 + 1)]).await?;
        let items = rows.iter().take(limit).map(audit_entry).collect::<Res<Vec<_>>>()?;
        let last = rows.get(limit.wrapping_sub(1)).filter(|_| rows.len() > limit);
        let next = match last {
            Some(row) => Some(cursor::write("audit", &get::<i64>(row, 0)?)),
            None => None,
        };
        Ok(Page { items, next })
    }

    pub(super) async fn add_audit(&self, entry: &AuditEntry) -> Res<()> {
        let AuditEntry { time, who, action, target, reason } = entry;
        let reason = reason.as_deref().map(Text);
        let params: [super::link::Param<'_>; 5] =
            [&At(*time), &Text(who), &Text(action), &Text(target), &reason];
        self.work.rows(Sql::AuditInsert, &params).await?;
        Ok(())
    }

    pub(super) async fn write_operation(&self, operation: &Operation) -> Res<()> {
        let running = operation.state == OperationState::Running;
        let mut rest = operation.clone();
        // The payload has a column of its own: inside a tagged kind its text would not survive.
        let payload = match &mut rest.kind {
            OperationKind::Replay { payload, .. } => payload.take(),
            OperationKind::Backfill { .. } => None,
        };
        let value = serde_json::to_string(&rest)?;
        let payload = payload.as_ref().map(Json::as_str);
        let params: [super::link::Param<'_>; 6] = [
            &operation.id,
            &running,
            &At(operation.created_at),
            &opt_at(operation.finished_at),
            &Text(&value),
            &payload,
        ];
        self.work.rows(Sql::OperationPut, &params).await?;
        Ok(())
    }

    pub(super) async fn one_operation(&self, id: Uuid) -> Res<Option<Operation>> {
        let row = self.work.one(Sql::OperationGet, &[&id]).await?;
        row.map(|row| operation(&row)).transpose()
    }

    pub(super) async fn operations_running(&self) -> Res<Vec<Operation>> {
        self.work.rows(Sql::OperationList, &[]).await?.iter().map(operation).collect()
    }

    pub(super) async fn list_tokens(&self) -> Res<Vec<Token>> {
        let rows = self.work.rows(Sql::TokenList, &[]).await?;
        rows.iter().map(|row| Ok(serde_json::from_str(&row::text(row, 0)?)?)).collect()
    }

    pub(super) async fn write_token(&self, token: &Token) -> Res<()> {
        let value = serde_json::to_string(token)?;
        self.work.rows(Sql::TokenPut, &[&Text(&token.name), &Text(&value)]).await?;
        Ok(())
    }

    pub(super) async fn delete_token(&self, name: &str) -> Res<bool> {
        Ok(self.work.one(Sql::TokenDelete, &[&Text(name)]).await?.is_some())
    }

    pub(super) async fn read_note(&self, key: &str) -> Res<Option<String>> {
        let row = self.work.one(Sql::NoteGet, &[&Text(key)]).await?;
        row.map(|row| row::text(&row, 0)).transpose()
    }

    pub(super) async fn write_note(&self, key: &str, value: &str) -> Res<()> {
        self.work.rows(Sql::NotePut, &[&Text(key), &Text(value)]).await?;
        Ok(())
    }
}

fn operation(row: &Row) -> Res<Operation> {
    let mut operation: Operation = serde_json::from_str(&row::text(row, 0)?)?;
    if let OperationKind::Replay { payload, .. } = &mut operation.kind {
        *payload = row::kept_json(row, 1)?;
    }
    Ok(operation)
}

fn audit_entry(row: &Row) -> Res<AuditEntry> {
    Ok(AuditEntry {
        time: row::at(row, 1)?,
        who: row::text(row, 2)?,
        action: row::text(row, 3)?,
        target: row::text(row, 4)?,
        reason: row::opt_text(row, 5)?,
    })
}
