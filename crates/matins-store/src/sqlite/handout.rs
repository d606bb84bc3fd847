//! A claim from the head of the line.
//!
//! The lanes that a request may be served from are merged by their heads, so a claim costs what
//! it hands out, plus one look per lane that has something in line. What lies in other lanes,
//! behind a limit, in the future or in the past is never visited.
//!
//! Rows leave `ready` lane by lane, as one range from the head to the last one taken. Whatever
//! else may put rows there (ending a task instead of running it releases others) comes only
//! after those ranges have been deleted, and then the lanes are looked at anew.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use matins_core::store::{ClaimBatch, ClaimRequest};
use rusqlite::params;

use super::claim::{Admission, Limits};
use super::error::{Failure, Res};
use super::lanes::Place;
use super::row::Facts;
use super::sql::Sql;
use super::time::us;
use super::tx::Tx;

/// Most tasks that one claim moves from `scheduled` into line, and that it ends in passing.
const PROMOTED_MAX: usize = 2_000;
const PASSED_MAX: usize = 200;

/// Rows read from a lane at a time. A full claim from one lane must be less than a chunk, or the
/// next one is read for nothing.
const CHUNK_MIN: usize = 8;
const CHUNK_MAX: usize = 1_024;

/// A lane that the request is served from.
struct Line {
    lane: i64,
    /// The next rows, in order.
    rows: VecDeque<(i64, i64)>,
    /// The last row that was read, if there may be more behind it.
    read_to: Option<(i64, i64)>,
    /// Taken since the last flush: how many, and up to which.
    taken: i64,
    taken_to: (i64, i64),
}

pub(super) struct Handout<'t, 'a, 'r> {
    tx: &'t mut Tx<'a>,
    request: &'r ClaimRequest,
    now: i64,
    worker: i64,
    limits: Limits,
    lines: Vec<Line>,
    heads: BinaryHeap<Reverse<(i64, i64, usize)>>,
    batch: ClaimBatch,
    /// The first opening of a rate that kept something back.
    opening: Option<Timestamp>,
    promoted: usize,
    passed: usize,
}

impl<'t, 'a, 'r> Handout<'t, 'a, 'r> {
    pub(super) fn new(tx: &'t mut Tx<'a>, request: &'r ClaimRequest) -> Res<Self> {
        let worker = tx.name_id(&request.worker.0)?;
        let limits = Limits::new(tx);
        Ok(Self {
            tx,
            request,
            now: us(request.now),
            worker,
            limits,
            lines: Vec::new(),
            heads: BinaryHeap::new(),
            batch: ClaimBatch::default(),
            opening: None,
            promoted: 0,
            passed: 0,
        })
    }

    pub(super) fn run(mut self) -> Res<ClaimBatch> {
        let mut more_due = self.promote()?;
        self.open()?;
        let mut unfinished = false;
        while self.batch.claimed.len() < self.request.max {
            if self.passed >= PASSED_MAX {
                unfinished = true;
                break;
            }
            if let Some((ord, seq, line)) = self.next()? {
                self.take(ord, seq, line)?;
            } else if more_due && self.promoted < PROMOTED_MAX {
                self.flush()?;
                more_due = self.promote()?;
                self.open()?;
            } else {
                unfinished = more_due;
                break;
            }
        }
        self.flush()?;
        let due = if unfinished {
            self.request.now.saturating_add(SignedDuration::from_micros(1)).ok()
        } else {
            self.tx.next_due(self.request)?
        };
        self.batch.next_at = [self.opening, due].into_iter().flatten().min();
        self.limits.save(self.tx)?;
        Ok(self.batch)
    }

    /// `true`: there is more than was promoted.
    fn promote(&mut self) -> Res<bool> {
        let limit = (self.request.max * 2).clamp(256, PROMOTED_MAX);
        let promoted = self.tx.promote(self.now, limit)?;
        self.promoted += promoted;
        Ok(promoted == limit)
    }

