//! A new store in a directory of its own.

use std::sync::Arc;

use matins_conformance::Ground;
use matins_core::store::Store;
use matins_store::{Options, SqliteStore};
use tempfile::TempDir;

/// The directory of a file, and the store in it, which can say whether the file is sound.
pub struct File {
    store: Arc<SqliteStore>,
    _directory: TempDir,
}

impl Ground for File {
    async fn inspect(&self) {
        let contradictions = self.store.check_invariants().await.expect("check_invariants");
        assert_eq!(contradictions, Vec::<String>::new());
    }
}

pub fn open_in(directory: TempDir) -> (Arc<dyn Store>, File) {
    let path = directory.path().join("matins.db");
    let store = Arc::new(SqliteStore::open(path, Options::default()).expect("open"));
    (store.clone(), File { store, _directory: directory })
}
