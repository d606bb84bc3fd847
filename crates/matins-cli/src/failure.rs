//! How a command fails: what is said, and the exit code.

use std::fmt::Display;

use crate::config::ConfigError;

/// The documented exit codes. `run` has its own (see `commands/run.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    /// Wrong usage or input.
    Usage = 2,
    NotFound = 3,
    /// The store or server cannot be reached.
    Unreachable = 4,
}

/// Why a command ends without having done what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Absent when everything has been said already.
    pub(crate) message: Option<String>,
    pub(crate) hint: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { code: exit as u8, message: Some(message.into()), hint: None }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unreachable, message)
    }

    /// The answer itself says it: a task that failed, a child's exit code.
    pub(crate) fn silent(code: u8) -> Self {
        Self { code, message: None, hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What a reader that went away means: nothing more to do, nothing wrong.
    pub(crate) fn from_write(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::silent(Exit::Done as u8),
            _ => Self::failed(format!("cannot write the answer: {error}")),
        }
    }

    pub(crate) fn io(what: impl Display, error: &std::io::Error) -> Self {
        Self::failed(format!("{what}: {error}"))
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}
