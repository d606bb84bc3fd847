//! Whether everything goes on once everything is healed.

use crate::Clause;
use crate::world::{Config, Kind, Life, Purpose, RowState, World};

use super::{Action, apply, tasks};

/// Rounds of everything that can be done and one tick.
const ROUNDS: usize = 24;
/// Steps of one round.
const STEPS: usize = 60;

/// Heals everything and lets the nodes work; `Some`: something is stuck for ever.
pub fn heal(world: &World, config: &Config) -> Option<&'static str> {
    let calm = Config { failures: 0, cancels: false, generations: 60, ..config.clone() };
    let mut now = world.clone();
    now.faults = 0;
    (now.pg.up, now.redis.up) = (true, true);
    for node in 0..config.nodes {
        (now.nodes[node].to_pg, now.nodes[node].to_redis) = (true, true);
        now = match now.nodes[node].life {
            Life::Frozen => now.thaw(node),
            Life::Dead => now.restart(config, node),
            Life::Up | Life::Burnt => now,
        };
    }
    if now.nodes[..config.nodes].iter().all(|node| node.life == Life::Burnt) {
        return None;
    }
    for _ in 0..ROUNDS {
        for _ in 0..STEPS {
            match useful(&now, &calm) {
                Some(next) => now = next,
                None => break,
            }
        }
        if let Some(what) = now.violation(&calm) {
            return Some(what);
        }
        if rests(&now, config) {
            return None;
        }
        for node in 0..config.nodes {
            now = apply(&now, &calm, Action::Renew(node)).unwrap_or(now);
        }
        now = apply(&now, &calm, Action::Tick).unwrap_or(now);
    }
    Some("something does not go on although everything is healed")
}

/// The first thing that can be done.
fn useful(world: &World, config: &Config) -> Option<World> {
    use Action as A;
    let nodes = 0..config.nodes;
    let mut order = Vec::new();
    for node in nodes {
        order.extend([A::Start(node), A::Attach(node)]);
        for task in tasks(config) {
            order.push(A::Settle { node, task, ok: true, lost: false });
            order.push(A::DarkSettle { node, task, ok: true, lost: false });
        }
        order.extend([A::ReplaySpool(node), A::ReplayStream(node), A::Trim(node)]);
        for task in tasks(config) {
            order.push(A::Detach { node, task, lost: false });
        }
        order.extend([A::Withdraw(node), A::ClearNote(node), A::Join { node, lost: false }]);
        order.extend([A::UseTaken { node, lost: false }, A::PushSend(node), A::Bump(node)]);
        for task in tasks(config) {
            order.push(A::Judge(node, task));
            for purpose in [Purpose::Claim, Purpose::Fire] {
                order.push(A::Alone { node, task, purpose, lost: false });
                order.push(A::Take(node, task, purpose));
            }
        }
    }
    order.into_iter().find_map(|action| apply(world, config, action))
}

/// Everything has come to its end.
fn rests(world: &World, config: &Config) -> bool {
    let ended = |task: usize| match world.pg.rows[task].state {
        RowState::Missing => config.tasks[task] != Kind::Mark && !world.ghost.accepted[task],
        RowState::Pending | RowState::Running => false,
        RowState::Done | RowState::Cancelled | RowState::Duplicate => true,
    };
    let written = world.nodes.iter().all(|node| node.spool.is_empty());
    let read = world.redis.data.stream.is_empty();
    tasks(config).all(|task| ended(task) || world.excused(task)) && written && read
}

impl Clause {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::F1,
        Self::F2,
        Self::F3,
        Self::F4,
        Self::F5,
        Self::F6,
        Self::F7,
        Self::F8,
        Self::F9,
        Self::F10,
        Self::F11,
        Self::F12,
        Self::F13,
        Self::F14,
        Self::F15,
        Self::F16,
        Self::F17,
        Self::Overtake,
        Self::Attempt,
        Self::Farewell,
        Self::CancelTakes,
        Self::Backlog,
        Self::Mirrored,
        Self::SettleThere,
    ];
}
