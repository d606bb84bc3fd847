//! Rows as the port's values.

use std::str::FromStr;
use std::sync::Arc;

use matins_core::Json;
use matins_core::task::{
    Attempt, Claim, Dismissal, Durability, Name, Origin, Output, State, Task, TaskError, TaskId,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use super::error::{Failure, Res};
use super::text::Read;
use super::time::At;
use crate::form;

pub(super) const COMPLETED: i16 = 2;
pub(super) const FAILED: i16 = 3;
pub(super) const CANCELLED: i16 = 4;

/// Columns of `task_full`, in its order.
#[rustfmt::skip]
pub(super) mod col {
    pub(in super::super) const FENCE: usize = 0;
    pub(in super::super) const TOKEN: usize = 1;
    pub(in super::super) const RUN_WORKER: usize = 2;
    pub(super) const CLAIMED_AT: usize = 3;
    pub(super) const RUN_CANCEL: usize = 4;
    pub(super) const POOL: usize = 5;
    pub(super) const KIND: usize = 6;
    pub(in super::super) const SEQ: usize = 7;
    pub(in super::super) const ID: usize = 8;
    pub(super) const STATE: usize = 9;
    pub(in super::super) const LANE: usize = 10;
    pub(super) const SCHEDULE: usize = 11;
    pub(super) const EXECUTION_KEY: usize = 12;
    pub(super) const TAGS: usize = 13;
    pub(super) const PRIORITY: usize = 14;
    pub(super) const RUN_AT: usize = 15;
    pub(super) const HELD: usize = 16;
    pub(super) const ATTEMPT: usize = 17;
    pub(super) const RETRIES: usize = 18;
    pub(super) const LOSSES: usize = 19;
    pub(super) const INTERRUPTIONS: usize = 20;
    pub(super) const REPLAYS: usize = 21;
    pub(super) const EXPIRES_AT: usize = 22;
    pub(super) const CONCURRENCY_KEY: usize = 23;
    pub(super) const CREATED_AT: usize = 24;
    pub(super) const CREATED_BY: usize = 25;
    pub(super) const MAX_RETRIES: usize = 26;
    pub(super) const BACKOFF: usize = 27;
    pub(super) const TIMEOUT: usize = 28;
    pub(super) const SCHEDULE_UID: usize = 29;
    pub(super) const LABEL: usize = 30;
    pub(super) const OCCURRENCE: usize = 31;
    pub(super) const STARTED_AT: usize = 32;
    pub(super) const FINISHED_AT: usize = 33;
    pub(super) const CANCEL_REQUESTED_AT: usize = 34;
    pub(super) const CANCEL_REASON: usize = 35;
    pub(super) const DEDUPLICATED: usize = 36;
    pub(super) const RESULT_DROPPED: usize = 37;
    pub(super) const DISMISSED: usize = 38;
    pub(super) const ERROR_CLASS: usize = 41;
    pub(super) const RESULT: usize = 49;
    pub(super) const PAYLOAD: usize = 50;
    /// How many there are: what a statement adds comes behind them.
    pub(in super::super) const COUNT: usize = 51;
}

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Res<T> {
    Ok(row.try_get(index)?)
}

pub(super) fn text(row: &Row, index: usize) -> Res<String> {
    Ok(get::<Read>(row, index)?.0)
}

pub(super) fn name(row: &Row, index: usize) -> Res<Name> {
    Ok(get::<Read>(row, index)?.into())
}

pub(super) fn opt_text(row: &Row, index: usize) -> Res<Option<String>> {
    Ok(get::<Option<Read>>(row, index)?.map(|read| read.0))
}

fn opt_name(row: &Row, index: usize) -> Res<Option<Arc<str>>> {
    Ok(get::<Option<Read>>(row, index)?.map(Into::into))
}

pub(super) fn at(row: &Row, index: usize) -> Res<jiff::Timestamp> {
    Ok(get::<At>(row, index)?.0)
}

pub(super) fn opt_at(row: &Row, index: usize) -> Res<Option<jiff::Timestamp>> {
    Ok(get::<Option<At>>(row, index)?.map(|at| at.0))
}

fn number(row: &Row, index: usize) -> Res<u32> {
    Ok(get::<i32>(row, index)?.cast_unsigned())
}

/// Reads a column that holds a word of one of the domain's lists.
pub(super) fn word<T>(row: &Row, index: usize) -> Res<Option<T>>
where
    T: FromStr<Err: std::fmt::Display>,
{
    let Some(text) = get::<Option<&str>>(row, index)? else { return Ok(None) };
    text.parse().map(Some).map_err(|error: T::Err| Failure::broken(error.to_string()))
}

pub(super) fn kept_json(row: &Row, index: usize) -> Res<Option<Json>> {
    Ok(get::<Option<&str>>(row, index)?.map(|text| Json::trusted(text.to_owned())))
}

/// Columns `error_class, error_message, fingerprint` from `first` on.
fn error(row: &Row, first: usize) -> Res<Option<TaskError>> {
    let Some(class) = word(row, first)? else { return Ok(None) };
    Ok(Some(TaskError {
        class,
        message: text(row, first + 1)?,
        fingerprint: text(row, first + 2)?,
    }))
}

pub(super) fn state_of(number: i16, runs: bool) -> State {
    match number {
        COMPLETED => State::Completed,
        FAILED => State::Failed,
        CANCELLED => State::Cancelled,
        _ if runs => State::Running,
        _ => State::Pending,
    }
}

/// Reads a row of `task_full`; `None` when a join found none.
pub(super) fn task(row: &Row) -> Res<Option<Task>> {
    let Some(id) = get::<Option<Uuid>>(row, col::ID)? else { return Ok(None) };
    let claimed: bool = get::<Option<i64>>(row, col::FENCE)?.is_some();
    let state = state_of(get(row, col::STATE)?, claimed);
    let runs = state == State::Running;
    let run_or_own = |run, own| opt_at(row, if runs { run } else { own });
    let tags = get::<Option<Vec<Read>>>(row, col::TAGS)?.unwrap_or_default();
    let dismissed = opt_text(row, col::DISMISSED)?;
    Ok(Some(Task {
        id: TaskId(id),
        kind: name(row, col::KIND)?,
        state,
        payload: Json::trusted(get::<&str>(row, col::PAYLOAD)?.to_owned()),
        pool: name(row, col::POOL)?,
        priority: get(row, col::PRIORITY)?,
        run_at: at(row, col::RUN_AT)?,
        expires_at: opt_at(row, col::EXPIRES_AT)?,
        execution_key: opt_name(row, col::EXECUTION_KEY)?,
        concurrency_key: opt_name(row, col::CONCURRENCY_KEY)?,
        tags: tags.into_iter().map(|tag| tag.0).collect(),
        max_retries: get::<Option<i64>>(row, col::MAX_RETRIES)?.map(|n| n as u32),
        backoff: get::<Option<&str>>(row, col::BACKOFF)?.map(form::read_backoff).transpose()?,
        timeout: get::<Option<i64>>(row, col::TIMEOUT)?.map(form::read_timeout),
        origin: origin(row)?,
        held: get(row, col::HELD)?,
        created_at: at(row, col::CREATED_AT)?,
        created_by: name(row, col::CREATED_BY)?,
        attempt: number(row, col::ATTEMPT)? + u32::from(runs),
        retries: number(row, col::RETRIES)?,
        losses: number(row, col::LOSSES)?,
        interruptions: number(row, col::INTERRUPTIONS)?,
        replays: number(row, col::REPLAYS)?,
        started_at: run_or_own(col::CLAIMED_AT, col::STARTED_AT)?,
        finished_at: opt_at(row, col::FINISHED_AT)?,
        cancel_requested_at: run_or_own(col::RUN_CANCEL, col::CANCEL_REQUESTED_AT)?,
        result: kept_json(row, col::RESULT)?,
        result_dropped_bytes: get::<Option<i64>>(row, col::RESULT_DROPPED)?.map(|n| n as u64),
        error: error(row, col::ERROR_CLASS)?,
        deduplicated: get(row, col::DEDUPLICATED)?,
        durability: Durability::Store,
        dismissed: dismissed.map(|text| serde_json::from_str::<Dismissal>(&text)).transpose()?,
        cancel_reason: opt_text(row, col::CANCEL_REASON)?,
    }))
}

/// The claim about a running task.
pub(super) fn claim(row: &Row) -> Res<Claim> {
    Ok(Claim {
        id: TaskId(get(row, col::ID)?),
        fence: get::<i64>(row, col::FENCE)?.cast_unsigned(),
        token: get::<i64>(row, col::TOKEN)?.cast_unsigned(),
    })
}

fn origin(row: &Row) -> Res<Option<Origin>> {
    let Some(schedule_uid) = get(row, col::SCHEDULE_UID)? else { return Ok(None) };
    Ok(Some(Origin {
        schedule_uid,
        schedule: name(row, col::SCHEDULE)?,
        label: text(row, col::LABEL)?,
        time: at(row, col::OCCURRENCE)?,
    }))
}

/// Reads a row of `attempt_list`.
pub(super) fn attempt(row: &Row) -> Res<Attempt> {
    Ok(Attempt {
        number: number(row, 0)?,
        worker: name(row, 1)?,
        started_at: at(row, 2)?,
        finished_at: opt_at(row, 3)?,
        outcome: word(row, 4)?,
        error: error(row, 5)?,
        exit_code: get(row, 8)?,
        http_status: get::<Option<i32>>(row, 9)?.map(|status| status as u16),
        output: Output {
            bytes: get::<Option<Vec<u8>>>(row, 10)?.unwrap_or_default(),
            dropped: get::<Option<i64>>(row, 11)?.unwrap_or(0) as u64,
            gap_at: get::<Option<i64>>(row, 12)?.unwrap_or(0) as usize,
        },
    })
}
