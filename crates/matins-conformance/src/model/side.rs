//! One of the two stores, with what has been done to it so far.

use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use matins_core::Json;
use matins_core::lifecycle::{Outcome, RetryAfter, Settlement, Trace, settle};
use matins_core::retry::RetryPolicy;
use matins_core::schedule::{
    FirePlan, OccurrenceKind, OccurrenceOutcome, ScheduleState, ScheduleStatus, Start,
};
use matins_core::store::{
    Act, ClaimRequest, Expect, Frozen, Look, LookRequest, Retention, SettingChange, Store,
    TypeLimit, Types, Worker,
};
use matins_core::task::{
    Claim, Claimed, ErrorClass, NewTask, Origin, Output, TaskError, TaskId, WorkerId,
};

use uuid::Uuid;

use super::step::{
    CONCURRENCY_KEYS, End, KEYS, KINDS, Offer, POOLS, Pick, SCHEDULES, Step, WORKERS,
};
use crate::lab::{at, id, occurrence, policy, schedule, worker};

const RATES: [&str; 3] = ["1/s", "3/m", "2/h"];

/// What a step was answered, in words that do not depend on the store.
pub(super) struct Answer {
    pub(super) text: String,
    /// Of a claim that was not filled: when it asks to be repeated, at the end of time for never.
    pub(super) next_at: Option<Timestamp>,
}

pub(super) struct Side {
    pub(super) store: Arc<dyn Store>,
    pub(super) now: Timestamp,
    pub(super) ids: Vec<TaskId>,
    claims: Vec<Claimed>,
    /// Positions in `claims` that nobody has tried to end.
    open: Vec<usize>,
    token: u64,
    fired: usize,
    /// Identity of the schedule made last under each name, and how many were made.
    uids: [Uuid; SCHEDULES.len()],
    made: u128,
}

fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

/// Steps come from people, too.
fn act(at: Timestamp) -> Act {
    Act { who: "ann".to_owned(), reason: Some("because".to_owned()), at }
}

/// Few retries, so that dead letters are not rare.
fn short() -> RetryPolicy {
    RetryPolicy { max_retries: 1, max_interruptions: 2, ..policy() }
}

