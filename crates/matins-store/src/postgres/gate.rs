//! Where enqueues that come at the same time become one batch, so that they share a commit. Tasks
//! that may have to wait for somebody else's transaction have a gate of their own.
//!
//! While a batch is on its way, those that come wait here and are the next one. Whoever was answered
//! is often back at once, so the next one waits for them for a moment, which costs less than a batch
//! of its own. A batch that fails for another reason than the line is done again caller by caller, so
//! that nobody suffers for somebody else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use matins_core::store::{Result, StoreError};
use matins_core::task::NewTask;
use tokio::sync::{mpsc, oneshot};

use super::enqueue::{Accepted, accept};
use super::link::{Pool, Switchboard};

/// Most tasks of a batch of several callers.
const ROWS_MAX: usize = 2_000;

/// Most callers that wait; the next ones wait to wait.
const QUEUE: usize = 1_024;

/// How long after a batch the next one waits for those who were answered.
const BACK: Duration = Duration::from_micros(100);

/// Callers whose clocks say such different things do not share a batch.
const CLOCKS_APART: SignedDuration = SignedDuration::from_secs(1);

struct Call {
    tasks: Vec<NewTask>,
    now: Timestamp,
    reply: oneshot::Sender<Result<Vec<Accepted>>>,
}

#[derive(Debug)]
pub(super) struct Gate {
    calls: mpsc::Sender<Call>,
}

impl Gate {
    pub(super) fn open(switchboard: &Arc<Switchboard>, pool: &Arc<Pool>) -> Self {
        let (calls, waiting) = mpsc::channel(QUEUE);
        switchboard.spawn(serve(waiting, pool.clone()));
        Self { calls }
    }

    pub(super) async fn enqueue(
        &self,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Result<Vec<Accepted>> {
        let closed = || StoreError::Unavailable("the store is closed".to_owned());
        let (reply, answer) = oneshot::channel();
        self.calls.send(Call { tasks, now, reply }).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

async fn serve(mut waiting: mpsc::Receiver<Call>, pool: Arc<Pool>) {
    let mut next = None;
    let (mut ended, mut expected) = (Instant::now(), 0);
    loop {
        let first = match next.take() {
            Some(call) => call,
            None => match waiting.recv().await {
                Some(call) => call,
                None => return,
            },
        };
        while waiting.len() + 1 < expected && ended.elapsed() < BACK {
            tokio::task::yield_now().await;
        }
        let mut rows = first.tasks.len();
        let mut calls = vec![first];
        while rows < ROWS_MAX {
            let Ok(call) = waiting.try_recv() else { break };
            let apart = calls[0].now.duration_since(call.now).abs() > CLOCKS_APART;
            if apart || rows + call.tasks.len() > ROWS_MAX {
                next = Some(call);
                break;
            }
            rows += call.tasks.len();
            calls.push(call);
        }
        // Whoever has gone away need not begin.
        calls.retain(|call| !call.reply.is_closed());
        let answered = calls.len();
        together(calls, &pool).await;
        (ended, expected) = (Instant::now(), waiting.len() + answered);
    }
}

async fn together(calls: Vec<Call>, pool: &Pool) {
    let Some(now) = calls.iter().map(|call| call.now).max() else { return };
    if calls.len() > 1 {
        let all: Vec<NewTask> = calls.iter().flat_map(|call| call.tasks.clone()).collect();
        match accept(pool, &all, now).await.map_err(StoreError::from) {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                for call in calls {
                    let own = answers.by_ref().take(call.tasks.len()).collect();
                    // A caller that has gone away has its tasks all the same.
                    let _ = call.reply.send(Ok(own));
                }
                return;
            }
            Err(error) if error.is_transient() => {
                for call in calls {
                    let _ = call.reply.send(Err(error.clone()));
                }
                return;
            }
            Err(_) => {}
        }
    }
    for call in calls {
        let answer = accept(pool, &call.tasks, call.now).await;
        let _ = call.reply.send(answer.map_err(StoreError::from));
    }
}
