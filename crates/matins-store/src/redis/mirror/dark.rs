//! What a node does without PostgreSQL.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::lifecycle::{Next, Settlement};
use matins_core::outage::{Change, DarkClaim, Entry};
use matins_core::store::{
    ClaimBatch, ClaimRequest, Extended, Lapsed, Result, Settings, Settled, StoreError, TypeLimit,
    Types,
};
use matins_core::task::{Claim, Claimed, Durability, NewTask, State, Task, TaskId, WorkerId};
use uuid::Uuid;

use super::super::link::Miss;
use super::push::{entry, may_be_mirrored};
use super::{FENCE_GAP, Held, MARGIN, Mirror, now_ns};

/// The right to work in the dark, as it is now.
pub(super) struct Right {
    pub(super) generation: u64,
    pub(super) identity: String,
    pub(super) note: String,
    episode: u64,
    fence_floor: u64,
}

pub(super) fn away(why: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("PostgreSQL is away, and nothing may be run without it: {why}"))
}

pub(super) fn missed(miss: Miss) -> StoreError {
    match miss {
        Miss::Away => away("Redis does not answer, or is another one by now"),
        Miss::Refused(error) => away(error),
    }
}

impl Mirror {
    /// Until now and for a whole lease of a run.
    pub(super) fn right(&self) -> Result<Right> {
        let nanos = |span: Duration| span.as_nanos() as u64;
        let now = now_ns();
        let lease = self.lease();
        let regime = self.regime();
        let identity = regime.acknowledged_redis.clone().filter(|_| regime.acknowledged > 0);
        let identity = identity.ok_or_else(|| away("no Redis was agreed on before"))?;
        if lease.is_zero() || !regime.lease.stands(now + nanos(lease + MARGIN)) {
            return Err(away("this node's outage_window is over"));
        }
        Ok(Right {
            generation: regime.acknowledged,
            identity,
            note: self.note(regime.episode),
            episode: regime.episode,
            fence_floor: regime.fence_floor,
        })
    }

    pub(super) fn owe(&self, request: &ClaimRequest) {
        let mut owed = self.owed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let one = (request.worker.clone(), request.token);
        if !owed.contains(&one) {
            owed.push(one);
        }
    }

    /// There was an answer after all.
    pub(super) fn settled_up(&self, request: &ClaimRequest) {
        let mut owed = self.owed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        owed.retain(|(worker, token)| *worker != request.worker || *token != request.token);
    }

    /// Whether a claim was made in the dark, by whomever.
    fn is_of_the_dark(&self, claim: &Claim) -> bool {
        let floor = self.regime().fence_floor;
        floor > 0 && claim.fence > floor - FENCE_GAP / 2
    }

    pub(in crate::redis) fn have_ended(&self, fences: &[u64]) {
        self.began().retain(|fence| !fences.contains(fence));
    }

    /// Its claim is not handed over to the database.
    fn holds(&self, claim: &Claim) -> bool {
        self.held().contains_key(&claim.fence)
    }

