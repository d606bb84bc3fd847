//! The session that lives as long as the process: what others say, and who of them is gone.
//!
//! - Whoever writes something that others may wait for rings; rings that come close together are
//!   one NOTIFY, because each NOTIFY takes a lock on the whole database while it commits. It is a
//!   hint, never the truth. What this process has said itself it does not hear.
//! - A worker's name is locked here. When the process dies, its session ends and the lock is free.
//!   That is death only when the worker's entry was not touched for a while either, because a
//!   session may also break and be opened anew; then its claims lapse long before their lease.
//!
//! Behind a pooler that hands out a session per transaction there is none of this: polling finds
//! what is new, and the lease tells who is gone.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use super::address::Access;
use super::error::Res;
use super::link::{Param, Switchboard};
use super::row;
use super::sql::Sql;
use super::text::Text;
use super::time::At;

/// Rings within this time are one.
const PACE: Duration = Duration::from_millis(20);

/// How long to wait before a broken line is opened again.
const REOPEN: Duration = Duration::from_millis(500);

/// How often it is looked who is gone.
const LOOK: Duration = Duration::from_secs(1);

/// How long a worker's name must have been free, and its entry untouched, before it is dead.
const DEAD_AFTER: Duration = Duration::from_secs(3);

/// How long the database works on any statement of this session.
const LIMIT: Duration = Duration::from_secs(5);

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
            ended = self.speak(&client) => ended,
        }
    }

    async fn speak(&self, client: &Client) -> Res<()> {
        let limit = LIMIT.as_millis();
        client.batch_execute(&format!("LISTEN matins; SET statement_timeout = {limit}")).await?;
        self.guard(client).await?;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut free = Free::default();
        loop {
            tokio::select! {
                () = self.said.ring.notified() => {
                    client.query_typed(Sql::Notify.text(), &[(&self.name, Type::TEXT)]).await?;
                    tokio::time::sleep(PACE).await;
                }
                () = self.said.new_worker.notified() => self.guard(client).await?,
                _ = look.tick() => self.look(client, &mut free).await?,
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

    async fn look(&self, client: &Client, free: &mut Free) -> Res<()> {
        let mut seen = HashMap::new();
        for row in client.query_typed(Sql::WorkerUnguarded.text(), &[]).await? {
            seen.insert(row::text(&row, 0)?, At(row::at(&row, 1)?));
        }
        for (worker, seen_at) in free.dead(seen) {
            let params: [(Param<'_>, Type); 2] =
                [(&Text(&worker), Type::TEXT), (&seen_at, Type::TIMESTAMPTZ)];
            if !client.query_typed(Sql::WorkerDied.text(), &params).await?.is_empty() {
                tracing::warn!(worker, "a worker's session is gone and it is not seen any more");
                self.said.lost.notify_one();
            }
        }
        Ok(())
    }
}

/// Since when names have been found free, and when their workers had last been seen then.
#[derive(Default)]
struct Free(HashMap<String, (At, Instant)>);

impl Free {
    /// Those that have been free, and unseen, for long enough.
    fn dead(&mut self, now_free: HashMap<String, At>) -> Vec<(String, At)> {
        self.0.retain(|worker, (seen_at, _)| now_free.get(worker) == Some(seen_at));
        let now = Instant::now();
        let mut dead = Vec::new();
        for (worker, seen_at) in now_free {
            let (_, since) = self.0.entry(worker.clone()).or_insert((seen_at, now));
            if now.duration_since(*since) >= DEAD_AFTER {
                dead.push((worker, seen_at));
            }
        }
        dead
    }
}
