//! Starting the command: who it is, where, with what environment and within which limits.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{getpriority_process, setpriority_process};

#[cfg(target_os = "linux")]
use super::super::cgroup::Cgroup;
use super::super::mask::SECRET_BYTES_MIN;
use super::super::spec::{CommandSpec, Program, RUN_MARK};
use super::super::user;

pub(super) struct Started {
    pub(super) child: Child,
    #[cfg(target_os = "linux")]
    pub(super) group: Option<Cgroup>,
}

pub(super) struct Failure {
    pub(super) message: String,
    pub(super) permanent: bool,
}

impl Failure {
    fn permanent(message: impl Into<String>) -> Self {
        Self { message: message.into(), permanent: true }
    }
}

/// Whether the host lacks something now that it may have later.
fn is_passing(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    let passing =
        [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY, Errno::INTR];
    errno.is_some_and(|errno| passing.contains(&errno))
}

/// Starts the command or says why not. Limits that cannot be honoured become warnings.
pub(super) fn start(spec: &CommandSpec, warnings: &mut Vec<String>) -> Result<Started, Failure> {
    let mut command = command(spec)?;
    #[cfg(target_os = "linux")]
    let (group, started) = {
        let group = limited_group(spec, warnings);
        let started = match &group {
            Some(group) => group.around(|| spawn(&mut command, spec.nice, warnings)),
            None => spawn(&mut command, spec.nice, warnings),
        };
        (group, started)
    };
    #[cfg(not(target_os = "linux"))]
    let started = spawn(&mut command, spec.nice, warnings);
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            #[cfg(target_os = "linux")]
            if let Some(group) = group {
                let _ = group.remove();
            }
            let program = command.get_program();
            return Err(Failure {
                message: format!("cannot run {}: {error}", program.display()),
                permanent: !is_passing(&error),
            });
        }
    };
    #[cfg(target_os = "linux")]
    let has_group = group.is_some();
    #[cfg(not(target_os = "linux"))]
    let has_group = false;
    limit(spec, &child, has_group, warnings);
    Ok(Started {
        child,
        #[cfg(target_os = "linux")]
        group,
    })
}

fn command(spec: &CommandSpec) -> Result<Command, Failure> {
    let mut command = match &spec.program {
        Program::Argv(argv) => {
            let (program, arguments) =
                argv.split_first().ok_or_else(|| Failure::permanent("argv: expected a program"))?;
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        Program::Shell(text) => {
            let mut command = Command::new("/bin/sh");
            command.args([OsStr::new("-c"), text]);
            command
        }
    };
    command.env_clear().envs(spec.inherited.iter().map(|(name, value)| (name, value)));
    if let Some(wanted) = &spec.user {
        let user =
            user::find(wanted).map_err(|message| Failure::permanent(format!("user: {message}")))?;
        command.uid(user.uid).gid(user.gid);
        command.env("USER", &user.name).env("LOGNAME", &user.name);
        command.env("HOME", &user.home).env("SHELL", &user.shell);
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    command.env(RUN_MARK, spec.run.to_string());
    if let Some(cwd) = &spec.cwd {
        // `spawn` reports a missing directory as if the program were missing.
        match std::fs::metadata(cwd) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let text = format!("cwd: {} is not a directory", cwd.display());
                return Err(Failure::permanent(text));
            }
            Err(error) => {
                let text = format!("cwd: {}: {error}", cwd.display());
                return Err(Failure::permanent(text));
            }
        }
        command.current_dir(cwd);
    }
    // A group of its own, so that a task that signals its group does not hit the runner.
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// The control group that holds the limits, when both can be set in it.
#[cfg(target_os = "linux")]
fn limited_group(spec: &CommandSpec, warnings: &mut Vec<String>) -> Option<Cgroup> {
    if spec.memory_max.is_none() && spec.cpu_max.is_none() {
        return None;
    }
    let group = Cgroup::create(&spec.run).ok();
    let set = |limit: &dyn Fn(&Cgroup) -> io::Result<()>| {
        group.as_ref().is_some_and(|group| limit(group).is_ok())
    };
    if let Some(bytes) = spec.memory_max
        && !set(&|group| group.set_memory_max(bytes))
    {
        warnings.push(
            "memory_max: no memory control group can be made here; \
             limited per process by RLIMIT_DATA instead of for the whole tree"
                .to_owned(),
        );
    }
    if let Some(cpus) = spec.cpu_max
        && !set(&|group| group.set_cpu_max(cpus))
    {
        warnings.push("cpu_max: no cpu control group can be made here; not limited".to_owned());
    }
    group
}

/// A command has its priority from its birth, so this process takes it on meanwhile. Without the
/// right to return from it the runner keeps it; what it does is little.
fn spawn(
    command: &mut Command,
    nice: Option<i32>,
    warnings: &mut Vec<String>,
) -> io::Result<Child> {
    let Some(nice) = nice else { return command.spawn() };
    let before = getpriority_process(None);
    if let Err(error) = setpriority_process(None, nice) {
        warnings.push(format!("nice: {nice} was refused: {}", io::Error::from(error)));
    }
    let child = command.spawn();
    if let Ok(before) = before {
        let _ = setpriority_process(None, before);
    }
    child
}

/// What is set from outside on the process just started.
fn limit(spec: &CommandSpec, child: &Child, has_group: bool, warnings: &mut Vec<String>) {
    #[cfg(target_os = "linux")]
    if let Some(bytes) = spec.memory_max
        && warnings.iter().any(|warning| warning.starts_with("memory_max"))
    {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let pid = Pid::from_raw(child.id() as i32);
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        if let Err(error) = prlimit(pid, Resource::Data, limit) {
            let error = io::Error::from(error);
            warnings.push(format!("memory_max: RLIMIT_DATA was refused as well: {error}"));
        }
    }
    if cfg!(not(target_os = "linux")) && !has_group {
        for (name, set) in
            [("memory_max", spec.memory_max.is_some()), ("cpu_max", spec.cpu_max.is_some())]
        {
            if set {
                warnings.push(format!("{name}: not available on this system; not limited"));
            }
        }
    }
    if spec.secrets.iter().any(|secret| !secret.is_empty() && secret.len() < SECRET_BYTES_MIN) {
        warnings.push(format!(
            "secrets shorter than {SECRET_BYTES_MIN} bytes are not masked in output"
        ));
    }
}