    pub(super) async fn claim_in_the_dark(&self, request: &ClaimRequest) -> Result<ClaimBatch> {
        let Ok(_dark) = self.dark.try_read() else {
            return Err(away("it is coming back"));
        };
        if !self.is_open() {
            return Err(away("it is back"));
        }
        let right = self.right()?;
        let (Some(outage), Some(pool), Types::Only(kinds)) =
            (&self.outage, &request.pool, &request.types)
        else {
            return Err(away("only a node's own workers run tasks now"));
        };
        if request.lease_until.is_some() || request.ids.is_some() {
            return Err(away("only a node's own workers run tasks now"));
        }
        outage.must_be_durable().await?;
        let settings = self.known_settings().ok_or_else(|| away("no settings are known"))?;
        let none = ClaimBatch { claimed: Vec::new(), next_at: soon(request.now) };
        let kinds = kinds
            .iter()
            .filter(|kind| self.options.types.contains(*kind) && !is_limited(&settings, kind));
        let kinds: Vec<&str> = kinds.map(|kind| &**kind).collect();
        if kinds.is_empty() || is_stopped(&settings, pool) {
            return Ok(none);
        }
        let scripts = &self.link.scripts.mirror;
        let unknown = || away("Redis has not shown its clock");
        let mut call = self.begin(&scripts.due, &right.identity).ok_or_else(unknown)?;
        call.arg(right.generation).arg(&**pool).arg(request.max);
        call.arg(right.fence_floor).arg(&right.note);
        call.arg(&kinds);
        let said = self.ask(&call).await.map_err(missed)?;
        let first = fence_before(&said, right.fence_floor)?;
        let mut claims = HashMap::new();
        let worker = WorkerId(
            format!("{}:{}:{}", self.options.node, std::process::id(), self.id.simple()).into(),
        );
        let mut call = self.begin(&scripts.claim, &right.identity).ok_or_else(unknown)?;
        call.arg(right.generation).arg(&right.note).arg(self.lease().as_millis() as u64);
        for (nth, due) in said.get(1..).unwrap_or_default().chunks_exact(3).enumerate() {
            let [id, attempt, text] = due else { continue };
            let Some(task) = self.opened::<Task>(text) else { continue };
            if task.id.to_string() != *id || task.attempt.to_string() != *attempt {
                continue;
            }
            let task = Task {
                state: State::Running,
                attempt: task.attempt + 1,
                started_at: Some(request.now),
                ..task
            };
            let claim = Claim { id: task.id, fence: first + 1 + nth as u64, token: request.token };
            let dark = DarkClaim {
                claim,
                task: task.clone(),
                worker: worker.clone(),
                member: self.id,
                episode: right.episode,
            };
            let kept = self.seal(&text_of(&dark)?);
            let change = Change::Claim(Box::new(dark));
            let journalled = outage.seal(&Entry { id: Uuid::new_v4(), at: request.now, change })?;
            call.arg(id).arg(attempt).arg(claim.fence).arg(kept).arg(&journalled);
            claims.insert(id.clone(), (Claimed { task, claim }, journalled));
        }
        if claims.is_empty() {
            return Ok(none);
        }
        let until_ns = now_ns() + self.lease().as_nanos() as u64;
        let granted = self.ask(&call).await.map_err(missed)?;
        let granted: Vec<_> = granted.iter().filter_map(|id| claims.remove(id)).collect();
        {
            let mut held = self.held();
            for (claimed, _) in &granted {
                let one = Held { claimed: claimed.clone(), until_ns, given_up: false };
                held.insert(claimed.claim.fence, one);
                self.began().insert(claimed.claim.fence);
            }
        }
        let (claimed, texts): (Vec<Claimed>, Vec<String>) = granted.into_iter().unzip();
        // Whoever may be told to start must be able to: what was granted is given back otherwise.
        let written = outage.spool_these(texts).await;
        if let Err(error) = written.and_then(|()| self.right().map(drop)) {
            self.release(&claimed, request.now).await;
            return Err(error);
        }
        let full = claimed.len() >= request.max;
        Ok(ClaimBatch { claimed, next_at: if full { None } else { none.next_at } })
    }

    /// Gives back what was claimed and will not start.
    async fn release(&self, claimed: &[Claimed], now: Timestamp) {
        use matins_core::lifecycle::{Outcome, Trace, settle};
        let policy = matins_core::retry::RetryPolicy::default();
        let outcome = || Outcome::Released { at: now };
        let release = |one| settle(one, outcome(), Trace::default(), &policy, now, 0.0);
        let items: Vec<Settlement> = claimed.iter().map(release).collect();
        if let Err(error) = self.finish(&items).await {
            tracing::warn!(%error, "claims were not given back; their leases end");
            let mut held = self.held();
            held.retain(|fence, _| claimed.iter().all(|one| one.claim.fence != *fence));
        }
    }

