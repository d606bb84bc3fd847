//! Tasks that run a program: the types of the worker's file, and the ad-hoc type `command`.
//!
//! The limits of a run are the runner's to enforce (see [`crate::process`]); this module only
//! says which they are, and translates how it ended. It must never put anything of a task into
//! an argument vector that the file or an ad-hoc payload did not ask for.

mod ad_hoc;
mod outcome;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use matins_core::executor::{Executor, Finished, Run, StopReason, Supervision};
use matins_core::lifecycle::Outcome;
use matins_core::limits::Limits;
use matins_core::task::{ErrorClass, Task, TaskError};

use super::{CommandConfig, CommandLine, ResultMode};
use crate::process::{
    CommandExit, CommandSpec, End, Lease, Moment, Program, ResultFrom, RunId, Runner, Running,
    Stream, with_parts,
};

pub use ad_hoc::AdHoc;

/// Larger payloads reach a command on standard input only.
pub const PAYLOAD_VARIABLE_BYTES_MAX: usize = 32 << 10;

/// What commands of all types share on a node.
#[derive(Clone)]
pub struct CommandHost {
    pub runner: Runner,
    /// Marks the processes of this node, so that its successor finds what is left of them.
    pub node_id: String,
    pub limits: Limits,
}

/// Where the command comes from.
enum Source {
    File(CommandConfig),
    /// From the payload; relative folders start from here.
    Payload(PathBuf),
}

pub struct CommandExecutor {
    host: CommandHost,
    source: Source,
    /// Limits that cannot be honoured here are told once, not with every run.
    told: Mutex<BTreeSet<String>>,
}

impl CommandExecutor {
    /// A type of the worker's own file: its payload is the command's standard input.
    pub fn of_type(host: CommandHost, config: CommandConfig) -> Self {
        Self { host, source: Source::File(config), told: Mutex::default() }
    }

    /// The built-in type `command`: its payload says what to run.
    pub fn ad_hoc(host: CommandHost, base_dir: PathBuf) -> Self {
        Self { host, source: Source::Payload(base_dir), told: Mutex::default() }
    }

    fn plan(&self, task: &Task) -> Result<(CommandConfig, Vec<u8>), String> {
        match &self.source {
            Source::File(config) => Ok((config.clone(), task.payload.as_str().as_bytes().to_vec())),
            Source::Payload(base_dir) => {
                let ad_hoc = AdHoc::parse(&task.payload)?;
                Ok(ad_hoc.into_config(base_dir))
            }
        }
    }

    fn spec(&self, run: &Run, config: &CommandConfig, stdin: Vec<u8>) -> CommandSpec {
        let program = program(&config.line);
        let mut spec = CommandSpec::new(RunId::new(self.host.node_id.clone()), program);
        spec.env = environment(&run.claimed.task, run.claimed.claim.fence);
        let own = config.env.iter().map(|(name, value)| (name.into(), (&value.value).into()));
        spec.env.extend(own);
        let secret = config.env.values().filter(|setting| setting.secret);
        spec.secrets = secret.flat_map(|setting| with_parts(&setting.value)).collect();
        spec.cwd = Some(config.cwd.clone());
        spec.stdin = stdin;
        spec.user.clone_from(&config.user);
        spec.nice = config.nice;
        spec.memory_max = config.memory_max;
        spec.cpu_max = config.cpu_max;
        spec.timeout = run.timeout.limit();
        spec.grace = run.grace;
        spec.lease = lease(&*run.supervision, run.grace);
        spec.output_bytes = self.host.limits.output_bytes;
        spec.result_bytes = self.host.limits.result_bytes;
        spec.result_from = match config.result {
            ResultMode::LastJsonLine => ResultFrom::LastJsonLine,
            ResultMode::Stdout => ResultFrom::Stdout,
            ResultMode::None => ResultFrom::None,
        };
        spec
    }

    fn tell_once(&self, kind: &str, exit: &CommandExit) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in &exit.warnings {
            if told.insert(warning.clone()) {
                tracing::warn!(kind, "{warning}");
            }
        }
        if exit.survivors > 0 {
            tracing::error!(kind, survivors = exit.survivors, "processes outlived SIGKILL");
        }
    }

    /// The cleanup of a timed-out run, with the same surroundings and a limit of its own.
    async fn clean_up(&self, run: &Run, config: &CommandConfig) -> Option<String> {
        let (line, limit) = config.on_timeout.as_ref()?;
        let mut spec = self.spec(run, config, Vec::new());
        spec.program = program(line);
        spec.timeout = Some(*limit);
        spec.result_from = ResultFrom::None;
        let end = match self.host.runner.spawn(spec).await {
            Ok(running) => {
                outcome::describe(&drive(running, run, Some(StopReason::Timeout)).await.0)
            }
            Err(error) => error.to_string(),
        };
        Some(format!("on_timeout: {end}"))
    }
}

