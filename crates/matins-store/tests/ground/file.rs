//! A new store in a directory of its own.

use std::sync::Arc;

use matins_conformance::Ground;
use matins_core::store::Store;
use matins_store::{Options, SqliteStore};
use tempfile::TempDir;

/// The directory of a file, and the store in it, which can say whether the file is sound.
pub(crate) struct File {
    store: Arc<SqliteStore>,
    others: Vec<Arc<dyn Store>>,
    _directory: TempDir,
}

impl Ground for File {
    async fn inspect(&self) {
        let contradictions = self.store.check_invariants().await.expect("check_invariants");
        assert_eq!(contradictions, Vec::<String>::new());
    }

    fn doors(&self) -> Vec<Arc<dyn Store>> {
        self.others.clone()
    }
}

/// With that many further handles to the file.
pub(crate) fn open_in(directory: TempDir, others: usize) -> (Arc<dyn Store>, File) {
    let path = directory.path().join("matins.db");
    let open = || Arc::new(SqliteStore::open(&path, Options::default()).expect("open"));
    let store = open();
    let others = (0..others).map(|_| open() as Arc<dyn Store>).collect();
    (store.clone(), File { store, others, _directory: directory })
}
