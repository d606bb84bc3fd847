//! What was journalled goes into PostgreSQL: the spool of this node, and the stream of all.

use jiff::Timestamp;
use matins_core::outage::{Change, Entry};
use matins_core::store::{Result, StoreError};
use matins_core::task::TaskId;

use super::super::spool::READ;
use super::Outage;
use crate::postgres::prune::ENTRIES_KEPT;

/// Entries of one transaction.
const STEP: usize = 500;

impl Outage {
    /// What a start waits for, without insisting.
    pub(in crate::redis) async fn replay_soon(&self) {
        if let Err(error) = self.replay().await {
            tracing::warn!(%error, "the journal could not be replayed; trying on");
        }
    }

    /// Everything that this node can see now. What comes in meanwhile is for the next time: it may
    /// come in as fast as it is replayed.
    pub(in crate::redis) async fn replay(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.replay_spool().await?;
        self.replay_stream().await
    }

    async fn replay_spool(&self) -> Result<()> {
        let failed = |error: std::io::Error| {
            StoreError::Unavailable(format!("the spool of this node: {error}"))
        };
        let (mut from, end) = (0, self.spool().end());
        while from < end {
            let read = self.spool().read(from, READ).map_err(failed)?;
            if read.texts.is_empty() {
                let path = self.spool().tear(from).map_err(failed)?;
                tracing::error!(kept = %path.display(), "the spool was damaged: its end is no entry");
                break;
            }
            for texts in read.texts.chunks(STEP) {
                for (text, why) in self.apply(texts).await? {
                    let path = self.spool().put_aside(text).map_err(failed)?;
                    tracing::error!(%why, kept = %path.display(), "an entry of the spool is refused");
                }
            }
            tracing::info!(entries = read.texts.len(), "entries of the spool are replayed");
            from = read.end;
            // Another time those that stay are passed over.
            self.spool().forget(from).map_err(failed)?;
        }
        Ok(())
    }

    async fn replay_stream(&self) -> Result<()> {
        let limit = self.link.times.background;
        let mut last = redis::cmd("XREVRANGE");
        last.arg(self.link.key("journal")).arg("+").arg("-").arg("COUNT").arg(1);
        // Whoever sees Redis does it.
        let Ok(last) = self.link.command::<Vec<Streamed>>(limit, &last).await else {
            return Ok(());
        };
        let Some((last, _)) = last.into_iter().next() else { return Ok(()) };
        loop {
            let mut range = redis::cmd("XRANGE");
            range.arg(self.link.key("journal")).arg("-").arg(&last).arg("COUNT").arg(STEP);
            let Ok(found) = self.link.command::<Vec<Streamed>>(limit, &range).await else {
                return Ok(());
            };
            if found.is_empty() || !self.replay_streamed(&found).await? {
                return Ok(());
            }
            tracing::info!(entries = found.len(), "entries of the stream are replayed");
        }
    }

    /// `false`: Redis does not know that they are.
    async fn replay_streamed(&self, found: &[Streamed]) -> Result<bool> {
        let limit = self.link.times.background;
        let texts: Vec<String> = found.iter().map(|(_, fields)| text(fields)).collect();
        for (text, why) in self.apply(&texts).await? {
            let key = self.link.key("journal:refused");
            tracing::error!(%why, key, "an entry of the stream is refused, and kept there");
            let mut keep = redis::cmd("RPUSH");
            if self.link.command::<i64>(limit, keep.arg(key).arg(text)).await.is_err() {
                return Ok(false);
            }
        }
        let mut script = self.link.scripts.journalled.prepare_invoke();
        script.key(self.link.key("journal")).key(self.link.key("journal:tasks"));
        for ((place, _), text) in found.iter().zip(&texts) {
            let entry = self.journal.seal.open(text).ok();
            let id = entry.and_then(|entry| match entry.change {
                Change::Enqueue(task) => Some(task.id.to_string()),
                _ => None,
            });
            script.arg(place).arg(id.unwrap_or_default());
        }
        Ok(self.link.script::<u64>(limit, &script).await.is_ok())
    }

    /// Writes entries into PostgreSQL. Answers those that cannot be, and why.
    async fn apply<'t>(&self, texts: &'t [String]) -> Result<Vec<(&'t str, String)>> {
        let mut refused = Vec::new();
        let mut entries: Vec<(&str, Entry)> = Vec::new();
        for text in texts {
            match self.journal.seal.open(text) {
                Ok(entry) if is_forgotten(&entry) => {
                    let why = "it is so old that nobody knows whether it was applied";
                    refused.push((&**text, why.to_owned()));
                }
                Ok(entry) => entries.push((text, entry)),
                Err(error) => refused.push((text, error.to_string())),
            }
        }
        let all: Vec<Entry> = entries.iter().map(|(_, entry)| entry.clone()).collect();
        match self.store.replay(&all).await {
            Ok(came_in) => self.came_in(&came_in),
            Err(error) if error.is_transient() => return Err(error),
            // One that it will not have must not hold up the others.
            Err(_) => {
                for (text, entry) in entries {
                    match self.store.replay(std::slice::from_ref(&entry)).await {
                        Ok(came_in) => self.came_in(&came_in),
                        Err(error) if error.is_transient() => return Err(error),
                        Err(error) => refused.push((text, error.to_string())),
                    }
                }
            }
        }
        Ok(refused)
    }

    fn came_in(&self, ids: &[TaskId]) {
        if !ids.is_empty() {
            self.replayed.notify_waiters();
        }
    }
}

/// An entry of the stream: its place, and fields with their values. Anybody may have written it.
type Streamed = (String, Vec<(Vec<u8>, Vec<u8>)>);

fn text(fields: &[(Vec<u8>, Vec<u8>)]) -> String {
    let entry = fields.iter().find(|(name, _)| name == b"entry");
    entry.map(|(_, text)| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
}

fn is_forgotten(entry: &Entry) -> bool {
    let age = Timestamp::now().duration_since(entry.at);
    age.unsigned_abs() >= ENTRIES_KEPT && age.is_positive()
}
