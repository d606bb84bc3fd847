//! What a decorator that mirrors tasks in Redis says and asks: members, generations, and what was
//! taken there before it is decided about here.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::Json;
use matins_core::store::{
    Act, Cancelled, ClaimBatch, ClaimRequest, Forgotten, Result, Retried, StoreError, Types,
};
use matins_core::task::{Claimed, Task, TaskId, WorkerId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::claim::{read_claims, uuids};
use super::error::{Failure, Res};
use super::link::{Open, Param, REPEATS, Speaks as _, pause_before};
use super::port::{cancelled, retried};
use super::row::{self, get};
use super::sql::Sql;
use super::text::Text;
use super::time::{At, opt_at as opt};

/// What a member says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Saying {
    pub(crate) id: Uuid,
    pub(crate) node: String,
    pub(crate) acknowledged: u64,
    pub(crate) episode: u64,
    pub(crate) sees: Option<String>,
    /// It wants its outage lease renewed.
    pub(crate) renews: bool,
    pub(crate) window: Duration,
}

/// How things stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turned {
    pub(crate) generation: u64,
    pub(crate) redis: Option<String>,
    pub(crate) settled: bool,
    /// The outage lease is renewed.
    pub(crate) granted: bool,
    /// The last fence handed out.
    pub(crate) fence: u64,
}

/// What is to be taken in Redis, and under which regime.
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidates {
    pub(crate) generation: u64,
    pub(crate) redis: Option<String>,
    /// Settled, and acknowledged by the member that asks.
    pub(crate) ready: bool,
    /// Announcements that hold nobody up.
    pub(crate) gone: Vec<String>,
    /// With their attempts.
    pub(crate) tasks: Vec<(TaskId, u32)>,
    pub(crate) next_at: Option<Timestamp>,
}

/// A claim that is not committed yet. Its regime does not change until then. Dropped, it has not
/// happened.
pub(crate) struct HeldClaim<'s> {
    open: Open<'s>,
    pub(crate) found: Candidates,
    batch: ClaimBatch,
    seqs: Vec<i64>,
}

impl HeldClaim<'_> {
    /// What was claimed, and its order of acceptance.
    pub(crate) async fn keep(self) -> Result<(ClaimBatch, Vec<i64>)> {
        self.open.commit().await?;
        Ok((self.batch, self.seqs))
    }

    /// What it would have been.
    pub(crate) async fn give_back(self) -> Result<Candidates> {
        self.open.roll_back().await?;
        Ok(self.found)
    }
}

/// Tasks that were taken in Redis, all under one generation.
#[derive(Debug)]
pub(crate) struct TakenTasks {
    pub(crate) generation: u64,
    pub(crate) ids: Vec<TaskId>,
    attempts: Vec<i32>,
}

impl TakenTasks {
    pub(crate) fn new(generation: u64, tasks: &[(TaskId, u32)]) -> Self {
        let (ids, attempts) = tasks.iter().map(|(id, n)| (*id, n.cast_signed())).unzip();
        Self { generation, ids, attempts }
    }
}

/// Whether it was refused because others mirror tasks and this process did not ask their Redis.
pub(crate) fn is_mirrored(error: &StoreError) -> bool {
    matches!(error, StoreError::Broken(text) if text.ends_with("(MT003)"))
}

impl PostgresStore {
    pub(crate) async fn turn(&self, saying: &Saying) -> Result<Turned> {
        Ok(self.turn_inner(saying).await?)
    }

    async fn turn_inner(&self, saying: &Saying) -> Res<Turned> {
        let window = i64::try_from(saying.window.as_micros()).unwrap_or(i64::MAX);
        let params: [Param<'_>; 7] = [
            &saying.id,
            &Text(&saying.node),
            &saying.acknowledged.cast_signed(),
            &saying.episode.cast_signed(),
            &saying.sees,
            &saying.renews,
            &window,
        ];
        let row = self.control.one(Sql::MemberTurn, &params).await?;
        let row = row.ok_or_else(|| Failure::broken("no answer to a member"))?;
        Ok(Turned {
            generation: get::<i64>(&row, 0)?.cast_unsigned(),
            redis: get(&row, 1)?,
            settled: get(&row, 2)?,
            granted: get(&row, 3)?,
            fence: get::<i64>(&row, 4)?.cast_unsigned(),
        })
    }

    pub(crate) async fn leave(&self, member: Uuid) -> Result<()> {
        let gone = self.control.rows(Sql::MemberLeave, &[&member]).await;
        gone.map(drop).map_err(StoreError::from)
    }

