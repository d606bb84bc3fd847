//! The next instants of schedules, *marks*: mirrored, taken and decided about in slots of their
//! own, as tasks are claimed. What is the attempt of a task is the revision of a schedule.
//!
//! In the dark only what can be judged there is decided: no `execution_key`, an overlap of `allow`
//! or `skip`, no `pause_after_failures`, no clock that was set back. Whether the task that holds a
//! schedule with `skip` has ended is noted by whoever ends it; one of which nobody says so holds.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use matins_core::outage::{Change, Entry, Taken};
use matins_core::schedule::{DueSchedule, FirePlan, Live, Overlap, ScheduleState, ScheduleStatus};
use matins_core::store::{Act, Expect, Result, StoreError, Timetables as _};
use matins_core::task::{Durability, Task, TaskId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::super::RedisStore;
use super::super::link::Miss;
use super::super::pusher::Trouble;
use super::dark::{away, missed, soon};
use super::push::{entry as task_entry, may_be_mirrored};
use super::{Mirror, Offer};
use crate::postgres::marks::Mark;

/// The line they stand in. No pool has such a name.
const LINE: &str = "\u{1}marks";
const KIND: &str = "mark";

/// Most that one reading looks at.
const AHEAD: usize = 10_000;

/// What a node's clock may differ from that of Redis by.
const CLOCKS_APART: std::time::Duration = std::time::Duration::from_secs(5);

/// Of nobody who holds it.
const NOBODY: &str = "-";

/// How often what has moved on is looked at anew.
const TRIES: usize = 20;

/// What is kept of a schedule.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    state: ScheduleState,
    failures_in_row: u32,
}

/// A mark that waits to be mirrored, and the task that holds it.
#[derive(Debug)]
pub(super) struct Ahead {
    kept: Kept,
    holder: Option<TaskId>,
}

/// Whether it can be judged without the database.
fn is_fit(state: &ScheduleState) -> bool {
    let spec = &state.spec;
    state.status == ScheduleStatus::Active
        && spec.execution_key.is_none()
        && spec.pause_after_failures == 0
        && matches!(spec.overlap, Overlap::Allow | Overlap::Skip)
        && state.cursor >= state.high_water
}

/// Its entry; `None`: it waits for nothing, or cannot be judged.
fn entry(kept: &Kept, generation: u64, seal: impl Fn(&str) -> String) -> Result<Option<String>> {
    let Some(due) = kept.state.next_due.filter(|_| is_fit(&kept.state)) else { return Ok(None) };
    let (rev, due) = (kept.state.rev, due.as_microsecond());
    let text =
        serde_json::to_string(kept).map_err(|error| StoreError::Broken(error.to_string()))?;
    let text = seal(&text);
    Ok(Some(format!("{rev}\t{generation}\t{due}\t{due}\t{LINE}\t{KIND}\t{text}")))
}

/// The task that holds a schedule from now on, if a plan has started one.
fn holder(plan: &FirePlan) -> Option<TaskId> {
    let skips = plan.state.spec.overlap == Overlap::Skip;
    plan.starts.last().filter(|_| skips).map(|start| start.task.id)
}

impl Mirror {
    /// The marks that should be in Redis: by a reading of one node for all.
    pub(super) async fn marks_wanted(&self) -> Result<Vec<Mark>> {
        let ahead = self.store.marks_ahead(self.options.horizon, AHEAD).await?;
        let mut unfit = self.unfit();
        let there: HashMap<Uuid, u64> = ahead.iter().copied().collect();
        unfit.retain(|uid, rev| there.get(uid) == Some(rev));
        Ok(ahead.into_iter().filter(|(uid, rev)| unfit.get(uid) != Some(rev)).collect())
    }

    /// Marks as they are now, in the form in which they are offered.
    pub(super) async fn read_marks(&self, uids: &[Uuid]) -> Result<Vec<Ahead>> {
        let mut found = Vec::new();
        for (DueSchedule { state, live }, task) in self.store.marks_read(uids).await? {
            if !is_fit(&state) {
                self.unfit().insert(state.uid, state.rev);
                continue;
            }
            let skips = state.spec.overlap == Overlap::Skip;
            // Of several that hold it nobody could say that all have ended.
            if skips && live.active + live.held > 1 {
                continue;
            }
            let kept = Kept { state, failures_in_row: live.failures_in_row };
            found.push(Ahead { kept, holder: task.filter(|_| skips) });
        }
        Ok(found)
    }

