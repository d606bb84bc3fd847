//! Copies pending tasks to Redis: those that have just come at once, and by a reading every few
//! seconds whatever is missing. Only while nobody is dark, everything is replayed, and the
//! generation is settled.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::store::StoreError;
use matins_core::task::{NewTask, Task, TaskId, order_key};
use tokio::sync::mpsc;
use tokio::time::timeout_at;
use uuid::Uuid;

use super::super::pusher::Trouble;
use super::marks::Ahead;
use super::{Mirror, Offer};
use crate::postgres::marks::Mark;

/// Between two readings, by whichever node; after one that found everything as it is; and between
/// two looks for whether one is due.
const EVERY: Duration = Duration::from_secs(10);
const EVERY_IDLE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_secs(1);

/// Tasks of one step.
const STEP: usize = 500;

/// Tasks of one reading, soonest first: what comes in bulk and is run at once need not have been
/// copied, and would cost as much again.
const AT_ONCE: usize = 10_000;

/// New tasks, as they are accepted, and under which regime that began.
#[derive(Debug)]
pub(in crate::redis) struct New {
    generation: u64,
    redis: String,
    deadline: u64,
    pub(in crate::redis) tasks: Vec<Task>,
}

#[derive(Debug, Default)]
struct Offers {
    new: Vec<New>,
    tasks: Vec<TaskId>,
    marks: Vec<Ahead>,
    ended: Vec<TaskId>,
    count: usize,
}

impl Offers {
    fn add(&mut self, offer: Offer) {
        self.count += match offer {
            Offer::New(new) => {
                let count = new.tasks.len();
                self.new.push(new);
                count
            }
            Offer::Tasks(ids) => put_in(&mut self.tasks, ids),
            Offer::Marks(marks) => put_in(&mut self.marks, marks),
            Offer::Ended(ids) => put_in(&mut self.ended, ids),
        };
    }
}

fn put_in<T>(all: &mut Vec<T>, more: Vec<T>) -> usize {
    let count = more.len();
    all.extend(more);
    count
}

/// What of a task is in Redis: attempt and generation, and the task.
pub(super) fn entry(
    task: &Task,
    generation: u64,
    seal: impl Fn(&str) -> String,
) -> Result<String, StoreError> {
    let order = order_key(task.run_at, task.priority);
    let (attempt, run_at, pool, kind) =
        (task.attempt, task.run_at.as_microsecond(), &task.pool, &task.kind);
    let text =
        serde_json::to_string(task).map_err(|error| StoreError::Broken(error.to_string()))?;
    let text = seal(&text);
    Ok(format!("{attempt}\t{generation}\t{order}\t{run_at}\t{pool}\t{kind}\t{text}"))
}

impl Mirror {
    /// What is in Redis is sealed as the journal is.
    pub(super) fn seal(&self, text: &str) -> String {
        self.outage.as_ref().map_or_else(|| text.to_owned(), |outage| outage.seal_text(text))
    }

    /// What a sealed text of Redis says; `None`: others wrote it.
    pub(super) fn opened<T: serde::de::DeserializeOwned>(&self, sealed: &str) -> Option<T> {
        serde_json::from_str(self.outage.as_ref()?.unseal(sealed)?).ok()
    }

    pub(super) fn entries<T: Borrow<Task>>(
        &self,
        tasks: &[T],
        generation: u64,
    ) -> Result<Vec<(Uuid, String, String)>, StoreError> {
        let one = |task: &T| {
            let task = task.borrow();
            let text = entry(task, generation, |text| self.seal(text))?;
            Ok((task.id.0, text, String::new()))
        };
        tasks.iter().map(one).collect()
    }

    /// The generation and the Redis that may be mirrored to now.
    fn target(&self) -> Option<(u64, String)> {
        let calm = self.is_member() && !self.is_dark() && self.regime().announced.is_empty();
        self.agreed_on().filter(|_| calm)
    }

    /// Those of new tasks that may be mirrored, before the database has them: whoever takes one
    /// later keeps a push away that is under way since then.
    pub(in crate::redis) fn before(&self, tasks: &[NewTask], now: Timestamp) -> Option<New> {
        let (generation, redis) = self.target()?;
        let deadline = self.deadline()?;
        let horizon = now.saturating_add(self.options.horizon).ok()?;
        let fit =
            |task: &Task| may_be_mirrored(task) && task.origin.is_none() && task.run_at <= horizon;
        let tasks = tasks.iter().map(|task| Task::from_new(task, now)).filter(fit);
        Some(New { generation, redis, deadline, tasks: tasks.collect() })
    }

