//! Why a task is where it is, and what a person can do about it.

use jiff::Timestamp;

use crate::executor::AD_HOC;
use crate::task::{Durability, Name, State, Task};

/// What the store knows about a task's surroundings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Surroundings {
    pub frozen: Option<String>,
    pub pool_paused: bool,
    /// Tasks of the same pool that come before it; none unless it is in line.
    pub ahead: u64,
    /// Workers whose lease stands and that run its type.
    pub workers_for_type: u32,
    /// Busy and total slots of its pool over those workers.
    pub pool_busy: u32,
    pub pool_size: u32,
    pub rate_limited_until: Option<Timestamp>,
    /// Running tasks of its type, and the limit on them.
    pub concurrency: Option<(u32, u32)>,
    /// It waits for another task with its `concurrency_key`.
    pub key_parked: bool,
    /// A quarantined task is running, and this one waits for that slot.
    pub quarantine_busy: bool,
    /// A node that may work without the store, and until when: nobody else claims before that is
    /// over, or it is back.
    pub waits_for: Option<(Name, Timestamp)>,
    pub cancel_requested: bool,
    /// The run ignores its end.
    pub stuck: bool,
    pub worker: Option<Name>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Why {
    pub state: State,
    /// One of the stable reasons; absent for a task that has ended or runs undisturbed.
    pub reason: Option<&'static str>,
    pub detail: String,
    pub since: Option<Timestamp>,
    pub hint: Option<String>,
}

/// Answers with the first thing that has to change before the task can go on.
pub fn why(task: &Task, around: &Surroundings, now: Timestamp) -> Why {
    match task.state {
        State::Pending => why_pending(task, around, now),
        State::Running => why_running(task, around),
        State::Completed => ended(task, completed_detail(task), None),
        State::Failed => {
            let error = task.error.as_ref().map_or_else(String::new, ToString::to_string);
            let hint = match &task.dismissed {
                Some(_) => None,
                None => Some(format!("repair the cause, then: matins retry {}", task.id)),
            };
            ended(task, format!("gave up after attempt {}: {error}", task.attempt), hint)
        }
        State::Cancelled => {
            let reason = task.cancel_reason.as_deref().unwrap_or("cancelled");
            ended(task, format!("cancelled ({reason})"), Some(format!("matins rerun {}", task.id)))
        }
    }
}

fn completed_detail(task: &Task) -> String {
    if task.deduplicated {
        "its execution_key had completed already; the recorded result stands".to_owned()
    } else {
        format!("completed by attempt {}", task.attempt)
    }
}

fn ended(task: &Task, detail: String, hint: Option<String>) -> Why {
    Why { state: task.state, reason: None, detail, since: task.finished_at, hint }
}

fn why_running(task: &Task, around: &Surroundings) -> Why {
    let worker = around.worker.as_deref().unwrap_or("a worker");
    let (reason, detail) = if around.stuck {
        (Some("stuck"), format!("attempt {} ignores its end on {worker}", task.attempt))
    } else if around.cancel_requested {
        (None, format!("attempt {} is being cancelled on {worker}", task.attempt))
    } else {
        (None, format!("attempt {} runs on {worker}", task.attempt))
    };
    let hint = match around.stuck {
        true => "it blocks its thread: only a restart of its program ends it".to_owned(),
        false => format!("matins output -f {}", task.id),
    };
    Why { state: task.state, reason, detail, since: task.started_at, hint: Some(hint) }
}

