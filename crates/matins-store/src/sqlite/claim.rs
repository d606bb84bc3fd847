//! Handing out: what a claim may have, and what it costs the limits.
//!
//! [`Handout`] serves from the head of the line; claims of named tasks are here.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use matins_core::rate::Rate;
use matins_core::store::{ClaimBatch, ClaimRequest};
use matins_core::task::{Claim, Claimed, State, TaskId};
use rusqlite::params;
use uuid::Uuid;

use super::enqueue::Holder;
use super::error::Res;
use super::handout::Handout;
use super::lanes::{Lane, Place};
use super::row::{Facts, Stored};
use super::sql::Sql;
use super::time::{opt_us, ts, us};
use super::tx::Tx;

/// How many of the next due times are looked at for one in a lane that is served.
const GLANCES: usize = 64;

/// What another task of the same key has left.
struct Done {
    result: Option<Arc<str>>,
}

/// Named tasks that are in line, with their places, and when the next of the others is due.
type NamedLine = (Vec<(i64, Stored)>, Option<Timestamp>);

impl Tx<'_> {
    pub(super) fn claim(&mut self, request: &ClaimRequest) -> Res<ClaimBatch> {
        if request.repeated {
            let claimed = self.claimed_before(request)?;
            if !claimed.is_empty() {
                return Ok(ClaimBatch { claimed, next_at: None });
            }
        }
        if request.max == 0 || self.mem.settings.frozen.is_some() || !self.may_claim(request)? {
            return Ok(ClaimBatch::default());
        }
        self.follow_clock(us(request.now))?;
        match &request.ids {
            Some(ids) => self.claim_named(request, ids),
            None => Handout::new(self, request)?.run(),
        }
    }

    /// What still stands of what an earlier call with the same token was given.
    fn claimed_before(&mut self, request: &ClaimRequest) -> Res<Vec<Claimed>> {
        let Some(worker) = self.known_name(&request.worker.0)? else { return Ok(Vec::new()) };
        let token = request.token;
        let standing: Vec<(i64, i64)> =
            self.all(Sql::RunningRepeat, params![worker, token.cast_signed()], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let claimed = standing.into_iter().map(|(seq, fence)| {
            let task = self.stored_by_seq(seq)?.task;
            let claim = Claim { id: task.id, fence: fence.cast_unsigned(), token };
            Ok(Claimed { task, claim })
        });
        claimed.collect()
    }

    /// A lease must cover what is handed out.
    fn may_claim(&mut self, request: &ClaimRequest) -> Res<bool> {
        if request.lease_until.is_some() {
            return Ok(true);
        }
        let Some(name) = self.known_name(&request.worker.0)? else { return Ok(false) };
        let lease: Option<i64> = self.one(Sql::WorkerLease, params![name], |row| row.get(0))?;
        Ok(lease.is_some_and(|lease| lease >= us(request.now)))
    }

    pub(super) fn serves(&self, request: &ClaimRequest, lane: &Lane) -> bool {
        request.pool.as_ref().is_none_or(|pool| *pool == lane.pool)
            && request.types.contains(&lane.kind)
            && !self.mem.settings.pools.get(&lane.pool).is_some_and(|setting| setting.paused)
    }

    /// The next due time in a lane that is served, or an earlier instant to look again.
    pub(super) fn next_due(&mut self, request: &ClaimRequest) -> Res<Option<Timestamp>> {
        let params = params![us(request.now), GLANCES as i64];
        let due: Vec<(i64, i64)> =
            self.all(Sql::ScheduledNext, params, |row| Ok((row.get(0)?, row.get(1)?)))?;
        for (run_at, lane) in &due {
            if self.serves(request, self.mem.lanes.get(*lane)?) {
                return Ok(Some(ts(*run_at)));
            }
        }
        Ok(due.last().filter(|_| due.len() == GLANCES).map(|(run_at, _)| ts(*run_at)))
    }

    /// Ends a task whose time is over or whose work is done already, instead of running it.
    /// `take_out` takes it out of line first.
    pub(super) fn ends_unrun(
        &mut self,
        task: &Facts,
        now: i64,
        take_out: impl FnOnce(&mut Self) -> Res<()>,
    ) -> Res<bool> {
        let is_over = task.expires_at.is_some_and(|at| at <= now);
        let done = if is_over { None } else { self.completed_by_another(task)? };
        if !is_over && done.is_none() {
            return Ok(false);
        }
        take_out(self)?;
        if let Some(at) = task.expires_at {
            self.run(Sql::ExpiringDelete, params![at, task.seq])?;
        }
        match done {
            Some(done) => self.deduplicate_left(task, done.result.as_ref(), now)?,
            None => self.cancel_left(task, "expired", now)?,
        }
        Ok(true)
    }

    /// The recorded result, when the task's key was completed by another one.
    fn completed_by_another(&mut self, task: &Facts) -> Res<Option<Done>> {
        let Some(key) = &task.execution_key else { return Ok(None) };
        let kind = self.mem.lanes.get(task.lane)?.kind_id;
        let entry: Option<(Uuid, Option<i64>, Option<Arc<str>>)> =
            self.one(Sql::KeyGet, params![kind, &**key], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        let Some((id, at, kept)) = entry.filter(|(id, ..)| *id != task.id) else {
            return Ok(None);
        };
        let row = self.stored_by_id(TaskId(id))?;
        let kind = self.mem.lanes.get(task.lane)?.kind.clone();
        let holder = Holder::new(&kind, key, id, at, kept, row)?;
        if holder.state != State::Completed {
            return Ok(None);
        }
        Ok(Some(Done { result: holder.entry.result.map(|json| json.as_str().into()) }))
    }

    /// Writes a claim about a task that is out of line.
    pub(super) fn start(
        &mut self,
        request: &ClaimRequest,
        worker: i64,
        stored: Stored,
    ) -> Res<Claimed> {
        let Stored { seq, lane, mut task } = stored;
        self.mem.fence += 1;
        let fence = self.mem.fence;
        let now = us(request.now);
        let tied =
            task.execution_key.is_some() || task.concurrency_key.is_some() || task.origin.is_some();
        self.stmts.get(Sql::RunningInsert)?.execute(params![
            seq,
            fence,
            request.token.cast_signed(),
            worker,
            lane,
            now,
            opt_us(request.lease_until),
            opt_us(task.cancel_requested_at),
            tied,
        ])?;
        if let Some(at) = task.expires_at {
            self.run(Sql::ExpiringDelete, params![us(at), seq])?;
        }
        self.mem.lanes.add(lane, Place::Running, 1)?;
        task.state = State::Running;
        task.attempt += 1;
        task.started_at = Some(ts(now));
        let claim = Claim { id: task.id, fence: fence.cast_unsigned(), token: request.token };
        Ok(Claimed { task, claim })
    }

    fn claim_named(&mut self, request: &ClaimRequest, ids: &[TaskId]) -> Res<ClaimBatch> {
        let now = us(request.now);
        let worker = self.name_id(&request.worker.0)?;
        let mut limits = Limits::new(self);
        let mut batch = ClaimBatch::default();
        'anew: loop {
            let (line, due) = self.named_line(request, ids)?;
            batch.next_at = due;
            for (ord, stored) in line {
                if batch.claimed.len() == request.max {
                    break;
                }
                match limits.admits(self, stored.lane, now)? {
                    Admission::Yes => {}
                    Admission::No => continue,
                    Admission::Until(at) => {
                        batch.next_at = Some(batch.next_at.map_or(at, |next| next.min(at)));
                        continue;
                    }
                }
                let Stored { seq, lane, .. } = stored;
                let task = Facts::of(&stored);
                let key = task.concurrency_key.as_deref();
                let take_out = |tx: &mut Self| match key {
                    Some(key) => tx.leave_line(key, &task),
                    None => tx.unmake_ready(lane, ord, seq),
                };
                if !self.has_room(&task)? {
                    continue;
                }
                if self.ends_unrun(&task, now, take_out)? {
                    continue 'anew;
                }
                match key {
                    Some(key) => self.slot_taken(key, &task)?,
                    None => self.unmake_ready(lane, ord, seq)?,
                }
                limits.take(self, lane, now)?;
                batch.claimed.push(self.start(request, worker, stored)?);
            }
            break;
        }
        limits.save(self)?;
        Ok(batch)
    }

    /// Those of the named tasks that are in line, in order, and when the next of the others is
    /// due.
    fn named_line(&mut self, request: &ClaimRequest, ids: &[TaskId]) -> Res<NamedLine> {
        let mut line = Vec::new();
        let mut due: Option<Timestamp> = None;
        for id in ids {
            let Some(stored) = self.stored_by_id(*id)? else { continue };
            let task = Facts::of(&stored);
            if stored.task.state != State::Pending
                || task.held
                || !self.serves(request, self.mem.lanes.get(task.lane)?)
            {
                continue;
            }
            if task.run_at > us(request.now) {
                let at = stored.task.run_at;
                due = Some(due.map_or(at, |due| due.min(at)));
                continue;
            }
            self.promote_one(&task, us(request.now))?;
            let ord = match &task.concurrency_key {
                Some(key) => self.place_in_line(key, &task)?,
                None => task.order(),
            };
            line.push((ord, stored));
        }
        line.sort_by_key(|(ord, stored)| (*ord, stored.seq));
        line.dedup_by_key(|(_, stored)| stored.seq);
        Ok((line, due))
    }
}

