//! `torture [--ci] [--nodes N [--redis [--mirror]]] [--supervised] [--seed N] [--kills N] [--keep]`
//!
//! Thousands of tasks of every kind, enqueued by several clients, while the server is killed,
//! stopped and paused at random moments. Then every accepted task, every run that the witness saw
//! and every occurrence of every schedule must be accounted for. Exits with 1 when one is not.
//! With `--nodes` there are several servers on one PostgreSQL, which suffers too, as do the lines
//! to it; with `--redis` there is Redis in front of it, which suffers as well; with `--mirror` work
//! goes on from it alone while the database is away. With `--supervised` the one server has its
//! parent, and either or both are killed.

mod chaos;
mod cluster;
mod load;
mod services;
mod verdict;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use matins_e2e::binary;

use crate::cluster::Cluster;
use crate::load::{Load, STUB_DELAY};

#[derive(Clone, Copy, Debug)]
struct Options {
    nodes: usize,
    redis: bool,
    mirror: bool,
    kills: u32,
    seed: u64,
    keep: bool,
    supervised: bool,
}

fn options() -> Result<Options, String> {
    let seed = rand::random();
    let mut options = Options {
        nodes: 1,
        redis: false,
        mirror: false,
        kills: 200,
        seed,
        keep: false,
        supervised: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = |what: &str| {
            let value = arguments.next().ok_or(format!("{what} takes a number"))?;
            value.parse::<u64>().map_err(|_| format!("{what} takes a number, not {value:?}"))
        };
        match argument.as_str() {
            "--ci" => options.kills = 20,
            "--keep" => options.keep = true,
            "--redis" => options.redis = true,
            "--mirror" => options.mirror = true,
            "--supervised" => options.supervised = true,
            "--seed" => options.seed = number("--seed")?,
            "--nodes" => match number("--nodes")? {
                nodes @ 1..=16 => options.nodes = nodes as usize,
                nodes => return Err(format!("--nodes takes 1 to 16, not {nodes}")),
            },
            "--kills" => options.kills = number("--kills")?.try_into().map_err(|_| "too many")?,
            other => return Err(format!("unknown option {other}")),
        }
    }
    if options.redis && options.nodes == 1 {
        return Err("--redis goes with --nodes".to_owned());
    }
    if options.mirror && !options.redis {
        return Err("--mirror goes with --redis".to_owned());
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            let usage =
                "[--nodes N [--redis [--mirror]]] [--supervised] [--seed N] [--kills N] [--keep]";
            eprintln!("{error}\nusage: torture [--ci] {usage}");
            return ExitCode::from(2);
        }
    };
    let binary = binary::matins_release_or_debug();
    let Options { nodes, kills, seed, .. } = options;
    println!("torture: {nodes} nodes, {kills} kills, seed {seed}, {}", binary.display());
    let begin = Instant::now();
    let mut cluster = match nodes {
        1 => Cluster::one(binary, options.supervised),
        nodes => Cluster::several(binary, nodes, options.redis, options.mirror),
    };
    let load = Load::new(&cluster, options.seed);
    load.create_schedules();

    let chaos = thread::scope(|scope| {
        let clients = load.start(scope);
        let chaos =
            panic::catch_unwind(AssertUnwindSafe(|| chaos::unleash(&mut cluster, options, &load)));
        let Ok(chaos) = chaos else {
            // The clients would wait for a server for ever.
            for server in &mut cluster.servers {
                println!("given up; everything is kept in {}", server.keep().display());
                if server.running() {
                    server.kill();
                }
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
    let verdict = verdict::judge(&mut cluster, &load, &chaos);

    println!("{chaos}{verdict}took {:.0} s", begin.elapsed().as_secs_f64());
    if options.keep || !verdict.violations.is_empty() {
        for server in &mut cluster.servers {
            println!("seed {seed}, everything is kept in {}", server.keep().display());
        }
    }
    if verdict.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
