//! Workers in any language, over any front door: they claim, renew and settle by claim.
//!
//! A remote worker is known by a name only, so nothing is tied to the name: each claim has a
//! lease of its own, and every write carries fence and token.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::Json;
use matins_core::lifecycle::{Outcome, RetryAfter, Settlement, Trace, later, settle};
use matins_core::request::{FieldError, check_name};
use matins_core::store::{ClaimRequest, Extended, Settled, Types, Worker};
use matins_core::task::{
    Claim, Claimed, ErrorClass, Name, Output, State, TaskError, TaskId, WorkerId,
};

use tokio::sync::broadcast;

use super::{Client, Result};
use crate::events::{Event, What};

#[derive(Debug, Clone)]
pub struct RemoteClaim {
    pub worker: String,
    /// Empty: any pool.
    pub pools: Vec<String>,
    pub types: Vec<String>,
    pub max: usize,
    /// How long to wait for the first task.
    pub wait: Duration,
}

/// Longest wait of one claim, so that no connection is held for ever.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Most tasks of one claim.
pub const CLAIM_MAX: usize = 1_000;

/// How often a waiting claim asks the store by itself.
const CLAIM_POLL: Duration = Duration::from_millis(200);

/// Resolves when something happened that may have made a task of these types claimable.
async fn may_bring_work(events: &mut broadcast::Receiver<Event>, types: &[String]) {
    loop {
        match events.recv().await {
            Ok(event) => {
                let brings = match &event.what {
                    What::Enqueued { kind, .. } | What::Settled { kind, .. } => {
                        types.iter().any(|wanted| **wanted == **kind)
                    }
                    What::Fired { .. } => true,
                    _ => false,
                };
                if brings {
                    return;
                }
            }
            // Missed some: look.
            Err(_) => return,
        }
    }
}

/// How a remote worker says a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteSettle {
    pub claim: Claim,
    pub outcome: RemoteOutcome,
    pub output: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RemoteOutcome {
    Completed {
        result: Option<Json>,
    },
    Failed {
        class: Option<ErrorClass>,
        message: String,
        permanent: bool,
        retry_after: Option<RetryAfter>,
    },
    Snooze {
        at: Timestamp,
    },
    Release {
        at: Timestamp,
    },
}

