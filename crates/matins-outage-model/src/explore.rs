//! Through every state that can be reached: breadth first, so that what is found first is shortest.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::step::{Action, actions, apply, heal};
use crate::world::{Config, World};

/// How far to go.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub depth: usize,
    pub states: usize,
    /// From one in this many states it is tried whether everything goes on once healed; 0: never.
    pub heal_every: u64,
}

#[derive(Debug)]
pub struct Found {
    pub what: &'static str,
    pub path: Vec<Action>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}, after {} steps:", self.what, self.path.len())?;
        self.path.iter().try_for_each(|action| writeln!(f, "  {action:?}"))
    }
}

#[derive(Debug)]
pub struct Report {
    pub states: usize,
    /// Every state up to here was seen.
    pub depth: usize,
    /// There was nothing more to see.
    pub complete: bool,
    pub healed: usize,
    pub found: Option<Found>,
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

type Seen = HashMap<u64, (u64, u16), BuildHasherDefault<AsItIs>>;

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Breadth first.
pub fn search(config: &Config, bounds: Bounds) -> Report {
    let start = World::new(config);
    let mut seen = Seen::default();
    let mut level = vec![start.clone()];
    seen.insert(fingerprint(&start), (0, 0));
    let mut report = Report { states: 1, depth: 0, complete: false, healed: 0, found: None };
    while report.depth < bounds.depth && seen.len() < bounds.states {
        let mut next = Vec::new();
        for world in &level {
            let from = fingerprint(world);
            for (index, action) in actions(world, config).into_iter().enumerate() {
                let Some(to) = apply(world, config, action) else { continue };
                let print = fingerprint(&to);
                if seen.contains_key(&print) {
                    continue;
                }
                seen.insert(print, (from, index as u16));
                let tried = bounds.heal_every > 0 && print.is_multiple_of(bounds.heal_every);
                report.healed += usize::from(tried);
                let healed = || if tried { heal(&to, config) } else { None };
                let what = to.violation(config).or_else(healed);
                if let Some(what) = what {
                    report.states = seen.len();
                    report.found = Some(Found { what, path: path(&seen, config, print) });
                    return report;
                }
                next.push(to);
            }
            if seen.len() >= bounds.states {
                report.states = seen.len();
                return report;
            }
        }
        report.depth += 1;
        report.states = seen.len();
        if next.is_empty() {
            report.complete = true;
            return report;
        }
        level = next;
    }
    report
}

fn path(seen: &Seen, config: &Config, end: u64) -> Vec<Action> {
    let mut indices = Vec::new();
    let mut at = end;
    while let Some((from, index)) = seen.get(&at).filter(|(from, _)| *from != 0) {
        indices.push(*index);
        at = *from;
    }
    let mut world = World::new(config);
    let mut path = Vec::new();
    for index in indices.into_iter().rev() {
        let action = actions(&world, config)[usize::from(index)];
        world = apply(&world, config, action).expect("it was applied before");
        path.push(action);
    }
    path
}

/// Deep and at random: `walks` from the beginning, each of `length` steps.
pub fn wander(config: &Config, seed: u64, walks: usize, length: usize) -> Report {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut report = Report { states: 0, depth: length, complete: false, healed: 0, found: None };
    for _ in 0..walks {
        let mut world = World::new(config);
        let mut path = Vec::new();
        for _ in 0..length {
            let Some((action, to)) = any(&world, config, &mut rng) else { break };
            world = to;
            path.push(action);
            report.states += 1;
            if let Some(what) = world.violation(config) {
                report.found = Some(Found { what, path });
                return report;
            }
        }
        report.healed += 1;
        if let Some(what) = heal(&world, config) {
            report.found = Some(Found { what, path });
            return report;
        }
    }
    report
}

/// Something that can happen; faults and ticks less often than the rest, so that there is
/// something for them to hit.
fn any(world: &World, config: &Config, rng: &mut StdRng) -> Option<(Action, World)> {
    let mut choices = actions(world, config);
    while !choices.is_empty() {
        let at = rng.random_range(0..choices.len());
        let rare = matches!(choices[at], Action::Fault(..) | Action::Tick);
        if rare && choices.len() > 1 && rng.random_range(0..3) > 0 {
            continue;
        }
        let action = choices.swap_remove(at);
        if let Some(to) = apply(world, config, action) {
            return Some((action, to));
        }
    }
    None
}
