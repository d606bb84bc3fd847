//! The journal: what is promised while the database is away.
//!
//! ```text
//!   enqueues ─▶ one batch ─▶ durable enough? ─▶ spool, fsynced ─▶ stream in Redis ─▶ answers
//! ```
//!
//! Each entry lies in two places before its promise is made: so it survives the loss of Redis or
//! of this node, though not of both. An entry whose second place could not be reached was promised
//! to nobody, and may be carried out all the same: like a call whose answer was lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use matins_core::outage::{Change, Entry, Persistence, Seal, durability};
use matins_core::store::{Result, StoreError};
use matins_core::task::{Durability, NewTask};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use uuid::Uuid;

use super::link::{Connection, Link, facts};
use super::spool::Spool;
use crate::own_thread::OwnThread;

/// Most tasks of a batch of several callers.
const BATCH: usize = 1_000;

/// Most callers that wait; the next ones wait to wait.
const QUEUE: usize = 1_024;

/// How long Redis may take to write a batch to its disk: it does so each second.
const TO_DISK: Duration = Duration::from_millis(1_500);

struct Call {
    tasks: Vec<NewTask>,
    at: Timestamp,
    reply: oneshot::Sender<Result<Durability>>,
}

pub(super) struct Journal {
    calls: mpsc::Sender<Call>,
    pub(super) seal: Seal,
    pub(super) spool: Arc<Mutex<Spool>>,
}

impl Journal {
    pub(super) fn open(
        link: &Arc<Link>,
        thread: &OwnThread,
        spool: Spool,
        seal: Seal,
        accept_volatile: bool,
    ) -> Self {
        let (calls, waiting) = mpsc::channel(QUEUE);
        let spool = Arc::new(Mutex::new(spool));
        let writer = Writer {
            link: link.clone(),
            spool: spool.clone(),
            seal: seal.clone(),
            accept_volatile,
            line: None,
        };
        thread.spawn(writer.run(waiting));
        Self { calls, seal, spool }
    }

    /// Into the spool alone.
    pub(super) async fn write_down(&self, texts: Vec<String>) -> Result<()> {
        write_down(&self.spool, texts).await
    }