impl Client {
    /// Claims for a remote worker; waits up to `wait` for the first task.
    pub async fn remote_claim(
        &self,
        request: &RemoteClaim,
        lease: Duration,
    ) -> Result<(Vec<Claimed>, Timestamp)> {
        check_name("worker", &request.worker)?;
        if WorkerId::looks_local(&request.worker) {
            let text = "has the form of a local worker's name; choose another";
            return Err(FieldError::new("worker", text).into());
        }
        if request.types.is_empty() {
            return Err(FieldError::new("types", "expected at least one type").into());
        }
        if request.max == 0 || request.max > CLAIM_MAX {
            return Err(FieldError::new("max", format!("expected 1 to {CLAIM_MAX}")).into());
        }
        let types: BTreeSet<Name> = request.types.iter().map(|t| Name::from(t.as_str())).collect();
        let types = Types::Only(Arc::new(types));
        self.announce(request, &types, lease).await?;
        let until = tokio::time::Instant::now() + request.wait.min(WAIT_MAX);
        // Listened to before the store is asked, so that nothing in between is missed.
        let mut events = self.inner.events.subscribe();
        loop {
            let now = self.now();
            let lease_until = later(now, lease);
            let claimed = self.remote_claim_once(request, &types, lease_until).await?;
            if !claimed.is_empty() || tokio::time::Instant::now() >= until {
                return Ok((claimed, lease_until));
            }
            // A short poll also sees what other processes enqueue.
            tokio::select! {
                () = tokio::time::sleep(CLAIM_POLL) => {}
                () = may_bring_work(&mut events, &request.types) => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    async fn announce(&self, request: &RemoteClaim, types: &Types, lease: Duration) -> Result<()> {
        let now = self.now();
        let worker = Worker {
            id: WorkerId(request.worker.as_str().into()),
            node_id: request.worker.as_str().into(),
            started_at: now,
            seen_at: now,
            lease_until: later(now, lease.max(request.wait.min(WAIT_MAX) + lease)),
            draining: false,
            remote: true,
            pools: request
                .pools
                .iter()
                .map(|p| (Name::from(p.as_str()), request.max as u32))
                .collect(),
            types: types.clone(),
        };
        // A known worker keeps the time it was first seen at.
        if !self.inner.store.beat(&worker).await? {
            self.inner.store.register(worker).await?;
        }
        Ok(())
    }

    async fn remote_claim_once(
        &self,
        request: &RemoteClaim,
        types: &Types,
        lease_until: Timestamp,
    ) -> Result<Vec<Claimed>> {
        let pools: Vec<Option<Name>> = if request.pools.is_empty() {
            vec![None]
        } else {
            request.pools.iter().map(|pool| Some(pool.as_str().into())).collect()
        };
        let mut claimed = Vec::new();
        for pool in pools {
            let max = request.max - claimed.len();
            if max == 0 {
                break;
            }
            let claim = ClaimRequest {
                worker: WorkerId(request.worker.as_str().into()),
                pool,
                types: types.clone(),
                ids: None,
                max,
                token: self.inner.clock.random(),
                repeated: false,
                lease_until: Some(lease_until),
                now: self.now(),
            };
            match self.inner.store.claim(claim).await {
                Ok(batch) => claimed.extend(batch.claimed),
                Err(error) if claimed.is_empty() => return Err(error.into()),
                // What another pool has given already must reach the worker.
                Err(error) => {
                    tracing::warn!(%error, worker = request.worker, "a pool could not be asked");
                    break;
                }
            }
        }
        for one in &claimed {
            let (id, kind, attempt) = (one.task.id, one.task.kind.clone(), one.task.attempt);
            self.inner.events.send(self.now(), || What::Started { id, kind, attempt });
        }
        Ok(claimed)
    }

    /// Renews claims: the new end of the lease, what is lost, what should end.
    pub async fn remote_heartbeat(
        &self,
        claims: &[Claim],
        lease: Duration,
    ) -> Result<(Timestamp, Extended)> {
        let lease_until = later(self.now(), lease);
        let extended = self.inner.store.extend(claims, lease_until).await?;
        Ok((lease_until, extended))
    }

    /// Settles; each item by itself. `None`: the claim no longer stands.
    pub async fn remote_settle(&self, items: Vec<RemoteSettle>) -> Result<Vec<Option<State>>> {
        let mut settlements: Vec<Option<(Settlement, Name)>> = Vec::with_capacity(items.len());
        for item in items {
            let id = item.claim.id;
            let settlement = self.remote_settlement(item).await?;
            if settlement.is_none() {
                self.fenced(id);
            }
            settlements.push(settlement);
        }
        let known: Vec<Settlement> =
            settlements.iter().flatten().map(|(settlement, _)| settlement.clone()).collect();
        let mut answers = self.inner.store.settle(known).await?.into_iter();
        let mut states = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let Some((settlement, kind)) = settlement else {
                states.push(None);
                continue;
            };
            states.push(match answers.next() {
                Some(Settled::Done(state)) => {
                    self.inner.metrics.settled(&kind, settlement.outcome);
                    let (id, attempt) = (settlement.claim.id, settlement.attempt);
                    let what = || What::Settled { id, kind, attempt, state };
                    self.inner.events.send(settlement.finished_at, what);
                    Some(state)
                }
                _ => {
                    self.fenced(settlement.claim.id);
                    None
                }
            });
        }
        self.inner.wake.ring_pools();
        if states.contains(&Some(State::Failed)) {
            self.inner.wake.ring_alerts();
        }
        Ok(states)
    }

    pub(crate) fn fenced(&self, id: TaskId) {
        tracing::warn!(task = %id, "refused a write: the claim no longer stands");
        self.inner.metrics.fenced();
        self.inner.events.send(self.now(), || What::Fenced { id });
    }

    async fn remote_settlement(&self, item: RemoteSettle) -> Result<Option<(Settlement, Name)>> {
        // The row is read for its counters; the write is fenced by the claim, not by this read.
        let Some(task) = self.inner.store.task(item.claim.id).await? else { return Ok(None) };
        if task.state != State::Running {
            return Ok(None);
        }
        let rules = self.rules();
        let policy = rules.policy_for(&task);
        let outcome = match item.outcome {
            RemoteOutcome::Completed { result } => {
                Outcome::completed(result, rules.limits.result_bytes)
            }
            RemoteOutcome::Failed { class, message, permanent, retry_after } => {
                let fallback = if permanent { ErrorClass::Permanent } else { ErrorClass::Error };
                let error = TaskError::new(class.unwrap_or(fallback), message);
                Outcome::Failed { error, permanent, retry_after }
            }
            RemoteOutcome::Snooze { at } => Outcome::Snoozed { at },
            RemoteOutcome::Release { at } => Outcome::Released { at },
        };
        let output = item.output.map_or_else(Output::default, |text| {
            keep_ends(text.into_bytes(), rules.limits.output_bytes)
        });
        let kind = task.kind.clone();
        let claimed = Claimed { task, claim: item.claim };
        let trace = Trace { output, ..Trace::default() };
        let dice = self.inner.clock.dice();
        Ok(Some((settle(&claimed, outcome, trace, &policy.retry, self.now(), dice), kind)))
    }
}

/// The first quarter and the last three quarters of `limit` bytes.
fn keep_ends(mut bytes: Vec<u8>, limit: usize) -> Output {
    if bytes.len() <= limit {
        return Output { bytes, dropped: 0, gap_at: 0 };
    }
    let head = limit / 4;
    let dropped = bytes.len() - limit;
    bytes.drain(head..head + dropped);
    Output { bytes, dropped: dropped as u64, gap_at: head }
}
