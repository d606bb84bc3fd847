//! `matins run`: a durable command. Its output streams here while it runs, and this process
//! exits like it; but the task is Matins' own, and goes on when this process is gone.
//!
//! A server on the same store runs it, or the server that `--server` names. Without one this
//! process is a worker for this one task, with a lease of its own: should it be killed, the task
//! is found lost and run again by whoever works on the store next.

mod worker;

use std::cell::Cell;
use std::time::Duration;

use clap::Args;
use matins_core::Json;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::enqueue::Body;
use super::follow;
use crate::door::{Door, Request};
use crate::failure::{Failure, Result};
use crate::output::{self, text};
use crate::session::{Global, Session};
use crate::views::{Task, Why};

/// Exit codes of `run` itself, as `timeout(1)` and `env(1)` have them.
const TIMED_OUT: u8 = 124;
const OWN_ERROR: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: u8 = 128;

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Execution key: a command that completed under it is not run again, its result is printed
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Time limit, or none [default: 5m]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Pool [default: that of the type command]
    #[arg(long)]
    pool: Option<String>,
    /// Variable of this environment that the command gets too; kept with the task. May be given
    /// several times
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Retries after a failure [default: 0]
    #[arg(long, value_name = "N", default_value = "0")]
    max_retries: u64,
    /// Print the task's id and leave it to a server
    #[arg(long)]
    detach: bool,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Run {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        match self.execute(global).await {
            Ok(0) => Ok(()),
            Ok(code) => Err(Failure::silent(code)),
            // A reader that went away is no error of ours.
            Err(failure) if failure.message.is_none() => Err(failure),
            Err(failure) => Err(Failure { code: OWN_ERROR, ..failure }),
        }
    }

    async fn execute(self, global: &Global) -> Result<u8> {
        let payload = self.payload()?;
        let body = Body {
            execution_key: self.key.as_deref(),
            pool: self.pool.as_deref(),
            timeout: self.timeout.as_deref(),
            max_retries: Some(self.max_retries),
            ..Body::new("command", Some(payload))
        };
        let session = Session::open(global)?;
        // From here on somebody may be waiting, and may lose patience.
        let signals = Signals::new()?;
        let answer = session.ask(Request::post(&["tasks"]).body(&body)?).await?;
        let task: Task = answer.decode()?;
        if task.deduplicated && task.state == "completed" {
            return recorded(&session, &answer, &task);
        }
        if self.detach {
            if session.out.json {
                answer.print()?;
            } else {
                output::line(&task.id)?;
            }
            if session.door.has_no_server() {
                output::note("no server runs on this store, it waits for: matins serve");
            }
            return Ok(0);
        }
        if task.deduplicated {
            output::note(&format!("the key is taken by a {} task: following it", task.word()));
        }
        Watch::new(&session, task).until_ended(signals).await
    }

    fn payload(&self) -> Result<Json> {
        let here = std::env::current_dir().map_err(|e| Failure::io("the working directory", &e))?;
        let mut payload = json!({ "argv": self.command, "cwd": here });
        let mut env = serde_json::Map::new();
        for item in &self.env {
            let (name, value) = match item.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (
                    item.as_str(),
                    std::env::var(item).map_err(|_| {
                        Failure::usage(format!("--env {item}: the environment has no such text"))
                    })?,
                ),
            };
            env.insert(name.to_owned(), json!(value));
        }
        if !env.is_empty() {
            payload["env"] = env.into();
        }
        Json::of(&payload)
            .map_err(|error| Failure::usage(format!("the command cannot be written: {error}")))
    }
}

/// What a run under the same key left behind.
fn recorded(session: &Session, answer: &crate::door::Answer, task: &Task) -> Result<u8> {
    if session.out.json {
        answer.print()?;
        return Ok(0);
    }
    output::note(&format!("completed before, as {}", task.id));
    if let Some(result) = task.result.as_ref().filter(|result| result.get() != "null") {
        output::line(result.get())?;
    }
    Ok(0)
}

/// What ends the waiting.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Failure::io("cannot listen to signals", &e));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }
}

/// Looks after one task until it has ended.
struct Watch<'a> {
    session: &'a Session,
    id: String,
    /// Somebody else's task: leaving it is not cancelling it.
    others: bool,
    cancelled: Cell<bool>,
    /// Something of its output has been shown.
    shown: Cell<bool>,
}

/// After this long without a start, it is said why.
const WHY_AFTER: Duration = Duration::from_secs(3);
/// Between two looks at a task whose stream has broken off.
const LOOK: Duration = Duration::from_millis(200);

/// What happened first.
enum Event {
    Followed(Result<Option<follow::End>>),
    Interrupt,
    Terminate,
    Waited,
}

impl<'a> Watch<'a> {
    fn new(session: &'a Session, task: Task) -> Self {
        Self {
            session,
            id: task.id,
            others: task.deduplicated,
            cancelled: Cell::default(),
            shown: Cell::default(),
        }
    }

