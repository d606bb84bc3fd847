//! What may happen next.

mod back;
mod connected;
mod dark;
mod faults;
mod heal;

pub use heal::heal;

use matins_core::outage::{self, Sight};

use crate::Clause;
use crate::world::{Config, Entry, Fault, Kind, Life, NODES, Purpose, Run, World, instant};

type Node = usize;
type Task = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Fault(Fault, Node),
    PgUp,
    RedisUp,
    HealPg(Node),
    HealRedis(Node),
    Thaw(Node),
    Restart(Node),
    Tick,
    /// Acknowledge the current generation. `lost`: the answer is.
    Join {
        node: Node,
        lost: bool,
    },
    Renew(Node),
    Bump(Node),
    Take(Node, Task, Purpose),
    UseTaken {
        node: Node,
        lost: bool,
    },
    Alone {
        node: Node,
        task: Task,
        purpose: Purpose,
        lost: bool,
    },
    PushRead(Node, Task),
    PushSend(Node),
    Judge(Node, Task),
    Settle {
        node: Node,
        task: Task,
        ok: bool,
        lost: bool,
    },
    Enter(Node),
    Announce(Node),
    DarkClaim {
        node: Node,
        task: Task,
        lost: bool,
    },
    Start(Node),
    DarkRenew(Node, Task),
    DarkSettle {
        node: Node,
        task: Task,
        ok: bool,
        lost: bool,
    },
    DarkEnqueue(Node, Task),
    DarkCancel(Node, Task),
    ReplaySpool(Node),
    ReplayStream(Node),
    Trim(Node),
    Detach {
        node: Node,
        task: Task,
        lost: bool,
    },
    Attach(Node),
    Withdraw(Node),
    ClearNote(Node),
}

/// Everything that may be tried; what cannot be done now, [`apply`] says.
pub fn actions(world: &World, config: &Config) -> Vec<Action> {
    let mut all = vec![Action::Tick];
    all.extend((!world.pg.up).then_some(Action::PgUp));
    all.extend((!world.redis.up).then_some(Action::RedisUp));
    let lose = world.faults > 0 && config.allowed.contains(&Fault::LostAnswer);
    if world.faults > 0 {
        for fault in &config.allowed {
            match fault {
                Fault::PgDown | Fault::RedisDown | Fault::Empty | Fault::Kept | Fault::Failover => {
                    all.push(Action::Fault(*fault, 0));
                }
                Fault::LostAnswer => {}
                _ => all.extend((0..config.nodes).map(|node| Action::Fault(*fault, node))),
            }
        }
    }
    for node in 0..config.nodes {
        match world.nodes[node].life {
            Life::Up => of_node(&mut all, config, node, lose),
            Life::Frozen => all.push(Action::Thaw(node)),
            Life::Dead => all.push(Action::Restart(node)),
            Life::Burnt => {}
        }
        let from = &world.nodes[node];
        all.extend((!from.to_pg).then_some(Action::HealPg(node)));
        all.extend((!from.to_redis).then_some(Action::HealRedis(node)));
    }
    all
}

fn of_node(all: &mut Vec<Action>, config: &Config, node: Node, lose: bool) {
    use Action as A;
    for lost in [false, true] {
        if lost && !lose {
            break;
        }
        all.extend([A::Join { node, lost }, A::UseTaken { node, lost }]);
        for task in tasks(config) {
            all.extend([A::DarkClaim { node, task, lost }, A::Detach { node, task, lost }]);
            all.push(A::Settle { node, task, ok: true, lost });
            all.push(A::DarkSettle { node, task, ok: true, lost });
            for purpose in purposes(config, task) {
                all.push(A::Alone { node, task, purpose, lost });
            }
        }
    }
    all.extend([A::Renew(node), A::Bump(node), A::PushSend(node), A::Enter(node)]);
    all.extend([A::Announce(node), A::Start(node), A::ReplaySpool(node), A::ReplayStream(node)]);
    all.extend([A::Trim(node), A::Attach(node), A::Withdraw(node), A::ClearNote(node)]);
    for task in tasks(config) {
        all.extend([A::PushRead(node, task), A::Judge(node, task), A::DarkRenew(node, task)]);
        all.push(A::DarkEnqueue(node, task));
        for purpose in purposes(config, task) {
            all.push(A::Take(node, task, purpose));
        }
        if config.failures > 0 {
            all.push(A::Settle { node, task, ok: false, lost: false });
            all.push(A::DarkSettle { node, task, ok: false, lost: false });
        }
        if config.cancels {
            all.push(A::DarkCancel(node, task));
        }
    }
}

fn tasks(config: &Config) -> impl Iterator<Item = Task> + '_ {
    (0..config.tasks.len()).filter(|task| config.tasks[*task] != Kind::None)
}

fn purposes(config: &Config, task: Task) -> impl Iterator<Item = Purpose> {
    let cancel = config.cancels.then_some(Purpose::Cancel);
    let fire = (config.tasks[task] == Kind::Mark).then_some(Purpose::Fire);
    std::iter::once(Purpose::Claim).chain(cancel).chain(fire)
}

