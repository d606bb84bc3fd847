//! Schedules, their occurrences, and the tasks they start.

use std::sync::Arc;

use jiff::Timestamp;
use matins_core::page::{Page, PageRequest};
use matins_core::schedule::{
    Balance, DueSchedule, FirePlan, Live, Occurrence, OccurrenceKind, Reason, ScheduleState,
    ScheduleStatus,
};
use matins_core::store::{Act, Enqueued, Expect};
use matins_core::task::{Name, State, TaskId};
use rusqlite::{Row, params};
use uuid::Uuid;

use super::catalog::Catalog;
use super::error::{Failure, Res};
use super::reader::Reader;
use super::row::{self, word};
use super::sql::Sql;
use super::time::{opt_ts, opt_us, ts, us};
use super::tx::Tx;
use crate::cursor;

fn decided(state: &ScheduleState) -> i64 {
    let Balance { fired, coalesced, skipped, missed, .. } = state.balance;
    (fired + coalesced + skipped + missed).cast_signed()
}

/// Only an active schedule is ever due.
fn armed(state: &ScheduleState) -> Option<i64> {
    opt_us(state.next_due.filter(|_| state.status == ScheduleStatus::Active))
}

/// A schedule to be written. It is put into words before the writer has it, so that whoever waits
/// for the writer waits for its rows alone.
pub(super) struct Put {
    expect: Expect,
    state: ScheduleState,
    text: String,
}

impl Put {
    pub(super) fn new((expect, state): (Expect, ScheduleState)) -> Res<Self> {
        Ok(Self { expect, text: serde_json::to_string(&state)?, state })
    }

    pub(super) fn byte_len(&self) -> usize {
        self.text.len()
    }
}

