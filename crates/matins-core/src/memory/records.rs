//! What people look at and keep.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::{MemoryStore, Model, Row, paging};
use crate::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use crate::operation::{Operation, OperationState};
use crate::page::{Page, PageRequest};
use crate::schedule::ScheduleStatus;
use crate::store::{
    Act, AuditEntry, LedgerEntry, Order, Records, Result, SettingChange, Settings, Stats,
    TaskFilter, Token,
};
use crate::task::{Attempt, Task, TaskId};
use crate::why::Surroundings;

/// How late a schedule must be to count as overdue.
const OVERDUE: SignedDuration = SignedDuration::from_secs(60);

fn matches(filter: &TaskFilter, task: &Task) -> bool {
    let is = |wanted: &Option<String>, value: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| Some(wanted) == value)
    };
    (filter.states.is_empty() || filter.states.contains(&task.state))
        && is(&filter.kind, Some(&task.kind))
        && is(&filter.pool, Some(&task.pool))
        && filter.tag.as_ref().is_none_or(|tag| task.tags.contains(tag))
        && is(&filter.schedule, task.origin.as_ref().map(|origin| &*origin.schedule))
        && is(&filter.execution_key, task.execution_key.as_deref())
        && filter.q.as_ref().is_none_or(|q| begins(task, q))
}

fn begins(task: &Task, q: &str) -> bool {
    task.id.to_string().starts_with(&q.to_lowercase())
        || task.execution_key.as_ref().is_some_and(|key| key.starts_with(q))
        || task.kind.starts_with(q)
        || task.tags.iter().any(|tag| tag.starts_with(q))
}

impl Model {
    /// Everything in line that is not parked, in order.
    fn ready(&self, now: Timestamp) -> Vec<&Row> {
        let mut rows: Vec<_> = self.rows.values().filter(|row| row.in_line(now)).collect();
        rows.sort_by_key(|row| row.place());
        let mut used = self.running().by_key;
        rows.retain(|row| {
            let Some(key) = &row.task.concurrency_key else { return true };
            let used = used.entry((row.task.kind.clone(), key.clone())).or_default();
            *used += 1;
            *used <= self.per_key(&row.task.kind)
        });
        rows
    }

    fn stats(&self, now: Timestamp) -> Stats {
        let mut stats = Stats::default();
        for task in self.rows.values().map(|row| &row.task) {
            *stats.tasks.entry((task.pool.clone(), task.state)).or_default() += 1;
            stats.dead_letters += u64::from(task.is_dead_letter());
        }
        for row in self.ready(now) {
            let pool = &row.task.pool;
            *stats.ready.entry(pool.clone()).or_default() += 1;
            stats.oldest_ready.entry(pool.clone()).or_insert(row.task.run_at);
        }
        let overdue = |at: Timestamp| at.saturating_add(OVERDUE).is_ok_and(|limit| limit < now);
        stats.schedules_overdue = self
            .schedules
            .values()
            .filter(|state| state.status == ScheduleStatus::Active)
            .filter(|state| state.next_due.is_some_and(overdue))
            .count() as u64;
        stats
    }

