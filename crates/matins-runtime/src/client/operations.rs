//! Long acts of people, carried out in small steps whose progress is stored, so that a restart
//! goes on where the last step ended.

use std::time::Duration;

use matins_core::Json;
use matins_core::dead_letter::DeadLetterFilter;
use matins_core::operation::{Operation, OperationKind, OperationState};
use matins_core::page::PageRequest;
use matins_core::store::{Act, Order, Retried};
use matins_core::task::{State, TaskId};

use super::{Client, Result};

/// Tasks of one step without a rate.
const STEP: usize = 200;
/// How often tasks that an operation waits for are looked at.
pub(super) const POLL: Duration = Duration::from_millis(200);

/// What is to be done after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Again,
    After(Duration),
    Finished,
}

/// A replay's own part of an operation.
struct Replay {
    ids: Option<Vec<TaskId>>,
    filter: Option<DeadLetterFilter>,
    payload: Option<Json>,
    canary: bool,
    canary_id: Option<TaskId>,
    per_minute: Option<u32>,
    done: Option<String>,
}

impl Client {
    /// Carries an operation out to its end in this process.
    pub async fn run_operation(&self, mut operation: Operation) -> Result<Operation> {
        loop {
            match self.step_operation(&mut operation).await? {
                Step::Again => {}
                Step::After(pause) => tokio::time::sleep(pause).await,
                Step::Finished => return Ok(operation),
            }
        }
    }

    /// One step; the operation with its progress is stored before this returns.
    pub async fn step_operation(&self, operation: &mut Operation) -> Result<Step> {
        if operation.state != OperationState::Running {
            return Ok(Step::Finished);
        }
        let step = match operation.kind.clone() {
            OperationKind::Replay { ids, filter, payload, canary, canary_id, per_minute, done } => {
                let replay = Replay { ids, filter, payload, canary, canary_id, per_minute, done };
                self.step_replay(operation, replay).await?
            }
            OperationKind::Backfill { .. } => self.step_backfill(operation).await?,
        };
        if step == Step::Finished && operation.state == OperationState::Running {
            operation.state = OperationState::Completed;
        }
        if step == Step::Finished {
            operation.finished_at = Some(self.now());
        }
        self.inner.store.put_operation(operation).await?;
        Ok(step)
    }

    async fn step_replay(&self, operation: &mut Operation, mut replay: Replay) -> Result<Step> {
        if let Some(canary) = replay.canary_id {
            match self.canary_state(canary).await? {
                Some(State::Pending | State::Running) => {
                    operation.detail = Some(format!("waits for the canary {canary}"));
                    return Ok(Step::After(POLL));
                }
                Some(State::Completed) | None => {
                    replay.canary_id = None;
                    replay.canary = false;
                    operation.detail = None;
                }
                Some(State::Failed | State::Cancelled) => {
                    operation.state = OperationState::Stopped;
                    operation.detail = Some(format!(
                        "the canary {canary} did not complete; the rest is untouched"
                    ));
                    return Ok(Step::Finished);
                }
            }
        }
        let single = replay.canary || replay.per_minute.is_some();
        let n = if single { 1 } else { STEP };
        let Some((ids, done)) = self.next_letters(&replay, n).await? else {
            operation.kind = replay.into_kind();
            return Ok(Step::Finished);
        };
        let act =
            Act { who: operation.by.clone(), reason: operation.reason.clone(), at: self.now() };
        let answers = self.inner.store.retry(&ids, replay.payload.clone(), &act).await?;
        for (id, answer) in ids.iter().zip(&answers) {
            match answer {
                Retried::Replayed(task) | Retried::DueNow(task) => {
                    operation.replayed += 1;
                    if replay.canary {
                        replay.canary_id = Some(*id);
                    }
                    self.inner.wake.ring_pool(&task.pool);
                }
                Retried::Deduplicated(_) => operation.deduplicated += 1,
                Retried::WrongState(_) | Retried::NotFound => operation.failed += 1,
            }
        }
        replay.done = Some(done);
        let pause = replay.per_minute.filter(|_| replay.canary_id.is_none());
        operation.kind = replay.into_kind();
        Ok(pause.map_or(Step::Again, |n| Step::After(Duration::from_secs(60) / n)))
    }

    async fn canary_state(&self, id: TaskId) -> Result<Option<State>> {
        Ok(self.inner.store.task(id).await?.map(|task| task.state))
    }

    /// The next letters to replay, oldest first, and the position behind them.
    async fn next_letters(
        &self,
        replay: &Replay,
        n: usize,
    ) -> Result<Option<(Vec<TaskId>, String)>> {
        if let Some(ids) = &replay.ids {
            let done = replay.done.as_deref().and_then(|done| done.parse().ok()).unwrap_or(0);
            let rest = ids.get(done..).unwrap_or_default();
            let step: Vec<TaskId> = rest.iter().take(n).copied().collect();
            let position = (done + step.len()).to_string();
            return Ok((!step.is_empty()).then_some((step, position)));
        }
        if replay.done.as_deref() == Some(END) {
            return Ok(None);
        }
        let filter = replay.filter.clone().unwrap_or_default();
        let page = PageRequest { limit: n, cursor: replay.done.clone() };
        let letters = self.inner.store.dead_letters(&filter, Order::OldestFirst, &page).await?;
        let ids = letters.items.into_iter().map(|task| task.id).collect();
        Ok(Some((ids, letters.next.unwrap_or_else(|| END.to_owned()))))
    }
}

/// Position behind the last page.
const END: &str = "end";

impl Replay {
    fn into_kind(self) -> OperationKind {
        OperationKind::Replay {
            ids: self.ids,
            filter: self.filter,
            payload: self.payload,
            canary: self.canary,
            canary_id: self.canary_id,
            per_minute: self.per_minute,
            done: self.done,
        }
    }
}