    /// What is pushed of them: id, entry, holder.
    pub(super) fn marks_to_push(
        &self,
        marks: &[Ahead],
        generation: u64,
    ) -> Result<Vec<(Uuid, String, String)>> {
        let mut pushed = Vec::with_capacity(marks.len());
        for Ahead { kept, holder } in marks {
            let holder = holder.map_or_else(|| NOBODY.to_owned(), |id| id.to_string());
            let text = entry(kept, generation, |text| self.seal(text))?;
            pushed.extend(text.map(|text| (kept.state.uid, text, holder)));
        }
        Ok(pushed)
    }

    /// Plans were applied: their schedules have new marks.
    fn fired(&self, plans: &[FirePlan]) {
        let ahead = |plan: &FirePlan| Ahead {
            kept: Kept { state: plan.state.clone(), failures_in_row: 0 },
            holder: holder(plan),
        };
        // What does not fit, and who holds what was not started now, the next reading finds.
        let told = |plan: &&FirePlan| is_fit(&plan.state) && plan.starts.len() == 1;
        let marks: Vec<Ahead> = plans.iter().filter(told).map(ahead).collect();
        if !marks.is_empty() {
            let _ = self.offered.try_send(Offer::Marks(marks));
        }
    }

    pub(super) async fn due_in_the_dark(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueSchedule>, Option<Timestamp>)> {
        let Ok(_dark) = self.dark.try_read() else { return Err(away("it is coming back")) };
        if !self.is_open() {
            return Err(away("it is back"));
        }
        let right = self.right()?;
        let outage = self.outage.as_ref().ok_or_else(|| away("it has no journal"))?;
        outage.must_be_durable().await?;
        let settings = self.known_settings().ok_or_else(|| away("no settings are known"))?;
        self.must_know_the_time(now)?;
        if settings.frozen.is_some() {
            // Somebody who sees the database may have ended that.
            return Ok((Vec::new(), soon(now)));
        }
        let script = &self.link.scripts.mirror.due;
        let mut call = self.begin(script, &right.identity).ok_or_else(|| away("no clock"))?;
        call.arg(right.generation).arg(LINE).arg(limit).arg("").arg("").arg(KIND);
        let said = self.ask(&call).await.map_err(missed)?;
        let due = said.get(1..).unwrap_or_default().chunks_exact(3).filter_map(|due| {
            let kept: Kept = self.opened(&due[2])?;
            let same = kept.state.uid.to_string() == due[0] && kept.state.rev.to_string() == due[1];
            same.then_some(kept)
        });
        let due: Vec<Kept> = due.collect();
        let held = self.held_ones(&due).await.map_err(missed)?;
        let one = |Kept { state, failures_in_row }: Kept| {
            let active = u32::from(held.contains(&state.uid));
            DueSchedule { state, live: Live { active, held: 0, failures_in_row } }
        };
        // What is due by the clock of Redis and not by this one's waits for it.
        let is_due = |kept: &Kept| kept.state.next_due.is_some_and(|due| due <= now);
        Ok((due.into_iter().filter(is_due).map(one).collect(), soon(now)))
    }

    /// The clock of the dark is that of Redis: a node whose own is another decides nothing.
    fn must_know_the_time(&self, now: Timestamp) -> Result<()> {
        let (shown, at) = self.regime().clock.ok_or_else(|| away("no clock"))?;
        let there = i128::from(shown) + at.elapsed().as_millis() as i128;
        let off = i128::from(now.as_millisecond()) - there;
        match off.unsigned_abs() <= CLOCKS_APART.as_millis() {
            true => Ok(()),
            false => Err(away(format!(
                "this node's clock is {off} ms off that of Redis, and no schedule fires by it"
            ))),
        }
    }

    /// Of these, the schedules whose last task is not known to have ended.
    async fn held_ones(&self, due: &[Kept]) -> std::result::Result<HashSet<Uuid>, Miss> {
        let skips = |kept: &&Kept| kept.state.spec.overlap == Overlap::Skip;
        let uids: Vec<Uuid> = due.iter().filter(skips).map(|kept| kept.state.uid).collect();
        if uids.is_empty() {
            return Ok(HashSet::new());
        }
        let limit = self.link.times.background;
        let mut get = redis::cmd("HMGET");
        get.arg(self.link.key("mirror:holders"));
        get.arg(uids.iter().map(Uuid::to_string).collect::<Vec<_>>());
        let tasks: Vec<Option<String>> = self.link.command(limit, &get).await?;
        let pairs: Vec<(Uuid, String)> =
            uids.into_iter().zip(tasks).filter_map(|(uid, task)| Some((uid, task?))).collect();
        if pairs.is_empty() {
            return Ok(HashSet::new());
        }
        let mut ask = redis::cmd("SMISMEMBER");
        ask.arg(self.link.key("mirror:holding"));
        ask.arg(pairs.iter().map(|(_, task)| &**task).collect::<Vec<_>>());
        let holds: Vec<bool> = self.link.command(limit, &ask).await?;
        Ok(pairs
            .into_iter()
            .zip(holds)
            .filter(|(_, holds)| *holds)
            .map(|((uid, _), _)| uid)
            .collect())
    }

