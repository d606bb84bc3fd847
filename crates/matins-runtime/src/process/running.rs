//! Matins' side of a run: starts the runner, talks to it, and takes its place when it is lost.
//!
//! No thread and no task belongs to a run: whoever awaits [`Running::wait`] drives it. Dropping
//! a [`Running`] closes the runner's pipe, which ends the tree as if Matins had died.

use std::future::pending;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::capture::{Capture, Captured};
use super::clock::Moment;
use super::runner::{HIDDEN_WORD, PROBE_WORD, probe_answer};
use super::spec::{CommandExit, CommandSpec, End, Lease, RUN_MARK, ResultBytes, RunId, SpecError};
use super::sweep::{Children, Swept, kill_run};
use super::wire::{Decoder, ExitReport, Order, Report, WireError};

/// How much longer than its own ladder a runner may take before it counts as stuck: it reports
/// survivors itself within half of it.
const RUNNER_SLACK: Duration = Duration::from_secs(10);
/// Before a lease ends, a runner that has not ended its tree is replaced so much earlier.
const LEASE_MARGIN: Duration = Duration::from_millis(300);
/// A runner takes its spec at once, or something is wrong with it.
const SPEC_PATIENCE: Duration = Duration::from_secs(10);

/// The program that can be started as a runner.
#[derive(Debug, Clone)]
pub struct Runner {
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("cannot start the process runner {}: {source}", path.display())]
    Runner { path: PathBuf, source: io::Error },
    #[error("{} is not a process runner of this version", path.display())]
    NotARunner { path: PathBuf },
    #[error("the process runner did not take its command: {0}")]
    Protocol(String),
}

impl Runner {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The program that is running now, for one that calls [`super::runner::main`] itself.
    pub fn this_program() -> io::Result<Self> {
        // The link goes on to work when an upgrade has replaced the file.
        let link = Path::new("/proc/self/exe");
        if link.exists() { Ok(Self::new(link)) } else { std::env::current_exe().map(Self::new) }
    }

    /// Refuses a program that is no runner, or one of another version.
    pub async fn probe(&self) -> Result<(), SpawnError> {
        let failed = |source| SpawnError::Runner { path: self.path.clone(), source };
        let mut command = std::process::Command::new(&self.path);
        command.args([HIDDEN_WORD, PROBE_WORD]).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = start(command).map_err(failed)?;
        let pid = pid_of(&child);
        let answer = timeout(SPEC_PATIENCE, child.wait_with_output()).await;
        Children::lock().remove(pid);
        match answer {
            Ok(Ok(answer)) if answer.stdout.trim_ascii() == probe_answer().as_bytes() => Ok(()),
            Ok(Err(source)) => Err(failed(source)),
            Ok(Ok(_)) | Err(_) => Err(SpawnError::NotARunner { path: self.path.clone() }),
        }
    }

    /// Starts a runner and hands it its command.
    pub async fn spawn(&self, spec: CommandSpec) -> Result<Running, SpawnError> {
        spec.check()?;
        let mut command = std::process::Command::new(&self.path);
        command
            .arg0("matins")
            .arg(HIDDEN_WORD)
            .env_clear()
            .env(RUN_MARK, spec.run.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let started = start(command);
        let mut child =
            started.map_err(|source| SpawnError::Runner { path: self.path.clone(), source })?;
        let lost_pipe = || SpawnError::Protocol("its pipes are missing".to_owned());
        let orders = child.stdin.take().ok_or_else(lost_pipe)?;
        let reports = child.stdout.take().ok_or_else(lost_pipe)?;
        let (extensions, extended) = watch::channel(None);
        let (cancels, cancelled) = watch::channel(None);
        let mut running = Running {
            pid: pid_of(&child),
            child,
            orders,
            reports,
            decoder: Decoder::default(),
            live: Capture::new(spec.output_bytes),
            control: Control { extensions, cancels },
            extended,
            cancelled,
            started_at: Moment::now(),
            timeout: spec.timeout,
            grace: spec.grace,
            lease: spec.lease,
            cancel_by: None,
            run: spec.run.clone(),
        };
        running.hand_over(spec).await?;
        Ok(running)
    }
}

/// Starts a child that is known as one before anybody can take it for an orphan.
fn start(command: std::process::Command) -> io::Result<Child> {
    let mut children = Children::lock();
    let child = Command::from(command).kill_on_drop(false).spawn()?;
    children.insert(pid_of(&child));
    Ok(child)
}

fn pid_of(child: &Child) -> i32 {
    child.id().map_or(0, |pid| pid as i32)
}

/// Steers a run from anywhere; of no effect once it is over.
#[derive(Debug, Clone)]
pub struct Control {
    extensions: watch::Sender<Option<Moment>>,
    cancels: watch::Sender<Option<Cancel>>,
}

#[derive(Debug, Clone, Copy)]
struct Cancel {
    grace: Option<Duration>,
}

impl Control {
    /// The lease was renewed: `deadline` counts from when the accepted renewal was *sent*.
    pub fn extend(&self, deadline: Moment) {
        self.extensions.send_replace(Some(deadline));
    }

