//! What the kernel says of this process's threads: their state, where they wait, and, where it
//! lets us, their kernel stacks. Reads `/proc` alone: nothing here can be held up by a lock of
//! this process.

use std::fs;

pub(super) struct Thread {
    pub(super) id: String,
    pub(super) name: String,
    /// `R (running)`, `S (sleeping)`, `D (disk sleep)`, …
    pub(super) state: String,
    /// The kernel function it sleeps in.
    pub(super) wchan: String,
    /// Empty without the right to read it.
    pub(super) stack: String,
}

/// Every thread of this process; none where there is no `/proc`.
pub(super) fn threads() -> Vec<Thread> {
    let Ok(entries) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let thread = |entry: fs::DirEntry| {
        let folder = entry.path();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let status = read("status");
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.unwrap_or_default().trim().to_owned()
        };
        Thread {
            id: entry.file_name().to_string_lossy().into_owned(),
            name: field("Name:"),
            state: field("State:"),
            wchan: read("wchan"),
            stack: read("stack").lines().collect::<Vec<_>>().join(" < "),
        }
    };
    entries.flatten().map(thread).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn this_thread_is_among_them() {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let threads = super::threads();
        // The kernel keeps 15 bytes of a name.
        let found = threads.iter().find(|thread| name.starts_with(&thread.name));
        assert!(found.is_some_and(|thread| thread.state.starts_with('R')), "{name}");
    }
}
