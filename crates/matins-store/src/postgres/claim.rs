//! Handing out and ending runs.

use std::collections::HashSet;
use std::time::Instant;

use jiff::Timestamp;
use matins_core::Json;
use matins_core::lifecycle::{Next, Settlement, Trace};
use matins_core::store::{ClaimBatch, ClaimRequest, Settled, Types};
use matins_core::task::{AttemptOutcome, Claim, Claimed, State, TaskError, TaskId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::PostgresStore;
use super::error::{Failure, Res};
use super::floors::{Begin, Seen};
use super::link::{Param, Speaks};
use super::row::{self, CANCELLED, COMPLETED, FAILED, col, get};
use super::sql::Sql;
use super::text::Text;
use super::time::{At, opt_at};

/// Where a task goes when it is pending again, beside the states that are stored.
const AGAIN: i16 = 1;

impl PostgresStore {
    /// What was claimed, and its order of acceptance.
    pub(super) async fn hand_out(&self, request: &ClaimRequest) -> Res<(ClaimBatch, Vec<i64>)> {
        self.follow_clock(request.now).await?;
        if request.repeated {
            let params: [Param<'_>; 2] = [&Text(&request.worker.0), &request.token.cast_signed()];
            let rows = self.work.rows(Sql::ClaimedBefore, &params).await?;
            let Rows { batch, seqs, .. } = read(&rows, request.token)?;
            if !batch.claimed.is_empty() {
                return Ok((ClaimBatch { next_at: None, ..batch }, seqs));
            }
        }
        self.hand_out_through(&*self.work, request).await
    }

    /// As a transaction of its own, or as part of one.
    pub(super) async fn hand_out_through(
        &self,
        through: &impl Speaks,
        request: &ClaimRequest,
    ) -> Res<(ClaimBatch, Vec<i64>)> {
        let worker = Text(&request.worker.0);
        let token = request.token.cast_signed();
        let pool = request.pool.as_deref().map(Text);
        let types: Option<Vec<Text<'_>>> = match &request.types {
            Types::Any => None,
            Types::Only(kinds) => Some(kinds.iter().map(|kind| Text(kind)).collect()),
        };
        let max = i32::try_from(request.max).unwrap_or(i32::MAX);
        let (lease, now) = (opt_at(request.lease_until), At(request.now));
        match &request.ids {
            Some(ids) => {
                let ids = uuids(ids);
                let params: [Param<'_>; 8] =
                    [&worker, &pool, &types, &ids, &max, &token, &lease, &now];
                let rows = through.rows(Sql::ClaimNamed, &params).await?;
                let Rows { batch, seqs, .. } = read(&rows, request.token)?;
                Ok((batch, seqs))
            }
            None => {
                let begin = self.floors.begin(Instant::now());
                let (lanes, ords, due, sweep_in) = match &begin {
                    Begin::Left => (&[][..], &[][..], None, None),
                    Begin::Floors { lanes, ords, due, sweep_in } => {
                        (&**lanes, &**ords, *due, Some(*sweep_in))
                    }
                };
                let due = At(due.unwrap_or(Timestamp::MIN));
                let params: [Param<'_>; 10] =
                    [&worker, &pool, &types, &max, &token, &lease, &now, &lanes, &ords, &due];
                let sent = Instant::now();
                let rows = through.rows(Sql::Claim, &params).await?;
                let Rows { mut batch, seqs, seen } = read(&rows, request.token)?;
                self.floors.learn(&begin, &seen, request.now, sent.elapsed());
                // What may stand before the floors is found then.
                if let Some(sweep_at) = sweep_in.and_then(|span| request.now.checked_add(span).ok())
                    && batch.claimed.len() < request.max
                {
                    batch.next_at = Some(batch.next_at.map_or(sweep_at, |at| at.min(sweep_at)));
                }
                Ok((batch, seqs))
            }
        }
    }

    pub(super) async fn end_runs(&self, items: &[Settlement]) -> Res<Vec<Settled>> {
        end(&*self.work, items).await
    }
}

/// Ends runs, as a transaction of its own or as part of somebody's: one statement.
///
/// Runs that completed are ended all at once, as far as the database finds them to be as simple as
/// that; the others are looked at one by one.
pub(super) async fn end(through: &impl Speaks, items: &[Settlement]) -> Res<Vec<Settled>> {
    let mut seen = HashSet::new();
    // Of two about the same run, the first one counts.
    let (all, each): (Vec<usize>, Vec<usize>) = (0..items.len())
        .partition(|&index| seen.insert(items[index].claim) && completes(&items[index]));
    let chosen = |indices: &[usize]| indices.iter().map(|&index| &items[index]).collect::<Vec<_>>();
    let (sql, columns) = match (all.is_empty(), each.is_empty()) {
        (true, true) => return Ok(Vec::new()),
        (false, true) => (Sql::CompleteAll, completed(&chosen(&all))?),
        (true, false) => (Sql::Settle, ended(&chosen(&each))?),
        (false, false) => {
            let mut columns = completed(&chosen(&all))?;
            columns.extend(ended(&chosen(&each))?);
            (Sql::EndRuns, columns)
        }
    };
    let params: Vec<Param<'_>> = columns.iter().map(|column| &**column as Param<'_>).collect();
    let rows = through.rows(sql, &params).await?;
    let row = rows.first().ok_or_else(|| Failure::broken("no answer to a settlement"))?;
    let mut answers: Vec<Option<Settled>> = vec![None; items.len()];
    let parts = [&all, &each].into_iter().filter(|part| !part.is_empty());
    for (column, part) in parts.enumerate() {
        let told: Vec<i16> = get(row, column)?;
        for (&index, answer) in part.iter().zip(told) {
            answers[index] = Some(settled(answer));
        }
    }
    answers
        .into_iter()
        .collect::<Option<_>>()
        .ok_or_else(|| Failure::broken("a settlement without an answer"))
}

type Columns<'s> = Vec<Box<dyn ToSql + Send + Sync + 's>>;

macro_rules! columns {
    ($($column:expr),* $(,)?) => { vec![$(Box::new($column) as _),*] };
}

fn of<'s, F, T>(from: &[F], one: impl Fn(&F) -> T + 's) -> Vec<T> {
    from.iter().map(one).collect()
}

/// What `complete_all` takes.
fn completed<'s>(items: &[&'s Settlement]) -> Res<Columns<'s>> {
    let ends = items.iter().map(|item| End::of(item)).collect::<Res<Vec<End<'s>>>>()?;
    let trace = Traces::of(items);
    Ok(columns![
        of(items, |s| s.claim.id.0),
        of(items, |s| s.claim.fence.cast_signed()),
        of(items, |s| s.claim.token.cast_signed()),
        trace.exit_codes,
        trace.http,
        trace.outputs,
        trace.dropped,
        trace.gaps,
        of(items, |s| At(s.finished_at)),
        of(&ends, |end| end.result),
        of(&ends, |end| end.result_dropped),
        of(items, |s| s.retries.cast_signed()),
        of(items, |s| s.retries_before.cast_signed()),
        of(items, |s| s.losses.cast_signed()),
        of(items, |s| s.interruptions.cast_signed()),
    ])
}

