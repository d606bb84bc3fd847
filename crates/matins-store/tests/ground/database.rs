//! A new store in a database of its own.

use std::sync::{Arc, OnceLock};

use matins_conformance::Ground;
use matins_core::store::Store;
use matins_store::PostgresStore;
use matins_store::postgres::Options;
use matins_testbed::{PgBouncer, Postgres};
use tokio::sync::OnceCell;

/// The store in a database, which can say whether it is sound.
#[allow(dead_code, reason = "not of every test that takes a database from here")]
pub(crate) struct Database {
    store: Arc<PostgresStore>,
    others: Vec<Arc<dyn Store>>,
}

impl Ground for Database {
    async fn inspect(&self) {
        let contradictions = self.store.check_invariants().await.expect("check_invariants");
        assert_eq!(contradictions, Vec::<String>::new());
    }

    fn doors(&self) -> Vec<Arc<dyn Store>> {
        self.others.clone()
    }
}

const TEMPLATE: &str = "matins_template";

/// The address of a new database with the newest schema.
pub(crate) async fn new_database() -> String {
    static MADE: OnceCell<()> = OnceCell::const_new();
    let server = Postgres::shared();
    MADE.get_or_init(|| async {
        server.sql("postgres", &format!("CREATE DATABASE {TEMPLATE}"));
        let store = PostgresStore::open(&server.url(TEMPLATE), Options::default()).await;
        store.expect("open").close().await.expect("close");
        // A database somebody is connected to is no template.
        let gone = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{TEMPLATE}'"
        );
        server.sql("postgres", &gone);
    })
    .await;
    tokio::task::spawn_blocking(|| Postgres::shared().database(TEMPLATE)).await.expect("a database")
}

/// What stands between a test and the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each test file has its own way there")]
pub(crate) enum Way {
    Straight,
    /// Nobody listens, and no session says who lives: workers of a sequence that share one would
    /// be found dead on a machine on which it takes seconds.
    Deaf,
    /// A pooler that hands out a session per transaction.
    Pooled,
}

/// With that many further handles to it.
#[allow(dead_code, reason = "each test file has its own way there")]
pub(crate) async fn open(others: usize) -> (Arc<dyn Store>, Database) {
    open_by(Way::Straight, others).await
}

#[allow(dead_code, reason = "each test file has its own way there")]
pub(crate) async fn open_by(way: Way, others: usize) -> (Arc<dyn Store>, Database) {
    let url = new_database().await;
    let url = match way {
        Way::Straight | Way::Deaf => url,
        Way::Pooled => bouncer().url(url.rsplit_once('/').expect("a database").1),
    };
    let one = async || {
        let options = Options { connections: 4, listen: way != Way::Deaf, ..Options::default() };
        Arc::new(PostgresStore::open(&url, options).await.expect("open"))
    };
    let store = one().await;
    let mut doors = Vec::new();
    for _ in 0..others {
        doors.push(one().await as Arc<dyn Store>);
    }
    (store.clone(), Database { store, others: doors })
}

fn bouncer() -> &'static PgBouncer {
    static SHARED: OnceLock<PgBouncer> = OnceLock::new();
    SHARED.get_or_init(|| PgBouncer::start(Postgres::shared()))
}
