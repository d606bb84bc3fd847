//! Switches of the whole store, and the audit log.

use std::collections::BTreeMap;

use matins_core::store::{Act, AuditEntry, PoolSetting, SettingChange, Settings, TypeLimit};
use matins_core::task::Name;
use rusqlite::params;

use super::error::Res;
use super::reader::Reader;
use super::sql::Sql;
use super::time::us;
use super::tx::Tx;

const FROZEN: &str = "frozen";
const POOL: &str = "pool";
const LIMIT: &str = "limit";
const ROUTE: &str = "route";
const SIZE: &str = "size";

fn read(rows: Vec<(String, String, String)>) -> Res<Settings> {
    let mut settings = Settings::default();
    for (scope, name, value) in rows {
        match &*scope {
            FROZEN => settings.frozen = Some(serde_json::from_str(&value)?),
            POOL => {
                let setting: PoolSetting = serde_json::from_str(&value)?;
                settings.pools.insert(name.into(), setting);
            }
            LIMIT => {
                let limit: TypeLimit = serde_json::from_str(&value)?;
                settings.limits.insert(name.into(), limit);
            }
            ROUTE => {
                settings.routes.insert(name.into(), value.into());
            }
            SIZE => {
                settings.sizes.insert(name.into(), serde_json::from_str(&value)?);
            }
            // A newer program's; an older one has no use for it.
            _ => {}
        }
    }
    Ok(settings)
}

impl Tx<'_> {
    pub(super) fn load_settings(&mut self) -> Res<()> {
        let rows = self
            .all(Sql::SettingLoad, params![], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        self.mem.settings = read(rows)?;
        Ok(())
    }

    pub(super) fn change_setting(&mut self, change: &SettingChange) -> Res<()> {
        match change {
            SettingChange::Freeze(frozen) => {
                self.put_setting(FROZEN, "", &serde_json::to_string(frozen)?)?;
                self.mem.settings.frozen = Some(frozen.clone());
            }
            SettingChange::Thaw => {
                self.run(Sql::SettingDelete, params![FROZEN, ""])?;
                self.mem.settings.frozen = None;
            }
            SettingChange::Pool { name, change } => {
                let mut setting = self.mem.settings.pools.get(name).cloned().unwrap_or_default();
                setting.apply(change);
                self.put_setting(POOL, name, &serde_json::to_string(&setting)?)?;
                self.mem.settings.pools.insert(name.clone(), setting);
            }
            SettingChange::Limits(limits) => self.set_limits(limits)?,
            SettingChange::Routes(routes) => {
                for (kind, pool) in routes {
                    if let Some(pool) = pool {
                        self.put_setting(ROUTE, kind, pool)?;
                        self.mem.settings.routes.insert(kind.clone(), pool.clone());
                    } else {
                        self.run(Sql::SettingDelete, params![ROUTE, kind])?;
                        self.mem.settings.routes.remove(kind);
                    }
                }
            }
            SettingChange::Sizes(sizes) => {
                for (name, size) in sizes {
                    self.put_setting(SIZE, name, &size.to_string())?;
                    self.mem.settings.sizes.insert(name.clone(), *size);
                }
            }
        }
        Ok(())
    }

    fn set_limits(&mut self, limits: &[TypeLimit]) -> Res<()> {
        let mut changed: BTreeMap<Name, u32> = BTreeMap::new();
        for limit in limits {
            self.put_setting(LIMIT, &limit.kind, &serde_json::to_string(limit)?)?;
            let before = self.mem.settings.limits.insert(limit.kind.clone(), limit.clone());
            if before.map_or(1, |before| before.per_key) != limit.per_key {
                changed.insert(limit.kind.clone(), limit.per_key);
            }
        }
        for (kind, per_key) in changed {
            if let Some(kind) = self.known_name(&kind)? {
                self.refit_keys(kind, per_key)?;
            }
        }
        Ok(())
    }

    fn put_setting(&mut self, scope: &str, name: &str, value: &str) -> Res<()> {
        self.run(Sql::SettingPut, params![scope, name, value])?;
        Ok(())
    }

    pub(super) fn audit(&mut self, entry: &AuditEntry) -> Res<()> {
        let AuditEntry { time, who, action, target, reason } = entry;
        self.run(Sql::AuditInsert, params![us(*time), who, action, target, reason])?;
        Ok(())
    }

    pub(super) fn audit_act(&mut self, action: &str, target: &str, act: &Act) -> Res<()> {
        let row = params![us(act.at), act.who, action, target, act.reason];
        self.run(Sql::AuditInsert, row)?;
        Ok(())
    }
}

impl Reader {
    pub(super) fn settings(&self) -> Res<Settings> {
        read(
            self.all(Sql::SettingLoad, params![], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?,
        )
    }
}
