//! Waiting for what is promised within a time, and watching that what must not happen does not.

use std::thread;
use std::time::{Duration, Instant};

const PACE: Duration = Duration::from_millis(15);

/// What `look` finds, as soon as it finds something; nothing when the time is over.
pub fn wait_for<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(PACE);
    }
}

/// Fails unless `look` finds something within the time.
#[track_caller]
pub fn eventually<T>(what: &str, within: Duration, look: impl FnMut() -> Option<T>) -> T {
    match wait_for(within, look) {
        Some(found) => found,
        None => panic!("not within {within:?}: {what}"),
    }
}

/// Fails when `look` does not hold once during the time.
#[track_caller]
pub fn holds_for(what: &str, time: Duration, mut look: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!(look(), "did not hold for {time:?}: {what}");
        thread::sleep(PACE);
    }
}

pub fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}
