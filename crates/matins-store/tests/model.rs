//! The SQLite store answers like the in-memory model, whatever is done to it.

#![cfg(feature = "sqlite")]

#[path = "ground/file.rs"]
mod file;

use std::sync::Arc;

use matins_core::store::Store;

/// In memory where there is such a place: the sequences are many, and nothing here is about
/// what survives a crash.
async fn open() -> (Arc<dyn Store>, file::File) {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    file::open_in(directory.expect("a directory"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_is_like_the_model() {
    matins_conformance::model::compare(200, open).await;
}
