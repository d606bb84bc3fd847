//! `torture [--ci] [--seed N] [--kills N] [--keep]`
//!
//! Thousands of tasks of every kind, enqueued by several clients, while the server is killed,
//! stopped and paused at random moments. Then every accepted task, every run that the witness saw
//! and every occurrence of every schedule must be accounted for. Exits with 1 when one is not.

mod chaos;
mod load;
mod verdict;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use matins_e2e::{Server, binary};

use crate::load::{Load, STUB_DELAY};

#[derive(Clone, Copy, Debug)]
struct Options {
    kills: u32,
    seed: u64,
    keep: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options { kills: 200, seed: rand::random(), keep: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = |what: &str| {
            let value = arguments.next().ok_or(format!("{what} takes a number"))?;
            value.parse::<u64>().map_err(|_| format!("{what} takes a number, not {value:?}"))
        };
        match argument.as_str() {
            "--ci" => options.kills = 20,
            "--keep" => options.keep = true,
            "--seed" => options.seed = number("--seed")?,
            "--kills" => options.kills = number("--kills")?.try_into().map_err(|_| "too many")?,
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\nusage: torture [--ci] [--seed N] [--kills N] [--keep]");
            return ExitCode::from(2);
        }
    };
    let binary = binary::matins_release_or_debug();
    println!("torture: {} kills, seed {}, {}", options.kills, options.seed, binary.display());
    let begin = Instant::now();
    let mut server = Server::builder().binary(binary).config(CONFIGURATION).start();
    let load = Load::new(&server, options.seed);
    load.create_schedules();

    let chaos = thread::scope(|scope| {
        let clients = load.start(scope);
        let chaos =
            panic::catch_unwind(AssertUnwindSafe(|| chaos::unleash(&mut server, options, &load)));
        let Ok(chaos) = chaos else {
            // The clients would wait for a server for ever.
            println!("given up; everything is kept in {}", server.keep().display());
            if server.running() {
                server.kill();
            }
            std::process::exit(1);
        };
        load.enough.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client does not panic");
        }
        chaos
    });
    thread::sleep(STUB_DELAY);
    let verdict = verdict::judge(&mut server, &load, &chaos);

    println!("{chaos}{verdict}took {:.0} s", begin.elapsed().as_secs_f64());
    if options.keep || !verdict.violations.is_empty() {
        println!("seed {}, everything is kept in {}", options.seed, server.keep().display());
    }
    if verdict.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Losses and interruptions are what this is about: no number of them gives a task up.
const CONFIGURATION: &str = "\
lease: 5s
drain_timeout: 3s
task_pools:
  web: {max_workers: 6, task_types: [http_call]}
  default: {max_workers: 8}
http: {allow: [127.0.0.0/8]}
defaults:
  grace: 500ms
  max_retries: 2
  max_losses: 1000
  max_interruptions: 100000
  backoff: {initial: 50ms, factor: 2, max: 400ms}
";
