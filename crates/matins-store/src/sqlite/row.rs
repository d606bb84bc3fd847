//! Between rows and the domain's words: the only place that knows the stored form of a task.

use std::str::FromStr;
use std::sync::Arc;

use matins_core::Json;
use matins_core::task::{
    Attempt, Dismissal, Durability, NewTask, Origin, Output, State, Task, TaskError, TaskId,
    order_key,
};
use rusqlite::types::{FromSql, FromSqlError, ValueRef};
use rusqlite::{Connection, Row};
use uuid::Uuid;

use super::catalog::Catalog;
use super::error::Res;
use super::time::{opt_ts, opt_us, ts, us};
use crate::form;

/// The stored states of a task that has ended; 0 is open.
pub(super) const COMPLETED: i64 = 2;
pub(super) const FAILED: i64 = 3;
pub(super) const CANCELLED: i64 = 4;

/// Columns of `task_full`.
mod col {
    pub(super) const FENCE: usize = 0;
    pub(super) const CLAIMED_AT: usize = 3;
    pub(super) const RUN_CANCEL: usize = 4;
    pub(super) const SEQ: usize = 5;
    pub(super) const ID: usize = 6;
    pub(super) const STATE: usize = 7;
    pub(super) const LANE: usize = 8;
    pub(super) const SCHEDULE: usize = 9;
    pub(super) const EXECUTION_KEY: usize = 10;
    pub(super) const TAGS: usize = 11;
    pub(super) const PRIORITY: usize = 12;
    pub(super) const RUN_AT: usize = 13;
    pub(super) const HELD: usize = 14;
    pub(super) const ATTEMPT: usize = 15;
    pub(super) const RETRIES: usize = 16;
    pub(super) const LOSSES: usize = 17;
    pub(super) const INTERRUPTIONS: usize = 18;
    pub(super) const REPLAYS: usize = 19;
    pub(super) const EXPIRES_AT: usize = 20;
    pub(super) const CONCURRENCY_KEY: usize = 21;
    pub(super) const CREATED_AT: usize = 22;
    pub(super) const CREATED_BY: usize = 23;
    pub(super) const MAX_RETRIES: usize = 24;
    pub(super) const BACKOFF: usize = 25;
    pub(super) const TIMEOUT: usize = 26;
    pub(super) const SCHEDULE_UID: usize = 27;
    pub(super) const LABEL: usize = 28;
    pub(super) const OCCURRENCE: usize = 29;
    pub(super) const STARTED_AT: usize = 30;
    pub(super) const FINISHED_AT: usize = 31;
    pub(super) const CANCEL_REQUESTED_AT: usize = 32;
    pub(super) const CANCEL_REASON: usize = 33;
    pub(super) const DEDUPLICATED: usize = 34;
    pub(super) const RESULT_DROPPED: usize = 35;
    pub(super) const DISMISSED: usize = 36;
    pub(super) const ERROR_CLASS: usize = 39;
    pub(super) const RESULT: usize = 47;
    pub(super) const PAYLOAD: usize = 48;
}

/// A task as it is stored.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) seq: i64,
    pub(super) lane: i64,
    pub(super) task: Task,
}

/// What placing and ending a task depend on.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) seq: i64,
    pub(super) id: Uuid,
    pub(super) lane: i64,
    pub(super) priority: i16,
    pub(super) run_at: i64,
    pub(super) held: bool,
    pub(super) execution_key: Option<Arc<str>>,
    pub(super) concurrency_key: Option<Arc<str>>,
    pub(super) expires_at: Option<i64>,
    pub(super) schedule_uid: Option<Uuid>,
}

impl Facts {
    pub(super) fn of(stored: &Stored) -> Self {
        let task = &stored.task;
        Self {
            seq: stored.seq,
            id: task.id.0,
            lane: stored.lane,
            priority: task.priority,
            run_at: us(task.run_at),
            held: task.held,
            execution_key: task.execution_key.clone(),
            concurrency_key: task.concurrency_key.clone(),
            expires_at: opt_us(task.expires_at),
            schedule_uid: task.origin.as_ref().map(|origin| origin.schedule_uid),
        }
    }

