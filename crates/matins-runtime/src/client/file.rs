//! The schedules of a configuration file, made the store's.
//!
//! First it is worked out what becomes of each, on all cores; then it is written, some thousands in
//! a commit. So a file in which one schedule is refused changes nothing, and one with a hundred
//! thousand is loaded in a second or two. Must never undo what somebody else changes meanwhile:
//! whoever lost such a race is looked at again by itself.

use std::collections::{HashMap, HashSet};

use futures_util::future::try_join_all;
use jiff::Timestamp;
use matins_core::limits::Limits;
use matins_core::request::TypeDefaults;
use matins_core::schedule::{
    self, DueSchedule, FirePlan, Look, Maker, ManagedBy, ScheduleSpec, ScheduleState,
    ScheduleStatus,
};
use matins_core::store::Expect;
use uuid::Uuid;

use super::{Client, Result, new_id};
use crate::cores;

/// Schedules of one write: enough to share a commit, few enough to let others in between, and to
/// prepare the next while one is written.
const CHUNK: usize = 4_096;

/// Names of disabled schedules that a line of the log has.
const NAMES_MAX: usize = 20;

/// What the file asks of one schedule.
#[derive(Clone, Copy)]
enum Change<'a> {
    Create(&'a ScheduleSpec),
    Edit(&'a DueSchedule, &'a ScheduleSpec),
    /// The file no longer names it.
    Disable(&'a DueSchedule),
}

/// What is written for it.
enum Write {
    State(ScheduleState),
    Plan(FirePlan),
    Nothing,
}

/// What decisions are made from.
struct View {
    now: Timestamp,
    frozen: bool,
    limits: Limits,
    /// By type.
    defaults: HashMap<String, TypeDefaults>,
    /// By schedule: see [`Look::fired_before`].
    fired_before: HashMap<Uuid, Vec<Timestamp>>,
}

impl Client {
    /// Makes the file's schedules what the store has under `managed_by: file`. All are checked
    /// before any is written. Answers how many were written and how many disabled.
    pub async fn apply_file(&self, specs: &[ScheduleSpec]) -> Result<(usize, usize)> {
        let stored = self.all_schedules().await?;
        let changes = changes(specs, &stored);
        let view = self.view(&changes).await?;
        let writes = cores::map(&changes, |change| view.write(*change));
        let mut created = Vec::new();
        let mut planned = Vec::new();
        for (change, write) in changes.into_iter().zip(writes) {
            match write? {
                Write::State(state) => created.push((change, state)),
                Write::Plan(plan) => planned.push((change, plan)),
                Write::Nothing => {}
            }
        }
        let (mut written, mut disabled) = (0, Vec::new());
        let mut late = self.create(created, &mut written).await?;
        late.extend(self.carry_out(planned, &mut written, &mut disabled).await?);
        for change in late {
            match change {
                Change::Create(spec) | Change::Edit(_, spec) => {
                    let changed = self.write_schedule(spec.clone(), ManagedBy::File, true).await?;
                    written += usize::from(changed);
                }
                Change::Disable(due) => {
                    self.change(&due.state.spec.name, schedule::disable).await?;
                    disabled.push(&*due.state.spec.name);
                }
            }
        }
        self.inner.wake.ring_schedules();
        if !disabled.is_empty() {
            let names = disabled[..disabled.len().min(NAMES_MAX)].join(", ");
            tracing::warn!(count = disabled.len(), names, "disabled: this file does not name them");
        }
        Ok((written, disabled.len()))
    }

    async fn view(&self, changes: &[Change<'_>]) -> Result<View> {
        let mut view = View {
            now: self.now(),
            frozen: self.is_frozen().await?,
            limits: self.rules().limits,
            defaults: HashMap::new(),
            fired_before: HashMap::new(),
        };
        for due in changes.iter().filter_map(Change::stored) {
            let kind = &due.state.spec.kind;
            if !view.defaults.contains_key(kind) {
                let defaults = self.schedule_defaults(&due.state.spec).await?;
                view.defaults.insert(kind.clone(), defaults);
            }
            let fired = self.fired_before(&due.state).await?;
            if !fired.is_empty() {
                view.fired_before.insert(due.state.uid, fired);
            }
        }
        Ok(view)
    }

    /// Writes new ones; answers with those that somebody else was quicker to create.
    async fn create<'a>(
        &self,
        mut created: Vec<(Change<'a>, ScheduleState)>,
        written: &mut usize,
    ) -> Result<Vec<Change<'a>>> {
        // In the order in which a store keeps them: each of its pages is then written once.
        created.sort_by(|(_, a), (_, b)| a.spec.name.cmp(&b.spec.name));
        let (changes, states): (Vec<_>, Vec<_>) = created.into_iter().unzip();
        let mut states = states.into_iter().map(|state| (Expect::Absent, state)).peekable();
        let mut chunks = Vec::new();
        while states.peek().is_some() {
            chunks.push(states.by_ref().take(CHUNK).collect());
        }
        let puts = chunks.into_iter().map(|chunk| self.inner.store.put_schedules(chunk));
        let done = try_join_all(puts).await?.concat();
        *written += done.iter().filter(|done| **done).count();
        Ok(lost(changes, &done))
    }

    /// Applies plans; answers with the changes whose schedule was changed in between.
    async fn carry_out<'a>(
        &self,
        planned: Vec<(Change<'a>, FirePlan)>,
        written: &mut usize,
        disabled: &mut Vec<&'a str>,
    ) -> Result<Vec<Change<'a>>> {
        let (changes, plans): (Vec<_>, Vec<_>) = planned.into_iter().unzip();
        let now = self.now();
        let fires = plans.chunks(CHUNK).map(|chunk| self.inner.store.fire(chunk.to_vec(), now));
        let done = try_join_all(fires).await?.concat();
        for ((change, plan), _) in changes.iter().zip(&plans).zip(&done).filter(|(_, done)| **done)
        {
            self.fired(plan, now).await;
            match change {
                Change::Disable(due) => disabled.push(&due.state.spec.name),
                Change::Create(_) | Change::Edit(..) => *written += 1,
            }
        }
        Ok(lost(changes, &done))
    }
}

