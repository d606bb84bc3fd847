//! The runner process: owns one command's tree and outlives Matins just long enough to end it.
//!
//! ```text
//!             ┌────────── orders: extend, cancel ──────────┐
//!   start ──▶ running ──▶ ending: TERM … grace … KILL ──▶ tree empty ──▶ report ──▶ exit
//!                │           ▲        (sooner when the lease lapses or a cancel says so)
//!                └───────────┘ timeout · lease · cancel · Matins gone · command ended first
//! ```
//!
//! The first cause decides how the run is reported; later ones only hasten the end. A command
//! that ended by itself keeps its own end, whatever happens while its leftovers are swept.
//!
//! One thread, one `poll`. It must never block on the command, on Matins, or on a pipe, before
//! the tree is empty; and it must never start a second thread, which a fork would leave behind.

mod pipes;
mod start;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, setsid, wait};
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

#[cfg(target_os = "linux")]
use super::cgroup::Cgroup;
use super::clock::Moment;
use super::mask::Masker;
use super::spec::{CommandSpec, End, Lease, Status};
use super::tree;
use super::wire::{ExitReport, Order, PROTOCOL};
use pipes::{Control, Feed, Output, Received, Reporter};
use start::Started;

/// The first argument by which the program is told to be a runner.
pub const HIDDEN_WORD: &str = "__runner";
/// The second argument that only asks whether the program can be one.
pub(super) const PROBE_WORD: &str = "probe";

/// What is left of a tree after its command ended has this long to follow.
const LEFTOVERS_GRACE: Duration = Duration::from_millis(500);
/// The tree is killed this long before the lease ends, so that it is empty when it does.
const LEASE_MARGIN: Duration = Duration::from_millis(500);
/// Processes that do not die of SIGKILL for so long are reported as survivors.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at a tree that is being killed.
const KILL_TICK: Duration = Duration::from_millis(10);
/// The longest sleep: the clock that counts suspend does not wake a `poll`.
const TICK: Duration = Duration::from_secs(1);
/// Commands that are over sooner are spared the cost of a control group.
#[cfg(target_os = "linux")]
const CGROUP_AFTER: Duration = Duration::from_millis(200);

/// What the probe answers.
pub(super) fn probe_answer() -> String {
    format!("matins-runner {PROTOCOL}")
}

/// The whole life of a runner. Called first thing in `main`, before any thread exists.
pub fn main() -> ExitCode {
    if std::env::args().nth(2).as_deref() == Some(PROBE_WORD) {
        println!("{}", probe_answer());
        return ExitCode::SUCCESS;
    }
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Matins reads the same from the closed pipe; this is for its log.
            eprintln!("matins runner: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let mut control = Control::new();
    let mut reporter = Reporter::new()?;
    let (mut spec, stdin) = match control.receive_spec() {
        Ok(Some(received)) => received,
        // Matins died before it said what to do.
        Ok(None) => return Ok(()),
        Err(error) => return reporter.finish(spawn_failed(error.to_string(), false)),
    };
    let child_events = isolate()?;
    let mut warnings = Vec::new();
    let started_at = Moment::now();
    match start::start(&spec, &mut warnings) {
        Err(failure) => {
            let message = Masker::new(&spec.secrets).mask(&failure.message);
            let report = spawn_failed(message, failure.permanent);
            reporter.finish(ExitReport { warnings, ..report })
        }
        Ok(started) => {
            let lease = spec.lease.take().map(|lease| LeaseClock::new(lease, Moment::now()));
            Session::new(spec, started, lease, stdin, (control, reporter), started_at, warnings)?
                .supervise(&child_events)
        }
    }
}

fn spawn_failed(message: String, permanent: bool) -> ExitReport {
    ExitReport {
        end: End::SpawnFailed { message, permanent },
        status: None,
        duration: Duration::ZERO,
        output_total: 0,
        result_dropped: 0,
        complaint: None,
        warnings: Vec::new(),
        survivors: 0,
    }
}

/// Leaves Matins' session, takes in orphans, and lets no stray signal end the runner: one that is
/// sent to Matins' whole unit must not make a loss of a run that Matins still manages.
fn isolate() -> io::Result<UnixStream> {
    let (child_events, wake) = UnixStream::pair()?;
    child_events.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGCHLD, wake)?;
    let unheeded = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM] {
        signal_hook::flag::register(signal, Arc::clone(&unheeded))?;
    }
    setsid()?;
    // Whatever else Matins was started with stays out of the command's reach.
    close_fds::set_fds_cloexec(3, &[]);
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let _ = rustix::thread::set_name(c"matins-runner");
    }
    Ok(child_events)
}

