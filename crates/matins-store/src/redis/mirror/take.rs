//! Before a connected node decides about a pending task, it takes it out of Redis.

use jiff::SignedDuration;
use matins_core::Json;
use matins_core::outage::Taken;
use matins_core::store::{
    Act, Cancelled, ClaimBatch, ClaimRequest, Result, Retried, StoreError, Types,
};
use matins_core::task::TaskId;

use super::super::RedisStore;
use super::super::claim::{Line, ask_for_hints};
use super::super::pusher::Note;
use super::Mirror;
use crate::postgres::marks::Mark;
use crate::postgres::member::{Candidates, TakenTasks, is_mirrored};

/// Before what could not be decided is tried again.
const AGAIN: SignedDuration = SignedDuration::from_millis(250);

/// How often what has moved on is looked at anew.
const TRIES: usize = 20;

impl Mirror {
    pub(super) fn announced(&self) -> Vec<String> {
        self.regime().announced.clone()
    }

    /// What became of each, by its id and its attempt or revision; `None`: the Redis of the
    /// generation does not answer.
    pub(super) async fn take(&self, found: &Candidates, slots: &[Mark]) -> Option<Vec<Taken>> {
        let identity = found.redis.as_deref()?;
        if self.regime().clock.is_none() {
            self.look().await;
        }
        let mut answers = Vec::with_capacity(slots.len());
        for some in slots.chunks(500) {
            let mut call = self.begin(&self.link.scripts.mirror.take, identity)?;
            call.arg(found.generation).arg(found.gone.len());
            call.arg(&found.gone);
            for (id, attempt) in some {
                call.arg(id.to_string()).arg(*attempt);
            }
            let said = self.ask(&call).await.ok()?;
            answers.extend(said.iter().map(|word| taken(word)));
        }
        Some(answers)
    }

    /// Of a pool, what may be claimed in the dark: that may be taken whoever else is dark.
    async fn free(&self, found: &Candidates, request: &ClaimRequest) -> Vec<(TaskId, u32)> {
        let (Some(identity), Some(pool), Types::Only(kinds), None) =
            (&found.redis, &request.pool, &request.types, &request.ids)
        else {
            return Vec::new();
        };
        let Some(mut call) = self.begin(&self.link.scripts.mirror.due, identity) else {
            return Vec::new();
        };
        call.arg(found.generation).arg(&**pool).arg(request.max).arg("").arg("");
        call.arg(kinds.iter().map(|kind| &**kind).collect::<Vec<&str>>());
        let Ok(said) = self.ask(&call).await else { return Vec::new() };
        let one = |entry: &[String]| Some((entry[0].parse().ok()?, entry[1].parse().ok()?));
        said.get(1..).unwrap_or_default().chunks_exact(3).filter_map(one).collect()
    }
}

fn taken(word: &str) -> Taken {
    match word {
        "found" => Taken::Found,
        "nothing" => Taken::Nothing,
        _ => Taken::Wait,
    }
}

fn slots(tasks: &[(TaskId, u32)]) -> Vec<Mark> {
    tasks.iter().map(|(id, attempt)| (id.0, u64::from(*attempt))).collect()
}

fn later(request: &ClaimRequest) -> ClaimBatch {
    ClaimBatch { claimed: Vec::new(), next_at: request.now.checked_add(AGAIN).ok() }
}

impl RedisStore {
    /// While tasks are mirrored: from PostgreSQL, or in the dark.
    pub(in crate::redis) async fn claim_mirrored(
        &self,
        mirror: &Mirror,
        request: ClaimRequest,
    ) -> Result<ClaimBatch> {
        let Some(outage) = &mirror.outage else {
            return self.claim_connected(mirror, &request).await;
        };
        if outage.is_on() {
            return mirror.claim_in_the_dark(&request).await;
        }
        let answer = outage.meanwhile(self.claim_connected(mirror, &request)).await;
        match &answer {
            Ok(_) => mirror.settled_up(&request),
            Err(StoreError::Unavailable(_)) => mirror.owe(&request),
            Err(_) => {}
        }
        answer
    }

