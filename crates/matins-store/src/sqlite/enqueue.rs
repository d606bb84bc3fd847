//! Taking tasks in. Who has a key is decided by the key's primary key, what that means for a
//! newcomer by the core.

use std::sync::Arc;

use matins_core::Json;
use matins_core::idempotency::{KeyDecision, KeyState, decide};
use matins_core::store::{Enqueued, LedgerEntry};
use matins_core::task::{NewTask, State, Task, TaskId};
use rusqlite::params;
use uuid::Uuid;

use super::error::{Failure, Res};
use super::row::{self, Facts, Stored};
use super::sql::Sql;
use super::time::{opt_us, ts, us};
use super::tx::Tx;
use crate::form;

impl Tx<'_> {
    pub(super) fn enqueue(&mut self, tasks: &[NewTask], now: i64) -> Res<Vec<Enqueued>> {
        tasks.iter().map(|task| self.enqueue_one(task, now)).collect()
    }

    pub(super) fn enqueue_one(&mut self, new: &NewTask, now: i64) -> Res<Enqueued> {
        if (new.client_id || new.execution_key.is_some())
            && let Some(stored) = self.stored_by_id(new.id)?
        {
            return Ok(Enqueued::Existing(Box::new(stored.task)));
        }
        if let Some(key) = &new.execution_key
            && let Some(answer) = self.take_key(new, key, now)?
        {
            return Ok(answer);
        }
        if self.insert(new, now)? {
            return Ok(Enqueued::Created);
        }
        let stored = self.stored_by_id(new.id)?;
        let stored = stored.ok_or_else(|| Failure::broken(format!("no row for {}", new.id)))?;
        Ok(Enqueued::Existing(Box::new(stored.task)))
    }

    /// `false`: the id is stored already.
    fn insert(&mut self, new: &NewTask, now: i64) -> Res<bool> {
        let lane = self.lane(&new.pool, &new.kind, false)?;
        let created_by = self.name_id(&new.created_by)?;
        let schedule = match &new.origin {
            Some(origin) => Some(self.name_id(&origin.schedule)?),
            None => None,
        };
        let origin = new.origin.as_ref();
        let inserted = self.stmts.get(Sql::TaskInsert)?.execute(params![
            new.id.0,
            lane,
            schedule,
            new.execution_key.as_deref(),
            row::write_tags(&new.tags)?,
            new.priority,
            us(new.run_at),
            new.held,
            opt_us(new.expires_at),
            new.concurrency_key.as_deref(),
            now,
            created_by,
            new.max_retries,
            new.backoff.as_ref().map(form::write_backoff),
            new.timeout.map(form::write_timeout),
            origin.map(|origin| origin.schedule_uid),
            origin.map(|origin| &*origin.label),
            origin.map(|origin| us(origin.time)),
            new.payload.as_str(),
        ])?;
        if inserted == 0 {
            return Ok(false);
        }
        let task = Facts::of_new(self.conn.last_insert_rowid(), lane, new);
        if let Some(uid) = task.schedule_uid {
            self.run(Sql::LiveInsert, params![uid, task.held, task.seq])?;
        }
        self.enter(&task, now)?;
        if let Some(uid) = task.schedule_uid {
            self.release_held(uid, now)?;
        }
        Ok(true)
    }

    /// `None`: the key is the newcomer's.
    fn take_key(&mut self, new: &NewTask, key: &str, now: i64) -> Res<Option<Enqueued>> {
        let kind = self.name_id(&new.kind)?;
        if self.run(Sql::KeyTake, params![kind, key, new.id.0])? == 1 {
            return Ok(None);
        }
        let holder = self.key_holder(&new.kind, key)?;
        let holder = holder.ok_or_else(|| Failure::broken(format!("key {key:?} is lost")))?;
        Ok(Some(match decide(KeyState::from(holder.state), new.on_duplicate) {
            KeyDecision::ReturnHolder => Enqueued::Existing(holder.task()),
            KeyDecision::Reject => Enqueued::Rejected(holder.task()),
            KeyDecision::ReplaceHolder => self.replace(holder, new, now)?,
            // The ledger has it, so it is not free.
            KeyDecision::Take => return Err(Failure::broken(format!("key {key:?} is torn"))),
        }))
    }

    /// Puts payload and times of a newer request in the place of a pending holder's.
    fn replace(&mut self, holder: Holder, new: &NewTask, now: i64) -> Res<Enqueued> {
        let Some(stored) = holder.row else {
            return Err(Failure::broken(format!("live task {} has no row", holder.entry.task_id)));
        };
        self.leave(&Facts::of(&stored))?;
        let (run_at, expires_at) = (us(new.run_at), opt_us(new.expires_at));
        let (payload, key) = (new.payload.as_str(), new.concurrency_key.as_deref());
        self.run(Sql::TaskReplace, params![stored.seq, payload, key, run_at, expires_at])?;
        let task = self.facts(stored.seq)?;
        self.enter(&task, now)?;
        Ok(Enqueued::Replaced(Box::new(self.stored_by_seq(stored.seq)?.task)))
    }

    /// Who has a key: a live or completed task.
    pub(super) fn key_holder(&mut self, kind: &Arc<str>, key: &str) -> Res<Option<Holder>> {
        let Some(kind_id) = self.known_name(kind)? else { return Ok(None) };
        let entry = self.one(Sql::KeyGet, params![kind_id, key], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        let Some((id, at, kept)) = entry else { return Ok(None) };
        let row = self.stored_by_id(TaskId(id))?;
        Holder::new(kind, key, id, at, kept, row).map(Some)
    }

    pub(super) fn stored_by_id(&mut self, id: TaskId) -> Res<Option<Stored>> {
        self.stored(Sql::TaskById, params![id.0])
    }

    pub(super) fn stored_by_seq(&mut self, seq: i64) -> Res<Stored> {
        self.stored(Sql::TaskBySeq, params![seq])?
            .ok_or_else(|| Failure::broken(format!("task number {seq} has no row")))
    }

    pub(super) fn stored(
        &mut self,
        sql: Sql,
        params: impl rusqlite::Params,
    ) -> Res<Option<Stored>> {
        let mut rows = self.stmts.get(sql)?.query(params)?;
        match rows.next()? {
            Some(row) => Ok(Some(row::stored(row, self.conn, &mut self.mem.catalog)?)),
            None => Ok(None),
        }
    }
}

