//! What a handler knows about its run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use matins_core::Json;
use matins_core::lifecycle::{Outcome, Settlement, Trace, settle};
use matins_core::retry::RetryPolicy;
use matins_core::store::{Settled, StoreError};
use matins_core::task::{Claimed, TaskId};
use matins_runtime::Client;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::Task;
use crate::enqueue::Enqueue;
use crate::error::TaskError;
use crate::transaction::Transaction;

#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) claimed: Arc<Claimed>,
    pub(crate) client: Client,
    pub(crate) cancelled: CancellationToken,
    /// The run has written its completion into a transaction of its own.
    pub(crate) settled: AtomicBool,
}

impl Context {
    pub fn task_id(&self) -> TaskId {
        self.inner.claimed.task.id
    }

    /// Number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.claimed.task.attempt
    }

    /// The key with business meaning, if the task has one.
    pub fn execution_key(&self) -> Option<&str> {
        self.inner.claimed.task.execution_key.as_deref()
    }

    /// Grows with every claim: hand it to whatever must refuse a stale run.
    pub fn fence(&self) -> u64 {
        self.inner.claimed.claim.fence
    }

    /// Set when the run should end: time limit, cancel, lost claim or shutdown.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.inner.cancelled
    }

    /// More work of a type that has a handler.
    pub fn enqueue<T: Task>(&self, payload: T) -> Enqueue {
        Enqueue::new(self.client().clone(), &payload)
    }

    /// Everything else: look, cancel, replay, schedules.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Records the completion in the caller's transaction, so that effect and completion commit
    /// together. On SQLite it answers at once, on PostgreSQL it is awaited. Fails when the claim
    /// no longer stands: then roll back; on PostgreSQL that transaction can do nothing else.
    pub fn complete_in<'t, X: Transaction, O: Serialize>(
        &self,
        tx: &'t mut X,
        output: &O,
    ) -> X::Completed<'t> {
        let limit = self.inner.client.rules().limits.result_bytes;
        let completion = Json::of(output).map_err(TaskError::from).map(|result| {
            let outcome = Outcome::completed(Some(result), limit);
            let now = self.inner.client.now();
            let (policy, claimed) = (RetryPolicy::default(), &self.inner.claimed);
            let settlement = settle(claimed, outcome, Trace::default(), &policy, now, 0.0);
            Completion { settlement, context: self.clone() }
        });
        tx.complete(completion)
    }
}

/// A completion on its way into somebody's transaction.
pub struct Completion {
    settlement: Settlement,
    context: Context,
}

impl Completion {
    pub(crate) fn settlement(&self) -> &Settlement {
        &self.settlement
    }

    /// What became of it when it was written.
    pub(crate) fn written(
        self,
        write: impl FnOnce(&Settlement) -> Result<Settled, StoreError>,
    ) -> Result<(), TaskError> {
        match write(&self.settlement)? {
            Settled::Done(_) => {
                self.context.inner.settled.store(true, Ordering::SeqCst);
                Ok(())
            }
            Settled::Fenced => Err(TaskError::retryable(format!(
                "attempt {} of task {} has lost its claim; roll back",
                self.context.attempt(),
                self.context.task_id()
            ))),
        }
    }
}
