//! The schema against what this program makes: drift is named and repaired, and a database that is
//! ahead of a program is used while it can be.

#![cfg(feature = "postgres")]

#[path = "ground/database.rs"]
mod database;

use std::time::Duration;

use jiff::Timestamp;
use matins_core::store::{
    LookRequest, Queue as _, Records as _, Store as _, StoreError, Types, Worker,
};
use matins_store::PostgresStore;
use matins_store::postgres::migrate::{self, LATEST};
use matins_store::postgres::{Options, schema};
use matins_testbed::Postgres;

async fn bed() -> (String, String) {
    let url = database::new_database().await;
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    (url, database)
}

async fn found(url: &str) -> Vec<String> {
    let found = schema::compare(url).await.unwrap().expect("the same version");
    found.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_schema_that_nobody_touched_is_as_it_should_be() {
    let (url, database) = bed().await;
    assert_eq!(found(&url).await, Vec::<String>::new());
    // Days come and go.
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    Postgres::shared().sql(&database, "SELECT matins.make_partitions(now() + '9 days', 3)");
    assert_eq!(found(&url).await, Vec::<String>::new());
    drop(store);
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'matins%'";
    assert_eq!(Postgres::shared().sql(&database, schemas), "1", "the model is gone");
}

/// A plan that may use no scan has a price as if it were long, and compiling it takes longer than
/// all that it does; so does to plan it anew for each call. Pruning is planned anew: only then it
/// leaves days alone that it has nothing to do with.
/// Whatever a later step makes or makes anew is told so as well.
#[tokio::test]
async fn functions_called_from_outside_go_by_index_plan_once_and_compile_nothing() {
    let (_, database) = bed().await;
    let psql = |sql: &str| Postgres::shared().sql(&database, sql);
    let outside =
        "FROM pg_proc WHERE pronamespace = 'matins'::regnamespace AND proconfig IS NOT NULL";
    assert_eq!(psql(&format!("SELECT count(*) > 50 {outside}")), "t");
    let lacking = format!(
        "SELECT coalesce(string_agg(proname, ' '), '') {outside} AND NOT proconfig @> ARRAY[
         'jit=off', 'enable_hashjoin=off', 'enable_mergejoin=off', 'enable_seqscan=off',
         'plan_cache_mode=' || CASE proname WHEN 'prune' THEN 'auto' ELSE 'force_generic_plan' END]"
    );
    assert_eq!(psql(&lacking), "");
}

#[tokio::test]
async fn drift_is_named_and_what_can_be_repaired_is() {
    let (url, database) = bed().await;
    let psql = |sql: &str| Postgres::shared().sql(&database, sql);
    psql("DROP INDEX matins.running_asked");
    psql("DROP INDEX matins.exec_key_at; CREATE INDEX exec_key_at ON matins.exec_key (key)");
    psql(
        "SET search_path = matins; CREATE OR REPLACE FUNCTION limit_of(p_name text) RETURNS bigint \
         LANGUAGE sql STABLE AS 'SELECT 1::bigint'; DROP FUNCTION matins.complete",
    );
    psql("ALTER TABLE matins.token ALTER COLUMN value DROP NOT NULL");
    psql("CREATE INDEX mine ON matins.task (created_by)");
    let expected = [
        "column token.value is not as this program made it",
        "function matins.complete(uuid,bigint,json) is missing",
        "function matins.limit_of(text) is not as this program made it",
        "index exec_key_at is not as this program made it",
        "index running_asked is missing",
        "index mine is not of this program",
    ];
    assert_eq!(found(&url).await, expected);
    let (repaired, left) = schema::repair(&url).await.unwrap().unwrap();
    assert_eq!((repaired.len(), left.len()), (4, 2));
    assert_eq!(found(&url).await, [expected[0], expected[5]], "the rest is as it should be");
    let mend = "ALTER TABLE matins.token ALTER COLUMN value SET NOT NULL; DROP INDEX matins.mine";
    psql(mend);
    assert_eq!(found(&url).await, Vec::<String>::new());
}

/// A newer program's steps, as a node of this one sees them during a rolling upgrade.
fn ahead(database: &str, compatible_from: u32) {
    let version = LATEST + 1;
    let sql = format!(
        "ALTER TABLE matins.worker ADD COLUMN mood text;
         CREATE TABLE matins.moods (name text PRIMARY KEY);
         INSERT INTO matins.setting VALUES ('mood', 'x', 'y');
         INSERT INTO matins.migration (version, name, checksum, compatible_from)
         VALUES ({version}, 'moods', 'x', {compatible_from})"
    );
    Postgres::shared().sql(database, &sql);
}

#[tokio::test]
async fn a_database_that_is_ahead_is_used_while_it_says_that_it_can_be() {
    let (url, database) = bed().await;
    ahead(&database, LATEST);
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    assert_eq!(store.check_invariants().await.unwrap(), Vec::<String>::new());
    assert_eq!(schema::compare(&url).await.unwrap(), None, "only its own program can judge it");

    let (url, database) = bed().await;
    ahead(&database, LATEST + 1);
    let refused = PostgresStore::open(&url, Options::default()).await.unwrap_err();
    let StoreError::Broken(said) = refused else { panic!("{refused:?}") };
    assert!(said.contains(&format!("its schema has version {}", LATEST + 1)), "{said}");
    assert!(said.contains("use a newer matins"), "{said}");
}

/// A node that is at work when a step comes with which it cannot live does nothing more: not even
/// what a step further on would still let it do by accident.
#[tokio::test]
async fn a_node_at_work_stops_when_the_schema_goes_beyond_it() {
    let (url, database) = bed().await;
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    let pools = vec!["default".into()];
    let request = LookRequest { pools, types: Types::Any, now: Timestamp::now(), upkeep: None };
    store.look(&request).await.unwrap();
    ahead(&database, LATEST + 1);
    let look = store.look(&request).await.unwrap_err();
    let settings = store.settings().await.unwrap_err();
    let ping = store.ping().await.unwrap_err();
    for refused in [look, settings, ping] {
        let StoreError::Broken(said) = refused else { panic!("{refused:?}") };
        assert!(said.contains("use a newer matins"), "{said}");
    }
}

/// Version 14 is the first that others cannot live with.
#[tokio::test]
async fn a_breaking_step_is_not_made_while_others_are_at_work() {
    let (url, database) = bed().await;
    let psql = |sql: &str| Postgres::shared().sql(&database, sql);
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    let now = Timestamp::now();
    let worker = Worker {
        seen_at: now,
        ..matins_conformance::lab::worker("old:1", now + Duration::from_secs(60))
    };
    store.register(worker.clone()).await.unwrap();
    psql("DELETE FROM matins.migration WHERE version >= 14");
    let refused = migrate::apply(&url).await.unwrap_err();
    let StoreError::Broken(said) = refused else { panic!("{refused:?}") };
    assert!(said.contains("step 14") && said.contains("stop old:1"), "{said}");
    store.retire(&worker.id, now).await.unwrap();
    // Nobody stands in the way: the step itself does, because it has been made.
    let refused = migrate::apply(&url).await.unwrap_err().to_string();
    assert!(refused.contains("already exists"), "{refused}");
}
