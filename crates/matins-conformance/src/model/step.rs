//! One thing done to a store, and how such things are drawn.
//!
//! A step names tasks and claims by *pick*, which is taken modulo what there is, so that a
//! sequence makes sense with any of its steps left out.

use matins_core::store::PoolChange;
use matins_core::task::OnDuplicate;

use super::chance::Chance;

pub(super) const KINDS: [&str; 3] = ["sync", "mail", "scan"];
pub(super) const POOLS: [&str; 2] = ["default", "io"];
pub(super) const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];
pub(super) const CONCURRENCY_KEYS: [&str; 2] = ["a", "b"];
pub(super) const WORKERS: [&str; 3] = ["w0", "w1", "w2"];
pub(super) const SCHEDULES: [&str; 2] = ["s0", "s1"];

/// Seconds.
type Seconds = i64;

#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) kind: usize,
    pub(super) pool: usize,
    pub(super) priority: i16,
    pub(super) delay: Seconds,
    pub(super) expires: Option<Seconds>,
    pub(super) key: Option<usize>,
    pub(super) concurrency_key: Option<usize>,
    pub(super) on_duplicate: OnDuplicate,
    /// The id of an earlier task instead of a new one.
    pub(super) again: Option<usize>,
    pub(super) tag: Option<usize>,
    pub(super) max_retries: Option<u32>,
    /// Of this schedule, and waiting for its previous task.
    pub(super) origin: Option<(usize, bool)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Completed,
    Dropped,
    Failed { error: usize, wish: Option<Seconds> },
    Hopeless { error: usize },
    TimedOut,
    Cancelled,
    Lost,
    Interrupted,
    Snoozed(Seconds),
    Released,
}

/// A claim that was made: one that nobody has ended yet, or any.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pick {
    pub(super) open: bool,
    pub(super) pick: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Advance {
        micros: i64,
    },
    Enqueue(Vec<Offer>),
    Claim {
        worker: usize,
        pool: Option<usize>,
        kinds: Option<Vec<usize>>,
        named: Option<Vec<usize>>,
        max: usize,
        own_lease: Option<Seconds>,
        /// With the token of the claim before.
        repeated: bool,
    },
    Settle(Vec<(Pick, End)>),
    Cancel(Vec<usize>),
    Retry {
        picks: Vec<usize>,
        edit: bool,
    },
    Dismiss(Vec<usize>),
    Expire {
        limit: usize,
    },
    Register {
        worker: usize,
        lease: Seconds,
    },
    Beat {
        worker: usize,
        lease: Seconds,
        draining: bool,
    },
    Retire {
        worker: usize,
    },
    /// Judges everything that has lapsed.
    Reap,
    Extend {
        picks: Vec<Pick>,
        lease: Seconds,
    },
    Pool {
        pool: usize,
        change: PoolChange,
    },
    Freeze(bool),
    Limit {
        kind: usize,
        rate: Option<usize>,
        concurrency: Option<u32>,
        per_key: u32,
    },
    PutSchedule {
        schedule: usize,
        outdated: bool,
        active: bool,
    },
    RemoveSchedule {
        schedule: usize,
    },
    Fire {
        schedule: usize,
        outdated: bool,
        manual: bool,
        /// The label of an earlier firing.
        again: bool,
        key: Option<usize>,
        held: bool,
        cancel_previous: bool,
    },
    Forget {
        kind: usize,
        key: usize,
    },
    Prune {
        age: Seconds,
    },
}

fn offer(c: &mut Chance) -> Offer {
    Offer {
        kind: c.below(KINDS.len()),
        pool: c.one_of(&[0, 0, 0, 1]),
        priority: c.one_of(&[0, 0, 0, 1, -1, 5, 100, -100]),
        delay: c.one_of(&[0, 0, 0, 0, 1, 30, 90, 4_000, -20, -100]),
        expires: c.maybe(12, |c| c.one_of(&[1, 20, 100, 1_000])),
        key: c.maybe(35, |c| c.below(KEYS.len())),
        concurrency_key: c.maybe(35, |c| c.below(CONCURRENCY_KEYS.len())),
        on_duplicate: c.one_of(&[
            OnDuplicate::Return,
            OnDuplicate::Return,
            OnDuplicate::Reject,
            OnDuplicate::Replace,
        ]),
        again: c.maybe(6, Chance::pick),
        tag: c.maybe(20, |c| c.below(2)),
        max_retries: c.maybe(20, |c| c.one_of(&[0, 1, 2])),
        origin: c.maybe(8, |c| (c.below(SCHEDULES.len()), c.percent(40))),
    }
}

fn end(c: &mut Chance) -> End {
    match c.below(14) {
        0..=4 => End::Completed,
        5 => End::Dropped,
        6 | 7 => {
            End::Failed { error: c.below(3), wish: c.maybe(30, |c| c.one_of(&[-5, 10, 9_000])) }
        }
        8 => End::Hopeless { error: c.below(3) },
        9 => c.one_of(&[End::TimedOut, End::Cancelled]),
        10 | 11 => End::Lost,
        12 => End::Interrupted,
        _ => c.one_of(&[End::Snoozed(30), End::Snoozed(-30), End::Released]),
    }
}

