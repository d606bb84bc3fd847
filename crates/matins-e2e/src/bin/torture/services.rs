//! What is done to the things that several servers share, while they suffer themselves: the
//! database is restarted in each way, its sessions are ended, and lines to it go dead.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use matins_e2e::process::{self, Signal};
use matins_testbed::Weather;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::cluster::Services;

/// How often what was done.
pub(crate) type Faults = BTreeMap<&'static str, u32>;

pub(crate) fn trouble(services: &Services, seed: u64, enough: &AtomicBool) -> Faults {
    let mut random = StdRng::seed_from_u64(seed);
    let mut faults = Faults::new();
    while !enough.load(Ordering::Relaxed) {
        pause(&mut random, 300..3_000);
        let what = one(services, &mut random);
        *faults.entry(what).or_default() += 1;
    }
    faults
}

fn pause(random: &mut StdRng, milliseconds: std::ops::Range<u64>) {
    thread::sleep(Duration::from_millis(random.random_range(milliseconds)));
}

fn one(services: &Services, random: &mut StdRng) -> &'static str {
    let postgres = &services.postgres;
    match random.random_range(0..100) {
        0..12 => {
            postgres.stop("fast");
            pause(random, 0..1_500);
            postgres.start_again();
            "database restarted (fast)"
        }
        12..24 => {
            postgres.stop("immediate");
            pause(random, 0..1_500);
            postgres.start_again();
            "database restarted (immediate)"
        }
        24..50 => {
            let sessions = format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
                services.database
            );
            postgres.sql("postgres", &sessions);
            "sessions terminated"
        }
        50..60 => {
            let everything = process::descendants(postgres.pid());
            signal_all(&everything, Signal::STOP);
            pause(random, 100..2_000);
            signal_all(&everything, Signal::CONT);
            "database frozen"
        }
        60..90 => {
            // One in four outlasts the lease.
            let longest = if random.random_range(0..4) == 0 { 8_000 } else { 1_500 };
            let line = &services.lines[random.random_range(0..services.lines.len())];
            line.set(Weather::Silent);
            pause(random, 50..longest);
            line.set(Weather::Fine);
            "line dead"
        }
        _ => {
            let line = &services.lines[random.random_range(0..services.lines.len())];
            line.set(Weather::Refused);
            pause(random, 50..1_500);
            line.set(Weather::Fine);
            "line refused"
        }
    }
}

fn signal_all(processes: &[process::Process], signal: Signal) {
    for one in processes {
        process::signal(one.pid, signal);
    }
}
