//! What is done to the things that several servers share, while they suffer themselves: the
//! database is restarted in each way, its sessions are ended, Redis is emptied, killed and frozen,
//! and the lines to both go dead. Both suffer at the same time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use matins_e2e::process::{self, Signal};
use matins_testbed::{Line, Weather};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::cluster::{Database, Dispatch};

/// How often what was done.
pub(crate) type Faults = BTreeMap<&'static str, u32>;

/// One fault after the other.
pub(crate) fn trouble(
    seed: u64,
    enough: &AtomicBool,
    mut one: impl FnMut(&mut StdRng) -> &'static str,
) -> Faults {
    let mut random = StdRng::seed_from_u64(seed);
    let mut faults = Faults::new();
    while !enough.load(Ordering::Relaxed) {
        pause(&mut random, 300..3_000);
        *faults.entry(one(&mut random)).or_default() += 1;
    }
    faults
}

fn pause(random: &mut StdRng, milliseconds: std::ops::Range<u64>) {
    thread::sleep(Duration::from_millis(random.random_range(milliseconds)));
}

/// One in four outlasts the lease.
fn long_pause(random: &mut StdRng) {
    let longest = if random.random_range(0..4) == 0 { 8_000 } else { 1_500 };
    pause(random, 50..longest);
}

fn any<'a, T>(all: &'a [T], random: &mut StdRng) -> &'a T {
    &all[random.random_range(0..all.len())]
}

fn cut(line: &Line, weather: Weather, pause: impl FnOnce()) {
    line.set(weather);
    pause();
    line.set(Weather::Fine);
}

impl Database {
    pub(crate) fn suffer(&self, random: &mut StdRng) -> &'static str {
        let postgres = &self.postgres;
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
            24..28 => {
                postgres.stop("immediate");
                pause(random, 3_000..9_000);
                postgres.start_again();
                "database away for long"
            }
            28..50 => {
                let sessions = format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
                    self.name
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
            60..75 if !self.cables.is_empty() => {
                let node = any(&self.cables, random);
                node.pull(0);
                long_pause(random);
                node.plug_in(0);
                "node cut off"
            }
            60..90 => {
                cut(any(&self.lines, random), Weather::Silent, || long_pause(random));
                "line to the database dead"
            }
            _ => {
                cut(any(&self.lines, random), Weather::Refused, || pause(random, 50..1_500));
                "line to the database refused"
            }
        }
    }
}

impl Dispatch {
    pub(crate) fn suffer(&mut self, random: &mut StdRng) -> &'static str {
        let Self { redis, lines } = self;
        match random.random_range(0..100) {
            0..25 => {
                redis.ask(&["flushall"]);
                "Redis emptied"
            }
            25..40 => {
                redis.kill();
                pause(random, 0..2_000);
                redis.start_again();
                if random.random_range(0..2) == 0 {
                    return "Redis killed, back without its last moments";
                }
                redis.ask(&["flushall"]);
                "Redis killed, back empty"
            }
            40..55 => {
                redis.freeze();
                long_pause(random);
                redis.thaw();
                "Redis frozen"
            }
            55..75 => {
                cut(any(lines, random), Weather::Silent, || long_pause(random));
                "line to Redis dead"
            }
            75..85 => {
                cut(any(lines, random), Weather::Refused, || pause(random, 50..1_500));
                "line to Redis refused"
            }
            _ => {
                cut(any(lines, random), Weather::Slow, || pause(random, 100..3_000));
                "line to Redis slow"
            }
        }
    }
}

fn signal_all(processes: &[process::Process], signal: Signal) {
    for one in processes {
        process::signal(one.pid, signal);
    }
}
