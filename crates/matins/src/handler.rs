//! Runs handlers as executors: each pool's on threads of its own, so that one that spins stalls
//! nothing but its pool.

use std::future::Future;
use std::panic;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use matins_core::Json;
use matins_core::executor::{Executor, Finished, Run, StopReason};
use matins_core::lifecycle::Outcome;
use matins_core::task::ErrorClass;
use matins_runtime::Client;
use matins_runtime::rules::OnStuck;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Task;
use crate::context::{Context, Inner};
use crate::error::TaskError;

/// How long an aborted handler may take to come to a point where it can be dropped.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

type Work = Pin<Box<dyn Future<Output = Result<Json, TaskError>> + Send>>;
pub(crate) type Call = Arc<dyn Fn(Json, Context) -> Job + Send + Sync>;

/// A started piece of work: a future, or a function that blocks its thread.
pub(crate) enum Job {
    Async(Work),
    Blocking(Box<dyn FnOnce() -> Result<Json, TaskError> + Send>),
}

/// A handler that the engine can run.
pub(crate) struct HandlerExecutor {
    pub(crate) call: Call,
    pub(crate) client: Client,
    /// Threads of the pool.
    pub(crate) threads: Handle,
    pub(crate) on_stuck: OnStuck,
}

/// Wraps an async function.
pub(crate) fn asynchronous<T, O, F, Fut>(handler: F) -> Call
where
    T: Task,
    O: Serialize + Send + 'static,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, TaskError>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |payload, context| {
        let handler = handler.clone();
        Job::Async(Box::pin(async move {
            let output = handler(decode::<T>(&payload)?, context).await?;
            encode(&output)
        }))
    })
}

/// Wraps a function that blocks or computes.
pub(crate) fn blocking<T, O, F>(handler: F) -> Call
where
    T: Task,
    O: Serialize + Send + 'static,
    F: Fn(T, Context) -> Result<O, TaskError> + Send + Sync + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |payload, context| {
        let handler = handler.clone();
        Job::Blocking(Box::new(move || encode(&handler(decode::<T>(&payload)?, context)?)))
    })
}

/// A payload that does not fit the type will not fit it next time either.
fn decode<T: Task>(payload: &Json) -> Result<T, TaskError> {
    payload
        .decode()
        .map_err(|error| TaskError::permanent(format!("payload is no {}: {error}", T::TYPE)))
}

fn encode<O: Serialize>(output: &O) -> Result<Json, TaskError> {
    Json::of(output).map_err(|error| TaskError::permanent(format!("result is no JSON: {error}")))
}

#[async_trait]
impl Executor for HandlerExecutor {
    async fn run(&self, run: Run) -> Finished {
        let cancelled = CancellationToken::new();
        let keyed = run.claimed.task.execution_key.is_some();
        let inner = Inner {
            claimed: run.claimed.clone(),
            client: self.client.clone(),
            cancelled: cancelled.clone(),
            settled: AtomicBool::new(false),
        };
        let context = Context { inner: Arc::new(inner) };
        let payload = run.claimed.task.payload.clone();
        let mut work = match (self.call)(payload, context.clone()) {
            Job::Async(future) => self.threads.spawn(future),
            Job::Blocking(function) => self.threads.spawn_blocking(function),
        };
        let reason = tokio::select! {
            done = &mut work => return self.finished(done, &context),
            reason = run.supervision.stopped() => reason,
        };
        cancelled.cancel();
        if let Ok(done) = tokio::time::timeout(run.supervision.patience(run.grace), &mut work).await
        {
            return self.finished(done, &context);
        }
        work.abort();
        if let Ok(done) = tokio::time::timeout(DROP_PATIENCE, &mut work).await {
            return match done {
                Err(error) if error.is_cancelled() => told(reason).into(),
                done => self.finished(done, &context),
            };
        }
        self.stuck(work, &run, reason, keyed, &context).await
    }
}

impl HandlerExecutor {
    /// Neither the token nor the abort reached it: it blocks or spins.
    async fn stuck(
        &self,
        work: JoinHandle<Result<Json, TaskError>>,
        run: &Run,
        reason: StopReason,
        keyed: bool,
        context: &Context,
    ) -> Finished {
        run.supervision.stuck();
        match self.on_stuck {
            OnStuck::Abort => std::process::abort(),
            // Abandoning a keyed task could have two runs of one key at a time.
            OnStuck::Abandon if !keyed => told(reason).into(),
            _ => match work.await {
                Err(error) if error.is_cancelled() => told(reason).into(),
                done => self.finished(done, context),
            },
        }
    }

    fn finished(
        &self,
        done: Result<Result<Json, TaskError>, tokio::task::JoinError>,
        context: &Context,
    ) -> Finished {
        let outcome = match done {
            Ok(Ok(_)) if context.inner.settled.load(Ordering::SeqCst) => Outcome::SettledByRun,
            Ok(Ok(result)) => {
                Outcome::completed(Some(result), self.client.rules().limits.result_bytes)
            }
            Ok(Err(error)) => error.into_outcome(self.client.now()),
            Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
            // The pool's threads are going away with the process.
            Err(_) => Outcome::Interrupted,
        };
        outcome.into()
    }
}

fn told(reason: StopReason) -> Outcome {
    match reason {
        StopReason::Cancel => Outcome::Cancelled,
        StopReason::Shutdown | StopReason::LeaseLost => Outcome::Interrupted,
        StopReason::Timeout => Outcome::TimedOut {
            error: matins_core::task::TaskError::new(
                ErrorClass::Timeout,
                "did not end within its time limit",
            ),
        },
    }
}