/// When a lease ends, in terms of what must be done before.
#[derive(Clone, Copy)]
struct LeaseClock {
    lease: Lease,
    end_at: Moment,
    kill_at: Moment,
}

impl LeaseClock {
    /// At most a fifth of a lease is spent on grace: TERM must not come before two renewals,
    /// made every third of it, had their chance.
    fn new(lease: Lease, now: Moment) -> Self {
        let left = lease.deadline.since(now);
        let kill_at = lease.deadline.before(LEASE_MARGIN.min(left / 4));
        Self { lease, end_at: kill_at.before(lease.grace.min(left / 5)), kill_at }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The command ended by itself and left processes behind.
    Leftovers,
    Timeout,
    Cancel,
    Lease,
    ParentGone,
}

struct Ending {
    cause: Cause,
    kill_at: Moment,
    killing_since: Option<Moment>,
}

struct Session {
    spec: CommandSpec,
    control: Control,
    reporter: Reporter,
    output: Output,
    feed: Feed,
    main: i32,
    started_at: Moment,
    lease: Option<LeaseClock>,
    /// When the tree must be killed for a cancel.
    cancelled: Option<(Duration, Moment)>,
    parent_gone: bool,
    status: Option<Status>,
    childless: bool,
    ending: Option<Ending>,
    survivors: usize,
    warnings: Vec<String>,
    #[cfg(target_os = "linux")]
    group: Option<Cgroup>,
    #[cfg(target_os = "linux")]
    group_at: Option<Moment>,
}

impl Session {
    fn new(
        spec: CommandSpec,
        started: Started,
        lease: Option<LeaseClock>,
        stdin: Bytes,
        (control, reporter): (Control, Reporter),
        started_at: Moment,
        warnings: Vec<String>,
    ) -> io::Result<Self> {
        let mut child = started.child;
        Ok(Self {
            output: Output::new(&spec, child.stdout.take(), child.stderr.take())?,
            feed: Feed::new(child.stdin.take(), stdin)?,
            main: child.id() as i32,
            started_at,
            lease,
            cancelled: None,
            parent_gone: false,
            status: None,
            childless: false,
            ending: None,
            survivors: 0,
            warnings,
            #[cfg(target_os = "linux")]
            group_at: started.group.is_none().then(|| started_at.after(CGROUP_AFTER)),
            #[cfg(target_os = "linux")]
            group: started.group,
            spec,
            control,
            reporter,
        })
    }

    fn supervise(mut self, child_events: &UnixStream) -> io::Result<()> {
        self.take_orders();
        loop {
            self.reap();
            let now = Moment::now();
            if self.childless && !tree::has_strays(self.main) {
                break;
            }
            self.judge(now);
            if self.is_past_patience(now) {
                self.survivors = tree::signal_descendants(self.main, Signal::KILL, true).max(1);
                break;
            }
            self.sleep(child_events, now);
        }
        let result = self.report();
        while !self.childless && self.survivors > 0 {
            tree::signal_descendants(self.main, Signal::KILL, true);
            std::thread::sleep(TICK);
            self.reap();
        }
        result
    }

