//! The protocol of workers in any language, and the list of workers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use matins_core::Json;
use matins_core::lifecycle::{RetryAfter, later};
use matins_core::store::{Types, Worker};
use matins_core::task::{Claim, ErrorClass, TaskId};
use matins_runtime::client::remote::{RemoteOutcome, RemoteSettle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time::{Later, Length};
use super::{Time, schema};
use crate::problem::{Problem, ProblemView, Result};

/// Asks for tasks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// A name for people; claims are told apart by fence and token, not by it.
    pub worker: String,
    /// Any pool when absent.
    #[serde(default)]
    pub pools: Vec<String>,
    /// What the worker can run. A token that is limited to types brings them itself.
    #[serde(default)]
    pub types: Vec<String>,
    /// Most tasks; 1 when absent.
    #[serde(default)]
    pub max: Option<usize>,
    /// How long to wait for the first one, at most 60 s; not at all when absent.
    #[serde(default)]
    pub wait: Option<Length>,
}

/// The proof of a claim.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimProof {
    #[schemars(schema_with = "schema::uuid")]
    pub id: TaskId,
    pub fence: u64,
    /// As the claim gave it.
    pub token: String,
}

impl ClaimProof {
    fn claim(&self) -> Claim {
        claim(self.id, self.fence, &self.token)
    }
}

fn claim(id: TaskId, fence: u64, token: &str) -> Claim {
    // A token that is none of ours can be no live one's either: zero stands for all of those,
    // and a fence never goes out with it.
    let token = match token.len() {
        16 => u64::from_str_radix(token, 16).unwrap_or(0),
        _ => 0,
    };
    Claim { id, fence, token }
}

/// Renews claims.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatBody {
    pub worker: String,
    #[serde(default)]
    pub tasks: Vec<ClaimProof>,
}

impl HeartbeatBody {
    pub fn claims(&self) -> Vec<Claim> {
        self.tasks.iter().map(ClaimProof::claim).collect()
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct HeartbeatAnswer {
    pub lease_until: Time,
    /// Claims that no longer stand: stop the work, its result will be refused.
    #[schemars(with = "Vec<String>")]
    pub lost: Vec<TaskId>,
    /// Claims that stand, but whose tasks should end.
    #[schemars(with = "Vec<String>")]
    pub cancel: Vec<TaskId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SettleOutcome {
    Completed,
    Failed,
    /// Again later, without using a retry.
    Snooze,
    /// Given back.
    Release,
}

/// What went wrong: a text, or a text with its class.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorBody {
    #[serde(default)]
    #[schemars(schema_with = "schema::class")]
    class: Option<ErrorClass>,
    message: String,
}

/// How a run ended.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleItem {
    #[schemars(schema_with = "schema::uuid")]
    id: TaskId,
    fence: u64,
    token: String,
    outcome: SettleOutcome,
    /// `completed`: any JSON.
    #[serde(default)]
    #[schemars(schema_with = "schema::json")]
    result: Option<Json>,
    /// `failed`: what went wrong.
    #[serde(default)]
    error: Option<ErrorBody>,
    /// `failed`: do not try again.
    #[serde(default)]
    permanent: bool,
    /// `failed`: not before this long from now, or this time.
    #[serde(default)]
    retry_after: Option<Later>,
    /// What the run wrote.
    #[serde(default)]
    output: Option<String>,
    /// `snooze` and `release`: when it is due again.
    #[serde(default)]
    run_at: Option<Time>,
    /// `snooze` and `release`: how long from now.
    #[serde(default)]
    delay: Option<Length>,
}

impl SettleItem {
    pub fn settle(self, now: Timestamp) -> Result<RemoteSettle> {
        self.only_with(SettleOutcome::Completed, "result", self.result.is_some())?;
        self.only_with(SettleOutcome::Failed, "error", self.error.is_some())?;
        self.only_with(SettleOutcome::Failed, "permanent", self.permanent)?;
        self.only_with(SettleOutcome::Failed, "retry_after", self.retry_after.is_some())?;
        let due = match (self.run_at, self.delay) {
            (Some(_), Some(_)) => {
                return Err(Problem::field("delay", "cannot be combined with run_at"));
            }
            (Some(at), None) => Some(at.0),
            (None, Some(delay)) => Some(later(now, delay.get())),
            (None, None) => None,
        };
        let outcome = match self.outcome {
            SettleOutcome::Completed | SettleOutcome::Failed if due.is_some() => {
                return Err(Problem::field("run_at", "belongs to snooze and release"));
            }
            SettleOutcome::Completed => RemoteOutcome::Completed { result: self.result },
            SettleOutcome::Failed => {
                let error = self.error.ok_or_else(|| Problem::field("error", "is required"))?;
                RemoteOutcome::Failed {
                    class: error.class,
                    message: error.message,
                    permanent: self.permanent,
                    retry_after: self.retry_after.map(|wish| match wish {
                        Later::In(length) => RetryAfter::In(length),
                        Later::At(at) => RetryAfter::At(at),
                    }),
                }
            }
            SettleOutcome::Snooze => match due {
                Some(at) => RemoteOutcome::Snooze { at },
                None => return Err(Problem::field("run_at", "is required, or delay")),
            },
            SettleOutcome::Release => RemoteOutcome::Release { at: due.unwrap_or(now) },
        };
        let claim = claim(self.id, self.fence, &self.token);
        Ok(RemoteSettle { claim, outcome, output: self.output })
    }