    fn surroundings(&self, task: &Task, now: Timestamp) -> Surroundings {
        let ready = self.ready(now);
        let place = self.rows.get(&task.id).filter(|row| row.in_line(now)).map(Row::place);
        let ahead = |row: &&&Row| {
            row.task.pool == task.pool && place.is_some_and(|place| row.place() < place)
        };
        let is_ready = ready.iter().any(|row| row.task.id == task.id);
        let in_line = self.rows.get(&task.id).is_some_and(|row| row.in_line(now));
        let running = self.running();
        let workers: Vec<_> = self
            .workers
            .values()
            .filter(|entry| !entry.retired && entry.worker.lease_until >= now)
            .filter(|entry| entry.worker.types.contains(&task.kind))
            .map(|entry| &entry.worker)
            .collect();
        let slots = workers.iter().flat_map(|worker| &worker.pools);
        let busy = self.rows.values().filter(|row| {
            let holder = row.held_by.as_ref();
            row.task.pool == task.pool
                && holder.is_some_and(|h| workers.iter().any(|worker| worker.id == h.worker))
        });
        let limit = self.settings.limits.get(&task.kind);
        let spent = self.spent.get(&task.kind).copied();
        let held_by = self.rows.get(&task.id).and_then(|row| row.held_by.as_ref());
        Surroundings {
            frozen: self.settings.frozen.as_ref().map(|frozen| frozen.reason.clone()),
            pool_paused: self.settings.pools.get(&task.pool).is_some_and(|pool| pool.paused),
            ahead: ready.iter().filter(ahead).count() as u64,
            workers_for_type: workers.len() as u32,
            pool_busy: busy.count() as u32,
            pool_size: slots.filter(|(pool, _)| *pool == task.pool).map(|(_, n)| n).sum(),
            rate_limited_until: limit
                .and_then(|limit| limit.rate_limit)
                .filter(|rate| rate.available(spent, now) == 0)
                .map(|rate| rate.next_at(spent, now)),
            concurrency: limit
                .and_then(|limit| limit.concurrency)
                .map(|most| (running.by_kind.get(&task.kind).copied().unwrap_or(0), most)),
            key_parked: in_line && !is_ready,
            quarantine_busy: running.quarantined > 0,
            waits_for: None,
            cancel_requested: task.cancel_requested_at.is_some(),
            stuck: false,
            worker: held_by.map(|holder| holder.worker.0.clone()),
        }
    }

    fn dead_letters(&self, filter: &DeadLetterFilter) -> impl Iterator<Item = &Row> {
        self.rows.values().filter(|row| filter.matches(&row.task))
    }

    fn dead_letter_groups(&self, filter: &DeadLetterFilter) -> Vec<DeadLetterGroup> {
        let mut rows: Vec<_> = self.dead_letters(filter).collect();
        rows.sort_by_key(|row| (row.task.finished_at, row.number));
        let mut groups: BTreeMap<String, DeadLetterGroup> = BTreeMap::new();
        for task in rows.into_iter().map(|row| &row.task) {
            let (Some(error), Some(at)) = (&task.error, task.finished_at) else { continue };
            let group = groups.entry(error.fingerprint.clone()).or_insert(DeadLetterGroup {
                fingerprint: error.fingerprint.clone(),
                class: error.class,
                message: String::new(),
                count: 0,
                oldest: at,
                newest: at,
            });
            group.count += 1;
            group.newest = at;
            group.message.clone_from(&error.message);
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        groups
    }

    fn forget_key(&mut self, kind: &str, key: &str, act: &Act) -> bool {
        let forgotten = self.completions.remove(&(kind.into(), key.into())).is_some();
        if forgotten {
            self.audit_act("ledger.forget", format!("{kind}/{key}"), act);
        }
        forgotten
    }
}

#[async_trait]
impl Records for MemoryStore {
    async fn tasks(&self, filter: &TaskFilter, page: &PageRequest) -> Result<Page<Task>> {
        let model = self.model();
        let rows = model.rows.values().filter(|row| matches(filter, &row.task));
        let rows = rows.map(|row| ((-(row.number as i64), 0), row.task.clone())).collect();
        paging::page(rows, page, "tasks")
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        Ok(self.model().rows.get(&id).map(|row| row.task.clone()))
    }

    async fn attempts(&self, id: TaskId) -> Result<Vec<Attempt>> {
        Ok(self.model().rows.get(&id).map_or_else(Vec::new, |row| row.attempts.clone()))
    }

