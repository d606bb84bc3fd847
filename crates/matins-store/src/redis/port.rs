//! The port: everything is the database's, and what it decided about a line is told to Redis.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use matins_core::Json;
use matins_core::alert::Alert;
use matins_core::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use matins_core::lifecycle::{Next, Settlement};
use matins_core::operation::Operation;
use matins_core::page::{Page, PageRequest};
use matins_core::schedule::{DueSchedule, FirePlan, Live, Occurrence, ScheduleState};
use matins_core::store::{
    Act, AuditEntry, Cancelled, ClaimBatch, ClaimRequest, Dismissed, Enqueued, Expect, Extended,
    Forgotten, Lapsed, LedgerEntry, Look, LookRequest, Order, Outbox, Part, Pruned, Queue, Records,
    Result, Retention, Retried, SettingChange, Settings, Settled, Stats, Store, StoreError,
    StoreInfo, Stray, TaskFilter, Timetables, Token, Tray, Turn, Worker,
};
use matins_core::task::{Attempt, Claim, NewTask, State, Task, TaskId, WorkerId};
use matins_core::why::Surroundings;
use uuid::Uuid;

use super::claim::BULK;
use super::hint::Hint;
use super::pusher::{Note, Trouble};
use super::reconcile::LATER;
use super::{RedisStore, TELLER};
use crate::postgres::Accepted;

#[async_trait]
impl Queue for RedisStore {
    async fn enqueue(&self, tasks: Vec<NewTask>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let hints: Vec<Hint> = tasks.iter().map(|task| Hint::of_new(task, now)).collect();
        // Many at once are read, if they wait for long enough.
        let few = tasks.len() < BULK;
        let whole = self.mirror.as_ref().filter(|_| few);
        let whole = whole.and_then(|mirror| mirror.before(&tasks, now));
        let told = match &self.outage {
            Some(outage) => outage.enqueue(tasks, now).await?,
            None => self.store.enqueue_told(tasks, now).await?,
        };
        let (mut new, mut asked, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for (hint, Accepted { answer, seq }) in hints.into_iter().zip(told) {
            match (&answer, seq) {
                (Enqueued::Created, Some(seq)) => new.push(Hint { seq, ..hint }),
                (Enqueued::Created, None) => asked.push(hint.id),
                (Enqueued::Replaced(task), _) => asked.push(task.id),
                (Enqueued::Existing(_) | Enqueued::Rejected(_) | Enqueued::Journalled(_), _) => {}
            }
            answers.push(answer);
        }
        if !new.is_empty() {
            if let (Some(mirror), Some(mut whole)) = (&self.mirror, whole) {
                let created: HashSet<TaskId> = new.iter().map(|hint| hint.id).collect();
                whole.tasks.retain(|task| created.contains(&task.id));
                mirror.offer_new(whole);
            }
            self.tell(note_of(new)).await;
        }
        self.moved(asked).await;
        Ok(answers)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimBatch> {
        self.begin_to_reconcile();
        match &self.mirror {
            Some(mirror) => self.claim_mirrored(mirror, request).await,
            None => self.hand_out(request).await,
        }
    }

    async fn settle(&self, items: Vec<Settlement>) -> Result<Vec<Settled>> {
        let again = |item: &Settlement| matches!(item.next, Next::Again { .. });
        let pending: Vec<TaskId> =
            items.iter().filter(|item| again(item)).map(|item| item.claim.id).collect();
        let about: Vec<(TaskId, Timestamp)> =
            items.iter().map(|item| (item.claim.id, item.finished_at)).collect();
        let ids: Vec<TaskId> = about.iter().map(|(id, _)| *id).collect();
        let answers = self.end(items).await?;
        for ((id, at), answer) in about.into_iter().zip(&answers) {
            if *answer == Settled::Done(State::Failed) {
                self.pusher.say(Note::Dead(vec![id], at));
            }
        }
        if let Some(mirror) = &self.mirror {
            let over =
                |answer: &Settled| matches!(answer, Settled::Done(state) if !state.is_live());
            let ended = ids.into_iter().zip(&answers).filter(|(_, answer)| over(answer));
            mirror.ended(ended.map(|(id, _)| id).collect());
        }
        self.moved(pending).await;
        Ok(answers)
    }

    async fn register(&self, worker: Worker) -> Result<()> {
        self.begin_to_reconcile();
        if let Some(mirror) = &self.mirror {
            mirror.heed_lease(&worker);
        }
        self.store.register(worker).await
    }

    async fn beat(&self, worker: &Worker) -> Result<bool> {
        if let Some(mirror) = &self.mirror {
            mirror.heed_lease(worker);
        }
        self.store.beat(worker).await
    }

    async fn retire(&self, worker: &WorkerId, now: Timestamp) -> Result<()> {
        self.store.retire(worker, now).await
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        self.or_known(&self.known.workers, self.store.workers()).await
    }

    async fn extend(&self, claims: &[Claim], lease_until: Timestamp) -> Result<Extended> {
        let Some(mirror) = &self.mirror else {
            return self.store.extend(claims, lease_until).await;
        };
        let (mut extended, others) = mirror.extend(claims).await?;
        if !others.is_empty() {
            let more = self.store.extend(&others, lease_until).await?;
            extended.lost.extend(more.lost);
            extended.cancel.extend(more.cancel);
        }
        Ok(extended)
    }

    fn is_journalled(&self, claim: &Claim) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| mirror.began_in_the_dark(claim))
    }

