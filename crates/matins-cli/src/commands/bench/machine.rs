//! What the figures were measured on.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::failure::{Failure, Result};

#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) time: String,
    pub(super) cores: usize,
    pub(super) cpu: String,
    pub(super) memory_mib: Option<u64>,
    pub(super) kernel: String,
    pub(super) file_system: String,
    /// One-minute load average before the run: what else the cores were doing.
    pub(super) load: Option<f64>,
    pub(super) version: &'static str,
    /// An unoptimised build measures nothing worth knowing.
    pub(super) optimized: bool,
    pub(super) sqlite: &'static str,
    /// The server that was measured, when it was one.
    pub(super) postgres: Option<String>,
    /// The Redis in front of it.
    pub(super) redis: Option<String>,
}

impl Machine {
    pub(super) fn look(folder: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpu = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown);
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kib = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            cpu,
            memory_mib: kib.map(|kib| kib >> 10),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            file_system: file_system(folder, &read("/proc/self/mountinfo")),
            load: read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()),
            version: env!("CARGO_PKG_VERSION"),
            optimized: !cfg!(debug_assertions),
            sqlite: matins_store::sqlite::rusqlite::version(),
            postgres: None,
            redis: None,
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// `name : value` of a file in /proc.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Type of the mount that a folder lies in: the last one with the longest path.
fn file_system(folder: &Path, mounts: &str) -> String {
    let Ok(folder) = folder.canonicalize() else { return unknown() };
    let mounted = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let point = Path::new(place.split(' ').nth(4)?);
        let depth = point.components().count();
        folder.starts_with(point).then(|| (depth, kind.split(' ').next().map(str::to_owned)))
    };
    let found = mounts.lines().filter_map(mounted).max_by_key(|(depth, _)| *depth);
    found.and_then(|(_, kind)| kind).unwrap_or_else(unknown)
}

/// One page as large as SQLite writes them, with its header in the log.
const PAGE: usize = 4_096 + 24;
/// Size of the probe's file; what is there already is overwritten, as in a log that is reused.
const PAGES: u64 = 256;

/// Times single writes to the disk: what every commit has to wait for.
pub(super) struct Fsync {
    file: File,
    next: u64,
}

impl Fsync {
    pub(super) fn new(path: &Path) -> Result<Self> {
        let failed = |error: &std::io::Error| Failure::io("the fsync probe", error);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.open(path).map_err(|error| failed(&error))?;
        let filled = file.write_all_at(&vec![1; PAGE * PAGES as usize], 0);
        filled.and_then(|()| file.sync_all()).map_err(|error| failed(&error))?;
        Ok(Self { file, next: 0 })
    }

    pub(super) fn one(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        let at = (self.next % PAGES) * PAGE as u64;
        self.next += 1;
        let written = self.file.write_all_at(&[2; PAGE], at).and_then(|()| self.file.sync_data());
        written.map_err(|error| Failure::io("the fsync probe", &error))?;
        Ok(begin.elapsed())
    }

    /// Median of `n`, in milliseconds.
    pub(super) fn median(&mut self, n: usize) -> Result<f64> {
        let times = (0..n).map(|_| self.one().map(super::figures::ms));
        Ok(super::figures::median(&times.collect::<Result<Vec<f64>>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = "\
            1 0 8:1 / / rw - ext4 /dev/a rw\n\
            2 1 8:2 / /proc rw - proc proc rw\n";
        assert_eq!(file_system(Path::new("/proc/self/fd"), mounts), "proc");
        assert_eq!(file_system(Path::new("/"), mounts), "ext4");
        assert_eq!(file_system(Path::new("/"), ""), "unknown");
    }
}
