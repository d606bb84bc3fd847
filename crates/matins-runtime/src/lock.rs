//! The lock of a node: held for as long as its process lives, released by the kernel when it
//! dies, however it dies.
//!
//! Whoever gets it knows that no predecessor of the same node lives, and may take over its
//! claims at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// An acquired lock; dropping it releases it.
#[derive(Debug)]
pub struct NodeLock {
    _file: File,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{path} is held by process {pid}", path = .path.display(), pid = .pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()))]
    Held { path: PathBuf, pid: Option<u32> },
    #[error("cannot lock {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl NodeLock {
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                return Err(LockError::Held {
                    path: path.to_owned(),
                    pid: text.trim().parse().ok(),
                });
            }
            Err(error) => return Err(failed(error.into())),
        }
        // The pid is for people; the lock itself is the kernel's.
        let written = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(file, "{}", std::process::id()));
        written.map_err(failed)?;
        Ok(Self { _file: file, path: path.to_owned() })
    }

    /// The process that holds the lock at `path`, if one does.
    pub fn holder(path: &Path) -> Option<u32> {
        let mut file = File::open(path).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => None,
            Err(_) => {
                let mut text = String::new();
                file.read_to_string(&mut text).ok()?;
                text.trim().parse().ok()
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_holder_is_told_the_first_ones_pid() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.lock");
        let lock = NodeLock::acquire(&path).unwrap();
        let Err(LockError::Held { pid, .. }) = NodeLock::acquire(&path) else { panic!() };
        assert_eq!(pid, Some(std::process::id()));
        assert_eq!(NodeLock::holder(&path), Some(std::process::id()));
        drop(lock);
        assert_eq!(NodeLock::holder(&path), None);
        NodeLock::acquire(&path).unwrap();
    }
}
