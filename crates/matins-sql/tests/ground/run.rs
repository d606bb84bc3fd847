//! Runs of SQL tasks without an engine: the executors that a file would give, and a hand on the
//! run's end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use matins_core::Json;
use matins_core::duration::Timeout;
use matins_core::executor::{Run, StopReason, Supervision};
use matins_core::lifecycle::Outcome;
use matins_core::task::{Claim, Claimed, ErrorClass, NewTask, TaskId};
use matins_runtime::executors::sql::Connection;
use matins_runtime::rules::{AllowCommands, Rules};
use tokio::sync::watch;
use uuid::Uuid;

pub(crate) const TIME: Duration = Duration::from_secs(60);

/// Rules with one connection, called `db`.
pub(crate) fn rules(connection: Connection) -> Rules {
    Rules {
        connections: BTreeMap::from([("db".into(), connection)]),
        allow_commands: AllowCommands::Any,
        ..Rules::default()
    }
}

/// The engine's side of a run.
pub(crate) struct Hand(watch::Sender<Option<StopReason>>);

impl Hand {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(None)))
    }

    pub(crate) fn stop(&self, reason: StopReason) {
        self.0.send_replace(Some(reason));
    }
}

#[async_trait]
impl Supervision for Hand {
    async fn stopped(&self) -> StopReason {
        let mut told = self.0.subscribe();
        let reason = *told.wait_for(Option::is_some).await.expect("the hand is there");
        reason.expect("waited for")
    }

    fn lease_deadline(&self) -> Option<u64> {
        None
    }

    async fn lease_renewed(&self, _seen: Option<u64>) -> Option<u64> {
        std::future::pending().await
    }

    fn output(&self, _chunk: &[u8]) {}
}

pub(crate) struct Task<'t> {
    pub(crate) kind: &'t str,
    pub(crate) payload: String,
    pub(crate) timeout: Duration,
    pub(crate) hand: Arc<Hand>,
}

impl Task<'_> {
    pub(crate) fn query(sql: &str, params: &str) -> Self {
        let sql = serde_json::to_string(sql).unwrap();
        Self {
            kind: "db_query",
            payload: format!(r#"{{"connection": "db", "sql": {sql}, "params": {params}}}"#),
            timeout: TIME,
            hand: Hand::new(),
        }
    }

    pub(crate) async fn run(self, rules: &Rules) -> Outcome {
        let now = Timestamp::now();
        let payload = Json::parse(&self.payload).unwrap();
        let new = NewTask::new(TaskId(Uuid::now_v7()), self.kind, payload, now);
        let mut task = matins_core::task::Task::from_new(&new, now);
        task.attempt = 1;
        let claim = Claim { id: task.id, fence: 7, token: 1 };
        let run = Run {
            claimed: Arc::new(Claimed { task, claim }),
            timeout: Timeout::After(self.timeout),
            grace: Duration::from_secs(10),
            supervision: self.hand.clone(),
        };
        let executors = matins_sql::executors(rules).unwrap();
        executors[self.kind].run(run).await.outcome
    }
}

/// Runs a statement and answers its result.
pub(crate) async fn result(rules: &Rules, sql: &str, params: &str) -> String {
    match Task::query(sql, params).run(rules).await {
        Outcome::Completed { result: Some(result), .. } => result.as_str().to_owned(),
        other => panic!("{sql}: {other:?}"),
    }
}

/// Runs a statement that fails: class, whether for good, text.
pub(crate) async fn refused(rules: &Rules, sql: &str, params: &str) -> (ErrorClass, bool, String) {
    match Task::query(sql, params).run(rules).await {
        Outcome::Failed { error, permanent, .. } => (error.class, permanent, error.message),
        other => panic!("{sql}: {other:?}"),
    }
}