/// What `settle` takes.
fn ended<'s>(items: &[&'s Settlement]) -> Res<Columns<'s>> {
    let ends = items.iter().map(|item| End::of(item)).collect::<Res<Vec<End<'s>>>>()?;
    let errors: Vec<Option<&'s TaskError>> = items.iter().map(|s| s.error.as_ref()).collect();
    let trace = Traces::of(items);
    Ok(columns![
        of(items, |s| s.claim.id.0),
        of(items, |s| s.claim.fence.cast_signed()),
        of(items, |s| s.claim.token.cast_signed()),
        of(items, |s| s.attempt.cast_signed()),
        of(items, |s| s.outcome.as_str()),
        of(&errors, |error| error.map(|error| error.class.as_str())),
        of(&errors, |error| error.map(|error| Text(&error.message))),
        of(&errors, |error| error.map(|error| Text(&error.fingerprint))),
        trace.exit_codes,
        trace.http,
        trace.outputs,
        trace.dropped,
        trace.gaps,
        of(items, |s| At(s.finished_at)),
        of(&ends, |end| end.next),
        of(&ends, |end| end.run_at),
        of(&ends, |end| end.reason),
        of(&ends, |end| end.cancel_reason),
        of(&ends, |end| end.result),
        of(&ends, |end| end.result_dropped),
        of(items, |s| s.retries.cast_signed()),
        of(items, |s| s.retries_before.cast_signed()),
        of(items, |s| s.losses.cast_signed()),
        of(items, |s| s.interruptions.cast_signed()),
    ])
}

