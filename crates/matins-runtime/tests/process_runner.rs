//! The process runner against real processes. What counts is what `/proc` and files say, never
//! what the runner says of itself.
//!
//! This binary is its own runner and its own second Matins, so it has a `main` of its own.

#[path = "process_runner/command.rs"]
mod command;
#[path = "process_runner/end.rs"]
mod end;
#[path = "process_runner/engine.rs"]
mod engine;
#[path = "process_runner/harness.rs"]
mod harness;
#[path = "process_runner/limits.rs"]
mod limits;
#[path = "process_runner/output.rs"]
mod output;
#[path = "process_runner/second.rs"]
mod second;
#[path = "process_runner/start.rs"]
mod start;
#[path = "process_runner/tree.rs"]
mod tree;
#[path = "process_runner/witness.rs"]
mod witness;

use std::process::ExitCode;

use matins_runtime::process::runner;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(runner::HIDDEN_WORD) => runner::main(),
        Some(second::WORD) => second::main(),
        _ => harness::main(&[
            command::CASES,
            end::CASES,
            limits::CASES,
            output::CASES,
            start::CASES,
            tree::CASES,
        ]),
    }
}