/// May another task of a lane start?
pub(super) enum Admission {
    Yes,
    /// When something else has ended.
    No,
    /// By time alone.
    Until(Timestamp),
}

/// What the limits of types and the quarantine slot leave, during one claim.
pub(super) struct Limits {
    kinds: HashMap<i64, KindLimit>,
    quarantine_free: bool,
}

struct KindLimit {
    rate: Option<Rate>,
    spent: Option<Timestamp>,
    changed: bool,
    /// Starts left under the type's `concurrency`.
    room: i64,
}

impl Limits {
    pub(super) fn new(tx: &Tx<'_>) -> Self {
        Self { kinds: HashMap::new(), quarantine_free: !tx.mem.lanes.quarantine_busy() }
    }

    fn kind(&mut self, tx: &Tx<'_>, lane: &Lane) -> &mut KindLimit {
        self.kinds.entry(lane.kind_id).or_insert_with(|| {
            let limit = tx.mem.settings.limits.get(&lane.kind);
            let most = limit.and_then(|limit| limit.concurrency).map(i64::from);
            KindLimit {
                rate: limit.and_then(|limit| limit.rate_limit),
                spent: tx.mem.spent.get(&lane.kind_id).map(|us| ts(*us)),
                changed: false,
                room: most.map_or(i64::MAX, |most| most - tx.mem.lanes.running(&lane.kind)),
            }
        })
    }

