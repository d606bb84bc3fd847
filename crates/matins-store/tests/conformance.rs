//! The SQLite store keeps every contract of the port.

#![cfg(feature = "sqlite")]

#[path = "ground/file.rs"]
mod file;

use std::sync::Arc;

use matins_core::store::Store;

async fn open() -> (Arc<dyn Store>, file::File) {
    file::open_in(tempfile::tempdir().expect("a directory"), 0)
}

matins_conformance::suite!(open);
