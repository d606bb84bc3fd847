//! Handlers on a real store: how they end, what they cannot hold up, what a crash leaves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use matins::rusqlite::{Connection, TransactionBehavior};
use matins::{
    Backoff, Context, Matins, MatinsBuilder, OnStuck, Policy, Pool, State, Task, TaskError, Timeout,
};
use matins_core::task::{AttemptOutcome, ErrorClass};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Work {
    how: String,
}

impl Task for Work {
    const TYPE: &'static str = "work";
}

fn work(how: &str) -> Work {
    Work { how: how.to_owned() }
}

#[derive(Serialize, Deserialize)]
struct Other;

impl Task for Other {
    const TYPE: &'static str = "other";
}

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn at(dir: &Path) -> MatinsBuilder {
    Matins::open(format!("sqlite:{}", dir.join("matins.db").display()))
}

fn quick() -> Policy {
    let backoff = serde_json::from_str::<Backoff>(r#"{"initial": 0.01, "max": 0.1}"#).unwrap();
    Policy {
        backoff: Some(backoff),
        grace: Some(Duration::from_millis(300)),
        timeout: Some(Timeout::After(Duration::from_secs(5))),
        max_retries: Some(2),
        ..Policy::default()
    }
}

async fn does(work: Work, context: Context) -> Result<u32, TaskError> {
    match work.how.as_str() {
        "panics" => panic!("no {}", context.attempt()),
        "fails" => Err(TaskError::retryable("not today")),
        "fails once" if context.attempt() == 1 => Err(TaskError::retryable("not yet")),
        "is hopeless" => Err(TaskError::permanent("never")),
        "sleeps" => {
            tokio::time::sleep(Duration::from_secs(600)).await;
            Ok(0)
        }
        "is polite" => {
            context.cancelled().cancelled().await;
            Err(TaskError::retryable("told to stop"))
        }
        _ => Ok(context.attempt()),
    }
}

async fn until<F: Future<Output = bool>>(holds: impl Fn() -> F) {
    for _ in 0..2_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited 20 s in vain");
}

#[tokio::test]
async fn every_end_is_recorded_as_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let matins = at(dir.path()).handler(does).policy::<Work>(quick()).start().await.unwrap();
    let cases = [
        ("works", State::Completed, 1, None),
        ("fails once", State::Completed, 2, None),
        ("fails", State::Failed, 3, Some(ErrorClass::Error)),
        ("panics", State::Failed, 3, Some(ErrorClass::Panic)),
        ("is hopeless", State::Failed, 1, Some(ErrorClass::Permanent)),
    ];
    for (how, state, attempts, class) in cases {
        let task = matins.enqueue(work(how)).await.unwrap().task;
        let task = matins.client().wait(task.id, LIMIT).await.unwrap();
        assert_eq!((task.state, task.attempt), (state, attempts), "{how}: {task:?}");
        assert_eq!(task.error.map(|error| error.class), class, "{how}");
    }
    matins.shutdown().await;
}

#[tokio::test]
async fn a_time_limit_and_a_cancel_end_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let policy = Policy { max_retries: Some(0), ..quick() };
    let matins = at(dir.path()).handler(does).policy::<Work>(policy).start().await.unwrap();
    for how in ["sleeps", "is polite"] {
        let limit = Timeout::After(Duration::from_millis(200));
        let task = matins.enqueue(work(how)).timeout(limit).await.unwrap().task;
        let task = matins.client().wait(task.id, LIMIT).await.unwrap();
        assert_eq!(task.state, State::Failed);
        assert_eq!(task.error.unwrap().class, ErrorClass::Timeout, "{how}");

        let task = matins.enqueue(work(how)).await.unwrap().task;
        let (client, id) = (matins.client(), task.id);
        until(|| async { client.task(id).await.unwrap().state == State::Running }).await;
        let asked = Instant::now();
        client.cancel(&[id], "test", None).await.unwrap();
        let task = client.wait(id, LIMIT).await.unwrap();
        assert_eq!(task.state, State::Cancelled, "{how}");
        assert!(asked.elapsed() < Duration::from_secs(2), "{how}: {:?}", asked.elapsed());
    }
    matins.shutdown().await;
}

