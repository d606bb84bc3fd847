//! The next instants of schedules, for a decorator that mirrors them in Redis.

use std::time::Duration;

use jiff::Timestamp;
use matins_core::schedule::{DueSchedule, FirePlan, ScheduleState};
use matins_core::store::{Act, Expect, Result, StoreError};
use matins_core::task::TaskId;
use tokio_postgres::Row;
use tokio_postgres::types::Json as Jsonb;
use uuid::Uuid;

use super::PostgresStore;
use super::error::{Failure, Res};
use super::link::Param;
use super::row::get;
use super::schedules::{plans, with_live, writes};
use super::sql::Sql;
use super::text::Text;
use super::time::At;

/// A schedule by what never changes of it, and its revision.
pub(crate) type Mark = (Uuid, u64);

fn mark(row: &Row) -> Res<Mark> {
    Ok((get(row, 0)?, get::<i64>(row, 1)?.cast_unsigned()))
}

impl PostgresStore {
    /// The schedules that are due soonest.
    pub(crate) async fn marks_ahead(&self, horizon: Duration, limit: usize) -> Result<Vec<Mark>> {
        let horizon = i64::try_from(horizon.as_micros()).unwrap_or(i64::MAX);
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        self.marks(Sql::MarksAhead, &[&horizon, &limit]).await
    }

    pub(crate) async fn marks_named(&self, names: &[&str]) -> Result<Vec<Mark>> {
        let names: Vec<Text<'_>> = names.iter().map(|name| Text(name)).collect();
        self.marks(Sql::MarksNamed, &[&names]).await
    }

    async fn marks(&self, sql: Sql, params: &[Param<'_>]) -> Result<Vec<Mark>> {
        let rows = self.work.rows(sql, params).await.map_err(StoreError::from)?;
        Ok(rows.iter().map(mark).collect::<Res<_>>()?)
    }

    /// Those that wait for something, each with one of the tasks that hold it.
    pub(crate) async fn marks_read(
        &self,
        uids: &[Uuid],
    ) -> Result<Vec<(DueSchedule, Option<TaskId>)>> {
        let rows = self.work.rows(Sql::MarksRead, &[&uids]).await.map_err(StoreError::from)?;
        let one = |row: &Row| Ok((with_live(row)?, get::<Option<Uuid>>(row, 5)?.map(TaskId)));
        Ok(rows.iter().map(one).collect::<Res<_>>()?)
    }

    /// `None`: the generation is another one by now.
    pub(crate) async fn fire_taken(
        &self,
        generation: u64,
        chosen: &[FirePlan],
        now: Timestamp,
    ) -> Result<Option<Vec<bool>>> {
        self.heed_clock(now);
        let params: [Param<'_>; 3] = [&Jsonb(plans(chosen)?), &At(now), &generation.cast_signed()];
        self.taken(Sql::FireTaken, &params).await
    }

    /// As [`Self::fire_taken`].
    pub(crate) async fn put_taken(
        &self,
        generation: u64,
        chosen: &[(Expect, ScheduleState)],
    ) -> Result<Option<Vec<bool>>> {
        let params: [Param<'_>; 2] = [&Jsonb(writes(chosen)?), &generation.cast_signed()];
        self.taken(Sql::SchedulePutTaken, &params).await
    }

    /// As [`Self::fire_taken`].
    pub(crate) async fn remove_taken(
        &self,
        generation: u64,
        name: &str,
        act: &Act,
    ) -> Result<Option<bool>> {
        let reason = act.reason.as_deref().map(Text);
        let generation = generation.cast_signed();
        let params: [Param<'_>; 5] =
            [&Text(name), &Text(&act.who), &reason, &At(act.at), &generation];
        self.taken(Sql::ScheduleRemoveTaken, &params).await
    }

    async fn taken<T>(&self, sql: Sql, params: &[Param<'_>]) -> Result<Option<T>>
    where
        T: for<'r> tokio_postgres::types::FromSql<'r>,
    {
        let row = self.work.one(sql, params).await.map_err(StoreError::from)?;
        let row = row.ok_or_else(|| Failure::broken("no answer about schedules"))?;
        self.control.ear.ring();
        Ok(get(&row, 0)?)
    }
}
