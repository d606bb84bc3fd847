//! Where the live rows of the line begin.
//!
//! A claim deletes from the left end of an index. While somebody holds a snapshot open, anywhere on
//! the server, nothing of what was deleted can be cleared away, and every claim would walk over all
//! of it: more with each claim. So when a claim tells that it walked far, the next ones begin where
//! it found the first live row of each lane.
//!
//! What comes to stand before such a floor (a commit that came late, a task of high priority that
//! another node took in) is found by a claim that begins at the very left all the same: the first
//! one after [`PAUSE`] times what the last such claim took, so that these cost little of the whole.
//! Until a claim walks far, there are no floors: order is exact.
//!
//! A floor is a hint. It must never be a place where a live row was seen before it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// A claim that walks over so many dead entries walks far.
const FAR: i64 = 2_000;

/// Between two claims from the very left, as a multiple of what the first one took.
const PAUSE: u32 = 40;

/// A task that became due longer ago than this has been put in line, or its commit came late.
const DUE_SLACK: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Floors(Mutex<Option<Raised>>);

#[derive(Debug)]
struct Raised {
    lanes: HashMap<i32, i64>,
    due: Option<Timestamp>,
    sweep_at: Instant,
}

/// Where a claim begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Begin {
    /// At the very left.
    Left,
    Floors {
        lanes: Vec<i32>,
        ords: Vec<i64>,
        due: Option<Timestamp>,
        /// When the next claim begins at the very left.
        sweep_in: Duration,
    },
}

/// What a claim saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// How many dead entries it walked over.
    pub(super) walked: i64,
    pub(super) lanes: Vec<i32>,
    pub(super) ords: Vec<i64>,
}

impl Floors {
    pub(super) fn begin(&self, now: Instant) -> Begin {
        match &*self.0.lock().expect("no panic holds it") {
            Some(raised) if now < raised.sweep_at => Begin::Floors {
                lanes: raised.lanes.keys().copied().collect(),
                ords: raised.lanes.values().copied().collect(),
                due: raised.due,
                sweep_in: raised.sweep_at - now,
            },
            _ => Begin::Left,
        }
    }

    /// What is known, for a look: it may begin there although the very left is due to be claimed
    /// from, because whoever claims comes back for that by himself.
    pub(super) fn known(&self) -> (Vec<i32>, Vec<i64>, Option<Timestamp>) {
        match &*self.0.lock().expect("no panic holds it") {
            Some(raised) => {
                let (lanes, ords) = raised.lanes.iter().unzip();
                (lanes, ords, raised.due)
            }
            None => Default::default(),
        }
    }

    /// A claim as of `at`, that began so and took so long, saw this.
    pub(super) fn learn(&self, begin: &Begin, seen: &Seen, at: Timestamp, took: Duration) {
        let mut floors = self.0.lock().expect("no panic holds it");
        if *begin == Begin::Left {
            if seen.walked <= FAR {
                *floors = None;
                return;
            }
            let sweep_at = Instant::now() + took * PAUSE;
            *floors = Some(Raised { lanes: HashMap::new(), due: None, sweep_at });
        }
        let Some(raised) = &mut *floors else { return };
        raised.due = at.checked_sub(DUE_SLACK).ok();
        raised.lanes.extend(seen.lanes.iter().copied().zip(seen.ords.iter().copied()));
    }

    /// A task came to stand at `ord` in some lane.
    pub(super) fn lower(&self, ord: i64) {
        if let Some(raised) = &mut *self.0.lock().expect("no panic holds it") {
            for floor in raised.lanes.values_mut() {
                *floor = (*floor).min(ord);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(walked: i64, ord: i64) -> Seen {
        Seen { walked, lanes: vec![7], ords: vec![ord] }
    }

    fn floor(floors: &Floors) -> Option<i64> {
        match floors.begin(Instant::now()) {
            Begin::Left => None,
            Begin::Floors { ords, .. } => Some(ords[0]),
        }
    }

    #[test]
    fn there_are_no_floors_until_a_claim_walks_far() {
        let (floors, at) = (Floors::default(), Timestamp::UNIX_EPOCH);
        floors.learn(&Begin::Left, &seen(FAR, 5), at, Duration::from_secs(1));
        assert_eq!(floor(&floors), None);
        floors.learn(&Begin::Left, &seen(FAR + 1, 5), at, Duration::from_secs(1));
        assert_eq!(floor(&floors), Some(5));
    }

    #[test]
    fn a_floor_follows_the_line_and_gives_way_to_what_comes_before_it() {
        let (floors, at) = (Floors::default(), Timestamp::UNIX_EPOCH);
        floors.learn(&Begin::Left, &seen(FAR * 2, 5), at, Duration::from_secs(1));
        floors.learn(&floors.begin(Instant::now()), &seen(20, 9), at, Duration::ZERO);
        assert_eq!(floor(&floors), Some(9));
        floors.lower(3);
        floors.lower(8);
        assert_eq!(floor(&floors), Some(3));
    }

    #[test]
    fn the_very_left_is_looked_at_again_in_proportion_to_what_that_costs() {
        let (floors, at) = (Floors::default(), Timestamp::UNIX_EPOCH);
        let (begin, took) = (Instant::now(), Duration::from_millis(100));
        floors.learn(&Begin::Left, &seen(FAR * 2, 5), at, took);
        assert_ne!(floors.begin(begin + took * (PAUSE - 1)), Begin::Left);
        assert_eq!(floors.begin(begin + took * PAUSE + Duration::from_secs(9)), Begin::Left);
        floors.learn(&Begin::Left, &seen(12, 5), at, took);
        assert_eq!(floors.begin(begin), Begin::Left);
    }
}
