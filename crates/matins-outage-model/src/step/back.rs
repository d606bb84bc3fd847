//! What happens when PostgreSQL is back.

use matins_core::outage::{self, ClaimReplay, Recorded};

use crate::Clause;
use crate::world::{Config, Entry, Kind, LEASE, RowState, Run, World};

use super::{Node, Task};

impl World {
    pub(super) fn replay_spool(&self, config: &Config, node: Node) -> Option<Self> {
        if !self.reaches_pg(node) || self.nodes[node].spool.is_empty() {
            return None;
        }
        let mut to = self.clone();
        for entry in std::mem::take(&mut to.nodes[node].spool) {
            to.replay(config, entry);
        }
        Some(to)
    }

    /// Where the stream was read up to.
    fn position(&self, config: &Config) -> u8 {
        let seen = self.redis.identity;
        let recorded = self.pg.recorded.map(|(identity, last)| Recorded {
            identity: if config.keeps(Clause::F17) { identity } else { seen },
            last,
        });
        outage::read_from(recorded, seen).unwrap_or(0)
    }

    pub(super) fn replay_stream(&self, config: &Config, node: Node) -> Option<Self> {
        if !self.reaches_pg(node) || !self.reaches_redis(node) {
            return None;
        }
        let position = self.position(config);
        let new = self.redis.data.stream.iter().filter(|(id, _)| *id > position);
        let new: Vec<(u8, Entry)> = new.copied().collect();
        let last = new.last()?.0;
        let mut to = self.clone();
        for (_, entry) in new {
            to.replay(config, entry);
        }
        to.pg.recorded = Some((self.redis.identity, last));
        Some(to)
    }

    pub(super) fn trim(&self, config: &Config, node: Node) -> Option<Self> {
        if !self.reaches_pg(node) || !self.reaches_redis(node) {
            return None;
        }
        let position = self.position(config);
        let mut to = self.clone();
        to.before_redis_write(config);
        to.redis.data.stream.retain(|(id, _)| *id > position);
        (to.redis.data.stream != self.redis.data.stream).then_some(to)
    }

    fn replay(&mut self, config: &Config, entry: Entry) {
        let task = usize::from(entry.task());
        let current = self.pg.generation;
        let row = &mut self.pg.rows[task];
        match entry {
            Entry::Enqueue { .. } if row.state != RowState::Missing => {}
            Entry::Enqueue { task: id } => {
                row.state = RowState::Pending;
                row.mirrored = if config.keeps(Clause::F13) { current } else { 0 };
                if config.tasks[task] == Kind::Keyed {
                    match self.pg.key {
                        Some(_) => row.state = RowState::Duplicate,
                        None => self.pg.key = Some(id),
                    }
                }
            }
            Entry::Claim { attempt, fence, node, life, episode, .. } => {
                let view = row.view(fence).map(|view| outage::RowView {
                    journal: view.journal && config.keeps(Clause::Overtake),
                    ..view
                });
                let answer = outage::claim(view, u32::from(attempt));
                let inserts = answer == ClaimReplay::Insert;
                if answer == ClaimReplay::Known || (inserts && !config.keeps(Clause::F14)) {
                    return;
                }
                row.seen |= 1 << fence;
                if answer == ClaimReplay::Superseded {
                    return;
                }
                if inserts {
                    row.mirrored = current;
                }
                (row.state, row.attempt, row.fence) = (RowState::Running, attempt, fence);
                (row.holder, row.life, row.episode) = (node, life, episode);
                (row.journal, row.lease) = (true, 0);
            }
            Entry::Done { fence, .. } | Entry::Again { fence, .. } => {
                let by_fence = outage::settlement_counts(row.view(fence), u64::from(fence));
                let counts = match config.keeps(Clause::F15) {
                    true => by_fence,
                    false => row.state == RowState::Running,
                };
                if !counts {
                    return;
                }
                if !by_fence {
                    self.broken = Some("the result of another run changes the row");
                }
                let done = matches!(entry, Entry::Done { .. });
                row.state = if done { RowState::Done } else { RowState::Pending };
                row.fence = 0;
            }
            Entry::Cancel { .. } => {
                if row.state == RowState::Pending {
                    row.state = RowState::Cancelled;
                }
            }
        }
    }

    pub(super) fn detach(
        &self,
        config: &Config,
        node: Node,
        task: Task,
        lost: bool,
    ) -> Option<Self> {
        let from = &self.nodes[node];
        let run = from.runs[task].filter(|run| run.journal)?;
        let idle = from.moving.is_none() && from.spool.is_empty() && self.reaches_pg(node);
        if !idle {
            return None;
        }
        let mut to = self.clone();
        if !config.keeps(Clause::F11) {
            to.lose_answer(lost);
            to.nodes[node].moving = Some(task as u8);
            return Some(to);
        }
        if !self.same_in_the_dark(config, node) {
            return None;
        }
        to.before_redis_write(config);
        to.lose_answer(lost);
        match to.redis.data.slots[task].detach(u64::from(run.fence)) {
            true if lost => {}
            true => to.nodes[node].moving = Some(task as u8),
            false => to.nodes[node].runs[task] = None,
        }
        Some(to)
    }

    pub(super) fn attach(&self, node: Node) -> Option<Self> {
        let task = usize::from(self.nodes[node].moving?);
        if !self.reaches_pg(node) {
            return None;
        }
        let mut to = self.clone();
        to.nodes[node].moving = None;
        let run = to.nodes[node].runs[task]?;
        let row = &mut to.pg.rows[task];
        let stands = row.state == RowState::Running && row.fence == run.fence;
        if stands {
            (row.journal, row.lease) = (false, LEASE);
        }
        let attached = Run { journal: false, left: LEASE, ..run };
        to.nodes[node].runs[task] = stands.then_some(attached);
        Some(to)
    }

    /// What was claimed in the dark until now, and is not known to have ended, is over. Said to
    /// oneself before it is said to PostgreSQL: that answer may be lost.
    pub(super) fn withdraw(&self, config: &Config, node: Node) -> Option<Self> {
        let clean = outage::may_withdraw(self.standing(node)) || !config.keeps(Clause::F8);
        if !self.reaches_pg(node) || !self.nodes[node].dark || !clean {
            return None;
        }
        let mut to = self.clone();
        to.nodes[node].dark = false;
        to.nodes[node].episode += 1;
        if self.is_member(node) {
            to.pg.members[node].episode = to.nodes[node].episode;
        }
        Some(to)
    }

    /// By what stands in Redis, not by what the node remembers: a failover may bring it back.
    pub(super) fn clear_note(&self, config: &Config, node: Node) -> Option<Self> {
        let from = &self.nodes[node];
        let stands = self.redis.data.announced[node] == from.born + 1;
        if from.dark || !stands || !self.reaches_redis(node) {
            return None;
        }
        let mut to = self.clone();
        to.before_redis_write(config);
        to.redis.data.announced[node] = 0;
        Some(to)
    }
}