    async fn claim_connected(&self, mirror: &Mirror, request: &ClaimRequest) -> Result<ClaimBatch> {
        if request.repeated {
            let claimed = self.database().claimed_before(&request.worker, request.token).await?;
            if !claimed.is_empty() {
                return Ok(ClaimBatch { claimed, next_at: None });
            }
        }
        let (mut batch, is_all) = self.claim_head(mirror, request).await?;
        if is_all {
            return Ok(batch);
        }
        let max = request.max - batch.claimed.len();
        let rest = ClaimRequest { max, repeated: false, ..request.clone() };
        // As with hints alone: an error is about all of it.
        let more = Box::pin(self.claim_rest(mirror, rest)).await?;
        batch.claimed.extend(more.claimed);
        batch.next_at = more.next_at;
        Ok(batch)
    }

    /// As far as hints tell what is foremost: under the regime as it was last heard of, which the
    /// claim itself holds against what it is by then. Whether the database need not be asked for
    /// more.
    async fn claim_head(
        &self,
        mirror: &Mirror,
        request: &ClaimRequest,
    ) -> Result<(ClaimBatch, bool)> {
        let none = |next_at| ClaimBatch { claimed: Vec::new(), next_at };
        let Some((generation, redis)) = mirror.agreed_on() else {
            return Ok((none(None), false));
        };
        let head = match self.head_taken(mirror, generation, &redis, request).await {
            Line::Unknown => return Ok((none(None), false)),
            Line::Empty(next_at) => return Ok((none(next_at), true)),
            Line::Head(head) => head,
        };
        let taken: Vec<Taken> = head.taken.iter().map(|word| taken(word)).collect();
        if taken.contains(&Taken::Wait) {
            mirror.keep.notify_one();
        }
        let found = Candidates { generation, tasks: head.tasks.clone(), ..Candidates::default() };
        let claimed = self.claim_these(&found, &taken, request).await;
        let (mut batch, _) = claimed.inspect_err(|_| {
            // It may have been done or not.
            self.pusher.say(Note::Ask(head.tasks.iter().map(|(id, _)| *id).collect()));
        })?;
        let is_all = self.heed_claimed(&head, &mut batch);
        Ok((batch, is_all))
    }

    /// The foremost of its pool, as far as hints tell of them, and taken in the same step.
    async fn head_taken(
        &self,
        mirror: &Mirror,
        generation: u64,
        redis: &str,
        request: &ClaimRequest,
    ) -> Line {
        let Some(pool) = self.pool_for_hints(request) else { return Line::Unknown };
        if mirror.regime().clock.is_none() {
            mirror.look().await;
        }
        let Some(mut call) = mirror.begin(&self.link.scripts.mirror.head, redis) else {
            return Line::Unknown;
        };
        call.arg(generation);
        ask_for_hints(&mut call, &pool, request);
        let said = mirror.ask_within(self.link.times.patience, &call).await;
        self.line(pool, said, 2)
    }

    async fn claim_rest(&self, mirror: &Mirror, request: ClaimRequest) -> Result<ClaimBatch> {
        if mirror.regime().redis.is_none() {
            match self.hand_out(request.clone()).await {
                Err(error) if is_mirrored(&error) => mirror.keep.notify_one(),
                answer => return answer,
            }
        }
        let member = mirror.is_member().then_some(mirror.id);
        let held = self.database().hold_claim(member, &mirror.announced(), &request).await?;
        mirror.regime().redis.clone_from(&held.found.redis);
        let taken = match (&held.found.redis, held.found.ready) {
            (Some(_), true) => mirror.take(&held.found, &slots(&held.found.tasks)).await,
            (None, true) => Some(Vec::new()),
            (_, false) => None,
        };
        let Some(taken) = taken else {
            held.give_back().await?;
            mirror.keep.notify_one();
            return Ok(later(&request));
        };
        self.looked(&request, held.found.tasks.len());
        if !taken.contains(&Taken::Wait) {
            let (batch, seqs) = held.keep().await?;
            self.counts.plain(batch.claimed.len());
            self.heard_of(&batch, seqs);
            return Ok(batch);
        }
        let found = held.give_back().await?;
        mirror.keep.notify_one();
        self.claim_free(mirror, found, taken, &request).await
    }