    /// Tasks have ended: none of them holds its schedule any more.
    pub(in crate::redis) fn ended(&self, ids: Vec<TaskId>) {
        if self.is_member() && !ids.is_empty() && self.regime().redis.is_some() {
            let _ = self.offered.try_send(Offer::Ended(ids));
        }
    }

    pub(super) async fn note_ended(&self, ids: &[TaskId]) -> std::result::Result<(), Miss> {
        let mut remove = redis::cmd("SREM");
        remove.arg(self.link.key("mirror:holding"));
        remove.arg(ids.iter().map(TaskId::to_string).collect::<Vec<_>>());
        self.link.command::<i64>(self.link.times.background, &remove).await.map(drop)
    }

    /// Of the tasks that hold schedules, those of whose end nobody said so.
    pub(super) async fn forget_ended(&self) -> std::result::Result<(), Trouble> {
        if self.outage.as_ref().is_some_and(|outage| outage.entries() > 0) {
            // The database may not know all of them yet.
            return Ok(());
        }
        let mut all = redis::cmd("SMEMBERS");
        all.arg(self.link.key("mirror:holding"));
        let holding: Vec<String> = self.link.command(self.link.times.background, &all).await?;
        let holding: Vec<TaskId> = holding.iter().filter_map(|id| id.parse().ok()).collect();
        if holding.is_empty() {
            return Ok(());
        }
        let live = self.store.live_among(&holding).await?;
        let ended: Vec<TaskId> = holding.into_iter().filter(|id| !live.contains(id)).collect();
        if !ended.is_empty() {
            self.note_ended(&ended).await?;
        }
        Ok(())
    }

    async fn fire_in_the_dark(&self, plans: &[FirePlan], now: Timestamp) -> Result<Vec<bool>> {
        let Ok(_dark) = self.dark.try_read() else { return Err(away("it is coming back")) };
        if !self.is_open() {
            return Err(away("it is back"));
        }
        let right = self.right()?;
        self.must_know_the_time(now)?;
        let outage = self.outage.as_ref().ok_or_else(|| away("it has no journal"))?;
        let script = &self.link.scripts.mirror.fire;
        let mut call = self.begin(script, &right.identity).ok_or_else(|| away("no clock"))?;
        call.arg(right.generation).arg(&right.note).arg(self.options.tasks);
        let mut texts = HashMap::with_capacity(plans.len());
        for plan in plans {
            let uid = plan.state.uid.to_string();
            let change = Change::Fire(Box::new(plan.clone()));
            let text = outage.seal(&Entry { id: Uuid::new_v4(), at: now, change })?;
            let kept = Kept { state: plan.state.clone(), failures_in_row: 0 };
            let mark = entry(&kept, right.generation, |text| self.seal(text))?.unwrap_or_default();
            let as_task = |start: &matins_core::schedule::Start| Task {
                durability: Durability::Redis,
                ..Task::from_new(&start.task, now)
            };
            let tasks: Vec<Task> =
                plan.starts.iter().map(as_task).filter(may_be_mirrored).collect();
            call.arg(&uid).arg(plan.expected_rev).arg(mark).arg(&text);
            call.arg(holder(plan).map(|id| id.to_string()).unwrap_or_default()).arg(tasks.len());
            for task in &tasks {
                call.arg(task.id.to_string())
                    .arg(task_entry(task, right.generation, |text| self.seal(text))?);
            }
            texts.insert(uid, text);
        }
        let decided: HashSet<String> = self.ask(&call).await.map_err(missed)?.into_iter().collect();
        let written = texts.into_iter().filter(|(uid, _)| decided.contains(uid));
        outage.spool_these(written.map(|(_, text)| text).collect()).await?;
        Ok(plans.iter().map(|plan| decided.contains(&plan.state.uid.to_string())).collect())
    }
}

/// What a take of marks allows.
enum Word {
    /// Nobody can decide about them in the dark.
    Alone,
    /// Under this generation those that are not waited for.
    Taken(u64, Vec<Taken>),
}

fn moving() -> StoreError {
    StoreError::Unavailable(
        "nodes are agreeing on who may fire schedules from Redis; try again".to_owned(),
    )
}

fn dark_elsewhere() -> StoreError {
    StoreError::Unavailable(
        "a node works without PostgreSQL and may fire the schedule; try again when it is back"
            .to_owned(),
    )
}

