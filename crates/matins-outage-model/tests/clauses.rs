//! Without any one clause of the protocol the explorer finds what goes wrong. So the model can
//! fail, and each clause earns its place.

use matins_outage_model::Clause;
use matins_outage_model::explore::{Bounds, search};
use matins_outage_model::world::Fault::{
    Burn, CutPg, CutRedis, Empty, Failover, Freeze, LostAnswer, PgDown, RedisDown,
};
use matins_outage_model::world::Kind::{Mark, New, None, Plain};
use matins_outage_model::world::{Config, Fault, Kind};

/// Dropping `clause` breaks something within these faults, and keeping it nothing that is as near.
fn breaks(clause: Clause, tasks: [Kind; 2], faults: &[Fault], shape: fn(Config) -> Config) {
    let whole = shape(Config::new(2, tasks, faults.len() as u8).allowing(faults));
    let bounds = Bounds { depth: 24, states: 1_200_000, heal_every: 64 };
    let dropped = search(&whole.clone().without(clause), bounds);
    let states = dropped.states;
    let found =
        dropped.found.unwrap_or_else(|| panic!("{clause:?} is not needed: {states} states"));
    println!("{clause:?}, {states} states: {found}");
    let near = Bounds { depth: found.path.len(), ..bounds };
    let kept = search(&whole, near);
    assert!(kept.found.is_none(), "with all clauses: {}", kept.found.expect("checked"));
    println!("{clause:?} kept: {} states to depth {}", kept.states, kept.depth);
}

fn two_generations(config: Config) -> Config {
    Config { generations: 2, ..config }
}

fn plainly(config: Config) -> Config {
    config
}

macro_rules! clauses {
    ($($name:ident: $clause:ident, $tasks:expr, $faults:expr, $shape:expr;)*) => {
        $(#[test] fn $name() { breaks(Clause::$clause, $tasks, &$faults, $shape); })*
    };
}

clauses! {
    f1_tombstone_even_for_nothing: F1, [Plain, None], [CutPg, CutPg], plainly;
    f2_another_redis_is_none: F2, [Plain, None], [CutPg, Failover], plainly;
    f3_generation_in_the_claim: F3, [Plain, None], [CutPg, Empty], plainly;
    f4_generation_above_the_mirrored: F4, [Plain, None], [CutPg, CutRedis], plainly;
    f5_not_until_settled: F5, [Plain, None], [CutPg, Empty], plainly;
    f6_renewal_of_the_current_generation: F6, [Plain, None], [CutPg, CutRedis], two_generations;
    f7_acknowledged_with_nothing_left: F7, [Plain, None], [CutPg, RedisDown], plainly;
    f8_withdrawn_with_nothing_left: F8, [Plain, None], [CutPg], plainly;
    f9_run_within_the_outage_lease: F9, [Plain, None], [CutPg, CutRedis], plainly;
    f10_lease_before_the_start: F10, [Plain, None], [CutPg, CutRedis], plainly;
    f11_detached_first: F11, [Plain, None], [CutPg, CutPg], two_generations;
    f12_take_deletes_the_claim: F12, [Plain, None], [CutPg, CutPg], plainly;
    f13_replayed_counts_as_mirrored: F13, [New, None], [CutPg, CutRedis], plainly;
    f14_claim_inserts: F14, [New, None], [PgDown, Empty], plainly;
    f15_by_fence: F15, [Plain, None], [CutPg, CutRedis, Freeze], plainly;
    f16_announcements_end: F16, [Plain, None], [Burn, CutPg], plainly;
    f17_position_of_one_identity: F17, [New, New], [CutPg, Empty, Burn], plainly;
    later_claim_overtakes: Overtake, [Plain, None], [PgDown], plainly;
    attempt_in_the_claim: Attempt, [Plain, None], [CutPg], |config| config.failing(1);
    farewell: Farewell, [Plain, None], [CutRedis, LostAnswer, CutPg], plainly;
    cancel_takes: CancelTakes, [Plain, None], [CutPg], Config::cancelling;
    backlog: Backlog, [Plain, None], [CutPg, RedisDown], plainly;
    marks_are_mirrored: Mirrored, [Mark, None], [CutPg, Empty], plainly;
    settles_through_redis: SettleThere, [Plain, None], [PgDown, CutRedis], plainly;
}
