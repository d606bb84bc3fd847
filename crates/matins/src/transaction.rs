//! The caller's own transaction: what it writes and what Matins writes commit together.

use jiff::Timestamp;
use matins_core::NewTask;
use matins_core::lifecycle::Settlement;
use matins_core::store::{Enqueued, Settled, StoreError};
use matins_store::sqlite;

/// An open transaction on the database that holds the store.
pub trait Transaction {
    #[doc(hidden)]
    fn enqueue(&mut self, task: &NewTask, now: Timestamp) -> Result<Enqueued, StoreError>;

    #[doc(hidden)]
    fn settle(&mut self, settlement: &Settlement) -> Result<Settled, StoreError>;
}

impl Transaction for sqlite::rusqlite::Transaction<'_> {
    fn enqueue(&mut self, task: &NewTask, now: Timestamp) -> Result<Enqueued, StoreError> {
        sqlite::enqueue_in(self, task, now)
    }

    fn settle(&mut self, settlement: &Settlement) -> Result<Settled, StoreError> {
        match sqlite::complete_in(self, settlement) {
            Ok(settled) => Ok(settled),
            Err(sqlite::CompleteError::Fenced) => Ok(Settled::Fenced),
            Err(sqlite::CompleteError::Store(error)) => Err(error),
        }
    }
}
