//! What people do to tasks, pools and the store as a whole. Each act is in the audit log.

use matins_core::Json;
use matins_core::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use matins_core::operation::{Operation, OperationKind, OperationState};
use matins_core::page::{PAGE_MAX, Page, PageRequest};
use matins_core::request::{EnqueueRequest, FieldError, check_name, check_payload};
use matins_core::store::{
    Act, AuditEntry, Cancelled, Dismissed, Forgotten, Frozen, Order, PoolChange, PoolSetting,
    Retried, SettingChange, Token, Worker,
};
use matins_core::task::{Task, TaskId};
use uuid::Uuid;

use super::{Answer, Client, Result};
use crate::error::ClientError;
use crate::events::What;
use crate::executors::check_ad_hoc;

/// Which dead letters an act is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Selection {
    Ids(Vec<TaskId>),
    Filter(DeadLetterFilter),
}

#[derive(Debug, Clone, PartialEq)]
pub struct ReplayRequest {
    pub selection: Selection,
    pub canary: bool,
    pub per_minute: Option<u32>,
    pub payload: Option<Json>,
    pub reason: Option<String>,
}

/// What a replay would touch.
#[derive(Debug, Clone, PartialEq)]
pub struct DryRun {
    pub count: u64,
    pub oldest: Option<Task>,
    pub sample: Vec<Task>,
}

/// Tasks shown by a dry run.
const SAMPLE: usize = 5;

impl Client {
    fn act(&self, who: &str, reason: Option<String>) -> Act {
        Act { who: who.to_owned(), reason, at: self.now() }
    }

    pub async fn cancel(
        &self,
        ids: &[TaskId],
        who: &str,
        reason: Option<String>,
    ) -> Result<Vec<Cancelled>> {
        let act = self.act(who, reason);
        let answers = self.inner.store.cancel(ids, &act).await?;
        self.inner.wake.ring_cancels();
        for answer in &answers {
            if let Cancelled::Done(task) = answer {
                let id = task.id;
                self.inner.events.send(act.at, || What::Cancelled { id });
                // The end of one may release another that it held back.
                self.inner.wake.ring_pool(&task.pool);
            }
        }
        Ok(answers)
    }

    /// A waiting task now; a dead letter in a fresh round.
    pub async fn retry(
        &self,
        ids: &[TaskId],
        payload: Option<Json>,
        who: &str,
        reason: Option<String>,
    ) -> Result<Vec<Retried>> {
        if let Some(payload) = &payload {
            check_payload(payload, &self.rules().limits)?;
            self.check_edit(ids, payload).await?;
        }
        let answers = self.inner.store.retry(ids, payload, &self.act(who, reason)).await?;
        for answer in &answers {
            if let Retried::Replayed(task) | Retried::DueNow(task) = answer {
                self.inner.wake.ring_pool(&task.pool);
            }
        }
        Ok(answers)
    }

    /// A payload given to tasks of built-in types must be one that they can be run from.
    async fn check_edit(&self, ids: &[TaskId], payload: &Json) -> Result<()> {
        for id in ids {
            if let Some(task) = self.inner.store.task(*id).await? {
                check_ad_hoc(&task.kind, payload)?;
            }
        }
        Ok(())
    }

    /// A copy of a finished task as a new one.
    pub async fn rerun(&self, id: TaskId, who: &str) -> Result<Answer> {
        let task = self.task(id).await?;
        if task.state.is_live() {
            let hint = Some(format!("matins why {id}"));
            return Err(Self::not_waiting(&task, hint));
        }
        let request = EnqueueRequest {
            kind: task.kind.to_string(),
            payload: Some(task.payload.clone()),
            execution_key: task.execution_key.as_deref().map(str::to_owned),
            pool: Some(task.pool.to_string()),
            priority: Some(task.priority),
            max_retries: task.max_retries,
            backoff: task.backoff,
            timeout: task.timeout,
            concurrency_key: task.concurrency_key.as_deref().map(str::to_owned),
            tags: task.tags.clone(),
            ..EnqueueRequest::default()
        };
        let answer = self.enqueue(request, who).await?;
        if !answer.deduplicated {
            self.audit_act(who, "task.rerun", &id.to_string(), None).await?;
        }
        Ok(answer)
    }