fn why_pending(task: &Task, around: &Surroundings, now: Timestamp) -> Why {
    let answer = |reason, detail: String, since, hint: Option<String>| Why {
        state: State::Pending,
        reason: Some(reason),
        detail,
        since,
        hint,
    };
    let since = Some(task.run_at.max(task.created_at));
    if task.held {
        let schedule = task.origin.as_ref().map_or("its schedule", |o| &o.schedule);
        let detail = format!("waits until the previous task of {schedule} has ended");
        let origin = task.origin.as_ref();
        let hint = origin.map(|o| format!("matins list --schedule {} --state running", o.schedule));
        return answer("overlap", detail, since, hint);
    }
    if task.run_at > now {
        let at = task.run_at;
        let hint = Some(format!("to run it now: matins retry {}", task.id));
        let created = Some(task.created_at);
        return match &task.error {
            Some(error) => {
                let detail = format!("attempt {} failed ({error}); again at {at}", task.attempt);
                answer("backing_off", detail, created, hint)
            }
            None => answer("due_later", format!("due at {at}"), created, hint),
        };
    }
    if let Some(reason) = &around.frozen {
        let hint = Some("matins thaw".to_owned());
        return answer("frozen", format!("the store is frozen: {reason}"), since, hint);
    }
    if let Some((node, until)) = &around.waits_for {
        let detail = format!(
            "node {node} may work from Redis without PostgreSQL until {until}, and that Redis is \
             another one now: nobody claims until the node has said that it does not"
        );
        let hint = format!("it goes on by itself; if {node} is dead: matins node forget {node}");
        return answer("stuck", detail, since, Some(hint));
    }
    if around.pool_paused {
        let hint = Some(format!("matins pool resume {}", task.pool));
        return answer("pool_paused", format!("pool {} is paused", task.pool), since, hint);
    }
    if around.workers_for_type == 0 {
        let (detail, hint) = nobody_runs(&task.kind);
        return answer("no_worker_for_type", detail, since, Some(hint));
    }
    if around.key_parked {
        let key = task.concurrency_key.as_deref().unwrap_or("");
        let detail = format!("another task with concurrency key {key:?} goes first");
        return answer("concurrency_key", detail, since, Some(running_of(task)));
    }
    if let Some((running, limit)) = around.concurrency.filter(|(running, limit)| running >= limit) {
        let detail = format!("{running} of at most {limit} tasks of type {} run", task.kind);
        return answer("concurrency", detail, since, Some(running_of(task)));
    }
    if let Some(until) = around.rate_limited_until {
        let detail = format!("the rate limit of type {} opens at {until}", task.kind);
        let hint = format!("wait, or raise rate_limit of {} under tasks: and reload", task.kind);
        return answer("rate_limited", detail, since, Some(hint));
    }
    if task.in_quarantine() && around.quarantine_busy {
        let detail = format!("{} losses: runs alone, and another one has that slot", task.losses);
        return answer("quarantine", detail, since, Some(format!("matins show {}", task.id)));
    }
    let Surroundings { ahead, pool_busy, pool_size, .. } = around;
    let pool = &task.pool;
    if *pool_size == 0 {
        let detail =
            format!("no live server that runs type {} has slots of pool {pool}", task.kind);
        let hint = format!("has one {pool} under task_pools:? A remote worker may still take it");
        return answer("pool_full", detail, since, Some(hint));
    }
    let detail = format!(
        "{ahead} tasks of pool {pool} come first; {pool_busy} of {pool_size} slots are busy"
    );
    let hint = match *ahead == 0 && pool_busy < pool_size {
        true => "it is next; if it stays so: matins status --live".to_owned(),
        false => format!("matins pool resize {pool} N"),
    };
    answer("pool_full", detail, since, Some(hint))
}

/// Of a type whose tasks say themselves what to run, a worker may be there that must not.
fn nobody_runs(kind: &str) -> (String, String) {
    if AD_HOC.contains(&kind) {
        let detail = format!("no live worker runs type {kind}: none is up, or none may");
        let hint = format!(
            "is one up? matins node list. Then let it: allow_commands: [{kind}] in its \
             matins.yaml (on PostgreSQL the default is none), and reload it"
        );
        return (detail, hint);
    }
    let hint = format!("define {kind} under tasks: and start: matins serve");
    (format!("no live worker runs type {kind}"), hint)
}

/// While the database is away, and what is known of a task is from before or from what stands in.
pub fn in_the_dark(task: &Task) -> Why {
    let is_pending = task.state == State::Pending;
    let unjudged =
        is_pending && task.durability != Durability::Store && task.execution_key.is_some();
    let detail = match (is_pending, unjudged) {
        (true, true) => "PostgreSQL is away: whether its execution_key is free, only it knows",
        (true, false) => "PostgreSQL is away: it waits for that, or for a worker with Redis",
        (false, _) => "PostgreSQL is away: this is what was last known",
    };
    Why {
        state: task.state,
        reason: unjudged.then_some("key_needs_database"),
        detail: detail.to_owned(),
        since: Some(task.created_at),
        hint: Some("it goes on by itself; is PostgreSQL up? matins doctor".to_owned()),
    }
}

fn running_of(task: &Task) -> String {
    format!("matins list --type {} --state running", task.kind)
}