    /// Collects every process that ended: the command and orphans alike.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.main => {
                    self.status = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => Some(Status::Code(code)),
                        (None, Some(signal)) => Some(Status::Signal(signal)),
                        (None, None) => None,
                    };
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => {
                    self.childless = true;
                    return;
                }
            }
        }
    }

    fn take_orders(&mut self) {
        loop {
            match self.control.next() {
                Ok(Received::Order(Order::Extend(deadline))) => {
                    if let Some(clock) = self.lease.filter(|c| deadline > c.lease.deadline) {
                        let lease = Lease { deadline, ..clock.lease };
                        self.lease = Some(LeaseClock::new(lease, Moment::now()));
                    }
                }
                Ok(Received::Order(Order::Cancel(grace))) => {
                    let grace = grace.unwrap_or(self.spec.grace);
                    let kill_at = Moment::now().after(grace);
                    let kill_at = self.cancelled.map_or(kill_at, |(_, at)| at.min(kill_at));
                    self.cancelled = Some((grace, kill_at));
                }
                Ok(Received::Nothing) => return,
                // Whoever does not speak the protocol is not Matins.
                Ok(Received::Closed | Received::Order(Order::Spec(_) | Order::Stdin(_)))
                | Err(_) => {
                    self.parent_gone = true;
                    return;
                }
            }
        }
    }

    /// Why the tree must be ended now, and how long it has between TERM and KILL.
    fn cause(&self, now: Moment) -> Option<(Cause, Duration)> {
        let grace = self.spec.grace;
        if self.status.is_some() {
            return Some((Cause::Leftovers, LEFTOVERS_GRACE.min(grace)));
        }
        if let Some((grace, _)) = self.cancelled {
            return Some((Cause::Cancel, grace));
        }
        if self.parent_gone {
            return Some((Cause::ParentGone, grace));
        }
        if self.timeout_at().is_some_and(|at| now >= at) {
            return Some((Cause::Timeout, grace));
        }
        if self.lease.is_some_and(|clock| now >= clock.end_at) {
            return Some((Cause::Lease, grace));
        }
        None
    }

    fn timeout_at(&self) -> Option<Moment> {
        self.spec.timeout.map(|timeout| self.started_at.after(timeout))
    }

    /// Starts the ladder when there is a cause, and climbs it.
    fn judge(&mut self, now: Moment) {
        #[cfg(target_os = "linux")]
        if self.ending.is_none() && self.group_at.is_some_and(|at| now >= at) {
            self.group_at = None;
            self.group = Cgroup::gather(&self.spec.run);
        }
        let begun = self.ending.is_none().then(|| self.cause(now)).flatten();
        if let Some((cause, grace)) = begun {
            self.ending = Some(Ending { cause, kill_at: now.after(grace), killing_since: None });
        }
        let hastened =
            [self.cancelled.map(|(_, kill_at)| kill_at), self.lease.map(|clock| clock.kill_at)];
        let Some(ending) = &mut self.ending else { return };
        for kill_at in hastened.into_iter().flatten() {
            ending.kill_at = ending.kill_at.min(kill_at);
        }
        if now >= ending.kill_at {
            let since = *ending.killing_since.get_or_insert(now);
            #[cfg(target_os = "linux")]
            if let Some(group) = &self.group {
                group.kill();
            }
            // A tree that is still there after several looks forks faster than it is seen.
            let hard = now.since(since) > KILL_TICK * 3;
            tree::signal_descendants(self.main, Signal::KILL, hard);
        } else if begun.is_some() {
            tree::signal_descendants(self.main, Signal::TERM, false);
            // A stopped process acts on TERM only when it goes on.
            tree::signal_descendants(self.main, Signal::CONT, false);
        }
    }

    fn is_past_patience(&self, now: Moment) -> bool {
        let since = self.ending.as_ref().and_then(|ending| ending.killing_since);
        since.is_some_and(|since| now.since(since) > KILL_PATIENCE)
    }

    /// The time until something is due by itself.
    fn pause(&self, now: Moment) -> Duration {
        let due = match &self.ending {
            Some(ending) if ending.killing_since.is_some() => Some(now.after(KILL_TICK)),
            Some(ending) => Some(ending.kill_at),
            None => {
                let lease = self.lease.map(|clock| clock.end_at);
                [self.timeout_at(), lease].into_iter().flatten().min()
            }
        };
        let mut pause = due.map_or(TICK, |at| at.since(now)).min(TICK);
        #[cfg(target_os = "linux")]
        if let Some(at) = self.group_at {
            pause = pause.min(at.since(now));
        }
        if cfg!(not(target_os = "linux")) && self.childless {
            pause = pause.min(KILL_TICK);
        }
        pause
    }

    /// Waits for whichever comes first, then moves what the pipes offer.
    fn sleep(&mut self, child_events: &UnixStream, now: Moment) {
        let pause = self.pause(now);
        let timeout =
            Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        let (orders, reports) = (io::stdin(), io::stdout());
        let mut fds = vec![PollFd::new(child_events, PollFlags::IN)];
        // A pipe whose other end is closed is always ready: none may be here without need.
        if !self.parent_gone {
            fds.push(PollFd::from_borrowed_fd(orders.as_fd(), PollFlags::IN));
        }
        if self.reporter.has_backlog() {
            fds.push(PollFd::from_borrowed_fd(reports.as_fd(), PollFlags::OUT));
        }
        if let Some(stdin) = self.feed.pipe() {
            fds.push(PollFd::from_borrowed_fd(stdin, PollFlags::OUT));
        }
        fds.extend(self.output.pipes().map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of kernel memory: the tree must not get away because of it.
            Err(_) => std::thread::sleep(KILL_TICK),
        }
        let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let (has_child_event, has_order) = (ready(0), !self.parent_gone && ready(1));
        if has_child_event {
            let mut sink = [0; 64];
            while matches!(io::Read::read(&mut &*child_events, &mut sink), Ok(1..)) {}
        }
        if has_order {
            self.take_orders();
        }
        self.reporter.flush();
        self.feed.write();
        self.output.read_once(&mut self.reporter);
    }

    /// Says how it ended. The tree is empty, so nothing more can arrive in the pipes.
    fn report(&mut self) -> io::Result<()> {
        self.output.drain(&mut self.reporter);
        let end = self.end();
        #[cfg(target_os = "linux")]
        if let Some(group) = &self.group {
            // Matins tries again, should something inside still be dying.
            let _ = group.remove();
        }
        if self.parent_gone {
            return Ok(());
        }
        let (captured, result, complaint) = self.output.finish();
        let report = ExitReport {
            end,
            status: self.status,
            duration: Moment::now().since(self.started_at),
            output_total: captured.total,
            result_dropped: result.dropped,
            complaint,
            warnings: std::mem::take(&mut self.warnings),
            survivors: self.survivors,
        };
        self.reporter.finish_with(captured, result.bytes, report)
    }

    fn end(&self) -> End {
        match self.ending.as_ref().map(|ending| ending.cause) {
            Some(Cause::Timeout) => return End::TimedOut,
            Some(Cause::Cancel) => return End::Cancelled,
            Some(Cause::Lease) => return End::LeaseLost,
            Some(Cause::ParentGone) => return End::ParentGone,
            Some(Cause::Leftovers) | None => {}
        }
        match self.status {
            Some(Status::Code(0)) => End::Exited(0),
            _ if self.has_oom_kill() => End::OomSuspected,
            // A shell passes the signal of its last command on as 128 + n.
            Some(Status::Signal(9) | Status::Code(137)) if self.spec.memory_max.is_some() => {
                End::OomSuspected
            }
            Some(Status::Code(code)) => End::Exited(code),
            Some(Status::Signal(signal)) => End::Signaled(signal),
            None => End::Signaled(9),
        }
    }

    fn has_oom_kill(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.group.as_ref().is_some_and(Cgroup::has_oom_kill);
        #[cfg(not(target_os = "linux"))]
        return false;
    }
}
