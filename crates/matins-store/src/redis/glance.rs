//! A look at Redis alone, for whoever watches or examines it: no database has to answer.

use std::collections::BTreeMap;

use matins_core::store::{HEARTBEAT, Result, StoreError};
use tokio::time::timeout;
use uuid::Uuid;

use super::address::Address;
use super::link::{Connection, Link, Times, facts};

type Answer<T> = std::result::Result<redis::RedisResult<T>, tokio::time::error::Elapsed>;

/// A line that only reads.
pub struct Glance {
    link: Link,
    line: Option<Connection>,
}

impl std::fmt::Debug for Glance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Glance").field("location", &self.link.location()).finish_non_exhaustive()
    }
}

impl Glance {
    /// Connects with the first question.
    pub fn new(address: &str, prefix: &str) -> Result<Self> {
        let address = Address::parse(address)?;
        Ok(Self { link: Link::new(address, prefix, Uuid::nil(), Times::default()), line: None })
    }

    /// When a scheduler last said that its loops turn, as it wrote it; `None`: not for long.
    pub async fn heartbeat(&mut self) -> Result<Option<String>> {
        let mut line = self.line().await?;
        let mut read = redis::cmd("GET");
        read.arg(self.link.key(HEARTBEAT));
        let read = timeout(self.link.times.background, line.command(&read)).await;
        self.judge(line, read)
    }

    /// A part of what it says of itself.
    pub async fn info(&mut self, section: &str) -> Result<BTreeMap<String, String>> {
        let mut line = self.line().await?;
        let mut script = self.link.scripts.info.prepare_invoke();
        script.key(self.link.key("store_id")).arg(section);
        let read = timeout(self.link.times.background, line.script::<String>(&script)).await;
        Ok(facts(&self.judge(line, read)?))
    }

    async fn line(&mut self) -> Result<Connection> {
        if let Some(line) = self.line.take() {
            return Ok(line);
        }
        self.link.another().await.map_err(|error| self.away(&error))
    }

    /// A line that gave an answer is used again.
    fn judge<T>(&mut self, line: Connection, read: Answer<T>) -> Result<T> {
        match read {
            Ok(Ok(answer)) => {
                self.line = Some(line);
                Ok(answer)
            }
            Ok(Err(error)) => Err(self.away(&error)),
            Err(late) => Err(self.away(&late)),
        }
    }

    fn away(&self, error: &dyn std::fmt::Display) -> StoreError {
        StoreError::Unavailable(format!("{}: {error}", self.link.location()))
    }
}
