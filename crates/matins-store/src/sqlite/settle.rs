//! Ending runs. A settlement is written while its claim stands, and not at all otherwise.

use matins_core::Json;
use matins_core::lifecycle::{Next, QUARANTINE_LOSSES, Settlement};
use matins_core::store::Settled;
use matins_core::task::State;
use rusqlite::params;

use super::end::Ending;
use super::error::Res;
use super::lanes::Place;
use super::row::{CANCELLED, COMPLETED, FAILED};
use super::sql::Sql;
use super::time::us;
use super::tx::Tx;

/// A claim that stands.
struct Run {
    seq: i64,
    worker: i64,
    lane: i64,
    claimed_at: i64,
    cancel_requested_at: Option<i64>,
    /// Something else depends on how the task ends.
    tied: bool,
}

impl Tx<'_> {
    pub(super) fn settle(&mut self, items: &[Settlement]) -> Res<Vec<Settled>> {
        items.iter().map(|item| self.settle_one(item)).collect()
    }

    pub(super) fn settle_one(&mut self, s: &Settlement) -> Res<Settled> {
        let Some(run) = self.standing(s)? else { return Ok(Settled::Fenced) };
        self.run(Sql::RunningDelete, params![run.seq])?;
        self.mem.lanes.add(run.lane, Place::Running, -1)?;
        let at = us(s.finished_at);
        let (next, retries) = s.taken(run.cancel_requested_at.is_some());
        if let Next::Again { run_at } = next {
            self.again(s, &run, us(*run_at))?;
            return Ok(Settled::Done(State::Pending));
        }
        self.write_end(s, &run, next, retries)?;
        let (state, place, ending) = match next {
            Next::Completed { .. } => (State::Completed, Place::Completed, Ending::Completed),
            Next::Cancelled { .. } => (State::Cancelled, Place::Cancelled, Ending::Cancelled),
            Next::Failed | Next::Again { .. } => (State::Failed, Place::Failed, Ending::Failed),
        };
        self.mem.lanes.add(run.lane, place, 1)?;
        if ending == Ending::Failed {
            self.run(Sql::DeadInsert, params![run.seq])?;
            self.raise_dead_letter(run.seq)?;
            self.mem.lanes.add(run.lane, Place::Dead, 1)?;
        }
        if run.tied {
            let task = self.facts(run.seq)?;
            if let Some(key) = &task.concurrency_key {
                self.slot_freed(key, task.lane, at)?;
            }
            self.let_go(&task, ending, at)?;
        }
        Ok(Settled::Done(state))
    }

    /// The claim a settlement speaks of, if it still stands.
    fn standing(&mut self, s: &Settlement) -> Res<Option<Run>> {
        let found = self.one(Sql::RunningGet, params![s.claim.id.0], |row| {
            let claim: (i64, i64) = (row.get(1)?, row.get(2)?);
            let run = Run {
                seq: row.get(0)?,
                worker: row.get(3)?,
                lane: row.get(4)?,
                claimed_at: row.get(5)?,
                cancel_requested_at: row.get(6)?,
                tied: row.get(7)?,
            };
            Ok((claim, run))
        })?;
        let own = (s.claim.fence.cast_signed(), s.claim.token.cast_signed());
        Ok(found.filter(|(claim, _)| *claim == own).map(|(_, run)| run))
    }

    fn write_end(&mut self, s: &Settlement, run: &Run, next: &Next, retries: u32) -> Res<()> {
        let (state, reason, result, dropped) = match next {
            Next::Completed { result, result_dropped_bytes } => {
                (COMPLETED, None, result.as_ref(), *result_dropped_bytes)
            }
            Next::Cancelled { reason } => (CANCELLED, Some(*reason), None, None),
            Next::Failed | Next::Again { .. } => (FAILED, None, None, None),
        };
        let error = s.error.as_ref();
        let output = Some(&s.trace.output).filter(|output| !output.is_empty());
        self.stmts.get(Sql::TaskSettle)?.execute(params![
            run.seq,
            state,
            retries,
            s.losses,
            s.interruptions,
            run.claimed_at,
            us(s.finished_at),
            run.cancel_requested_at,
            reason,
            dropped.map(u64::cast_signed),
            run.worker,
            s.outcome.as_str(),
            error.map(|error| error.class.as_str()),
            error.map(|error| &*error.message),
            error.map(|error| &*error.fingerprint),
            s.trace.exit_code,
            s.trace.http_status,
            output.map(|output| &*output.bytes),
            output.map(|output| output.dropped.cast_signed()),
            output.map(|output| output.gap_at as i64),
            result.map(Json::as_str),
        ])?;
        Ok(())
    }

    /// The run has ended, the task has not: its attempt is filed, and it waits once more.
    fn again(&mut self, s: &Settlement, run: &Run, run_at: i64) -> Res<()> {
        let before = self.facts(run.seq)?;
        let at = us(s.finished_at);
        let lane = self.sibling_lane(run.lane, s.losses >= QUARANTINE_LOSSES)?;
        self.file_attempt(s, run)?;
        let error = s.error.as_ref();
        self.stmts.get(Sql::TaskAgain)?.execute(params![
            run.seq,
            lane,
            run_at,
            s.retries,
            s.losses,
            s.interruptions,
            run.claimed_at,
            run.cancel_requested_at,
            error.map(|error| error.class.as_str()),
            error.map(|error| &*error.message),
            error.map(|error| &*error.fingerprint),
        ])?;
        if let Some(key) = &before.concurrency_key {
            self.slot_freed(key, before.lane, at)?;
        }
        let task = self.facts(run.seq)?;
        self.enter(&task, at)
    }

    fn file_attempt(&mut self, s: &Settlement, run: &Run) -> Res<()> {
        let error = s.error.as_ref();
        let output = Some(&s.trace.output).filter(|output| !output.is_empty());
        self.stmts.get(Sql::AttemptInsert)?.execute(params![
            run.seq,
            s.attempt,
            run.worker,
            run.claimed_at,
            us(s.finished_at),
            s.outcome.as_str(),
            error.map(|error| error.class.as_str()),
            error.map(|error| &*error.message),
            error.map(|error| &*error.fingerprint),
            s.trace.exit_code,
            s.trace.http_status,
            output.map(|output| &*output.bytes),
            output.map(|output| output.dropped.cast_signed()),
            output.map(|output| output.gap_at as i64),
        ])?;
        Ok(())
    }
}
