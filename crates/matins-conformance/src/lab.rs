//! A store under test, with a clock that the test turns and one worker that stays alive.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use matins_core::Json;
use matins_core::lifecycle::{Outcome, Settlement, Trace, settle};
use matins_core::page::{Page, PageRequest};
use matins_core::retry::{Backoff, RetryPolicy};
use matins_core::schedule::{
    FirePlan, ManagedBy, Occurrence, OccurrenceKind, OccurrenceOutcome, ScheduleSpec,
    ScheduleState, ScheduleStatus, Start,
};
use matins_core::store::{
    Act, AuditEntry, Cancelled, ClaimRequest, Enqueued, Expect, PoolChange, SettingChange, Settled,
    Store, TaskFilter, TypeLimit, Types, Worker,
};
use matins_core::task::{
    Claimed, ErrorClass, NewTask, Origin, State, Task, TaskError, TaskId, WorkerId,
};
use uuid::Uuid;

/// The lab's clock: seconds from an arbitrary whole hour.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_800_000_000 + seconds)
}

pub fn id(n: u128) -> TaskId {
    TaskId(Uuid::from_u128(n << 64 | n))
}

/// A task of type `sync`, due at 0.
pub fn task(n: u128) -> NewTask {
    let payload = Json::trusted(format!(r#"{{"n":{n}}}"#));
    NewTask { created_by: "test".into(), ..NewTask::new(id(n), "sync", payload, at(0)) }
}

pub fn keyed(n: u128, key: &str) -> NewTask {
    NewTask { execution_key: Some(key.into()), ..task(n) }
}

pub fn due_at(n: u128, seconds: i64) -> NewTask {
    NewTask { run_at: at(seconds), ..task(n) }
}

pub fn of_kind(n: u128, kind: &str) -> NewTask {
    NewTask { kind: kind.into(), ..task(n) }
}

pub fn in_pool(n: u128, pool: &str) -> NewTask {
    NewTask { pool: pool.into(), ..task(n) }
}

pub fn with_concurrency_key(n: u128, key: &str) -> NewTask {
    NewTask { concurrency_key: Some(key.into()), ..task(n) }
}

/// A person's act at that second.
pub fn act(seconds: i64) -> Act {
    Act { who: "ann".to_owned(), reason: Some("because".to_owned()), at: at(seconds) }
}

pub fn done(result: &str) -> Outcome {
    Outcome::Completed { result: Some(Json::string(result)), result_dropped_bytes: None }
}

pub fn failure(message: &str) -> Outcome {
    let error = TaskError::new(ErrorClass::Exit, message);
    Outcome::Failed { error, permanent: false, retry_after: None }
}

pub fn hopeless(message: &str) -> Outcome {
    let error = TaskError::new(ErrorClass::Permanent, message);
    Outcome::Failed { error, permanent: true, retry_after: None }
}

pub fn loss() -> Outcome {
    Outcome::Lost { error: TaskError::new(ErrorClass::WorkerLost, "worker lost") }
}

/// The default policy without jitter: 60, 120, 240 s.
pub fn policy() -> RetryPolicy {
    let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    RetryPolicy { backoff, ..RetryPolicy::default() }
}

pub fn settlement(claimed: &Claimed, outcome: Outcome, seconds: i64) -> Settlement {
    settle(claimed, outcome, Trace::default(), &policy(), at(seconds), 0.0)
}

pub fn worker(name: &str, lease_until: Timestamp) -> Worker {
    Worker {
        id: WorkerId(name.into()),
        node_id: "node".into(),
        started_at: at(0),
        seen_at: at(0),
        lease_until,
        draining: false,
        remote: false,
        pools: vec![("default".into(), 4)],
        types: Types::Any,
    }
}

/// A claim by the lab's own worker: any pool, any type.
pub fn request(max: usize, seconds: i64) -> ClaimRequest {
    ClaimRequest {
        worker: WorkerId("w".into()),
        pool: None,
        types: Types::Any,
        ids: None,
        repeated: false,
        max,
        token: 0x5eed,
        lease_until: None,
        now: at(seconds),
    }
}

pub fn ids(claimed: &[Claimed]) -> Vec<TaskId> {
    claimed.iter().map(|claimed| claimed.task.id).collect()
}

pub fn limit(kind: &str) -> TypeLimit {
    TypeLimit {
        kind: kind.into(),
        rate_limit: None,
        concurrency: None,
        concurrency_key: None,
        per_key: 1,
    }
}

/// An active schedule with `rev` 1, due at that second.
pub fn schedule(name: &str, due: i64) -> ScheduleState {
    ScheduleState {
        uid: Uuid::from_u128(name.bytes().fold(1, |n, byte| n << 8 | u128::from(byte))),
        spec: ScheduleSpec::new(name, "* * * * *", "sync"),
        managed_by: ManagedBy::Api,
        status: ScheduleStatus::Active,
        rev: 1,
        created_at: at(0),
        anchor: at(0),
        cursor: at(0),
        high_water: at(0),
        last_label: None,
        failures_forgiven: 0,
        epoch: 0,
        next_due: Some(at(due)),
        next_fire: Some(at(due)),
        paused_since: None,
        balance: matins_core::schedule::Balance::default(),
        zone_table: "2026a".to_owned(),
    }
}

pub fn origin(state: &ScheduleState, label: &str, seconds: i64) -> Origin {
    Origin {
        schedule_uid: state.uid,
        schedule: state.spec.name.as_str().into(),
        label: label.to_owned(),
        time: at(seconds),
    }
}

/// An occurrence that did what `outcome` says, with no task.
pub fn occurrence(
    state: &ScheduleState,
    label: &str,
    seconds: i64,
    outcome: OccurrenceOutcome,
) -> Occurrence {
    Occurrence {
        schedule_uid: state.uid,
        schedule: state.spec.name.as_str().into(),
        label: label.to_owned(),
        label_to: None,
        count: 1,
        kind: OccurrenceKind::Scheduled,
        time: at(seconds),
        outcome,
        reason: None,
        task_id: None,
        fired_at: (outcome == OccurrenceOutcome::Fired).then(|| at(seconds)),
    }
}

/// A plan that fires `new` for the label of its second, and looks again a minute later.
pub fn plan(state: &ScheduleState, new: NewTask, seconds: i64) -> FirePlan {
    let label = format!("label-{seconds}");
    let task = NewTask { origin: Some(origin(state, &label, seconds)), ..new };
    let mut fired = occurrence(state, &label, seconds, OccurrenceOutcome::Fired);
    fired.task_id = Some(task.id);
    let mut after = state.clone();
    after.rev += 1;
    after.cursor = at(seconds);
    after.high_water = at(seconds);
    after.next_due = Some(at(seconds + 60));
    after.next_fire = after.next_due;
    after.balance.expected += 1;
    after.balance.fired += 1;
    FirePlan {
        expected_rev: state.rev,
        state: after,
        occurrences: vec![fired],
        starts: vec![Start { task, label }],
        cancel_previous: false,
    }
}

pub fn held(new: NewTask) -> NewTask {
    NewTask { held: true, ..new }
}

pub fn first_page(limit: usize) -> PageRequest {
    PageRequest { limit, cursor: None }
}

/// A store under test. Everything of the store can be called on it; what it adds is shorter
/// words for what most contracts do, and it fails loudly where a call should have worked.
#[derive(Clone)]
pub struct Lab(Arc<dyn Store>);

impl Deref for Lab {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Lab {
    /// With one worker, `w`, whose lease stands for a year.
    pub async fn new(store: Arc<dyn Store>) -> Self {
        let year = Duration::from_secs(366 * 86_400);
        store.register(worker("w", at(0) + year)).await.expect("register");
        Self(store)
    }

    /// Enqueues tasks that nothing stands in the way of.
    pub async fn accept(&self, tasks: impl IntoIterator<Item = NewTask>) {
        let tasks: Vec<_> = tasks.into_iter().collect();
        let count = tasks.len();
        let answers = self.enqueue(tasks, at(0)).await.expect("enqueue");
        assert_eq!(answers, vec![Enqueued::Created; count]);
    }

    pub async fn offer(&self, task: NewTask, seconds: i64) -> Enqueued {
        let mut answers = self.enqueue(vec![task], at(seconds)).await.expect("enqueue");
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    pub async fn take(&self, max: usize, seconds: i64) -> Vec<Claimed> {
        self.take_with(request(max, seconds)).await
    }

    pub async fn take_with(&self, request: ClaimRequest) -> Vec<Claimed> {
        self.claim(request).await.expect("claim").claimed
    }

    /// Claims exactly one.
    pub async fn take_one(&self, seconds: i64) -> Claimed {
        let mut claimed = self.take(1, seconds).await;
        assert_eq!(claimed.len(), 1, "nothing to claim at {seconds}");
        claimed.remove(0)
    }

    pub async fn finish(&self, claimed: &Claimed, outcome: Outcome, seconds: i64) -> Settled {
        let item = settlement(claimed, outcome, seconds);
        self.settle(vec![item]).await.expect("settle").remove(0)
    }

    /// Claims what is foremost and ends it, at once.
    pub async fn run_one(&self, outcome: Outcome, seconds: i64) -> Task {
        let claimed = self.take_one(seconds).await;
        self.finish(&claimed, outcome, seconds).await;
        self.see(claimed.task.id).await
    }

    /// A dead letter with that error.
    pub async fn bury(&self, new: NewTask, message: &str, seconds: i64) -> Task {
        let ids = Some(vec![new.id]);
        self.accept([new]).await;
        let claimed = self.take_with(ClaimRequest { ids, ..request(1, seconds) }).await.remove(0);
        let settled = self.finish(&claimed, hopeless(message), seconds).await;
        assert_eq!(settled, Settled::Done(State::Failed));
        self.see(claimed.task.id).await
    }

    pub async fn see(&self, id: TaskId) -> Task {
        self.task(id).await.expect("task").expect("a stored task")
    }

    pub async fn state(&self, id: TaskId) -> State {
        self.see(id).await.state
    }

    pub async fn cancel_one(&self, id: TaskId, seconds: i64) -> Cancelled {
        self.cancel(&[id], &act(seconds)).await.expect("cancel").remove(0)
    }

    pub async fn set_pool(&self, name: &str, change: PoolChange) {
        self.set(SettingChange::Pool { name: name.into(), change }).await;
    }

    pub async fn pause(&self, pool: &str, paused: bool) {
        self.set_pool(pool, PoolChange { paused: Some(paused), ..PoolChange::default() }).await;
    }

    pub async fn set(&self, change: SettingChange) {
        self.change_setting(change, None).await.expect("change_setting");
    }

    pub async fn set_limit(&self, limit: TypeLimit) {
        self.set(SettingChange::Limits(vec![limit])).await;
    }

    pub async fn add_schedule(&self, state: &ScheduleState) {
        let put = self.put_schedules(vec![(Expect::Absent, state.clone())]).await;
        assert_eq!(put.expect("put_schedules"), [true]);
    }

    /// Applies a plan that must be applied, and answers the schedule after it.
    pub async fn fire_one(&self, plan: FirePlan, seconds: i64) -> ScheduleState {
        let after = plan.state.clone();
        assert_eq!(self.fire(vec![plan], at(seconds)).await.expect("fire"), [true]);
        after
    }

    pub async fn all_tasks(&self) -> Vec<Task> {
        self.matching(&TaskFilter::default()).await
    }

    pub async fn matching(&self, filter: &TaskFilter) -> Vec<Task> {
        every(async |page| self.tasks(filter, &page).await.expect("tasks")).await
    }

    pub async fn all_occurrences(&self, schedule: Option<&str>) -> Vec<Occurrence> {
        every(async |page| self.occurrences(schedule, &page).await.expect("occurrences")).await
    }

    pub async fn all_audit(&self) -> Vec<AuditEntry> {
        every(async |page| self.audit(&page).await.expect("audit")).await
    }
}

/// Everything a list has, read page by page.
pub async fn every<T>(read: impl AsyncFn(PageRequest) -> Page<T>) -> Vec<T> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = read(PageRequest { limit: 100, cursor }).await;
        all.extend(page.items);
        let Some(next) = page.next else { return all };
        cursor = Some(next);
    }
}
