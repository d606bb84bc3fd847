//! What a node does that has PostgreSQL.

use matins_core::outage::{self, Sight, Taken, Way, Word};

use crate::Clause;
use crate::world::{
    Config, Entry, Kind, LEASE, Member, NOBODY, NODES, Purpose, Pushing, RowState, Run, Taking,
    WINDOW, World,
};

use super::{Node, Task};

impl World {
    pub(super) fn join(&self, config: &Config, node: Node, lost: bool) -> Option<Self> {
        let clean = outage::may_acknowledge(self.standing(node)) || !config.keeps(Clause::F7);
        if !self.reaches_pg(node) || self.has_acked(node) || !clean {
            return None;
        }
        let mut to = self.clone();
        to.lose_answer(lost);
        let (born, current) = (self.nodes[node].born, self.pg.generation);
        if config.keeps(Clause::Farewell) {
            (to.nodes[node].acked, to.nodes[node].outage) = (0, 0);
        }
        let theirs = |holder: u8, life: u8| usize::from(holder) == node && life != born;
        for row in &mut to.pg.rows {
            if row.state == RowState::Running && theirs(row.holder, row.life) {
                row.holder = NOBODY;
            }
        }
        let episode = if self.is_member(node) { self.pg.members[node].episode } else { 0 };
        let (acked, outage) = (current, WINDOW);
        to.pg.members[node] = Member { known: true, life: born, episode, acked, outage };
        if !lost {
            let joined = &mut to.nodes[node];
            (joined.acked, joined.acked_redis) = (current, self.pg.redis);
            joined.outage = WINDOW;
        }
        Some(to)
    }

    pub(super) fn renew(&self, config: &Config, node: Node) -> Option<Self> {
        if !self.reaches_pg(node) || !self.is_member(node) {
            return None;
        }
        let mut to = self.clone();
        for task in 0..to.pg.rows.len() {
            let Some(run) = self.nodes[node].runs[task].filter(|run| !run.journal) else {
                continue;
            };
            let row = &mut to.pg.rows[task];
            let stands = row.state == RowState::Running && row.fence == run.fence;
            if stands {
                row.lease = LEASE;
            }
            to.nodes[node].runs[task] = stands.then_some(Run { left: LEASE, ..run });
        }
        let member = self.pg.members[node];
        let current = match config.keeps(Clause::F6) {
            true => self.pg.generation,
            false => member.acked,
        };
        let may = outage::may_renew(u64::from(member.acked), u64::from(current));
        if may && self.nodes[node].acked == member.acked {
            to.pg.members[node].outage = WINDOW;
            to.nodes[node].outage = WINDOW;
        }
        Some(to)
    }

    pub(super) fn bump(&self, config: &Config, node: Node) -> Option<Self> {
        let sight = self.sight(config, node);
        let redis = match sight {
            Sight::Same => return None,
            Sight::Away => 0,
            Sight::Other => self.redis.identity,
        };
        let room = self.pg.generation < config.generations;
        if !self.ready(node) || !self.settled() || !room || redis == self.pg.redis {
            return None;
        }
        let mut to = self.clone();
        to.pg.generation += 1;
        to.pg.redis = redis;
        Some(to)
    }

    fn mirrored(&self, config: &Config, task: Task, purpose: Purpose) -> u8 {
        if config.as_built {
            return if self.pg.redis == 0 { 0 } else { self.pg.generation };
        }
        let row = self.pg.rows[task];
        if purpose == Purpose::Fire { row.mark_mirrored } else { row.mirrored }
    }

    fn way_of(&self, config: &Config, node: Node, task: Task, purpose: Purpose) -> Way {
        let sight = self.sight(config, node);
        let settled = self.settled() || (sight == Sight::Same && !config.keeps(Clause::F5));
        let mirrored = match config.keeps(Clause::F4) {
            true => self.mirrored(config, task, purpose),
            false => 0,
        };
        let (mirrored, current) = (u64::from(mirrored), u64::from(self.pg.generation));
        outage::way(self.has_acked(node), settled, sight, mirrored, current)
    }

    fn fits(&self, config: &Config, task: Task, purpose: Purpose) -> bool {
        let state = self.pg.rows[task].state;
        match purpose {
            Purpose::Fire => state == RowState::Missing && config.tasks[task] == Kind::Mark,
            Purpose::Claim | Purpose::Cancel => state == RowState::Pending,
        }
    }

