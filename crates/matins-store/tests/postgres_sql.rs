//! `matins.enqueue` and `matins.complete`, from psql, inside transactions of its own.

#![cfg(feature = "postgres")]

#[path = "ground/database.rs"]
mod database;

use jiff::Timestamp;
use matins_conformance::lab;
use matins_core::lifecycle::{Trace, settle};
use matins_core::store::{
    Queue as _, Records as _, SettingChange, Settled, TypeLimit, Types, Worker,
};
use matins_core::task::{Claimed, State, Task, TaskId};
use matins_store::PostgresStore;
use matins_store::postgres::Options;
use matins_testbed::Postgres;
use uuid::Uuid;

struct Bed {
    store: PostgresStore,
    database: String,
}

impl Bed {
    async fn new() -> Self {
        let url = database::new_database().await;
        let store = PostgresStore::open(&url, Options::default()).await.unwrap();
        let database = url.rsplit_once('/').unwrap().1.to_owned();
        let bed = Self { store, database };
        bed.psql("CREATE TABLE orders (id integer)").unwrap();
        bed
    }

    /// `Err` is what the server says: severity, SQLSTATE, text, hint.
    fn psql(&self, statements: &str) -> Result<String, String> {
        Postgres::shared().try_sql(&self.database, statements)
    }

    fn orders(&self) -> String {
        self.psql("SELECT count(*) FROM orders").unwrap()
    }

    fn enqueue(&self, arguments: &str) -> TaskId {
        let said = self.psql(&format!("SELECT matins.enqueue({arguments})"));
        TaskId(said.unwrap().parse::<Uuid>().unwrap())
    }

    async fn task(&self, id: TaskId) -> Task {
        self.store.task(id).await.unwrap().expect("it is there")
    }

    async fn claim(&self) -> Claimed {
        let now = Timestamp::now();
        let worker = Worker {
            started_at: now,
            seen_at: now,
            ..lab::worker("w", now + std::time::Duration::from_secs(60))
        };
        self.store.register(worker.clone()).await.unwrap();
        let request = matins_core::store::ClaimRequest {
            worker: worker.id,
            types: Types::Any,
            now,
            ..lab::request(1, 0)
        };
        self.store.claim(request).await.unwrap().claimed.pop().expect("a task is due")
    }

    async fn assert_sound(&self) {
        assert_eq!(self.store.check_invariants().await.unwrap(), Vec::<String>::new());
    }
}

fn complete(claimed: &Claimed, result: &str) -> String {
    let (id, fence) = (claimed.task.id, claimed.claim.fence);
    format!("SELECT matins.complete('{id}', {fence}, {result})")
}

#[tokio::test]
async fn a_task_is_accepted_when_the_transaction_commits() {
    let bed = Bed::new().await;
    for end in ["ROLLBACK", "COMMIT"] {
        let script = format!(
            "BEGIN; INSERT INTO orders VALUES (1);
             SELECT matins.enqueue('ship', '{{\"order\": 1}}', execution_key => 'order-1'); {end}"
        );
        let id: Uuid = bed.psql(&script).unwrap().parse().unwrap();
        let stored = bed.store.task(TaskId(id)).await.unwrap();
        assert_eq!(stored.is_some(), end == "COMMIT");
        assert_eq!(bed.orders(), if end == "COMMIT" { "1" } else { "0" });
    }
    bed.assert_sound().await;
}

#[tokio::test]
async fn every_argument_arrives() {
    let bed = Bed::new().await;
    let id = bed.enqueue(
        r#"'ship', '{"n": 12345678901234567890123, "z": "\u0000\ud800", "a": [1.50]}',
           run_at => '2030-01-02T03:04:05.000006Z', pool => 'io', priority => -7,
           expires_at => '2031-01-01Z', max_retries => 9, timeout => '90 s',
           concurrency_key => 'c', tags => '{x,y z}', id => '11111111-2222-3333-4444-555555555555'"#,
    );
    let task = bed.task(id).await;
    assert_eq!(id.to_string(), "11111111-2222-3333-4444-555555555555");
    let payload = r#"{"n": 12345678901234567890123, "z": "\u0000\ud800", "a": [1.50]}"#;
    assert_eq!(task.payload.as_str(), payload, "byte for byte");
    assert_eq!((&*task.kind, &*task.pool, task.priority), ("ship", "io", -7));
    assert_eq!(task.run_at.to_string(), "2030-01-02T03:04:05.000006Z");
    assert_eq!(task.expires_at.unwrap().to_string(), "2031-01-01T00:00:00Z");
    assert_eq!((task.max_retries, task.concurrency_key.as_deref()), (Some(9), Some("c")));
    assert_eq!(task.timeout.unwrap().limit(), Some(std::time::Duration::from_secs(90)));
    assert_eq!(task.tags, ["x", "y z"]);
    assert_eq!(&*task.created_by, "sql:postgres");
    bed.assert_sound().await;
}