    /// They are in the database.
    pub(in crate::redis) fn offer_new(&self, new: New) {
        if !new.tasks.is_empty() {
            // What does not fit is found by the next reading.
            let _ = self.offered.try_send(Offer::New(new));
        }
    }

    async fn push_new(&self, new: &[New]) -> Result<(), Trouble> {
        let Some((generation, redis)) = self.target() else { return Ok(()) };
        let same = |new: &&New| new.generation == generation && new.redis == redis;
        let new: Vec<&New> = new.iter().filter(same).collect();
        let tasks: Vec<&Task> = new.iter().flat_map(|new| &new.tasks).collect();
        let Some(deadline) = new.iter().map(|new| new.deadline).min() else { return Ok(()) };
        for some in tasks.chunks(STEP) {
            let call = self.begin_by(&self.link.scripts.mirror.push, &redis, deadline);
            self.put(call, None, self.entries(some, generation)?).await?;
        }
        Ok(())
    }

    pub(super) async fn push(self: Arc<Self>, mut offered: mpsc::Receiver<Offer>) {
        let mut look_at = Instant::now();
        loop {
            if look_at <= Instant::now() {
                look_at = Instant::now() + LOOK;
                if let Err(error) = self.read_anew().await {
                    tracing::debug!(%error, "what is mirrored was not read anew");
                    self.heed_trouble(&error).await;
                }
            }
            let came = match timeout_at(look_at.into(), offered.recv()).await {
                Ok(None) => return,
                Ok(Some(first)) => {
                    let mut offers = Offers::default();
                    let mut next = Some(first);
                    while let Some(offer) = next {
                        offers.add(offer);
                        next = if offers.count >= STEP { None } else { offered.try_recv().ok() };
                    }
                    self.carry_out(&offers).await
                }
                Err(_) => continue,
            };
            if let Err(error) = came {
                tracing::debug!(%error, "Redis was not told");
                self.heed_trouble(&error).await;
            }
        }
    }

    async fn heed_trouble(&self, trouble: &Trouble) {
        if let Trouble::Redis(miss) = trouble {
            self.heed_refusal(miss).await;
        }
    }

    async fn carry_out(&self, offers: &Offers) -> Result<(), Trouble> {
        let Offers { new, tasks, marks, ended, .. } = offers;
        if !new.is_empty() {
            self.push_new(new).await?;
        }
        if !tasks.is_empty() {
            self.push_these(tasks).await?;
        }
        if !marks.is_empty() {
            self.push_marks(marks).await?;
        }
        if !ended.is_empty() {
            // After their marks: a task may end before it is told that it holds one.
            self.note_ended(ended).await?;
        }
        Ok(())
    }

    async fn push_marks(&self, marks: &[Ahead]) -> Result<(), Trouble> {
        let Some((generation, redis)) = self.target() else { return Ok(()) };
        let Some(call) = self.begin(&self.link.scripts.mirror.push, &redis) else { return Ok(()) };
        let found = self.marks_to_push(marks, generation)?;
        self.put(call, None, found).await
    }

    async fn push_these(&self, ids: &[TaskId]) -> Result<(), Trouble> {
        let Some((generation, redis)) = self.target() else { return Ok(()) };
        let found = self.store.waiting(&[], &[]).await?;
        if found.generation != generation || !found.ready {
            return Ok(());
        }
        let horizon = Timestamp::now().saturating_add(self.options.horizon).map_err(broken)?;
        for ids in ids.chunks(STEP) {
            // Their clock begins before they are read.
            let Some(call) = self.begin(&self.link.scripts.mirror.push, &redis) else { break };
            let mut tasks = self.store.mirrored_tasks(ids).await?;
            tasks.retain(|task| {
                may_be_mirrored(task) && task.origin.is_none() && task.run_at <= horizon
            });
            self.put(call, None, self.entries(&tasks, generation)?).await?;
        }
        Ok(())
    }