impl Tx<'_> {
    pub(super) fn put_schedule(&mut self, put: &Put) -> Res<bool> {
        let Put { expect, state, text } = put;
        let name = &*state.spec.name;
        let (rev, due) = (state.rev.cast_signed(), armed(state));
        let decided = decided(state);
        let written = match expect {
            Expect::Absent => {
                self.run(Sql::ScheduleInsert, params![name, state.uid, rev, due, text, decided])?
            }
            Expect::Rev(expected) => {
                let expected = expected.cast_signed();
                let row = params![name, state.uid, rev, due, text, decided, expected];
                self.run(Sql::ScheduleUpdate, row)?
            }
        };
        Ok(written == 1)
    }

    pub(super) fn remove_schedule(&mut self, name: &str, act: &Act) -> Res<bool> {
        let Some((uid, _)) = self.schedule_rev(name)? else { return Ok(false) };
        self.run(Sql::ScheduleDelete, params![name])?;
        // The last one first, or the end of one would release the next.
        for seq in self.live_seqs(uid, true)? {
            let task = self.facts(seq)?;
            self.cancel_pending(&task, "schedule_removed", us(act.at))?;
        }
        self.audit_act("schedule.remove", name, act)?;
        Ok(true)
    }

    fn schedule_rev(&mut self, name: &str) -> Res<Option<(Uuid, i64)>> {
        self.one(Sql::ScheduleUid, params![name], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    fn live_seqs(&mut self, uid: Uuid, held: bool) -> Res<Vec<i64>> {
        self.all(Sql::LiveList, params![uid, held], |row| row.get(0))
    }

    /// `false`: the schedule, or one of the occurrences, was decided by somebody else.
    pub(super) fn fire(&mut self, plan: &FirePlan, now: i64) -> Res<bool> {
        let state = &plan.state;
        let stored = self.schedule_rev(&state.spec.name)?;
        if stored != Some((state.uid, plan.expected_rev.cast_signed())) {
            return Ok(false);
        }
        for occurrence in &plan.occurrences {
            if self.is_decided(occurrence)? {
                return Ok(false);
            }
        }
        if plan.cancel_previous {
            self.cancel_previous(state.uid, now)?;
        }
        let mut started: Vec<(&str, TaskId)> = Vec::with_capacity(plan.starts.len());
        for start in &plan.starts {
            let id = match self.enqueue_one(&start.task, now)? {
                Enqueued::Created | Enqueued::Journalled(_) => start.task.id,
                Enqueued::Existing(task) | Enqueued::Replaced(task) | Enqueued::Rejected(task) => {
                    task.id
                }
            };
            started.push((&start.label, id));
        }
        for occurrence in &plan.occurrences {
            let start = started.iter().rev().find(|(label, _)| *label == occurrence.label);
            let task_id = start.map_or(occurrence.task_id, |(_, id)| Some(*id));
            self.write_occurrence(occurrence, task_id)?;
            self.raise_missed(occurrence, now)?;
        }
        let text = serde_json::to_string(state)?;
        let row =
            params![state.spec.name, state.rev.cast_signed(), armed(state), text, decided(state)];
        self.run(Sql::ScheduleAdvance, row)?;
        Ok(true)
    }

    fn is_decided(&mut self, new: &Occurrence) -> Res<bool> {
        if new.kind != OccurrenceKind::Scheduled {
            return Ok(false);
        }
        let known = params![new.schedule_uid, new.label];
        Ok(self.one(Sql::OccurrenceKnown, known, |_| Ok(()))?.is_some())
    }

    /// Asks what runs to end and cancels what waits: held ones first, the last one first, so
    /// that none of them releases another.
    fn cancel_previous(&mut self, uid: Uuid, now: i64) -> Res<()> {
        for held in [true, false] {
            for seq in self.live_seqs(uid, held)? {
                let stored = self.stored_by_seq(seq)?;
                if stored.task.state == State::Running {
                    self.run(Sql::RunningCancel, params![seq, now])?;
                } else {
                    self.cancel_pending(&row::Facts::of(&stored), "overlap", now)?;
                }
            }
        }
        Ok(())
    }

    fn write_occurrence(&mut self, occurrence: &Occurrence, task_id: Option<TaskId>) -> Res<()> {
        let schedule = self.name_id(&occurrence.schedule)?;
        self.run(
            Sql::OccurrenceInsert,
            params![
                occurrence.schedule_uid,
                schedule,
                occurrence.label,
                occurrence.label_to,
                occurrence.count.cast_signed(),
                occurrence.kind.as_str(),
                us(occurrence.time),
                occurrence.outcome.as_str(),
                occurrence.reason.map(Reason::as_str),
                task_id.map(|id| id.0),
                opt_us(occurrence.fired_at),
            ],
        )?;
        Ok(())
    }
}

impl Reader {
    pub(super) fn schedule(&mut self, name: &str) -> Res<Option<DueSchedule>> {
        let text: Option<String> = self.one(Sql::ScheduleGet, params![name], |row| row.get(0))?;
        text.map(|text| self.with_live(&text)).transpose()
    }

    fn with_live(&mut self, state: &str) -> Res<DueSchedule> {
        let state: ScheduleState = serde_json::from_str(state)?;
        let live = self.live(state.uid)?;
        Ok(DueSchedule { state, live })
    }

    pub(super) fn live(&mut self, uid: Uuid) -> Res<Live> {
        let count = |reader: &Self, held| -> Res<u32> {
            let count: Option<u32> =
                reader.one(Sql::LiveCount, params![uid, held], |row| row.get(0))?;
            Ok(count.unwrap_or(0))
        };
        let failures = self.one(Sql::FailuresGet, params![uid], |row| row.get(0))?;
        Ok(Live {
            active: count(self, false)?,
            held: count(self, true)?,
            failures_in_row: failures.unwrap_or(0),
        })
    }

    pub(super) fn schedules(&mut self, page: &PageRequest) -> Res<Page<DueSchedule>> {
        let after = cursor::text("schedules", page)?;
        let limit = cursor::limit(page);
        let wanted = limit as i64 + 1;
        let read = |row: &Row<'_>| row.get(0);
        let states: Vec<String> = match after {
            Some(after) => self.all(Sql::SchedulePage, params![after, wanted], read)?,
            None => self.all(Sql::ScheduleFirst, params![wanted], read)?,
        };
        let more = states.len() > limit;
        let items = states.iter().take(limit).map(|state| self.with_live(state));
        let items: Vec<DueSchedule> = items.collect::<Res<_>>()?;
        let last = items.last().filter(|_| more).map(|last| &last.state.spec.name);
        let next = last.map(|name| cursor::write("schedules", name));
        Ok(Page { items, next })
    }

    pub(super) fn due(
        &mut self,
        now: i64,
        limit: usize,
    ) -> Res<(Vec<DueSchedule>, Option<Timestamp>)> {
        let wanted = i64::try_from(limit).unwrap_or(i64::MAX - 1) + 1;
        let rows: Vec<(i64, String)> =
            self.all(Sql::ScheduleDue, params![now, wanted], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let due = rows.iter().take(limit).map(|(_, state)| self.with_live(state));
        let due = due.collect::<Res<_>>()?;
        let next = match rows.get(limit) {
            Some((at, _)) => Some(*at),
            None => self.one(Sql::ScheduleNext, params![now], |row| row.get(0))?,
        };
        Ok((due, next.map(ts)))
    }

    pub(super) fn occurrences(
        &mut self,
        schedule: Option<&str>,
        page: &PageRequest,
    ) -> Res<Page<Occurrence>> {
        let before = cursor::number("occurrences", page)?.unwrap_or(i64::MAX);
        let schedule = match schedule {
            Some(name) => match self.known_name(name)? {
                Some(id) => Some(id),
                None => return Ok(Page { items: Vec::new(), next: None }),
            },
            None => None,
        };
        let limit = cursor::limit(page);
        let wanted = limit as i64 + 1;
        let Self { conn, catalog } = self;
        let sql = if schedule.is_some() { Sql::OccurrenceOf } else { Sql::OccurrencePage };
        let mut statement = conn.prepare_cached(sql.text())?;
        let mut rows = match schedule {
            Some(schedule) => statement.query(params![before, wanted, schedule])?,
            None => statement.query(params![before, wanted])?,
        };
        let mut items = Vec::new();
        let mut last = None;
        while let Some(row) = rows.next()? {
            if items.len() == limit {
                let next = last.map(|number: i64| cursor::write("occurrences", &number));
                return Ok(Page { items, next });
            }
            last = Some(row.get(0)?);
            items.push(occurrence(row, conn, catalog)?);
        }
        Ok(Page { items, next: None })
    }

    pub(super) fn fired_between(
        &mut self,
        uid: Uuid,
        from: i64,
        to: i64,
    ) -> Res<Vec<(Occurrence, Option<State>)>> {
        let Self { conn, catalog } = self;
        let mut statement = conn.prepare_cached(Sql::OccurrenceFired.text())?;
        let mut rows = statement.query(params![uid, from, to])?;
        let mut fired = Vec::new();
        while let Some(row) = rows.next()? {
            let state = row.get::<_, Option<i64>>(12)?.map(|state| match state {
                row::COMPLETED => Ok(State::Completed),
                row::FAILED => Ok(State::Failed),
                row::CANCELLED => Ok(State::Cancelled),
                _ if row.get(13)? => Ok(State::Running),
                _ => Ok(State::Pending),
            });
            let state = state.transpose().map_err(|error: rusqlite::Error| error)?;
            fired.push((occurrence(row, conn, catalog)?, state));
        }
        Ok(fired)
    }
}

fn occurrence(
    row: &Row<'_>,
    conn: &rusqlite::Connection,
    catalog: &mut Catalog,
) -> Res<Occurrence> {
    let schedule: Name = catalog.name(conn, row.get(2)?)?;
    let missing = || Failure::broken("an occurrence without a kind or an outcome");
    Ok(Occurrence {
        schedule_uid: row.get(1)?,
        schedule: Arc::clone(&schedule),
        label: row.get(3)?,
        label_to: row.get(4)?,
        count: row.get::<_, i64>(5)?.cast_unsigned(),
        kind: word(row, 6)?.ok_or_else(missing)?,
        time: ts(row.get(7)?),
        outcome: word(row, 8)?.ok_or_else(missing)?,
        reason: word(row, 9)?,
        task_id: row.get::<_, Option<Uuid>>(10)?.map(TaskId),
        fired_at: opt_ts(row.get(11)?),
    })
}
