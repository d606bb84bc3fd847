//! Ending what a dead runner left behind.
//!
//! Four traces lead to such processes: the run's control group, the session the runner opened,
//! the mark in their environment, and, when Matins itself adopts orphans, being its child. A
//! process reached by any of them is killed with everything below it.

use super::spec::RunId;

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Processes that were there and are gone.
    pub killed: usize,
    /// Processes that outlived SIGKILL for seconds, or belong to somebody else.
    pub survivors: usize,
}

/// Lets processes whose runner was killed become children of this process, where
/// [`super::Running::wait`] finds even those that left their session and cleared their
/// environment.
///
/// Only for a program whose children are runners and nothing else: whatever else becomes a child
/// of it is taken for such an orphan and killed when a runner is lost.
pub fn adopt_orphans() -> std::io::Result<()> {
    platform::adopt_orphans()
}

/// Kills, at the start of a node, the processes of its dead predecessor's runs: all that carry
/// the mark of a run for which `is_left_over` holds. Blocks for as long as that takes.
pub fn sweep_leftovers(is_left_over: impl Fn(&RunId) -> bool) -> Swept {
    platform::sweep_leftovers(is_left_over)
}

pub(super) use platform::{Children, kill_run};

#[cfg(target_os = "linux")]
mod platform {
    use std::collections::BTreeSet;
    use std::fs;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, waitpid};

    use super::super::cgroup::Cgroup;
    use super::super::spec::{RUN_MARK, RunId};
    use super::super::tree::{Process, Snapshot};
    use super::Swept;

    /// How long a process may take to die of SIGKILL before it is reported as a survivor.
    const PATIENCE: Duration = Duration::from_secs(5);
    /// One empty look proves nothing: a process just being executed shows no environment.
    const EMPTY_LOOKS: usize = 2;

    /// The children this process knows of. Process-wide because children are.
    static CHILDREN: Mutex<Children> =
        Mutex::new(Children { adopting: false, known: BTreeSet::new() });

    pub(crate) struct Children {
        adopting: bool,
        known: BTreeSet<i32>,
    }

    impl Children {
        /// Held while a runner is started: a child that is not known yet is no orphan.
        pub(crate) fn lock() -> MutexGuard<'static, Self> {
            CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn insert(&mut self, pid: i32) {
            self.known.insert(pid);
        }

        pub(crate) fn remove(&mut self, pid: i32) {
            self.known.remove(&pid);
        }
    }

    pub(super) fn adopt_orphans() -> std::io::Result<()> {
        set_child_subreaper(Some(getpid()))?;
        Children::lock().adopting = true;
        Ok(())
    }

    pub(crate) fn kill_run(run: &RunId, runner: i32) -> Swept {
        let group = Cgroup::find(run);
        let mark = format!("{RUN_MARK}={run}").into_bytes();
        let swept = kill_all(group.as_ref(), |process| {
            process.session == runner || has_variable(process.pid, |entry| entry == mark)
        });
        discard(group);
        swept
    }

    pub(super) fn sweep_leftovers(is_left_over: impl Fn(&RunId) -> bool) -> Swept {
        let mut total = Swept::default();
        for (run, group) in Cgroup::all() {
            if is_left_over(&run) {
                let swept = kill_all(Some(&group), |_| false);
                total.killed += swept.killed;
                discard(Some(group));
            }
        }
        let prefix = format!("{RUN_MARK}=").into_bytes();
        let marked = kill_all(None, |process| {
            has_variable(process.pid, |entry| {
                let run = entry.strip_prefix(prefix.as_slice()).map(String::from_utf8_lossy);
                run.and_then(|run| run.parse().ok()).is_some_and(|run| is_left_over(&run))
            })
        });
        Swept { killed: total.killed + marked.killed, survivors: marked.survivors }
    }

    fn discard(group: Option<Cgroup>) {
        // A zombie keeps a group alive for a moment.
        if let Some(group) = group {
            for pause in [0, 1, 5, 20, 100] {
                std::thread::sleep(Duration::from_millis(pause));
                if group.remove().is_ok() {
                    return;
                }
            }
        }
    }

    /// Kills, with everything below them, the processes selected, until none is found.
    fn kill_all(group: Option<&Cgroup>, selected: impl Fn(&Process) -> bool) -> Swept {
        let own = getpid().as_raw_nonzero().get();
        let started = Instant::now();
        let mut seen = BTreeSet::new();
        let mut empty_looks = 0;
        loop {
            let inside = group.map(Cgroup::pids).unwrap_or_default();
            if let Some(group) = group
                && !inside.is_empty()
            {
                group.kill();
            }
            let snapshot = Snapshot::take();
            let orphans = reap_orphans(own, &snapshot);
            let spared = lineage(own, &snapshot);
            let roots = snapshot.0.iter().filter(|process| {
                !spared.contains(&process.pid)
                    && (inside.contains(&process.pid)
                        || orphans.contains(&process.pid)
                        || selected(process))
            });
            let doomed = snapshot.closure(roots.map(|process| process.pid));
            let alive: Vec<&Process> = snapshot
                .0
                .iter()
                .filter(|process| !process.zombie && doomed.contains(&process.pid))
                .filter(|process| !spared.contains(&process.pid))
                .collect();
            empty_looks = if alive.is_empty() { empty_looks + 1 } else { 0 };
            let patience_is_over = started.elapsed() > PATIENCE;
            if empty_looks == EMPTY_LOOKS || patience_is_over {
                let survivors = alive.len();
                return Swept { killed: seen.len() - survivors, survivors };
            }
            for process in alive {
                process.signal(Signal::KILL);
                seen.insert(process.pid);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// This process and its ancestors: a node that was itself started by a run must not fall
    /// victim to its own sweep.
    fn lineage(own: i32, snapshot: &Snapshot) -> BTreeSet<i32> {
        let mut line = BTreeSet::new();
        let mut at = own;
        while line.insert(at)
            && let Some(process) = snapshot.0.iter().find(|process| process.pid == at)
        {
            at = process.parent;
        }
        line
    }

    /// The children of this process that are no runners, when it adopts; dead ones are reaped.
    fn reap_orphans(own: i32, snapshot: &Snapshot) -> BTreeSet<i32> {
        let mut children = Children::lock();
        if !children.adopting {
            return BTreeSet::new();
        }
        let current: BTreeSet<i32> = snapshot
            .0
            .iter()
            .filter(|process| process.parent == own)
            .map(|process| process.pid)
            .collect();
        // A runner whose `Running` was dropped is reaped elsewhere; its id may be another's soon.
        children.known.retain(|&pid| Process::read(pid).is_some_and(|now| now.parent == own));
        // The lock keeps new runners out, but one may have started after the snapshot.
        let orphans: BTreeSet<i32> = current.difference(&children.known).copied().collect();
        for process in snapshot.0.iter().filter(|process| process.zombie) {
            if orphans.contains(&process.pid) {
                let _ = waitpid(Pid::from_raw(process.pid), WaitOptions::NOHANG);
            }
        }
        orphans
    }

    fn has_variable(pid: i32, matches: impl Fn(&[u8]) -> bool) -> bool {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(matches)
    }
}

/// Without `/proc` nothing is found: the guarantee is weaker, as documented.
#[cfg(not(target_os = "linux"))]
mod platform {
    use super::super::spec::RunId;
    use super::Swept;

    pub(crate) struct Children;

    impl Children {
        pub(crate) fn lock() -> Self {
            Self
        }

        pub(crate) fn insert(&mut self, _pid: i32) {}

        pub(crate) fn remove(&mut self, _pid: i32) {}
    }

    pub(super) fn adopt_orphans() -> std::io::Result<()> {
        Ok(())
    }

    pub(crate) fn kill_run(_run: &RunId, runner: i32) -> Swept {
        use rustix::process::{Pid, Signal, kill_process_group};
        if let Some(group) = Pid::from_raw(runner) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        Swept::default()
    }

    pub(super) fn sweep_leftovers(_is_left_over: impl Fn(&RunId) -> bool) -> Swept {
        Swept::default()
    }
}
