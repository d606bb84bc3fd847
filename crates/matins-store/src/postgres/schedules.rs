//! Schedules, their occurrences, and the tasks they start.

use std::sync::atomic::Ordering;

use jiff::Timestamp;
use matins_core::page::{Page, PageRequest};
use matins_core::schedule::{
    Balance, DueSchedule, FirePlan, Live, Occurrence, Reason, ScheduleState, ScheduleStatus,
};
use matins_core::store::Expect;
use matins_core::task::{NewTask, State, TaskId};
use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::Json as Jsonb;
use uuid::Uuid;

use super::PostgresStore;
use super::enqueue::wish;
use super::error::{Failure, Res};
use super::row::{self, get, word};
use super::sql::Sql;
use super::text::{Text, encode};
use super::time::{At, stamp};
use crate::{cursor, form};

fn decided(state: &ScheduleState) -> u64 {
    let Balance { fired, coalesced, skipped, missed, .. } = state.balance;
    fired + coalesced + skipped + missed
}

/// Only an active schedule is ever due.
fn armed(state: &ScheduleState) -> Option<Timestamp> {
    state.next_due.filter(|_| state.status == ScheduleStatus::Active)
}

/// What every write of a schedule says of it.
fn written(state: &ScheduleState) -> Res<Value> {
    Ok(json!({
        "name": encode(&state.spec.name),
        "uid": state.uid,
        "rev": state.rev,
        "next_due": armed(state).map(stamp),
        "state": encode(&serde_json::to_string(state)?),
        "decided": decided(state),
    }))
}

fn task(new: &NewTask) -> Value {
    let origin = new.origin.as_ref();
    json!({
        "id": new.id.0,
        "client_id": new.client_id,
        "pool": encode(&new.pool),
        "type": encode(&new.kind),
        "payload": new.payload.as_str(),
        "priority": new.priority,
        "run_at": stamp(new.run_at),
        "expires_at": new.expires_at.map(stamp),
        "execution_key": new.execution_key.as_deref().map(encode),
        "on_duplicate": wish(new.on_duplicate),
        "concurrency_key": new.concurrency_key.as_deref().map(encode),
        "tags": (!new.tags.is_empty())
            .then(|| new.tags.iter().map(|tag| encode(tag)).collect::<Vec<_>>()),
        "max_retries": new.max_retries,
        "backoff": new.backoff.as_ref().map(form::write_backoff),
        "timeout_us": new.timeout.map(form::write_timeout),
        "schedule": origin.map(|origin| encode(&origin.schedule)),
        "schedule_uid": origin.map(|origin| origin.schedule_uid),
        "label": origin.map(|origin| encode(&origin.label)),
        "occurrence": origin.map(|origin| stamp(origin.time)),
        "held": new.held,
        "created_by": encode(&new.created_by),
    })
}

pub(super) fn plans(plans: &[FirePlan]) -> Res<Value> {
    plans.iter().map(plan).collect::<Res<Vec<Value>>>().map(Value::from)
}

pub(super) fn writes(writes: &[(Expect, ScheduleState)]) -> Res<Value> {
    let mut values = Vec::with_capacity(writes.len());
    for (expect, state) in writes {
        let mut value = written(state)?;
        if let Expect::Rev(rev) = expect {
            value["expected_rev"] = json!(rev);
        }
        values.push(value);
    }
    Ok(Value::from(values))
}

pub(super) fn plan(plan: &FirePlan) -> Res<Value> {
    let mut value = written(&plan.state)?;
    let starts = plan.starts.iter();
    let occurrences = plan.occurrences.iter();
    value["expected_rev"] = json!(plan.expected_rev);
    value["cancel_previous"] = json!(plan.cancel_previous);
    value["starts"] = starts
        .map(|start| json!({"label": encode(&start.label), "task": task(&start.task)}))
        .collect();
    value["occurrences"] = occurrences
        .map(|one| {
            json!({
                "schedule_uid": one.schedule_uid,
                "schedule": encode(&one.schedule),
                "label": encode(&one.label),
                "label_to": one.label_to.as_deref().map(encode),
                "count": one.count,
                "kind": one.kind.as_str(),
                "time": stamp(one.time),
                "outcome": one.outcome.as_str(),
                "reason": one.reason.map(Reason::as_str),
                "task_id": one.task_id.map(|id| id.0),
                "fired_at": one.fired_at.map(stamp),
            })
        })
        .collect();
    Ok(value)
}

impl PostgresStore {
    pub(super) async fn write_schedules(
        &self,
        chosen: &[(Expect, ScheduleState)],
    ) -> Res<Vec<bool>> {
        let row = self.work.one(Sql::SchedulePut, &[&Jsonb(writes(chosen)?)]).await?;
        get(&row.ok_or_else(|| Failure::broken("no answer to a write of schedules"))?, 0)
    }

    pub(super) async fn apply_plans(&self, chosen: &[FirePlan], now: Timestamp) -> Res<Vec<bool>> {
        self.heed_clock(now);
        let row = self.work.one(Sql::Fire, &[&Jsonb(plans(chosen)?), &At(now)]).await?;
        get(&row.ok_or_else(|| Failure::broken("no answer to plans"))?, 0)
    }

