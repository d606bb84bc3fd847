//! Workers, their leases, and the claims that no lease covers any more.

use matins_core::store::{Extended, Lapsed, Worker};
use matins_core::task::{Claim, Claimed, Name, TaskId, WorkerId};
use rusqlite::{Row, params};

use super::error::{Failure, Res};
use super::reader::Reader;
use super::row;
use super::sql::Sql;
use super::time::{ts, us};
use super::tx::Tx;
use crate::form;

impl Tx<'_> {
    pub(super) fn register(&mut self, worker: &Worker) -> Res<()> {
        self.write_worker(Sql::WorkerPut, worker)?;
        Ok(())
    }

    pub(super) fn beat(&mut self, worker: &Worker) -> Res<bool> {
        Ok(self.write_worker(Sql::WorkerBeat, worker)? == 1)
    }

    fn write_worker(&mut self, sql: Sql, worker: &Worker) -> Res<usize> {
        let name = self.name_id(&worker.id.0)?;
        let pools = form::write_pools(worker)?;
        let types = form::write_types(&worker.types)?;
        self.run(
            sql,
            params![
                name,
                &*worker.node_id,
                us(worker.started_at),
                us(worker.seen_at),
                us(worker.lease_until),
                worker.draining,
                worker.remote,
                pools,
                types,
            ],
        )
    }

    pub(super) fn retire(&mut self, worker: &WorkerId) -> Res<()> {
        if let Some(name) = self.known_name(&worker.0)? {
            self.run(Sql::WorkerRetire, params![name])?;
        }
        Ok(())
    }

    pub(super) fn extend(&mut self, claims: &[Claim], lease_until: i64) -> Res<Extended> {
        let mut answer = Extended::default();
        for claim in claims {
            let found = self.one(Sql::RunningGet, params![claim.id.0], |row| {
                let own: (i64, i64) = (row.get(1)?, row.get(2)?);
                Ok((own, row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(6)?))
            })?;
            let own = (claim.fence.cast_signed(), claim.token.cast_signed());
            let Some((_, seq, cancel)) = found.filter(|(standing, ..)| *standing == own) else {
                answer.lost.push(claim.id);
                continue;
            };
            if cancel.is_some() {
                answer.cancel.push(claim.id);
            }
            self.run(Sql::RunningExtend, params![seq, lease_until])?;
        }
        Ok(answer)
    }
}

impl Reader {
    pub(super) fn workers(&mut self) -> Res<Vec<Worker>> {
        let Self { conn, catalog } = self;
        let mut statement = conn.prepare_cached(Sql::WorkerList.text())?;
        let mut rows = statement.query(params![])?;
        let mut workers = Vec::new();
        while let Some(row) = rows.next()? {
            let name = catalog.name(conn, row.get(0)?)?;
            workers.push(worker(name, row)?);
        }
        workers.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(workers)
    }

    pub(super) fn cancel_requests(&mut self, worker: &WorkerId) -> Res<Vec<TaskId>> {
        let Some(name) = self.known_name(&worker.0)? else { return Ok(Vec::new()) };
        self.all(Sql::RunningAsked, params![name], |row| Ok(TaskId(row.get(0)?)))
    }

    pub(super) fn lapsed(&mut self, now: i64, limit: usize) -> Res<Vec<Lapsed>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found: Vec<(i64, bool)> = self
            .all(Sql::RunningLapsed, params![now, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
        found.into_iter().map(|(seq, draining)| self.lapsed_one(seq, draining)).collect()
    }

    fn lapsed_one(&mut self, seq: i64, draining: bool) -> Res<Lapsed> {
        let Self { conn, catalog } = self;
        let mut statement = conn.prepare_cached(Sql::TaskBySeq.text())?;
        let mut rows = statement.query(params![seq])?;
        let row = rows.next()?.ok_or_else(|| Failure::broken(format!("no task number {seq}")))?;
        let task = row::stored(row, conn, catalog)?.task;
        let (fence, token, worker): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let claim =
            Claim { id: task.id, fence: fence.cast_unsigned(), token: token.cast_unsigned() };
        let worker = WorkerId(catalog.name(conn, worker)?);
        Ok(Lapsed { claimed: Claimed { task, claim }, worker, draining })
    }
}

fn worker(id: Name, row: &Row<'_>) -> Res<Worker> {
    let types: Option<String> = row.get(8)?;
    Ok(Worker {
        id: WorkerId(id),
        node_id: row.get(1)?,
        started_at: ts(row.get(2)?),
        seen_at: ts(row.get(3)?),
        lease_until: ts(row.get(4)?),
        draining: row.get(5)?,
        remote: row.get(6)?,
        pools: form::read_pools(&row.get::<_, String>(7)?)?,
        types: form::read_types(types.as_deref())?,
    })
}
