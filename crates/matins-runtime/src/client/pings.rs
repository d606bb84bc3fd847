//! Reports of jobs that others run, and what is expected of them by this node's file.

use matins_core::ping::{Expectation, Heard};
use matins_core::task::Name;

use super::{Client, Result};
use crate::error::ClientError;

/// A job of somebody else's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ping {
    pub name: Name,
    pub expected: Expectation,
    pub heard: Heard,
}

fn note(name: &str) -> String {
    format!("ping:{name}")
}

impl Client {
    /// A job says that it has run.
    pub async fn ping(&self, name: &str) -> Result<()> {
        if !self.rules().pings.contains_key(name) {
            return Err(ClientError::not_found("ping", name));
        }
        self.put_heard(name, Heard { at: self.now(), reported: true }).await
    }

    /// Every job that is expected to report, by name. One that never did is waited for from the
    /// first time that it is asked for here.
    pub async fn pings(&self) -> Result<Vec<Ping>> {
        let mut pings = Vec::new();
        for (name, expected) in &self.rules().pings {
            let known = self.inner.store.note(&note(name)).await?;
            let heard = match known.and_then(|text| serde_json::from_str(&text).ok()) {
                Some(heard) => heard,
                None => {
                    let heard = Heard { at: self.now(), reported: false };
                    self.put_heard(name, heard).await?;
                    heard
                }
            };
            pings.push(Ping { name: name.clone(), expected: *expected, heard });
        }
        Ok(pings)
    }

    async fn put_heard(&self, name: &str, heard: Heard) -> Result<()> {
        let text = serde_json::to_string(&heard).unwrap_or_default();
        Ok(self.wrote(self.inner.store.put_note(&note(name), &text).await)?)
    }
}
