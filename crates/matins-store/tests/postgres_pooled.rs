//! The PostgreSQL store keeps every contract of the port behind PgBouncer in transaction mode.

#![cfg(feature = "postgres")]

#[path = "ground/database.rs"]
mod database;

use std::sync::Arc;

use database::Way;
use matins_core::store::Store;

async fn open() -> (Arc<dyn Store>, database::Database) {
    database::open_by(Way::Pooled, 0).await
}

matins_conformance::suite!(open);