    /// Puts entries in, from a node in the dark with its announcement: id, entry, holder.
    pub(super) async fn put(
        &self,
        mut call: redis::ScriptInvocation<'_>,
        note: Option<&str>,
        entries: Vec<(Uuid, String, String)>,
    ) -> Result<(), Trouble> {
        if entries.is_empty() {
            return Ok(());
        }
        call.arg(self.options.tasks).arg(u8::from(note.is_some())).arg(note.unwrap_or_default());
        for (id, entry, holder) in entries {
            call.arg(id.to_string()).arg(entry).arg(holder);
        }
        self.ask(&call).await?;
        Ok(())
    }

    async fn read_anew(&self) -> Result<(), Trouble> {
        let Some((generation, redis)) = self.target() else { return Ok(()) };
        let limit = self.link.times.background;
        let mut count = redis::cmd("GET");
        let count: Option<u64> =
            self.link.command(limit, count.arg(self.link.key("mirror:count"))).await?;
        self.mirrored.store(count.unwrap_or(0), Ordering::Relaxed);
        let mut turn = redis::cmd("SET");
        // A new regime begins with one.
        let mark = format!("mirror:read:{generation}");
        turn.arg(self.link.key(&mark)).arg(&self.link.name).arg("NX");
        turn.arg("PX").arg(EVERY.as_millis() as u64);
        if self.link.command::<Option<String>>(limit, &turn).await?.is_none() {
            return Ok(());
        }
        let mut all = redis::cmd("HGETALL");
        let had: HashMap<String, String> =
            self.link.command(limit, all.arg(self.link.key("mirror:index"))).await?;
        let window = self.store.mirror_window(self.options.horizon, self.options.tasks).await?;
        let mut room = self.options.bytes;
        let wanted = window.into_iter().take_while(|(_, _, bytes)| {
            let fits = *bytes <= room;
            room = room.saturating_sub(*bytes);
            fits
        });
        let tasks: Vec<Mark> = wanted.map(|(id, attempt, _)| (id.0, u64::from(attempt))).collect();
        let marks = self.marks_wanted().await?;
        let is_there = |(id, attempt): &&Mark| {
            had.get(&id.to_string())
                .is_some_and(|known| known.starts_with(&format!("{attempt}\t{generation}\t")))
        };
        let missing: Vec<TaskId> =
            tasks.iter().filter(|task| !is_there(task)).map(|(id, _)| TaskId(*id)).collect();
        let missing_marks: Vec<Uuid> =
            marks.iter().filter(|mark| !is_there(mark)).map(|(uid, _)| *uid).collect();
        let mut told = redis::cmd("SET");
        told.arg(self.link.key("mirror:count")).arg(tasks.len());
        let () = self.link.command(limit, &told).await?;
        let ids: HashSet<String> =
            tasks.iter().chain(&marks).map(|(id, _)| id.to_string()).collect();
        let stale: Vec<_> = had.iter().filter(|(id, _)| !ids.contains(*id)).collect();
        if missing.is_empty() && missing_marks.is_empty() && stale.is_empty() {
            let mut rest = redis::cmd("PEXPIRE");
            rest.arg(self.link.key(&mark)).arg(EVERY_IDLE.as_millis() as u64);
            let _: i64 = self.link.command(limit, &rest).await?;
        }
        for some in stale.chunks(STEP) {
            let Some(mut call) = self.begin(&self.link.scripts.mirror.drop, &redis) else { break };
            for (id, known) in some {
                call.arg(id).arg(known);
            }
            self.ask(&call).await?;
        }
        self.push_these(&missing[..missing.len().min(AT_ONCE)]).await?;
        for some in missing_marks.chunks(STEP) {
            // Their clock begins before they are read.
            let Some(call) = self.begin(&self.link.scripts.mirror.push, &redis) else { break };
            let found = self.marks_to_push(&self.read_marks(some).await?, generation)?;
            self.put(call, None, found).await?;
        }
        if let Some(calm) = self.begin(&self.link.scripts.mirror.calm, &redis) {
            self.ask(&calm).await?;
        }
        self.forget_ended().await
    }
}

fn broken(error: jiff::Error) -> StoreError {
    StoreError::Broken(error.to_string())
}

/// What can be judged without the database. Of tasks of schedules only those that were started in
/// the dark get here.
pub(super) fn may_be_mirrored(task: &Task) -> bool {
    let keyed = task.execution_key.is_some() || task.concurrency_key.is_some();
    let bound = task.expires_at.is_some() || task.held;
    !keyed && !bound && !task.in_quarantine()
}
