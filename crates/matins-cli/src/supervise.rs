//! The supervising parent of `matins serve`: starts the server as its child, listens to it, ends
//! it when it hangs, and starts it again.
//!
//! ```text
//!  parent ── argv __supervised …, a socket as stdin ──▶ child
//!         ◀── up, beat, stalled, status ──
//!         ── stop ──▶                          the socket's end is the parent's death
//! ```
//!
//! One thread, one `poll`, no runtime, no store, no configuration: what it must know the child
//! tells it. It is the main process of a unit and may be PID 1 of a container: it alone speaks to
//! systemd, hands signals on, and reaps whoever is orphaned to it. What to do is decided by
//! [`matins_core::supervision`].

pub(crate) mod leash;
mod line;
mod telling;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use matins_core::supervision::{End, Limits, Next, Supervision};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Exit, Failure};
use line::{Line, Order, Said};
use telling::Telling;

/// The first argument of a child of such a parent.
pub(crate) const HIDDEN_WORD: &str = "__supervised";

/// Longest time between two looks.
const TICK: Duration = Duration::from_millis(500);

/// Variables by which systemd finds its service: the parent's alone.
const OURS: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Runs the server as a child until it ends for good; the code to exit with.
pub(crate) fn run() -> ExitCode {
    match Parent::new().and_then(Parent::watch) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let failure = Failure::io("cannot supervise the server", &error);
            crate::say(&failure.hint("matins serve --no-supervise runs without a parent"));
            ExitCode::from(Exit::Failed as u8)
        }
    }
}

struct Child {
    pid: Pid,
    line: Line,
    killed: bool,
}

struct Parent {
    began: Instant,
    supervision: Supervision,
    child: Option<Child>,
    restart_at: Option<Duration>,
    /// How often it was told to stop.
    stops: u32,
    /// Told to reload, and not handed on yet: the child is not up.
    hangup: bool,
    signals: Signals,
    telling: Telling,
}

