//! What other processes say: a hint that something may have changed, never the truth.
//!
//! Whoever writes something that others may wait for rings; rings that come close together are one
//! NOTIFY, because each NOTIFY takes a lock on the whole database while it commits. What this
//! process has said itself it does not hear.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

use super::link::Switchboard;
use super::sql::Sql;

/// Rings within this time are one.
const PACE: Duration = Duration::from_millis(20);

/// How long to wait before a broken line is opened again.
const REOPEN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Ear {
    heard: Arc<Notify>,
    ring: Arc<Notify>,
    /// The task that listens and rings; `None`: nobody does.
    task: Option<tokio::task::AbortHandle>,
}

impl Ear {
    pub(super) fn open(switchboard: &Arc<Switchboard>, config: &Config, listen: bool) -> Self {
        let (heard, ring) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let task = listen.then(|| {
            let line = Line {
                config: config.clone(),
                heard: heard.clone(),
                ring: ring.clone(),
                name: uuid::Uuid::new_v4().simple().to_string(),
            };
            switchboard.spawn(line.keep_open())
        });
        Self { heard, ring, task }
    }

    /// Something has changed that others may wait for.
    pub(super) fn ring(&self) {
        self.ring.notify_one();
    }

    pub(super) async fn heard(&self) {
        self.heard.notified().await;
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
    config: Config,
    heard: Arc<Notify>,
    ring: Arc<Notify>,
    name: String,
}

impl Line {
    async fn keep_open(self) {
        loop {
            if let Err(error) = self.listen().await {
                tracing::debug!(%error, "not listening to the database");
            }
            // Whatever was said meanwhile was missed.
            self.heard.notify_waiters();
            tokio::time::sleep(REOPEN).await;
        }
    }

    async fn listen(&self) -> Result<(), tokio_postgres::Error> {
        let (client, mut connection) = self.config.connect(NoTls).await?;
        let messages = async {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(said) = message?
                    && said.payload() != self.name
                {
                    self.heard.notify_waiters();
                }
            }
            Ok(())
        };
        tokio::select! {
            ended = messages => ended,
            ended = self.speak(&client) => ended,
        }
    }

    async fn speak(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        client.batch_execute("LISTEN matins").await?;
        loop {
            self.ring.notified().await;
            client.query_typed(Sql::Notify.text(), &[(&self.name, Type::TEXT)]).await?;
            tokio::time::sleep(PACE).await;
        }
    }
}
