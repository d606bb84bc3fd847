//! What a program can say about a task, a handler and a node, against the SQLite store: each
//! option is told by what becomes of a task that has it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use matins::rusqlite::{Connection, TransactionBehavior};
use matins::testing::VirtualClock;
use matins::{
    Backoff, Clock as _, Context, Matins, MatinsBuilder, OnDuplicate, OpenError, Policy, Pool,
    ScheduleSpec, State, Task, TaskError, TaskId, Timeout,
};
use matins_core::page::PageRequest;
use matins_core::schedule::OccurrenceOutcome;
use matins_core::task::{Attempt, AttemptOutcome, ErrorClass};
use matins_store::SqliteStore;
use serde::{Deserialize, Serialize};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const HOUR: Duration = Duration::from_secs(3_600);

/// Does what its first attempt is told; the second one succeeds with its number.
#[derive(Clone, Serialize, Deserialize)]
enum First {
    Works,
    Fails,
    RetriesIn(Duration),
    SnoozesUntil(Timestamp),
    Sleeps,
}

impl Task for First {
    const TYPE: &'static str = "first";
}

async fn run(first: First, context: Context) -> Result<u32, TaskError> {
    match first {
        _ if context.attempt() > 1 => Ok(context.attempt()),
        First::Works => Ok(1),
        First::Fails => Err(TaskError::retryable("not today")),
        First::RetriesIn(wait) => Err(TaskError::retry_in("not yet", wait)),
        First::SnoozesUntil(at) => Err(TaskError::snooze_until(at)),
        First::Sleeps => {
            tokio::time::sleep(HOUR).await;
            Ok(0)
        }
    }
}

fn at(dir: &Path) -> MatinsBuilder {
    Matins::open(format!("sqlite:{}", dir.join("matins.db").display()))
}

fn backoff(seconds: f64) -> Backoff {
    let text = format!(r#"{{"initial": {seconds}, "max": {seconds}, "jitter": 0}}"#);
    serde_json::from_str(&text).unwrap()
}

async fn started(dir: &Path) -> Matins {
    let policy = Policy { backoff: Some(backoff(0.01)), ..Policy::default() };
    at(dir).handler(run).policy::<First>(policy).start().await.unwrap()
}

async fn until<T, F: Future<Output = Option<T>>>(found: impl Fn() -> F) -> T {
    for _ in 0..2_000 {
        if let Some(found) = found().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited 20 s in vain");
}

/// The first attempt, once it has ended.
async fn first_attempt(matins: &Matins, id: TaskId) -> Attempt {
    until(|| async {
        let attempts = matins.client().attempts(id).await.unwrap();
        attempts.into_iter().next().filter(|attempt| attempt.outcome.is_some())
    })
    .await
}

/// A retry that asks for more than the backoff gets it, to the moment, however long; one that
/// asks for less gets the backoff.
#[tokio::test]
async fn retry_in_waits_for_the_later_of_its_own_time_and_the_backoff() {
    let dir = tempfile::tempdir().unwrap();
    let matins = started(dir.path()).await;
    for (wish, delay, waited) in [
        (Duration::from_secs(90), 0.01, Duration::from_secs(90)),
        (5 * HOUR, 0.01, 5 * HOUR),
        (Duration::from_millis(1), 120.0, Duration::from_secs(120)),
    ] {
        let answer = matins.enqueue(First::RetriesIn(wish)).backoff(backoff(delay)).await;
        let id = answer.unwrap().task.id;
        let ended = first_attempt(&matins, id).await;
        assert_eq!(ended.outcome, Some(AttemptOutcome::Failed));
        assert_eq!(ended.error.unwrap().message, "not yet");
        let task = matins.client().task(id).await.unwrap();
        assert_eq!((task.state, task.retries), (State::Pending, 1));
        let wait = task.run_at.duration_since(ended.finished_at.unwrap());
        let off = (wait - SignedDuration::try_from(waited).unwrap()).abs();
        assert!(off < SignedDuration::from_secs(1), "{wish:?}: {wait}");
    }
    let soon = Duration::from_millis(700);
    let id = matins.enqueue(First::RetriesIn(soon)).await.unwrap().task.id;
    let task = matins.client().wait(id, LIMIT).await.unwrap();
    assert_eq!((task.state, task.attempt, task.retries), (State::Completed, 2, 1));
    let attempts = matins.client().attempts(id).await.unwrap();
    let pause = attempts[1].started_at.duration_since(attempts[0].started_at);
    assert!(pause >= SignedDuration::try_from(soon).unwrap(), "{pause}");
    matins.shutdown().await;
}

#[tokio::test]
async fn a_snooze_runs_again_at_its_time_and_uses_no_retry() {
    let dir = tempfile::tempdir().unwrap();
    let matins = started(dir.path()).await;
    let now = || Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap();
    let soon = now() + SignedDuration::from_millis(700);
    // Not even one that has no retries gives up.
    let answer = matins.enqueue(First::SnoozesUntil(soon)).max_retries(0).await.unwrap();
    let task = matins.client().wait(answer.task.id, LIMIT).await.unwrap();
    assert_eq!((task.state, task.attempt, task.retries), (State::Completed, 2, 0));
    let attempts = matins.client().attempts(task.id).await.unwrap();
    assert_eq!(attempts[0].outcome, Some(AttemptOutcome::Snoozed));
    assert!(attempts[1].started_at >= soon, "{} < {soon}", attempts[1].started_at);

    let later = now() + SignedDuration::from_hours(30);
    let id = matins.enqueue(First::SnoozesUntil(later)).await.unwrap().task.id;
    first_attempt(&matins, id).await;
    let task = matins.client().task(id).await.unwrap();
    assert_eq!((task.state, task.run_at, task.retries), (State::Pending, later, 0));
    matins.shutdown().await;
}

#[tokio::test]
async fn a_batch_has_a_key_for_each_and_each_answer_stands_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let matins = at(dir.path()).start().await.unwrap();
    let key = |n: usize| format!("order-{}", n % 3);
    let batch = matins.enqueue_many(vec![First::Works; 5]).execution_keys(key);
    let answers: Vec<_> = batch.await.unwrap().into_iter().map(Result::unwrap).collect();
    let keys: Vec<_> = answers.iter().map(|a| a.task.execution_key.clone().unwrap()).collect();
    let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
    assert_eq!(keys, ["order-0", "order-1", "order-2", "order-0", "order-1"]);
    let deduplicated: Vec<bool> = answers.iter().map(|answer| answer.deduplicated).collect();
    assert_eq!(deduplicated, [false, false, false, true, true]);
    assert_eq!(answers[3].task.id, answers[0].task.id);

    let batch = matins.enqueue_many(vec![First::Works; 2]);
    let batch = batch.execution_keys(|n| "k".repeat(if n == 0 { 10_000 } else { 1 }));
    let answers = batch.await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap_err().code(), "too_large");
    assert!(!answers[1].as_ref().unwrap().deduplicated);
    matins.shutdown().await;
}