/// The world after this; `None`: it cannot happen now, or would change nothing.
pub fn apply(world: &World, config: &Config, action: Action) -> Option<World> {
    use Action as A;
    let to = match action {
        A::Fault(fault, node) => world.fault(config, fault, node),
        A::PgUp | A::RedisUp | A::HealPg(_) | A::HealRedis(_) => world.mended(action),
        A::Thaw(node) => Some(world.thaw(node)),
        A::Restart(node) => Some(world.restart(config, node)),
        A::Tick => Some(world.tick()),
        A::Join { node, lost } => world.join(config, node, lost),
        A::Renew(node) => world.renew(config, node),
        A::Bump(node) => world.bump(config, node),
        A::Take(node, task, purpose) => world.take(config, node, task, purpose),
        A::UseTaken { node, lost } => world.use_taken(config, node, lost),
        A::Alone { node, task, purpose, lost } => world.alone(config, node, task, purpose, lost),
        A::PushRead(node, task) => world.push_read(config, node, task),
        A::PushSend(node) => world.push_send(config, node),
        A::Judge(node, task) => world.judge(config, node, task),
        A::Settle { node, task, ok, lost } => world.settle(config, node, task, ok, lost),
        A::Enter(node) => world.enter(node),
        A::Announce(node) => world.announce(config, node),
        A::DarkClaim { node, task, lost } => world.dark_claim(config, node, task, lost),
        A::Start(node) => world.start_granted(config, node),
        A::DarkRenew(node, task) => world.dark_renew(config, node, task),
        A::DarkSettle { node, task, ok, lost } => world.dark_settle(config, node, task, ok, lost),
        A::DarkEnqueue(node, task) => world.dark_enqueue(config, node, task),
        A::DarkCancel(node, task) => world.dark_cancel(config, node, task),
        A::ReplaySpool(node) => world.replay_spool(config, node),
        A::ReplayStream(node) => world.replay_stream(config, node),
        A::Trim(node) => world.trim(config, node),
        A::Detach { node, task, lost } => world.detach(config, node, task, lost),
        A::Attach(node) => world.attach(node),
        A::Withdraw(node) => world.withdraw(config, node),
        A::ClearNote(node) => world.clear_note(config, node),
    }?;
    (to != *world).then_some(to)
}

/// What several kinds of steps ask.
impl World {
    fn reaches_pg(&self, node: Node) -> bool {
        let from = &self.nodes[node];
        from.life == Life::Up && from.to_pg && self.pg.up
    }

    fn reaches_redis(&self, node: Node) -> bool {
        let from = &self.nodes[node];
        from.life == Life::Up && from.to_redis && self.redis.up
    }

    fn sight(&self, config: &Config, node: Node) -> Sight {
        match self.reaches_redis(node) {
            false => Sight::Away,
            true if self.redis.identity == self.pg.redis => Sight::Same,
            true if !config.keeps(Clause::F2) => Sight::Same,
            true => Sight::Other,
        }
    }

    /// Whether the node sees, in the dark, the Redis of the generation it acknowledged.
    fn same_in_the_dark(&self, config: &Config, node: Node) -> bool {
        let acked = self.nodes[node].acked_redis;
        let same = self.redis.identity == acked || !config.keeps(Clause::F2);
        self.reaches_redis(node) && acked != 0 && same
    }

    fn is_member(&self, node: Node) -> bool {
        self.pg.members[node].known && self.pg.members[node].life == self.nodes[node].born
    }

    fn has_acked(&self, node: Node) -> bool {
        let current = self.pg.generation;
        let here = self.nodes[node].acked == current;
        self.is_member(node) && here && self.pg.members[node].acked == current
    }

    /// Connected, and one whose word counts.
    fn ready(&self, node: Node) -> bool {
        self.reaches_pg(node) && !self.nodes[node].dark && self.has_acked(node)
    }

    /// Somebody is dark, or the stream is not replayed.
    fn guarded(&self, config: &Config) -> bool {
        let counts = |node: Node| {
            let (note, member) = (self.redis.data.announced[node], self.pg.members[node]);
            let theirs = member.known && note == member.life + 1;
            let outage_until = theirs.then(|| instant(member.outage));
            let counts =
                outage::announcement_counts(outage::Announced { outage_until }, instant(0));
            note != 0 && (counts || !config.keeps(Clause::F16))
        };
        !self.redis.data.stream.is_empty() || (0..NODES).any(counts)
    }

    fn standing(&self, node: Node) -> outage::Standing {
        let from = &self.nodes[node];
        outage::Standing {
            spooled: !from.spool.is_empty(),
            journal_runs: from.runs.iter().flatten().any(|run| run.journal),
            scripts: from.granted.is_some(),
        }
    }

    /// To be called before each write to Redis.
    fn before_redis_write(&mut self, config: &Config) {
        let may_come = self.faults > 0 && config.allowed.contains(&Fault::Failover);
        self.redis.before = may_come.then(|| self.redis.data.clone());
    }

    fn stream(&mut self, entry: Entry) {
        self.redis.data.last += 1;
        self.redis.data.stream.push((self.redis.data.last, entry));
    }

    fn start_run(&mut self, node: Node, task: Task, run: Run) {
        if self.nodes[node].runs[task].is_some() {
            self.broken = Some("two live claims of one task on one node");
        }
        let hidden = self.excused(task) || self.ghost.out_of_reach[task];
        if self.ghost.cancelled[task] && !hidden {
            self.broken = Some("a cancelled task starts");
        }
        self.nodes[node].runs[task] = Some(run);
    }

    fn fence(&mut self) -> u8 {
        let fence = self.next_fence;
        self.next_fence += 1;
        fence
    }

    fn lose_answer(&mut self, lost: bool) {
        self.faults -= u8::from(lost);
    }
}
