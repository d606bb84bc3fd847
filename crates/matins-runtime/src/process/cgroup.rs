//! A control group for one run, where the system lets this process make one below its own.
//!
//! Nothing here is needed for correctness while the runner lives; the group makes the kill of a
//! tree one write, holds memory and processor limits, and keeps together what is left when the
//! runner is killed. Every failure therefore means "without", never an error.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::process::getpid;

use super::spec::RunId;
use super::tree::Snapshot;

const PREFIX: &str = "matins:";

pub(super) struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    pub(super) fn create(run: &RunId) -> io::Result<Self> {
        let parent = own_dir().ok_or(io::ErrorKind::NotFound)?;
        let dir = parent.join(dir_name(run));
        fs::create_dir(&dir)?;
        Ok(Self { dir })
    }

    /// Puts the whole tree below this process, which is the run's, into a group.
    pub(super) fn gather(run: &RunId) -> Option<Self> {
        const LOOKS_MAX: usize = 20;
        let group = Self::create(run).ok()?;
        let own = getpid().as_raw_nonzero().get();
        for _ in 0..LOOKS_MAX {
            let tree = Snapshot::take();
            let inside = group.pids();
            let outside: Vec<i32> = tree
                .descendants(own)
                .map(|process| process.pid)
                .filter(|pid| !inside.contains(pid))
                .collect();
            // An id may have gone to a stranger before it was written.
            let below = tree.closure([own]);
            for stranger in inside.iter().filter(|pid| !below.contains(pid)) {
                group.put_out(*stranger);
            }
            if outside.is_empty() {
                return Some(group);
            }
            if outside.iter().all(|&pid| group.add(pid).is_err()) {
                break;
            }
        }
        let _ = group.remove();
        // What forks too fast to be gathered may be inside in part; then the group stays.
        group.dir.is_dir().then_some(group)
    }

    fn put_out(&self, pid: i32) {
        if let Some(parent) = self.dir.parent() {
            let _ = fs::write(parent.join("cgroup.procs"), pid.to_string());
        }
    }

    /// The group of a run, when there is one.
    pub(super) fn find(run: &RunId) -> Option<Self> {
        let dir = own_dir()?.join(dir_name(run));
        dir.is_dir().then_some(Self { dir })
    }

    /// Every run's group that is still there.
    pub(super) fn all() -> Vec<(RunId, Self)> {
        let entries = own_dir().and_then(|own| fs::read_dir(own).ok()).into_iter().flatten();
        entries
            .flatten()
            .filter_map(|entry| Some((run_of(entry.file_name().to_str()?)?, entry.path())))
            .map(|(run, dir)| (run, Self { dir }))
            .collect()
    }

    pub(super) fn add(&self, pid: i32) -> io::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Runs `start` with this process inside, so that what it starts is inside from its birth.
    pub(super) fn around<T>(&self, start: impl FnOnce() -> T) -> T {
        let inside = self.add(0).is_ok();
        let started = start();
        if inside {
            self.put_out(0);
        }
        started
    }

    pub(super) fn set_memory_max(&self, bytes: u64) -> io::Result<()> {
        self.enable("memory");
        self.write("memory.max", &bytes.to_string())?;
        // Without this the limit is only reached after swap is used up.
        let _ = self.write("memory.swap.max", "0");
        Ok(())
    }

    pub(super) fn set_cpu_max(&self, cpus: f64) -> io::Result<()> {
        const PERIOD_MICROS: f64 = 100_000.0;
        self.enable("cpu");
        let quota = (cpus * PERIOD_MICROS).max(1000.0) as u64;
        self.write("cpu.max", &format!("{quota} {PERIOD_MICROS:.0}"))
    }

    /// Asks the parent to hand the controller down. Refused by the kernel while the parent holds
    /// processes of its own, unless it is the root; then the limit's file is missing.
    fn enable(&self, controller: &str) {
        if let Some(parent) = self.dir.parent() {
            let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Kills everything inside (Linux 5.14), atomically with regard to forks.
    pub(super) fn kill(&self) {
        let _ = self.write("cgroup.kill", "1");
    }

    pub(super) fn has_oom_kill(&self) -> bool {
        let events = fs::read_to_string(self.dir.join("memory.events")).unwrap_or_default();
        events
            .lines()
            .filter_map(|line| line.strip_prefix("oom_kill "))
            .any(|count| count.trim() != "0")
    }

    /// Fails while anything is inside.
    pub(super) fn remove(&self) -> io::Result<()> {
        fs::remove_dir(&self.dir)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        // Not `fs::write`: it would create an ordinary file where a controller is missing.
        io::Write::write_all(
            &mut fs::OpenOptions::new().write(true).open(self.dir.join(file))?,
            text.as_bytes(),
        )
    }
}

/// `matins:NODE:UUID`, with everything but letters, digits, `-`, `_` and `.` in hexadecimal.
fn dir_name(run: &RunId) -> String {
    let node: String = run.node.bytes().fold(String::new(), |mut name, byte| {
        let _ = match byte {
            b'-' | b'_' | b'.' => write!(name, "{}", char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => write!(name, "{}", char::from(byte)),
            _ => write!(name, "%{byte:02x}"),
        };
        name
    });
    format!("{PREFIX}{node}:{}", run.id)
}

fn run_of(name: &str) -> Option<RunId> {
    let (node, id) = name.strip_prefix(PREFIX)?.split_once(':')?;
    let mut bytes = Vec::new();
    let mut rest = node.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(first);
        }
    }
    Some(RunId { node: String::from_utf8(bytes).ok()?, id: id.parse().ok()? })
}