impl Chance {
    fn pick(&mut self) -> usize {
        self.below(1 << 20)
    }

    fn claim_pick(&mut self) -> Pick {
        Pick { open: self.percent(85), pick: self.pick() }
    }
}

impl Step {
    pub(super) fn draw(c: &mut Chance) -> Self {
        let lease = |c: &mut Chance| c.one_of(&[1, 30, 30, 5_000, 100_000]);
        match c.below(112) {
            0..=21 => Self::Enqueue(c.some(5, offer)),
            22..=43 => Self::draw_claim(c),
            44..=65 => Self::Settle(c.some(4, |c| (c.claim_pick(), end(c)))),
            66..=75 => {
                let seconds: i64 = c.one_of(&[0, 1, 1, 10, 31, 60, 61, 130, 300, 4_000, 90_000]);
                Self::Advance { micros: seconds * 1_000_000 + c.below(3) as i64 }
            }
            76..=79 => Self::Cancel(c.some(3, Chance::pick)),
            80..=83 => Self::Retry { picks: c.some(4, Chance::pick), edit: c.percent(30) },
            84 | 85 => Self::Dismiss(c.some(4, Chance::pick)),
            86 | 87 => Self::Expire { limit: c.one_of(&[1, 2, 100]) },
            88 => Self::Register { worker: c.below(WORKERS.len()), lease: lease(c) },
            89..=91 => {
                let worker = c.below(WORKERS.len());
                Self::Beat { worker, lease: lease(c), draining: c.percent(20) }
            }
            92 => Self::Retire { worker: c.below(WORKERS.len()) },
            93..=95 => Self::Reap,
            96 => Self::Extend { picks: c.some(4, Chance::claim_pick), lease: lease(c) },
            97 | 98 => Self::Pool {
                pool: c.below(POOLS.len()),
                change: PoolChange {
                    paused: c.maybe(80, |c| c.percent(40)),
                    note: c.maybe(20, |_| "disk".to_owned()),
                    size: c.maybe(30, |c| c.one_of(&[None, Some(1), Some(2)])),
                },
            },
            99 => Self::Freeze(c.percent(30)),
            100..=102 => Self::Limit {
                kind: c.below(KINDS.len()),
                rate: c.maybe(40, |c| c.below(3)),
                concurrency: c.maybe(40, |c| c.one_of(&[0, 1, 2, 3])),
                per_key: c.one_of(&[1, 1, 2, 3]),
            },
            103 | 104 => Self::PutSchedule {
                schedule: c.below(SCHEDULES.len()),
                outdated: c.percent(15),
                active: c.percent(80),
            },
            105 if c.percent(40) => Self::RemoveSchedule { schedule: c.below(SCHEDULES.len()) },
            105..=108 => Self::Fire {
                schedule: c.below(SCHEDULES.len()),
                outdated: c.percent(8),
                manual: c.percent(20),
                again: c.percent(8),
                key: c.maybe(25, |c| c.below(KEYS.len())),
                held: c.percent(50),
                cancel_previous: c.percent(25),
            },
            109 => Self::Forget { kind: c.below(KINDS.len()), key: c.below(KEYS.len()) },
            _ => Self::Prune { age: c.one_of(&[10, 300, 4_000, 1_000_000]) },
        }
    }

    fn draw_claim(c: &mut Chance) -> Self {
        Self::Claim {
            worker: c.below(WORKERS.len()),
            pool: c.maybe(60, |c| c.below(POOLS.len())),
            kinds: c.maybe(30, |c| c.some(2, |c| c.below(KINDS.len()))),
            named: c.maybe(12, |c| c.some(4, Chance::pick)),
            max: c.one_of(&[0, 1, 1, 2, 3, 6, 50]),
            own_lease: c.maybe(20, |c| c.one_of(&[1, 30, 5_000])),
            repeated: c.percent(5),
        }
    }

    /// The same with less in it.
    pub(super) fn smaller(&self) -> Vec<Self> {
        match self {
            Self::Enqueue(offers) => without_one(offers).map(Self::Enqueue).collect(),
            Self::Settle(items) => without_one(items).map(Self::Settle).collect(),
            Self::Cancel(picks) => without_one(picks).map(Self::Cancel).collect(),
            Self::Dismiss(picks) => without_one(picks).map(Self::Dismiss).collect(),
            Self::Retry { picks, edit } => {
                let edit = *edit;
                without_one(picks).map(|picks| Self::Retry { picks, edit }).collect()
            }
            Self::Extend { picks, lease } => {
                let lease = *lease;
                without_one(picks).map(|picks| Self::Extend { picks, lease }).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn without_one<T: Clone>(items: &[T]) -> impl Iterator<Item = Vec<T>> {
    let most = if items.len() > 1 { items.len() } else { 0 };
    (0..most).map(|gone| {
        let kept = items.iter().enumerate().filter(|(n, _)| *n != gone);
        kept.map(|(_, item)| item.clone()).collect()
    })
}