    pub(super) async fn forget_member(&self, node: &str) -> Res<Forgotten> {
        let row = self.control.one(Sql::MemberForget, &[&Text(node)]).await?;
        let row = row.ok_or_else(|| Failure::broken("no answer about a node"))?;
        Ok(match get::<i32>(&row, 0)? {
            0 => Forgotten::Unknown,
            1 => Forgotten::Lives,
            _ => Forgotten::Done,
        })
    }

    /// A claim that nobody sees yet: what it hands out is to be taken in Redis first.
    pub(crate) async fn hold_claim(
        &self,
        member: Option<Uuid>,
        announced: &[String],
        request: &ClaimRequest,
    ) -> Result<HeldClaim<'_>> {
        self.follow_clock(request.now).await.map_err(StoreError::from)?;
        let mut repeats = 0;
        loop {
            match self.hold_once(member, announced, request).await {
                Err(failure) if failure.is_collision() && repeats < REPEATS => {
                    repeats += 1;
                    pause_before(repeats).await;
                }
                answer => return Ok(answer?),
            }
        }
    }

    async fn hold_once(
        &self,
        member: Option<Uuid>,
        announced: &[String],
        request: &ClaimRequest,
    ) -> Res<HeldClaim<'_>> {
        let open = self.work.open().await?;
        let params: [Param<'_>; 2] = [&member, &announced];
        // All sent at once.
        let (begun, regime, claimed) = tokio::join!(
            biased;
            open.begin(),
            open.rows(Sql::HoldClaim, &params),
            self.hand_out_through(&open, request),
        );
        begun?;
        let regime = regime?;
        let row = regime.first().ok_or_else(|| Failure::broken("no answer to a claim"))?;
        let mut found = Candidates {
            generation: get::<i64>(row, 0)?.cast_unsigned(),
            redis: get(row, 1)?,
            ready: get(row, 2)?,
            gone: get::<Option<_>>(row, 3)?.unwrap_or_default(),
            ..Candidates::default()
        };
        let (batch, seqs) = match claimed {
            // While nothing is settled it may be refused.
            Err(_) if !found.ready => Default::default(),
            claimed => claimed?,
        };
        let before = |one: &Claimed| (one.task.id, one.task.attempt.saturating_sub(1));
        found.tasks = batch.claimed.iter().map(before).collect();
        found.next_at = batch.next_at;
        Ok(HeldClaim { open, found, batch, seqs })
    }

    /// Of some tasks, those that wait and may be in the mirror.
    pub(crate) async fn waiting(&self, announced: &[String], ids: &[TaskId]) -> Result<Candidates> {
        Ok(self.waiting_inner(announced, ids).await?)
    }

    async fn waiting_inner(&self, announced: &[String], ids: &[TaskId]) -> Res<Candidates> {
        let rows = self.work.rows(Sql::WaitingTasks, &[&announced, &uuids(ids)]).await?;
        let mut found = Candidates::default();
        for row in &rows {
            found.generation = get::<i64>(row, 2)?.cast_unsigned();
            found.redis = get(row, 3)?;
            found.gone = get::<Option<_>>(row, 4)?.unwrap_or_default();
            found.ready = get(row, 5)?;
            if let Some(id) = get::<Option<Uuid>>(row, 0)? {
                found.tasks.push((TaskId(id), get::<i32>(row, 1)?.cast_unsigned()));
            }
        }
        Ok(found)
    }

    /// Those that may be mirrored, soonest first, with what they take up.
    pub(crate) async fn mirror_window(
        &self,
        horizon: Duration,
        limit: usize,
    ) -> Result<Vec<(TaskId, u32, u64)>> {
        Ok(self.window_inner(horizon, limit).await?)
    }

    async fn window_inner(&self, horizon: Duration, limit: usize) -> Res<Vec<(TaskId, u32, u64)>> {
        let horizon = i64::try_from(horizon.as_micros()).unwrap_or(i64::MAX);
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let rows = self.work.rows(Sql::MirrorWindow, &[&horizon, &limit]).await?;
        let one = |row: &Row| {
            let bytes: i32 = get(row, 2)?;
            Ok((TaskId(get(row, 0)?), get::<i32>(row, 1)?.cast_unsigned(), bytes as u64))
        };
        rows.iter().map(one).collect()
    }

    /// Of some tasks, those that wait and may be mirrored, as they are now.
    pub(crate) async fn mirrored_tasks(&self, ids: &[TaskId]) -> Result<Vec<Task>> {
        let rows = self.work.rows(Sql::MirroredTasks, &[&uuids(ids)]).await;
        let rows = rows.map_err(StoreError::from)?;
        let tasks = rows.iter().filter_map(|row| row::task(row).transpose());
        Ok(tasks.collect::<Res<_>>()?)
    }

    /// Of some tasks, those that have not ended.
    pub(crate) async fn live_among(&self, ids: &[TaskId]) -> Result<HashSet<TaskId>> {
        let found = self.find_all(&uuids(ids)).await.map_err(StoreError::from)?;
        let live = found.into_values().filter(|task| task.state.is_live());
        Ok(live.map(|task| task.id).collect())
    }

    /// Claims what was taken in Redis, and its order of acceptance.
    pub(crate) async fn claim_taken(
        &self,
        taken: &TakenTasks,
        request: &ClaimRequest,
    ) -> Result<(ClaimBatch, Vec<i64>)> {
        self.follow_clock(request.now).await.map_err(StoreError::from)?;
        let pool = request.pool.as_deref().map(Text);
        let types: Option<Vec<Text<'_>>> = match &request.types {
            Types::Any => None,
            Types::Only(kinds) => Some(kinds.iter().map(|kind| Text(kind)).collect()),
        };
        let max = i32::try_from(request.max).unwrap_or(i32::MAX);
        let params: [Param<'_>; 10] = [
            &taken.generation.cast_signed(),
            &taken.attempts,
            &Text(&request.worker.0),
            &pool,
            &types,
            &uuids(&taken.ids),
            &max,
            &request.token.cast_signed(),
            &opt(request.lease_until),
            &At(request.now),
        ];
        let rows = self.work.rows(Sql::ClaimTaken, &params).await.map_err(StoreError::from)?;
        Ok(read_claims(&rows, request.token)?)
    }

    /// What still stands of what an earlier call with the token was given.
    pub(crate) async fn claimed_before(
        &self,
        worker: &WorkerId,
        token: u64,
    ) -> Result<Vec<Claimed>> {
        let params: [Param<'_>; 2] = [&Text(&worker.0), &token.cast_signed()];
        let rows = self.work.rows(Sql::ClaimedBefore, &params).await.map_err(StoreError::from)?;
        Ok(read_claims(&rows, token)?.0.claimed)
    }

    /// `None`: they have moved on since they were taken.
    pub(crate) async fn cancel_taken(
        &self,
        taken: &TakenTasks,
        act: &Act,
    ) -> Result<Option<Vec<Cancelled>>> {
        let (uuids, reason) = (uuids(&taken.ids), act.reason.as_deref().map(Text));
        let generation = taken.generation.cast_signed();
        let params: [Param<'_>; 6] =
            [&uuids, &Text(&act.who), &reason, &At(act.at), &generation, &taken.attempts];
        let answers = self.act_taken(Sql::CancelTaken, &params, &taken.ids).await?;
        Ok(answers.map(|answers| answers.into_iter().map(cancelled).collect()))
    }

    pub(crate) async fn retry_taken(
        &self,
        taken: &TakenTasks,
        payload: Option<&Json>,
        act: &Act,
    ) -> Result<Option<Vec<Retried>>> {
        let (uuids, reason) = (uuids(&taken.ids), act.reason.as_deref().map(Text));
        let (payload, generation) = (payload.map(Json::as_str), taken.generation.cast_signed());
        let params: [Param<'_>; 7] =
            [&uuids, &payload, &Text(&act.who), &reason, &At(act.at), &generation, &taken.attempts];
        let Some(answers) = self.act_taken(Sql::RetryTaken, &params, &taken.ids).await? else {
            return Ok(None);
        };
        let mut told = Vec::with_capacity(answers.len());
        for answer in answers {
            told.push(retried(self, answer).await?);
        }
        Ok(Some(told))
    }

    /// Runs that were detached in Redis go on as ordinary ones.
    pub(crate) async fn attach(&self, fences: &[u64], lease_until: Timestamp) -> Result<()> {
        let fences: Vec<i64> = fences.iter().map(|fence| fence.cast_signed()).collect();
        let params: [Param<'_>; 2] = [&fences, &At(lease_until)];
        self.work.rows(Sql::AttachRuns, &params).await.map_err(StoreError::from)?;
        Ok(())
    }
}
