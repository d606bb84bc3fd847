//! Output of runs while they run, for those who follow. The store gets it when the attempt ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use matins_core::task::TaskId;
use tokio::sync::broadcast;

/// Chunks a slow follower may lag behind before it misses some.
const CHUNKS: usize = 256;

/// Written so far and not yet in the store, for a follower that joins late.
const BACKLOG_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Default)]
pub struct LiveOutput(Arc<Mutex<HashMap<TaskId, Stream>>>);

#[derive(Debug)]
struct Stream {
    attempt: u32,
    backlog: Vec<u8>,
    stuck: bool,
    sender: broadcast::Sender<Bytes>,
}

/// What a follower gets: the bytes so far, then the rest as it comes.
pub struct Follow {
    pub attempt: u32,
    pub backlog: Bytes,
    pub rest: broadcast::Receiver<Bytes>,
}

impl LiveOutput {
    fn streams(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, id: TaskId, attempt: u32) {
        let sender = broadcast::Sender::new(CHUNKS);
        self.streams().insert(id, Stream { attempt, backlog: Vec::new(), stuck: false, sender });
    }

    pub(crate) fn write(&self, id: TaskId, chunk: &[u8]) {
        let mut streams = self.streams();
        let Some(stream) = streams.get_mut(&id) else { return };
        let room = BACKLOG_BYTES.saturating_sub(stream.backlog.len());
        stream.backlog.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if stream.sender.receiver_count() > 0 {
            let _ = stream.sender.send(Bytes::copy_from_slice(chunk));
        }
    }

    pub(crate) fn set_stuck(&self, id: TaskId) {
        if let Some(stream) = self.streams().get_mut(&id) {
            stream.stuck = true;
        }
    }

    /// Whether the run on this node ignores its end.
    pub fn is_stuck(&self, id: TaskId) -> bool {
        self.streams().get(&id).is_some_and(|stream| stream.stuck)
    }

    /// Followers see the end when the sender is dropped.
    pub(crate) fn close(&self, id: TaskId, attempt: u32) {
        let mut streams = self.streams();
        if streams.get(&id).is_some_and(|stream| stream.attempt == attempt) {
            streams.remove(&id);
        }
    }

    /// `None`: the task does not run on this node.
    pub fn follow(&self, id: TaskId) -> Option<Follow> {
        self.streams().get(&id).map(|stream| Follow {
            attempt: stream.attempt,
            backlog: Bytes::copy_from_slice(&stream.backlog),
            rest: stream.sender.subscribe(),
        })
    }
}
