//! What happens, for whoever listens: SSE streams, waiting callers, metrics. Hints only: a slow
//! listener misses some and looks at the store.

use std::sync::Arc;

use jiff::Timestamp;
use matins_core::task::{Name, TaskId};
use tokio::sync::broadcast;

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub at: Timestamp,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq)]
pub enum What {
    Enqueued {
        id: TaskId,
        kind: Name,
    },
    Started {
        id: TaskId,
        kind: Name,
        attempt: u32,
    },
    /// An attempt has ended; `state` is where the task is now.
    Settled {
        id: TaskId,
        kind: Name,
        attempt: u32,
        state: matins_core::State,
    },
    Cancelled {
        id: TaskId,
    },
    Fired {
        schedule: Name,
        label: String,
    },
    /// The wall clock was stepped by this many seconds against the monotonic one.
    ClockStep {
        seconds: f64,
    },
    /// A stale claim tried to write.
    Fenced {
        id: TaskId,
    },
}

const CAPACITY: usize = 1_024;

#[derive(Debug, Clone)]
pub struct Events(Arc<broadcast::Sender<Event>>);

impl Default for Events {
    fn default() -> Self {
        Self(Arc::new(broadcast::Sender::new(CAPACITY)))
    }
}

impl Events {
    /// Nobody listening is the usual case, and costs nothing.
    pub fn send(&self, at: Timestamp, what: impl FnOnce() -> What) {
        if self.0.receiver_count() > 0 {
            let _ = self.0.send(Event { at, what: what() });
        }
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.0.subscribe()
    }
}
