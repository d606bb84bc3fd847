//! The lock of a node: held for as long as its process lives, released by the kernel when it
//! dies, however it dies.
//!
//! Whoever gets it knows that no predecessor of the same node lives, and may take over its
//! claims at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    /// Waits for what only looks like a holder: a child of a killed server between fork and
    /// exec, or somebody who asks who holds the lock.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let began = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let pid = recorded(&mut file);
                    let patience = match pid.is_some_and(is_alive) {
                        true => PATIENCE,
                        false => GHOST_PATIENCE,
                    };
                    if began.elapsed() > patience {
                        return Err(LockError::Held { path: path.to_owned(), pid });
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(failed(error.into())),
            }
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
            Err(_) => recorded(&mut file),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// How long a lock is waited for whose holder lives, as far as one can tell: it may be dying.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long a lock without a live holder is waited for.
const GHOST_PATIENCE: Duration = Duration::from_secs(5);

/// The process that wrote itself into the file.
fn recorded(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let found = pid.map(rustix::process::test_kill_process);
    // A process of somebody else is there, too.
    matches!(found, Some(Ok(()) | Err(rustix::io::Errno::PERM)))
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
