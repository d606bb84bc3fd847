//! What `/proc` shows of the processes of a test, and signals to them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// `R`, `S`, `T`, …; the dead that nobody has waited for (`Z`) are not listed.
    pub state: char,
    pub exe: PathBuf,
    pub cwd: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub resident_bytes: u64,
}

impl Process {
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn command_line(&self) -> String {
        self.arguments.join(" ")
    }
}

/// Every process that is alive and that we may look into.
pub fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("/proc can be read");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(of)
        .collect()
}

pub fn of(pid: u32) -> Option<Process> {
    let folder = Path::new("/proc").join(pid.to_string());
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The name stands in brackets and may hold spaces and brackets itself.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    if matches!(state, 'Z' | 'X') {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let resident_pages: u64 = fields.nth(19)?.parse().ok()?;
    let words = |file: &str| -> Vec<String> {
        let bytes = fs::read(folder.join(file)).unwrap_or_default();
        bytes
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(|word| OsStr::from_bytes(word).to_string_lossy().into_owned())
            .collect()
    };
    let environment = words("environ")
        .into_iter()
        .filter_map(|pair| pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())))
        .collect();
    Some(Process {
        pid,
        parent,
        state,
        exe: fs::read_link(folder.join("exe")).unwrap_or_default(),
        cwd: fs::read_link(folder.join("cwd")).unwrap_or_default(),
        arguments: words("cmdline"),
        environment,
        resident_bytes: resident_pages * 4096,
    })
}

pub fn alive(pid: u32) -> bool {
    of(pid).is_some()
}

/// Everything below `root` in the process tree.
pub fn descendants(root: u32) -> Vec<Process> {
    let everything = all();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for process in everything.iter().filter(|process| process.parent == parent) {
            parents.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

/// What works for tasks of the folder `home`: whatever lives in it, the binary under test apart.
pub fn workers(home: &Path) -> Vec<Process> {
    let binary = OsStr::new("matins");
    all()
        .into_iter()
        .filter(|process| process.cwd.starts_with(home))
        .filter(|process| !process.exe.file_name().is_some_and(|name| is_named(name, binary)))
        .collect()
}

/// A file that was replaced or removed shows as `name (deleted)`.
fn is_named(name: &OsStr, wanted: &OsStr) -> bool {
    let name = name.as_bytes();
    name.strip_suffix(b" (deleted)").unwrap_or(name) == wanted.as_bytes()
}

/// Sends a signal; whether there was somebody to send it to.
pub fn signal(pid: u32, signal: Signal) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| kill_process(pid, signal).is_ok())
}