    /// Ends runs: those of the journal in Redis. In an outage the ends of others are written down,
    /// and the database judges them by their fences when it is back. `None`: they are the
    /// database's to end.
    pub(in crate::redis) async fn settle(
        &self,
        items: &[Settlement],
    ) -> Result<Vec<Option<Settled>>> {
        let _dark = self.dark.read().await;
        let in_outage = self.is_open();
        let of_the_dark = |item: &Settlement| {
            self.holds(&item.claim) || (in_outage && self.is_of_the_dark(&item.claim))
        };
        let (ours, others): (Vec<usize>, Vec<usize>) =
            (0..items.len()).partition(|&index| of_the_dark(&items[index]));
        let mut answers = vec![None; items.len()];
        if !ours.is_empty() {
            let chosen: Vec<Settlement> = ours.iter().map(|&index| items[index].clone()).collect();
            for (index, answer) in ours.iter().zip(self.finish(&chosen).await?) {
                answers[*index] = Some(answer);
            }
        }
        if in_outage
            && !others.is_empty()
            && let Some(outage) = &self.outage
        {
            let mut texts = Vec::with_capacity(others.len());
            for &index in &others {
                let item = items[index].clone();
                answers[index] = Some(Settled::Done(ends_as(&item)));
                let (id, at) = (Uuid::new_v4(), item.finished_at);
                texts.push(outage.seal(&Entry {
                    id,
                    at,
                    change: Change::Settle(Box::new(item)),
                })?);
            }
            outage.spool_these(texts).await?;
        }
        Ok(answers)
    }

    async fn finish(&self, items: &[Settlement]) -> Result<Vec<Settled>> {
        // What was given up does not stand, wherever its Redis is.
        let stands = |item: &&Settlement| {
            !self.held().get(&item.claim.fence).is_some_and(|held| held.given_up)
        };
        let standing: Vec<&Settlement> = items.iter().filter(stands).collect();
        let mut answers = match standing.is_empty() {
            true => Vec::new(),
            false => self.finish_standing(&standing).await?,
        }
        .into_iter();
        let answer = |item: &Settlement| {
            let given_up = !stands(&item);
            let answer = if given_up { Settled::Fenced } else { answers.next()? };
            Some(answer)
        };
        let answers: Vec<Settled> = items.iter().filter_map(answer).collect();
        self.held().retain(|fence, _| items.iter().all(|item| item.claim.fence != *fence));
        Ok(answers)
    }

    async fn finish_standing(&self, items: &[&Settlement]) -> Result<Vec<Settled>> {
        let Some(outage) = &self.outage else { return Err(away("it has no journal")) };
        let (identity, generation) = {
            let regime = self.regime();
            (regime.acknowledged_redis.clone(), regime.acknowledged)
        };
        let identity = identity.ok_or_else(|| away("no Redis was agreed on before"))?;
        let script = &self.link.scripts.mirror.finish;
        let mut call = self.begin(script, &identity).ok_or_else(|| away("no clock"))?;
        let mut texts = Vec::with_capacity(items.len());
        let others = self.kept_by_others(items, &identity).await?;
        for item in items {
            let held = self.held().get(&item.claim.fence).map(|held| held.claimed.task.clone());
            let task = held.or_else(|| others.get(&item.claim.id).cloned());
            let again = task.and_then(|task| item.again(&task)).filter(may_be_mirrored);
            let again =
                again.map(|task| entry(&task, generation, |text| self.seal(text))).transpose()?;
            let change = Change::Settle(Box::new((*item).clone()));
            let text = outage.seal(&Entry { id: Uuid::new_v4(), at: item.finished_at, change })?;
            call.arg(item.claim.id.to_string()).arg(item.claim.fence);
            call.arg(again.unwrap_or_default()).arg(&text);
            texts.push(text);
        }
        let said = self.ask(&call).await.map_err(missed)?;
        let stood: Vec<bool> = said.iter().map(|word| word == "1").collect();
        let written: Vec<String> = texts
            .into_iter()
            .zip(&stood)
            .filter(|(_, stood)| **stood)
            .map(|(text, _)| text)
            .collect();
        outage.spool_these(written).await?;
        let answer = |(item, stood): (&&Settlement, &bool)| match stood {
            true => Settled::Done(ends_as(item)),
            false => Settled::Fenced,
        };
        Ok(items.iter().zip(&stood).map(answer).collect())
    }

