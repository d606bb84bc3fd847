//! The SQLite store answers like the in-memory model, whatever is done to it.

#![cfg(feature = "sqlite")]

#[path = "ground/file.rs"]
mod file;

use std::sync::Arc;

use matins_conformance::model;
use matins_core::store::Store;

/// In memory where there is such a place: the sequences are many, and nothing here is about
/// what survives a crash.
fn open(others: usize) -> (Arc<dyn Store>, file::File) {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    file::open_in(directory.expect("a directory"), others)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_is_like_the_model() {
    model::compare(150, async || open(0)).await;
}

/// A command beside the server: what one handle has written, the next call of another knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_handles_to_one_file_are_like_one_model() {
    model::compare(50, async || open(1)).await;
}
