//! What the database answered last, for the time when it is away; also in a file of the node, so
//! that a process can begin then.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use matins_core::store::{PoolChange, Settings, Stats, Token, Worker};
use matins_core::task::Name;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// In memory.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) settings: Mutex<Option<Settings>>,
    pub(super) stats: Mutex<Option<Stats>>,
    pub(super) workers: Mutex<Option<Vec<Worker>>>,
    pub(super) tokens: Mutex<Option<Vec<Token>>>,
}

/// The right of a member to work without the database, for the process that comes after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Membership {
    pub(super) id: Uuid,
    pub(super) generation: u64,
    pub(super) redis: String,
    pub(super) episode: u64,
    /// Until when, on the clock of that boot of the machine.
    pub(super) until_ns: u64,
    pub(super) boot: String,
    /// Of its runs.
    pub(super) lease_ns: u64,
    pub(super) fence_floor: u64,
}

/// In the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) store_id: Uuid,
    /// Where the database is, without secrets: the file says nothing about another one.
    pub(super) location: String,
    pub(super) settings: Settings,
    /// Without their secrets, which nobody has.
    pub(super) tokens: Vec<Token>,
    pub(super) member: Option<Membership>,
    /// The folder it was written in: device and inode.
    place: (u64, u64),
}

/// The file beside a spool.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    written: Mutex<Option<Kept>>,
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    pub(super) fn of(kept: &Kept) -> Self {
        Self {
            settings: Mutex::new(Some(kept.settings.clone())),
            stats: Mutex::new(Some(Stats::default())),
            workers: Mutex::new(Some(Vec::new())),
            tokens: Mutex::new(Some(kept.tokens.clone())),
        }
    }

    /// A pool was changed without the database.
    pub(super) fn heed_pool(&self, pool: &Name, change: &PoolChange) {
        if let Some(settings) = &mut *locked(&self.settings) {
            settings.pools.entry(pool.clone()).or_default().apply(change);
        }
    }

    pub(super) fn keep(
        &self,
        store_id: Uuid,
        location: &str,
        member: Option<Membership>,
    ) -> Option<Kept> {
        let settings = locked(&self.settings).clone()?;
        let tokens = locked(&self.tokens).clone()?;
        Some(Kept {
            store_id,
            location: location.to_owned(),
            settings,
            tokens,
            member,
            place: (0, 0),
        })
    }
}

impl File {
    pub(super) fn beside(spool: &Path) -> Self {
        Self { path: spool.with_extension("known.json"), written: Mutex::default() }
    }

    fn place(&self) -> (u64, u64) {
        let folder = self.path.parent().and_then(|folder| std::fs::metadata(folder).ok());
        folder.map_or((0, 0), |folder| (folder.dev(), folder.ino()))
    }

    /// `None`: there is none that can be read.
    pub(super) fn read(&self) -> Option<Kept> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let kept: Result<Kept, _> = serde_json::from_str(&text);
        let kept = kept
            .inspect_err(|error| tracing::warn!(%error, path = %self.path.display(), "unreadable"));
        let mut kept = kept.ok()?;
        if kept.place != self.place() {
            // A copy: the member that it was may be alive in the folder it comes from.
            kept.member = None;
        }
        Some(kept)
    }

    /// Writes it when it is not what was written last.
    pub(super) fn write(&self, kept: Kept) -> std::io::Result<()> {
        let kept = Kept { place: self.place(), ..kept };
        let mut written = locked(&self.written);
        if written.as_ref() == Some(&kept) {
            return Ok(());
        }
        let draft = self.path.with_extension("draft");
        let mut options = std::fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&draft)?;
        file.write_all(serde_json::to_string(&kept)?.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, &self.path)?;
        *written = Some(kept);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_no_successor() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = File::beside(&here.path().join("n.journal"));
        let member = Membership {
            id: Uuid::from_u128(1),
            generation: 2,
            redis: "r".to_owned(),
            episode: 3,
            until_ns: 4,
            boot: "b".to_owned(),
            lease_ns: 5,
            fence_floor: 6,
        };
        let known = Known {
            settings: Mutex::new(Some(Settings::default())),
            tokens: Mutex::new(Some(Vec::new())),
            ..Known::default()
        };
        let kept = known.keep(Uuid::from_u128(7), "there", Some(member.clone())).unwrap();
        file.write(kept).unwrap();
        assert_eq!(file.read().unwrap().member, Some(member));
        let name = "n.known.json";
        std::fs::copy(here.path().join(name), there.path().join(name)).unwrap();
        let copy = File::beside(&there.path().join("n.journal")).read().unwrap();
        assert_eq!((copy.member, copy.store_id), (None, Uuid::from_u128(7)));
    }
}