    fn only_with(&self, outcome: SettleOutcome, field: &str, given: bool) -> Result<()> {
        if given && self.outcome != outcome {
            let word = format!("{outcome:?}").to_lowercase();
            return Err(Problem::field(field, format!("belongs to the outcome {word}")));
        }
        Ok(())
    }
}

/// Settles runs, each by itself.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleBody {
    /// Checked one by one: a bad one is refused alone.
    #[schemars(with = "Vec<SettleItem>")]
    pub items: Json,
}

/// What became of one item.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SettleAnswerItem")]
pub struct SettleItemView<'a> {
    pub index: usize,
    /// 200, or 409 `fenced`, or 422.
    pub status: u16,
    /// Where the task is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ProblemView<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SettleAnswer")]
pub struct SettleAnswer<'a> {
    pub items: Vec<SettleItemView<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ClaimAnswer")]
pub struct ClaimAnswer<'a> {
    /// Empty when there was nothing in time.
    pub tasks: Vec<super::task::ClaimedView<'a>>,
}

/// A worker's entry.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Worker")]
pub struct WorkerView<'a> {
    id: String,
    node_id: &'a str,
    /// Its lease stands.
    alive: bool,
    draining: bool,
    /// It claims over HTTP.
    remote: bool,
    started_at: Time,
    seen_at: Time,
    lease_until: Time,
    /// Slots per pool.
    pools: BTreeMap<&'a str, u32>,
    /// What it runs; null: any type.
    types: Option<Vec<&'a str>>,
}

impl<'a> WorkerView<'a> {
    fn new(worker: &'a Worker, now: Timestamp) -> Self {
        Self {
            id: worker.id.to_string(),
            node_id: &worker.node_id,
            alive: worker.lease_until >= now,
            draining: worker.draining,
            remote: worker.remote,
            started_at: Time(worker.started_at),
            seen_at: Time(worker.seen_at),
            lease_until: Time(worker.lease_until),
            pools: worker.pools.iter().map(|(name, slots)| (&**name, *slots)).collect(),
            types: match &worker.types {
                Types::Any => None,
                Types::Only(kinds) => Some(kinds.iter().map(|kind| &**kind).collect()),
            },
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WorkerList")]
pub struct WorkerList<'a> {
    workers: Vec<WorkerView<'a>>,
}

impl<'a> WorkerList<'a> {
    pub fn new(workers: &'a [Worker], now: Timestamp) -> Self {
        Self { workers: workers.iter().map(|worker| WorkerView::new(worker, now)).collect() }
    }
}
