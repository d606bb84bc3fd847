//! Schedules and their occurrences.

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::life::End;
use super::{MemoryStore, Model, paging};
use crate::alert::of_occurrence;
use crate::page::{Page, PageRequest};
use crate::schedule::{
    DueSchedule, FirePlan, Live, Occurrence, OccurrenceKind, OccurrenceOutcome, ScheduleState,
    ScheduleStatus,
};
use crate::store::{Act, Enqueued, Expect, Result, Timetables};
use crate::task::{State, TaskId};

impl Model {
    fn put_schedule(&mut self, expect: Expect, state: ScheduleState) -> bool {
        let stored = self.schedules.get(&state.spec.name).map(|stored| stored.rev);
        let as_expected = match expect {
            Expect::Absent => stored.is_none(),
            Expect::Rev(rev) => stored == Some(rev),
        };
        if as_expected {
            self.schedules.insert(state.spec.name.clone(), state);
        }
        as_expected
    }

    fn remove_schedule(&mut self, name: &str, act: &Act) -> bool {
        let Some(schedule) = self.schedules.remove(name) else { return false };
        // The held ones at once, or the end of one would release the next.
        for id in self.live_ids(schedule.uid, true) {
            self.end(id, End::Cancelled { reason: "schedule_removed" }, act.at);
        }
        self.audit_act("schedule.remove", name.to_owned(), act);
        true
    }

    /// Live tasks of a schedule, held ones first, the last accepted first, so that ending one
    /// after another releases none of them.
    fn live_ids(&self, uid: Uuid, only_held: bool) -> Vec<TaskId> {
        let mut rows: Vec<_> = self
            .rows
            .values()
            .filter(|row| row.is_of_schedule(uid) && row.task.state.is_live())
            .filter(|row| row.task.held || !only_held)
            .collect();
        rows.sort_by_key(|row| (row.task.held, row.number));
        rows.iter().rev().map(|row| row.task.id).collect()
    }

    fn with_live(&self, state: &ScheduleState) -> DueSchedule {
        DueSchedule { state: state.clone(), live: self.live(state.uid) }
    }

    fn live(&self, uid: Uuid) -> Live {
        let of_schedule = || self.rows.values().filter(|row| row.is_of_schedule(uid));
        Live {
            active: of_schedule().filter(|row| row.is_active()).count() as u32,
            held: of_schedule().filter(|row| row.task.held).count() as u32,
            failures_in_row: self.failures_in_row.get(&uid).copied().unwrap_or(0),
        }
    }

    fn due(&self, now: Timestamp, limit: usize) -> (Vec<DueSchedule>, Option<Timestamp>) {
        let mut armed: Vec<_> = self
            .schedules
            .values()
            .filter(|state| state.status == ScheduleStatus::Active)
            .filter_map(|state| Some((state.next_due?, state)))
            .collect();
        armed.sort_by_key(|(at, state)| (*at, &state.spec.name));
        let count = armed.iter().take(limit).filter(|(at, _)| *at <= now).count();
        let (due, later) = armed.split_at(count);
        let due = due.iter().map(|(_, state)| self.with_live(state)).collect();
        (due, later.first().map(|(at, _)| *at))
    }

