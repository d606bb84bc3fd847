//! How the end of a process reads as the end of a task.

use matins_core::Json;
use matins_core::duration::Timeout;
use matins_core::executor::{Finished, StopReason};
use matins_core::lifecycle::{Outcome, Trace};
use matins_core::limits::Limits;
use matins_core::task::{ErrorClass, Output, TaskError};

use super::super::{CommandConfig, ResultMode};
use crate::process::{Captured, CommandExit, End, ResultBytes, Status};

pub(super) fn finished(
    exit: &CommandExit,
    reason: Option<StopReason>,
    timeout: Timeout,
    config: &CommandConfig,
    limits: &Limits,
    cleanup: Option<String>,
) -> Finished {
    let exit_code = match exit.status {
        Some(Status::Code(code)) => Some(code),
        Some(Status::Signal(_)) | None => None,
    };
    let outcome = outcome(exit, reason, timeout, config, limits, cleanup);
    let trace = Trace { exit_code, http_status: None, output: output(&exit.output) };
    Finished { outcome, trace }
}

fn outcome(
    exit: &CommandExit,
    reason: Option<StopReason>,
    timeout: Timeout,
    config: &CommandConfig,
    limits: &Limits,
    cleanup: Option<String>,
) -> Outcome {
    let timed_out = || {
        let cleanup = cleanup.map(|text| format!("; {text}")).unwrap_or_default();
        let text = format!("did not end within {timeout}{cleanup}");
        Outcome::TimedOut { error: TaskError::new(ErrorClass::Timeout, text) }
    };
    let lost = |text: String| Outcome::Lost { error: TaskError::new(ErrorClass::WorkerLost, text) };
    let failed = |class, permanent| {
        let complaint = exit.complaint.as_deref().map(|line| format!(": {line}"));
        let text = describe(exit) + &complaint.unwrap_or_default();
        Outcome::Failed { error: TaskError::new(class, text), permanent, retry_after: None }
    };
    match &exit.end {
        End::Exited(0) => completed(&exit.result, config.result, limits),
        End::Exited(code) => failed(ErrorClass::Exit, config.permanent_exit_codes.contains(code)),
        End::Signaled(_) => failed(ErrorClass::Signal, false),
        End::OomSuspected => failed(ErrorClass::Oom, false),
        End::SpawnFailed { permanent, .. } => failed(ErrorClass::Spawn, *permanent),
        End::TimedOut => timed_out(),
        End::Cancelled => match reason {
            Some(StopReason::Timeout) => timed_out(),
            // It was asked to end and says that its work is done. What stops short of that has
            // another exit code, or the signal's.
            Some(StopReason::Shutdown | StopReason::Cancel)
                if exit.status == Some(Status::Code(0)) =>
            {
                completed(&exit.result, config.result, limits)
            }
            Some(StopReason::Shutdown) => Outcome::Interrupted,
            Some(StopReason::LeaseLost) => lost("the claim was lost".to_owned()),
            Some(StopReason::Cancel) | None => Outcome::Cancelled,
        },
        End::LeaseLost | End::RunnerLost | End::ParentGone => lost(describe(exit)),
    }
}

/// For people, in one line.
pub(super) fn describe(exit: &CommandExit) -> String {
    match &exit.end {
        End::Exited(code) => format!("exit code {code}"),
        End::Signaled(signal) => format!("killed by signal {signal}{}", signal_name(*signal)),
        End::OomSuspected => "killed, probably for using more than memory_max".to_owned(),
        End::SpawnFailed { message, .. } => message.clone(),
        End::TimedOut => "did not end in time".to_owned(),
        End::Cancelled => "ended on request".to_owned(),
        End::LeaseLost => "ended because the lease was not renewed in time".to_owned(),
        End::RunnerLost => "the process runner died under the command".to_owned(),
        End::ParentGone => "ended because its worker died".to_owned(),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        25 => " (SIGXFSZ)",
        _ => "",
    }
}

fn completed(result: &ResultBytes, mode: ResultMode, limits: &Limits) -> Outcome {
    let json = match mode {
        ResultMode::LastJsonLine => {
            std::str::from_utf8(&result.bytes).ok().and_then(|line| Json::parse(line).ok())
        }
        ResultMode::Stdout => Some(Json::string(&String::from_utf8_lossy(&result.bytes))),
        ResultMode::None => None,
    };
    // Escapes may make a string longer than the bytes it stands for.
    let dropped = match &json {
        _ if result.dropped > 0 => Some(result.dropped),
        Some(json) if json.byte_len() > limits.result_bytes => Some(json.byte_len() as u64),
        _ => None,
    };
    let result = json.filter(|_| dropped.is_none());
    Outcome::Completed { result, result_dropped_bytes: dropped }
}

fn output(captured: &Captured) -> Output {
    let dropped = captured.dropped();
    let gap_at = captured.head.len();
    Output { bytes: captured.bytes(), dropped, gap_at }
}