    pub(super) fn take(
        &self,
        config: &Config,
        node: Node,
        task: Task,
        purpose: Purpose,
    ) -> Option<Self> {
        let from = &self.nodes[node];
        let free = from.taking.is_none() && from.runs[task].is_none();
        if !free || !self.ready(node) || !self.fits(config, task, purpose) {
            return None;
        }
        let blind = purpose == Purpose::Cancel && !config.keeps(Clause::CancelTakes);
        if !blind && self.way_of(config, node, task, purpose) != Way::Through {
            return None;
        }
        let mut to = self.clone();
        let (generation, attempt) = (self.pg.generation, self.pg.rows[task].attempt);
        if !blind {
            to.before_redis_write(config);
            let guarded = self.guarded(config);
            let data = &mut to.redis.data;
            let slot = match purpose {
                Purpose::Fire => &mut data.marks[task],
                Purpose::Claim | Purpose::Cancel => &mut data.slots[task],
            };
            let old = *slot;
            let taken = slot.take(u32::from(attempt), u64::from(generation), guarded);
            if taken == Taken::Wait {
                return None;
            }
            if taken == Taken::Nothing && !config.keeps(Clause::F1) {
                slot.tombstone = old.tombstone;
            }
            if !config.keeps(Clause::F12) {
                slot.claim = old.claim;
            }
        }
        let task = task as u8;
        to.nodes[node].taking = Some(Taking { task, generation, attempt, purpose });
        Some(to)
    }

    pub(super) fn use_taken(&self, config: &Config, node: Node, lost: bool) -> Option<Self> {
        let taking = self.nodes[node].taking?;
        if !self.reaches_pg(node) || self.nodes[node].dark {
            return None;
        }
        let task = usize::from(taking.task);
        let row = self.pg.rows[task];
        let generation = match config.keeps(Clause::F3) {
            true => taking.generation,
            false => self.pg.generation,
        };
        let attempt = match config.keeps(Clause::Attempt) {
            true => taking.attempt,
            false => row.attempt,
        };
        let word = Word::Taken { generation: u64::from(generation), attempt: u32::from(attempt) };
        let mut to = self.clone();
        to.lose_answer(lost);
        to.nodes[node].taking = None;
        if self.fits(config, task, taking.purpose)
            && self.stands(config, word, task, taking.purpose)
        {
            to.note_out_of_reach(node, task);
            to.written(node, task, taking.purpose, lost);
        }
        Some(to)
    }

    fn stands(&self, config: &Config, word: Word, task: Task, purpose: Purpose) -> bool {
        let row = self.pg.rows[task];
        let current = u64::from(self.pg.generation);
        let (mirrored, attempt) = (self.mirrored(config, task, purpose), row.attempt);
        let (mirrored, attempt) = (u64::from(mirrored), u32::from(attempt));
        outage::word_stands(word, current, self.settled(), mirrored, attempt)
    }

    pub(super) fn alone(
        &self,
        config: &Config,
        node: Node,
        task: Task,
        purpose: Purpose,
        lost: bool,
    ) -> Option<Self> {
        let busy = self.nodes[node].runs[task].is_some();
        if busy || !self.ready(node) || !self.fits(config, task, purpose) {
            return None;
        }
        if self.sees_backlog(config, node)
            || self.way_of(config, node, task, purpose) != Way::Without
        {
            return None;
        }
        let mut to = self.clone();
        to.lose_answer(lost);
        to.note_out_of_reach(node, task);
        to.written(node, task, purpose, lost);
        Some(to)
    }

    /// Entries that are waited for before anything is decided without them.
    fn sees_backlog(&self, config: &Config, node: Node) -> bool {
        let sees = self.reaches_redis(node) && !self.redis.data.stream.is_empty();
        sees && config.keeps(Clause::Backlog)
    }

    /// What is written where nobody can ask for it does not stop what happens now: in a stream out
    /// of sight, or on a node that is gone for longer than its outage lease.
    fn note_out_of_reach(&mut self, node: Node, task: Task) {
        let is = |entry: &Entry| match entry {
            Entry::Done { task: of, .. } | Entry::Cancel { task: of } => usize::from(*of) == task,
            _ => false,
        };
        let in_stream = self.redis.data.stream.iter().any(|(_, entry)| is(entry));
        let hidden = |other: &Node| {
            let member = self.pg.members[*other];
            let alive = self.reaches_pg(*other) && self.is_member(*other) && member.outage > 0;
            self.nodes[*other].spool.iter().any(is) && !alive
        };
        let settled_by_others = (0..NODES).any(|other| hidden(&other));
        if (in_stream && !self.reaches_redis(node)) || (!in_stream && settled_by_others) {
            self.ghost.out_of_reach[task] = true;
        }
    }