#[tokio::test]
async fn options_reach_the_task() {
    let dir = tempfile::tempdir().unwrap();
    let matins = at(dir.path()).pool(Pool::new("night", 1)).start().await.unwrap();
    let now = matins.client().now();
    let (begin, end) = (now + SignedDuration::from_hours(1), now + SignedDuration::from_hours(2));
    let id = TaskId(uuid::Uuid::new_v4());
    let asked = || {
        let asked = matins.enqueue(First::Works).id(id).run_at(begin).expires_at(end);
        let asked = asked.priority(7).max_retries(9).backoff(backoff(5.0)).pool("night");
        let asked = asked.timeout(Timeout::After(HOUR)).concurrency_key("acme");
        asked.tag("a").tag("b")
    };
    let task = asked().await.unwrap().task;
    assert_eq!((task.id, task.run_at, task.expires_at), (id, begin, Some(end)));
    assert_eq!((task.priority, task.max_retries), (7, Some(9)));
    assert_eq!((task.backoff, &*task.pool), (Some(backoff(5.0)), "night"));
    assert_eq!(task.timeout, Some(Timeout::After(HOUR)));
    assert_eq!(task.concurrency_key.as_deref(), Some("acme"));
    assert_eq!(task.tags, ["a", "b"]);
    assert_eq!(matins.client().task(id).await.unwrap(), task);
    // The same id again is the same request again.
    let again = asked().await.unwrap();
    assert!(again.deduplicated);
    assert_eq!(again.task, task);

    let task = matins.enqueue(First::Works).delay(HOUR).await.unwrap().task;
    let wait = task.run_at.duration_since(task.created_at);
    let off = (wait - SignedDuration::from_hours(1)).abs();
    assert!(off < SignedDuration::from_secs(1), "{wait}");
    matins.shutdown().await;
}