impl RedisStore {
    async fn take_marks(&self, mirror: &Mirror, marks: &[Mark]) -> Result<Word> {
        let found = self.database().waiting(&mirror.announced(), &[]).await?;
        mirror.regime().redis.clone_from(&found.redis);
        if found.redis.is_none() {
            return Ok(Word::Alone);
        }
        if !found.ready {
            mirror.keep.notify_one();
            return Err(moving());
        }
        let Some(taken) = mirror.take(&found, marks).await else {
            mirror.keep.notify_one();
            return Err(moving());
        };
        if taken.contains(&Taken::Wait) {
            mirror.keep.notify_one();
        }
        Ok(Word::Taken(found.generation, taken))
    }

    pub(in crate::redis) async fn due_mirrored(
        &self,
        mirror: &Mirror,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueSchedule>, Option<Timestamp>)> {
        match &mirror.outage {
            Some(outage) if outage.is_on() => mirror.due_in_the_dark(now, limit).await,
            Some(outage) => outage.meanwhile(self.database().due(now, limit)).await,
            None => self.database().due(now, limit).await,
        }
    }

    pub(in crate::redis) async fn fire_mirrored(
        &self,
        mirror: &Mirror,
        plans: Vec<FirePlan>,
        now: Timestamp,
    ) -> Result<Vec<bool>> {
        match &mirror.outage {
            Some(outage) if outage.is_on() => mirror.fire_in_the_dark(&plans, now).await,
            Some(outage) => outage.meanwhile(self.fire_connected(mirror, plans, now)).await,
            None => self.fire_connected(mirror, plans, now).await,
        }
    }

    async fn fire_connected(
        &self,
        mirror: &Mirror,
        plans: Vec<FirePlan>,
        now: Timestamp,
    ) -> Result<Vec<bool>> {
        let marks: Vec<Mark> =
            plans.iter().map(|plan| (plan.state.uid, plan.expected_rev)).collect();
        let (generation, taken) = match self.take_marks(mirror, &marks).await? {
            Word::Alone => return self.database().fire(plans, now).await,
            Word::Taken(generation, taken) => (generation, taken),
        };
        let had = |index: &usize| taken[*index] != Taken::Wait;
        let had: Vec<usize> = (0..plans.len()).filter(had).collect();
        let chosen: Vec<FirePlan> = had.iter().map(|&index| plans[index].clone()).collect();
        let mut answers = vec![false; plans.len()];
        if chosen.is_empty() {
            return Ok(answers);
        }
        let Some(applied) = self.database().fire_taken(generation, &chosen, now).await? else {
            return Ok(answers);
        };
        for (&index, &applied) in had.iter().zip(&applied) {
            answers[index] = applied;
        }
        let applied = chosen.into_iter().zip(applied).filter(|(_, applied)| *applied);
        mirror.fired(&applied.map(|(plan, _)| plan).collect::<Vec<_>>());
        Ok(answers)
    }

    pub(in crate::redis) async fn put_schedules_mirrored(
        &self,
        mirror: &Mirror,
        writes: Vec<(Expect, ScheduleState)>,
    ) -> Result<Vec<bool>> {
        let changes = |(expect, _): &&(Expect, ScheduleState)| matches!(expect, Expect::Rev(_));
        let names: Vec<&str> =
            writes.iter().filter(changes).map(|(_, state)| &*state.spec.name).collect();
        let Some(generation) = self.take_named(mirror, &names).await? else {
            return self.database().put_schedules(writes).await;
        };
        self.database().put_taken(generation, &writes).await?.ok_or_else(moving)
    }

    pub(in crate::redis) async fn remove_schedule_mirrored(
        &self,
        mirror: &Mirror,
        name: &str,
        act: &Act,
    ) -> Result<bool> {
        let Some(generation) = self.take_named(mirror, &[name]).await? else {
            return self.database().remove_schedule(name, act).await;
        };
        self.database().remove_taken(generation, name, act).await?.ok_or_else(moving)
    }

    /// The generation under which all of them were taken; `None`: they need not be.
    async fn take_named(&self, mirror: &Mirror, names: &[&str]) -> Result<Option<u64>> {
        if names.is_empty() {
            return Ok(None);
        }
        for _ in 0..TRIES {
            let marks = self.database().marks_named(names).await?;
            match self.take_marks(mirror, &marks).await {
                Ok(Word::Alone) => return Ok(None),
                Ok(Word::Taken(_, taken)) if taken.contains(&Taken::Wait) => {
                    return Err(dark_elsewhere());
                }
                Ok(Word::Taken(generation, _)) => return Ok(Some(generation)),
                Err(StoreError::Unavailable(_)) => {
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Err(moving())
    }
}