    pub(super) fn of_new(seq: i64, lane: i64, new: &NewTask) -> Self {
        Self {
            seq,
            id: new.id.0,
            lane,
            priority: new.priority,
            run_at: us(new.run_at),
            held: new.held,
            execution_key: new.execution_key.clone(),
            concurrency_key: new.concurrency_key.clone(),
            expires_at: opt_us(new.expires_at),
            schedule_uid: new.origin.as_ref().map(|origin| origin.schedule_uid),
        }
    }

    /// In the columns of `task_facts`.
    pub(super) fn read(seq: i64, row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq,
            id: row.get(0)?,
            lane: row.get(1)?,
            priority: row.get(2)?,
            run_at: row.get(3)?,
            held: row.get(4)?,
            execution_key: row.get(5)?,
            concurrency_key: row.get(6)?,
            expires_at: row.get(7)?,
            schedule_uid: row.get(8)?,
        })
    }

    /// Its own order, before its concurrency_key has a say.
    pub(super) fn order(&self) -> i64 {
        order_key(ts(self.run_at), self.priority)
    }
}

/// A word of one of the domain's lists.
struct Word<T>(T);

impl<T: FromStr<Err: std::error::Error + Send + Sync + 'static>> FromSql for Word<T> {
    fn column_result(value: ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
        let word = value.as_str()?.parse().map_err(|error| FromSqlError::Other(Box::new(error)))?;
        Ok(Self(word))
    }
}

/// Reads a column that holds a word.
pub(super) fn word<T>(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<T>>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    Ok(row.get::<_, Option<Word<T>>>(index)?.map(|word| word.0))
}