    async fn cancel_requests(&self, worker: &WorkerId) -> Result<Vec<TaskId>> {
        match &self.mirror {
            Some(mirror) if self.stands_in() => mirror.cancels_in_the_dark().await,
            _ => self.store.cancel_requests(worker).await,
        }
    }

    async fn lapsed(&self, now: Timestamp, limit: usize) -> Result<Vec<Lapsed>> {
        match &self.mirror {
            Some(mirror) if self.stands_in() => mirror.lapsed_in_the_dark(limit).await,
            // What became of a run may be in the journal.
            Some(_) if self.journals() => Ok(Vec::new()),
            _ => self.store.lapsed(now, limit).await,
        }
    }

    async fn expire(&self, now: Timestamp, limit: usize) -> Result<u64> {
        self.store.expire(now, limit).await
    }

    async fn cancel(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Cancelled>> {
        match &self.mirror {
            Some(mirror) if self.stands_in() => mirror.cancel_in_the_dark(ids, act).await,
            Some(mirror) => self.cancel_mirrored(mirror, ids, act).await,
            None => self.store.cancel(ids, act).await,
        }
    }

    async fn retry(
        &self,
        ids: &[TaskId],
        payload: Option<Json>,
        act: &Act,
    ) -> Result<Vec<Retried>> {
        let answers = match &self.mirror {
            Some(mirror) => self.retry_mirrored(mirror, ids, payload, act).await?,
            None => self.store.retry(ids, payload, act).await?,
        };
        let replayed = answers.iter().filter_map(|answer| match answer {
            Retried::Replayed(task) => Some(task.id),
            _ => None,
        });
        let replayed: Vec<TaskId> = replayed.collect();
        if !replayed.is_empty() {
            self.pusher.say(Note::NotDead(replayed));
        }
        self.moved(ids.to_vec()).await;
        Ok(answers)
    }

    async fn dismiss(&self, ids: &[TaskId], act: &Act) -> Result<Vec<Dismissed>> {
        let answers = self.store.dismiss(ids, act).await?;
        if !ids.is_empty() {
            self.pusher.say(Note::NotDead(ids.to_vec()));
        }
        Ok(answers)
    }
}

/// What is said of new tasks.
fn note_of(new: Vec<Hint>) -> Note {
    if new.len() < BULK {
        return Note::Push(new);
    }
    let mut cuts = BTreeMap::new();
    for hint in &new {
        let line = if hint.later { LATER } else { &*hint.pool };
        let place = cuts.entry(line.to_owned()).or_insert(i64::MAX);
        *place = hint.score().min(*place);
    }
    Note::Cut(cuts.into_iter().collect())
}

impl RedisStore {
    /// In PostgreSQL; what was claimed in the dark, in Redis.
    async fn end(&self, items: Vec<Settlement>) -> Result<Vec<Settled>> {
        let Some(mirror) = &self.mirror else { return self.store.settle(items).await };
        let mut answers = mirror.settle(&items).await?;
        let fences: Vec<u64> = items.iter().map(|item| item.claim.fence).collect();
        let left = items.into_iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let left: Vec<Settlement> = left.map(|(item, _)| item).collect();
        if !left.is_empty() {
            let ended = self.store.settle(left);
            let ended = match &self.outage {
                // In an outage their ends are written down instead.
                Some(outage) => outage.meanwhile(ended).await?,
                None => ended.await?,
            };
            let open = answers.iter_mut().filter(|answer| answer.is_none());
            open.zip(ended).for_each(|(answer, ended)| *answer = Some(ended));
        }
        mirror.have_ended(&fences);
        let missing = || StoreError::Broken("a settlement without an answer".to_owned());
        answers.into_iter().collect::<Option<_>>().ok_or_else(missing)
    }
}

#[async_trait]
impl Timetables for RedisStore {
    async fn put_schedules(&self, writes: Vec<(Expect, ScheduleState)>) -> Result<Vec<bool>> {
        match &self.mirror {
            Some(mirror) => self.put_schedules_mirrored(mirror, writes).await,
            None => self.store.put_schedules(writes).await,
        }
    }

