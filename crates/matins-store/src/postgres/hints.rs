//! What a decorator must know to keep hints of the line elsewhere: places, not tasks.

use jiff::Timestamp;
use matins_core::store::{ClaimBatch, ClaimRequest, Result};
use matins_core::task::{Name, TaskId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::claim::uuids;
use super::error::Res;
use super::link::Param;
use super::row::{at, get, name};
use super::sql::Sql;
use crate::redis::hint::Hint;

/// Pools, and which of them have tasks whose place depends on other tasks.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pub(crate) all: Vec<(Name, bool)>,
}

impl PostgresStore {
    /// As `claim`, with the order of acceptance of what was claimed.
    pub(crate) async fn claim_told(
        &self,
        request: &ClaimRequest,
    ) -> Result<(ClaimBatch, Vec<i64>)> {
        Ok(self.hand_out(request).await?)
    }

    /// Hints of those of the tasks that are pending.
    pub(crate) async fn places(&self, ids: &[TaskId]) -> Result<Vec<Hint>> {
        let rows = self.work.rows(Sql::HintPlaces, &[&uuids(ids)]).await?;
        Ok(rows.iter().map(hint).collect::<Res<_>>()?)
    }

    /// The foremost of each pool's line, and of those that are due later, at most `limit` each. No
    /// more than `tied` of each kind of tied task are looked at; when there are more, every pool
    /// may have some.
    pub(crate) async fn window(&self, limit: usize, tied: usize) -> Result<(Pools, Vec<Hint>)> {
        let params: [Param<'_>; 2] = [&(limit as i64), &(tied as i64)];
        let rows = self.work.rows(Sql::HintWindow, &params).await?;
        let (hints, pools): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| matches!(get::<Option<Uuid>>(row, 0), Ok(Some(_))));
        let counted: Vec<(Name, i64)> =
            pools.into_iter().map(|row| Ok((name(row, 4)?, get(row, 2)?))).collect::<Res<_>>()?;
        let seen: i64 = counted.iter().map(|(_, count)| count).sum();
        let too_many = seen >= tied as i64;
        let all = counted.into_iter().map(|(pool, count)| (pool, too_many || count > 0));
        let hints = hints.into_iter().map(hint).collect::<Res<_>>()?;
        Ok((Pools { all: all.collect() }, hints))
    }

    /// Pools that have had tasks.
    pub(crate) async fn pools(&self) -> Result<Vec<Name>> {
        let rows = self.work.rows(Sql::Pools, &[]).await?;
        Ok(rows.iter().map(|row| name(row, 0)).collect::<Res<_>>()?)
    }

    /// The newest dead letters, and when they failed.
    pub(crate) async fn newest_dead(&self, limit: usize) -> Result<Vec<(TaskId, Timestamp)>> {
        let rows = self.work.rows(Sql::HintDead, &[&(limit as i64)]).await?;
        let dead = rows.iter().map(|row| Ok((TaskId(get(row, 0)?), at(row, 1)?)));
        Ok(dead.collect::<Res<_>>()?)
    }
}

fn hint(row: &Row) -> Res<Hint> {
    Ok(Hint {
        id: TaskId(get(row, 0)?),
        attempt: get::<i32>(row, 1)?.cast_unsigned(),
        seq: get(row, 2)?,
        priority: get(row, 3)?,
        pool: name(row, 4)?,
        kind: name(row, 5)?,
        run_at: at(row, 6)?,
        tied: get(row, 7)?,
        later: get(row, 8)?,
    })
}
