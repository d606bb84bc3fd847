//! What is done to the servers: SIGKILL, SIGTERM, SIGSTOP and SIGCONT, also while they start, and
//! SIGKILL to the runners of their tasks.

use std::fmt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::process::{self, Signal};
use matins_e2e::{Server, wait_for};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::Options;
use crate::cluster::{Cluster, Services};
use crate::load::Load;
use crate::services::{Faults, trouble};

#[derive(Default)]
pub(crate) struct Chaos {
    pub(crate) kills: u32,
    /// Of the kills: the server alone, while its parent lives.
    pub(crate) children: u32,
    pub(crate) kills_at_start: u32,
    pub(crate) stops: u32,
    pub(crate) pauses: u32,
    pub(crate) runners: u32,
    pub(crate) slowest_start: Duration,
    pub(crate) slowest_stop: Duration,
    /// What the services suffered.
    pub(crate) faults: Faults,
    /// Starts that failed while the store was away.
    pub(crate) too_early: u32,
    /// Starts that failed.
    pub(crate) refused: Vec<String>,
    /// Exits after SIGTERM that were no success.
    pub(crate) bad_exits: Vec<ExitStatus>,
}

pub(crate) fn unleash(cluster: &mut Cluster, options: Options, load: &Load) -> Chaos {
    let enough = AtomicBool::new(false);
    let Cluster { servers, services, .. } = cluster;
    let shared = services.is_some();
    thread::scope(|scope| {
        let mut troubles = Vec::new();
        if let Some(Services { database, redis, .. }) = services {
            let (seed, enough) = (!options.seed, &enough);
            let suffer = |random: &mut StdRng| database.suffer(random);
            troubles.push(scope.spawn(move || trouble(seed, enough, suffer)));
            if let Some(redis) = redis {
                let suffer = |random: &mut StdRng| redis.suffer(random);
                troubles.push(scope.spawn(move || trouble(seed ^ 1, enough, suffer)));
            }
        }
        // Also when this panics: the scope waits for the others.
        let stop = Stop(&enough);
        let mut chaos = of_servers(servers, shared, options, load);
        drop(stop);
        for trouble in troubles {
            chaos.faults.extend(trouble.join().expect("trouble does not panic"));
        }
        // Whoever is down now, with nothing in its way, can start.
        for server in servers.iter_mut().filter(|server| !server.ready()) {
            if server.running() {
                server.wait_ready();
            } else {
                server.start();
            }
        }
        chaos
    })
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn of_servers(servers: &mut [Server], shared: bool, options: Options, load: &Load) -> Chaos {
    let mut random = StdRng::seed_from_u64(options.seed);
    let mut chaos = Chaos::default();
    let begin = Instant::now();
    while chaos.kills + chaos.stops < options.kills {
        thread::sleep(Duration::from_micros(random.random_range(1_000..1_400_000)));
        let one = random.random_range(0..servers.len());
        let server = &mut servers[one];
        if !end(server, &mut random, &mut chaos) {
            continue;
        }
        if shared && random.random_range(0..2) == 0 {
            // The others have its work meanwhile.
            thread::sleep(Duration::from_millis(random.random_range(0..3_000)));
        }
        if random.random_range(0..8) == 0 {
            server.spawn();
            thread::sleep(Duration::from_millis(random.random_range(0..300)));
            server.kill();
            chaos.kills_at_start += 1;
        }
        begin_again(server, shared, &mut chaos);
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

/// Whether the server is gone.
fn end(server: &mut Server, random: &mut StdRng, chaos: &mut Chaos) -> bool {
    match random.random_range(0..100) {
        0..58 => {
            chaos.kills += 1;
            if server.is_supervised() && random.random_range(0..3) > 0 {
                chaos.children += 1;
                kill_the_child(server);
                return false;
            }
            server.kill();
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
            pause(server, random);
            chaos.pauses += 1;
            return false;
        }
        _ => {
            chaos.runners += u32::from(kill_a_runner(server, random));
            return false;
        }
    }
    true
}

/// The parent has to see to it.
fn kill_the_child(server: &mut Server) {
    let Some(child) = server.served_by() else { return };
    process::signal(child, Signal::KILL);
    wait_for(Duration::from_secs(60), || server.served_by().filter(|pid| *pid != child));
    server.wait_ready();
}

fn begin_again(server: &mut Server, shared: bool, chaos: &mut Chaos) {
    let start = Instant::now();
    let mut failed = 0;
    while let Err(refused) = server.try_start() {
        if shared && refused.contains("unavailable") {
            chaos.too_early += 1;
        } else {
            println!("{refused}");
            chaos.refused.push(refused);
        }
        failed += 1;
        assert!(failed < 20, "it does not start any more");
        thread::sleep(Duration::from_millis(500));
    }
    chaos.slowest_start = chaos.slowest_start.max(start.elapsed());
}

/// Mostly short; one in four lasts longer than the lease.
fn pause(server: &Server, random: &mut StdRng) {
    let long = random.random_range(0..4) == 0;
    let milliseconds = if long { 5_200..9_000 } else { 10..1_000 };
    let Some(pid) = server.served_by() else { return };
    process::signal(pid, Signal::STOP);
    thread::sleep(Duration::from_millis(random.random_range(milliseconds)));
    process::signal(pid, Signal::CONT);
}

fn kill_a_runner(server: &Server, random: &mut StdRng) -> bool {
    let Some(pid) = server.served_by() else { return false };
    let runners = process::descendants(pid);
    let runners: Vec<_> = runners.iter().filter(|process| process.parent == pid).collect();
    if runners.is_empty() {
        return false;
    }
    process::signal(runners[random.random_range(0..runners.len())].pid, Signal::KILL)
}

impl fmt::Display for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} SIGKILL ({} of the child alone, {} more while starting), {} SIGTERM, {} SIGSTOP, {} runners killed",
            self.kills, self.children, self.kills_at_start, self.stops, self.pauses, self.runners
        )?;
        for (what, times) in &self.faults {
            writeln!(f, "{times:4} x {what}")?;
        }
        if self.too_early > 0 {
            writeln!(f, "{} starts while the store was away", self.too_early)?;
        }
        writeln!(
            f,
            "slowest start {:.2} s, slowest graceful stop {:.2} s",
            self.slowest_start.as_secs_f64(),
            self.slowest_stop.as_secs_f64()
        )
    }
}
