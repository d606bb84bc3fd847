//! Schedules: set, removed, paused, triggered, made up for. Every change is a plan of the core,
//! applied while the schedule is what the plan was made from.

use jiff::Timestamp;
use matins_core::State;
use matins_core::operation::{Operation, OperationKind, OperationState};
use matins_core::page::{PAGE_MAX, Page, PageRequest};
use matins_core::request::{FieldError, TypeDefaults};
use matins_core::schedule::{
    self, Backfill, BackfillItem, BackfillMode, DueSchedule, FirePlan, Look, Maker, ManagedBy,
    Occurrence, Prepared, ScheduleSpec, ScheduleState, ScheduleStatus, SpecError,
};
use matins_core::store::{Act, Expect};
use matins_core::task::{NewTask, TaskId};
use uuid::Uuid;

use super::operations::Step;
use super::{Client, Result, new_id};
use crate::error::ClientError;
use crate::events::What;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillRequest {
    pub name: String,
    /// Half-open: `from` is in, `to` is not.
    pub from: Timestamp,
    pub to: Timestamp,
    pub mode: BackfillMode,
    /// Most tasks of the backfill that are live at a time.
    pub concurrency: u32,
}

/// What a backfill would start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillPlan {
    pub plan: Backfill,
    /// Items whose key has completed or is live: they would run nothing.
    pub deduplicated: u64,
}

/// What a trigger led to.
#[derive(Debug, Clone, PartialEq)]
pub struct Triggered {
    pub occurrence: Occurrence,
    /// Its key had completed or is live: the occurrence names the task that has it.
    pub deduplicated: bool,
}

/// How often a change is tried again when somebody else changed the schedule in between.
const TRIES: usize = 20;

impl Client {
    /// Creates a schedule or replaces its specification.
    pub async fn put_schedule(&self, spec: ScheduleSpec, who: &str) -> Result<DueSchedule> {
        let name = spec.name.clone();
        self.write_schedule(spec, ManagedBy::Api, false).await?;
        self.audit_act(who, "schedule.set", &name, None).await?;
        self.schedule(&name).await
    }

    /// `over_file`: the file itself speaks.
    pub(super) async fn write_schedule(
        &self,
        spec: ScheduleSpec,
        by: ManagedBy,
        over_file: bool,
    ) -> Result<bool> {
        let limits = self.rules().limits;
        for _ in 0..TRIES {
            let Some(due) = self.inner.store.schedule(&spec.name).await? else {
                let now = self.now();
                let state = schedule::create(Uuid::now_v7(), spec.clone(), by, &limits, now)?;
                if self.inner.store.put_schedules(vec![(Expect::Absent, state)]).await? == [true] {
                    self.inner.wake.ring_schedules();
                    return Ok(true);
                }
                continue;
            };
            let live = due.state.status != ScheduleStatus::Disabled;
            if !over_file && live && due.state.managed_by == ManagedBy::File {
                return Err(ClientError::ManagedByFile { name: spec.name });
            }
            let plan = self.edit_plan(&due, spec.clone(), by).await?;
            let Some(plan) = plan else { return Ok(false) };
            if self.apply(plan).await? {
                return Ok(true);
            }
        }
        Err(contended(&spec.name))
    }

    async fn edit_plan(
        &self,
        due: &DueSchedule,
        spec: ScheduleSpec,
        by: ManagedBy,
    ) -> Result<Option<FirePlan>> {
        let fired = self.fired_before(&due.state).await?;
        let defaults = self.schedule_defaults(&due.state.spec).await?;
        let limits = self.rules().limits;
        let frozen = self.is_frozen().await?;
        let look = Look { now: self.now(), frozen, fired_before: &fired };
        let mut fresh = new_id;
        let mut maker = Maker { limits: &limits, defaults: &defaults, fresh: &mut fresh };
        Ok(schedule::edit(due, spec, by, &look, &mut maker)?)
    }

    pub(crate) async fn all_schedules(&self) -> Result<Vec<DueSchedule>> {
        let mut page = PageRequest { limit: PAGE_MAX, cursor: None };
        let mut all = Vec::new();
        loop {
            let found = self.inner.store.schedules(&page).await?;
            all.extend(found.items);
            match found.next {
                Some(next) => page.cursor = Some(next),
                None => return Ok(all),
            }
        }
    }

    pub async fn remove_schedule(&self, name: &str, who: &str) -> Result<()> {
        let due = self.schedule(name).await?;
        if due.state.managed_by == ManagedBy::File && due.state.status != ScheduleStatus::Disabled {
            return Err(ClientError::ManagedByFile { name: name.to_owned() });
        }
        let act = Act { who: who.to_owned(), reason: None, at: self.now() };
        if !self.inner.store.remove_schedule(name, &act).await? {
            return Err(ClientError::not_found("schedule", name));
        }
        Ok(())
    }

