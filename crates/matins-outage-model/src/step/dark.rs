//! What a node does without PostgreSQL.

use matins_core::outage::Slot;

use crate::Clause;
use crate::world::{Config, Entry, Granted, Kind, LEASE, Life, Run, World};

use super::{Node, Task};

impl World {
    pub(super) fn enter(&self, node: Node) -> Option<Self> {
        let from = &self.nodes[node];
        if from.life != Life::Up || from.dark || (from.to_pg && self.pg.up) {
            return None;
        }
        let mut to = self.clone();
        let dark = &mut to.nodes[node];
        dark.dark = true;
        (dark.taking, dark.pushing, dark.moving) = (None, None, None);
        Some(to)
    }

    pub(super) fn announce(&self, config: &Config, node: Node) -> Option<Self> {
        let from = &self.nodes[node];
        let note = from.born + 1;
        let told = self.redis.data.announced[node] == note;
        if !from.dark || told || !self.same_in_the_dark(config, node) {
            return None;
        }
        let mut to = self.clone();
        to.before_redis_write(config);
        to.redis.data.announced[node] = note;
        Some(to)
    }

    fn may_dispatch(&self, config: &Config, node: Node) -> bool {
        let from = &self.nodes[node];
        let announced = self.redis.data.announced[node] == from.born + 1;
        let leased = from.dark && from.outage > 0 && from.acked > 0;
        leased && announced && self.same_in_the_dark(config, node)
    }

    pub(super) fn dark_claim(
        &self,
        config: &Config,
        node: Node,
        task: Task,
        lost: bool,
    ) -> Option<Self> {
        let from = &self.nodes[node];
        let free = from.granted.is_none() && from.runs[task].is_none();
        if !free || !self.may_dispatch(config, node) {
            return None;
        }
        let mut to = self.clone();
        to.before_redis_write(config);
        to.lose_answer(lost);
        let (fence, generation) = (to.fence(), u64::from(from.acked));
        let slot = &mut to.redis.data.slots[task];
        let grant = slot.claim(generation, 0, u64::from(fence), u64::from(LEASE))?;
        let (who, life, attempt) = (node as u8, from.born, grant.attempt as u8);
        let task = task as u8;
        let again = grant.lost.map(|fence| Entry::Again { task, fence: fence as u8 });
        let episode = from.episode;
        let claim = Entry::Claim { task, attempt, fence, node: who, life, episode };
        for entry in again.into_iter().chain([claim]) {
            to.stream(entry);
            if !lost {
                to.nodes[node].spool.push(entry);
            }
        }
        if !lost {
            let left = bounded(config, LEASE, from.outage);
            to.nodes[node].granted = Some(Granted { task, fence, left });
        }
        Some(to)
    }

    pub(super) fn start_granted(&self, config: &Config, node: Node) -> Option<Self> {
        let from = &self.nodes[node];
        let granted = from.granted.filter(|_| from.life == Life::Up)?;
        let mut to = self.clone();
        to.nodes[node].granted = None;
        let (task, fence) = (usize::from(granted.task), granted.fence);
        let bound = bounded(config, granted.left, from.outage);
        let left = if config.keeps(Clause::F10) { bound } else { LEASE };
        if left > 0 {
            to.start_run(node, task, Run { fence, journal: true, left });
            return Some(to);
        }
        let entry = Entry::Again { task: granted.task, fence };
        to.nodes[node].spool.push(entry);
        if self.same_in_the_dark(config, node) {
            to.before_redis_write(config);
            if to.redis.data.slots[task].finish(u64::from(fence), true) {
                to.stream(entry);
            }
        }
        Some(to)
    }

