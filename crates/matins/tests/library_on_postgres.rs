//! The library on PostgreSQL: effect and completion in the caller's own transaction, counted by
//! the table of effects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use matins::tokio_postgres::{Client, NoTls};
use matins::{Backoff, Context, Matins, MatinsBuilder, Policy, State, Task, TaskError};
use matins_core::store::Store;
use matins_core::task::{AttemptOutcome, ErrorClass};
use matins_store::PostgresStore;
use matins_store::postgres::Options;
use matins_testbed::Postgres;
use serde::{Deserialize, Serialize};

/// An effect in the same database, and what goes wrong with it.
#[derive(Serialize, Deserialize)]
struct Work {
    url: String,
    how: String,
}

impl Task for Work {
    const TYPE: &'static str = "work";
}

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

async fn connect(url: &str) -> Client {
    let (client, connection) = matins::tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn bed() -> (String, Client) {
    let url = tokio::task::spawn_blocking(|| Postgres::shared().database("template1"));
    let url = url.await.unwrap();
    let client = connect(&url).await;
    client.batch_execute("CREATE TABLE effect (task uuid, attempt integer)").await.unwrap();
    (url, client)
}

fn at(url: &str) -> MatinsBuilder {
    let backoff = serde_json::from_str::<Backoff>(r#"{"initial": 0.01, "max": 0.1}"#).unwrap();
    let policy = Policy { backoff: Some(backoff), max_retries: Some(2), ..Policy::default() };
    Matins::open(url).policy::<Work>(policy).handler(does)
}

async fn effects(client: &Client) -> Vec<i32> {
    let rows = client.query("SELECT attempt FROM effect ORDER BY attempt", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn does(work: Work, context: Context) -> Result<(), TaskError> {
    let mut client = connect(&work.url).await;
    let mut tx = client.transaction().await?;
    let effect = "INSERT INTO effect (task, attempt) VALUES ($1, $2)";
    tx.execute(effect, &[&context.task_id().0, &context.attempt().cast_signed()]).await?;
    let first = context.attempt() == 1;
    assert!(work.how != "panics before" || !first, "before the completion");
    context.complete_in(&mut tx, &work.how).await?;
    match work.how.as_str() {
        "panics between" if first => panic!("between completion and commit"),
        "rolls back" if first => tx.rollback().await?,
        "forgets" if first => drop(tx),
        "fails between" if first => return Err(TaskError::retryable("not yet")),
        _ => tx.commit().await?,
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn effect_and_completion_commit_together_or_not_at_all() {
    let cases = [
        ("commits", vec![AttemptOutcome::Completed]),
        ("rolls back", vec![AttemptOutcome::Failed, AttemptOutcome::Completed]),
        ("forgets", vec![AttemptOutcome::Failed, AttemptOutcome::Completed]),
        ("fails between", vec![AttemptOutcome::Failed, AttemptOutcome::Completed]),
        ("panics before", vec![AttemptOutcome::Failed, AttemptOutcome::Completed]),
        ("panics between", vec![AttemptOutcome::Failed, AttemptOutcome::Completed]),
    ];
    let (url, client) = bed().await;
    let matins = at(&url).start().await.unwrap();
    for (how, expected) in cases {
        client.batch_execute("TRUNCATE effect").await.unwrap();
        let work = Work { url: url.clone(), how: how.to_owned() };
        let id = matins.enqueue(work).await.unwrap().task.id;
        let task = matins.client().wait(id, LIMIT).await.unwrap();
        assert_eq!(task.state, State::Completed, "{how}: {:?}", task.error);
        assert_eq!(task.result.unwrap().as_str(), format!("{how:?}"));
        let attempts = matins.client().attempts(id).await.unwrap();
        let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome.unwrap()).collect();
        assert_eq!(outcomes, expected, "{how}");
        if how.starts_with("panics") {
            let error = attempts[0].error.as_ref().unwrap();
            assert_eq!(error.class, ErrorClass::Panic, "{how}");
        }
        assert_eq!(effects(&client).await, [expected.len() as i32], "{how}");
    }
    matins.shutdown().await;
}

static STALE_SAID: AtomicU32 = AtomicU32::new(0);

/// The first run loses its claim while it works; a peer takes the task over meanwhile.
async fn is_overtaken(work: Work, context: Context) -> Result<(), TaskError> {
    let mut client = connect(&work.url).await;
    if context.attempt() == 1 {
        // What a peer does to a worker whose lease has lapsed.
        let gone = "DELETE FROM matins.running WHERE id = $1";
        client.execute(gone, &[&context.task_id().0]).await?;
    }
    let mut tx = client.transaction().await?;
    let effect = "INSERT INTO effect (task, attempt) VALUES ($1, $2)";
    tx.execute(effect, &[&context.task_id().0, &context.attempt().cast_signed()]).await?;
    let completed = context.complete_in(&mut tx, &"done").await;
    assert!(completed.unwrap_err().to_string().contains("lost its claim"));
    // A handler that does not care: the effect must not be kept all the same.
    let _ = tx.execute(effect, &[&context.task_id().0, &-1]).await;
    let _ = tx.commit().await;
    STALE_SAID.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lost_its_claim_keeps_no_effect_even_if_it_commits() {
    let (url, client) = bed().await;
    let matins = Matins::open(&url).handler(is_overtaken).start().await.unwrap();
    let work = Work { url: url.clone(), how: String::new() };
    matins.enqueue(work).await.unwrap();
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    while STALE_SAID.load(Ordering::SeqCst) == 0 {
        assert!(tokio::time::Instant::now() < end, "it never ran");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(effects(&client).await, Vec::<i32>::new());
    matins.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_accepted_with_the_callers_transaction_or_not_at_all() {
    let (url, mut client) = bed().await;
    let matins = at(&url).start().await.unwrap();
    let work = || Work { url: url.clone(), how: "commits".to_owned() };
    let mut tx = client.transaction().await.unwrap();
    let lost = matins.enqueue_in(&mut tx, work()).await.unwrap().task.id;
    tx.rollback().await.unwrap();
    assert!(matins.client().task(lost).await.is_err());

    let mut tx = client.transaction().await.unwrap();
    tx.batch_execute("CREATE TABLE orders (id integer); INSERT INTO orders VALUES (1)")
        .await
        .unwrap();
    let keyed = matins.enqueue(work()).execution_key("order-1");
    let kept = keyed.in_transaction(&mut tx).await.unwrap();
    assert!(!kept.deduplicated);
    let again = matins.enqueue(work()).execution_key("order-1");
    let again = again.in_transaction(&mut tx).await.unwrap();
    assert!(again.deduplicated && again.task.id == kept.task.id);
    assert!(matins.client().task(kept.task.id).await.is_err(), "not before the commit");
    tx.commit().await.unwrap();
    let done = matins.client().wait(kept.task.id, LIMIT).await.unwrap();
    assert_eq!(done.state, State::Completed);
    assert_eq!(effects(&client).await, [1]);
    matins.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_programs_on_one_database_share_the_work() {
    let (url, client) = bed().await;
    let (a, b) = (at(&url).start().await.unwrap(), at(&url).start().await.unwrap());
    let work = || Work { url: url.clone(), how: "commits".to_owned() };
    let mut ids = Vec::new();
    for answer in a.enqueue_many((0..40).map(|_| work())).await.unwrap() {
        ids.push(answer.unwrap().task.id);
    }
    for id in ids {
        assert_eq!(b.client().wait(id, LIMIT).await.unwrap().state, State::Completed);
    }
    assert_eq!(effects(&client).await, vec![1; 40], "once each");
    let said = client.query("SELECT node_id FROM matins.worker", &[]).await.unwrap();
    let names: Vec<String> = said.iter().map(|row| row.get(0)).collect();
    assert!(names.len() == 2 && names[0] != names[1], "{names:?}");
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn a_store_that_fails_at_the_start_is_an_error_and_no_panic() {
    let (url, _client) = bed().await;
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    store.close().await.unwrap();
    let Err(error) = Matins::with_store(store).handler(does).start().await else { panic!() };
    assert!(error.to_string().contains("the store is closed"), "{error}");
}

#[tokio::test]
async fn an_address_that_cannot_be_used_is_refused_without_its_password() {
    for url in ["postgres://ann:secret@127.0.0.1:1/none", "postgress://ann:secret@h/d"] {
        let Err(error) = Matins::open(url).start().await else { panic!("{url}") };
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
