//! Proof of life. A loop is alive because it went round and got an answer, never because a
//! timer fired beside it.

mod failpoint;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;

/// One loop's beats.
#[derive(Debug)]
struct Pulse {
    name: String,
    /// `CLOCK_BOOTTIME` of the last completed turn, in nanoseconds.
    last_ns: AtomicU64,
    /// The longest that a turn takes when there is nothing to do.
    pause: Duration,
    /// It cannot turn while the store is away.
    needs_store: bool,
    /// What it began last.
    doing: Mutex<&'static str>,
    /// The loop has ended on purpose and is watched no more.
    ended: AtomicBool,
}

/// The loops of an engine.
#[derive(Clone)]
pub struct Progress {
    clock: Arc<dyn Clock>,
    loops: Arc<Mutex<BTreeMap<String, Arc<Pulse>>>>,
    /// Whether the store answers.
    store_up: Arc<AtomicBool>,
    /// When it last did, in nanoseconds.
    answered_ns: Arc<AtomicU64>,
    /// Before this instant no loop could be expected to turn.
    excused_ns: Arc<AtomicU64>,
}

/// What a loop holds to report its turns.
#[derive(Clone)]
pub struct Beat {
    clock: Arc<dyn Clock>,
    pulse: Arc<Pulse>,
}

/// One loop as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopReport {
    pub name: String,
    /// Since its last turn.
    pub age: Duration,
    pub doing: &'static str,
}

