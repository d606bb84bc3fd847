//! The PostgreSQL store answers like the in-memory model, whatever is done to it.

#![cfg(feature = "postgres")]

#[path = "ground/database.rs"]
mod database;

use database::Way;
use matins_conformance::model;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_like_the_model() {
    model::compare(25, async || database::open_by(Way::Deaf, 0).await).await;
}

/// Several nodes: what one has written, the next call of another knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_are_like_one_model() {
    model::compare(15, async || database::open_by(Way::Deaf, 2).await).await;
}
