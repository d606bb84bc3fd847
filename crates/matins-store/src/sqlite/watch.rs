//! Who hears at once that another process has written, at no cost while nobody does: the kernel
//! tells when the log of the file is written to.
//!
//! It is a hint. Where the kernel has no such service the writer looks by itself, often; where it
//! has, once a second.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Shortest time between two hints: the own writes are heard, too.
const PACE: Duration = Duration::from_millis(50);

/// How long the thread may outlive its store.
#[cfg(target_os = "linux")]
const PATIENCE: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };

/// Calls `hint` after writes to the file, until `alive` is dropped or it answers `false`. Answers
/// whether there is somebody who does.
#[cfg(target_os = "linux")]
pub(super) fn start(
    path: &Path,
    alive: &Arc<()>,
    hint: impl Fn() -> bool + Send + 'static,
) -> bool {
    let alive = Arc::downgrade(alive);
    let Ok(watch) = Watch::new(path) else { return false };
    let thread = std::thread::Builder::new().name("matins-watch".to_owned());
    thread.spawn(move || watch.tell(&alive, hint)).is_ok()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn start(_: &Path, _: &Arc<()>, _: impl Fn() -> bool + Send + 'static) -> bool {
    false
}

#[cfg(target_os = "linux")]
struct Watch {
    events: std::os::fd::OwnedFd,
    log: std::ffi::OsString,
}

#[cfg(target_os = "linux")]
impl Watch {
    /// The folder is watched, because the log comes and goes.
    fn new(path: &Path) -> std::io::Result<Self> {
        use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
        let path = path.canonicalize()?;
        let mut log = path.file_name().unwrap_or_default().to_owned();
        log.push("-wal");
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        inotify::add_watch(&events, folder, WatchFlags::MODIFY)?;
        Ok(Self { events, log })
    }

    fn tell(&self, alive: &Weak<()>, hint: impl Fn() -> bool) {
        use rustix::event::{PollFd, PollFlags, poll};
        while alive.strong_count() > 0 {
            let mut readable = [PollFd::new(&self.events, PollFlags::IN)];
            let found = poll(&mut readable, Some(&PATIENCE));
            if found.is_ok_and(|n| n > 0) && self.was_written() {
                if !hint() {
                    return;
                }
                std::thread::sleep(PACE);
            }
        }
    }

    /// Takes what the kernel has told; whether the log is among it, or too much to be told.
    fn was_written(&self) -> bool {
        use rustix::fs::inotify::{ReadFlags, Reader};
        use std::os::unix::ffi::OsStrExt as _;
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4_096];
        let mut reader = Reader::new(&self.events, &mut buffer);
        let mut written = false;
        while let Ok(event) = reader.next() {
            let log = event.file_name().is_some_and(|name| name.to_bytes() == self.log.as_bytes());
            written |= log || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        }
        written
    }
}
