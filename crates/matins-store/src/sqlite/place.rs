//! Where a pending task waits: in line (`ready`), due later (`scheduled`), parked behind its
//! `concurrency_key` (`slot`), or held behind its schedule's previous task.
//!
//! Every way into and out of those places is here, with the counters and the rows that hang on
//! them. Nothing here ends a task; that is `end.rs`.

use std::sync::atomic::{AtomicI64, Ordering};

use rusqlite::params;
use uuid::Uuid;

use super::error::{Failure, Res};
use super::lanes::Place;
use super::row::Facts;
use super::sql::Sql;
use super::tx::Tx;

/// Stands for the schedule of a task that is held without one: nothing will release it.
const NO_SCHEDULE: Uuid = Uuid::nil();

/// Calls that were on their way at the same time may differ by this much.
const CLOCK_TOLERANCE_US: i64 = 1_000_000;

/// Whether `now` lies so far behind what the line was made by that it must be made anew.
pub(super) fn is_set_back(clock: &AtomicI64, now: i64) -> bool {
    clock.load(Ordering::Relaxed).saturating_sub(now) > CLOCK_TOLERANCE_US
}

impl Tx<'_> {
    /// A task becomes pending: accepted, back from a run, or replayed.
    pub(super) fn enter(&mut self, task: &Facts, now: i64) -> Res<()> {
        if let Some(at) = task.expires_at {
            self.run(Sql::ExpiringInsert, params![at, task.seq])?;
        }
        self.wait(task, now, false)
    }

    /// A pending task stops being pending, or is about to wait elsewhere.
    pub(super) fn leave(&mut self, task: &Facts) -> Res<()> {
        if let Some(at) = task.expires_at {
            self.run(Sql::ExpiringDelete, params![at, task.seq])?;
        }
        self.stop_waiting(task)
    }

    /// `waited`: it was pending before, and is due now.
    fn wait(&mut self, task: &Facts, now: i64, waited: bool) -> Res<()> {
        self.mem.advance(now);
        if task.held {
            if task.schedule_uid.is_none() {
                self.run(Sql::LiveInsert, params![NO_SCHEDULE, true, task.seq])?;
            }
            return self.mem.lanes.add(task.lane, Place::Held, 1);
        }
        let Facts { seq, lane, run_at, .. } = *task;
        if run_at > now {
            let keyed = task.concurrency_key.is_some();
            self.run(Sql::ScheduledInsert, params![run_at, seq, lane, task.order(), keyed])?;
            return self.mem.lanes.add(lane, Place::Later, 1);
        }
        match &task.concurrency_key {
            Some(key) => self.line_up(key, task, waited),
            None => self.make_ready(lane, task.order(), seq),
        }
    }

    pub(super) fn make_ready(&mut self, lane: i64, ord: i64, seq: i64) -> Res<()> {
        self.run(Sql::ReadyInsert, params![lane, ord, seq])?;
        self.mem.lanes.add(lane, Place::Ready, 1)
    }

    /// Takes a task out of line. It must be there.
    pub(super) fn unmake_ready(&mut self, lane: i64, ord: i64, seq: i64) -> Res<()> {
        if self.run(Sql::ReadyDelete, params![lane, ord, seq])? == 0 {
            return Err(Failure::broken(format!("pending task number {seq} waits nowhere")));
        }
        self.mem.lanes.add(lane, Place::Ready, -1)
    }

    fn stop_waiting(&mut self, task: &Facts) -> Res<()> {
        let Facts { seq, lane, run_at, .. } = *task;
        if task.held {
            return self.mem.lanes.add(lane, Place::Held, -1);
        }
        if self.run(Sql::ScheduledDelete, params![run_at, seq])? > 0 {
            return self.mem.lanes.add(lane, Place::Later, -1);
        }
        match &task.concurrency_key {
            Some(key) => self.leave_line(key, task),
            None => self.unmake_ready(lane, task.order(), seq),
        }
    }

    /// After the clock was set back: what stands in line but is not due, waits once more.
    pub(super) fn follow_clock(&mut self, now: i64) -> Res<()> {
        if !is_set_back(&self.mem.clock, now) {
            return Ok(());
        }
        self.mem.clock.store(now, Ordering::Relaxed);
        for seq in self.all(Sql::Early, params![now], |row| row.get(0))? {
            let task = self.facts(seq)?;
            self.stop_waiting(&task)?;
            self.wait(&task, now, false)?;
        }
        Ok(())
    }

    /// Puts in line what has become due, at most `limit`. Answers how many there were.
    pub(super) fn promote(&mut self, now: i64, limit: usize) -> Res<usize> {
        let due = self.all(Sql::ScheduledDue, params![now, limit as i64], |row| {
            let position: (i64, i64) = (row.get(0)?, row.get(1)?);
            Ok((position, row.get(2)?, row.get(3)?, row.get(4)?))
        })?;
        self.mem.advance(now);
        let Some(((run_at, seq), ..)) = due.last().copied() else { return Ok(0) };
        self.run(Sql::ScheduledDeleteTo, params![run_at, seq])?;
        for ((_, seq), lane, ord, keyed) in due.iter().copied() {
            self.mem.lanes.add(lane, Place::Later, -1)?;
            if keyed {
                let task = self.facts(seq)?;
                self.wait(&task, now, true)?;
            } else {
                self.make_ready(lane, ord, seq)?;
            }
        }
        Ok(due.len())
    }

    /// Puts one due task in line, if it is not there yet.
    pub(super) fn promote_one(&mut self, task: &Facts, now: i64) -> Res<()> {
        if self.run(Sql::ScheduledDelete, params![task.run_at, task.seq])? == 0 {
            return Ok(());
        }
        self.mem.lanes.add(task.lane, Place::Later, -1)?;
        self.wait(task, now, true)
    }

    pub(super) fn facts(&mut self, seq: i64) -> Res<Facts> {
        self.one(Sql::TaskFacts, params![seq], |row| Facts::read(seq, row))?
            .ok_or_else(|| Failure::broken(format!("task number {seq} has no row")))
    }

    /// Lets the first held task of a schedule go on when no active one is left.
    pub(super) fn release_held(&mut self, uid: Uuid, now: i64) -> Res<()> {
        if self.first_live(uid, false)?.is_some() {
            return Ok(());
        }
        let Some(seq) = self.first_live(uid, true)? else { return Ok(()) };
        let mut task = self.facts(seq)?;
        self.run(Sql::LiveDelete, params![uid, true, seq])?;
        self.run(Sql::LiveInsert, params![uid, false, seq])?;
        self.mem.lanes.add(task.lane, Place::Held, -1)?;
        task.held = false;
        task.run_at = task.run_at.max(now);
        self.run(Sql::TaskRelease, params![seq, task.run_at])?;
        self.wait(&task, now, false)
    }

    fn first_live(&mut self, uid: Uuid, held: bool) -> Res<Option<i64>> {
        self.one(Sql::LiveFirst, params![uid, held], |row| row.get(0))
    }
}
