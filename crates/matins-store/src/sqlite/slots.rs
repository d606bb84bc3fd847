//! Concurrency keys: of the tasks in line with the same type and key, only so many stand in
//! `ready` as may run; the others are parked.
//!
//! ```text
//!   in line ──▶ [ stage 0: in ready ] ──claim──▶ running ──▶ stops: one place is free
//!                  ▲        │ another takes its place                      │
//!            first │        ▼                                              ▼
//!               [ stage 2: parked, own order ] ──▶ [ stage 1: parked, waits for its turn ]
//! ```
//!
//! When a slot of a saturated key becomes free at an instant F, whatever of the key is in line
//! lines up anew: its place becomes `order_key(F, priority)`, ties by order of acceptance. Such
//! rows are stage 1, ordered by (−priority, seq); F itself is kept once per key, so that the
//! next F moves all of them without touching a row. A row changes from stage 2 to 1 once.
//!
//! A key's tasks may stand in several lanes (pools, quarantine). Each lane has as many of them
//! in `ready` as may still run, for nobody knows which lane will be served; a claim from one
//! lane parks the last of the others again.
//!
//! Holds after every step, in each lane, with room = per_key − running: stage 0 has at most
//! `room` rows, and exactly that many while anything is parked; nothing parked stands before
//! anything of stage 0.

use matins_core::task::order_key;
use rusqlite::params;

use super::error::{Failure, Res};
use super::lanes::Place;
use super::row::Facts;
use super::sql::Sql;
use super::time::ts;
use super::tx::Tx;

const IN_READY: i64 = 0;
const WAITS_ITS_TURN: i64 = 1;
const CAME_LATER: i64 = 2;

/// Figures of one key.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    running: i64,
    /// F of the last turn.
    freed: Option<i64>,
}

/// A key within a type, and how many of its tasks may run.
#[derive(Debug, Clone, Copy)]
struct Key<'k> {
    kind: i64,
    text: &'k str,
    most: i64,
}

impl Key<'_> {
    fn room(self, turn: &Turn) -> i64 {
        (self.most - turn.running).max(0)
    }
}

/// A task of a key that is in line.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    seq: i64,
    lane: i64,
    priority: i16,
    run_at: i64,
    /// Was in line when its key last took turns.
    turned: bool,
}

impl Waiting {
    fn of(task: &Facts, turned: bool) -> Self {
        let Facts { seq, lane, priority, run_at, .. } = *task;
        Self { seq, lane, priority, run_at, turned }
    }

    fn order(&self) -> i64 {
        order_key(ts(self.run_at), self.priority)
    }

    /// Stage and order among the parked.
    fn parking(&self) -> (i64, i64) {
        if self.turned {
            (WAITS_ITS_TURN, -i64::from(self.priority))
        } else {
            (CAME_LATER, self.order())
        }
    }

    /// Place in line.
    fn place(&self, turn: &Turn) -> (i64, i64) {
        let ord = match turn.freed {
            Some(freed) if self.turned => order_key(ts(freed), self.priority),
            _ => self.order(),
        };
        (ord, self.seq)
    }
}