    pub(super) async fn accept(&self, tasks: Vec<NewTask>, at: Timestamp) -> Result<Durability> {
        let closed = || StoreError::Unavailable("the store is closed".to_owned());
        let (reply, answer) = oneshot::channel();
        self.calls.send(Call { tasks, at, reply }).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

/// A connection of its own: waiting for Redis' disk holds up whatever comes behind on it.
struct Line {
    connection: Connection,
    /// It can say when an entry is on its disk.
    tells_of_disk: bool,
}

struct Writer {
    link: Arc<Link>,
    spool: Arc<Mutex<Spool>>,
    seal: Seal,
    accept_volatile: bool,
    line: Option<Line>,
}

impl Writer {
    async fn run(mut self, mut waiting: mpsc::Receiver<Call>) {
        while let Some(call) = waiting.recv().await {
            let mut count = call.tasks.len();
            let mut calls = vec![call];
            while count < BATCH
                && let Ok(call) = waiting.try_recv()
            {
                count += call.tasks.len();
                calls.push(call);
            }
            calls.retain(|call| !call.reply.is_closed());
            let answer = self.write(&calls).await;
            if answer.is_err() {
                // Whatever has become of it, the next batch begins anew.
                self.line = None;
            }
            for call in calls {
                let _ = call.reply.send(answer.clone());
            }
        }
    }

    async fn write(&mut self, calls: &[Call]) -> Result<Durability> {
        let broken = |error: serde_json::Error| StoreError::Broken(error.to_string());
        let durability = self.judge().await?;
        let mut texts = Vec::new();
        let mut ids = Vec::new();
        for call in calls {
            for task in &call.tasks {
                let change = Change::Enqueue(Box::new(task.clone()));
                let entry = Entry { id: Uuid::new_v4(), at: call.at, change };
                texts.push(self.seal.close(&entry).map_err(broken)?);
                ids.push(task.id);
            }
        }
        write_down(&self.spool, texts.clone()).await?;
        let link = self.link.clone();
        let line = self.line().await?;
        let mut script = link.scripts.journal.prepare_invoke();
        script.key(link.key("journal")).key(link.key("journal:tasks")).key(link.key("store_id"));
        script.arg(link.store_id());
        for (id, text) in ids.iter().zip(&texts) {
            script.arg(id.to_string()).arg(text);
        }
        let limit = link.times.background;
        let said = timeout(limit, line.connection.script::<i64>(&script)).await;
        match said {
            Ok(Ok(1)) => {}
            Ok(Ok(_)) => return Err(away(&link, "it holds the hints of another store")),
            Ok(Err(error)) => return Err(away(&link, error)),
            Err(_) => return Err(away(&link, "no answer")),
        }
        if durability == Durability::Redis && line.tells_of_disk {
            let mut wait = redis::cmd("WAITAOF");
            wait.arg(1).arg(0).arg(TO_DISK.as_millis() as u64);
            let said = timeout(limit, line.connection.command::<(i64, i64)>(&wait)).await;
            match said {
                Ok(Ok((1.., _))) => {}
                Ok(Ok(_)) | Err(_) => return Err(away(&link, "it does not get to its disk")),
                Ok(Err(error)) => return Err(away(&link, error)),
            }
        }
        Ok(durability)
    }

    async fn line(&mut self) -> Result<&mut Line> {
        if self.line.is_none() {
            let connection = self.link.another().await.map_err(|error| away(&self.link, error))?;
            let version = self.link.identity().version;
            self.line = Some(Line { connection, tells_of_disk: tells_of_disk(&version) });
        }
        Ok(self.line.as_mut().expect("made just now"))
    }

    /// What may be promised.
    async fn judge(&mut self) -> Result<Durability> {
        let (link, accept_volatile) = (self.link.clone(), self.accept_volatile);
        let line = self.line().await?;
        let mut said = BTreeMap::new();
        for section in ["persistence", "memory"] {
            let mut script = link.scripts.info.prepare_invoke();
            script.key(link.key("store_id")).arg(section);
            let info = timeout(link.times.background, line.connection.script::<String>(&script));
            let info = info.await.map_err(|_| away(&link, "no answer"))?;
            said.extend(facts(&info.map_err(|error| away(&link, error))?));
        }
        durability(persistence(&said), accept_volatile).ok_or_else(|| {
            let kept = persistence(&said);
            let fact = |name: &str| said.get(name).map_or("unknown", String::as_str);
            let needs = [
                (kept.aof, "appendonly yes", "aof_enabled", "CONFIG SET appendonly yes"),
                (
                    kept.noeviction,
                    "maxmemory-policy noeviction",
                    "maxmemory_policy",
                    "CONFIG SET maxmemory-policy noeviction",
                ),
            ];
            let lacks = needs.iter().filter(|(there, ..)| !there).map(|(_, needed, name, fix)| {
                format!("it needs {needed} ({name} is {}): redis-cli {fix}", fact(name))
            });
            StoreError::NotDurable(format!(
                "PostgreSQL is away, and {} may forget what it is told: {}; accept_volatile: true \
                 takes tasks in all the same",
                link.location(),
                lacks.collect::<Vec<_>>().join("; ")
            ))
        })
    }
}

/// Safe on this node's disk when it returns.
async fn write_down(spool: &Arc<Mutex<Spool>>, texts: Vec<String>) -> Result<()> {
    let spool = spool.clone();
    let written = tokio::task::spawn_blocking(move || {
        spool.lock().unwrap_or_else(PoisonError::into_inner).append(&texts)
    });
    let written = written.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            StoreError::Full(format!("the spool of this node: {error}"))
        }
        _ => StoreError::Unavailable(format!("the spool of this node: {error}")),
    })
}

/// What it says of itself; what it does not say counts as no.
pub(super) fn persistence(said: &BTreeMap<String, String>) -> Persistence {
    let is = |name: &str, value: &str| said.get(name).is_some_and(|said| said == value);
    Persistence {
        aof: is("aof_enabled", "1") && is("aof_last_write_status", "ok"),
        noeviction: is("maxmemory_policy", "noeviction"),
    }
}

/// `WAITAOF` came with Redis 7.2, and Valkey has always had it.
fn tells_of_disk(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    version.starts_with("valkey")
        || (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (7, 2)
}

fn away(link: &Link, why: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("PostgreSQL is away, and {}: {why}", link.location()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_can_say_what_is_on_its_disk() {
        for version in ["7.2.0", "7.10.1", "8.0", "valkey 7.2.5"] {
            assert!(tells_of_disk(version), "{version}");
        }
        for version in ["", "6.2.14", "7.0.15", "x"] {
            assert!(!tells_of_disk(version), "{version}");
        }
    }

    #[test]
    fn what_redis_does_not_say_counts_as_no() {
        let said = |text: &str| persistence(&facts(text));
        let good = "aof_enabled:1\r\naof_last_write_status:ok\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(said(good), Persistence { aof: true, noeviction: true });
        for line in good.lines() {
            let less = good.replace(line, "");
            let Persistence { aof, noeviction } = said(&less);
            assert!(!(aof && noeviction), "without {line}");
        }
    }
}
