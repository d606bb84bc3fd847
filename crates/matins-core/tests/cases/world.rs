//! A store of one schedule, small enough to see through: it applies plans, keeps every occurrence,
//! and refuses what a real store refuses. Included by the tests of schedules.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use matins_core::limits::Limits;
use matins_core::request::TypeDefaults;
use matins_core::schedule::*;
use matins_core::{NewTask, TaskId};
use uuid::Uuid;

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn plus(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

pub(crate) fn spec(schedule: &str) -> ScheduleSpec {
    ScheduleSpec::new("tick", schedule, "quick")
}

pub(crate) struct World {
    pub(crate) state: ScheduleState,
    pub(crate) live: Live,
    pub(crate) frozen: bool,
    pub(crate) occurrences: Vec<Occurrence>,
    pub(crate) tasks: Vec<NewTask>,
    /// Whether the last plan asked the previous tasks to end.
    pub(crate) cancelled: bool,
    next_id: u128,
}

impl World {
    pub(crate) fn new(spec: ScheduleSpec, now: &str) -> Self {
        Self::try_new(spec, at(now)).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn try_new(spec: ScheduleSpec, now: Timestamp) -> Result<Self, SpecError> {
        let uid = Uuid::from_u128(0xfeed);
        let state = create(uid, spec, ManagedBy::Api, &Limits::default(), now)?;
        Ok(Self {
            state,
            live: Live::default(),
            frozen: false,
            occurrences: Vec::new(),
            tasks: Vec::new(),
            cancelled: false,
            next_id: 1,
        })
    }

    pub(crate) fn due(&self) -> DueSchedule {
        DueSchedule { state: self.state.clone(), live: self.live }
    }

    pub(crate) fn prepared(&self) -> Prepared {
        self.state.spec.prepare(self.state.anchor, &Limits::default()).unwrap()
    }

    /// Runs `act` with what a plan needs and applies the plan it makes.
    pub(crate) fn with<T>(
        &mut self,
        now: Timestamp,
        act: impl FnOnce(&DueSchedule, &Look<'_>, &mut Maker<'_>) -> Result<Option<FirePlan>, T>,
    ) -> Result<(), T> {
        let due = self.due();
        let fired: Vec<Timestamp> = match decided_before(&self.state, now) {
            None => Vec::new(),
            Some((from, to)) => {
                let mut fired: Vec<Timestamp> = self
                    .occurrences
                    .iter()
                    .filter(|o| o.outcome == OccurrenceOutcome::Fired)
                    .filter(|o| o.kind == OccurrenceKind::Scheduled)
                    .map(|o| o.time)
                    .filter(|time| (from..to).contains(time))
                    .collect();
                fired.sort_unstable();
                fired
            }
        };
        let look = Look { now, frozen: self.frozen, fired_before: &fired };
        let limits = Limits::default();
        let defaults = TypeDefaults { pool: "default".into(), concurrency_key: None };
        let mut next_id = self.next_id;
        let mut fresh = || {
            next_id += 1;
            TaskId(Uuid::from_u128(next_id))
        };
        let mut maker = Maker { limits: &limits, defaults: &defaults, fresh: &mut fresh };
        let plan = act(&due, &look, &mut maker)?;
        self.next_id = next_id;
        if let Some(plan) = plan {
            self.apply(plan);
        }
        Ok(())
    }

    fn apply(&mut self, plan: FirePlan) {
        assert_eq!(plan.expected_rev, self.state.rev);
        assert_eq!(plan.state.rev, self.state.rev + 1);
        let known: BTreeSet<&str> = self
            .occurrences
            .iter()
            .filter(|o| o.kind == OccurrenceKind::Scheduled)
            .map(|o| o.label.as_str())
            .collect();
        for occurrence in &plan.occurrences {
            if occurrence.kind == OccurrenceKind::Scheduled {
                assert!(!known.contains(occurrence.label.as_str()), "{occurrence:?} again");
            }
            assert_eq!(occurrence.label_to.is_some(), occurrence.count > 1, "{occurrence:?}");
            let fired = occurrence.outcome == OccurrenceOutcome::Fired;
            assert_eq!(occurrence.task_id.is_some(), fired, "{occurrence:?}");
            assert_eq!(occurrence.reason.is_none(), fired, "{occurrence:?}");
        }
        for start in &plan.starts {
            let occurrence = plan.occurrences.iter().find(|o| o.label == start.label);
            assert_eq!(occurrence.unwrap().task_id, Some(start.task.id));
            assert_eq!(start.task.origin.as_ref().unwrap().label, start.label);
            if start.task.held {
                self.live.held += 1;
            } else {
                self.live.active += 1;
            }
        }
        assert!(plan.occurrences.len() < 25_000 && plan.starts.len() <= 10_000);
        self.cancelled = plan.cancel_previous;
        self.occurrences.extend(plan.occurrences);
        self.tasks.extend(plan.starts.into_iter().map(|start| start.task));
        self.state = plan.state;
        assert_eq!(self.recorded(), self.state.balance, "records and balance");
        let balance = self.state.balance;
        assert_eq!(
            balance.expected,
            balance.fired + balance.coalesced + balance.skipped + balance.missed,
            "{balance:?}"
        );
    }

    fn recorded(&self) -> Balance {
        let mut balance = Balance { expected: self.state.balance.expected, ..Balance::default() };
        for o in self.occurrences.iter().filter(|o| o.kind == OccurrenceKind::Scheduled) {
            match o.outcome {
                OccurrenceOutcome::Fired => balance.fired += o.count,
                OccurrenceOutcome::Coalesced => balance.coalesced += o.count,
                OccurrenceOutcome::Skipped => balance.skipped += o.count,
                OccurrenceOutcome::Missed => balance.missed += o.count,
            }
        }
        balance
    }

    /// One look, if the schedule is due.
    pub(crate) fn look(&mut self, now: Timestamp) {
        if self.state.status == ScheduleStatus::Active
            && self.state.next_due.is_some_and(|due| due <= now)
        {
            let prepared = self.prepared();
            let never = self.with(now, |due, look, maker| {
                Ok::<_, std::convert::Infallible>(Some(decide(due, &prepared, look, maker)))
            });
            never.unwrap();
        }
    }

    /// Looks until nothing is due.
    pub(crate) fn tick(&mut self, now: &str) -> &mut Self {
        self.tick_at(at(now))
    }

    pub(crate) fn tick_at(&mut self, now: Timestamp) -> &mut Self {
        for _ in 0..10_000 {
            let rev = self.state.rev;
            self.look(now);
            if self.state.rev == rev {
                return self;
            }
        }
        panic!("does not come to rest at {now}");
    }

    pub(crate) fn pause(&mut self, now: Timestamp) {
        let plan = pause(&self.state, Some("deploy".to_owned()), now);
        self.apply(plan);
    }

    pub(crate) fn resume(&mut self, now: Timestamp) {
        let prepared = self.prepared();
        let never = self.with(now, |due, look, maker| {
            Ok::<_, std::convert::Infallible>(Some(resume(due, &prepared, look, maker)))
        });
        never.unwrap();
    }

    pub(crate) fn edit(&mut self, spec: ScheduleSpec, now: Timestamp) -> Result<(), SpecError> {
        self.with(now, |due, look, maker| edit(due, spec, ManagedBy::Api, look, maker))
    }

    pub(crate) fn clock_stepped(&mut self, now: Timestamp) {
        if let Some(plan) = step_back(&self.state, &Limits::default(), now) {
            self.apply(plan);
        }
    }

    /// All tasks end well.
    pub(crate) fn finish_tasks(&mut self) {
        self.live = Live::default();
    }

    /// `label outcome` of what was recorded after the first `skip` records.
    pub(crate) fn story(&self, skip: usize) -> Vec<String> {
        let line = |o: &Occurrence| {
            let range =
                o.label_to.as_ref().map_or(String::new(), |to| format!("..{to} x{}", o.count));
            let reason = o.reason.map_or(String::new(), |reason| format!("({reason})"));
            format!("{}{range} {}{reason}", o.label, o.outcome)
        };
        self.occurrences.iter().skip(skip).map(line).collect()
    }

    /// Sums of counts per outcome and reason.
    pub(crate) fn sums(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for o in &self.occurrences {
            let reason = o.reason.map_or(String::new(), |reason| format!("({reason})"));
            *sums.entry(format!("{}{reason}", o.outcome)).or_default() += o.count;
        }
        sums
    }
}
