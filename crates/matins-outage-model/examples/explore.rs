//! Explores by hand: `explore NODES KINDS FAULTS DEPTH STATES [DROPPED] [FAULT…]`.

use matins_outage_model::Clause;
use matins_outage_model::explore::{Bounds, search, wander};
use matins_outage_model::world::{Config, Fault, Kind};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| words[index].parse::<usize>().expect("a number");
    let mut kinds = words[1].split(',').map(|word| match word {
        "plain" => Kind::Plain,
        "new" => Kind::New,
        "keyed" => Kind::Keyed,
        "mark" => Kind::Mark,
        _ => Kind::None,
    });
    let tasks = [kinds.next().unwrap_or(Kind::None), kinds.next().unwrap_or(Kind::None)];
    let mut config = Config::new(number(0), tasks, number(2) as u8);
    for word in &words[5..] {
        let named = |name: String| name.eq_ignore_ascii_case(word);
        if word == "cancel" {
            config = config.cancelling();
        } else if word == "fail" {
            config = config.failing(1);
        } else if let Some(clause) = Clause::ALL.iter().find(|c| named(format!("{c:?}"))) {
            config = config.without(*clause);
        } else if let Some(fault) = Fault::ALL.iter().find(|f| named(format!("{f:?}"))) {
            if config.allowed.len() == Fault::ALL.len() {
                config.allowed.clear();
            }
            config.allowed.push(*fault);
        }
    }
    let began = std::time::Instant::now();
    let report = match std::env::var("WALKS").map(|n| n.parse::<usize>().expect("a number")) {
        Ok(walks) => wander(&config, 1, walks, number(3)),
        Err(_) => search(&config, Bounds { depth: number(3), states: number(4), heal_every: 64 }),
    };
    let (states, depth) = (report.states, report.depth);
    let (complete, healed) = (report.complete, report.healed);
    println!(
        "{states} states, depth {depth}, complete {complete}, {healed} healed, {:?}",
        began.elapsed()
    );
    if let Some(found) = report.found {
        print!("{found}");
    }
}