    pub(super) fn dark_renew(&self, config: &Config, node: Node, task: Task) -> Option<Self> {
        let run = self.nodes[node].runs[task].filter(|run| run.journal)?;
        let outage = match config.keeps(Clause::F9) {
            true => self.nodes[node].outage,
            false => LEASE,
        };
        if outage == 0 || !self.same_in_the_dark(config, node) {
            return None;
        }
        let mut to = self.clone();
        to.before_redis_write(config);
        let slot = &mut to.redis.data.slots[task];
        let stands = slot.renew(u64::from(run.fence), u64::from(LEASE));
        let left = LEASE.min(outage);
        to.nodes[node].runs[task] = stands.then_some(Run { left, ..run });
        Some(to)
    }

    pub(super) fn dark_settle(
        &self,
        config: &Config,
        node: Node,
        task: Task,
        ok: bool,
        lost: bool,
    ) -> Option<Self> {
        let run = self.nodes[node].runs[task].filter(|run| run.journal)?;
        let spent = !ok && self.ghost.failures >= config.failures;
        let there = self.same_in_the_dark(config, node);
        let nowhere = !there && config.keeps(Clause::SettleThere);
        if spent || nowhere {
            return None;
        }
        let mut to = self.clone();
        to.lose_answer(lost);
        to.nodes[node].runs[task] = None;
        let (id, fence) = (task as u8, run.fence);
        let entry = match ok {
            true => Entry::Done { task: id, fence },
            false => Entry::Again { task: id, fence },
        };
        if there {
            to.before_redis_write(config);
            if !to.redis.data.slots[task].finish(u64::from(fence), !ok) {
                return Some(to);
            }
            to.stream(entry);
        }
        match lost {
            true => to.ghost.unconfirmed[task] = ok,
            false => to.nodes[node].spool.push(entry),
        }
        to.ghost.successes[task] += u8::from(ok);
        to.ghost.failures += u8::from(!ok);
        Some(to)
    }

    /// Also the fire of a mark.
    pub(super) fn dark_enqueue(&self, config: &Config, node: Node, task: Task) -> Option<Self> {
        let kind = config.tasks[task];
        let mut mark = self.redis.data.marks[task];
        let dispatch = self.may_dispatch(config, node);
        let may = match kind {
            Kind::New | Kind::Keyed => self.nodes[node].dark && self.reaches_redis(node),
            Kind::Mark => dispatch && self.takes_mark(config, &mut mark, node, task),
            Kind::None | Kind::Plain => false,
        };
        if !may || self.ghost.accepted[task] {
            return None;
        }
        let mut to = self.clone();
        to.before_redis_write(config);
        let entry = Entry::Enqueue { task: task as u8 };
        to.stream(entry);
        to.nodes[node].spool.push(entry);
        to.ghost.accepted[task] = true;
        to.redis.data.marks[task] = mark;
        if dispatch && kind != Kind::Keyed {
            to.redis.data.slots[task].push(0, u64::from(self.nodes[node].acked));
        }
        Some(to)
    }

    fn takes_mark(&self, config: &Config, mark: &mut Slot, node: Node, task: Task) -> bool {
        match config.keeps(Clause::Mirrored) {
            true => mark.withdraw(u64::from(self.nodes[node].acked)),
            false => mark.tombstone == 0 && self.redis.data.slots[task] == Slot::default(),
        }
    }

    pub(super) fn dark_cancel(&self, config: &Config, node: Node, task: Task) -> Option<Self> {
        if !self.may_dispatch(config, node) {
            return None;
        }
        let mut to = self.clone();
        to.before_redis_write(config);
        if !to.redis.data.slots[task].withdraw(u64::from(self.nodes[node].acked)) {
            return None;
        }
        let entry = Entry::Cancel { task: task as u8 };
        to.stream(entry);
        to.nodes[node].spool.push(entry);
        to.ghost.cancelled[task] = true;
        Some(to)
    }
}

/// How long what was claimed in the dark may go on. Fixed when the script is sent: an outage lease
/// that is renewed after it had ended brings nothing back, because others may have judged.
fn bounded(config: &Config, left: u8, outage: u8) -> u8 {
    if config.keeps(Clause::F9) { left.min(outage) } else { left }
}
