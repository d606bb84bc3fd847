//! The folder of a run: fresh, private, gone afterwards. And the line that says how far it is.

use std::fs;
use std::io::IsTerminal as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::machine::Fsync;
use crate::failure::{Failure, Result};
use crate::output::Output;

pub(super) struct Workbench {
    folder: PathBuf,
    progress: ProgressBar,
}

impl Workbench {
    /// In `dir`, else beside the data folder: on the file system that a server would use.
    pub(super) fn new(dir: Option<&Path>, data_dir: &Path, out: &Output) -> Result<Self> {
        let near = dir.map_or_else(|| existing_parent(data_dir), Path::to_owned);
        let folder = near.join(format!(".matins-bench-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| Failure::io(format!("cannot make {}", folder.display()), &error))?;
        let progress = match std::io::stderr().is_terminal() && !out.json {
            true => ProgressBar::new_spinner(),
            false => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
            progress.set_style(style);
        }
        progress.enable_steady_tick(Duration::from_millis(120));
        Ok(Self { folder, progress })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Says what is being measured.
    pub(super) fn says(&self, what: impl Into<String>) {
        self.progress.set_message(what.into());
    }

    pub(super) fn done(&self) {
        self.progress.finish_and_clear();
    }

    /// A folder for one store, so that its files can be removed together.
    pub(super) fn place(&self, name: &str) -> Result<Place> {
        let folder = self.folder.join(name);
        let made = fs::create_dir(&folder);
        made.map_err(|error| Failure::io(format!("cannot make {}", folder.display()), &error))?;
        Ok(Place(folder))
    }

    /// The disk's own speed, on a file of its own.
    pub(super) fn fsync(&self) -> Result<Fsync> {
        Fsync::new(&self.folder.join("fsync"))
    }
}

impl Drop for Workbench {
    fn drop(&mut self) {
        self.done();
        // Left behind, it is in nobody's way but the disk's; there is nobody to tell any more.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn existing_parent(data_dir: &Path) -> PathBuf {
    let parents = data_dir.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty());
    let mut there = parents.filter(|path| path.is_dir());
    there.next().map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// A folder within the run's, removed when it is done with: rounds must not fill the disk.
pub(super) struct Place(PathBuf);

impl Place {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join("bench.db")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
