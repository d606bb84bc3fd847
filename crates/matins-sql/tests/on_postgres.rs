//! Statements on a PostgreSQL server.

#[path = "ground/run.rs"]
mod run;

use std::time::{Duration, Instant};

use matins_core::executor::StopReason;
use matins_core::lifecycle::Outcome;
use matins_core::task::ErrorClass;
use matins_runtime::executors::Setting;
use matins_runtime::executors::sql::Connection;
use matins_runtime::rules::Rules;
use matins_testbed::Postgres;
use run::{Task, refused, result, rules};

struct Bed {
    database: String,
    rules: Rules,
}

impl Bed {
    async fn new() -> Self {
        let url = tokio::task::spawn_blocking(|| Postgres::shared().database("template1"));
        let url = url.await.unwrap();
        let database = url.rsplit_once('/').unwrap().1.to_owned();
        let bed = Self { database, rules: on(&url) };
        bed.psql("CREATE TABLE t (n integer UNIQUE)");
        bed
    }

    fn psql(&self, sql: &str) -> String {
        Postgres::shared().sql(&self.database, sql)
    }

    /// Sessions of ours in this database, whatever they do.
    fn sessions(&self) -> String {
        self.psql(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name LIKE 'matins%'",
        )
    }

    async fn wait_for_sessions(&self, expected: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.sessions() != expected {
            assert!(Instant::now() < end, "{} sessions", self.sessions());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn on(url: &str) -> Rules {
    rules(Connection::Postgres(Setting::secret(url)))
}

#[tokio::test]
async fn parameters_take_the_types_that_the_server_finds() {
    let bed = Bed::new().await;
    bed.psql("CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE DOMAIN small AS integer");
    let sql = "SELECT $1::int8 AS a, $2::numeric AS b, $3::text AS c, $4::date AS d, \
               $5::timestamptz AS e, $6::jsonb AS f, $7::int[] AS g, $8::uuid AS h, \
               $9::mood AS i, $10::bytea AS j, $11::boolean AS k, $12::small AS l, \
               $13::text[] AS m, $14::interval AS n, $15::int4 AS o";
    let params = r#"[9223372036854775807, 12345678901234567890.0500, "中\"\u0041", "2026-11-29",
        "2026-11-29T02:00:00+08:00", {"a": [1, null]}, [[1, null], [3, 4]],
        "11111111-2222-3333-4444-555555555555", "sad", "\\x00ff", true, 7, ["a,b", null, "\"\\"],
        "1 day 2.5 s", null]"#;
    let expected = [
        r#"{"rows":[{"a":9223372036854775807,"b":12345678901234567890.0500,"c":"中\"A","#,
        r#""d":"2026-11-29","e":"2026-11-28T18:00:00Z","f":{"a": [1, null]},"#,
        r#""g":[[1,null],[3,4]],"h":"11111111-2222-3333-4444-555555555555","i":"sad","#,
        r#""j":"\\x00ff","k":true,"l":7,"m":["a,b",null,"\"\\"],"n":"P1DT2.5S","o":null}],"#,
        r#""row_count":1}"#,
    ];
    assert_eq!(result(&bed.rules, sql, params).await, expected.concat());
}

#[tokio::test]
async fn values_are_told_as_the_server_tells_them() {
    let bed = Bed::new().await;
    // What the server itself makes of the same value as JSON.
    for value in [
        "0::numeric",
        "-0.0001::numeric",
        "10000::numeric",
        "1e20::numeric",
        "0.00001::numeric",
        "123456789.987654321::numeric",
        "-99999.5::numeric(10,2)",
        "0.1::float4",
        "1e-7::float8",
        "'-32768'::int2",
        "'2000-02-29'::date",
        "'23:59:59.5'::time",
        "'1999-12-31 23:59:59.999999'::timestamp",
        "'{}'::int[]",
        "'{1.5,NULL}'::numeric[]",
        "'x'::char(3)",
        "'a'::\"char\"",
        "'{\"b\": 1.50}'::jsonb",
        "'infinity'::date",
        "NULL::text",
    ] {
        let sql = format!("SELECT {value} AS v, to_json({value})::text AS j");
        let got = result(&bed.rules, &sql, "[]").await;
        let got: serde_json::Value = serde_json::from_str(&got).unwrap();
        let row = &got["rows"][0];
        let json = row["j"].as_str().unwrap_or("null");
        let expected: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(row["v"], expected, "{value}");
    }
    for (value, expected) in [
        ("'NaN'::numeric", r#""NaN""#),
        ("'NaN'::float8", r#""NaN""#),
        ("'-infinity'::timestamptz", r#""-infinity""#),
        ("4294967295::oid", "4294967295"),
        ("1.50::numeric", "1.50"),
        ("100.00::numeric", "100.00"),
        ("pg_notify('x', 'y')", "null"),
    ] {
        let got = result(&bed.rules, &format!("SELECT {value} AS v"), "[]").await;
        assert_eq!(got, format!(r#"{{"rows":[{{"v":{expected}}}],"row_count":1}}"#), "{value}");
    }
}

#[tokio::test]
async fn a_statement_tells_what_it_touched_and_knows_its_run() {
    let bed = Bed::new().await;
    let put = "INSERT INTO t SELECT generate_series(1, $1::int)";
    assert_eq!(result(&bed.rules, put, "[3]").await, r#"{"rows":[],"row_count":3}"#);
    let changed = result(&bed.rules, "UPDATE t SET n = n + 10 RETURNING n", "[]").await;
    assert!(changed.ends_with(r#""row_count":3}"#) && changed.contains(r#"{"n":11}"#), "{changed}");
    assert_eq!(result(&bed.rules, "VACUUM t", "[]").await, r#"{"rows":[],"row_count":0}"#);
    let sql = "SELECT current_setting('matins.fence') AS fence, \
               current_setting('matins.attempt') AS attempt, \
               length(current_setting('matins.task_id')) AS id, \
               current_setting('statement_timeout') AS net";
    let expected = r#"{"rows":[{"fence":"7","attempt":"1","id":36,"net":"75s"}],"row_count":1}"#;
    assert_eq!(result(&bed.rules, sql, "[]").await, expected);
    let pooled = on(&format!("{}?pgbouncer=true", Postgres::shared().url(&bed.database)));
    assert_eq!(result(&pooled, sql, "[]").await, expected);
    assert_eq!(result(&pooled, put, "[2]").await, r#"{"rows":[],"row_count":2}"#);
    assert_eq!(bed.psql("SELECT count(*) FROM t"), "5", "committed behind a pooler too");
    bed.wait_for_sessions("0").await;
}

#[tokio::test]
async fn an_error_says_whether_another_try_may_help() {
    let bed = Bed::new().await;
    bed.psql("INSERT INTO t VALUES (1); CREATE ROLE guest LOGIN");
    for (sql, params, expected) in [
        ("SELEC 1", "[]", "syntax error at or near \"SELEC\" (42601)"),
        ("SELECT * FROM nowhere", "[]", "(42P01)"),
        ("INSERT INTO t VALUES (1)", "[]", "(23505); Key (n)=(1) already exists."),
        ("SELECT $1::int", r#"["x"]"#, "(22P02)"),
        ("SELECT 1/0", "[]", "(22012)"),
        ("DELETE FROM t; DELETE FROM t", "[]", "(42601)"),
        ("SELECT $1::int", "[]", "params: the statement has 1 parameters, 0 given"),
        ("SELECT 1 AS a, 2 AS a", "[]", "two columns are called \"a\""),
        (
            "INSERT INTO t VALUES (5) RETURNING '10.0.0.1'::inet AS a",
            "[]",
            "cast it, as in a::text",
        ),
    ] {
        let (class, permanent, text) = refused(&bed.rules, sql, params).await;
        assert!(class == ErrorClass::Sql && permanent && text.contains(expected), "{sql}: {text}");
    }
    assert_eq!(bed.psql("SELECT count(*) FROM t"), "1", "what was refused has no effect");
    let port = Postgres::shared().port();
    let guest = on(&format!("postgres://guest@127.0.0.1:{port}/{}", bed.database));
    let (_, permanent, text) = refused(&guest, "SELECT * FROM t", "[]").await;
    assert!(permanent && text.contains("(42501)"), "{text}");

    let raise = |state: &str| format!("DO $$ BEGIN RAISE 'x' USING ERRCODE = '{state}'; END $$");
    for state in ["40001", "40P01", "57P01", "P0001"] {
        let (class, permanent, text) = refused(&bed.rules, &raise(state), "[]").await;
        assert!(class == ErrorClass::Sql && !permanent, "{state}: {text}");
    }
    let nobody = on("postgres://ann:secret@127.0.0.1:1/none");
    let (class, permanent, text) = refused(&nobody, "SELECT 1", "[]").await;
    assert!(class == ErrorClass::Network && !permanent && !text.contains("secret"), "{text}");
}

#[tokio::test]
async fn an_answer_above_the_limit_is_told_by_its_size() {
    let mut bed = Bed::new().await;
    bed.rules.limits.result_bytes = 2_000;
    let sql = "SELECT repeat('x', 990) AS x FROM generate_series(1, 1000)";
    let outcome = Task::query(sql, "[]").run(&bed.rules).await;
    let Outcome::Completed { result: None, result_dropped_bytes: Some(size) } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(size, 9 + (1_000 * (990 + 9) - 1) + 19, "as large as it would have been");
}

/// On whatever way a run must end, the server is not left with it.
#[tokio::test]
async fn a_run_that_must_end_is_cancelled_on_the_server() {
    let bed = Bed::new().await;
    for url in ["", "?pgbouncer=true"] {
        let rules = on(&format!("{}{url}", Postgres::shared().url(&bed.database)));
        let reasons =
            [StopReason::Timeout, StopReason::Cancel, StopReason::LeaseLost, StopReason::Shutdown];
        for reason in reasons {
            let sql = "WITH put AS (INSERT INTO t VALUES (1)) SELECT pg_sleep(600)";
            let mut task = Task::query(sql, "[]");
            if reason == StopReason::Timeout {
                task.timeout = Duration::from_millis(1_500);
            }
            let (hand, rules) = (task.hand.clone(), rules.clone());
            let began = Instant::now();
            let running = tokio::spawn(async move { task.run(&rules).await });
            bed.wait_for_sessions("1").await;
            if reason != StopReason::Timeout {
                hand.stop(reason);
            }
            let outcome = running.await.unwrap();
            let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' \
                          AND pid <> pg_backend_pid() AND state = 'active' \
                          AND datname = current_database()";
            assert_eq!(bed.psql(sleeps), "0", "{reason:?}: it goes on");
            match reason {
                StopReason::Timeout => assert!(matches!(outcome, Outcome::TimedOut { .. })),
                StopReason::Cancel => assert!(matches!(outcome, Outcome::Cancelled)),
                StopReason::LeaseLost => assert!(matches!(outcome, Outcome::Lost { .. })),
                StopReason::Shutdown => assert!(matches!(outcome, Outcome::Interrupted)),
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
            bed.wait_for_sessions("0").await;
        }
    }
    assert_eq!(bed.psql("SELECT count(*) FROM t"), "0");
}

/// Nobody waits for the answer any more: the engine was dropped.
#[tokio::test]
async fn a_run_that_is_dropped_closes_its_session() {
    let bed = Bed::new().await;
    let rules = bed.rules.clone();
    let task = Task::query("SELECT pg_sleep(600)", "[]");
    let running = tokio::spawn(async move { task.run(&rules).await });
    bed.wait_for_sessions("1").await;
    running.abort();
    // The server looks every 5 s whether anybody is there.
    bed.wait_for_sessions("0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_midway_is_a_failure_that_passes() {
    let server = Postgres::start(&[]);
    let rules = on(&server.url("postgres"));
    let task = Task::query("SELECT pg_sleep(600)", "[]");
    let ran = rules.clone();
    let running = tokio::spawn(async move { task.run(&ran).await });
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'";
    let end = Instant::now() + Duration::from_secs(30);
    while server.sql("postgres", asleep) != "1" {
        assert!(Instant::now() < end, "it never began");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.stop("immediate");
    let Outcome::Failed { permanent: false, error, .. } = running.await.unwrap() else { panic!() };
    assert!(matches!(error.class, ErrorClass::Network | ErrorClass::Sql), "{error:?}");
    let (class, permanent, _) = refused(&rules, "SELECT 1", "[]").await;
    assert!(class == ErrorClass::Network && !permanent);
    server.start_again();
    assert_eq!(result(&rules, "SELECT 1 AS a", "[]").await, r#"{"rows":[{"a":1}],"row_count":1}"#);
}
