//! What people may do without PostgreSQL: cancel tasks, and stop pools. To the slot of a task, a cancel
//! is a claim in the dark that ends at once.

use std::collections::HashMap;

use matins_core::outage::{Change, DarkCancel, DarkClaim, DarkPause, Entry};
use matins_core::store::{Act, AuditEntry, Cancelled, PoolChange, Result, StoreError};
use matins_core::task::{Name, State, Task, TaskId};
use uuid::Uuid;

use super::Mirror;
use super::dark::{Right, away, missed};
use crate::redis::outage::Outage;

/// How often what has moved on is looked at anew.
const TRIES: usize = 20;

/// A task that the dark knows.
struct Known {
    task: Task,
    /// Of the claim that it runs under.
    fence: Option<u64>,
}

fn unknown(id: TaskId) -> StoreError {
    StoreError::Unavailable(format!(
        "PostgreSQL is away, and task {id} is not among those that Redis has; try again when it is \
         back"
    ))
}

impl Mirror {
    /// None of them when Redis lacks one at first: it cannot be decided about. One that moves on while
    /// others are cancelled already is an error, too, and asking again is safe.
    pub(in crate::redis) async fn cancel_in_the_dark(
        &self,
        ids: &[TaskId],
        act: &Act,
    ) -> Result<Vec<Cancelled>> {
        let Ok(_dark) = self.dark.try_read() else { return Err(away("it is coming back")) };
        let (outage, right) = self.may_act().await?;
        let mut answers: HashMap<TaskId, Cancelled> = HashMap::new();
        for _ in 0..TRIES {
            let left: Vec<TaskId> =
                ids.iter().filter(|id| !answers.contains_key(id)).copied().collect();
            if left.is_empty() {
                break;
            }
            let known = self.known(&left).await?;
            if let (true, Some(id)) =
                (answers.is_empty(), left.iter().find(|id| !known.contains_key(id)))
            {
                return Err(unknown(*id));
            }
            answers.extend(self.cancel_these(outage, &right, known, act).await?);
        }
        ids.iter().map(|id| answers.get(id).cloned().ok_or_else(|| unknown(*id))).collect()
    }

    /// The right to act as a node in the dark.
    async fn may_act(&self) -> Result<(&Outage, Right)> {
        if !self.is_open() {
            return Err(away("it is back"));
        }
        let right = self.right()?;
        let outage = self.outage.as_ref().ok_or_else(|| away("it has no journal"))?;
        outage.must_be_durable().await?;
        Ok((outage, right))
    }

    async fn known(&self, ids: &[TaskId]) -> Result<HashMap<TaskId, Known>> {
        let names: Vec<String> = ids.iter().map(TaskId::to_string).collect();
        let read = async |key: &str| {
            let mut get = redis::cmd("HMGET");
            get.arg(self.link.key(key)).arg(&names);
            let limit = self.link.times.background;
            self.link.command::<Vec<Option<String>>>(limit, &get).await.map_err(missed)
        };
        let (waiting, claimed) = (read("mirror:tasks").await?, read("mirror:claims").await?);
        let waits = |entry: &String| self.opened::<Task>(entry.splitn(7, '\t').nth(6)?);
        let runs = |claim: &String| self.opened::<DarkClaim>(claim.splitn(4, '\t').nth(3)?);
        let known =
            ids.iter().zip(waiting.iter().zip(&claimed)).filter_map(|(id, (entry, claim))| {
                let running = claim
                    .as_ref()
                    .and_then(runs)
                    .map(|dark| Known { task: dark.task, fence: Some(dark.claim.fence) });
                let known = running
                    .or_else(|| Some(Known { task: entry.as_ref().and_then(waits)?, fence: None }));
                known.filter(|known| known.task.id == *id).map(|known| (*id, known))
            });
        Ok(known.collect())
    }

    /// Those that were as they were read.
    async fn cancel_these(
        &self,
        outage: &Outage,
        right: &Right,
        known: HashMap<TaskId, Known>,
        act: &Act,
    ) -> Result<Vec<(TaskId, Cancelled)>> {
        let script = &self.link.scripts.mirror.cancel;
        let mut call = self.begin(script, &right.identity).ok_or_else(|| away("no clock"))?;
        call.arg(right.generation).arg(&right.note);
        let mut asked = Vec::with_capacity(known.len());
        for (id, Known { task, fence }) in known {
            let change = DarkCancel { task: task.clone(), act: act.clone() };
            let change = Change::Cancel(Box::new(change));
            let text = outage.seal(&Entry { id: Uuid::new_v4(), at: act.at, change })?;
            call.arg(id.to_string()).arg(task.attempt);
            call.arg(fence.map(|fence| fence.to_string()).unwrap_or_default()).arg(&text);
            asked.push((id, task, text));
        }
        let said = self.ask(&call).await.map_err(missed)?;
        let (mut texts, mut answers) = (Vec::new(), Vec::new());
        for ((id, task, text), _) in asked.into_iter().zip(said).filter(|(_, word)| word == "1") {
            texts.push(text);
            answers.push((id, cancelled(task, act)));
        }
        outage.spool_these(texts).await?;
        Ok(answers)
    }

    /// Of what runs in the dark, what a person has cancelled.
    pub(in crate::redis) async fn cancels_in_the_dark(&self) -> Result<Vec<TaskId>> {
        let mut all = redis::cmd("SMEMBERS");
        all.arg(self.link.key("mirror:cancels"));
        let limit = self.link.times.background;
        let all: Vec<String> = self.link.command(limit, &all).await.map_err(missed)?;
        Ok(all.iter().filter_map(|id| id.parse().ok()).collect())
    }

    pub(in crate::redis) async fn pause_in_the_dark(
        &self,
        pool: &Name,
        change: &PoolChange,
        audit: AuditEntry,
    ) -> Result<()> {
        let Ok(_dark) = self.dark.try_read() else { return Err(away("it is coming back")) };
        let (outage, right) = self.may_act().await?;
        let act = Act { who: audit.who, reason: change.note.clone(), at: audit.time };
        let at = act.at;
        let change = Change::Pause(Box::new(DarkPause { pool: pool.clone(), act }));
        let text = outage.seal(&Entry { id: Uuid::new_v4(), at, change })?;
        let script = &self.link.scripts.mirror.pause;
        let mut call = self.begin(script, &right.identity).ok_or_else(|| away("no clock"))?;
        call.arg(&right.note).arg(&**pool).arg(&text);
        self.ask(&call).await.map_err(missed)?;
        outage.spool_these(vec![text]).await
    }
}

fn cancelled(task: Task, act: &Act) -> Cancelled {
    let task = Box::new(task);
    match task.state {
        State::Running => {
            Cancelled::Requested(Box::new(Task { cancel_requested_at: Some(act.at), ..*task }))
        }
        _ => Cancelled::Done(Box::new(Task {
            state: State::Cancelled,
            finished_at: Some(act.at),
            cancel_reason: Some("cancelled".into()),
            ..*task
        })),
    }
}