#[tokio::test]
async fn a_key_that_is_taken_answers_its_task() {
    let bed = Bed::new().await;
    let first = bed.enqueue("'ship', '1', 'k'");
    assert_eq!(bed.enqueue("'ship', '2', 'k'"), first);
    assert_eq!(bed.task(first).await.payload.as_str(), "1");
    assert_eq!(bed.enqueue("'ship', '3', 'k', on_duplicate => 'replace'"), first);
    assert_eq!(bed.task(first).await.payload.as_str(), "3");
    let said = bed.psql("SELECT matins.enqueue('ship', '4', 'k', on_duplicate => 'reject')");
    let said = said.unwrap_err();
    assert!(said.contains("23505: execution_key: k is taken by task"), "{said}");
    assert_ne!(bed.enqueue("'other', '4', 'k'"), first, "a key belongs to its type");
    let own = "'ship', id => '11111111-2222-3333-4444-555555555555'";
    assert_eq!(bed.enqueue(own), bed.enqueue(own), "the same id again is the same request again");
    bed.assert_sound().await;
}

#[tokio::test]
async fn what_cannot_be_accepted_is_refused_by_the_name_of_its_field() {
    let bed = Bed::new().await;
    let limit = |name: &str, size| SettingChange::Sizes([(name.into(), size)].into());
    bed.store.change_setting(limit("payload_bytes", 2_000), None).await.unwrap();
    bed.store.change_setting(limit("key_bytes", 20), None).await.unwrap();
    let pointer = TypeLimit { concurrency_key: Some("/a~1b/c".into()), ..lab::limit("keyed") };
    bed.store.change_setting(SettingChange::Limits(vec![pointer]), None).await.unwrap();
    let cases = [
        ("''", "22023: type: must not be empty"),
        ("NULL", "22023: type: must not be empty"),
        ("repeat('t', 201)", "22023: type: is 201 bytes long"),
        ("E'a\\nb'", "22023: type: must not contain control characters"),
        ("' a'", "22023: type: must not begin or end with white space"),
        ("'t', pool => ''", "22023: pool: must not be empty"),
        ("'t', '{\"a\": }'", "22P02: invalid input syntax for type json"),
        ("'t', to_json(repeat('x', 1999))", "22023: payload: is 2001 bytes long; the limit"),
        ("'t', execution_key => ''", "22023: execution_key: must not be empty"),
        ("'t', execution_key => repeat('k', 21)", "22023: execution_key: is 21 bytes long"),
        ("'t', concurrency_key => repeat('中', 7)", "22023: concurrency_key: is 21 bytes long"),
        (
            "'keyed', json_build_object('a/b', json_build_object('c', repeat('k', 21)))",
            "22023: payload/a~1b/c: is 21 bytes long",
        ),
        ("'t', priority => 101", "22023: priority: expected -100 to 100, got 101"),
        ("'t', priority => NULL", "22023: priority: expected -100 to 100, got NULL"),
        ("'t', max_retries => -1", "22023: max_retries: expected 0 to 1000000, got -1"),
        ("'t', timeout => '0'", "22023: timeout: expected more than 0"),
        ("'t', run_at => 'infinity'", "22023: run_at: expected a finite instant"),
        ("'t', run_at => '10000-01-01Z'", "22023: run_at: expected a year from 1 to 9999, got"),
        (
            "'t', run_at => '0044-03-15 00:00Z BC'",
            "22023: run_at: expected a year from 1 to 9999, got",
        ),
        ("'t', expires_at => '294276-01-01Z'", "22023: expires_at: expected a year from 1 to"),
        ("'t', timeout => '1000000 years'", "22023: timeout: expected at most 100 years"),
        (
            "'keyed', '{\"a/b\": {\"c\": \"\\u0000\"}}'",
            "22023: payload: holds U+0000, beside which no key can be found in SQL",
        ),
        ("'t', expires_at => 'infinity'", "22023: expires_at: expected a finite instant"),
        ("'t', expires_at => '2020-01-01Z'", "22023: expires_at: must lie after run_at"),
        ("'t', on_duplicate => 'ignore'", "22023: on_duplicate: expected return, reject or"),
        ("'t', tags => '{a,\"\"}'", "22023: tags[1]: must not be empty"),
        ("'t', tags => array_fill('a'::text, '{33}')", "22023: tags: at most 32, got 33"),
        ("'t', execution_key => 'k', id => gen_random_uuid()", "22023: id: cannot be combined"),
        ("'t', id => 'no uuid'", "22P02: invalid input syntax for type uuid"),
        ("'t', prority => 1", "42883: function matins.enqueue(unknown, prority => integer)"),
        ("payload => '1'", "42883: function matins.enqueue(payload =>"),
    ];
    for (arguments, expected) in cases {
        let said = bed.psql(&format!("SELECT matins.enqueue({arguments})"));
        let said = said.expect_err(arguments);
        assert!(said.contains(expected), "{arguments}: {said}");
    }
    let said = bed.psql("SELECT matins.enqueue('t', to_json(repeat('x', 1999)))").unwrap_err();
    assert!(said.contains("limits.payload_bytes in matins.yaml"), "{said}");
    assert_eq!(bed.psql("SELECT count(*) FROM matins.task").unwrap(), "0");
}

