//! Workers, their leases, and the claims that no lease covers any more.

use jiff::Timestamp;
use matins_core::store::{Extended, Lapsed, Worker};
use matins_core::task::{Claim, Claimed, TaskId, WorkerId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::error::{Failure, Res};
use super::row::{self, col, get};
use super::sql::Sql;
use super::text::Text;
use super::time::At;
use crate::form;

impl PostgresStore {
    pub(super) async fn put_worker(&self, worker: &Worker) -> Res<()> {
        let pools = form::write_pools(worker)?;
        let types = form::write_types(&worker.types)?;
        let params: [super::link::Param<'_>; 9] = [
            &Text(&worker.id.0),
            &Text(&worker.node_id),
            &At(worker.started_at),
            &At(worker.seen_at),
            &At(worker.lease_until),
            &worker.draining,
            &worker.remote,
            &Text(&pools),
            &types.as_deref().map(Text),
        ];
        self.control.rows(Sql::WorkerPut, &params).await?;
        if !worker.remote {
            self.control.ear.guard(&worker.id.0);
        }
        Ok(())
    }

    pub(super) async fn renew_worker(&self, worker: &Worker) -> Res<bool> {
        let pools = form::write_pools(worker)?;
        let types = form::write_types(&worker.types)?;
        let params: [super::link::Param<'_>; 8] = [
            &Text(&worker.id.0),
            &Text(&worker.node_id),
            &At(worker.seen_at),
            &At(worker.lease_until),
            &worker.draining,
            &worker.remote,
            &Text(&pools),
            &types.as_deref().map(Text),
        ];
        Ok(self.control.one(Sql::WorkerBeat, &params).await?.is_some())
    }

    pub(super) async fn list_workers(&self) -> Res<Vec<Worker>> {
        self.work.rows(Sql::WorkerList, &[]).await?.iter().map(worker).collect()
    }

    pub(super) async fn renew_claims(
        &self,
        claims: &[Claim],
        lease_until: Timestamp,
    ) -> Res<Extended> {
        let ids: Vec<Uuid> = claims.iter().map(|claim| claim.id.0).collect();
        let fences: Vec<i64> = claims.iter().map(|claim| claim.fence.cast_signed()).collect();
        let tokens: Vec<i64> = claims.iter().map(|claim| claim.token.cast_signed()).collect();
        let params: [super::link::Param<'_>; 4] = [&ids, &fences, &tokens, &At(lease_until)];
        let row = self.control.one(Sql::Extend, &params).await?;
        let row = row.ok_or_else(|| Failure::broken("no answer to a renewal"))?;
        let mut extended = Extended::default();
        for (claim, answer) in claims.iter().zip(get::<Vec<i32>>(&row, 0)?) {
            match answer {
                0 => extended.lost.push(claim.id),
                2 => extended.cancel.push(claim.id),
                _ => {}
            }
        }
        Ok(extended)
    }

    pub(super) async fn asked_to_end(&self, worker: &WorkerId) -> Res<Vec<TaskId>> {
        let rows = self.work.rows(Sql::RunningAsked, &[&Text(&worker.0)]).await?;
        rows.iter().map(|row| Ok(TaskId(get(row, 0)?))).collect()
    }

    pub(super) async fn list_lapsed(&self, now: Timestamp, limit: usize) -> Res<Vec<Lapsed>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.work.rows(Sql::RunningLapsed, &[&At(now), &limit]).await?;
        let mut lapsed = Vec::with_capacity(rows.len());
        for row in &rows {
            // One that has ended since it was found is nobody's concern any more.
            if get::<Option<i64>>(row, col::FENCE)?.is_none() {
                continue;
            }
            let Some(task) = row::task(row)? else { continue };
            lapsed.push(Lapsed {
                claimed: Claimed { task, claim: row::claim(row)? },
                worker: WorkerId(row::name(row, col::RUN_WORKER)?),
                draining: get(row, col::COUNT)?,
            });
        }
        Ok(lapsed)
    }
}

fn worker(row: &Row) -> Res<Worker> {
    Ok(Worker {
        id: WorkerId(row::name(row, 0)?),
        node_id: row::name(row, 1)?,
        started_at: row::at(row, 2)?,
        seen_at: row::at(row, 3)?,
        lease_until: row::at(row, 4)?,
        draining: get(row, 5)?,
        remote: get(row, 6)?,
        pools: form::read_pools(&row::text(row, 7)?)?,
        types: form::read_types(row::opt_text(row, 8)?.as_deref())?,
    })
}