    /// While some are waited for: the others, and what the dark themselves could claim.
    async fn claim_free(
        &self,
        mirror: &Mirror,
        mut found: Candidates,
        mut taken: Vec<Taken>,
        request: &ClaimRequest,
    ) -> Result<ClaimBatch> {
        let mut free = mirror.free(&found, request).await;
        free.retain(|task| !found.tasks.contains(task));
        taken.extend(mirror.take(&found, &slots(&free)).await.unwrap_or_default());
        found.tasks.extend(free);
        let (mut batch, seqs) = self.claim_these(&found, &taken, request).await?;
        self.heard_of(&batch, seqs);
        batch.next_at = found.next_at.into_iter().chain(later(request).next_at).min();
        Ok(batch)
    }

    /// Of those that were found, what nobody need be waited for.
    async fn claim_these(
        &self,
        found: &Candidates,
        taken: &[Taken],
        request: &ClaimRequest,
    ) -> Result<(ClaimBatch, Vec<i64>)> {
        let had = found.tasks.iter().zip(taken).filter(|(_, taken)| **taken != Taken::Wait);
        let had: Vec<(TaskId, u32)> = had.map(|(task, _)| *task).collect();
        if had.is_empty() {
            return Ok((ClaimBatch { claimed: Vec::new(), next_at: None }, Vec::new()));
        }
        let word = TakenTasks::new(found.generation, &had);
        self.database().claim_taken(&word, request).await
    }

    /// One task after the other, so that they are recorded in their order: some are taken first,
    /// and others, such as those that run, are the database's alone.
    pub(in crate::redis) async fn cancel_mirrored(
        &self,
        mirror: &Mirror,
        ids: &[TaskId],
        act: &Act,
    ) -> Result<Vec<Cancelled>> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.extend(self.cancel_one(mirror, &[*id], act).await?);
        }
        Ok(answers)
    }

    async fn cancel_one(
        &self,
        mirror: &Mirror,
        id: &[TaskId],
        act: &Act,
    ) -> Result<Vec<Cancelled>> {
        use matins_core::store::Queue as _;
        for _ in 0..TRIES {
            if let Some(word) = self.take_for(mirror, id).await? {
                match self.database().cancel_taken(&word, act).await? {
                    Some(answers) => return Ok(answers),
                    None => continue,
                }
            }
            match self.database().cancel(id, act).await {
                Err(error) if is_mirrored(&error) => {}
                answer => return answer,
            }
        }
        Err(moving())
    }

    /// As [`Self::cancel_mirrored`].
    pub(in crate::redis) async fn retry_mirrored(
        &self,
        mirror: &Mirror,
        ids: &[TaskId],
        payload: Option<Json>,
        act: &Act,
    ) -> Result<Vec<Retried>> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.extend(self.retry_one(mirror, &[*id], payload.as_ref(), act).await?);
        }
        Ok(answers)
    }

    async fn retry_one(
        &self,
        mirror: &Mirror,
        id: &[TaskId],
        payload: Option<&Json>,
        act: &Act,
    ) -> Result<Vec<Retried>> {
        use matins_core::store::Queue as _;
        for _ in 0..TRIES {
            if let Some(word) = self.take_for(mirror, id).await? {
                match self.database().retry_taken(&word, payload, act).await? {
                    Some(answers) => return Ok(answers),
                    None => continue,
                }
            }
            match self.database().retry(id, payload.cloned(), act).await {
                Err(error) if is_mirrored(&error) => {}
                answer => return answer,
            }
        }
        Err(moving())
    }

    /// Takes those that wait; `None`: none of them is to be taken.
    async fn take_for(&self, mirror: &Mirror, ids: &[TaskId]) -> Result<Option<TakenTasks>> {
        let found = self.database().waiting(&mirror.announced(), ids).await?;
        if found.redis.is_none() {
            return Ok(None);
        }
        let away = || {
            StoreError::Unavailable(
                "nodes may run the task from Redis alone, and that does not answer; try again"
                    .to_owned(),
            )
        };
        if !found.ready {
            mirror.keep.notify_one();
            return Err(moving());
        }
        let taken = mirror.take(&found, &slots(&found.tasks)).await.ok_or_else(away)?;
        if taken.contains(&Taken::Wait) {
            mirror.keep.notify_one();
            return Err(StoreError::Unavailable(
                "a node works without PostgreSQL and may run the task; try again when it is back"
                    .to_owned(),
            ));
        }
        let word = TakenTasks::new(found.generation, &found.tasks);
        Ok(Some(word).filter(|word| !word.ids.is_empty()))
    }
}

fn moving() -> StoreError {
    StoreError::Unavailable("the tasks keep changing hands; try again".to_owned())
}