#[tokio::test]
async fn types_go_where_the_files_of_the_servers_put_them() {
    let bed = Bed::new().await;
    let route = SettingChange::Routes([("report".into(), Some("cpu".into()))].into());
    bed.store.change_setting(route, None).await.unwrap();
    let pointer = TypeLimit { concurrency_key: Some("/a/1".into()), ..lab::limit("report") };
    bed.store.change_setting(SettingChange::Limits(vec![pointer]), None).await.unwrap();
    let pool = async |arguments| bed.task(bed.enqueue(arguments)).await.pool.to_string();
    assert_eq!(pool("'report'").await, "cpu");
    assert_eq!(pool("'report', pool => 'io'").await, "io");
    assert_eq!(pool("'other'").await, "default");
    let key = async |payload: &str| {
        let id = bed.enqueue(&format!("'report', '{payload}'"));
        bed.task(id).await.concurrency_key.map(|key| key.to_string())
    };
    assert_eq!(key(r#"{"a": [0, "x"]}"#).await.as_deref(), Some("x"));
    assert_eq!(key(r#"{"a": [0, 1.50]}"#).await.as_deref(), Some("1.50"));
    assert_eq!(key(r#"{"a": {"1": true}}"#).await.as_deref(), Some("true"));
    for nothing in [r#"{"a": [0, {"b": 1}]}"#, r#"{"a": [0, null]}"#, r#"{"a": [0, ""]}"#, "7"] {
        assert_eq!(key(nothing).await, None, "{nothing}");
    }
    bed.assert_sound().await;
}

#[tokio::test]
async fn effect_and_completion_commit_together_while_the_claim_stands() {
    let bed = Bed::new().await;
    let id = bed.enqueue("'ship', '1', 'order-1'");
    let claimed = bed.claim().await;
    let both = |end: &str| {
        let complete = complete(&claimed, r#"'{"sent": true}'"#);
        bed.psql(&format!("BEGIN; INSERT INTO orders VALUES (1); {complete}; {end}"))
    };
    both("ROLLBACK").unwrap();
    assert_eq!((bed.task(id).await.state, bed.orders()), (State::Running, "0".to_owned()));
    both("COMMIT").unwrap();
    let task = bed.task(id).await;
    assert_eq!((task.state, task.attempt, bed.orders()), (State::Completed, 1, "1".to_owned()));
    assert_eq!(task.result.unwrap().as_str(), r#"{"sent": true}"#);
    // The same once more, and whoever ran it: refused, and no effect of it is kept.
    let said = both("COMMIT").unwrap_err();
    assert!(said.contains("MT001: task_id: the claim of"), "{said}");
    assert!(said.contains("roll back"), "{said}");
    assert_eq!(bed.orders(), "1");
    let now = Timestamp::now();
    let late = settle(&claimed, lab::done("late"), Trace::default(), &lab::policy(), now, 0.0);
    assert_eq!(bed.store.settle(vec![late]).await.unwrap(), [Settled::Fenced]);
    assert_eq!(bed.enqueue("'ship', '2', 'order-1'"), id, "the key has its completion");
    bed.assert_sound().await;
}

#[tokio::test]
async fn a_stale_claim_completes_nothing() {
    let bed = Bed::new().await;
    let id = bed.enqueue("'ship'");
    let stale = bed.claim().await;
    let now = Timestamp::now();
    let lost = settle(&stale, lab::loss(), Trace::default(), &lab::policy(), now, 0.0);
    bed.store.settle(vec![lost]).await.unwrap();
    let fresh = bed.claim().await;
    assert!(fresh.task.id == id && fresh.claim.fence > stale.claim.fence);
    let script =
        format!("BEGIN; INSERT INTO orders VALUES (1); {}; COMMIT", complete(&stale, "NULL"));
    let said = bed.psql(&script).unwrap_err();
    assert!(said.contains("MT001"), "{said}");
    assert_eq!((bed.task(id).await.state, bed.orders()), (State::Running, "0".to_owned()));
    for (call, expected) in [
        ("NULL, 1", "22023: task_id: must not be NULL"),
        (&*format!("'{id}', NULL"), "22023: fence: must not be NULL"),
        ("gen_random_uuid(), 1", "MT001: task_id: the claim of"),
        (&*format!("'{id}', 1, 'no json'"), "22P02: invalid input syntax for type json"),
        (&*format!("'{id}', 1, outcome => 'failed'"), "42883: function matins.complete("),
    ] {
        let said = bed.psql(&format!("SELECT matins.complete({call})")).expect_err(call);
        assert!(said.contains(expected), "{call}: {said}");
    }
    bed.psql(&complete(&fresh, "NULL")).unwrap();
    let task = bed.task(id).await;
    assert_eq!((task.state, task.attempt, task.losses), (State::Completed, 2, 1));
    bed.assert_sound().await;
}

#[tokio::test]
async fn a_result_above_the_limit_is_dropped_and_its_size_is_kept() {
    let bed = Bed::new().await;
    let sizes = SettingChange::Sizes([("result_bytes".into(), 100)].into());
    bed.store.change_setting(sizes, None).await.unwrap();
    let id = bed.enqueue("'ship'");
    let claimed = bed.claim().await;
    bed.psql(&complete(&claimed, "to_json(repeat('x', 200))")).unwrap();
    let task = bed.task(id).await;
    assert_eq!((task.state, task.result), (State::Completed, None));
    assert_eq!(task.result_dropped_bytes, Some(202));
    bed.assert_sound().await;
}

#[tokio::test]
async fn whoever_may_call_the_functions_needs_no_other_right() {
    let bed = Bed::new().await;
    let as_shop = |statement: &str| {
        bed.psql(&format!("SET SESSION AUTHORIZATION shop_{}; {statement}", bed.database))
    };
    let role = format!("shop_{}", bed.database);
    bed.psql(&format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA matins TO {role}")).unwrap();
    let call = "SELECT matins.enqueue('ship')";
    assert!(as_shop(call).unwrap_err().contains("42501: permission denied for function enqueue"));
    bed.psql(&format!("GRANT EXECUTE ON FUNCTION matins.enqueue, matins.complete TO {role}"))
        .unwrap();
    let id: Uuid = as_shop(call).unwrap().parse().unwrap();
    assert_eq!(&*bed.task(TaskId(id)).await.created_by, format!("sql:{role}"));
    as_shop(&complete(&bed.claim().await, "NULL")).unwrap();
    for no_right in ["SELECT 1 FROM matins.task", "DELETE FROM matins.running"] {
        assert!(as_shop(no_right).unwrap_err().contains("42501"), "{no_right}");
    }
    // A search path of one's own leads the functions nowhere else.
    let trap = "CREATE SCHEMA trap; CREATE FUNCTION trap.check_name(text, text, integer) \
                RETURNS void LANGUAGE sql AS 'SELECT 1/0'; SET search_path = trap, pg_temp;";
    bed.psql(&format!("{trap} SELECT matins.enqueue('ship')")).unwrap();
}
