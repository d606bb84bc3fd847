//! The caller's own transaction: what it writes and what Matins writes commit together.
//!
//! Both databases read alike; SQLite's driver answers at once, PostgreSQL's is awaited:
//!
//! ```text
//! context.complete_in(&mut tx, &output)?;         // rusqlite::Transaction
//! context.complete_in(&mut tx, &output).await?;   // tokio_postgres::Transaction
//! ```

use std::future::Future;
use std::pin::Pin;

use jiff::Timestamp;
use matins_core::NewTask;
use matins_core::lifecycle::Settlement;
use matins_core::store::{Enqueued, Settled, StoreError};
use matins_store::{postgres, sqlite};

use crate::context::Completion;
use crate::error::TaskError;

/// An open transaction on the database that holds the store.
pub trait Transaction {
    /// What [`Context::complete_in`](crate::Context::complete_in) answers: a result, or a future
    /// of one.
    type Completed<'t>
    where
        Self: 't;

    #[doc(hidden)]
    fn enqueue(
        &mut self,
        task: &NewTask,
        now: Timestamp,
    ) -> impl Future<Output = Result<Enqueued, StoreError>>;

    #[doc(hidden)]
    fn complete(&mut self, completion: Result<Completion, TaskError>) -> Self::Completed<'_>;
}

impl Transaction for sqlite::rusqlite::Transaction<'_> {
    type Completed<'t>
        = Result<(), TaskError>
    where
        Self: 't;

    fn enqueue(
        &mut self,
        task: &NewTask,
        now: Timestamp,
    ) -> impl Future<Output = Result<Enqueued, StoreError>> {
        std::future::ready(sqlite::enqueue_in(self, task, now))
    }

    fn complete(&mut self, completion: Result<Completion, TaskError>) -> Result<(), TaskError> {
        completion?.written(|settlement| match sqlite::complete_in(self, settlement) {
            Ok(settled) => Ok(settled),
            Err(sqlite::CompleteError::Fenced) => Ok(Settled::Fenced),
            Err(sqlite::CompleteError::Store(error)) => Err(error),
        })
    }
}

impl Transaction for postgres::tokio_postgres::Transaction<'_> {
    type Completed<'t>
        = Pin<Box<dyn Future<Output = Result<(), TaskError>> + Send + 't>>
    where
        Self: 't;

    async fn enqueue(&mut self, task: &NewTask, now: Timestamp) -> Result<Enqueued, StoreError> {
        postgres::enqueue_in(self, task, now).await
    }

    fn complete(&mut self, completion: Result<Completion, TaskError>) -> Self::Completed<'_> {
        Box::pin(async move {
            let completion = completion?;
            let settlement: &Settlement = completion.settlement();
            let settled = postgres::complete_in(self, settlement).await;
            completion.written(|_| settled)
        })
    }
}