#[tokio::test]
async fn a_duplicate_is_returned_refused_or_replaced_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let matins = at(dir.path()).start().await.unwrap();
    let enqueue = |first| matins.enqueue(first).execution_key("k").delay(HOUR);
    let holder = enqueue(First::Works).await.unwrap().task;
    let returned = enqueue(First::Fails).await.unwrap();
    assert!(returned.deduplicated);
    assert_eq!((returned.task.id, returned.task.payload), (holder.id, holder.payload));
    let refused = enqueue(First::Fails).on_duplicate(OnDuplicate::Reject).await;
    assert_eq!(refused.unwrap_err().code(), "duplicate_key");
    let replaced = enqueue(First::Fails).on_duplicate(OnDuplicate::Replace).await.unwrap();
    assert!(replaced.replaced);
    let task = matins.client().task(holder.id).await.unwrap();
    assert_eq!(task.payload.as_str(), "\"Fails\"");
    matins.shutdown().await;
}

/// In the caller's transaction a task exists if that commits, with the key it was given.
#[tokio::test]
async fn a_task_enqueued_in_a_transaction_shares_its_fate() {
    let dir = tempfile::tempdir().unwrap();
    let matins = started(dir.path()).await;
    let mut conn = Connection::open(dir.path().join("matins.db")).unwrap();
    conn.busy_timeout(Duration::from_secs(10)).unwrap();
    let immediate = TransactionBehavior::Immediate;

    let mut tx = conn.transaction_with_behavior(immediate).unwrap();
    let lost = matins.enqueue_in(&mut tx, First::Works).await.unwrap().task.id;
    tx.rollback().unwrap();
    assert_eq!(matins.client().task(lost).await.unwrap_err().code(), "not_found");

    let mut tx = conn.transaction_with_behavior(immediate).unwrap();
    let keyed = || matins.enqueue(First::Works).execution_key("k");
    let kept = keyed().in_transaction(&mut tx).await.unwrap().task.id;
    let twice = keyed().in_transaction(&mut tx).await.unwrap();
    assert!(twice.deduplicated);
    assert_eq!(twice.task.id, kept);
    tx.commit().unwrap();
    let task = matins.client().wait(kept, LIMIT).await.unwrap();
    assert_eq!((task.state, task.execution_key.as_deref()), (State::Completed, Some("k")));
    matins.shutdown().await;
}

#[derive(Serialize, Deserialize)]
struct Parent;

/// Its own id and state, its key, its fence, the id of the task that it enqueued.
type Told = (uuid::Uuid, String, Option<String>, u64, uuid::Uuid);

impl Task for Parent {
    const TYPE: &'static str = "parent";
}

/// A run knows its task and its claim, and can enqueue more work.
#[tokio::test]
async fn a_run_knows_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let parent = |_: Parent, context: Context| async move {
        let child = context.enqueue(First::Works).delay(HOUR).await?.task.id;
        let own = context.client().task(context.task_id()).await?;
        let key = context.execution_key().map(str::to_owned);
        Ok::<_, TaskError>((context.task_id().0, own.state.as_str(), key, context.fence(), child.0))
    };
    let builder = at(dir.path()).handler(parent).node_id("abbey");
    let matins = builder.start().await.unwrap();
    let mut fences = Vec::new();
    for key in ["one", "two"] {
        let id = matins.enqueue(Parent).execution_key(key).await.unwrap().task.id;
        let task = matins.client().wait(id, LIMIT).await.unwrap();
        let (told, state, given, fence, child): Told = task.result.unwrap().decode().unwrap();
        assert_eq!((told, &*state, given.as_deref()), (id.0, "running", Some(key)));
        let child = matins.client().task(TaskId(child)).await.unwrap();
        assert_eq!((&*child.kind, child.state), ("first", State::Pending));
        let worker = &matins.client().attempts(id).await.unwrap()[0].worker;
        assert!(worker.starts_with("abbey:"), "{worker}");
        fences.push(fence);
    }
    assert!(fences[0] < fences[1], "{fences:?}");
    matins.shutdown().await;
}

/// The program's clock is the engine's: an hour passes when it is told to.
#[tokio::test]
async fn the_clock_can_be_the_programs_own() {
    let dir = tempfile::tempdir().unwrap();
    let clock = VirtualClock::at("2031-05-01T00:00:00Z".parse().unwrap());
    let builder = at(dir.path()).handler(run).clock(Arc::new(clock.clone()));
    let matins = builder.start().await.unwrap();
    let task = matins.enqueue(First::Works).delay(HOUR).await.unwrap().task;
    assert_eq!(task.created_at, clock.now());
    let early = matins.client().wait(task.id, Some(Duration::from_millis(200))).await.unwrap();
    assert_eq!(early.state, State::Pending);
    clock.advance(HOUR);
    let task = matins.client().wait(task.id, LIMIT).await.unwrap();
    assert_eq!((task.state, task.finished_at), (State::Completed, Some(clock.now())));
    matins.shutdown().await;
}

