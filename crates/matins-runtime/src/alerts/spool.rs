//! Alerts that the store cannot take, because they are about it or because no process lives that
//! could write: kept in a file of the node's folder until somebody delivers them.
//!
//! One alert is one line. A line cut short by a crash is dropped with a word in the log; nothing
//! else is.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use matins_core::alert::Alert;
use rustix::fs::{FlockOperation, flock};

/// Beyond this size nothing is added: a crash loop must not fill the disk.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub struct Spool {
    path: PathBuf,
}

impl Spool {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Adds an alert; it is on disk when this returns.
    pub fn add(&self, alert: &Alert) -> io::Result<()> {
        let mut file = self.open()?;
        if file.metadata()?.len() > BYTES_MAX {
            return Err(io::Error::other(format!("{} is full", self.path.display())));
        }
        let mut line = serde_json::to_vec(alert)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_data()
    }

    /// Hands every alert to `deliver`, oldest first, and forgets those that it took; the first one
    /// that it does not take, and all after it, stay.
    pub fn drain(&self, mut deliver: impl FnMut(&Alert) -> bool) -> io::Result<()> {
        if !self.path.exists() {
            return Ok(());
        }
        let mut file = self.open()?;
        let text = std::fs::read_to_string(&self.path)?;
        let mut rest = String::new();
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(alert) if rest.is_empty() && deliver(&alert) => {}
                Ok(_) => rest = format!("{rest}{line}\n"),
                Err(error) => tracing::error!(%error, line, "an alert in the spool is unreadable"),
            }
        }
        file.set_len(0)?;
        file.write_all(rest.as_bytes())?;
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use matins_core::alert::Rule;

    #[test]
    fn what_is_not_taken_stays_in_order_and_a_torn_line_costs_itself_alone() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::new(folder.path().join("alerts.spool"));
        spool.drain(|_| panic!("there is nothing")).unwrap();
        let alert = |n: u32| Alert::new(Rule::Restarted, n.to_string(), Timestamp::UNIX_EPOCH);
        for n in 0..4 {
            spool.add(&alert(n)).unwrap();
        }
        let mut file = OpenOptions::new().append(true).open(spool.path()).unwrap();
        file.write_all(b"{\"rule\":\"resta").unwrap();
        let mut seen = Vec::new();
        let take = |alert: &Alert, seen: &mut Vec<String>, most: usize| {
            seen.push(alert.subject.clone());
            seen.len() <= most
        };
        spool.drain(|alert| take(alert, &mut seen, 2)).unwrap();
        assert_eq!(seen, ["0", "1", "2"]);
        seen.clear();
        spool.drain(|alert| take(alert, &mut seen, 9)).unwrap();
        assert_eq!(seen, ["2", "3"]);
        spool.drain(|_| panic!("all were taken")).unwrap();
    }
}