/// Who has a key.
pub(super) struct Holder {
    pub(super) state: State,
    pub(super) entry: LedgerEntry,
    /// `None`: it has been pruned.
    row: Option<Stored>,
}

impl Holder {
    /// From a row of `exec_key`, and the task that has its id: another one, if the holder has been
    /// pruned and a client has given its id to a new task.
    pub(super) fn new(
        kind: &Arc<str>,
        key: &str,
        id: Uuid,
        pruned_at: Option<i64>,
        kept: Option<Arc<str>>,
        row: Option<Stored>,
    ) -> Res<Self> {
        let row = row.filter(|_| pruned_at.is_none());
        let (state, at, result) = match (pruned_at, row.as_ref().map(|stored| &stored.task)) {
            (Some(at), _) => (State::Completed, ts(at), kept.map(Json::trusted)),
            (None, Some(task)) => {
                let since = match task.state {
                    State::Running => task.started_at,
                    _ => task.finished_at,
                };
                (task.state, since.unwrap_or(task.created_at), task.result.clone())
            }
            (None, None) => return Err(Failure::broken(format!("task {id} has no row"))),
        };
        let (kind, execution_key, task_id) = (kind.clone(), key.into(), TaskId(id));
        let entry = LedgerEntry { kind, execution_key, task_id, state, result, at };
        Ok(Self { state, entry, row })
    }

    pub(super) fn task(self) -> Box<Task> {
        Box::new(self.row.map_or_else(|| self.entry.task(), |stored| stored.task))
    }
}