    pub async fn schedule(&self, name: &str) -> Result<DueSchedule> {
        let found = self.inner.store.schedule(name).await?;
        found.ok_or_else(|| ClientError::not_found("schedule", name))
    }

    pub async fn schedules(&self, page: &PageRequest) -> Result<Page<DueSchedule>> {
        Ok(self.inner.store.schedules(page).await?)
    }

    pub async fn occurrences(
        &self,
        name: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<Occurrence>> {
        Ok(self.inner.store.occurrences(name, page).await?)
    }

    pub async fn pause_schedule(
        &self,
        name: &str,
        note: Option<String>,
        who: &str,
    ) -> Result<DueSchedule> {
        let reason = note.clone();
        self.change(name, move |due, _, look, _| {
            schedule::pause(&due.state, note.clone(), look.now)
        })
        .await?;
        self.audit_act(who, "schedule.pause", name, reason).await?;
        self.schedule(name).await
    }

    pub async fn resume_schedule(&self, name: &str, who: &str) -> Result<DueSchedule> {
        if self.schedule(name).await?.state.status == ScheduleStatus::Disabled {
            return Err(ClientError::WrongState {
                message: format!(
                    "schedule {name} is disabled: the file that was applied last does not name it"
                ),
                hint: Some(
                    "put it into matins.yaml of the servers: a file is applied when it changes"
                        .to_owned(),
                ),
            });
        }
        self.change(name, schedule::resume).await?;
        self.audit_act(who, "schedule.resume", name, None).await?;
        self.schedule(name).await
    }

    /// Starts a task by hand, to stand for `for_label` or for this moment.
    pub async fn trigger(
        &self,
        name: &str,
        for_label: Option<String>,
        who: &str,
    ) -> Result<Triggered> {
        for _ in 0..TRIES {
            let due = self.schedule(name).await?;
            let now = self.now();
            let plan = {
                let limits = self.rules().limits;
                let defaults = self.schedule_defaults(&due.state.spec).await?;
                let prepared = due.state.spec.prepare(due.state.anchor, &limits)?;
                let mut fresh = new_id;
                let mut maker = Maker { limits: &limits, defaults: &defaults, fresh: &mut fresh };
                let label = for_label.as_deref();
                schedule::trigger(&due.state, &prepared, label, now, &mut maker)?
            };
            let occurrence = plan.occurrences.first().cloned();
            if self.apply(plan).await? {
                self.audit_act(who, "schedule.trigger", name, for_label).await?;
                let Some(planned) = occurrence else { break };
                let own = planned.task_id;
                let occurrence = self.stored_occurrence(name, planned).await?;
                let deduplicated = occurrence.task_id != own;
                return Ok(Triggered { occurrence, deduplicated });
            }
        }
        Err(contended(name))
    }

    /// The task may be another one than planned: the holder of its key.
    async fn stored_occurrence(&self, name: &str, planned: Occurrence) -> Result<Occurrence> {
        let page = PageRequest { limit: 50, cursor: None };
        let recent = self.inner.store.occurrences(Some(name), &page).await?.items;
        let stored = recent.into_iter().find(|o| {
            o.kind == planned.kind && o.label == planned.label && o.fired_at == planned.fired_at
        });
        Ok(stored.unwrap_or(planned))
    }

    /// Plans and applies a change until it meets an unchanged schedule.
    pub(super) async fn change(
        &self,
        name: &str,
        plan: impl Fn(&DueSchedule, &Prepared, &Look<'_>, &mut Maker<'_>) -> FirePlan,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let due = self.schedule(name).await?;
            let plan = self.plan(&due, self.is_frozen().await?, &plan).await?;
            if self.apply(plan).await? {
                return Ok(());
            }
        }
        Err(contended(name))
    }

    /// What `plan` makes of a schedule as it was read, with everything a decision needs.
    pub async fn plan(
        &self,
        due: &DueSchedule,
        frozen: bool,
        plan: impl Fn(&DueSchedule, &Prepared, &Look<'_>, &mut Maker<'_>) -> FirePlan,
    ) -> Result<FirePlan> {
        let fired = self.fired_before(&due.state).await?;
        let defaults = self.schedule_defaults(&due.state.spec).await?;
        let limits = self.rules().limits;
        let prepared = due.state.spec.prepare(due.state.anchor, &limits)?;
        let look = Look { now: self.now(), frozen, fired_before: &fired };
        let mut fresh = new_id;
        let mut maker = Maker { limits: &limits, defaults: &defaults, fresh: &mut fresh };
        Ok(plan(due, &prepared, &look, &mut maker))
    }