#[async_trait]
impl Executor for CommandExecutor {
    async fn run(&self, run: Run) -> Finished {
        let task = &run.claimed.task;
        let (config, stdin) = match self.plan(task) {
            Ok(plan) => plan,
            Err(message) => return permanent(message),
        };
        let spec = self.spec(&run, &config, stdin);
        if let Err(error) = spec.check() {
            return permanent(error.to_string());
        }
        let running = match self.host.runner.spawn(spec).await {
            Ok(running) => running,
            Err(error) => {
                let error = TaskError::new(ErrorClass::Spawn, error.to_string());
                return Outcome::Failed { error, permanent: false, retry_after: None }.into();
            }
        };
        let (exit, reason) = drive(running, &run, None).await;
        self.tell_once(&task.kind, &exit);
        let timed_out = exit.end == End::TimedOut
            || exit.end == End::Cancelled && reason == Some(StopReason::Timeout);
        let cleanup = if timed_out { self.clean_up(&run, &config).await } else { None };
        outcome::finished(&exit, reason, run.timeout, &config, &self.host.limits, cleanup)
    }
}

fn permanent(message: String) -> Finished {
    let error = TaskError::new(ErrorClass::Permanent, message);
    Outcome::Failed { error, permanent: true, retry_after: None }.into()
}

fn program(line: &CommandLine) -> Program {
    match line {
        CommandLine::Argv(words) => Program::Argv(words.iter().map(Into::into).collect()),
        CommandLine::Shell(text) => Program::Shell(text.into()),
    }
}

fn lease(supervision: &dyn Supervision, grace: Duration) -> Option<Lease> {
    let deadline = supervision.lease_deadline().map(Moment::from_nanos)?;
    Some(Lease { deadline, grace })
}

/// What a command is told of its task.
fn environment(task: &Task, fence: u64) -> Vec<(OsString, OsString)> {
    let mut environment = vec![
        ("MATINS_TASK_ID".into(), task.id.to_string().into()),
        ("MATINS_ATTEMPT".into(), task.attempt.to_string().into()),
        ("MATINS_FENCE".into(), fence.to_string().into()),
    ];
    let mut add = |name: &str, value: &str| environment.push((name.into(), value.into()));
    if let Some(key) = &task.execution_key {
        add("MATINS_EXECUTION_KEY", key);
    }
    if task.payload.byte_len() <= PAYLOAD_VARIABLE_BYTES_MAX {
        add("MATINS_PAYLOAD", task.payload.as_str());
    }
    if let Some(origin) = &task.origin {
        add("MATINS_OCCURRENCE_TIME", &origin.time.to_string());
        // A label begins with the date in the schedule's own terms.
        let date = origin.label.split('T').next().unwrap_or_default();
        add("MATINS_OCCURRENCE_DATE", date);
    }
    environment
}

/// Follows a run to its end: passes renewals and the wish to stop on to the runner.
/// A wish in `told` has been heard already: the cleanup after a timeout is not ended by it.
async fn drive(
    running: Running,
    run: &Run,
    told: Option<StopReason>,
) -> (CommandExit, Option<StopReason>) {
    let supervision = &*run.supervision;
    let control = running.control();
    let mut exit = pin!(running.wait(|stream, chunk| match stream {
        Stream::Out => supervision.output(chunk),
        Stream::Err => supervision.error_output(chunk),
    }));
    let mut seen = supervision.lease_deadline();
    let mut reason = told;
    loop {
        tokio::select! {
            exit = &mut exit => return (exit, reason),
            deadline = supervision.lease_renewed(seen), if seen.is_some() => {
                seen = deadline.or(seen);
                if let Some(deadline) = deadline {
                    control.extend(Moment::from_nanos(deadline));
                }
            }
            stop = supervision.stopped(), if reason.is_none() => {
                reason = Some(stop);
                control.cancel(Some(supervision.patience(run.grace)));
            }
        }
    }
}
