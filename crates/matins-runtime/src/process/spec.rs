//! What to run and within which limits, and how it ended: the values that cross the pipe.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::capture::Captured;
use super::clock::Moment;

/// Variables a command inherits; all others of Matins' own environment stay with Matins.
const INHERITED: [&str; 8] = ["PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL"];

/// The variable that marks every process of a run.
pub(super) const RUN_MARK: &str = "MATINS_RUN";

/// One run of one command on one node; the mark by which its processes are found again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunId {
    pub node: String,
    pub id: Uuid,
}

impl RunId {
    pub fn new(node: impl Into<String>) -> Self {
        Self { node: node.into(), id: Uuid::now_v7() }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.id)
    }
}

impl FromStr for RunId {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let parts = text.rsplit_once('/');
        parts
            .and_then(|(node, id)| Some(Self { node: node.to_owned(), id: id.parse().ok()? }))
            .ok_or(SpecError::new("run", "expected NODE/UUID"))
    }
}

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What is executed.
#[derive(Clone, Serialize, Deserialize)]
pub enum Program {
    /// A program and its arguments, without a shell.
    Argv(Vec<OsString>),
    /// A text for `sh -c`.
    Shell(OsString),
}

/// Which part of a command's standard output is its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultFrom {
    #[default]
    LastJsonLine,
    Stdout,
    None,
}

/// The claim under which a command runs: it has ended before `deadline`, come what may.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Lease {
    pub deadline: Moment,
    /// Time between TERM and KILL when the lease is not renewed, taken from before the deadline.
    pub grace: Duration,
}

/// A command with everything that bounds it. Not `Debug`: it carries secrets.
#[derive(Clone, Serialize, Deserialize)]
pub struct CommandSpec {
    pub run: RunId,
    pub program: Program,
    /// What the command sees of Matins' own environment.
    pub inherited: Vec<(OsString, OsString)>,
    /// Added to that; a name given here wins.
    pub env: Vec<(OsString, OsString)>,
    pub cwd: Option<PathBuf>,
    /// Written to standard input, which is then closed. Travels in a frame of its own.
    #[serde(skip)]
    pub stdin: Vec<u8>,
    /// A name or a numeric id; needs root.
    pub user: Option<String>,
    pub nice: Option<i32>,
    /// Bytes.
    pub memory_max: Option<u64>,
    /// Processors: 1.5 is one and a half.
    pub cpu_max: Option<f64>,
    pub timeout: Option<Duration>,
    pub grace: Duration,
    pub lease: Option<Lease>,
    /// Bytes of output kept: the first quarter and the rest from the end.
    pub output_bytes: usize,
    pub result_from: ResultFrom,
    pub result_bytes: usize,
    /// Values never to appear in output, result or error text.
    pub secrets: Vec<String>,
}

impl CommandSpec {
    /// A spec with the documented defaults, no timeout and no lease.
    pub fn new(run: RunId, program: Program) -> Self {
        Self {
            run,
            program,
            inherited: inherited_environment(),
            env: Vec::new(),
            cwd: None,
            stdin: Vec::new(),
            user: None,
            nice: None,
            memory_max: None,
            cpu_max: None,
            timeout: None,
            grace: Duration::from_secs(10),
            lease: None,
            output_bytes: 64 << 10,
            result_from: ResultFrom::default(),
            result_bytes: 256 << 10,
            secrets: Vec::new(),
        }
    }

    /// Refuses what the operating system cannot express, naming the field.
    pub fn check(&self) -> Result<(), SpecError> {
        match &self.program {
            Program::Argv(argv) => {
                if argv.first().is_none_or(|program| program.is_empty()) {
                    return Err(SpecError::new("argv", "expected a program and its arguments"));
                }
                if argv.iter().any(|word| has_nul(word)) {
                    return Err(SpecError::new("argv", "must not contain a NUL character"));
                }
            }
            Program::Shell(text) if has_nul(text) => {
                return Err(SpecError::new("shell", "must not contain a NUL character"));
            }
            Program::Shell(text) if text.is_empty() => {
                return Err(SpecError::new("shell", "expected a command text"));
            }
            Program::Shell(_) => {}
        }
        for (name, value) in &self.env {
            if name.is_empty() || has_nul(name) || name.as_bytes().contains(&b'=') {
                let name = name.to_string_lossy();
                return Err(SpecError::new("env", format!("{name:?} is not a variable name")));
            }
            if has_nul(value) {
                let name = name.to_string_lossy();
                return Err(SpecError::new("env", format!("{name}: contains a NUL character")));
            }
        }
        if self.cwd.as_ref().is_some_and(|cwd| has_nul(cwd.as_os_str())) {
            return Err(SpecError::new("cwd", "must not contain a NUL character"));
        }
        if self.nice.is_some_and(|nice| !(-20..=19).contains(&nice)) {
            return Err(SpecError::new("nice", "expected a number from -20 to 19"));
        }
        if self.cpu_max.is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0) {
            return Err(SpecError::new("cpu_max", "expected a number of processors above 0"));
        }
        if self.memory_max == Some(0) {
            return Err(SpecError::new("memory_max", "expected a size above 0"));
        }
        Ok(())
    }
}

fn has_nul(text: &OsStr) -> bool {
    text.as_bytes().contains(&0)
}

/// The part of Matins' own environment that commands may see.
fn inherited_environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os()
        .filter(|(name, _)| {
            INHERITED.iter().any(|allowed| name == allowed) || name.as_bytes().starts_with(b"LC_")
        })
        .collect()
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SpecError {
    pub field: &'static str,
    pub message: String,
}

impl SpecError {
    fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }
}

/// How the command's own process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Code(i32),
    Signal(i32),
}

/// Why the run is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Exited(i32),
    /// By a signal that the runner did not send.
    Signaled(i32),
    TimedOut,
    Cancelled,
    LeaseLost,
    /// Killed, and memory is the likely reason.
    OomSuspected,
    /// `permanent`: it will not start tomorrow either, as when there is no such program.
    SpawnFailed {
        message: String,
        permanent: bool,
    },
    /// Matins is gone. Nobody is left to read it; it exists so that the runner can say it.
    ParentGone,
    /// The runner died without a report; Matins has ended what was left.
    RunnerLost,
}

/// The bytes a result is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResultBytes {
    pub bytes: Vec<u8>,
    /// Size of a result that was over the limit and is therefore not in `bytes`; else 0.
    pub dropped: u64,
}

/// The end of a run: its whole tree is gone, except for `survivors`.
#[derive(Debug, Clone)]
pub struct CommandExit {
    pub end: End,
    /// How the command's own process ended, where it is known.
    pub status: Option<Status>,
    pub output: Captured,
    pub result: ResultBytes,
    /// The last line of standard error: most programs say there what is wrong.
    pub complaint: Option<String>,
    pub duration: Duration,
    /// Limits that could not be honoured here, and why.
    pub warnings: Vec<String>,
    /// Processes that outlived SIGKILL for seconds (stuck in the kernel).
    pub survivors: usize,
}