impl Tx<'_> {
    fn key<'k>(&self, key: &'k str, lane: i64) -> Res<Key<'k>> {
        let lane = self.mem.lanes.get(lane)?;
        let limit = self.mem.settings.limits.get(&lane.kind);
        let most = limit.map_or(1, |limit| i64::from(limit.per_key));
        Ok(Key { kind: lane.kind_id, text: key, most })
    }

    fn turn(&mut self, key: Key<'_>) -> Res<Turn> {
        let turn = self.one(Sql::TurnGet, params![key.kind, key.text], |row| {
            Ok(Turn { running: row.get(0)?, freed: row.get(1)? })
        })?;
        Ok(turn.unwrap_or_default())
    }

    fn save_turn(&mut self, key: Key<'_>, turn: &Turn) -> Res<()> {
        self.run(Sql::TurnPut, params![key.kind, key.text, turn.running, turn.freed])?;
        Ok(())
    }

    /// A task with a concurrency_key comes in line. `waited`: it had been pending before it was
    /// due, so it may have missed no turn.
    pub(super) fn line_up(&mut self, key: &str, task: &Facts, waited: bool) -> Res<()> {
        let key = self.key(key, task.lane)?;
        let turn = self.turn(key)?;
        let turned = waited && turn.freed.is_some_and(|freed| task.run_at <= freed);
        let task = Waiting::of(task, turned);
        let room = key.room(&turn);
        if self.active_count(key, task.lane)? < room {
            return self.activate(key, &turn, task);
        }
        match self.last_active(key, task.lane)? {
            Some((ord, last)) if room > 0 && task.place(&turn) < (ord, last.seq) => {
                self.deactivate(key, ord, last)?;
                self.activate(key, &turn, task)
            }
            _ => self.park(key, task),
        }
    }

    /// A task with a concurrency_key that is in line leaves it without running.
    pub(super) fn leave_line(&mut self, key: &str, task: &Facts) -> Res<()> {
        let key = self.key(key, task.lane)?;
        if let Some(ord) = self.active_order(key, task.lane, task.seq)? {
            self.slot_delete(key, IN_READY, task.lane, ord, task.seq)?;
            self.unmake_ready(task.lane, ord, task.seq)?;
            let turn = self.turn(key)?;
            return self.refill(key, &turn, task.lane);
        }
        self.mem.lanes.add(task.lane, Place::Parked, -1)?;
        let (stage, ord) = Waiting::of(task, true).parking();
        if self.try_slot_delete(key, stage, task.lane, ord, task.seq)? {
            return Ok(());
        }
        let (stage, ord) = Waiting::of(task, false).parking();
        self.slot_delete(key, stage, task.lane, ord, task.seq)
    }

    /// A task with a concurrency_key that was in line runs. Its row in `ready` is the caller's.
    pub(super) fn slot_claimed(&mut self, key: &str, lane: i64, ord: i64, seq: i64) -> Res<()> {
        let key = self.key(key, lane)?;
        let mut turn = self.turn(key)?;
        self.slot_delete(key, IN_READY, lane, ord, seq)?;
        turn.running += 1;
        self.save_turn(key, &turn)?;
        self.trim(key, &turn)
    }

    /// A task with a concurrency_key that was in line ends without running. Its row in `ready`
    /// is the caller's.
    pub(super) fn slot_dropped(&mut self, key: &str, lane: i64, ord: i64, seq: i64) -> Res<()> {
        let key = self.key(key, lane)?;
        let turn = self.turn(key)?;
        self.slot_delete(key, IN_READY, lane, ord, seq)?;
        self.refill(key, &turn, lane)
    }

    /// A task of a key stopped running; a saturated key takes turns.
    pub(super) fn slot_freed(&mut self, key: &str, lane: i64, now: i64) -> Res<()> {
        let key = self.key(key, lane)?;
        let mut turn = self.turn(key)?;
        if turn.running >= key.most {
            let freed = turn.freed.map_or(now, |freed| freed.max(now));
            turn.freed = Some(freed);
            if self.run(Sql::SlotAge, params![key.kind, key.text, freed])? > 0 {
                self.run(Sql::SlotAged, params![key.kind, key.text, freed])?;
            }
        }
        turn.running -= 1;
        self.save_turn(key, &turn)?;
        self.refill_all(key, &turn)
    }

    /// The place in `ready` of a task with a concurrency_key; `None`: it is parked.
    pub(super) fn slot_order(&mut self, key: &str, lane: i64, seq: i64) -> Res<Option<i64>> {
        let key = self.key(key, lane)?;
        self.active_order(key, lane, seq)
    }

    /// The place in line of a task with a concurrency_key, parked or not.
    pub(super) fn place_in_line(&mut self, key: &str, task: &Facts) -> Res<i64> {
        let key = self.key(key, task.lane)?;
        if let Some(ord) = self.active_order(key, task.lane, task.seq)? {
            return Ok(ord);
        }
        let turned = params![key.kind, key.text, task.lane, task.seq, task.priority];
        let freed: Option<i64> = self.one(Sql::SlotTurned, turned, |row| row.get(0))?;
        Ok(freed.map_or(task.order(), |freed| order_key(ts(freed), task.priority)))
    }

    /// Whether another task of this one's concurrency_key may run, if it has one.
    pub(super) fn has_room(&mut self, task: &Facts) -> Res<bool> {
        let Some(key) = &task.concurrency_key else { return Ok(true) };
        let key = self.key(key, task.lane)?;
        Ok(key.room(&self.turn(key)?) > 0)
    }

    /// A task with a concurrency_key was asked for by name: it runs, wherever it stands in line.
    pub(super) fn slot_taken(&mut self, key: &str, task: &Facts) -> Res<()> {
        self.leave_line(key, task)?;
        let key = self.key(key, task.lane)?;
        let mut turn = self.turn(key)?;
        turn.running += 1;
        self.save_turn(key, &turn)?;
        self.trim(key, &turn)
    }

    /// The limit of a type has changed: its keys get as many places as they may have now.
    pub(super) fn refit_keys(&mut self, kind: i64, per_key: u32) -> Res<()> {
        let keys: Vec<String> = self.all(Sql::SlotKeys, params![kind], |row| row.get(0))?;
        for key in &keys {
            let key = Key { kind, text: key, most: i64::from(per_key) };
            let turn = self.turn(key)?;
            self.trim(key, &turn)?;
            self.refill_all(key, &turn)?;
        }
        Ok(())
    }

    fn lanes_of(&self, key: Key<'_>) -> Vec<i64> {
        let lanes = self.mem.lanes.iter().filter(|lane| lane.kind_id == key.kind);
        lanes.map(|lane| lane.id).collect()
    }

    /// Parks what stands in `ready` beyond the room, in every lane.
    fn trim(&mut self, key: Key<'_>, turn: &Turn) -> Res<()> {
        let room = key.room(turn);
        for lane in self.lanes_of(key) {
            for _ in room..self.active_count(key, lane)? {
                if let Some((ord, last)) = self.last_active(key, lane)? {
                    self.deactivate(key, ord, last)?;
                }
            }
        }
        Ok(())
    }

    fn refill_all(&mut self, key: Key<'_>, turn: &Turn) -> Res<()> {
        self.lanes_of(key).into_iter().try_for_each(|lane| self.refill(key, turn, lane))
    }

    /// Moves parked tasks of a lane to `ready` while there is room.
    fn refill(&mut self, key: Key<'_>, turn: &Turn, lane: i64) -> Res<()> {
        for _ in self.active_count(key, lane)?..key.room(turn) {
            let old = self.slot_end(Sql::SlotFirst, key, WAITS_ITS_TURN, lane)?;
            let new = self.slot_end(Sql::SlotFirst, key, CAME_LATER, lane)?;
            let parked = [old, new].into_iter().flatten().map(|(_, waiting)| waiting);
            let Some(first) = parked.min_by_key(|waiting| waiting.place(turn)) else { break };
            let (stage, ord) = first.parking();
            self.slot_delete(key, stage, lane, ord, first.seq)?;
            self.mem.lanes.add(lane, Place::Parked, -1)?;
            self.activate(key, turn, first)?;
        }
        Ok(())
    }

    fn activate(&mut self, key: Key<'_>, turn: &Turn, task: Waiting) -> Res<()> {
        let (ord, seq) = task.place(turn);
        self.slot_insert(key, IN_READY, ord, task)?;
        self.make_ready(task.lane, ord, seq)
    }

    fn deactivate(&mut self, key: Key<'_>, ord: i64, task: Waiting) -> Res<()> {
        self.slot_delete(key, IN_READY, task.lane, ord, task.seq)?;
        self.unmake_ready(task.lane, ord, task.seq)?;
        self.park(key, task)
    }

    fn park(&mut self, key: Key<'_>, task: Waiting) -> Res<()> {
        let (stage, ord) = task.parking();
        self.slot_insert(key, stage, ord, task)?;
        self.mem.lanes.add(task.lane, Place::Parked, 1)
    }

    fn active_order(&mut self, key: Key<'_>, lane: i64, seq: i64) -> Res<Option<i64>> {
        self.one(Sql::SlotActive, params![key.kind, key.text, lane, seq], |row| row.get(0))
    }

    fn active_count(&mut self, key: Key<'_>, lane: i64) -> Res<i64> {
        let count =
            self.one(Sql::SlotCount, params![key.kind, key.text, lane], |row| row.get(0))?;
        Ok(count.unwrap_or(0))
    }

    fn last_active(&mut self, key: Key<'_>, lane: i64) -> Res<Option<(i64, Waiting)>> {
        self.slot_end(Sql::SlotLast, key, IN_READY, lane)
    }

    /// The first or last row of a stage in a lane, with its order.
    fn slot_end(
        &mut self,
        end: Sql,
        key: Key<'_>,
        stage: i64,
        lane: i64,
    ) -> Res<Option<(i64, Waiting)>> {
        self.one(end, params![key.kind, key.text, stage, lane], |row| {
            let ord: i64 = row.get(0)?;
            let (seq, priority, run_at) = (row.get(1)?, row.get(2)?, row.get(3)?);
            let mut waiting = Waiting { seq, lane, priority, run_at, turned: false };
            waiting.turned = match stage {
                IN_READY => ord != waiting.order(),
                stage => stage == WAITS_ITS_TURN,
            };
            Ok((ord, waiting))
        })
    }

    fn slot_insert(&mut self, key: Key<'_>, stage: i64, ord: i64, task: Waiting) -> Res<()> {
        let Waiting { seq, lane, priority, run_at, .. } = task;
        let row = params![key.kind, key.text, stage, lane, ord, seq, priority, run_at];
        self.run(Sql::SlotInsert, row)?;
        Ok(())
    }

    fn try_slot_delete(
        &mut self,
        key: Key<'_>,
        stage: i64,
        lane: i64,
        ord: i64,
        seq: i64,
    ) -> Res<bool> {
        let row = params![key.kind, key.text, stage, lane, ord, seq];
        Ok(self.run(Sql::SlotDelete, row)? == 1)
    }

    fn slot_delete(&mut self, key: Key<'_>, stage: i64, lane: i64, ord: i64, seq: i64) -> Res<()> {
        if self.try_slot_delete(key, stage, lane, ord, seq)? {
            return Ok(());
        }
        let what = format!("task number {seq} is not in line for its concurrency_key");
        Err(Failure::broken(what))
    }
}