/// Where this process lies in the version 2 hierarchy, wherever that is mounted.
fn own_dir() -> Option<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let membership = fs::read("/proc/self/cgroup").ok()?;
    locate(&mounts, &membership)
}

fn locate(mountinfo: &[u8], membership: &[u8]) -> Option<PathBuf> {
    let own = membership.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    let own = Path::new(std::ffi::OsStr::from_bytes(own));
    mountinfo.split(|&byte| byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        if *fields.get(separator + 1)? != b"cgroup2" {
            return None;
        }
        let root = unescape(fields.get(3)?);
        let mount = unescape(fields.get(4)?);
        let below = own.strip_prefix(root).ok()?;
        Some(if below.as_os_str().is_empty() { mount } else { mount.join(below) })
    })
}

/// Undoes the kernel's `\040` for a space and the like.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_where_it_is_mounted() {
        let hybrid = b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
        let found = locate(hybrid, b"4:memory:/x\n0::/system.slice/matins.service\n");
        let expected = "/sys/fs/cgroup/unified/system.slice/matins.service";
        assert_eq!(found, Some(PathBuf::from(expected)));
        assert_eq!(locate(hybrid, b"0::/\n"), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let bound = b"41 31 0:38 /docker/ab /mnt/a\\040b rw - cgroup2 none rw\n";
        assert_eq!(locate(bound, b"0::/docker/ab/leaf\n"), Some(PathBuf::from("/mnt/a b/leaf")));
        assert_eq!(locate(bound, b"0::/elsewhere\n"), None);
        assert_eq!(locate(b"35 31 0:32 / /m rw - cgroup cgroup rw\n", b"0::/\n"), None);
    }

    #[test]
    fn a_group_names_its_run() {
        for node in ["web-1-6284", "a/b:c%d é", ""] {
            let run = RunId::new(node);
            let name = dir_name(&run);
            assert!(!name.contains('/'), "{name}");
            assert_eq!(run_of(&name), Some(run));
        }
        assert_eq!(run_of("system.slice"), None);
        assert_eq!(run_of("matins:a%zz:018f3b1e-0000-7000-8000-000000000000"), None);
    }
}
