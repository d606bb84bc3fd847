//! A new store in a database of its own.

use std::sync::Arc;

use matins_conformance::Ground;
use matins_core::store::Store;
use matins_store::PostgresStore;
use matins_store::postgres::Options;
use matins_testbed::Postgres;
use tokio::sync::OnceCell;

/// The store in a database, which can say whether it is sound.
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

/// With that many further handles to it.
pub(crate) async fn open(others: usize) -> (Arc<dyn Store>, Database) {
    let url = new_database().await;
    let one = async || {
        let options = Options { connections: 4, ..Options::default() };
        Arc::new(PostgresStore::open(&url, options).await.expect("open"))
    };
    let store = one().await;
    let mut doors = Vec::new();
    for _ in 0..others {
        doors.push(one().await as Arc<dyn Store>);
    }
    (store.clone(), Database { store, others: doors })
}