impl Side {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            now: at(0),
            ids: Vec::new(),
            claims: Vec::new(),
            open: Vec::new(),
            token: 0,
            fired: 0,
            uids: [Uuid::nil(); SCHEDULES.len()],
            made: 0,
        }
    }

    /// Workers and schedules that most steps need.
    pub(super) async fn begin(&mut self) {
        for worker in 0..WORKERS.len() {
            self.apply(&Step::Register { worker, lease: 5_000 }).await;
        }
        for schedule in 0..SCHEDULES.len() {
            self.apply(&Step::PutSchedule { schedule, outdated: false, active: true }).await;
        }
    }

    pub(super) async fn apply(&mut self, step: &Step) -> Answer {
        if let Step::Claim { .. } = step {
            return self.claim(step).await;
        }
        Answer { text: self.answer(step).await, next_at: None }
    }

    async fn answer(&mut self, step: &Step) -> String {
        let now = self.now;
        let act = act(now);
        match step {
            Step::Advance { micros } => {
                self.now += SignedDuration::from_micros(*micros);
                String::new()
            }
            Step::Enqueue(offers) => {
                let tasks = offers.iter().map(|offer| self.new_task(offer)).collect();
                words(&self.store.enqueue(tasks, now).await)
            }
            Step::Claim { .. } => unreachable!("answered by itself"),
            Step::Settle(items) => self.settle(items).await,
            Step::Cancel(picks) => words(&self.store.cancel(&self.tasks(picks), &act).await),
            Step::Retry { picks, edit } => {
                let payload = edit.then(|| Json::string("edited"));
                words(&self.store.retry(&self.tasks(picks), payload, &act).await)
            }
            Step::Dismiss(picks) => words(&self.store.dismiss(&self.tasks(picks), &act).await),
            Step::Expire { limit } => words(&self.store.expire(now, *limit).await),
            Step::Register { worker, lease } => {
                words(&self.store.register(self.worker(*worker, *lease)).await)
            }
            Step::Beat { worker, lease, draining } => {
                let worker = Worker { draining: *draining, ..self.worker(*worker, *lease) };
                words(&self.store.beat(&worker).await)
            }
            Step::Retire { worker } => {
                words(&self.store.retire(&WorkerId(WORKERS[*worker].into()), now).await)
            }
            Step::Reap => self.reap().await,
            Step::Extend { picks, lease } => {
                let claims: Vec<Claim> =
                    picks.iter().filter_map(|pick| self.claim_of(*pick)).map(|c| c.claim).collect();
                words(&self.store.extend(&claims, now + seconds(*lease)).await)
            }
            Step::Pool { .. } | Step::Freeze(_) | Step::Limit { .. } => self.set(step).await,
            Step::PutSchedule { schedule, outdated, active } => {
                self.put_schedule(*schedule, *outdated, *active).await
            }
            Step::RemoveSchedule { schedule } => {
                words(&self.store.remove_schedule(SCHEDULES[*schedule], &act).await)
            }
            Step::Fire { .. } => self.fire(step).await,
            Step::Forget { kind, key } => {
                words(&self.store.forget_key(KINDS[*kind], KEYS[*key], &act).await)
            }
            Step::Prune { age } => self.prune(*age).await,
        }
    }

    fn new_task(&mut self, offer: &Offer) -> NewTask {
        let known = offer.again.filter(|_| !self.ids.is_empty());
        let id = match known {
            Some(pick) => self.ids[pick % self.ids.len()],
            None => self.new_id(),
        };
        let origin = offer.origin.map(|(schedule, _)| self.origin(schedule));
        NewTask {
            client_id: known.is_some(),
            pool: POOLS[offer.pool].into(),
            priority: offer.priority,
            expires_at: offer.expires.map(|expires| self.now + seconds(expires)),
            execution_key: offer.key.map(|key| KEYS[key].into()),
            on_duplicate: offer.on_duplicate,
            concurrency_key: offer.concurrency_key.map(|key| CONCURRENCY_KEYS[key].into()),
            tags: offer.tag.map(|tag| format!("tag-{tag}")).into_iter().collect(),
            max_retries: offer.max_retries,
            held: offer.origin.is_some_and(|(_, held)| held),
            origin,
            ..self.plain(id, offer.kind, self.now + seconds(offer.delay))
        }
    }

    fn plain(&self, id: TaskId, kind: usize, run_at: Timestamp) -> NewTask {
        let payload = Json::trusted(format!(r#"{{"n": {}}}"#, self.ids.len()));
        NewTask { created_by: "model".into(), ..NewTask::new(id, KINDS[kind], payload, run_at) }
    }

    fn new_id(&mut self) -> TaskId {
        let id = id(self.ids.len() as u128 + 1);
        self.ids.push(id);
        id
    }

    fn origin(&self, number: usize) -> Origin {
        let name = SCHEDULES[number];
        Origin {
            schedule_uid: self.uids[number],
            schedule: name.into(),
            label: format!("by hand {}", self.ids.len()),
            time: self.now,
        }
    }

    fn tasks(&self, picks: &[usize]) -> Vec<TaskId> {
        let known = |pick: &usize| self.ids[pick % self.ids.len()];
        if self.ids.is_empty() { vec![id(999)] } else { picks.iter().map(known).collect() }
    }

    fn worker(&self, number: usize, lease: i64) -> Worker {
        Worker {
            seen_at: self.now,
            pools: POOLS.iter().map(|pool| ((*pool).into(), 2 + number as u32)).collect(),
            ..worker(WORKERS[number], self.now + seconds(lease))
        }
    }

    async fn claim(&mut self, step: &Step) -> Answer {
        let Step::Claim { worker, pool, kinds, named, max, own_lease, repeated } = step else {
            unreachable!("a claim")
        };
        if !repeated {
            self.token += 1;
        }
        if let Some(lease) = own_lease {
            self.announce(*worker, *lease).await;
        }
        let kinds = kinds.as_ref().map(|kinds| kinds.iter().map(|kind| KINDS[*kind].into()));
        let request = ClaimRequest {
            worker: WorkerId(WORKERS[*worker].into()),
            pool: pool.map(|pool| POOLS[pool].into()),
            types: kinds.map_or(Types::Any, |kinds| Types::Only(Arc::new(kinds.collect()))),
            ids: named.as_ref().map(|picks| self.tasks(picks)),
            max: *max,
            token: self.token,
            repeated: *repeated,
            lease_until: own_lease.map(|lease| self.now + seconds(lease)),
            now: self.now,
        };
        let look = self.look(&request).await;
        let batch = match self.store.claim(request).await {
            Ok(batch) => batch,
            Err(error) => return Answer { text: format!("{error:?}"), next_at: None },
        };
        let tasks: Vec<_> = batch.claimed.iter().map(|claimed| &claimed.task).collect();
        for task in tasks.iter().filter(|_| !repeated) {
            assert!(look.pools.contains(&task.pool), "{look:?} says nothing of {task:?}");
        }
        let text = format!("{tasks:#?}");
        let is_full = batch.claimed.len() >= *max;
        for claimed in batch.claimed {
            self.remember(claimed);
        }
        let next_at = batch.next_at.unwrap_or(Timestamp::MAX);
        Answer { text, next_at: (!is_full).then_some(next_at) }
    }

    /// A look never says too little: of tasks, what the claim after it shows.
    async fn look(&self, request: &ClaimRequest) -> Look {
        let pools = POOLS.iter().map(|pool| (*pool).into()).collect();
        let (types, now) = (request.types.clone(), request.now);
        let request = LookRequest { pools, types, now, upkeep: Some(now) };
        let look = self.store.look(&request).await.expect("look");
        let lapsed = self.store.lapsed(now, 1).await.expect("lapsed");
        assert!(look.lapsed || lapsed.is_empty(), "{look:?}, but a claim has lapsed: {lapsed:?}");
        let (due, next) = self.store.due(request.now, 1).await.expect("due");
        let next = due.first().and_then(|due| due.state.next_due).or(next);
        assert!(
            next.is_none_or(|next| look
                .schedules
                .is_some_and(|said| said <= next.max(request.now))),
            "{look:?}, but a schedule is due at {next:?}"
        );
        look
    }

    /// As the port asks of a worker whose claims have leases of their own.
    async fn announce(&self, number: usize, lease: i64) {
        let worker = self.worker(number, lease);
        if !self.store.beat(&worker).await.expect("beat") {
            self.store.register(worker).await.expect("register");
        }
    }

    fn remember(&mut self, claimed: Claimed) {
        if self.claims.iter().any(|known| known.claim == claimed.claim) {
            return;
        }
        let highest = self.claims.iter().map(|known| known.claim.fence).max();
        assert!(Some(claimed.claim.fence) > highest, "a fence that does not grow: {claimed:?}");
        self.open.push(self.claims.len());
        self.claims.push(claimed);
    }

    fn claim_of(&self, pick: Pick) -> Option<&Claimed> {
        let open = pick.open && !self.open.is_empty();
        let position = if open { self.open[pick.pick % self.open.len()] } else { pick.pick };
        (!self.claims.is_empty()).then(|| &self.claims[position % self.claims.len()])
    }

    async fn settle(&mut self, items: &[(Pick, End)]) -> String {
        let mut settlements = Vec::new();
        for (pick, end) in items {
            let Some(claimed) = self.claim_of(*pick).cloned() else { continue };
            let position = self.claims.iter().position(|known| known.claim == claimed.claim);
            self.open.retain(|open| Some(*open) != position);
            settlements.push(self.settlement(&claimed, *end));
        }
        words(&self.store.settle(settlements).await)
    }

    fn settlement(&self, claimed: &Claimed, end: End) -> Settlement {
        let errors = ["order 17 refused", "disk full", "no such host"];
        let error = |class, n: usize| TaskError::new(class, errors[n]);
        let lost = TaskError::new(ErrorClass::WorkerLost, "worker lost");
        let outcome = match end {
            End::Completed => {
                let result = Some(Json::trusted(format!("[{}]", claimed.task.attempt)));
                Outcome::Completed { result, result_dropped_bytes: None }
            }
            End::Dropped => {
                Outcome::Completed { result: None, result_dropped_bytes: Some(300_000) }
            }
            End::Failed { error: n, wish } => Outcome::Failed {
                error: error(ErrorClass::Exit, n),
                permanent: false,
                retry_after: wish.map(|wish| RetryAfter::At(self.now + seconds(wish))),
            },
            End::Hopeless { error: n } => Outcome::Failed {
                error: error(ErrorClass::Permanent, n),
                permanent: true,
                retry_after: None,
            },
            End::TimedOut => Outcome::TimedOut { error: error(ErrorClass::Timeout, 0) },
            End::Cancelled => Outcome::Cancelled,
            End::Lost => Outcome::Lost { error: lost },
            End::Interrupted => Outcome::Interrupted,
            End::Snoozed(wait) => Outcome::Snoozed { at: self.now + seconds(wait) },
            End::Released => Outcome::Released { at: self.now },
        };
        let number = claimed.task.attempt;
        let bytes = format!("output {number}").into_bytes();
        let trace = Trace {
            exit_code: number.is_multiple_of(2).then_some(3),
            http_status: number.is_multiple_of(3).then_some(503),
            output: Output { bytes, dropped: u64::from(number % 2), gap_at: 3 },
        };
        settle(claimed, outcome, trace, &short(), self.now, 0.0)
    }

    async fn reap(&mut self) -> String {
        let lapsed = match self.store.lapsed(self.now, 100).await {
            Ok(lapsed) => lapsed,
            Err(error) => return format!("{error:?}"),
        };
        let mut text = String::new();
        let mut settlements = Vec::new();
        for lapsed in lapsed {
            let ends = if lapsed.draining { End::Interrupted } else { End::Lost };
            settlements.push(self.settlement(&lapsed.claimed, ends));
            writeln!(text, "{} {:?}", lapsed.worker, lapsed.claimed.task)
                .expect("a string takes it");
        }
        text + &words(&self.store.settle(settlements).await)
    }

    async fn set(&mut self, step: &Step) -> String {
        let change = match step {
            Step::Pool { pool, change } => {
                SettingChange::Pool { name: POOLS[*pool].into(), change: change.clone() }
            }
            Step::Limit { kind, rate, concurrency, per_key } => {
                SettingChange::Limits(vec![TypeLimit {
                    kind: KINDS[*kind].into(),
                    rate_limit: rate.map(|rate| RATES[rate].parse().expect("a rate")),
                    concurrency: *concurrency,
                    concurrency_key: None,
                    per_key: *per_key,
                }])
            }
            Step::Freeze(true) => SettingChange::Freeze(Frozen {
                by: "ann".to_owned(),
                at: self.now,
                reason: "audit".to_owned(),
            }),
            _ => SettingChange::Thaw,
        };
        words(&self.store.change_setting(change, None).await)
    }

    async fn stored(&self, number: usize) -> Option<ScheduleState> {
        let stored = self.store.schedule(SCHEDULES[number]).await.expect("schedule");
        stored.map(|due| due.state)
    }

    async fn put_schedule(&mut self, number: usize, outdated: bool, active: bool) -> String {
        let stored = self.stored(number).await;
        let status = if active { ScheduleStatus::Active } else { ScheduleStatus::Paused };
        let (expect, mut state) = if let Some(state) = stored {
            (Expect::Rev(state.rev), ScheduleState { rev: state.rev + 1, ..state })
        } else {
            self.made += 1;
            let uid = Uuid::from_u128(self.made);
            (Expect::Absent, ScheduleState { uid, ..schedule(SCHEDULES[number], 0) })
        };
        state.status = status;
        state.next_due = Some(self.now + seconds(60));
        let expect = match expect {
            Expect::Rev(rev) if outdated => Expect::Rev(rev + 1),
            Expect::Absent if outdated => Expect::Rev(0),
            right => right,
        };
        let uid = state.uid;
        let answer = self.store.put_schedules(vec![(expect, state)]).await;
        if answer.as_ref().is_ok_and(|written| written[0]) {
            self.uids[number] = uid;
        }
        words(&answer)
    }

    async fn fire(&mut self, step: &Step) -> String {
        let Step::Fire { schedule, outdated, manual, again, key, held, cancel_previous } = step
        else {
            unreachable!("a firing")
        };
        let Some(state) = self.stored(*schedule).await else { return "gone".to_owned() };
        if !again {
            self.fired += 1;
        }
        let label = format!("label {}", self.fired);
        let id = self.new_id();
        let origin = Origin {
            schedule_uid: state.uid,
            schedule: state.spec.name.as_str().into(),
            label: label.clone(),
            time: self.now,
        };
        let task = NewTask {
            origin: Some(origin),
            held: *held,
            execution_key: key.map(|key| KEYS[key].into()),
            ..self.plain(id, 0, self.now)
        };
        let mut fired = occurrence(&state, &label, 0, OccurrenceOutcome::Fired);
        fired.time = self.now;
        fired.task_id = Some(id);
        fired.fired_at = Some(self.now);
        let mut after = state.clone();
        after.rev += 1;
        after.cursor = self.now;
        after.next_due = Some(self.now + seconds(60));
        if *manual {
            fired.kind = OccurrenceKind::Manual;
        } else {
            after.balance.expected += 1;
            after.balance.fired += 1;
        }
        let plan = FirePlan {
            expected_rev: if *outdated { state.rev + 1 } else { state.rev },
            state: after,
            occurrences: vec![fired],
            starts: vec![Start { task, label }],
            cancel_previous: *cancel_previous,
        };
        words(&self.store.fire(vec![plan], self.now).await)
    }

    async fn prune(&mut self, age: i64) -> String {
        let age = Duration::from_secs(age.unsigned_abs());
        let retention = Retention {
            completed: age,
            cancelled: age / 2,
            failed: age,
            ledger: Some(age * 3),
            occurrences: age,
            audit: age,
            alerts: age,
        };
        let pruned = self.store.prune(&retention, self.now, 10_000).await;
        words(&pruned)
    }
}

/// An answer, one item a line.
fn words<T: Debug>(answer: &Result<T, matins_core::store::StoreError>) -> String {
    format!("{answer:#?}")
}