    pub(crate) async fn is_frozen(&self) -> Result<bool> {
        Ok(self.inner.store.settings().await?.frozen.is_some())
    }

    /// What fired in the stretch that the clock was set back over.
    pub(crate) async fn fired_before(&self, state: &ScheduleState) -> Result<Vec<Timestamp>> {
        let Some((from, to)) = schedule::decided_before(state, self.now()) else {
            return Ok(Vec::new());
        };
        let fired = self.inner.store.fired_between(state.uid, from, to).await?;
        let scheduled = fired.into_iter().map(|(occurrence, _)| occurrence);
        let scheduled = scheduled.filter(|o| o.kind == schedule::OccurrenceKind::Scheduled);
        Ok(scheduled.map(|occurrence| occurrence.time).collect())
    }

    pub(crate) async fn schedule_defaults(&self, spec: &ScheduleSpec) -> Result<TypeDefaults> {
        self.type_defaults(&self.rules(), &spec.kind).await
    }

    /// Applies a plan and tells whoever waits. `false`: the schedule has changed since.
    async fn apply(&self, plan: FirePlan) -> Result<bool> {
        let now = self.now();
        let told = plan.clone();
        let applied = self.inner.store.fire(vec![plan], now).await? == [true];
        if applied {
            self.fired(&told, now).await;
            self.inner.wake.ring_schedules();
        }
        Ok(applied)
    }

    /// Metrics, events and wake-ups of an applied plan.
    pub(crate) async fn fired(&self, plan: &FirePlan, now: Timestamp) {
        for occurrence in &plan.occurrences {
            self.inner.metrics.occurrences(occurrence.outcome, occurrence.count);
            if occurrence.outcome == schedule::OccurrenceOutcome::Fired
                && occurrence.kind == schedule::OccurrenceKind::Scheduled
            {
                let lag = matins_core::task::until(now, occurrence.time);
                self.inner.metrics.fired_late_by(lag);
            }
        }
        for start in &plan.starts {
            let (schedule, label) = (plan.state.spec.name.as_str().into(), start.label.clone());
            self.inner.events.send(now, || What::Fired { schedule, label });
            self.inner.wake.ring_pool(&start.task.pool);
        }
        if plan.cancel_previous {
            self.inner.wake.ring_cancels();
        }
        for start in &plan.starts {
            if self.met_its_key(&start.task).await {
                self.inner.metrics.deduplicated();
            } else {
                self.inner.metrics.enqueued(&start.task.kind, 1);
            }
        }
    }

    /// Whether the key of a start was taken, so that it has no task of its own.
    async fn met_its_key(&self, task: &NewTask) -> bool {
        task.execution_key.is_some() && matches!(self.inner.store.task(task.id).await, Ok(None))
    }

    /// What a backfill would start, and how much of it the keys would deduplicate.
    pub async fn backfill_dry_run(&self, request: &BackfillRequest) -> Result<BackfillPlan> {
        let due = self.schedule(&request.name).await?;
        let range = (request.from, request.to);
        let plan = self.backfill_plan(&due.state, range, request.mode).await?;
        let mut deduplicated = 0;
        for item in &plan.items {
            if let Some(key) = &item.execution_key
                && let Some(entry) = self.inner.store.ledger(&due.state.spec.kind, key).await?
                && (entry.state.is_live() || entry.state == State::Completed)
            {
                deduplicated += 1;
            }
        }
        Ok(BackfillPlan { plan, deduplicated })
    }

    async fn backfill_plan(
        &self,
        state: &ScheduleState,
        range: (Timestamp, Timestamp),
        mode: BackfillMode,
    ) -> Result<Backfill> {
        let fired = self.inner.store.fired_between(state.uid, range.0, range.1).await?;
        self.backfill_items(state, range, mode, &fired)
    }

    fn backfill_items(
        &self,
        state: &ScheduleState,
        range: (Timestamp, Timestamp),
        mode: BackfillMode,
        fired: &[(Occurrence, Option<State>)],
    ) -> Result<Backfill> {
        let prepared = state.spec.prepare(state.anchor, &self.rules().limits)?;
        Ok(schedule::backfill(state, &prepared, range, mode, fired, self.now())?)
    }