    async fn remove_schedule(&self, name: &str, act: &Act) -> Result<bool> {
        match &self.mirror {
            Some(mirror) => self.remove_schedule_mirrored(mirror, name, act).await,
            None => self.store.remove_schedule(name, act).await,
        }
    }

    async fn schedule(&self, name: &str) -> Result<Option<DueSchedule>> {
        self.store.schedule(name).await
    }

    async fn schedules(&self, page: &PageRequest) -> Result<Page<DueSchedule>> {
        self.store.schedules(page).await
    }

    async fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueSchedule>, Option<Timestamp>)> {
        match &self.mirror {
            Some(mirror) => self.due_mirrored(mirror, now, limit).await,
            None => self.store.due(now, limit).await,
        }
    }

    async fn fire(&self, plans: Vec<FirePlan>, now: Timestamp) -> Result<Vec<bool>> {
        let starts = plans.iter().flat_map(|plan| plan.starts.iter().map(|start| start.task.id));
        let starts = starts.collect();
        let answers = match &self.mirror {
            Some(mirror) => self.fire_mirrored(mirror, plans, now).await?,
            None => self.store.fire(plans, now).await?,
        };
        self.moved(starts).await;
        Ok(answers)
    }

    async fn occurrences(
        &self,
        schedule: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<Occurrence>> {
        self.store.occurrences(schedule, page).await
    }

    async fn fired_between(
        &self,
        schedule_uid: Uuid,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<(Occurrence, Option<State>)>> {
        self.store.fired_between(schedule_uid, from, to).await
    }

    async fn live(&self, schedule_uid: Uuid) -> Result<Live> {
        self.store.live(schedule_uid).await
    }
}

#[async_trait]
impl Records for RedisStore {
    async fn tasks(&self, filter: &TaskFilter, page: &PageRequest) -> Result<Page<Task>> {
        self.store.tasks(filter, page).await
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        match self.journalled(id).await? {
            // It may well be in the database.
            None => match self.store.task(id).await? {
                // Or not yet, after an outage.
                None => self.not_replayed(id).await,
                found => Ok(found),
            },
            found => Ok(found),
        }
    }

    async fn attempts(&self, id: TaskId) -> Result<Vec<Attempt>> {
        match self.journalled(id).await? {
            None => self.store.attempts(id).await,
            // Nothing runs from the journal.
            Some(_) => Ok(Vec::new()),
        }
    }

    async fn surroundings(&self, task: &Task, now: Timestamp) -> Result<Surroundings> {
        self.store.surroundings(task, now).await
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        order: Order,
        page: &PageRequest,
    ) -> Result<Page<Task>> {
        self.store.dead_letters(filter, order, page).await
    }

    async fn dead_letter_groups(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetterGroup>> {
        self.store.dead_letter_groups(filter).await
    }

    async fn settings(&self) -> Result<Settings> {
        let settings = self.or_known(&self.known.settings, self.store.settings()).await?;
        if let Some(mirror) = &self.mirror {
            mirror.heed_settings(&settings);
        }
        Ok(settings)
    }

    async fn change_setting(&self, change: SettingChange, audit: Option<AuditEntry>) -> Result<()> {
        match (&self.mirror, &change, audit) {
            (Some(mirror), SettingChange::Pool { name, change }, Some(audit))
                if self.stands_in() && change.paused == Some(true) && change.size.is_none() =>
            {
                mirror.pause_in_the_dark(name, change, audit).await?;
                self.known.heed_pool(name, change);
                Ok(())
            }
            (_, _, audit) => self.store.change_setting(change, audit).await,
        }
    }

    async fn stats(&self, now: Timestamp) -> Result<Stats> {
        self.or_known(&self.known.stats, self.store.stats(now)).await
    }

    async fn ledger(&self, kind: &str, key: &str) -> Result<Option<LedgerEntry>> {
        self.store.ledger(kind, key).await
    }

    async fn forget_key(&self, kind: &str, key: &str, act: &Act) -> Result<bool> {
        self.store.forget_key(kind, key, act).await
    }

    async fn audit(&self, page: &PageRequest) -> Result<Page<AuditEntry>> {
        self.store.audit(page).await
    }

    async fn record(&self, entry: AuditEntry) -> Result<()> {
        self.store.record(entry).await
    }

    async fn put_operation(&self, operation: &Operation) -> Result<()> {
        self.store.put_operation(operation).await
    }

    async fn operation(&self, id: Uuid) -> Result<Option<Operation>> {
        self.store.operation(id).await
    }

    async fn running_operations(&self) -> Result<Vec<Operation>> {
        self.store.running_operations().await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.or_known(&self.known.tokens, self.store.tokens()).await
    }

    async fn put_token(&self, token: &Token) -> Result<()> {
        self.store.put_token(token).await
    }

    async fn revoke_token(&self, name: &str) -> Result<bool> {
        self.store.revoke_token(name).await
    }

    async fn note(&self, key: &str) -> Result<Option<String>> {
        self.store.note(key).await
    }

    async fn put_note(&self, key: &str, value: &str) -> Result<()> {
        self.store.put_note(key, value).await
    }
}

#[async_trait]
impl Outbox for RedisStore {
    async fn raise(&self, alerts: Vec<Alert>, read: bool) -> Result<()> {
        self.store.raise(alerts, read).await
    }

    async fn tray(&self, turn: &Turn) -> Result<Option<Tray>> {
        self.store.tray(turn).await
    }

    async fn file(&self, teller: &str, read: &[u64], state: &str) -> Result<bool> {
        self.store.file(teller, read, state).await
    }

    async fn alerts(&self, page: &PageRequest) -> Result<Page<Alert>> {
        self.store.alerts(page).await
    }
}

#[async_trait]
impl Store for RedisStore {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    fn parts(&self) -> Vec<Part> {
        vec![self.part()]
    }

    async fn strays(&self) -> Result<Vec<Stray>> {
        match self.find_strays().await {
            Ok(strays) => Ok(strays),
            Err(Trouble::Store(error)) => Err(error),
            // What cannot be read misleads nobody.
            Err(Trouble::Redis(_)) => Ok(Vec::new()),
        }
    }

    async fn ping(&self) -> Result<()> {
        let answer = self.store.ping().await;
        if let Some(outage) = &self.outage {
            outage.heed(&answer);
        }
        answer
    }

    async fn may_tell_of_outage(&self, node_id: &str, lasts: Duration) -> Result<bool> {
        let mut script = self.link.scripts.tell.prepare_invoke();
        script.key(self.link.key(TELLER)).arg(node_id).arg(lasts.as_millis() as u64);
        let answer = self.link.script(self.link.times.background, &script).await;
        let nobody = |miss| StoreError::Unavailable(format!("{}: {miss:?}", self.link.location()));
        answer.map_err(nobody)
    }

    async fn clock(&self) -> Result<Option<Timestamp>> {
        self.store.clock().await
    }

    async fn heartbeat(&self, node_id: &str, schedules: bool, at: Timestamp) -> Result<()> {
        self.store.heartbeat(node_id, schedules, at).await?;
        self.show_heartbeat(node_id, schedules, at).await;
        Ok(())
    }

    async fn look(&self, request: &LookRequest) -> Result<Look> {
        let answer = self.store.look(request).await;
        if let Some(outage) = &self.outage {
            outage.heed(&answer);
        }
        let look = answer?;
        if let Some(mirror) = &self.mirror {
            mirror.heed_generation(self.store.generation());
        }
        // The claim that follows must not believe Redis that there is nothing.
        look.pools.iter().for_each(|pool| self.looks.doubt(pool));
        Ok(look)
    }

    async fn changed(&self) {
        tokio::select! {
            // It may be about something that no hint tells of.
            () = self.store.changed() => self.looks.doubt_all(),
            () = self.link.heard.notified() => {}
            () = self.replayed() => {}
        }
    }

    async fn worker_died(&self) {
        self.store.worker_died().await;
    }

    async fn forget_node(&self, node: &str) -> Result<Forgotten> {
        self.store.forget_node(node).await
    }

    async fn prune(&self, retention: &Retention, now: Timestamp, limit: usize) -> Result<Pruned> {
        self.store.prune(retention, now, limit).await
    }

    async fn close(&self) -> Result<()> {
        if let Some(outage) = &self.outage {
            outage.close();
        }
        if let Some(mirror) = &self.mirror {
            mirror.leave().await;
        }
        self.stop();
        self.store.close().await
    }
}