impl<'a> Change<'a> {
    fn stored(&self) -> Option<&'a DueSchedule> {
        match self {
            Self::Create(_) => None,
            Self::Edit(due, _) | Self::Disable(due) => Some(due),
        }
    }
}

impl View {
    fn write(&self, change: Change<'_>) -> Result<Write> {
        let (due, spec) = match change {
            Change::Create(spec) => {
                let (uid, by) = (Uuid::now_v7(), ManagedBy::File);
                let state = schedule::create(uid, spec.clone(), by, &self.limits, self.now)?;
                return Ok(Write::State(state));
            }
            Change::Edit(due, spec) => (due, Some(spec)),
            Change::Disable(due) => (due, None),
        };
        let state = &due.state;
        let fired_before = self.fired_before.get(&state.uid).map_or(&[][..], Vec::as_slice);
        let look = Look { now: self.now, frozen: self.frozen, fired_before };
        let mut fresh = new_id;
        let defaults = &self.defaults[&state.spec.kind];
        let mut maker = Maker { limits: &self.limits, defaults, fresh: &mut fresh };
        let plan = match spec {
            Some(spec) => schedule::edit(due, spec.clone(), ManagedBy::File, &look, &mut maker)?,
            None => {
                let prepared = state.spec.prepare(state.anchor, &self.limits)?;
                Some(schedule::disable(due, &prepared, &look, &mut maker))
            }
        };
        Ok(plan.map_or(Write::Nothing, Write::Plan))
    }
}

/// Schedules of the file that are not as the store has them, in the order of the file; then those
/// of the store that it does not name.
fn changes<'a>(specs: &'a [ScheduleSpec], stored: &'a [DueSchedule]) -> Vec<Change<'a>> {
    let named: HashSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let known: HashMap<&str, &DueSchedule> =
        stored.iter().map(|due| (due.state.spec.name.as_str(), due)).collect();
    let of_file = specs.iter().filter_map(|spec| match known.get(spec.name.as_str()) {
        None => Some(Change::Create(spec)),
        Some(due) if is_as_written(&due.state, spec) => None,
        Some(due) => Some(Change::Edit(due, spec)),
    });
    let gone = stored.iter().filter(|due| {
        due.state.managed_by == ManagedBy::File
            && due.state.status != ScheduleStatus::Disabled
            && !named.contains(due.state.spec.name.as_str())
    });
    of_file.chain(gone.map(Change::Disable)).collect()
}

/// A schedule of the file that needs no writing.
fn is_as_written(state: &ScheduleState, spec: &ScheduleSpec) -> bool {
    state.managed_by == ManagedBy::File
        && state.status != ScheduleStatus::Disabled
        && state.spec == *spec
}

fn lost<'a>(changes: Vec<Change<'a>>, done: &[bool]) -> Vec<Change<'a>> {
    changes.into_iter().zip(done).filter(|(_, done)| !**done).map(|(change, _)| change).collect()
}