    pub async fn backfill(&self, request: BackfillRequest, who: &str) -> Result<Operation> {
        if request.concurrency == 0 {
            return Err(FieldError::new("concurrency", "expected at least 1").into());
        }
        let due = self.schedule(&request.name).await?;
        let range = (request.from, request.to);
        let total = self.backfill_plan(&due.state, range, request.mode).await?.items.len() as u64;
        let operation = Operation {
            id: Uuid::now_v7(),
            kind: OperationKind::Backfill {
                schedule: request.name.clone(),
                from: request.from,
                to: request.to,
                mode: request.mode,
                concurrency: request.concurrency,
                done_to: None,
                live: Vec::new(),
            },
            state: OperationState::Running,
            by: who.to_owned(),
            reason: None,
            created_at: self.now(),
            finished_at: None,
            total,
            replayed: 0,
            deduplicated: 0,
            failed: 0,
            detail: None,
        };
        self.inner.store.put_operation(&operation).await?;
        let target = format!("{}..{}", request.from, request.to);
        self.audit_act(who, "schedule.backfill", &request.name, Some(target)).await?;
        self.inner.wake.ring_operations();
        Ok(operation)
    }

    /// Starts as many occurrences as the backfill's own concurrency leaves room for.
    pub(super) async fn step_backfill(&self, operation: &mut Operation) -> Result<Step> {
        let OperationKind::Backfill { schedule, to, mode, concurrency, done_to, from, live } =
            &mut operation.kind
        else {
            return Ok(Step::Finished);
        };
        let (still, failed) = self.still_live(live).await?;
        *live = still;
        operation.failed += failed;
        let room = (*concurrency as usize).saturating_sub(live.len());
        let Some(due) = self.inner.store.schedule(schedule).await? else {
            operation.state = OperationState::Stopped;
            operation.detail = Some(format!("schedule {schedule} is gone"));
            return Ok(Step::Finished);
        };
        let range = (done_to.unwrap_or(*from), *to);
        let goes_on = range.0 < range.1 && room > 0;
        let fired = if goes_on {
            self.inner.store.fired_between(due.state.uid, range.0, range.1).await?
        } else {
            Vec::new()
        };
        let own = schedule::backfilled_by(operation.id, &fired);
        if let Some(last) = own.iter().map(|(time, _)| *time).max() {
            // A step was carried out and its progress lost: it is taken over, not repeated.
            *done_to = Some(behind(last));
            operation.replayed += own.len() as u64;
            live.extend(own.into_iter().map(|(_, id)| id));
            return Ok(Step::Again);
        }
        let items: Vec<BackfillItem> = if goes_on {
            let items = self.backfill_items(&due.state, range, *mode, &fired)?.items;
            items.into_iter().take(room).collect()
        } else {
            Vec::new()
        };
        let Some(last) = items.last() else {
            let over = live.is_empty() && room > 0;
            return Ok(if over { Step::Finished } else { Step::After(super::operations::POLL) });
        };
        let rest = behind(last.fire.time);
        let plan = {
            let limits = self.rules().limits;
            let defaults = self.schedule_defaults(&due.state.spec).await?;
            let prepared = due.state.spec.prepare(due.state.anchor, &limits)?;
            let mut fresh = new_id;
            let mut maker = Maker { limits: &limits, defaults: &defaults, fresh: &mut fresh };
            let id = operation.id;
            schedule::backfill_plan(&due.state, &prepared, id, &items, self.now(), &mut maker)?
        };
        let planned: Vec<_> = plan.starts.iter().map(|start| start.task.id).collect();
        if !self.apply(plan).await? {
            return Ok(Step::Again);
        }
        *done_to = Some(rest);
        for id in planned {
            // A start whose key was taken has no task of its own.
            match self.inner.store.task(id).await? {
                Some(_) => {
                    operation.replayed += 1;
                    live.push(id);
                }
                None => operation.deduplicated += 1,
            }
        }
        Ok(Step::Again)
    }

    /// Which of these tasks have not ended, and how many did not complete.
    async fn still_live(&self, ids: &[TaskId]) -> Result<(Vec<TaskId>, u64)> {
        let (mut still, mut failed) = (Vec::new(), 0);
        for id in ids {
            match self.inner.store.task(*id).await?.map(|task| task.state) {
                Some(state) if state.is_live() => still.push(*id),
                Some(State::Failed | State::Cancelled) => failed += 1,
                _ => {}
            }
        }
        Ok((still, failed))
    }
}

/// Where the rest of a range begins.
fn behind(time: Timestamp) -> Timestamp {
    time + jiff::SignedDuration::from_micros(1)
}

impl From<SpecError> for ClientError {
    fn from(error: SpecError) -> Self {
        Self::Spec(error)
    }
}

fn contended(name: &str) -> ClientError {
    ClientError::WrongState {
        message: format!("schedule {name} was changed by others at the same time, again and again"),
        hint: Some("try again".to_owned()),
    }
}