    pub(super) fn heed_clock(&self, now: Timestamp) {
        self.clock.fetch_max(now.as_microsecond(), Ordering::Relaxed);
    }

    pub(super) async fn one_schedule(&self, name: &str) -> Res<Option<DueSchedule>> {
        let row = self.work.one(Sql::ScheduleGet, &[&Text(name)]).await?;
        row.map(|row| with_live(&row)).transpose()
    }

    pub(super) async fn page_of_schedules(&self, page: &PageRequest) -> Res<Page<DueSchedule>> {
        let after = cursor::text("schedules", page)?.unwrap_or_default();
        let limit = cursor::limit(page);
        let rows = self.work.rows(Sql::SchedulePage, &[&Text(after), &(limit as i64 + 1)]).await?;
        let items: Vec<DueSchedule> = rows.iter().take(limit).map(with_live).collect::<Res<_>>()?;
        let last = items.last().filter(|_| rows.len() > limit).map(|last| &last.state.spec.name);
        let next = last.map(|name| cursor::write("schedules", name));
        Ok(Page { items, next })
    }

    pub(super) async fn due_schedules(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Res<(Vec<DueSchedule>, Option<Timestamp>)> {
        let wanted = i64::try_from(limit).unwrap_or(i64::MAX - 1) + 1;
        let rows = self.work.rows(Sql::ScheduleDue, &[&At(now), &wanted]).await?;
        let due = rows.iter().take(limit).map(with_live).collect::<Res<_>>()?;
        let next = match rows.get(limit) {
            Some(row) => row::opt_at(row, 0)?,
            None => match self.work.one(Sql::ScheduleNext, &[&At(now)]).await? {
                Some(row) => row::opt_at(&row, 0)?,
                None => None,
            },
        };
        Ok((due, next))
    }

    pub(super) async fn page_of_occurrences(
        &self,
        schedule: Option<&str>,
        page: &PageRequest,
    ) -> Res<Page<Occurrence>> {
        let before = cursor::number("occurrences", page)?.unwrap_or(i64::MAX);
        let limit = cursor::limit(page);
        let wanted = limit as i64 + 1;
        let rows = match schedule {
            Some(name) => {
                self.work.rows(Sql::OccurrenceOf, &[&before, &wanted, &Text(name)]).await?
            }
            None => self.work.rows(Sql::OccurrencePage, &[&before, &wanted]).await?,
        };
        let items = rows.iter().take(limit).map(occurrence).collect::<Res<Vec<_>>>()?;
        let last = rows.get(limit.wrapping_sub(1)).filter(|_| rows.len() > limit);
        let next = match last {
            Some(row) => Some(cursor::write("occurrences", &get::<i64>(row, 11)?)),
            None => None,
        };
        Ok(Page { items, next })
    }

    pub(super) async fn fired(
        &self,
        uid: Uuid,
        from: Timestamp,
        to: Timestamp,
    ) -> Res<Vec<(Occurrence, Option<State>)>> {
        let rows = self.work.rows(Sql::OccurrenceFired, &[&uid, &At(from), &At(to)]).await?;
        let one = |row: &Row| {
            let runs = get::<Option<bool>>(row, 12)?.unwrap_or(false);
            let state = get::<Option<i16>>(row, 11)?.map(|state| row::state_of(state, runs));
            Ok((occurrence(row)?, state))
        };
        rows.iter().map(one).collect()
    }

    pub(super) async fn live_of(&self, uid: Uuid) -> Res<Live> {
        let row = self.work.one(Sql::Live, &[&uid]).await?;
        live(&row.ok_or_else(|| Failure::broken("no answer about a schedule"))?, 0)
    }
}

/// Counts of active and held tasks and of failures, from column `first` on.
fn live(row: &Row, first: usize) -> Res<Live> {
    let count = |index| Ok::<_, Failure>(get::<i64>(row, index)? as u32);
    Ok(Live {
        active: count(first)?,
        held: count(first + 1)?,
        failures_in_row: get::<i32>(row, first + 2)?.cast_unsigned(),
    })
}

pub(super) fn with_live(row: &Row) -> Res<DueSchedule> {
    let state: ScheduleState = serde_json::from_str(&row::text(row, 1)?)?;
    Ok(DueSchedule { state, live: live(row, 2)? })
}

fn occurrence(row: &Row) -> Res<Occurrence> {
    let missing = || Failure::broken("an occurrence without a kind or an outcome");
    Ok(Occurrence {
        schedule_uid: get(row, 0)?,
        schedule: row::name(row, 1)?,
        label: row::text(row, 2)?,
        label_to: row::opt_text(row, 3)?,
        count: get::<i64>(row, 4)?.cast_unsigned(),
        kind: word(row, 5)?.ok_or_else(missing)?,
        time: row::at(row, 6)?,
        outcome: word(row, 7)?.ok_or_else(missing)?,
        reason: word(row, 8)?,
        task_id: get::<Option<Uuid>>(row, 9)?.map(TaskId),
        fired_at: row::opt_at(row, 10)?,
    })
}
