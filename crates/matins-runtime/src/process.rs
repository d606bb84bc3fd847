//! Running other programs: every command starts under a small *runner* process that owns the
//! command's whole tree and ends it when its time is over.
//!
//! ```text
//!  Matins ──pipe──▶ runner ──▶ command ──▶ … the tree, however it forks
//!         spec, stdin          stdout, stderr: always drained, kept within bounds
//!         extend, cancel       deadlines: timeout, lease, by the runner's own clock
//!         (closed: Matins died)
//!         ◀──pipe── live output, and one report when the tree is empty
//! ```
//!
//! Why a process of its own: only a *child subreaper* sees grandchildren that called `setsid`
//! or were forked twice, and only something that outlives Matins can end them when Matins is
//! killed. The runner is this same executable, started again with [`runner::HIDDEN_WORD`].
//!
//! What may fail, and what then ends the tree:
//!
//! | event | who acts |
//! |---|---|
//! | timeout, cancel, lease about to lapse | runner: TERM, grace, KILL, until nothing is left |
//! | the command ended, children of it did not | runner: TERM, half a second, KILL |
//! | Matins killed | runner: its pipe closes, then the same ladder |
//! | runner and Matins both stopped past a deadline | runner, first thing when it wakes: KILL |
//! | runner killed by the task | Matins: sweep by cgroup, session, mark and adoption |
//! | runner stopped by the task | Matins: kills the runner when the limit has passed, sweeps |
//! | both killed | the next start: [`sweep_leftovers`] by the mark in the environment |
//!
//! This module must never put a secret into an argument vector or into a `Debug` output, block
//! a child on its output, or let the memory it uses depend on what a child writes.

mod capture;
#[cfg(target_os = "linux")]
mod cgroup;
mod clock;
mod mask;
pub mod runner;
mod running;
mod spec;
mod sweep;
mod tree;
mod user;
mod wire;

pub use capture::Captured;
pub use clock::Moment;
pub(crate) use mask::{Masker, with_parts};
pub use running::{Control, Runner, Running, SpawnError, Stream};
pub use spec::{
    CommandExit, CommandSpec, End, Lease, Program, ResultBytes, ResultFrom, RunId, SpecError,
    Status,
};
pub use sweep::{Swept, adopt_orphans, sweep_leftovers};
