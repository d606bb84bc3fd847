//! Other clocks: `faketime` shows a process a wall clock of our choosing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;

pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Now, in seconds since 1970.
pub fn unix_now() -> f64 {
    unix(Timestamp::now())
}

pub fn unix(time: Timestamp) -> f64 {
    time.as_microsecond() as f64 / 1e6
}

/// A wall clock that can be set while processes look at it. Their monotonic clocks stay true.
pub struct FakeClock {
    file: PathBuf,
}

impl FakeClock {
    /// `spec` is what `faketime` takes: `+2h`, `-30d`, `@2026-12-01 03:59:50 x0.9`.
    pub fn new(folder: &Path, spec: &str) -> FakeClock {
        let clock = FakeClock { file: folder.join("clock") };
        clock.set(spec);
        clock
    }

    pub fn set(&self, spec: &str) {
        let next = self.file.with_extension("next");
        fs::write(&next, spec).expect("the clock file can be written");
        fs::rename(&next, &self.file).expect("the clock file can be replaced");
    }

    /// The environment of a process that lives by this clock.
    pub fn environment(&self) -> Vec<(String, String)> {
        let pairs = [
            ("LD_PRELOAD", preload()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("TZ", "UTC".to_owned()),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Where the library lies, told by the command that belongs to it.
fn preload() -> String {
    let output = Command::new("faketime")
        .args(["-m", "-f", "+0", "env"])
        .output()
        .expect("faketime is installed (Debian package faketime)");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("LD_PRELOAD=").map(str::to_owned))
        .expect("faketime names its library")
}
