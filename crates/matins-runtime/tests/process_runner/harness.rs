//! The part of the test protocol that `cargo test` and nextest speak.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

pub(crate) type Case = (&'static str, fn());

/// Names the cases of a module.
#[macro_export]
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CASES: &[$crate::harness::Case] =
            &[$((concat!(module_path!(), "::", stringify!($name)), $name as fn())),*];
    };
}

pub(crate) fn main(groups: &[&[Case]]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let selected = |name: &str| {
        filters.is_empty()
            || filters
                .iter()
                .any(|filter| if has("--exact") { name == *filter } else { name.contains(*filter) })
    };
    if has("--list") {
        for (name, _) in groups.iter().copied().flatten() {
            if !has("--ignored") && (filters.is_empty() || filters == ["terse"] || selected(name)) {
                println!("{name}: test");
            }
        }
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, run) in groups.iter().copied().flatten().filter(|(name, _)| selected(name)) {
        let passed = catch_unwind(AssertUnwindSafe(run)).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