    async fn until_ended(self, mut signals: Signals) -> Result<u8> {
        let mut worker: Option<worker::Worker> = None;
        let code = loop {
            let server = self.server();
            if server.is_none() && worker.is_none() {
                worker = Some(worker::Worker::start(self.session, &self.id).await?);
            }
            let door = server.as_ref().unwrap_or(&self.session.door);
            match self.follow(door, &mut signals).await {
                Ok(Some(code)) => break Ok(code),
                Ok(None) => {}
                Err(failure) => break Err(failure),
            }
            if let Some(code) = self.ended().await? {
                break Ok(code);
            }
            tokio::time::sleep(LOOK).await;
        };
        if let Some(worker) = worker {
            worker.stop().await;
        }
        code
    }

    /// Who runs it, if somebody else does.
    fn server(&self) -> Option<Door> {
        match &self.session.door {
            Door::Http(door) => Some(Door::Http(door.clone())),
            Door::Local(door) => door.live_server().map(Door::Http),
        }
    }

    /// Follows one attempt. An exit code: nothing more is to be done here.
    async fn follow(&self, door: &Door, signals: &mut Signals) -> Result<Option<u8>> {
        let quiet = self.session.out.json;
        let sink = |bytes: &[u8]| {
            self.shown.set(true);
            if quiet { Ok(()) } else { output::bytes(bytes) }
        };
        let id = self.id.clone();
        let mut followed = std::pin::pin!(follow::attempt(door, &id, None, sink));
        let mut waiting = std::pin::pin!(tokio::time::sleep(WHY_AFTER));
        let mut said = false;
        loop {
            let event = tokio::select! {
                followed = &mut followed => Event::Followed(followed),
                _ = signals.interrupt.recv() => Event::Interrupt,
                _ = signals.terminate.recv() => Event::Terminate,
                () = &mut waiting, if !said => Event::Waited,
            };
            match event {
                Event::Followed(Err(failure)) if failure.message.is_none() => return Err(failure),
                // Ended, or a server went away: the next look finds whoever comes after it.
                Event::Followed(_) => return Ok(None),
                Event::Waited => {
                    said = true;
                    self.say_why().await;
                }
                Event::Interrupt if self.others => {
                    output::note(&format!("left; it goes on: matins output -f {id}"));
                    return Ok(Some(SIGNALLED + 2));
                }
                Event::Interrupt if self.cancelled.get() => return Ok(Some(SIGNALLED + 2)),
                Event::Interrupt => {
                    self.cancelled.set(true);
                    output::note("cancelling; once more to leave it");
                    let request = Request::post(&["tasks", &id, "cancel"]).body(&json!({}))?;
                    // It may have ended in this moment, which is seen next.
                    let _ = self.session.door.ask(request).await?;
                }
                Event::Terminate => return Ok(Some(SIGNALLED + 15)),
            }
        }
    }

    async fn say_why(&self) {
        let Ok(answer) = self.session.door.ask(Request::get(&["tasks", &self.id, "why"])).await
        else {
            return;
        };
        if let Ok(why) = answer.decode::<Why>()
            && why.state == "pending"
        {
            output::note(&format!("waiting: {}", text::line(&why.detail)));
        }
    }

    /// The exit code of a task that has ended.
    async fn ended(&self) -> Result<Option<u8>> {
        let answer = self.session.ask(Request::get(&["tasks", &self.id])).await?;
        let task: Task = answer.decode()?;
        if !task.has_ended() {
            return Ok(None);
        }
        if self.session.out.json {
            answer.print()?;
        } else if !self.shown.get() && task.attempt.is_some_and(|attempt| attempt > 0) {
            // Whoever ran it could not be listened to.
            let request = Request::get(&["tasks", &self.id, "output"]);
            output::bytes(&self.session.ask(request).await?.body)?;
        }
        Ok(Some(exit_code(&task)))
    }
}

/// Exits like the command; what is not the command's doing is said.
fn exit_code(task: &Task) -> u8 {
    let last = task.attempts.last();
    let message = task.error.as_ref().map(|error| text::line(&error.message)).unwrap_or_default();
    match &*task.state {
        "completed" => return 0,
        "cancelled" => {
            output::note("cancelled");
            return SIGNALLED + 2;
        }
        _ => {}
    }
    match task.error.as_ref().map_or("", |error| &*error.class) {
        "exit" => {
            let code = last.and_then(|attempt| attempt.exit_code);
            return code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
        }
        "signal" | "oom" => {
            output::note(&message);
            let signal = message.split_ascii_whitespace().find_map(|word| word.parse::<u8>().ok());
            return signal.map_or(SIGNALLED + 9, |signal| SIGNALLED.saturating_add(signal));
        }
        _ => output::note(&message),
    }
    match task.error.as_ref().map_or("", |error| &*error.class) {
        "timeout" => TIMED_OUT,
        "spawn" if message.to_lowercase().contains("permission denied") => NOT_EXECUTABLE,
        "spawn" => NOT_FOUND,
        _ => OWN_ERROR,
    }
}
