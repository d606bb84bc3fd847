//! The processes of this host: who descends from whom, and signals that reach the one meant.
//!
//! A process id alone is never trusted between looking and signalling: the id may have been
//! given to a stranger meanwhile. On Linux a pidfd is opened first and the process behind it
//! compared (by start time) with the one seen.

use rustix::process::Signal;

/// Signals every descendant of this process; returns how many there were.
///
/// `hard` adds a signal to whole process groups, which a group that forks faster than it can be
/// listed does not escape.
pub(super) fn signal_descendants(main: i32, signal: Signal, hard: bool) -> usize {
    platform::signal_descendants(main, signal, hard)
}

/// Whether the command's process group has members although this process has no child left.
///
/// Never on Linux: a subreaper without children has no descendants either.
pub(super) fn has_strays(main: i32) -> bool {
    platform::has_strays(main)
}

#[cfg(target_os = "linux")]
pub(super) use platform::{Process, Snapshot};

#[cfg(target_os = "linux")]
mod platform {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use rustix::process::{
        Pid, PidfdFlags, Signal, getpid, kill_process_group, pidfd_open, pidfd_send_signal,
    };

    /// A process as `/proc/PID/stat` shows it.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Process {
        pub(crate) pid: i32,
        pub(crate) parent: i32,
        pub(crate) group: i32,
        pub(crate) session: i32,
        pub(crate) zombie: bool,
        /// Clock ticks since boot; with the id it names one process for ever.
        started: u64,
    }

    impl Process {
        pub(crate) fn read(pid: i32) -> Option<Self> {
            let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
            // The name in parentheses may itself hold parentheses, spaces and line ends.
            let name_end = stat.iter().rposition(|&byte| byte == b')')?;
            let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
            let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
            Some(Self {
                pid,
                zombie: matches!(*fields.first()?, "Z" | "X"),
                parent: fields.get(1)?.parse().ok()?,
                group: fields.get(2)?.parse().ok()?,
                session: fields.get(3)?.parse().ok()?,
                started: fields.get(19)?.parse().ok()?,
            })
        }

        /// Whether the signal was sent to exactly this process.
        pub(crate) fn signal(&self, signal: Signal) -> bool {
            let Some(pid) = Pid::from_raw(self.pid) else { return false };
            let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
            Self::read(self.pid).is_some_and(|now| now.started == self.started)
                && pidfd_send_signal(&pidfd, signal).is_ok()
        }
    }

    /// All processes at about one instant.
    pub(crate) struct Snapshot(pub(crate) Vec<Process>);

    impl Snapshot {
        pub(crate) fn take() -> Self {
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            Self(pids.filter_map(Process::read).collect())
        }

        /// The given processes and everything below them.
        pub(crate) fn closure(&self, roots: impl IntoIterator<Item = i32>) -> BTreeSet<i32> {
            let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
            for process in &self.0 {
                children.entry(process.parent).or_default().push(process.pid);
            }
            let mut open: Vec<i32> = roots.into_iter().collect();
            let mut found = BTreeSet::new();
            while let Some(pid) = open.pop() {
                if found.insert(pid) {
                    open.extend(children.get(&pid).into_iter().flatten());
                }
            }
            found
        }

        pub(crate) fn descendants(&self, ancestor: i32) -> impl Iterator<Item = &Process> {
            let below = self.closure([ancestor]);
            self.0.iter().filter(move |process| {
                process.pid != ancestor && !process.zombie && below.contains(&process.pid)
            })
        }
    }

    pub(super) fn has_strays(_main: i32) -> bool {
        false
    }

    pub(super) fn signal_descendants(_main: i32, signal: Signal, hard: bool) -> usize {
        let own = getpid().as_raw_nonzero().get();
        let snapshot = Snapshot::take();
        let mut count = 0;
        let mut groups = BTreeSet::new();
        for process in snapshot.descendants(own) {
            process.signal(signal);
            groups.insert(process.group);
            count += 1;
        }
        groups.remove(&own);
        for group in groups.into_iter().filter_map(Pid::from_raw).filter(|_| hard) {
            // Gone already is what was wanted.
            let _ = kill_process_group(group, signal);
        }
        count
    }
}

/// Elsewhere only the command's process group is known: a process that left it is not reached.
#[cfg(not(target_os = "linux"))]
mod platform {
    use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

    pub(super) fn has_strays(main: i32) -> bool {
        Pid::from_raw(main).is_some_and(|group| test_kill_process_group(group).is_ok())
    }

    pub(super) fn signal_descendants(main: i32, signal: Signal, _hard: bool) -> usize {
        let group = Pid::from_raw(main);
        usize::from(group.is_some_and(|group| kill_process_group(group, signal).is_ok()))
    }
}
