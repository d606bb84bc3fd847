//! Several scenarios at a time, for those that mostly wait.

use std::panic;
use std::thread;

/// Runs all of them at once and fails with the names of those that failed.
#[track_caller]
pub fn together(scenarios: &[(&str, fn())]) {
    let failed: Vec<&str> = thread::scope(|scope| {
        let running: Vec<_> = scenarios
            .iter()
            .map(|(name, scenario)| {
                let thread = thread::Builder::new()
                    .name((*name).to_owned())
                    .spawn_scoped(scope, move || panic::catch_unwind(scenario).is_err())
                    .expect("a thread can be started");
                (*name, thread)
            })
            .collect();
        running
            .into_iter()
            .filter_map(|(name, thread)| thread.join().unwrap_or(true).then_some(name))
            .collect()
    });
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}