    async fn surroundings(&self, task: &Task, now: Timestamp) -> Result<Surroundings> {
        Ok(self.model().surroundings(task, now))
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        order: Order,
        page: &PageRequest,
    ) -> Result<Page<Task>> {
        let sign = match order {
            Order::NewestFirst => -1,
            Order::OldestFirst => 1,
        };
        let position = |row: &Row| {
            let failed_at = row.task.finished_at.unwrap_or(row.task.created_at);
            (sign * failed_at.as_microsecond(), sign * row.number as i64)
        };
        let model = self.model();
        let rows = model.dead_letters(filter).map(|row| (position(row), row.task.clone()));
        paging::page(rows.collect(), page, "dead_letters")
    }

    async fn dead_letter_groups(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetterGroup>> {
        Ok(self.model().dead_letter_groups(filter))
    }

    async fn settings(&self) -> Result<Settings> {
        Ok(self.model().settings.clone())
    }

    async fn change_setting(&self, change: SettingChange, audit: Option<AuditEntry>) -> Result<()> {
        let mut model = self.model();
        let settings = &mut model.settings;
        match change {
            SettingChange::Freeze(frozen) => settings.frozen = Some(frozen),
            SettingChange::Thaw => settings.frozen = None,
            SettingChange::Pool { name, change } => {
                settings.pools.entry(name).or_default().apply(&change);
            }
            SettingChange::Limits(limits) => {
                settings.limits.extend(limits.into_iter().map(|limit| (limit.kind.clone(), limit)));
            }
            SettingChange::Routes(routes) => {
                for (kind, pool) in routes {
                    match pool {
                        Some(pool) => settings.routes.insert(kind, pool),
                        None => settings.routes.remove(&kind),
                    };
                }
            }
            SettingChange::Sizes(sizes) => settings.sizes.extend(sizes),
        }
        if let Some(entry) = audit {
            model.record(entry);
        }
        Ok(())
    }

    async fn stats(&self, now: Timestamp) -> Result<Stats> {
        Ok(self.model().stats(now))
    }

    async fn ledger(&self, kind: &str, key: &str) -> Result<Option<LedgerEntry>> {
        Ok(self.model().ledger_entry(kind, key))
    }

    async fn forget_key(&self, kind: &str, key: &str, act: &Act) -> Result<bool> {
        Ok(self.model().forget_key(kind, key, act))
    }

    async fn audit(&self, page: &PageRequest) -> Result<Page<AuditEntry>> {
        let model = self.model();
        let rows = model.audit.iter();
        let rows = rows.map(|(number, entry)| ((-(*number as i64), 0), entry.clone())).collect();
        paging::page(rows, page, "audit")
    }

    async fn record(&self, entry: AuditEntry) -> Result<()> {
        self.model().record(entry);
        Ok(())
    }

    async fn put_operation(&self, operation: &Operation) -> Result<()> {
        self.model().operations.insert(operation.id, operation.clone());
        Ok(())
    }

    async fn operation(&self, id: Uuid) -> Result<Option<Operation>> {
        Ok(self.model().operations.get(&id).cloned())
    }

    async fn running_operations(&self) -> Result<Vec<Operation>> {
        let model = self.model();
        let running = model.operations.values().filter(|o| o.state == OperationState::Running);
        let mut running: Vec<_> = running.cloned().collect();
        running.sort_by_key(|operation| operation.created_at);
        Ok(running)
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        Ok(self.model().tokens.values().cloned().collect())
    }

    async fn put_token(&self, token: &Token) -> Result<()> {
        self.model().tokens.insert(token.name.clone(), token.clone());
        Ok(())
    }

    async fn revoke_token(&self, name: &str) -> Result<bool> {
        Ok(self.model().tokens.remove(name).is_some())
    }

    async fn note(&self, key: &str) -> Result<Option<String>> {
        Ok(self.model().notes.get(key).cloned())
    }

    async fn put_note(&self, key: &str, value: &str) -> Result<()> {
        self.model().notes.insert(key.to_owned(), value.to_owned());
        Ok(())
    }
}