/// Spins without awaiting in every thread of its pool, longer than a lease: the lease is renewed,
/// the other pool works, nothing is taken away, and the slot is shown as stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_spinning_handler_stalls_its_pool_only() {
    let dir = tempfile::tempdir().unwrap();
    let release = Arc::new(AtomicBool::new(false));
    let runs = Arc::new(AtomicU32::new(0));
    let (stop, count) = (release.clone(), runs.clone());
    let spin = move |_: Work, _: Context| {
        let (stop, count) = (stop.clone(), count.clone());
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            while !stop.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            Ok::<_, TaskError>(())
        }
    };
    let matins = at(dir.path())
        .pool(Pool::new("hot", 2).types(["work"]))
        .pool(Pool::new("calm", 2).types(["other"]))
        .handler(spin)
        .handler(|_: Other, _| async { Ok::<_, TaskError>(()) })
        .policy::<Work>(Policy {
            timeout: Some(Timeout::After(Duration::from_secs(2))),
            grace: Some(Duration::from_millis(100)),
            ..quick()
        })
        .lease(Duration::from_secs(2))
        .start()
        .await
        .unwrap();
    let hot = [
        matins.enqueue(work("spin")).await.unwrap().task.id,
        matins.enqueue(work("spin")).await.unwrap().task.id,
    ];
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(6) {
        let asked = Instant::now();
        let task = matins.enqueue(Other).await.unwrap().task;
        let task = matins.client().wait(task.id, LIMIT).await.unwrap();
        assert_eq!(task.state, State::Completed);
        slowest = slowest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(slowest < Duration::from_secs(2), "the calm pool took {slowest:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 2, "a run was taken away and started again");
    let why = matins.client().why(hot[0]).await.unwrap();
    assert_eq!((why.state, why.reason), (State::Running, Some("stuck")));
    release.store(true, Ordering::SeqCst);
    for id in hot {
        // It did come back with a result in the end, and that is what is recorded.
        assert_eq!(matins.client().wait(id, LIMIT).await.unwrap().state, State::Completed);
    }
    matins.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_handler_frees_its_slot_unless_its_task_has_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let release = Arc::new(AtomicBool::new(false));
    let stop = release.clone();
    let matins = at(dir.path())
        .blocking_handler(move |_: Work, _| {
            while !stop.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        })
        .on_stuck::<Work>(OnStuck::Abandon)
        .policy::<Work>(Policy {
            timeout: Some(Timeout::After(Duration::from_millis(200))),
            max_retries: Some(0),
            ..quick()
        })
        .start()
        .await
        .unwrap();
    let keyed = matins.enqueue(work("")).execution_key("k").await.unwrap().task.id;
    let plain = matins.enqueue(work("")).await.unwrap().task.id;
    let plain = matins.client().wait(plain, LIMIT).await.unwrap();
    assert_eq!(plain.error.unwrap().class, ErrorClass::Timeout);
    assert_eq!(matins.client().task(keyed).await.unwrap().state, State::Running);
    release.store(true, Ordering::SeqCst);
    assert_eq!(matins.client().wait(keyed, LIMIT).await.unwrap().state, State::Completed);
    matins.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_is_recovered_at_once_and_a_shutdown_uses_no_retry() {
    let dir = tempfile::tempdir().unwrap();
    let slow = |_: Work, context: Context| async move {
        if context.attempt() < 3 {
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        Ok::<_, TaskError>(context.attempt())
    };
    let start = || at(dir.path()).handler(slow).policy::<Work>(quick()).start();
    let matins = start().await.unwrap();
    let long = Timeout::After(Duration::from_secs(300));
    let id = matins.enqueue(work("")).timeout(long).await.unwrap().task.id;
    let runs = async |matins: &Matins, attempt| {
        let client = matins.client();
        until(|| async {
            let task = client.task(id).await.unwrap();
            task.state == State::Running && task.attempt == attempt
        })
        .await;
    };
    runs(&matins, 1).await;
    // The threads end as they do when the process dies: nothing is told to anybody.
    drop(matins);
    let restarted = Instant::now();
    let matins = start().await.unwrap();
    runs(&matins, 2).await;
    assert!(restarted.elapsed() < Duration::from_secs(2), "{:?}", restarted.elapsed());
    let task = matins.client().task(id).await.unwrap();
    assert_eq!((task.losses, task.retries, task.interruptions), (1, 0, 0));
    // The drain limit is long; end it at once, as the second signal does.
    matins.engine().shutdown_now().await;
    drop(matins);

    let matins = start().await.unwrap();
    let task = matins.client().wait(id, LIMIT).await.unwrap();
    assert_eq!((task.state, task.attempt), (State::Completed, 3));
    assert_eq!((task.losses, task.retries, task.interruptions), (1, 0, 1));
    let outcomes: Vec<_> =
        matins.client().attempts(id).await.unwrap().iter().map(|a| a.outcome.unwrap()).collect();
    let expected = [AttemptOutcome::Lost, AttemptOutcome::Interrupted, AttemptOutcome::Completed];
    assert_eq!(outcomes, expected);
    matins.shutdown().await;
}

#[tokio::test]
async fn a_second_process_on_the_file_is_refused_with_the_firsts_pid() {
    let dir = tempfile::tempdir().unwrap();
    let matins = at(dir.path()).handler(does).start().await.unwrap();
    let Err(error) = at(dir.path()).handler(does).start().await else { panic!("two at once") };
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    matins.shutdown().await;
}

/// Effect and completion commit together: a completion that is rolled back did not happen, and
/// one that is committed is not recorded twice.
#[tokio::test(flavor = "multi_thread")]
async fn completion_in_the_callers_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("matins.db");
    let open = move || {
        let conn = Connection::open(&file).unwrap();
        conn.busy_timeout(Duration::from_secs(10)).unwrap();
        conn
    };
    let connect = open.clone();
    let handler = move |work: Work, context: Context| {
        let mut conn = connect();
        let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute("INSERT INTO effect VALUES (?1)", [context.attempt()])?;
        context.complete_in(&mut tx, &work.how)?;
        // The first time the effect is lost, and the completion with it.
        if context.attempt() == 1 {
            tx.rollback()?;
        } else {
            tx.commit()?;
        }
        Ok(())
    };
    let matins =
        at(dir.path()).blocking_handler(handler).policy::<Work>(quick()).start().await.unwrap();
    open().execute_batch("CREATE TABLE effect (attempt INTEGER)").unwrap();
    let id = matins.enqueue(work("done")).await.unwrap().task.id;
    let task = matins.client().wait(id, LIMIT).await.unwrap();
    assert_eq!((task.state, task.attempt), (State::Completed, 2));
    assert_eq!(task.result.unwrap().as_str(), "\"done\"");
    let effects: Vec<u32> = {
        let conn = open();
        let mut statement = conn.prepare("SELECT attempt FROM effect").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(effects, [2]);
    assert!(!matins.client().metrics().render().contains("matins_fenced_writes_total 1"));
    matins.shutdown().await;
}
