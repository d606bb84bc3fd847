//! Handing out and ending runs.

use matins_core::Json;
use matins_core::lifecycle::{Next, Settlement};
use matins_core::store::{ClaimBatch, ClaimRequest, Settled, Types};
use matins_core::task::{Claim, Claimed, State, TaskId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::error::{Failure, Res};
use super::row::{self, CANCELLED, COMPLETED, FAILED, col, get};
use super::sql::Sql;
use super::text::Text;
use super::time::{At, opt_at};

/// Where a task goes when it is pending again, beside the states that are stored.
const AGAIN: i16 = 1;

impl PostgresStore {
    pub(super) async fn hand_out(&self, request: &ClaimRequest) -> Res<ClaimBatch> {
        self.follow_clock(request.now).await?;
        let worker = Text(&request.worker.0);
        let token = request.token.cast_signed();
        if request.repeated {
            let rows = self.work.rows(Sql::ClaimedBefore, &[&worker, &token]).await?;
            let batch = batch(&rows, request.token)?;
            if !batch.claimed.is_empty() {
                return Ok(ClaimBatch { next_at: None, ..batch });
            }
        }
        let pool = request.pool.as_deref().map(Text);
        let types: Option<Vec<Text<'_>>> = match &request.types {
            Types::Any => None,
            Types::Only(kinds) => Some(kinds.iter().map(|kind| Text(kind)).collect()),
        };
        let max = i32::try_from(request.max).unwrap_or(i32::MAX);
        let (lease, now) = (opt_at(request.lease_until), At(request.now));
        let rows = match &request.ids {
            Some(ids) => {
                let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
                let params: [super::link::Param<'_>; 8] =
                    [&worker, &pool, &types, &ids, &max, &token, &lease, &now];
                self.work.rows(Sql::ClaimNamed, &params).await?
            }
            None => {
                let floors: (Vec<i32>, Vec<i64>) = (Vec::new(), Vec::new());
                let params: [super::link::Param<'_>; 9] =
                    [&worker, &pool, &types, &max, &token, &lease, &now, &floors.0, &floors.1];
                self.work.rows(Sql::Claim, &params).await?
            }
        };
        batch(&rows, request.token)
    }

    pub(super) async fn end_runs(&self, items: &[Settlement]) -> Res<Vec<Settled>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let ends = items.iter().map(End::of).collect::<Res<Vec<End<'_>>>>()?;
        let rows = {
            macro_rules! column {
                ($item:ident => $value:expr) => {
                    items.iter().map(|$item| $value).collect::<Vec<_>>()
                };
                (end $end:ident => $value:expr) => {
                    ends.iter().map(|$end| $value).collect::<Vec<_>>()
                };
            }
            let output = |s: &Settlement| !s.trace.output.is_empty();
            self.work
                .rows(
                    Sql::Settle,
                    &[
                        &column!(s => s.claim.id.0),
                        &column!(s => s.claim.fence.cast_signed()),
                        &column!(s => s.claim.token.cast_signed()),
                        &column!(s => s.attempt.cast_signed()),
                        &column!(s => s.outcome.as_str()),
                        &column!(s => s.error.as_ref().map(|error| error.class.as_str())),
                        &column!(s => s.error.as_ref().map(|error| Text(&error.message))),
                        &column!(s => s.error.as_ref().map(|error| Text(&error.fingerprint))),
                        &column!(s => s.trace.exit_code),
                        &column!(s => s.trace.http_status.map(i32::from)),
                        &column!(s => output(s).then_some(&*s.trace.output.bytes)),
                        &column!(s => output(s).then_some(s.trace.output.dropped.cast_signed())),
                        &column!(s => output(s).then_some(s.trace.output.gap_at as i64)),
                        &column!(s => At(s.finished_at)),
                        &column!(end end => end.next),
                        &column!(end end => end.run_at),
                        &column!(end end => end.reason),
                        &column!(end end => end.cancel_reason),
                        &column!(end end => end.result),
                        &column!(end end => end.result_dropped),
                        &column!(s => s.retries.cast_signed()),
                        &column!(s => s.retries_before.cast_signed()),
                        &column!(s => s.losses.cast_signed()),
                        &column!(s => s.interruptions.cast_signed()),
                    ],
                )
                .await?
        };
        let row = rows.first().ok_or_else(|| Failure::broken("no answer to a settlement"))?;
        let answers: Vec<i16> = get(row, 0)?;
        Ok(answers.into_iter().map(settled).collect())
    }
}

fn settled(answer: i16) -> Settled {
    match answer {
        0 => Settled::Fenced,
        AGAIN => Settled::Done(State::Pending),
        state => Settled::Done(row::state_of(state, false)),
    }
}

/// Where a task goes, as columns.
struct End<'s> {
    next: i16,
    run_at: Option<At>,
    reason: Option<&'static str>,
    /// Why it is cancelled instead when that was asked for.
    cancel_reason: Option<&'static str>,
    result: Option<&'s str>,
    result_dropped: Option<i64>,
}

impl<'s> End<'s> {
    fn of(s: &'s Settlement) -> Res<Self> {
        let mut end = match &s.next {
            Next::Again { run_at } => Self { run_at: Some(At(*run_at)), ..Self::at(AGAIN) },
            Next::Failed => Self::at(FAILED),
            Next::Cancelled { reason } => Self { reason: Some(reason), ..Self::at(CANCELLED) },
            Next::Completed { result, result_dropped_bytes } => Self {
                result: result.as_ref().map(Json::as_str),
                result_dropped: result_dropped_bytes.map(u64::cast_signed),
                ..Self::at(COMPLETED)
            },
        };
        end.cancel_reason = match &s.next_if_cancelled {
            next if *next == s.next => None,
            Next::Cancelled { reason } => Some(reason),
            next => return Err(Failure::broken(format!("a cancelled run cannot go to {next:?}"))),
        };
        Ok(end)
    }

    fn at(next: i16) -> Self {
        Self {
            next,
            run_at: None,
            reason: None,
            cancel_reason: None,
            result: None,
            result_dropped: None,
        }
    }
}

/// Rows of a claim: those of `task_full` without what is known of the run, when to ask again, and
/// that of the run.
fn batch(rows: &[Row], token: u64) -> Res<ClaimBatch> {
    let mut batch = ClaimBatch::default();
    for row in rows {
        batch.next_at = row::opt_at(row, col::COUNT)?;
        let Some(mut task) = row::task(row)? else { continue };
        task.started_at = row::opt_at(row, col::COUNT + 1)?;
        task.cancel_requested_at = row::opt_at(row, col::COUNT + 2)?;
        let fence = get::<i64>(row, col::FENCE)?.cast_unsigned();
        let claim = Claim { id: task.id, fence, token };
        batch.claimed.push(Claimed { task, claim });
    }
    Ok(batch)
}

/// Ids as the database takes them.
pub(super) fn uuids(ids: &[TaskId]) -> Vec<Uuid> {
    ids.iter().map(|id| id.0).collect()
}