    /// Ends the tree, with the grace given or that of the spec. Again, with a shorter one: sooner.
    pub fn cancel(&self, grace: Option<Duration>) {
        self.cancels.send_replace(Some(Cancel { grace }));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// A command that runs, or has ended without anybody having been told.
pub struct Running {
    pid: i32,
    child: Child,
    orders: ChildStdin,
    reports: ChildStdout,
    decoder: Decoder,
    /// What arrived live: all there is when the runner is lost.
    live: Capture,
    control: Control,
    extended: watch::Receiver<Option<Moment>>,
    cancelled: watch::Receiver<Option<Cancel>>,
    started_at: Moment,
    timeout: Option<Duration>,
    grace: Duration,
    lease: Option<Lease>,
    /// When a runner that was told to cancel must have done it.
    cancel_by: Option<Moment>,
    run: RunId,
}

/// What was received of a report.
#[derive(Default)]
struct Parts {
    output: Captured,
    result: Vec<u8>,
}

/// What the next turn of [`Running::wait`] is about.
enum Turn {
    Read(io::Result<usize>),
    Extend(Moment),
    Cancel(Cancel),
    Overdue(End),
}

impl Running {
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    async fn hand_over(&mut self, spec: CommandSpec) -> Result<(), SpawnError> {
        let failed = |error: &dyn ToString| SpawnError::Protocol(error.to_string());
        let mut spec = spec;
        let stdin = Order::Stdin(std::mem::take(&mut spec.stdin).into());
        let spec = Order::Spec(Box::new(spec));
        for order in [spec, stdin] {
            let frame = order.encode().map_err(|error| failed(&error))?;
            match timeout(SPEC_PATIENCE, self.orders.write_all(&frame)).await {
                // A runner that died has closed its pipe: `wait` finds that out.
                Ok(_) => {}
                Err(elapsed) => return Err(failed(&elapsed)),
            }
        }
        Ok(())
    }

    /// Drives the run to its end: the tree is gone when this returns. `follow` is offered the
    /// output as it comes and must not block.
    pub async fn wait(mut self, mut follow: impl FnMut(Stream, &[u8]) + Send) -> CommandExit {
        let mut parts = Parts::default();
        loop {
            match self.turn().await {
                Turn::Read(Ok(1..)) => match self.take_reports(&mut parts, &mut follow) {
                    Ok(None) => {}
                    Ok(Some(report)) => return self.finish(parts, report).await,
                    Err(error) => {
                        tracing::error!(%error, run = %self.run, "process runner");
                        return self.replace_runner(End::RunnerLost).await;
                    }
                },
                Turn::Read(_) => return self.replace_runner(End::RunnerLost).await,
                Turn::Extend(deadline) => {
                    if let Some(lease) = &mut self.lease {
                        lease.deadline = lease.deadline.max(deadline);
                    }
                    self.send(&Order::Extend(deadline)).await;
                }
                Turn::Cancel(Cancel { grace }) => {
                    let patience = grace.unwrap_or(self.grace) + RUNNER_SLACK;
                    let by = Moment::now().after(patience);
                    self.cancel_by = Some(self.cancel_by.map_or(by, |at| at.min(by)));
                    self.send(&Order::Cancel(grace)).await;
                }
                Turn::Overdue(end) => {
                    tracing::warn!(run = %self.run, "process runner did not end its tree in time");
                    return self.replace_runner(end).await;
                }
            }
        }
    }

    async fn turn(&mut self) -> Turn {
        let overdue = self.overdue();
        let late = async {
            match overdue {
                Some((at, end)) => {
                    sleep(at.since(Moment::now())).await;
                    end
                }
                None => pending().await,
            }
        };
        // The senders live in `self.control`, so neither channel is ever closed.
        tokio::select! {
            read = self.reports.read_buf(&mut self.decoder.buffer) => Turn::Read(read),
            Ok(extended) = self.extended.wait_for(Option::is_some) => {
                let deadline = extended.unwrap_or_else(Moment::now);
                drop(extended);
                self.control.extensions.send_replace(None);
                Turn::Extend(deadline)
            }
            Ok(cancelled) = self.cancelled.wait_for(Option::is_some) => {
                let cancel = cancelled.unwrap_or(Cancel { grace: None });
                drop(cancelled);
                self.control.cancels.send_replace(None);
                Turn::Cancel(cancel)
            }
            end = late => Turn::Overdue(end),
        }
    }

    /// When the runner must have reported at the latest, and what its silence then means.
    fn overdue(&self) -> Option<(Moment, End)> {
        let ladder = self.grace + RUNNER_SLACK;
        let timeout = self.timeout.map(|timeout| self.started_at.after(timeout).after(ladder));
        let lease = self.lease.map(|lease| lease.deadline.before(LEASE_MARGIN));
        [(timeout, End::TimedOut), (self.cancel_by, End::Cancelled), (lease, End::LeaseLost)]
            .into_iter()
            .filter_map(|(at, end)| Some((at?, end)))
            .min_by_key(|(at, _)| *at)
    }

    async fn send(&mut self, order: &Order) {
        if let Ok(frame) = order.encode() {
            // A runner that does not take it is dead or stopped; both are noticed elsewhere.
            let _ = timeout(Duration::from_secs(1), self.orders.write_all(&frame)).await;
        }
    }

    fn take_reports(
        &mut self,
        parts: &mut Parts,
        follow: &mut impl FnMut(Stream, &[u8]),
    ) -> Result<Option<ExitReport>, WireError> {
        let mut live = |kept: &mut Capture, stream, bytes: &[u8]| {
            kept.push(bytes);
            follow(stream, bytes);
        };
        while let Some(report) = self.decoder.report()? {
            match report {
                Report::Out(bytes) => live(&mut self.live, Stream::Out, &bytes),
                Report::Err(bytes) => live(&mut self.live, Stream::Err, &bytes),
                Report::Gap(bytes) => self.live.skip(bytes),
                Report::Head(bytes) => parts.output.head = bytes.into(),
                Report::Tail(bytes) => parts.output.tail = bytes.into(),
                Report::Result(bytes) => parts.result = bytes.into(),
                Report::Exit(report) => return Ok(Some(report)),
            }
        }
        Ok(None)
    }

    async fn finish(mut self, parts: Parts, report: ExitReport) -> CommandExit {
        // With survivors the runner stays to see them die; then it is reaped when it is done.
        if report.survivors == 0 {
            self.reap().await;
        }
        CommandExit {
            end: report.end,
            status: report.status,
            output: Captured { total: report.output_total, ..parts.output },
            result: ResultBytes { bytes: parts.result, dropped: report.result_dropped },
            complaint: report.complaint,
            duration: report.duration,
            warnings: report.warnings,
            survivors: report.survivors,
        }
    }

    /// The runner is dead or must be: ends what it can no longer end.
    async fn replace_runner(mut self, end: End) -> CommandExit {
        // It may be stopped, or dead already.
        let _ = self.child.start_kill();
        self.reap().await;
        let (run, pid) = (self.run.clone(), self.pid);
        let swept = tokio::task::spawn_blocking(move || kill_run(&run, pid)).await;
        let swept = swept.unwrap_or_else(|error| {
            tracing::error!(%error, run = %self.run, "sweep failed");
            Swept::default()
        });
        CommandExit {
            end,
            status: None,
            output: self.live.finish(),
            result: ResultBytes::default(),
            complaint: None,
            duration: Moment::now().since(self.started_at),
            warnings: Vec::new(),
            survivors: swept.survivors,
        }
    }

    async fn reap(&mut self) {
        if timeout(RUNNER_SLACK, self.child.wait()).await.is_ok() {
            Children::lock().remove(self.pid);
        }
    }
}
