//! The caller's own transaction: what it writes and what Matins writes commit together, or never
//! were. Must never commit, and never leave a transaction that could still commit the effect of a
//! run whose claim is gone.

use jiff::Timestamp;
use matins_core::lifecycle::Settlement;
use matins_core::store::{Enqueued, Result, Settled, StoreError};
use matins_core::task::NewTask;
use tokio_postgres::Transaction;

use super::claim::end;
use super::enqueue::accept_one;
use super::error::{Failure, Res};

/// Accepts a task when the transaction commits; it was never there when that does not. The
/// transaction must be on the database that holds the store.
pub async fn enqueue_in(
    transaction: &Transaction<'_>,
    task: &NewTask,
    now: Timestamp,
) -> Result<Enqueued> {
    Ok(enqueue(transaction, task, now).await?)
}

async fn enqueue(transaction: &Transaction<'_>, task: &NewTask, now: Timestamp) -> Res<Enqueued> {
    let answer = accept_one(transaction, task, now).await?;
    tell(transaction).await?;
    Ok(answer)
}

/// Ends a run when the transaction commits, so that its effect and its completion are one.
///
/// When the claim no longer stands, the transaction is made one that can only be rolled back.
pub async fn complete_in(
    transaction: &Transaction<'_>,
    settlement: &Settlement,
) -> Result<Settled> {
    let answers =
        end(transaction, std::slice::from_ref(settlement)).await.map_err(StoreError::from)?;
    match answers.first() {
        Some(done @ Settled::Done(_)) => {
            tell(transaction).await.map_err(StoreError::from)?;
            Ok(*done)
        }
        Some(Settled::Fenced) => {
            // Fails, which is its purpose.
            let _ = transaction.batch_execute(SPOIL).await;
            Ok(Settled::Fenced)
        }
        None => Err(Failure::broken("no answer to a completion").into()),
    }
}

/// After it, a COMMIT is a ROLLBACK.
const SPOIL: &str = "DO $$ BEGIN RAISE EXCEPTION 'the claim no longer stands' \
                     USING ERRCODE = 'MT001'; END $$";

/// Others hear of it when the transaction commits.
async fn tell(transaction: &Transaction<'_>) -> Res<()> {
    transaction.query_typed("SELECT pg_notify('matins', 'caller')", &[]).await?;
    Ok(())
}
