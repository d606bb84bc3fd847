//! What there is: small values, so that a state fits into some hundred bytes.

use jiff::Timestamp;
use matins_core::outage::{self, Slot};

use crate::Clause;

pub const NODES: usize = 3;
pub const TASKS: usize = 2;
/// Ticks of a task's lease and of the outage lease.
pub const LEASE: u8 = 2;
pub const WINDOW: u8 = 3;
/// The holder of a claim that nobody holds any more.
pub const NOBODY: u8 = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Not part of this world.
    None,
    /// Stored and mirrored at the beginning.
    Plain,
    /// Enqueued in the dark, without a key.
    New,
    /// Enqueued in the dark, all with the same key.
    Keyed,
    /// A mark of a schedule: fired once, by whom ever.
    Mark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    CutPg,
    CutRedis,
    PgDown,
    RedisDown,
    Kill,
    Burn,
    Freeze,
    Empty,
    Kept,
    Failover,
    LostAnswer,
}

impl Fault {
    pub const ALL: [Self; 11] = [
        Self::CutPg,
        Self::CutRedis,
        Self::PgDown,
        Self::RedisDown,
        Self::Kill,
        Self::Burn,
        Self::Freeze,
        Self::Empty,
        Self::Kept,
        Self::Failover,
        Self::LostAnswer,
    ];
}

/// What is explored.
#[derive(Debug, Clone)]
pub struct Config {
    pub nodes: usize,
    pub tasks: [Kind; TASKS],
    /// How many faults may happen.
    pub faults: u8,
    pub allowed: Vec<Fault>,
    /// Runs may fail, this often.
    pub failures: u8,
    /// People may cancel.
    pub cancels: bool,
    /// Most generations.
    pub generations: u8,
    /// As the store has it: every row counts as mirrored while the generation has a Redis, and a
    /// process that begins without PostgreSQL goes on for the one that died.
    pub as_built: bool,
    pub dropped: Option<Clause>,
}

impl Config {
    pub fn new(nodes: usize, tasks: [Kind; TASKS], faults: u8) -> Self {
        Self {
            nodes,
            tasks,
            faults,
            allowed: Fault::ALL.to_vec(),
            failures: 0,
            cancels: false,
            generations: 4,
            as_built: false,
            dropped: None,
        }
    }

    pub fn without(mut self, clause: Clause) -> Self {
        self.dropped = Some(clause);
        self
    }

    pub fn allowing(mut self, faults: &[Fault]) -> Self {
        self.allowed = faults.to_vec();
        self
    }

    pub fn failing(mut self, failures: u8) -> Self {
        self.failures = failures;
        self
    }

    pub fn as_built(mut self) -> Self {
        self.as_built = true;
        self
    }

    pub fn cancelling(mut self) -> Self {
        self.cancels = true;
        self
    }

