//! The PostgreSQL store keeps every contract of the port.

#![cfg(feature = "postgres")]

#[path = "ground/database.rs"]
mod database;

use std::sync::Arc;

use matins_core::store::Store;

async fn open() -> (Arc<dyn Store>, database::Database) {
    database::open(0).await
}

matins_conformance::suite!(open);