    /// The tasks of claims that others made: they are judged here because their leases have ended.
    async fn kept_by_others(
        &self,
        items: &[&Settlement],
        identity: &str,
    ) -> Result<HashMap<TaskId, Task>> {
        if items.iter().all(|item| self.holds(&item.claim)) {
            return Ok(HashMap::new());
        }
        let lapsed = self.lapsed_claims(identity, 1_000).await?;
        Ok(lapsed.into_iter().map(|kept| (kept.claim.id, kept.task)).collect())
    }

    async fn lapsed_claims(&self, identity: &str, limit: usize) -> Result<Vec<DarkClaim>> {
        let script = &self.link.scripts.mirror.lapsed;
        let mut call = self.begin(script, identity).ok_or_else(|| away("no clock"))?;
        call.arg(limit);
        let said = self.ask(&call).await.map_err(missed)?;
        Ok(said.iter().filter_map(|text| self.opened(text)).collect())
    }

    /// The claims of a process that died in the dark are over, and need not lapse. `false`: it could
    /// not be said.
    pub(super) async fn judge_inherited(&self) -> bool {
        if !self.inherits.load(Ordering::Relaxed) {
            return true;
        }
        let Ok(right) = self.right() else { return true };
        let mut all = redis::cmd("HVALS");
        all.arg(self.link.key("mirror:claims"));
        let Ok(claims) = self.link.command::<Vec<String>>(self.link.times.background, &all).await
        else {
            return false;
        };
        let kept = |claim: &String| self.opened(claim.splitn(4, '\t').nth(3)?);
        let claims = claims.iter().filter_map(kept);
        let over: Vec<DarkClaim> = claims
            .filter(|kept: &DarkClaim| kept.member == self.id && kept.episode < right.episode)
            .collect();
        let script = &self.link.scripts.mirror.lapse;
        let Some(mut call) = self.begin(script, &right.identity) else { return false };
        for kept in &over {
            call.arg(kept.claim.id.to_string()).arg(kept.claim.fence);
        }
        let said = self.ask(&call).await.is_ok();
        self.inherits.store(!said, Ordering::Relaxed);
        said
    }

    /// Claims made in the dark that nobody has renewed.
    pub(in crate::redis) async fn lapsed_in_the_dark(&self, limit: usize) -> Result<Vec<Lapsed>> {
        let _dark = self.dark.read().await;
        let right = self.right()?;
        let lapsed = self.lapsed_claims(&right.identity, limit).await?;
        let one = |kept: DarkClaim| Lapsed {
            claimed: Claimed { task: kept.task, claim: kept.claim },
            worker: kept.worker,
            draining: false,
        };
        Ok(lapsed.into_iter().map(one).collect())
    }