    pub async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: &PageRequest,
    ) -> Result<Page<Task>> {
        Ok(self.inner.store.dead_letters(filter, Order::NewestFirst, page).await?)
    }

    pub async fn dead_letter_groups(
        &self,
        filter: &DeadLetterFilter,
    ) -> Result<Vec<DeadLetterGroup>> {
        Ok(self.inner.store.dead_letter_groups(filter).await?)
    }

    pub async fn replay_dry_run(&self, selection: &Selection) -> Result<DryRun> {
        let mut run = DryRun { count: 0, oldest: None, sample: Vec::new() };
        match selection {
            Selection::Ids(ids) => {
                for id in ids {
                    let task = self.task(*id).await?;
                    if task.is_dead_letter() {
                        run.add(1, task);
                    }
                }
            }
            Selection::Filter(filter) => {
                let groups = self.inner.store.dead_letter_groups(filter).await?;
                let page = PageRequest { limit: SAMPLE, cursor: None };
                let letters =
                    self.inner.store.dead_letters(filter, Order::OldestFirst, &page).await?;
                letters.items.into_iter().for_each(|task| run.add(0, task));
                run.count = groups.iter().map(|group| group.count).sum();
            }
        }
        Ok(run)
    }

    /// Starts a replay and answers with the operation to follow. The engine carries it out; a
    /// client without one does so itself by [`Client::run_operation`].
    pub async fn replay(&self, request: ReplayRequest, who: &str) -> Result<Operation> {
        if let Some(payload) = &request.payload {
            check_payload(payload, &self.rules().limits)?;
        }
        if let (Some(payload), Selection::Ids(ids)) = (&request.payload, &request.selection) {
            self.check_edit(ids, payload).await?;
        }
        if let (Some(payload), Selection::Filter(filter)) = (&request.payload, &request.selection)
            && let Some(kind) = &filter.kind
        {
            check_ad_hoc(kind, payload)?;
        }
        if request.per_minute == Some(0) {
            return Err(FieldError::new("rate", "expected at least 1 per minute").into());
        }
        let total = self.replay_dry_run(&request.selection).await?.count;
        let now = self.now();
        let (ids, filter) = match request.selection {
            Selection::Ids(ids) => (Some(ids), None),
            Selection::Filter(mut filter) => {
                // What dies again during the replay is not replayed again by it.
                filter.failed_before = Some(filter.failed_before.map_or(now, |at| at.min(now)));
                (None, Some(filter))
            }
        };
        let operation = Operation {
            id: Uuid::now_v7(),
            kind: OperationKind::Replay {
                ids,
                filter,
                payload: request.payload,
                canary: request.canary,
                canary_id: None,
                per_minute: request.per_minute,
                done: None,
            },
            state: OperationState::Running,
            by: who.to_owned(),
            reason: request.reason,
            created_at: now,
            finished_at: None,
            total,
            replayed: 0,
            deduplicated: 0,
            failed: 0,
            detail: None,
        };
        self.inner.store.put_operation(&operation).await?;
        self.inner.wake.ring_operations();
        Ok(operation)
    }

    pub async fn operation(&self, id: Uuid) -> Result<Operation> {
        let operation = self.inner.store.operation(id).await?;
        operation.ok_or_else(|| ClientError::not_found("operation", id.to_string()))
    }

    /// Puts dead letters aside. The number put aside, and the ids that were none.
    pub async fn dismiss(
        &self,
        selection: &Selection,
        who: &str,
        reason: &str,
    ) -> Result<(u64, Vec<TaskId>)> {
        if reason.trim().is_empty() {
            return Err(FieldError::new("reason", "is required: say why nobody needs it").into());
        }
        let act = self.act(who, Some(reason.to_owned()));
        match selection {
            Selection::Ids(ids) => self.dismiss_ids(ids, &act).await,
            Selection::Filter(filter) => {
                let mut filter = filter.clone();
                filter.failed_before =
                    Some(filter.failed_before.map_or(act.at, |at| at.min(act.at)));
                let mut done = 0;
                let mut page = PageRequest { limit: PAGE_MAX, cursor: None };
                loop {
                    let letters =
                        self.inner.store.dead_letters(&filter, Order::OldestFirst, &page).await?;
                    let ids: Vec<TaskId> = letters.items.iter().map(|task| task.id).collect();
                    done += self.dismiss_ids(&ids, &act).await?.0;
                    match letters.next {
                        Some(next) => page.cursor = Some(next),
                        None => return Ok((done, Vec::new())),
                    }
                }
            }
        }
    }

    async fn dismiss_ids(&self, ids: &[TaskId], act: &Act) -> Result<(u64, Vec<TaskId>)> {
        let answers = self.inner.store.dismiss(ids, act).await?;
        let refused = ids.iter().zip(&answers).filter(|(_, a)| !matches!(a, Dismissed::Done(_)));
        let refused: Vec<TaskId> = refused.map(|(id, _)| *id).collect();
        Ok(((answers.len() - refused.len()) as u64, refused))
    }

    /// Pauses or resumes a pool, or overrides its size; `None` leaves that part as it is.
    pub async fn set_pool(&self, name: &str, change: PoolChange, who: &str) -> Result<PoolSetting> {
        check_name("pool", name)?;
        if change.size == Some(Some(0)) {
            return Err(
                FieldError::new("size", "expected at least 1; to stop a pool, pause it").into()
            );
        }
        let settings = self.inner.store.settings().await?;
        let known = self.rules().pool_sizes().contains_key(name)
            || settings.pools.contains_key(name)
            || self.workers().await?.iter().any(|w| w.pools.iter().any(|(p, _)| **p == *name));
        if !known {
            return Err(ClientError::not_found("pool", name));
        }
        let action = match (change.paused, change.size) {
            (Some(true), _) => "pool.pause",
            (Some(false), _) => "pool.resume",
            (None, _) => "pool.resize",
        };
        let audit = self.entry(who, action, name, change.note.clone());
        let change = SettingChange::Pool { name: name.into(), change };
        self.inner.store.change_setting(change, Some(audit)).await?;
        self.inner.wake.ring_pool(name);
        let mut settings = self.inner.store.settings().await?;
        Ok(settings.pools.remove(name).unwrap_or_default())
    }

    pub async fn freeze(&self, who: &str, reason: &str) -> Result<()> {
        if reason.trim().is_empty() {
            return Err(
                FieldError::new("reason", "is required: whoever finds it frozen will ask").into()
            );
        }
        let frozen = Frozen { by: who.to_owned(), at: self.now(), reason: reason.to_owned() };
        let audit = self.entry(who, "store.freeze", "store", Some(reason.to_owned()));
        let change = SettingChange::Freeze(frozen);
        Ok(self.inner.store.change_setting(change, Some(audit)).await?)
    }

    pub async fn thaw(&self, who: &str) -> Result<()> {
        let audit = self.entry(who, "store.thaw", "store", None);
        self.inner.store.change_setting(SettingChange::Thaw, Some(audit)).await?;
        self.inner.wake.ring_all();
        Ok(())
    }

    pub async fn forget_key(&self, kind: &str, key: &str, who: &str) -> Result<()> {
        let entry = self.ledger(kind, key).await?;
        let act = self.act(who, None);
        if self.inner.store.forget_key(kind, key, &act).await? {
            return Ok(());
        }
        let message = format!("key {key} of {kind} belongs to a live task, {}", entry.task_id);
        let hint = Some(format!("matins cancel {}", entry.task_id));
        Err(ClientError::WrongState { message, hint })
    }

    /// A person says that a node is dead, by its name or by that of one of its workers: what it
    /// still claims is given to others, and nobody waits for what it may do without the store.
    pub async fn forget_node(&self, name: &str, who: &str) -> Result<()> {
        let workers = self.workers().await?;
        let is_named = |worker: &&Worker| worker.id.to_string() == name || *worker.node_id == *name;
        let named: Vec<&Worker> = workers.iter().filter(is_named).collect();
        let lives = |worker: &&Worker| worker.lease_until >= self.now();
        let refused = |what: String| ClientError::WrongState {
            message: format!("{what} lives: its lease has not lapsed"),
            hint: Some("stop it, or wait until its lease has lapsed".to_owned()),
        };
        let (alive, dead): (Vec<&Worker>, Vec<&Worker>) = named.iter().partition(|one| lives(one));
        let refused_worker = |worker: &Worker| refused(format!("the worker {}", worker.id));
        if let Some(worker) = alive.iter().find(|worker| worker.id.to_string() == name) {
            return Err(refused_worker(worker));
        }
        let node = named.first().map_or(name, |worker| &*worker.node_id);
        // One that was started anew with an empty folder has the name of the one that is dead.
        match self.inner.store.forget_node(node).await? {
            Forgotten::Done => {}
            _ if !dead.is_empty() => {}
            Forgotten::Unknown if named.is_empty() => {
                return Err(ClientError::not_found("node or worker", name));
            }
            Forgotten::Lives | Forgotten::Unknown => {
                let worker = alive.first().map(|worker| refused_worker(worker));
                return Err(worker.unwrap_or_else(|| refused(format!("the node {node}"))));
            }
        }
        for worker in dead {
            self.inner.store.retire(&worker.id, self.now()).await?;
        }
        self.audit_act(who, "node.forget", name, None).await
    }

    pub async fn put_token(&self, token: &Token, who: &str) -> Result<()> {
        self.inner.store.put_token(token).await?;
        self.audit_act(who, "token.create", &token.name, None).await
    }

    pub async fn revoke_token(&self, name: &str, who: &str) -> Result<()> {
        if !self.inner.store.revoke_token(name).await? {
            return Err(ClientError::not_found("token", name));
        }
        self.audit_act(who, "token.revoke", name, None).await
    }

    pub(super) fn entry(
        &self,
        who: &str,
        action: &str,
        target: &str,
        reason: Option<String>,
    ) -> AuditEntry {
        AuditEntry {
            time: self.now(),
            who: who.to_owned(),
            action: action.to_owned(),
            target: target.to_owned(),
            reason,
        }
    }

    pub(super) async fn audit_act(
        &self,
        who: &str,
        action: &str,
        target: &str,
        reason: Option<String>,
    ) -> Result<()> {
        Ok(self.inner.store.record(self.entry(who, action, target, reason)).await?)
    }
}

impl DryRun {
    fn add(&mut self, count: u64, task: Task) {
        self.count += count;
        let older = self.oldest.as_ref().is_none_or(|o| task.finished_at < o.finished_at);
        if older {
            self.oldest = Some(task.clone());
        }
        if self.sample.len() < SAMPLE {
            self.sample.push(task);
        }
    }
}