/// What does not end within the limit is given back, and is no failure.
#[tokio::test]
async fn a_shutdown_takes_as_long_as_the_program_allows() {
    let dir = tempfile::tempdir().unwrap();
    let policy = Policy { grace: Some(Duration::from_millis(50)), ..Policy::default() };
    let builder = at(dir.path()).handler(run).policy::<First>(policy);
    let matins = builder.drain_timeout(Duration::from_millis(200)).start().await.unwrap();
    let id = matins.enqueue(First::Sleeps).await.unwrap().task.id;
    let client = matins.client();
    until(|| async {
        let task = client.task(id).await.unwrap();
        (task.state == State::Running).then_some(())
    })
    .await;
    let asked = Instant::now();
    matins.shutdown().await;
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    let matins = started(dir.path()).await;
    let task = matins.client().wait(id, LIMIT).await.unwrap();
    assert_eq!((task.state, task.attempt, task.interruptions), (State::Completed, 2, 1));
    assert_eq!((task.retries, task.losses), (0, 0));
    matins.shutdown().await;
}

/// The program owns its schedules: they are as it says at every start.
#[tokio::test]
async fn a_schedule_of_the_program_fires_and_is_rewritten_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |every: &str| {
        let mut spec = ScheduleSpec::new("tick", every, First::TYPE);
        spec.payload = matins::Json::string("Works");
        spec
    };
    let matins = at(dir.path()).handler(run).schedule(spec("@every 1s")).start().await.unwrap();
    let page = PageRequest { limit: 1, cursor: None };
    let client = matins.client();
    let fired = until(|| async {
        let found = client.occurrences(Some("tick"), &page).await.unwrap().items;
        found.into_iter().find(|one| one.outcome == OccurrenceOutcome::Fired)
    })
    .await;
    let task = client.wait(fired.task_id.unwrap(), LIMIT).await.unwrap();
    assert_eq!(task.state, State::Completed);
    matins.shutdown().await;

    let matins = at(dir.path()).schedule(spec("0 2 * * *")).start().await.unwrap();
    let due = matins.client().schedule("tick").await.unwrap();
    assert_eq!(due.state.spec.schedule, "0 2 * * *");
    matins.shutdown().await;
    let never = at(dir.path()).schedule(spec("0 2 31 2 *")).start().await;
    assert!(matches!(never, Err(OpenError::Schedule(error)) if error.code() == "never_fires"));
}

#[tokio::test]
async fn a_store_that_is_open_already_is_used_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("other.db"), matins_store::Options::default());
    let store: Arc<dyn matins_core::store::Store> = Arc::new(store.unwrap());
    let matins = Matins::with_store(store.clone()).handler(run).start().await.unwrap();
    let id = matins.enqueue(First::Works).await.unwrap().task.id;
    matins.client().wait(id, LIMIT).await.unwrap();
    let task = store.task(id).await.unwrap().unwrap();
    assert_eq!(task.state, State::Completed);
    matins.shutdown().await;
}

#[tokio::test]
async fn what_contradicts_itself_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let refused = async |builder: MatinsBuilder| builder.start().await.err().unwrap();
    let two = at(dir.path()).handler(run).handler(run);
    assert!(matches!(refused(two).await, OpenError::TwoHandlers(kind) if &*kind == "first"));
    let pool = |name: &str| Pool::new(name, 1).types([First::TYPE]);
    let two = at(dir.path()).pool(pool("a")).pool(pool("b"));
    assert!(matches!(refused(two).await, OpenError::TwoPools { .. }));
    let none = Matins::open("mysql:nowhere");
    assert!(matches!(refused(none).await, OpenError::Url { .. }));
}

/// A time limit that the task itself brings ends it, whatever its type would allow.
#[tokio::test]
async fn a_task_can_have_less_time_than_its_type() {
    let dir = tempfile::tempdir().unwrap();
    let policy = Policy { grace: Some(Duration::from_millis(50)), ..Policy::default() };
    let matins = at(dir.path()).handler(run).policy::<First>(policy).start().await.unwrap();
    let limit = Timeout::After(Duration::from_millis(100));
    let asked = matins.enqueue(First::Sleeps).timeout(limit).max_retries(0).await.unwrap();
    let task = matins.client().wait(asked.task.id, LIMIT).await.unwrap();
    assert_eq!(task.error.unwrap().class, ErrorClass::Timeout);
    matins.shutdown().await;
}
