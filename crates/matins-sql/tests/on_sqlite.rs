//! Statements on a SQLite file.

#[path = "ground/run.rs"]
mod run;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use matins_core::executor::StopReason;
use matins_core::lifecycle::Outcome;
use matins_core::task::ErrorClass;
use matins_runtime::executors::sql::{Connection, SqlConfig};
use matins_runtime::rules::{AllowCommands, Rules, TypeExecutor, TypeRule};
use run::{Hand, TIME, Task, refused, result, rules};

const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                       INSERT INTO t SELECT i FROM n";

struct Bed {
    _dir: tempfile::TempDir,
    file: PathBuf,
    rules: Rules,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shop.db");
        let connection = open(&file);
        connection.execute_batch("CREATE TABLE t (n UNIQUE)").unwrap();
        let rules = rules(Connection::Sqlite(file.clone()));
        Self { _dir: dir, file, rules }
    }

    fn count(&self) -> i64 {
        let sql = "SELECT count(*) FROM t";
        open(&self.file).query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

fn open(file: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(file).unwrap()
}

fn with_type(mut rules: Rules, sql: &str, params: Option<&[&str]>) -> Rules {
    let params = params.map(|list| list.iter().map(|pointer| (*pointer).to_owned()).collect());
    let config = SqlConfig { connection: "db".into(), sql: sql.to_owned(), params };
    rules.types.insert("typed".into(), TypeRule::new(TypeExecutor::Sql(config)));
    rules
}

#[tokio::test]
async fn parameters_and_rows_keep_what_they_are() {
    let bed = Bed::new();
    let sql = "SELECT ?1 AS a, ?2 AS b, ?3 AS c, ?4 AS d, ?5 AS e, ?6 AS f, x'00ff' AS g";
    let params = r#"[9223372036854775807, 1.5, "中\"", null, true, {"k": [1]}]"#;
    let expected = r#"{"rows":[{"a":9223372036854775807,"b":1.5,"c":"中\"","d":null,"e":1,"#;
    let expected = format!(r#"{expected}"f":"{{\"k\": [1]}}","g":"\\x00ff"}}],"row_count":1}}"#);
    assert_eq!(result(&bed.rules, sql, params).await, expected);
    let put = result(&bed.rules, "INSERT INTO t VALUES (?1), (?2) RETURNING n", "[1, 2]").await;
    assert_eq!(put, r#"{"rows":[{"n":1},{"n":2}],"row_count":2}"#);
    let gone = result(&bed.rules, "DELETE FROM t WHERE n < ?", "[9]").await;
    assert_eq!(gone, r#"{"rows":[],"row_count":2}"#);
    let typed = with_type(bed.rules.clone(), "INSERT INTO t VALUES (?1)", Some(&["/order/id"]));
    let payload = r#"{"order": {"id": 7}}"#.to_owned();
    let task = Task { kind: "typed", payload, timeout: TIME, hand: Hand::new() };
    assert!(matches!(task.run(&typed).await, Outcome::Completed { .. }));
    assert_eq!(bed.count(), 1);
}

#[tokio::test]
async fn what_no_retry_helps_is_told_apart() {
    let bed = Bed::new();
    open(&bed.file).execute_batch("INSERT INTO t VALUES (1)").unwrap();
    for (sql, params, expected) in [
        ("SELEC 1", "[]", "syntax error"),
        ("SELECT * FROM nowhere", "[]", "no such table"),
        ("INSERT INTO t VALUES (1)", "[]", "UNIQUE constraint failed"),
        ("SELECT ?1, ?2", "[1]", "params: the statement has 2 parameters, 1 given"),
        ("SELECT 1 AS a, 2 AS a", "[]", "two columns are called \"a\""),
        ("DELETE FROM t; DELETE FROM t", "[]", "Multiple statements"),
        ("SELECT ?", "[9223372036854775808]", "params[0]: is beyond the 64 bits"),
    ] {
        let (class, permanent, text) = refused(&bed.rules, sql, params).await;
        assert!(class == ErrorClass::Sql && permanent && text.contains(expected), "{sql}: {text}");
    }
    assert_eq!(bed.count(), 1);
    let nowhere = rules(Connection::Sqlite("/no/such/folder/x.db".into()));
    let (_, permanent, text) = refused(&nowhere, "SELECT 1", "[]").await;
    assert!(!permanent && text.contains("unable to open"), "{text}");
    let elsewhere = Bed::new();
    std::fs::remove_file(&elsewhere.file).unwrap();
    refused(&elsewhere.rules, "SELECT 1", "[]").await;
    assert!(!elsewhere.file.exists(), "a wrong path must not become an empty database");
}

#[tokio::test]
async fn a_payload_names_a_connection_of_the_file() {
    let bed = Bed::new();
    let payload = r#"{"connection": "other", "sql": "SELECT 1"}"#.to_owned();
    let task = Task { kind: "db_query", payload, timeout: TIME, hand: Hand::new() };
    let Outcome::Failed { error, permanent: true, .. } = task.run(&bed.rules).await else {
        panic!()
    };
    assert!(error.message.contains("\"other\" is not among the connections"), "{error:?}");
    assert!(error.message.ends_with(": db"), "{error:?}");
    let none = Rules { allow_commands: AllowCommands::None, ..bed.rules.clone() };
    assert!(matins_sql::executors(&none).unwrap().is_empty(), "not unless it is allowed");
    let mut lost = with_type(bed.rules.clone(), "SELECT 1", None);
    lost.connections.clear();
    let Err(error) = matins_sql::executors(&lost) else { panic!("no such connection") };
    assert!(error.to_string().contains("tasks.typed.connection: db"), "{error}");
}

#[tokio::test]
async fn an_answer_above_the_limit_is_told_by_its_size() {
    let mut bed = Bed::new();
    bed.rules.limits.result_bytes = 2_000;
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) \
               SELECT i FROM n";
    let outcome = Task::query(sql, "[]").run(&bed.rules).await;
    let Outcome::Completed { result: None, result_dropped_bytes: Some(size) } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(size, 9 + (100_000 * 7 - 1) + 488_895 + 21, "as large as it would have been");
}

#[tokio::test]
async fn a_run_that_must_end_is_interrupted_and_leaves_nothing() {
    let bed = Bed::new();
    for reason in [StopReason::Timeout, StopReason::Cancel, StopReason::LeaseLost] {
        let mut task = Task::query(ENDLESS, "[]");
        if reason == StopReason::Timeout {
            task.timeout = Duration::from_millis(300);
        } else {
            let hand = task.hand.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                hand.stop(reason);
            });
        }
        let began = Instant::now();
        let outcome = task.run(&bed.rules).await;
        match reason {
            StopReason::Timeout => assert!(matches!(outcome, Outcome::TimedOut { .. })),
            StopReason::Cancel => assert!(matches!(outcome, Outcome::Cancelled)),
            _ => assert!(matches!(outcome, Outcome::Lost { .. })),
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        // Nobody holds the file any more, and nothing of the statement is left.
        let conn = open(&bed.file);
        conn.execute_batch("BEGIN EXCLUSIVE; ROLLBACK").unwrap();
        assert_eq!(bed.count(), 0);
    }
}

#[tokio::test]
async fn a_file_that_somebody_else_writes_to_is_waited_for() {
    let bed = Bed::new();
    let other = open(&bed.file);
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let task = Task::query("INSERT INTO t VALUES (1)", "[]");
    let hand = task.hand.clone();
    let rules = bed.rules.clone();
    let waiting = tokio::spawn(async move { task.run(&rules).await });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    other.execute_batch("COMMIT").unwrap();
    assert!(matches!(waiting.await.unwrap(), Outcome::Completed { .. }));
    // And one that waits can be told to end.
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    drop(hand);
    let task = Task::query("INSERT INTO t VALUES (2)", "[]");
    task.hand.stop(StopReason::Cancel);
    assert_eq!(task.run(&bed.rules).await, Outcome::Cancelled);
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(bed.count(), 1);
}
