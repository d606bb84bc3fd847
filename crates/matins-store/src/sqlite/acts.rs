//! What people, and the passing of time, do to tasks.

use matins_core::Json;
use matins_core::store::{Act, Cancelled, Dismissed, Retried};
use matins_core::task::{Dismissal, State, TaskId};
use rusqlite::params;

use super::error::Res;
use super::lanes::Place;
use super::row::{Facts, Stored};
use super::sql::Sql;
use super::time::us;
use super::tx::Tx;

impl Tx<'_> {
    /// Cancels pending tasks that have expired.
    pub(super) fn expire(&mut self, now: i64, limit: usize) -> Res<u64> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let due = self.all(Sql::ExpiringDue, params![now, limit], |row| row.get(0))?;
        for seq in &due {
            let task = self.facts(*seq)?;
            self.cancel_pending(&task, "expired", now)?;
        }
        Ok(due.len() as u64)
    }

    pub(super) fn cancel(&mut self, id: TaskId, act: &Act) -> Res<Cancelled> {
        let Some(stored) = self.stored_by_id(id)? else { return Ok(Cancelled::NotFound) };
        let requested = match stored.task.state {
            State::Pending => {
                self.cancel_pending(&Facts::of(&stored), "cancelled", us(act.at))?;
                false
            }
            State::Running => {
                self.run(Sql::RunningCancel, params![stored.seq, us(act.at)])?;
                true
            }
            State::Completed | State::Failed | State::Cancelled => {
                return Ok(Cancelled::AlreadyEnded(Box::new(stored.task)));
            }
        };
        self.audit_act("task.cancel", &id.to_string(), act)?;
        let task = Box::new(self.stored_by_seq(stored.seq)?.task);
        Ok(if requested { Cancelled::Requested(task) } else { Cancelled::Done(task) })
    }

    pub(super) fn retry(&mut self, id: TaskId, payload: Option<&Json>, act: &Act) -> Res<Retried> {
        let Some(stored) = self.stored_by_id(id)? else { return Ok(Retried::NotFound) };
        match stored.task.state {
            State::Pending => self.make_due(&stored, payload, act),
            State::Failed => self.replay(&stored, payload, act),
            State::Running | State::Completed | State::Cancelled => {
                Ok(Retried::WrongState(Box::new(stored.task)))
            }
        }
    }

    fn make_due(&mut self, stored: &Stored, payload: Option<&Json>, act: &Act) -> Res<Retried> {
        let mut task = Facts::of(stored);
        let at = us(act.at);
        let moves = task.run_at > at;
        if moves {
            self.leave(&task)?;
            task.run_at = at;
        }
        let payload = payload.map(Json::as_str);
        self.run(Sql::TaskSetDue, params![task.seq, task.run_at, payload])?;
        if moves {
            self.enter(&task, at)?;
        }
        self.audit_act("task.retry", &stored.task.id.to_string(), act)?;
        Ok(Retried::DueNow(Box::new(self.stored_by_seq(task.seq)?.task)))
    }

    /// A failed task starts a new round, if its key is free.
    fn replay(&mut self, stored: &Stored, payload: Option<&Json>, act: &Act) -> Res<Retried> {
        let before = Facts::of(stored);
        let at = us(act.at);
        if let Some(key) = &before.execution_key {
            let kind = stored.task.kind.clone();
            let kind_id = self.mem.lanes.get(before.lane)?.kind_id;
            if self.run(Sql::KeyTake, params![kind_id, &**key, before.id])? == 0
                && let Some(holder) = self.key_holder(&kind, key)?
            {
                return Ok(Retried::Deduplicated(holder.task()));
            }
        }
        self.mem.lanes.add(before.lane, Place::Failed, -1)?;
        if stored.task.dismissed.is_none() {
            self.mem.lanes.add(before.lane, Place::Dead, -1)?;
        }
        self.run(Sql::DeadDelete, params![before.seq])?;
        self.run(Sql::AttemptMove, params![before.seq])?;
        let lane = self.sibling_lane(before.lane, false)?;
        let expires_at = before.expires_at.filter(|expires_at| *expires_at > at);
        let payload = payload.map(Json::as_str);
        self.run(Sql::TaskReplay, params![before.seq, lane, at, payload, expires_at])?;
        let task = self.facts(before.seq)?;
        if let Some(uid) = task.schedule_uid {
            self.run(Sql::LiveInsert, params![uid, task.held, task.seq])?;
        }
        self.enter(&task, at)?;
        self.audit_act("dead_letter.replay", &stored.task.id.to_string(), act)?;
        Ok(Retried::Replayed(Box::new(self.stored_by_seq(task.seq)?.task)))
    }

    pub(super) fn dismiss(&mut self, id: TaskId, act: &Act) -> Res<Dismissed> {
        let Some(stored) = self.stored_by_id(id)? else { return Ok(Dismissed::NotFound) };
        if !stored.task.is_dead_letter() {
            return Ok(Dismissed::WrongState(Box::new(stored.task)));
        }
        let reason = act.reason.clone().unwrap_or_default();
        let dismissal = Dismissal { by: act.who.clone(), at: act.at, reason };
        let text = serde_json::to_string(&dismissal)?;
        self.run(Sql::TaskDismiss, params![stored.seq, text])?;
        self.run(Sql::DeadDismiss, params![stored.seq, us(act.at)])?;
        self.mem.lanes.add(stored.lane, Place::Dead, -1)?;
        self.audit_act("dead_letter.dismiss", &id.to_string(), act)?;
        Ok(Dismissed::Done(Box::new(self.stored_by_seq(stored.seq)?.task)))
    }
}