    /// Looks at the heads of all lanes that have something in line.
    fn open(&mut self) -> Res<()> {
        self.lines.clear();
        self.heads.clear();
        self.opening = None;
        let served = self.tx.mem.lanes.iter().filter(|lane| lane.count(Place::Ready) > 0);
        let served = served.filter(|lane| self.tx.serves(self.request, lane));
        let lanes: Vec<i64> = served.map(|lane| lane.id).collect();
        let wanted = self.request.max - self.batch.claimed.len();
        let chunk = (wanted / lanes.len().max(1) + 1).clamp(CHUNK_MIN, CHUNK_MAX);
        for lane in lanes {
            let params = params![lane, chunk as i64];
            let rows = self.tx.all(Sql::ReadyHead, params, |row| Ok((row.get(0)?, row.get(1)?)))?;
            let read_to = rows.last().copied().filter(|_| rows.len() == chunk);
            let rows = VecDeque::from(rows);
            self.lines.push(Line { lane, rows, read_to, taken: 0, taken_to: (0, 0) });
            self.raise(self.lines.len() - 1)?;
        }
        Ok(())
    }

    /// Puts the next row of a line among the heads.
    fn raise(&mut self, index: usize) -> Res<()> {
        let line = &mut self.lines[index];
        if line.rows.is_empty()
            && let Some((ord, seq)) = line.read_to
        {
            let params = params![line.lane, ord, seq, CHUNK_MAX as i64];
            let rows =
                self.tx.all(Sql::ReadyAfter, params, |row| Ok((row.get(0)?, row.get(1)?)))?;
            line.read_to = rows.last().copied().filter(|_| rows.len() == CHUNK_MAX);
            line.rows = rows.into();
        }
        if let Some((ord, seq)) = line.rows.pop_front() {
            self.heads.push(Reverse((ord, seq, index)));
        }
        Ok(())
    }

    /// The foremost row that the limits admit. A lane that they close stays closed: nothing
    /// that a claim does opens a limit.
    fn next(&mut self) -> Res<Option<(i64, i64, usize)>> {
        while let Some(Reverse((ord, seq, index))) = self.heads.pop() {
            match self.limits.admits(self.tx, self.lines[index].lane, self.now)? {
                Admission::Yes => return Ok(Some((ord, seq, index))),
                Admission::No => {}
                Admission::Until(at) => {
                    self.opening = Some(self.opening.map_or(at, |opening| opening.min(at)));
                }
            }
        }
        Ok(None)
    }

    fn take(&mut self, ord: i64, seq: i64, index: usize) -> Res<()> {
        let lane = self.lines[index].lane;
        let stored = self
            .tx
            .stored(Sql::TaskPending, params![seq])?
            .ok_or_else(|| Failure::broken(format!("task number {seq} has no row")))?;
        if let Some(key) = &stored.task.concurrency_key
            && self.tx.slot_order(key, lane, seq)? != Some(ord)
        {
            // Parked since it was read, because another task of its key was taken.
            return self.raise(index);
        }
        let line = &mut self.lines[index];
        line.taken += 1;
        line.taken_to = (ord, seq);
        if stored.task.expires_at.is_some() || stored.task.execution_key.is_some() {
            let task = Facts::of(&stored);
            let lines = &mut self.lines;
            let take_out = |tx: &mut Tx<'_>| {
                flush(tx, lines)?;
                match &task.concurrency_key {
                    Some(key) => tx.slot_dropped(key, lane, ord, seq),
                    None => Ok(()),
                }
            };
            if self.tx.ends_unrun(&task, self.now, take_out)? {
                self.passed += 1;
                return self.open();
            }
        }
        self.raise(index)?;
        if let Some(key) = &stored.task.concurrency_key {
            self.tx.slot_claimed(key, lane, ord, seq)?;
        }
        self.limits.take(self.tx, lane, self.now)?;
        let claimed = self.tx.start(self.request, self.worker, stored)?;
        self.batch.claimed.push(claimed);
        Ok(())
    }

    fn flush(&mut self) -> Res<()> {
        flush(self.tx, &mut self.lines)
    }
}

/// Takes out of line what has been taken.
fn flush(tx: &mut Tx<'_>, lines: &mut [Line]) -> Res<()> {
    for line in lines.iter_mut().filter(|line| line.taken > 0) {
        let (ord, seq) = line.taken_to;
        let gone = tx.run(Sql::ReadyDeleteTo, params![line.lane, ord, seq])?;
        if gone as i64 != line.taken {
            let what = format!("lane {}: {gone} rows for {} tasks", line.lane, line.taken);
            return Err(Failure::broken(what));
        }
        tx.mem.lanes.add(line.lane, Place::Ready, -line.taken)?;
        line.taken = 0;
    }
    Ok(())
}
