//! The whole protocol: nothing is found, breadth first and at random.
//!
//! `MATINS_MODEL_STATES` (default 40 000) and `MATINS_MODEL_WALKS` (default 1 500) say how far to
//! go; the deep form is `MATINS_MODEL_STATES=30000000 MATINS_MODEL_WALKS=2000000`.

use matins_outage_model::explore::{Bounds, Report, search, wander};
use matins_outage_model::world::Kind::{Keyed, Mark, New, None, Plain};
use matins_outage_model::world::{Config, Kind};

fn limit(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

fn clean(config: &Config, report: &Report) {
    let (nodes, tasks, faults) = (config.nodes, config.tasks, config.faults);
    println!("{nodes} nodes, {tasks:?}, {faults} faults: {report:?}");
    assert!(report.found.is_none(), "{}", report.found.as_ref().expect("checked"));
    assert!(report.states > 1_000 && report.healed > 0, "something was explored");
}

fn breadth_first(nodes: usize, tasks: [Kind; 2], faults: u8) {
    let config = Config::new(nodes, tasks, faults);
    let states = limit("MATINS_MODEL_STATES", 40_000);
    clean(&config, &search(&config, Bounds { depth: 60, states, heal_every: 32 }));
}

/// As the store has it, where that is simpler than the protocol.
fn as_built(nodes: usize, tasks: [Kind; 2], faults: u8) {
    let config = Config::new(nodes, tasks, faults).as_built();
    let states = limit("MATINS_MODEL_STATES", 40_000);
    clean(&config, &search(&config, Bounds { depth: 60, states, heal_every: 32 }));
    let config = config.failing(1).cancelling();
    let walks = limit("MATINS_MODEL_WALKS", 1_500);
    clean(&config, &wander(&config, 7, walks, 70));
}

fn at_random(nodes: usize, tasks: [Kind; 2], faults: u8) {
    let config = Config::new(nodes, tasks, faults).failing(1).cancelling();
    for seed in 0..2 {
        let walks = limit("MATINS_MODEL_WALKS", 1_500);
        clean(&config, &wander(&config, seed, walks, 70));
    }
}

#[test]
fn one_fault_of_any_kind() {
    for tasks in [[Plain, None], [New, None], [Mark, None], [Keyed, Keyed]] {
        breadth_first(2, tasks, 1);
    }
}

#[test]
fn two_faults_of_any_kind() {
    breadth_first(2, [Plain, None], 2);
    breadth_first(2, [Plain, New], 2);
    breadth_first(3, [Plain, None], 2);
}

#[test]
fn many_faults_with_failures_and_cancels() {
    for tasks in [[Plain, None], [Plain, New], [Mark, Keyed]] {
        at_random(2, tasks, 5);
        at_random(3, tasks, 6);
    }
}

#[test]
fn the_store_in_its_simpler_form() {
    for tasks in [[Plain, None], [New, None], [Mark, None]] {
        as_built(2, tasks, 1);
    }
    as_built(2, [Plain, New], 4);
    as_built(3, [Mark, Plain], 4);
}
