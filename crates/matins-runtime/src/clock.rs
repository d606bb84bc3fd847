//! The clocks and the dice of a node. Everything that asks for the time or for chance asks here,
//! so that a simulation can step the one and seed the other.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

pub trait Clock: Send + Sync {
    /// Wall-clock time, to the microsecond.
    fn now(&self) -> Timestamp;

    /// `CLOCK_BOOTTIME` in nanoseconds: only grows, and counts suspension too.
    fn boot_ns(&self) -> u64;

    /// Goes on from what the store's own clock says now.
    fn follow(&self, _shared: Timestamp) {}

    /// A random number.
    fn random(&self) -> u64 {
        rand::random()
    }

    /// Uniform in `[0, 1)`.
    fn dice(&self) -> f64 {
        (self.random() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The clocks of the host.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> Timestamp {
        to_micros(Timestamp::now())
    }

    fn boot_ns(&self) -> u64 {
        #[cfg(target_os = "linux")]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let id = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(id);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// The clocks of the host, the wall clock set by a store that several machines share: what they
/// write must be comparable, however their own clocks go.
#[derive(Debug, Default)]
pub struct SharedClock {
    offset_us: AtomicI64,
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        let host = HostClock.now().as_microsecond();
        let shared = host.saturating_add(self.offset_us.load(Ordering::Relaxed));
        Timestamp::from_microsecond(shared).unwrap_or(Timestamp::MAX)
    }

    fn boot_ns(&self) -> u64 {
        HostClock.boot_ns()
    }

    fn follow(&self, shared: Timestamp) {
        let offset = shared.as_microsecond() - HostClock.now().as_microsecond();
        self.offset_us.store(offset, Ordering::Relaxed);
    }
}

/// A clock that follows tokio's, which a test pauses, and that can be stepped like a wall clock.
#[derive(Debug, Clone)]
pub struct SimulatedClock {
    start: tokio::time::Instant,
    wall_at_start: Timestamp,
    step_us: Arc<AtomicI64>,
    dice: Arc<Mutex<StdRng>>,
}

impl SimulatedClock {
    pub fn starting_at(wall: Timestamp, seed: u64) -> Self {
        Self {
            start: tokio::time::Instant::now(),
            wall_at_start: wall,
            step_us: Arc::default(),
            dice: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))),
        }
    }

    /// Steps the wall clock; the monotonic one is left alone.
    pub fn step(&self, micros: i64) {
        self.step_us.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let elapsed = self.start.elapsed().as_micros() as i64;
        let micros =
            self.wall_at_start.as_microsecond() + elapsed + self.step_us.load(Ordering::SeqCst);
        Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
    }

    fn boot_ns(&self) -> u64 {
        Duration::from_secs(1_000).saturating_add(self.start.elapsed()).as_nanos() as u64
    }

    fn random(&self) -> u64 {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).random()
    }
}

/// Stores keep microseconds; a finer instant would not come back equal.
pub fn to_micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}