    pub(crate) fn keeps(&self, clause: Clause) -> bool {
        self.dropped != Some(clause)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowState {
    Missing,
    Pending,
    Running,
    Done,
    Cancelled,
    /// Its key was taken when it was judged.
    Duplicate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Row {
    pub state: RowState,
    pub attempt: u8,
    pub fence: u8,
    pub holder: u8,
    /// The holder's incarnation, and which time in the dark of it.
    pub life: u8,
    pub episode: u8,
    /// The claim was made in the dark: the holder's outage lease covers it.
    pub journal: bool,
    pub lease: u8,
    pub mirrored: u8,
    /// The same of its mark, while it is not fired.
    pub mark_mirrored: u8,
    /// Fences of all attempts stored.
    pub seen: u32,
}

impl Row {
    const MISSING: Self = Self {
        state: RowState::Missing,
        attempt: 0,
        fence: 0,
        holder: NOBODY,
        life: 0,
        episode: 0,
        journal: false,
        lease: 0,
        mirrored: 0,
        mark_mirrored: 0,
        seen: 0,
    };

    pub fn view(&self, fence: u8) -> Option<outage::RowView> {
        let state = match self.state {
            RowState::Missing => return None,
            RowState::Pending => outage::RowState::Pending,
            RowState::Running => outage::RowState::Running,
            _ => outage::RowState::Ended,
        };
        Some(outage::RowView {
            state,
            attempt: u32::from(self.attempt),
            fence: (self.state == RowState::Running).then_some(u64::from(self.fence)),
            journal: self.journal,
            knows_fence: self.seen & (1 << fence) != 0,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Member {
    pub known: bool,
    pub life: u8,
    /// Claims of earlier times in the dark are over.
    pub episode: u8,
    pub acked: u8,
    pub outage: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pg {
    pub up: bool,
    pub generation: u8,
    /// The Redis that the generation belongs to; 0: none.
    pub redis: u8,
    pub members: [Member; NODES],
    pub rows: [Row; TASKS],
    pub recorded: Option<(u8, u8)>,
    /// The task that has the one key there is.
    pub key: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    Enqueue {
        task: u8,
    },
    Claim {
        task: u8,
        attempt: u8,
        fence: u8,
        node: u8,
        life: u8,
        episode: u8,
    },
    Done {
        task: u8,
        fence: u8,
    },
    /// Failed, released or lost: pending again.
    Again {
        task: u8,
        fence: u8,
    },
    Cancel {
        task: u8,
    },
}

impl Entry {
    pub fn task(self) -> u8 {
        match self {
            Self::Enqueue { task }
            | Self::Claim { task, .. }
            | Self::Done { task, .. }
            | Self::Again { task, .. }
            | Self::Cancel { task } => task,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Data {
    pub slots: [Slot; TASKS],
    /// Of marks that have not been fired.
    pub marks: [Slot; TASKS],
    pub stream: Vec<(u8, Entry)>,
    pub last: u8,
    /// The incarnation that announced itself, plus one.
    pub announced: [u8; NODES],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Redis {
    pub up: bool,
    pub identity: u8,
    pub data: Data,
    /// Before the last write, while a failover may still come.
    pub before: Option<Data>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    Up,
    Frozen,
    Dead,
    /// Dead for good, and its disk with it.
    Burnt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    pub fence: u8,
    pub journal: bool,
    /// Ticks until its runner ends it.
    pub left: u8,
}

/// Taken in Redis, and not yet claimed, cancelled or fired in PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Taking {
    pub task: u8,
    pub generation: u8,
    pub attempt: u8,
    pub purpose: Purpose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    Claim,
    Cancel,
    Fire,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pushing {
    pub task: u8,
    pub generation: u8,
    pub attempt: u8,
    pub identity: u8,
    pub mark: bool,
}

/// Claimed in the dark, and not yet started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Granted {
    pub task: u8,
    pub fence: u8,
    pub left: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    pub life: Life,
    pub born: u8,
    pub episode: u8,
    pub to_pg: bool,
    pub to_redis: bool,
    pub dark: bool,
    pub acked: u8,
    /// The Redis that the acknowledged generation belongs to.
    pub acked_redis: u8,
    pub outage: u8,
    pub runs: [Option<Run>; TASKS],
    pub spool: Vec<Entry>,
    pub taking: Option<Taking>,
    pub pushing: Option<Pushing>,
    pub granted: Option<Granted>,
    /// Detached in Redis, not yet attached in PostgreSQL.
    pub moving: Option<u8>,
}

/// What nobody in the model can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ghost {
    pub accepted: [bool; TASKS],
    pub cancelled: [bool; TASKS],
    pub successes: [u8; TASKS],
    /// A run followed although it was written, out of everybody's reach, that there must be none:
    /// that another had succeeded, or that the task is cancelled.
    pub out_of_reach: [bool; TASKS],
    /// A success was written in Redis, and its answer lost: its node has not kept it.
    pub unconfirmed: [bool; TASKS],
    /// Entries of it were lost by Redis, and with a disk.
    pub redis_lost: [bool; TASKS],
    pub burnt: [bool; TASKS],
    pub failures: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub pg: Pg,
    pub redis: Redis,
    pub nodes: [Node; NODES],
    pub faults: u8,
    pub next_fence: u8,
    pub ghost: Ghost,
    pub broken: Option<&'static str>,
}

impl World {
    /// All connected, one generation settled, what is stored is mirrored.
    pub fn new(config: &Config) -> Self {
        let mut data = Data::default();
        let mut rows = [Row::MISSING; TASKS];
        for (task, kind) in config.tasks.iter().enumerate() {
            if *kind == Kind::Plain {
                rows[task] = Row { state: RowState::Pending, mirrored: 1, ..Row::MISSING };
                data.slots[task].push(0, 1);
            }
            if *kind == Kind::Mark {
                rows[task].mark_mirrored = 1;
                data.marks[task].push(0, 1);
            }
        }
        let member = Member { known: true, acked: 1, outage: WINDOW, ..Member::default() };
        let node = |index: usize| Node {
            life: if index < config.nodes { Life::Up } else { Life::Burnt },
            born: 0,
            episode: 0,
            to_pg: true,
            to_redis: true,
            dark: false,
            acked: 1,
            acked_redis: 1,
            outage: WINDOW,
            runs: [None; TASKS],
            spool: Vec::new(),
            taking: None,
            pushing: None,
            granted: None,
            moving: None,
        };
        let mut members = [Member::default(); NODES];
        members[..config.nodes].fill(member);
        Self {
            pg: Pg { up: true, generation: 1, redis: 1, members, rows, recorded: None, key: None },
            redis: Redis { up: true, identity: 1, data, before: None },
            nodes: [node(0), node(1), node(2)],
            faults: config.faults,
            next_fence: 1,
            ghost: Ghost::default(),
            broken: None,
        }
    }

    /// What must hold in every state; `None`: it does.
    pub fn violation(&self, config: &Config) -> Option<&'static str> {
        if self.broken.is_some() {
            return self.broken;
        }
        for task in 0..TASKS {
            let runs = |node: &&Node| node.life == Life::Up && node.runs[task].is_some();
            if self.nodes.iter().filter(runs).count() > 1 {
                return Some("two live claims of one task");
            }
            let ghost = &self.ghost;
            if ghost.successes[task] > 1 && !ghost.out_of_reach[task] && !self.excused(task) {
                return Some("completed twice");
            }
            if ghost.accepted[task] && !self.exists(task as u8) && !self.excused(task) {
                return Some("an accepted task is lost");
            }
        }
        let holders = |state| {
            let keyed = |task: &usize| config.tasks[*task] == Kind::Keyed;
            (0..TASKS).filter(keyed).filter(|task| self.pg.rows[*task].state == state).count()
        };
        let live = [RowState::Pending, RowState::Running, RowState::Done].map(holders);
        (live.iter().sum::<usize>() > 1).then_some("two tasks have one key")
    }

    /// Both copies of an entry may be gone: neither is promised to survive that.
    pub(crate) fn excused(&self, task: usize) -> bool {
        self.ghost.redis_lost[task] && self.ghost.burnt[task]
    }

    fn exists(&self, task: u8) -> bool {
        let row = self.pg.rows[task as usize].state != RowState::Missing;
        let streamed = self.redis.data.stream.iter().any(|(_, entry)| entry.task() == task);
        let spooled = |node: &Node| node.spool.iter().any(|entry| entry.task() == task);
        row || streamed || self.nodes.iter().any(spooled)
    }

    pub(crate) fn settled(&self) -> bool {
        let members = self.pg.members.iter().filter(|member| member.known);
        let members = members.map(|member| outage::Member {
            acknowledged: u64::from(member.acked),
            outage_until: instant(member.outage),
        });
        outage::settled(members, u64::from(self.pg.generation), instant(0))
    }
}

/// Ticks from now.
pub fn instant(ticks: u8) -> Timestamp {
    Timestamp::from_second(i64::from(ticks)).expect("in range")
}