    fn fire(&mut self, plan: FirePlan, now: Timestamp) -> bool {
        let FirePlan { expected_rev, state, mut occurrences, starts, cancel_previous } = plan;
        let uid = state.uid;
        let unchanged = self
            .schedules
            .get(&state.spec.name)
            .is_some_and(|stored| stored.uid == uid && stored.rev == expected_rev);
        let again = occurrences.iter().any(|new| self.has_scheduled(new));
        if !unchanged || again {
            return false;
        }
        if cancel_previous {
            for id in self.live_ids(uid, false) {
                match self.rows.get_mut(&id) {
                    Some(row) if row.task.state == State::Running => {
                        row.task.cancel_requested_at.get_or_insert(now);
                    }
                    _ => self.end(id, End::Cancelled { reason: "overlap" }, now),
                }
            }
        }
        for start in starts {
            let holder = match self.enqueue(&start.task, now) {
                Enqueued::Created | Enqueued::Journalled(_) => start.task.id,
                Enqueued::Existing(task) | Enqueued::Replaced(task) | Enqueued::Rejected(task) => {
                    task.id
                }
            };
            for occurrence in occurrences.iter_mut().filter(|o| o.label == start.label) {
                occurrence.task_id = Some(holder);
            }
        }
        for occurrence in occurrences {
            if let Some(alert) = of_occurrence(&occurrence, now) {
                self.raise(alert, false);
            }
            let number = self.next_number();
            self.occurrences.insert(number, occurrence);
        }
        self.schedules.insert(state.spec.name.clone(), state);
        true
    }

    fn has_scheduled(&self, new: &Occurrence) -> bool {
        new.kind == OccurrenceKind::Scheduled
            && self.occurrences.values().any(|old| {
                old.kind == OccurrenceKind::Scheduled
                    && old.schedule_uid == new.schedule_uid
                    && old.label == new.label
            })
    }

    fn fired_between(
        &self,
        uid: Uuid,
        from: Timestamp,
        to: Timestamp,
    ) -> Vec<(Occurrence, Option<State>)> {
        let mut fired: Vec<_> = self
            .occurrences
            .values()
            .filter(|o| o.schedule_uid == uid && o.outcome == OccurrenceOutcome::Fired)
            .filter(|o| (from..to).contains(&o.time))
            .map(|o| {
                let row = o.task_id.and_then(|id| self.rows.get(&id));
                (o.clone(), row.map(|row| row.task.state))
            })
            .collect();
        fired.sort_by_key(|(occurrence, _)| occurrence.time);
        fired
    }
}

#[async_trait]
impl Timetables for MemoryStore {
    async fn put_schedules(&self, writes: Vec<(Expect, ScheduleState)>) -> Result<Vec<bool>> {
        let mut model = self.model();
        Ok(writes.into_iter().map(|(expect, state)| model.put_schedule(expect, state)).collect())
    }

    async fn remove_schedule(&self, name: &str, act: &Act) -> Result<bool> {
        Ok(self.model().remove_schedule(name, act))
    }

    async fn schedule(&self, name: &str) -> Result<Option<DueSchedule>> {
        let model = self.model();
        Ok(model.schedules.get(name).map(|state| model.with_live(state)))
    }

    async fn schedules(&self, page: &PageRequest) -> Result<Page<DueSchedule>> {
        let model = self.model();
        let states = model.schedules.iter();
        let rows = states.map(|(name, state)| (name.clone(), model.with_live(state))).collect();
        paging::page(rows, page, "schedules")
    }

    async fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueSchedule>, Option<Timestamp>)> {
        Ok(self.model().due(now, limit))
    }

    async fn fire(&self, plans: Vec<FirePlan>, now: Timestamp) -> Result<Vec<bool>> {
        let mut model = self.model();
        Ok(plans.into_iter().map(|plan| model.fire(plan, now)).collect())
    }

    async fn occurrences(
        &self,
        schedule: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<Occurrence>> {
        let model = self.model();
        let rows = model
            .occurrences
            .iter()
            .filter(|(_, o)| schedule.is_none_or(|name| name == &*o.schedule))
            .map(|(number, o)| ((-(*number as i64), 0), o.clone()))
            .collect();
        paging::page(rows, page, "occurrences")
    }

    async fn fired_between(
        &self,
        schedule_uid: Uuid,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<(Occurrence, Option<State>)>> {
        Ok(self.model().fired_between(schedule_uid, from, to))
    }

    async fn live(&self, schedule_uid: Uuid) -> Result<Live> {
        Ok(self.model().live(schedule_uid))
    }
}
