//! Sends a trace of each task that has ended to a collector of OpenTelemetry. Nothing waits for
//! it: traces that a collector does not take in time are dropped, and that is said.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use matins_core::alert::channel::Secret;
use matins_core::otlp;
use matins_core::task::TaskId;
use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::Core;
use crate::events::What;
use crate::executors::http::OperatorCalls;

/// Where traces go.
#[derive(Debug, Clone, PartialEq)]
pub struct Traces {
    /// The whole address, with its path: by custom `/v1/traces`.
    pub url: Secret,
    pub headers: BTreeMap<String, Secret>,
    /// Share of the tasks that is traced.
    pub sample: f64,
}

/// A task's spans.
type Trace = Vec<Value>;

/// Traces that may wait.
const WAITING_MAX: usize = 2_048;
/// Traces of one message.
const BATCH: usize = 256;
/// How long one waits for others.
const GATHER: Duration = Duration::from_secs(1);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(10);
/// Pauses before a message is tried again; after the last one it is dropped.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// At the end: no task has ended for so long.
const QUIET: Duration = Duration::from_millis(300);
/// How long the end of the process waits for the last message.
const LAST_LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn run(core: Arc<Core>, traces: Traces) {
    let calls = match OperatorCalls::new(CONNECT_LIMIT) {
        Ok(calls) => calls,
        Err(error) => return tracing::error!(error, "traces cannot be sent"),
    };
    let (waiting, read) = channel(WAITING_MAX);
    let sample = traces.sample;
    let post = tokio::spawn(Post { core: core.clone(), calls, traces, failing: false }.run(read));
    gather(&core, sample, waiting).await;
    if tokio::time::timeout(LAST_LIMIT, post).await.is_err() {
        tracing::warn!("the last traces were not sent");
    }
}

/// Reads each task whose end is heard of.
async fn gather(core: &Core, sample: f64, waiting: Sender<Trace>) {
    let mut events = core.client.events().subscribe();
    let mut dropped = 0;
    loop {
        let event = tokio::select! {
            biased;
            event = events.recv() => event,
            // What ended last is written down at the end.
            () = async { core.stop.cancelled().await; tokio::time::sleep(QUIET).await } => return,
        };
        let missed = match event {
            Ok(event) => match ended(&event.what).filter(|id| otlp::is_sampled(*id, sample)) {
                Some(id) => match trace(core, id).await.map(|trace| waiting.try_send(trace)) {
                    Some(Err(_)) => 1,
                    Some(Ok(())) | None => 0,
                },
                None => 0,
            },
            Err(RecvError::Lagged(missed)) => missed,
            Err(RecvError::Closed) => return,
        };
        match (missed, dropped) {
            (0, 0) => {}
            (0, _) => {
                tracing::warn!(
                    dropped,
                    "more tasks end than traces are taken; lower traces.sample"
                );
                dropped = 0;
            }
            (missed, _) => dropped += missed,
        }
    }
}

/// The task, if this may have been its end.
fn ended(what: &What) -> Option<TaskId> {
    match what {
        What::Settled { id, state, .. } if !state.is_live() => Some(*id),
        What::Cancelled { id } => Some(*id),
        _ => None,
    }
}

async fn trace(core: &Core, id: TaskId) -> Option<Trace> {
    let task = core.store().task(id).await.ok()??;
    if task.state.is_live() {
        return None;
    }
    let attempts = core.store().attempts(id).await.ok()?;
    Some(otlp::spans(&task, &attempts))
}

struct Post {
    core: Arc<Core>,
    calls: OperatorCalls,
    traces: Traces,
    failing: bool,
}

impl Post {
    async fn run(mut self, mut waiting: Receiver<Trace>) {
        let mut batch = Vec::with_capacity(BATCH);
        while waiting.recv_many(&mut batch, BATCH).await > 0 {
            if batch.len() < BATCH && !waiting.is_closed() {
                tokio::select! {
                    () = tokio::time::sleep(GATHER) => {}
                    () = self.core.stop.cancelled() => {}
                }
                while batch.len() < BATCH
                    && let Ok(more) = waiting.try_recv()
                {
                    batch.push(more);
                }
            }
            let spans: Vec<Value> = batch.drain(..).flatten().collect();
            self.deliver(&spans).await;
        }
    }

    async fn deliver(&mut self, spans: &[Value]) {
        let version = env!("CARGO_PKG_VERSION");
        let body = otlp::request(&self.core.config.node_id, version, spans).to_string();
        for pause in PAUSES.map(Some).into_iter().chain([None]) {
            let (again, why) = match self.post(body.clone()).await {
                Ok(()) => {
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("traces are taken again");
                    }
                    return;
                }
                Err(failed) => failed,
            };
            let Some((pause, asked)) = pause.zip(again) else {
                self.failing = true;
                return tracing::warn!(spans = spans.len(), why, "traces are dropped");
            };
            if !std::mem::replace(&mut self.failing, true) {
                tracing::warn!(why, "traces are not taken; trying on");
            }
            tokio::select! {
                () = tokio::time::sleep(pause.max(asked)) => {}
                () = self.core.stop.cancelled() => {}
            }
        }
    }

    /// `Err`: after how long it may be tried again, if ever, and why it was not taken.
    async fn post(&self, body: String) -> Result<(), (Option<Duration>, String)> {
        let headers: Vec<(&str, &str)> =
            self.traces.headers.iter().map(|(name, value)| (&**name, value.reveal())).collect();
        let now = self.core.client.now();
        let call = self.calls.post(self.traces.url.reveal(), &headers, body, now);
        let answer = match tokio::time::timeout(LIMIT, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return Err((Some(Duration::ZERO), why)),
            Err(_) => return Err((Some(Duration::ZERO), format!("no answer after {LIMIT:?}"))),
        };
        let why = format!("HTTP {}", answer.status);
        match answer.status {
            200..=299 => Ok(()),
            // As the protocol has it: all others are final.
            429 | 502..=504 => {
                let asked = answer.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
                Err((Some(asked), why))
            }
            _ => Err((None, why)),
        }
    }
}