    /// The statement's effect, and what the node makes of its answer.
    fn written(&mut self, node: Node, task: Task, purpose: Purpose, lost: bool) {
        let row = &mut self.pg.rows[task];
        match purpose {
            Purpose::Fire => row.state = RowState::Pending,
            Purpose::Cancel => {
                row.state = RowState::Cancelled;
                self.ghost.cancelled[task] |= !lost;
            }
            Purpose::Claim => {
                let fence = self.next_fence;
                self.next_fence += 1;
                row.state = RowState::Running;
                row.attempt += 1;
                row.fence = fence;
                row.seen |= 1 << fence;
                row.holder = node as u8;
                row.life = self.nodes[node].born;
                (row.journal, row.lease) = (false, LEASE);
                if !lost {
                    self.start_run(node, task, Run { fence, journal: false, left: LEASE });
                }
            }
        }
    }

    pub(super) fn push_read(&self, config: &Config, node: Node, task: Task) -> Option<Self> {
        let (row, generation) = (self.pg.rows[task], self.pg.generation);
        let settled = self.settled() || !config.keeps(Clause::F5);
        let may = self.ready(node) && settled && self.sight(config, node) == Sight::Same;
        let mark = row.state == RowState::Missing && config.tasks[task] == Kind::Mark;
        let pending = row.state == RowState::Pending || mark;
        let idle = self.nodes[node].pushing.is_none() && pending;
        if !may || !idle {
            return None;
        }
        let mut to = self.clone();
        match mark {
            true => to.pg.rows[task].mark_mirrored = generation,
            false => to.pg.rows[task].mirrored = generation,
        }
        let (task, identity) = (task as u8, self.redis.identity);
        to.nodes[node].pushing =
            Some(Pushing { task, generation, attempt: row.attempt, identity, mark });
        Some(to)
    }

    pub(super) fn push_send(&self, config: &Config, node: Node) -> Option<Self> {
        let push = self.nodes[node].pushing?;
        if !self.reaches_redis(node) {
            return None;
        }
        let mut to = self.clone();
        to.nodes[node].pushing = None;
        let same = push.identity == self.redis.identity || !config.keeps(Clause::F2);
        if same && !self.guarded(config) {
            to.before_redis_write(config);
            let (data, task) = (&mut to.redis.data, usize::from(push.task));
            let slot = if push.mark { &mut data.marks[task] } else { &mut data.slots[task] };
            slot.push(u32::from(push.attempt), u64::from(push.generation));
        }
        Some(to)
    }

    /// The reaper, on any node.
    pub(super) fn judge(&self, config: &Config, node: Node, task: Task) -> Option<Self> {
        let row = self.pg.rows[task];
        if !self.ready(node) || row.state != RowState::Running {
            return None;
        }
        let gone = match self.pg.members.get(usize::from(row.holder)) {
            Some(member) if row.journal => {
                let earlier = member.life != row.life || row.episode < member.episode;
                earlier || member.outage == 0
            }
            Some(member) => member.life != row.life || row.lease == 0,
            None => true,
        };
        if !gone || (row.journal && self.sees_backlog(config, node)) {
            return None;
        }
        let mut to = self.clone();
        to.note_out_of_reach(node, task);
        let row = &mut to.pg.rows[task];
        (row.state, row.fence) = (RowState::Pending, 0);
        Some(to)
    }

    pub(super) fn settle(
        &self,
        config: &Config,
        node: Node,
        task: Task,
        ok: bool,
        lost: bool,
    ) -> Option<Self> {
        let run = self.nodes[node].runs[task].filter(|run| !run.journal)?;
        let spent = !ok && self.ghost.failures >= config.failures;
        if spent || !self.reaches_pg(node) || self.nodes[node].dark {
            return None;
        }
        let mut to = self.clone();
        to.lose_answer(lost);
        if !lost {
            to.nodes[node].runs[task] = None;
        }
        let row = &mut to.pg.rows[task];
        if row.state == RowState::Running && row.fence == run.fence {
            to.ghost.successes[task] += u8::from(ok);
            to.ghost.failures += u8::from(!ok);
            row.state = if ok { RowState::Done } else { RowState::Pending };
            row.fence = 0;
        }
        Some(to)
    }
}