impl Progress {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let excused_ns = Arc::new(AtomicU64::new(clock.boot_ns()));
        let store_up = Arc::new(AtomicBool::new(true));
        Self { clock, loops: Arc::default(), store_up, answered_ns: Arc::default(), excused_ns }
    }

    fn loops(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Pulse>>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to watch a loop that turns at least every `pause` while the store answers.
    pub fn watch(&self, name: impl Into<String>, pause: Duration) -> Beat {
        self.watch_any(name.into(), pause, true)
    }

    /// Starts to watch a loop that turns at least every `pause`, store or no store.
    pub fn watch_always(&self, name: impl Into<String>, pause: Duration) -> Beat {
        self.watch_any(name.into(), pause, false)
    }

    fn watch_any(&self, name: String, pause: Duration, needs_store: bool) -> Beat {
        let pulse = Arc::new(Pulse {
            name: name.clone(),
            pause,
            needs_store,
            last_ns: AtomicU64::new(self.clock.boot_ns()),
            doing: Mutex::new("starting"),
            ended: AtomicBool::new(false),
        });
        self.loops().insert(name, pulse.clone());
        Beat { clock: self.clock.clone(), pulse }
    }

    fn watched(&self) -> Vec<(Duration, Arc<Pulse>)> {
        let now = self.clock.boot_ns();
        let loops = self.loops();
        let watched = loops.values().filter(|pulse| !pulse.ended.load(Ordering::Relaxed));
        watched
            .map(|pulse| {
                let age = now.saturating_sub(pulse.last_ns.load(Ordering::Relaxed));
                (Duration::from_nanos(age), pulse.clone())
            })
            .collect()
    }

    /// Each watched loop.
    pub fn report(&self) -> Vec<LoopReport> {
        let doing = |pulse: &Pulse| *pulse.doing.lock().unwrap_or_else(PoisonError::into_inner);
        let report = |(age, pulse): (Duration, Arc<Pulse>)| LoopReport {
            name: pulse.name.clone(),
            age,
            doing: doing(&pulse),
        };
        self.watched().into_iter().map(report).collect()
    }

    /// Age of each watched loop's last turn.
    pub fn ages(&self) -> BTreeMap<String, Duration> {
        self.watched().into_iter().map(|(age, pulse)| (pulse.name.clone(), age)).collect()
    }

    /// Loops whose turn is overdue by `limit`, although nothing excuses it.
    pub fn stalled(&self, limit: Duration) -> Vec<String> {
        let excused = self.excused_ns.load(Ordering::Relaxed);
        let most = Duration::from_nanos(self.clock.boot_ns().saturating_sub(excused));
        let up = self.store_up();
        let stalled = self.watched().into_iter().filter(|(age, pulse)| {
            (up || !pulse.needs_store) && (*age).min(most) >= limit + pulse.pause
        });
        stalled.map(|(_, pulse)| pulse.name.clone()).collect()
    }

    /// The whole process could not run, or the store could not answer, until now: every loop is
    /// given its time anew.
    pub fn excuse(&self) {
        self.excused_ns.store(self.clock.boot_ns(), Ordering::Relaxed);
    }

    /// For how long all could have gone on: this process ran and the store answered.
    pub(crate) fn steady_for(&self) -> Duration {
        let excused = self.excused_ns.load(Ordering::Relaxed);
        let since = Duration::from_nanos(self.clock.boot_ns().saturating_sub(excused));
        if self.store_up() { since } else { Duration::ZERO }
    }

    /// Whether the store answered just now; what was known before.
    pub(crate) fn set_store_up(&self, up: bool) -> bool {
        let before = self.store_up.swap(up, Ordering::Relaxed);
        if up && !before {
            self.excuse();
        }
        before
    }

    /// A loop that asks regularly had an answer from the store.
    pub(crate) fn answered(&self) {
        self.answered_ns.store(self.clock.boot_ns(), Ordering::Relaxed);
    }

    /// Whether such an answer came within that time.
    pub(crate) fn has_answered(&self, within: Duration) -> bool {
        let age = self.clock.boot_ns().saturating_sub(self.answered_ns.load(Ordering::Relaxed));
        Duration::from_nanos(age) <= within
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

    /// The same at the end of a round, where a test build can park the loop.
    pub async fn round(&self) {
        self.turn();
        self.doing("waiting");
        failpoint::pass(&self.pulse.name).await;
    }

    /// Says what begins, for whoever asks why the loop does not turn.
    pub fn doing(&self, what: &'static str) {
        *self.pulse.doing.lock().unwrap_or_else(PoisonError::into_inner) = what;
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

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[derive(Default)]
    struct Hands(AtomicU64);

    impl Hands {
        fn forward(&self, seconds: u64) {
            self.0.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
        }
    }

    impl Clock for Hands {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn boot_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    const LIMIT: Duration = Duration::from_secs(45);

    #[test]
    fn a_loop_that_does_not_turn_has_stalled_unless_it_is_excused() {
        let clock = Arc::new(Hands::default());
        let progress = Progress::new(clock.clone());
        let scheduler = progress.watch("scheduler", Duration::from_secs(1));
        let pings = progress.watch_always("pings", Duration::from_secs(4));
        scheduler.doing("fire");
        clock.forward(45);
        assert!(progress.stalled(LIMIT).is_empty());
        clock.forward(4);
        assert_eq!(progress.stalled(LIMIT), ["pings", "scheduler"]);
        let report = progress.report();
        assert_eq!((report[1].name.as_str(), report[1].doing), ("scheduler", "fire"));

        progress.set_store_up(false);
        assert_eq!(progress.stalled(LIMIT), ["pings"], "it waits for no store");
        pings.turn();
        clock.forward(10);
        progress.set_store_up(true);
        assert!(progress.stalled(LIMIT).is_empty(), "it is given its time anew");
        assert_eq!(progress.steady_for(), Duration::ZERO);
        clock.forward(46);
        assert_eq!(progress.steady_for(), Duration::from_secs(46));
        assert_eq!(progress.stalled(LIMIT), ["pings", "scheduler"].split_at(1).1);
        progress.excuse();
        assert!(progress.stalled(LIMIT).is_empty(), "the process stood still");

        clock.forward(46);
        drop(scheduler);
        pings.turn();
        assert!(progress.stalled(LIMIT).is_empty(), "it ended on purpose");
    }
}
