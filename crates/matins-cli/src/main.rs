//! The binary `matins`: configuration, command line, server.
//!
//! Commands never talk to a store themselves: they ask the API, over HTTP or in this process
//! (see `door.rs`). An error is one line for people and a hint, never a backtrace.

mod commands;
mod config;
mod door;
mod failure;
mod output;
mod place;
mod serve;
mod session;
mod storage;
mod supervise;
mod views;

use std::process::ExitCode;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use commands::Cli;
use failure::{Exit, Failure};

/// Own errors of `matins run`, which otherwise exits like its command.
const RUN_ERROR: u8 = 125;

/// Number of the signal that a write beyond `RLIMIT_FSIZE` brings; without a handler it kills.
const SIGXFSZ: i32 = 25;

fn main() -> ExitCode {
    // A runner must come up before any thread or handler of this program exists.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == matins_runtime::process::runner::HIDDEN_WORD)
    {
        return matins_runtime::process::runner::main();
    }
    let supervised = std::env::args_os().nth(1).is_some_and(|word| word == supervise::HIDDEN_WORD);
    let words = std::env::args_os().enumerate().filter(|(at, _)| *at != 1 || !supervised);
    let mut cli = match Cli::try_parse_from(words.map(|(_, word)| word)) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if supervised {
        match supervise::leash::Leash::take() {
            Ok(leash) => cli.put_on(leash),
            Err(error) => {
                say(&Failure::io("cannot talk to the supervising parent", &error));
                return ExitCode::FAILURE;
            }
        }
    } else if cli.wants_a_parent() {
        return supervise::run();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&Failure::io("cannot start threads", &error));
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        // A full disk or a limit on file sizes is an error of one write, not the end of all work.
        let _ignored = signal(SignalKind::from_raw(SIGXFSZ));
        // Fails only when another part of the process was first, with the same provider.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        cli.run().await
    });
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Help and version are answers, everything else is wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    // Nobody reading it is no reason for another error.
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    let runs = std::env::args().skip(1).take_while(|word| word != "--").any(|word| word == "run");
    ExitCode::from(if runs { RUN_ERROR } else { Exit::Usage as u8 })
}

/// Says why a command failed: what is wrong, and what to do.
fn say(failure: &Failure) {
    if let Some(message) = &failure.message {
        output::note(&format!("error: {}", output::text::block(message)));
    }
    if let Some(hint) = &failure.hint {
        output::note(&format!("hint: {}", output::text::block(hint)));
    }
}
