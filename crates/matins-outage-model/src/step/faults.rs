//! Faults, their ends, and time.

use crate::world::{Config, Data, Fault, Life, Redis, TASKS, World};

use super::{Action, Node};

impl World {
    pub(super) fn fault(&self, config: &Config, fault: Fault, node: Node) -> Option<Self> {
        let mut to = self.clone();
        to.faults = self.faults.checked_sub(1)?;
        let (hit, up) = (&mut to.nodes[node], self.nodes[node].life == Life::Up);
        match fault {
            Fault::CutPg if up && hit.to_pg => hit.to_pg = false,
            Fault::CutRedis if up && hit.to_redis => hit.to_redis = false,
            Fault::Freeze if up => hit.life = Life::Frozen,
            Fault::Kill if up => to.die(config, node, Life::Dead),
            Fault::Burn if up || hit.life == Life::Dead => {
                to.die(config, node, Life::Burnt);
                for entry in to.nodes[node].spool.drain(..) {
                    to.ghost.burnt[usize::from(entry.task())] = true;
                }
            }
            Fault::PgDown if self.pg.up => to.pg.up = false,
            Fault::RedisDown if self.redis.up => to.redis.up = false,
            Fault::Kept => to.redis = self.next_redis(self.redis.data.clone()),
            Fault::Empty => {
                to.forget(self.next_redis(Data::default()));
            }
            Fault::Failover => {
                to.forget(self.next_redis(self.redis.before.clone()?));
            }
            _ => return None,
        }
        if to.faults == 0 {
            to.redis.before = None;
        }
        Some(to)
    }

    fn forget(&mut self, next: Redis) {
        let lost = self.redis.data.stream.clone();
        self.redis = next;
        for (_, entry) in lost {
            self.ghost.redis_lost[usize::from(entry.task())] = true;
        }
        for task in 0..TASKS {
            self.ghost.out_of_reach[task] |= self.ghost.unconfirmed[task];
        }
    }

    fn next_redis(&self, data: Data) -> Redis {
        Redis { up: self.redis.up, identity: self.redis.identity + 1, data, before: None }
    }

    /// The runner ends what a dead process ran.
    fn die(&mut self, config: &Config, node: Node, life: Life) {
        let dead = &mut self.nodes[node];
        dead.life = life;
        dead.runs = [None; TASKS];
        (dead.taking, dead.pushing, dead.granted, dead.moving) = (None, None, None, None);
        dead.dark = false;
        // What it may do is on its disk.
        if !config.as_built || life != Life::Dead {
            (dead.acked, dead.acked_redis, dead.outage) = (0, 0, 0);
        }
    }

    pub(super) fn mended(&self, action: Action) -> Option<Self> {
        let mut to = self.clone();
        match action {
            Action::PgUp => to.pg.up = true,
            Action::RedisUp => to.redis.up = true,
            Action::HealPg(node) => to.nodes[node].to_pg = true,
            Action::HealRedis(node) => to.nodes[node].to_redis = true,
            _ => return None,
        }
        Some(to)
    }

    /// First of all its runner ends what is over.
    pub(super) fn thaw(&self, node: Node) -> Self {
        let mut to = self.clone();
        to.nodes[node].life = Life::Up;
        to.end_overdue(node);
        to
    }

    pub(super) fn restart(&self, config: &Config, node: Node) -> Self {
        let mut to = self.clone();
        let sees_pg = self.nodes[node].to_pg && self.pg.up;
        let inherits = config.as_built && !sees_pg;
        let one = &mut to.nodes[node];
        one.life = Life::Up;
        if inherits {
            // It begins in the outage, and comes back from it like the one before.
            one.episode += 1;
            one.dark = true;
        } else {
            one.born += 1;
            one.episode = 0;
            (one.acked, one.acked_redis, one.outage) = (0, 0, 0);
        }
        to
    }

    fn end_overdue(&mut self, node: Node) {
        for run in &mut self.nodes[node].runs {
            *run = run.filter(|run| run.left > 0);
        }
    }

    pub(super) fn tick(&self) -> Self {
        let mut to = self.clone();
        for row in &mut to.pg.rows {
            row.lease = row.lease.saturating_sub(1);
        }
        for member in &mut to.pg.members {
            member.outage = member.outage.saturating_sub(1);
        }
        for slot in &mut to.redis.data.slots {
            if let Some(claim) = &mut slot.claim {
                claim.lease_until = claim.lease_until.saturating_sub(1);
            }
        }
        if let Some(before) = &mut to.redis.before {
            for claim in before.slots.iter_mut().filter_map(|slot| slot.claim.as_mut()) {
                claim.lease_until = claim.lease_until.saturating_sub(1);
            }
        }
        for index in 0..to.nodes.len() {
            let node = &mut to.nodes[index];
            node.outage = node.outage.saturating_sub(1);
            for run in node.runs.iter_mut().flatten() {
                run.left = run.left.saturating_sub(1);
            }
            if let Some(granted) = &mut node.granted {
                granted.left = granted.left.saturating_sub(1);
            }
            if node.life == Life::Up {
                to.end_overdue(index);
            }
        }
        to
    }
}
