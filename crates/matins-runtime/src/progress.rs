//! Proof of life. A loop is alive because it went round and got an answer, never because a
//! timer fired beside it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;

/// One loop's beats.
#[derive(Debug)]
struct Pulse {
    /// `CLOCK_BOOTTIME` of the last completed turn, in nanoseconds.
    last_ns: AtomicU64,
    /// The longest that a turn takes when there is nothing to do.
    pause: Duration,
    /// The loop has ended on purpose and is watched no more.
    ended: AtomicBool,
}

/// The loops of an engine.
#[derive(Clone)]
pub struct Progress {
    clock: Arc<dyn Clock>,
    loops: Arc<Mutex<BTreeMap<String, Arc<Pulse>>>>,
    /// Last time the store answered anything, and whether it does now.
    store_up: Arc<AtomicBool>,
}

/// What a loop holds to report its turns.
#[derive(Clone)]
pub struct Beat {
    clock: Arc<dyn Clock>,
    pulse: Arc<Pulse>,
}

impl Progress {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, loops: Arc::default(), store_up: Arc::new(AtomicBool::new(true)) }
    }

    fn loops(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Pulse>>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to watch a loop that turns at least every `pause`.
    pub fn watch(&self, name: impl Into<String>, pause: Duration) -> Beat {
        let pulse = Arc::new(Pulse {
            pause,
            last_ns: AtomicU64::new(self.clock.boot_ns()),
            ended: AtomicBool::new(false),
        });
        self.loops().insert(name.into(), pulse.clone());
        Beat { clock: self.clock.clone(), pulse }
    }

    fn watched(&self) -> Vec<(String, Duration, Duration)> {
        let now = self.clock.boot_ns();
        let loops = self.loops();
        let watched = loops.iter().filter(|(_, pulse)| !pulse.ended.load(Ordering::Relaxed));
        watched
            .map(|(name, pulse)| {
                let age = now.saturating_sub(pulse.last_ns.load(Ordering::Relaxed));
                (name.clone(), Duration::from_nanos(age), pulse.pause)
            })
            .collect()
    }

    /// Age of each watched loop's last turn.
    pub fn ages(&self) -> BTreeMap<String, Duration> {
        self.watched().into_iter().map(|(name, age, _)| (name, age)).collect()
    }

    /// Loops whose turn is overdue by `limit`.
    pub fn stalled(&self, limit: Duration) -> Vec<String> {
        let watched = self.watched().into_iter();
        watched.filter(|(_, age, pause)| *age >= limit + *pause).map(|(name, ..)| name).collect()
    }

    pub(crate) fn set_store_up(&self, up: bool) -> bool {
        self.store_up.swap(up, Ordering::Relaxed)
    }

    pub fn store_up(&self) -> bool {
        self.store_up.load(Ordering::Relaxed)
    }
}

impl Beat {
    /// A turn is complete: the loop asked and was answered.
    pub fn turn(&self) {
        self.pulse.last_ns.store(self.clock.boot_ns(), Ordering::Relaxed);
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        // The last holder ends the watch. A loop that panicked has not ended: it has stalled.
        if Arc::strong_count(&self.pulse) <= 2 && !std::thread::panicking() {
            self.pulse.ended.store(true, Ordering::Relaxed);
        }
    }
}
