//! A statement on PostgreSQL.
//!
//! A run that must end is cancelled by the server, at its request; the session is closed after
//! that. Two nets lie below: `statement_timeout`, a little above the time limit, for when the
//! request cannot be delivered, and `client_connection_check_interval`, by which the server
//! notices that this process is gone.
//!
//! Behind a pooler that hands out a session per transaction, everything is one transaction, and
//! what is set ends with it.

mod param;
mod value;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use matins_core::executor::{Run, StopReason};
use matins_core::lifecycle::Outcome;
use matins_core::task::ErrorClass;
use matins_runtime::executors::sql::Statement;
use matins_store::postgres::address::Access;
use tokio::runtime::Handle;
use tokio_postgres::types::Type;
use tokio_postgres::{CancelToken, Client, Error};

use crate::rows::{Rows, twice};
use crate::{failure, stop, told};
use param::Param;
use value::{Raw, is_known, write};

/// How often a request to cancel is repeated: one that comes between two statements is lost.
const AGAIN: Duration = Duration::from_millis(500);

/// How far the second net lies above the time limit and its grace.
const SLACK: Duration = Duration::from_secs(5);

/// What is set for a run.
const SET: &str = "SELECT set_config('statement_timeout', $1, $6),
    set_config('matins.task_id', $2, $6), set_config('matins.attempt', $3, $6),
    set_config('matins.fence', $4, $6), set_config('matins.execution_key', $5, $6),
    (SELECT set_config(name, '5s', $6) FROM pg_settings
     WHERE name = 'client_connection_check_interval')";

/// What a session needs to know of its run.
struct Session {
    access: Access,
    pooled: bool,
    settings: [String; 5],
    statement: Statement,
    limit: usize,
    token: Arc<OnceLock<CancelToken>>,
}

pub(crate) async fn run(
    threads: &Handle,
    access: &Access,
    pooled: bool,
    statement: Statement,
    run: &Run,
    limit: usize,
) -> Outcome {
    let token = Arc::new(OnceLock::new());
    let session = Session {
        access: access.clone(),
        pooled,
        settings: settings(run),
        statement,
        limit,
        token: token.clone(),
    };
    // Aborted, and its session closed, with this future.
    let mut work = tokio_util::task::AbortOnDropHandle::new(threads.spawn(session.work()));
    let reason = tokio::select! {
        done = &mut work => return done.unwrap_or_else(|error| broke(&error)),
        reason = stop(run) => reason,
    };
    let ended = tokio::time::timeout(run.supervision.patience(run.grace), async {
        loop {
            if let Some(token) = token.get() {
                let (access, token) = (access.clone(), token.clone());
                let asked = threads.spawn(async move { access.cancel(token).await });
                if let Ok(Err(error)) = asked.await {
                    tracing::warn!(%error, "could not ask the database to cancel a statement");
                }
            }
            if let Ok(done) = tokio::time::timeout(AGAIN, &mut work).await {
                return done;
            }
        }
    });
    match ended.await {
        // It was quicker.
        Ok(Ok(done @ Outcome::Completed { .. })) if reason != StopReason::LeaseLost => done,
        _ => told(reason, run),
    }
}

fn broke(error: &tokio::task::JoinError) -> Outcome {
    failure::retryable(ErrorClass::Sql, format!("the run of the statement broke: {error}"))
}

fn settings(run: &Run) -> [String; 5] {
    let (task, claim) = (&run.claimed.task, &run.claimed.claim);
    let net = run.timeout.limit().map_or(0, |limit| (limit + run.grace + SLACK).as_millis());
    [
        net.min(i32::MAX as u128).to_string(),
        task.id.to_string(),
        task.attempt.to_string(),
        claim.fence.to_string(),
        // A setting holds no NUL, which a key never has.
        task.execution_key.as_deref().unwrap_or_default().to_owned(),
    ]
}

/// How a session ended otherwise than by its answer.
enum Ended {
    Postgres(Error),
    Refused(String),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Postgres(error)
    }
}

impl Session {
    async fn work(self) -> Outcome {
        match self.answer().await {
            Ok(outcome) => outcome,
            Err(Ended::Postgres(error)) => failure::of_postgres(&error),
            Err(Ended::Refused(message)) => failure::permanent(ErrorClass::Sql, message),
        }
    }

    async fn answer(&self) -> Result<Outcome, Ended> {
        let (client, line) = self.access.connect().await?;
        let _ = self.token.set(client.cancel_token());
        tokio::pin!(line);
        // The line is driven here, so that it is closed when nobody waits for the answer any more.
        tokio::select! {
            biased;
            answer = self.ask(&client) => answer,
            ended = &mut line => match ended {
                Ok(()) => Err(Ended::Refused("the database closed the connection".to_owned())),
                Err(error) => Err(error.into()),
            },
        }
    }

    async fn ask(&self, client: &Client) -> Result<Outcome, Ended> {
        if self.pooled {
            client.batch_execute("BEGIN").await?;
        }
        let [timeout, task, attempt, fence, key] = &self.settings;
        let text = |value: &'_ String| value.clone();
        let values = [timeout, task, attempt, fence, key].map(text);
        let mut params: Vec<(&(dyn tokio_postgres::types::ToSql + Sync), Type)> =
            values.iter().map(|value| (value as _, Type::TEXT)).collect();
        params.push((&self.pooled, Type::BOOL));
        client.query_typed(SET, &params).await?;
        let outcome = self.execute(client).await?;
        if self.pooled {
            client.batch_execute("COMMIT").await?;
        }
        Ok(outcome)
    }

    async fn execute(&self, client: &Client) -> Result<Outcome, Ended> {
        let statement = client.prepare(&self.statement.sql).await?;
        let (wanted, given) = (statement.params().len(), self.statement.params.len());
        if wanted != given {
            let message = format!("params: the statement has {wanted} parameters, {given} given");
            return Err(Ended::Refused(message));
        }
        // Before anything is done: an answer that cannot be told must not leave an effect.
        let columns = statement.columns();
        if let Some(name) = twice(columns.iter().map(tokio_postgres::Column::name)) {
            let message = format!("two columns are called {name:?}: name one of them with AS");
            return Err(Ended::Refused(message));
        }
        if let Some(column) = columns.iter().find(|column| !is_known(column.type_())) {
            let (name, ty) = (column.name(), column.type_());
            let message = format!("column {name:?} has the type {ty}: cast it, as in {name}::text");
            return Err(Ended::Refused(message));
        }
        let params = self.statement.params.iter().map(Param);
        let answer = client.query_raw(&statement, params).await?;
        let mut rows = Rows::new(self.limit);
        tokio::pin!(answer);
        while let Some(row) = answer.try_next().await? {
            let names = columns.iter().map(tokio_postgres::Column::name);
            rows.add(names, |index, out| {
                let raw: Option<Raw<'_>> = row.try_get(index)?;
                write(out, columns[index].type_(), raw.map(|raw| raw.0));
                Ok::<_, Error>(())
            })?;
        }
        Ok(rows.finish(answer.rows_affected()))
    }
}
