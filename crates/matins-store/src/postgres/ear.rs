//! The session that lives as long as the process: what others say, and who of them is gone.
//!
//! - Whoever writes something that others may wait for rings; rings that come close together are
//!   one NOTIFY, because each NOTIFY takes a lock on the whole database while it commits. It is a
//!   hint, never the truth. What this process has said itself it does not hear.
//! - A worker's name is locked here. When the process dies, its session ends and the lock is free.
//!   That is death only when the worker's entry was not touched for a while either (`look.rs`),
//!   because a session may also break and be opened anew; then its claims lapse long before their
//!   lease.
//!
//! Behind a pooler that hands out a session per transaction there is none of this: polling finds
//! what is new, and the lease tells who is gone.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Row};

use super::address::Access;
use super::error::{Failure, Res};
use super::link::{Param, Switchboard};
use super::sql::Sql;
use super::text::Text;

/// Rings within this time are one.
const PACE: Duration = Duration::from_millis(20);

/// How long to wait before a broken line is opened again.
const REOPEN: Duration = Duration::from_millis(500);

/// How long the database works on any statement of this session.
const LIMIT: Duration = Duration::from_secs(5);

/// How long an answer on this session is waited for: the database gives up before.
const PATIENCE: Duration = Duration::from_secs(6);

#[derive(Debug)]
pub(super) struct Ear {
    said: Arc<Said>,
    /// The task that listens and rings; `None`: nobody does.
    task: Option<tokio::task::AbortHandle>,
}

#[derive(Debug, Default)]
struct Said {
    heard: Notify,
    lost: Notify,
    ring: Notify,
    /// The worker of this process whose name is to be locked, and that it is a new one.
    worker: Mutex<Option<String>>,
    new_worker: Notify,
    /// The session, while it listens.
    session: Mutex<Option<Arc<Client>>>,
    /// It does not answer: another one is needed.
    silent: Notify,
}

impl Said {
    fn session(&self) -> std::sync::MutexGuard<'_, Option<Arc<Client>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ear {
    pub(super) fn open(switchboard: &Arc<Switchboard>, access: &Access, listen: bool) -> Self {
        let said = Arc::new(Said::default());
        let task = listen.then(|| {
            let name = uuid::Uuid::new_v4().simple().to_string();
            let line = Line { access: access.clone(), said: said.clone(), name };
            switchboard.spawn(line.keep_open())
        });
        Self { said, task }
    }

    /// Something has changed that others may wait for.
    pub(super) fn ring(&self) {
        self.said.ring.notify_one();
    }

    /// A worker of this process is to be watched over.
    pub(super) fn guard(&self, worker: &str) {
        let mut guarded = self.said.worker.lock().unwrap_or_else(PoisonError::into_inner);
        *guarded = Some(worker.to_owned());
        self.said.new_worker.notify_one();
    }

    /// Whether it is meant to listen.
    pub(super) fn listens(&self) -> bool {
        self.task.is_some()
    }

    /// Asks through this session; `None`: there is none now.
    pub(super) async fn ask(&self, sql: Sql, params: &[Param<'_>]) -> Option<Res<Vec<Row>>> {
        let session = self.said.session().clone().filter(|session| !session.is_closed())?;
        let typed: Vec<_> = params.iter().copied().zip(sql.types().iter().cloned()).collect();
        let answer = tokio::time::timeout(PATIENCE, session.query_typed(sql.text(), &typed));
        Some(match answer.await {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => {
                self.said.silent.notify_one();
                Err(Failure::unavailable(format!(
                    "no answer from the database within {PATIENCE:?}"
                )))
            }
        })
    }

    /// A worker was found dead.
    pub(super) fn tell_lost(&self) {
        self.said.lost.notify_one();
    }

    /// Resolves when somebody else has said something.
    pub(super) async fn heard(&self) {
        self.said.heard.notified().await;
    }

    /// Resolves when a worker was found dead.
    pub(super) async fn lost(&self) {
        self.said.lost.notified().await;
    }

    pub(super) fn close(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.close();
    }
}

struct Line {
    access: Access,
    said: Arc<Said>,
    name: String,
}

impl Line {
    async fn keep_open(self) {
        loop {
            if let Err(failure) = self.listen().await {
                tracing::debug!(?failure, "not listening to the database");
            }
            *self.said.session() = None;
            // Whatever was said meanwhile was missed.
            self.said.heard.notify_waiters();
            tokio::time::sleep(REOPEN).await;
        }
    }

    async fn listen(&self) -> Res<()> {
        let (client, mut connection) = self.access.connect().await?;
        let messages = async {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(said) = message?
                    && said.payload() != self.name
                {
                    self.said.heard.notify_waiters();
                }
            }
            Ok(())
        };
        tokio::select! {
            ended = messages => ended,
            ended = self.speak(Arc::new(client)) => ended,
            () = self.said.silent.notified() => Err(Failure::unavailable("no answer")),
        }
    }

    async fn speak(&self, client: Arc<Client>) -> Res<()> {
        let limit = LIMIT.as_millis();
        client.batch_execute(&format!("LISTEN matins; SET statement_timeout = {limit}")).await?;
        self.guard(&client).await?;
        *self.said.session() = Some(client.clone());
        loop {
            tokio::select! {
                () = self.said.ring.notified() => {
                    client.query_typed(Sql::Notify.text(), &[(&self.name, Type::TEXT)]).await?;
                    tokio::time::sleep(PACE).await;
                }
                () = self.said.new_worker.notified() => self.guard(&client).await?,
            }
        }
    }

    async fn guard(&self, client: &Client) -> Res<()> {
        let worker = self.said.worker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(worker) = worker else { return Ok(()) };
        client.batch_execute("SELECT pg_advisory_unlock_all()").await?;
        client.query_typed(Sql::WorkerGuard.text(), &[(&Text(&worker), Type::TEXT)]).await?;
        Ok(())
    }
}