fn completes(item: &Settlement) -> bool {
    let completed = matches!(item.next, Next::Completed { .. });
    completed
        && item.next_if_cancelled == item.next
        && item.outcome == AttemptOutcome::Completed
        && item.error.is_none()
}

/// What runs left behind, as columns.
struct Traces<'s> {
    exit_codes: Vec<Option<i32>>,
    http: Vec<Option<i32>>,
    outputs: Vec<Option<&'s [u8]>>,
    dropped: Vec<Option<i64>>,
    gaps: Vec<Option<i64>>,
}

impl<'s> Traces<'s> {
    fn of(items: &[&'s Settlement]) -> Self {
        fn column<'s, T>(items: &[&'s Settlement], of: impl Fn(&'s Trace) -> T) -> Vec<T> {
            items.iter().map(|item| of(&item.trace)).collect()
        }
        let output = |trace: &'s Trace| (!trace.output.is_empty()).then_some(&trace.output);
        Self {
            exit_codes: column(items, |trace| trace.exit_code),
            http: column(items, |trace| trace.http_status.map(i32::from)),
            outputs: column(items, |trace| output(trace).map(|output| &*output.bytes)),
            dropped: column(items, |trace| output(trace).map(|o| o.dropped.cast_signed())),
            gaps: column(items, |trace| output(trace).map(|output| output.gap_at as i64)),
        }
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

/// What a claim answered.
#[derive(Default)]
struct Rows {
    batch: ClaimBatch,
    /// Of the claimed, their order of acceptance.
    seqs: Vec<i64>,
    seen: Seen,
}

/// Tasks as in `task_full`; in the last row, when to ask again and what was seen.
fn read(rows: &[Row], token: u64) -> Res<Rows> {
    let mut read = Rows::default();
    read.batch.claimed.reserve(rows.len());
    for row in rows {
        if let Some(task) = row::task(row)? {
            let fence = get::<i64>(row, col::FENCE)?.cast_unsigned();
            let claim = Claim { id: task.id, fence, token };
            read.seqs.push(get(row, col::SEQ)?);
            read.batch.claimed.push(Claimed { task, claim });
            continue;
        }
        read.batch.next_at = row::opt_at(row, col::COUNT)?;
        read.seen = Seen {
            walked: get(row, col::COUNT + 1)?,
            lanes: get::<Option<_>>(row, col::COUNT + 2)?.unwrap_or_default(),
            ords: get::<Option<_>>(row, col::COUNT + 3)?.unwrap_or_default(),
        };
    }
    Ok(read)
}

/// Of the rows of a claim: what was claimed, and its order of acceptance.
#[cfg(feature = "redis")]
pub(super) fn read_claims(rows: &[Row], token: u64) -> Res<(ClaimBatch, Vec<i64>)> {
    let Rows { batch, seqs, .. } = read(rows, token)?;
    Ok((batch, seqs))
}

/// Ids as the database takes them.
pub(super) fn uuids(ids: &[TaskId]) -> Vec<Uuid> {
    ids.iter().map(|id| id.0).collect()
}