impl Parent {
    fn new() -> io::Result<Self> {
        let signals = Signals::new()?;
        let supervision = Supervision::new(Duration::ZERO);
        let telling = Telling::default();
        let began = Instant::now();
        Ok(Self {
            began,
            supervision,
            child: None,
            restart_at: None,
            stops: 0,
            hangup: false,
            signals,
            telling,
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn watch(mut self) -> io::Result<u8> {
        self.start()?;
        loop {
            self.wait()?;
            self.listen();
            self.hand_on_signals();
            if let Some(code) = self.reap()? {
                return Ok(code);
            }
            self.judge();
            let now = self.now();
            if self.restart_at.is_some_and(|at| now >= at) {
                self.start()?;
            }
        }
    }

    fn start(&mut self) -> io::Result<()> {
        self.restart_at = None;
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(own_program()?);
        command.arg0("matins").arg(HIDDEN_WORD).args(std::env::args_os().skip(1));
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        for name in OURS {
            command.env_remove(name);
        }
        // A terminal's Ctrl-C reaches the parent alone, which hands it on once.
        let child = command.process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("a child without a pid"))?;
        self.child = Some(Child { pid, line: Line::new(ours)?, killed: false });
        self.supervision.started(self.now());
        Ok(())
    }

    /// Until something happens, or a while.
    fn wait(&self) -> io::Result<()> {
        let left = self.restart_at.map_or(TICK, |at| at.saturating_sub(self.now()).min(TICK));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = vec![PollFd::new(&self.signals.wake, PollFlags::IN)];
        if let Some(child) = self.child.as_ref().filter(|child| !child.line.is_closed()) {
            fds.push(PollFd::from_borrowed_fd(child.line.as_fd(), PollFlags::IN));
        }
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn hand_on_signals(&mut self) {
        let now = self.now();
        let told = self.signals.take();
        self.hangup |= told.hangup;
        if self.hangup
            && let Some(child) = self.child.as_ref().filter(|_| self.supervision.is_up())
        {
            self.hangup = false;
            let _ = kill_process(child.pid, Signal::HUP);
        }
        if !told.end {
            return;
        }
        self.supervision.asked_to_stop(now);
        self.stops += 1;
        self.telling.stopping();
        let Some(child) = &mut self.child else { return };
        if !self.supervision.is_up() || child.line.tell(Order::Stop(self.stops)).is_err() {
            // It does not listen yet, or no more.
            let _ = kill_process(child.pid, Signal::TERM);
        }
    }

    fn listen(&mut self) {
        let now = self.now();
        let Some(child) = &mut self.child else { return };
        for said in child.line.read() {
            match said {
                Said::Up(up) => {
                    let limits =
                        Limits { stall_after: up.stall_after, stop_within: up.stop_within };
                    self.supervision.up(limits, now);
                    self.telling.up(up);
                }
                Said::Beat => self.supervision.beat(now),
                Said::Stalled { loops } => self.supervision.stalled(loops, now),
                Said::Status { text } => self.telling.status(&text),
            }
        }
        if self.supervision.has_calmed(now) {
            self.telling.calmed();
        }
    }

    /// Collects everybody who has ended; the code to exit with when that is the end.
    fn reap(&mut self) -> io::Result<Option<u8>> {
        let mut ended = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if self.child.as_ref().is_some_and(|child| child.pid == pid) {
                        let code = status.exit_status().map(|code| End::Exit(code as u8));
                        ended = code.or(status.terminating_signal().map(End::Signal)).or(ended);
                    }
                }
                Ok(None) | Err(rustix::io::Errno::CHILD) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some(end) = ended else {
            // Asked to stop between two children.
            let idle = self.child.is_none() && self.supervision.is_stopping();
            return Ok(idle.then_some(Exit::Done as u8));
        };
        self.child = None;
        let now = self.now();
        match self.supervision.ended(end, now) {
            Next::Finish(code) => Ok(Some(code)),
            Next::Restart { after, crash_loop } => {
                self.telling.restarts(end, after, self.supervision.recent_restarts(), crash_loop);
                self.restart_at = Some(now + after);
                Ok(None)
            }
        }
    }

    /// Ends a child that hangs. What it has running ends by itself when it is gone.
    fn judge(&mut self) {
        let now = self.now();
        if self.child.is_none() || self.supervision.is_sound(now) {
            return self.telling.vouch();
        }
        if let Some(child) = self.child.as_mut().filter(|child| !child.killed)
            && let Some(hang) = self.supervision.hangs(now)
        {
            child.killed = true;
            self.telling.hangs(&hang);
            let _ = kill_process(child.pid, Signal::KILL);
        }
    }
}

/// The link goes on to work when an upgrade has replaced the file.
fn own_program() -> io::Result<std::path::PathBuf> {
    let link = std::path::PathBuf::from("/proc/self/exe");
    if link.exists() { Ok(link) } else { std::env::current_exe() }
}

/// What came in by signals since the last look.
struct Signals {
    wake: UnixStream,
    end: [Arc<AtomicBool>; 2],
    hangup: Arc<AtomicBool>,
}

struct Told {
    end: bool,
    hangup: bool,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let flag = |signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
            io::Result::Ok(flag)
        };
        flag(SIGCHLD)?;
        Ok(Self { end: [flag(SIGTERM)?, flag(SIGINT)?], hangup: flag(SIGHUP)?, wake })
    }

    fn take(&mut self) -> Told {
        use std::io::Read as _;
        let mut rung = [0; 64];
        while self.wake.read(&mut rung).is_ok_and(|count| count > 0) {}
        let was_set = |flag: &Arc<AtomicBool>| flag.swap(false, Ordering::SeqCst);
        let [terminate, interrupt] = self.end.each_ref().map(was_set);
        Told { end: terminate || interrupt, hangup: was_set(&self.hangup) }
    }
}