    /// Renews those that were not handed over; answers the others.
    pub(in crate::redis) async fn extend(
        &self,
        claims: &[Claim],
    ) -> Result<(Extended, Vec<Claim>)> {
        let _dark = self.dark.read().await;
        let mut extended = Extended::default();
        let (ours, others): (Vec<Claim>, Vec<Claim>) =
            claims.iter().partition(|claim| self.holds(claim));
        if ours.is_empty() {
            return Ok((extended, others));
        }
        let given_up =
            |claim: &&Claim| self.held().get(&claim.fence).is_none_or(|held| held.given_up);
        let (lost, ours): (Vec<&Claim>, Vec<&Claim>) = ours.iter().partition(given_up);
        extended.lost.extend(lost.iter().map(|claim| claim.id));
        if ours.is_empty() {
            return Ok((extended, others));
        }
        // A whole lease of a run must be left of the outage lease: so it bounds the runs.
        let right = self.right()?;
        let script = &self.link.scripts.mirror.renew;
        let mut call = self.begin(script, &right.identity).ok_or_else(|| away("no clock"))?;
        call.arg(self.lease().as_millis() as u64);
        for claim in &ours {
            call.arg(claim.id.to_string()).arg(claim.fence);
        }
        let until_ns = now_ns() + self.lease().as_nanos() as u64;
        let lost = self.ask(&call).await.map_err(missed)?;
        let lost: Vec<TaskId> = lost.iter().filter_map(|id| id.parse().ok()).collect();
        for claim in ours.iter().filter(|claim| !lost.contains(&claim.id)) {
            self.held().entry(claim.fence).and_modify(|held| held.until_ns = until_ns);
        }
        extended.lost.extend(lost);
        Ok((extended, others))
    }

    /// New tasks were journalled: those that can be judged without the database may run.
    pub(in crate::redis) async fn journalled(&self, tasks: &[NewTask], now: Timestamp) {
        let Ok(_dark) = self.dark.try_read() else { return };
        if !self.is_open() {
            return;
        }
        let Ok(right) = self.right() else { return };
        let as_task =
            |task: &NewTask| Task { durability: Durability::Redis, ..Task::from_new(task, now) };
        let horizon =
            Timestamp::now().saturating_add(self.options.horizon).unwrap_or(Timestamp::MAX);
        // One that brings its id may be the repeat of one that has run.
        let tasks = tasks.iter().filter(|task| !task.client_id).map(as_task).filter(|task| {
            may_be_mirrored(task)
                && self.options.types.contains(&task.kind)
                && task.run_at <= horizon
        });
        let tasks: Vec<Task> = tasks.collect();
        for some in tasks.chunks(500) {
            let Some(call) = self.begin(&self.link.scripts.mirror.push, &right.identity) else {
                return;
            };
            let Ok(found) = self.entries(some, right.generation) else { return };
            if let Err(error) = self.put(call, Some(&right.note), found).await {
                tracing::debug!(%error, "new tasks wait for PostgreSQL");
                return;
            }
        }
    }
}

fn text_of(claim: &DarkClaim) -> Result<String> {
    serde_json::to_string(claim).map_err(|error| StoreError::Broken(error.to_string()))
}

fn is_stopped(settings: &Settings, pool: &str) -> bool {
    settings.frozen.is_some() || settings.pools.get(pool).is_some_and(|pool| pool.paused)
}

/// The fence before the first that may be used of what Redis has handed out.
fn fence_before(said: &[String], floor: u64) -> Result<u64> {
    let fence = said.first().and_then(|fence| fence.parse().ok());
    fence.filter(|fence| *fence >= floor).ok_or_else(|| away("Redis hands out no fences"))
}

/// How many run, or ran lately, the database alone can count.
fn is_limited(settings: &Settings, kind: &str) -> bool {
    let limits = |limit: &TypeLimit| limit.concurrency.is_some() || limit.rate_limit.is_some();
    settings.limits.get(kind).is_some_and(limits)
}

fn ends_as(item: &Settlement) -> State {
    match item.next {
        Next::Completed { .. } => State::Completed,
        Next::Again { .. } => State::Pending,
        Next::Failed => State::Failed,
        Next::Cancelled { .. } => State::Cancelled,
    }
}

pub(super) fn soon(now: Timestamp) -> Option<Timestamp> {
    now.checked_add(jiff::SignedDuration::from_millis(500)).ok()
}