    pub(super) fn admits(&mut self, tx: &Tx<'_>, lane: i64, now: i64) -> Res<Admission> {
        let lane = tx.mem.lanes.get(lane)?;
        if lane.quarantine && !self.quarantine_free {
            return Ok(Admission::No);
        }
        let kind = self.kind(tx, lane);
        if kind.room <= 0 {
            return Ok(Admission::No);
        }
        let now = ts(now);
        Ok(match kind.rate {
            Some(rate) if rate.available(kind.spent, now) == 0 => {
                Admission::Until(rate.next_at(kind.spent, now))
            }
            _ => Admission::Yes,
        })
    }

    /// One task of a lane starts.
    pub(super) fn take(&mut self, tx: &Tx<'_>, lane: i64, now: i64) -> Res<()> {
        let lane = tx.mem.lanes.get(lane)?;
        if lane.quarantine {
            self.quarantine_free = false;
        }
        let kind = self.kind(tx, lane);
        kind.room -= 1;
        if let Some(rate) = kind.rate {
            kind.spent = Some(rate.take(kind.spent, ts(now), 1));
            kind.changed = true;
        }
        Ok(())
    }

    pub(super) fn save(self, tx: &mut Tx<'_>) -> Res<()> {
        for (kind, limit) in self.kinds {
            if let Some(spent) = limit.spent.filter(|_| limit.changed) {
                tx.mem.spent.insert(kind, us(spent));
                tx.run(Sql::RatePut, params![kind, us(spent)])?;
            }
        }
        Ok(())
    }
}
