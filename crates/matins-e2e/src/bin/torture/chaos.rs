//! What is done to the server: SIGKILL, SIGTERM, SIGSTOP and SIGCONT, also while it starts, and
//! SIGKILL to the runners of its tasks.

use std::fmt;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::Server;
use matins_e2e::process::{self, Signal};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::Options;
use crate::load::Load;

#[derive(Default)]
pub(crate) struct Chaos {
    pub(crate) kills: u32,
    pub(crate) kills_at_start: u32,
    pub(crate) stops: u32,
    pub(crate) pauses: u32,
    pub(crate) runners: u32,
    pub(crate) slowest_start: Duration,
    pub(crate) slowest_stop: Duration,
    /// Starts that failed.
    pub(crate) refused: Vec<String>,
    /// Exits after SIGTERM that were no success.
    pub(crate) bad_exits: Vec<ExitStatus>,
}

pub(crate) fn unleash(server: &mut Server, options: Options, load: &Load) -> Chaos {
    let mut random = StdRng::seed_from_u64(options.seed);
    let mut chaos = Chaos::default();
    let begin = Instant::now();
    while chaos.kills + chaos.stops < options.kills {
        thread::sleep(Duration::from_micros(random.random_range(1_000..1_400_000)));
        match random.random_range(0..100) {
            0..58 => {
                server.kill();
                chaos.kills += 1;
            }
            58..76 => {
                server.signal(Signal::TERM);
                let asked = Instant::now();
                // Some are killed while they drain, as a container is.
                if random.random_range(0..4) == 0 {
                    thread::sleep(Duration::from_millis(random.random_range(0..800)));
                    server.kill();
                } else {
                    let status = server.wait_exit(Duration::from_secs(20));
                    if !status.success() {
                        chaos.bad_exits.push(status);
                    }
                    chaos.slowest_stop = chaos.slowest_stop.max(asked.elapsed());
                }
                chaos.stops += 1;
            }
            76..88 => {
                pause(server, &mut random);
                chaos.pauses += 1;
                continue;
            }
            _ => {
                chaos.runners += u32::from(kill_a_runner(server, &mut random));
                continue;
            }
        }
        if random.random_range(0..8) == 0 {
            server.spawn();
            thread::sleep(Duration::from_millis(random.random_range(0..300)));
            server.kill();
            chaos.kills_at_start += 1;
        }
        let start = Instant::now();
        while let Err(refused) = server.try_start() {
            println!("{refused}");
            assert!(chaos.refused.len() < 20, "it does not start any more");
            chaos.refused.push(refused);
            thread::sleep(Duration::from_millis(500));
        }
        chaos.slowest_start = chaos.slowest_start.max(start.elapsed());
        if (chaos.kills + chaos.stops).is_multiple_of(10) {
            println!(
                "{:4.0} s  {} of {} kills and stops, {} tasks accepted, {} calls received",
                begin.elapsed().as_secs_f64(),
                chaos.kills + chaos.stops,
                options.kills,
                load.count(),
                load.stub.count(),
            );
        }
    }
    chaos
}

/// Mostly short; one in six lasts longer than the lease.
fn pause(server: &Server, random: &mut StdRng) {
    let longest = if random.random_range(0..6) == 0 { 7_000 } else { 1_000 };
    server.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(random.random_range(10..longest)));
    server.signal(Signal::CONT);
}

fn kill_a_runner(server: &Server, random: &mut StdRng) -> bool {
    let runners = process::descendants(server.pid());
    let runners: Vec<_> = runners.iter().filter(|process| process.parent == server.pid()).collect();
    if runners.is_empty() {
        return false;
    }
    process::signal(runners[random.random_range(0..runners.len())].pid, Signal::KILL)
}

impl fmt::Display for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} SIGKILL ({} more while starting), {} SIGTERM, {} SIGSTOP, {} runners killed",
            self.kills, self.kills_at_start, self.stops, self.pauses, self.runners
        )?;
        writeln!(
            f,
            "slowest start {:.2} s, slowest graceful stop {:.2} s",
            self.slowest_start.as_secs_f64(),
            self.slowest_stop.as_secs_f64()
        )
    }
}