/// Columns `error_class, error_message, fingerprint` from `first` on.
fn error(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<TaskError>> {
    let Some(class) = word(row, first)? else { return Ok(None) };
    Ok(Some(TaskError { class, message: row.get(first + 1)?, fingerprint: row.get(first + 2)? }))
}

fn state(row: &Row<'_>) -> rusqlite::Result<State> {
    Ok(match row.get(col::STATE)? {
        COMPLETED => State::Completed,
        FAILED => State::Failed,
        CANCELLED => State::Cancelled,
        _ if matches!(row.get_ref(col::FENCE)?, ValueRef::Null) => State::Pending,
        _ => State::Running,
    })
}

/// Reads a row of `task_full`.
pub(super) fn stored(row: &Row<'_>, conn: &Connection, catalog: &mut Catalog) -> Res<Stored> {
    let lane = row.get(col::LANE)?;
    let (pool, kind) = catalog.lane(conn, lane)?;
    let state = state(row)?;
    let runs = state == State::Running;
    let run_or_own = |run, own| if runs { row.get(run) } else { row.get::<_, Option<i64>>(own) };
    let created_by = catalog.name(conn, row.get(col::CREATED_BY)?)?;
    let task = Task {
        id: TaskId(row.get(col::ID)?),
        kind,
        state,
        payload: Json::trusted(row.get::<_, Arc<str>>(col::PAYLOAD)?),
        pool,
        priority: row.get(col::PRIORITY)?,
        run_at: ts(row.get(col::RUN_AT)?),
        expires_at: opt_ts(row.get(col::EXPIRES_AT)?),
        execution_key: row.get(col::EXECUTION_KEY)?,
        concurrency_key: row.get(col::CONCURRENCY_KEY)?,
        tags: match row.get_ref(col::TAGS)? {
            ValueRef::Null => Vec::new(),
            value => read_tags(value.as_str().map_err(rusqlite::Error::from)?)?,
        },
        max_retries: row.get(col::MAX_RETRIES)?,
        backoff: row
            .get::<_, Option<String>>(col::BACKOFF)?
            .map(|t| form::read_backoff(&t))
            .transpose()?,
        timeout: row.get::<_, Option<i64>>(col::TIMEOUT)?.map(form::read_timeout),
        origin: origin(row, conn, catalog)?,
        held: row.get(col::HELD)?,
        created_at: ts(row.get(col::CREATED_AT)?),
        created_by,
        attempt: row.get::<_, u32>(col::ATTEMPT)? + u32::from(runs),
        retries: row.get(col::RETRIES)?,
        losses: row.get(col::LOSSES)?,
        interruptions: row.get(col::INTERRUPTIONS)?,
        replays: row.get(col::REPLAYS)?,
        started_at: opt_ts(run_or_own(col::CLAIMED_AT, col::STARTED_AT)?),
        finished_at: opt_ts(row.get(col::FINISHED_AT)?),
        cancel_requested_at: opt_ts(run_or_own(col::RUN_CANCEL, col::CANCEL_REQUESTED_AT)?),
        result: row.get::<_, Option<Arc<str>>>(col::RESULT)?.map(Json::trusted),
        result_dropped_bytes: row.get::<_, Option<i64>>(col::RESULT_DROPPED)?.map(|n| n as u64),
        error: error(row, col::ERROR_CLASS)?,
        deduplicated: row.get(col::DEDUPLICATED)?,
        durability: Durability::Store,
        dismissed: row
            .get::<_, Option<String>>(col::DISMISSED)?
            .map(|text| serde_json::from_str::<Dismissal>(&text))
            .transpose()?,
        cancel_reason: row.get(col::CANCEL_REASON)?,
    };
    Ok(Stored { seq: row.get(col::SEQ)?, lane, task })
}

fn origin(row: &Row<'_>, conn: &Connection, catalog: &mut Catalog) -> Res<Option<Origin>> {
    let Some(schedule_uid) = row.get(col::SCHEDULE_UID)? else { return Ok(None) };
    Ok(Some(Origin {
        schedule_uid,
        schedule: catalog.name(conn, row.get(col::SCHEDULE)?)?,
        label: row.get(col::LABEL)?,
        time: ts(row.get(col::OCCURRENCE)?),
    }))
}

/// Reads a row of `attempt_list` or `attempt_last`.
pub(super) fn attempt(row: &Row<'_>, conn: &Connection, catalog: &mut Catalog) -> Res<Attempt> {
    Ok(Attempt {
        number: row.get(0)?,
        worker: catalog.name(conn, row.get(1)?)?,
        started_at: ts(row.get(2)?),
        finished_at: opt_ts(row.get(3)?),
        outcome: word(row, 4)?,
        error: error(row, 5)?,
        exit_code: row.get(8)?,
        http_status: row.get(9)?,
        output: Output {
            bytes: row.get::<_, Option<Vec<u8>>>(10)?.unwrap_or_default(),
            dropped: row.get::<_, Option<i64>>(11)?.unwrap_or(0) as u64,
            gap_at: row.get::<_, Option<i64>>(12)?.unwrap_or(0) as usize,
        },
    })
}

pub(super) fn write_tags(tags: &[String]) -> Res<Option<String>> {
    if tags.is_empty() { Ok(None) } else { Ok(Some(serde_json::to_string(tags)?)) }
}

pub(super) fn read_tags(text: &str) -> Res<Vec<String>> {
    Ok(serde_json::from_str(text)?)
}

/// The light columns of a row of `task_full`, for filters that walk many rows.
pub(super) struct Glance<'r> {
    pub(super) seq: i64,
    pub(super) id: Uuid,
    pub(super) lane: i64,
    pub(super) schedule: Option<i64>,
    pub(super) state: State,
    pub(super) execution_key: Option<&'r str>,
    pub(super) tags: Option<&'r str>,
}

pub(super) fn glance<'r>(row: &'r Row<'_>) -> rusqlite::Result<Glance<'r>> {
    Ok(Glance {
        seq: row.get(col::SEQ)?,
        id: row.get(col::ID)?,
        lane: row.get(col::LANE)?,
        schedule: row.get(col::SCHEDULE)?,
        state: state(row)?,
        execution_key: row.get_ref(col::EXECUTION_KEY)?.as_str_or_null()?,
        tags: row.get_ref(col::TAGS)?.as_str_or_null()?,
    })
}
