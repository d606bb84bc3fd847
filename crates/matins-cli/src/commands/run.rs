//! `matins run`: a durable command. Its output streams here while it runs, and this process
//! exits like it; but the task is Matins' own, and goes on when this process is gone.
//!
//! A server on the same store runs it, or the server that `--server` names. Without one this
//! process is a worker for this one task, with a lease of its own: should it be killed, the task
//! is found lost and run again by whoever works on the store next.

mod screen;
mod worker;

use std::cell::Cell;
use std::time::Duration;

use clap::Args;
use matins_core::Json;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::enqueue::Body;
use super::follow;
use super::waiting::{WHY_AFTER, Waiting};
use crate::door::{Door, Request};
use crate::failure::{Failure, Result};
use crate::output::{self, text};
use crate::session::{Global, Session};
use crate::views::Task;
use screen::Screen;
use worker::Worker;

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
    /// Retries after a failure
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
        let session = Session::by_the_file(global)?;
        // From here on somebody may be waiting, and may lose patience.
        let signals = Signals::new()?;
        if !self.detach && Watch::server(&session).is_none() {
            worker::may_run(&session)?;
        }
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
            if session.door.has_no_server().await {
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
    screen: Screen,
}

/// Between two looks at a task whose stream has broken off.
const LOOK: Duration = Duration::from_millis(200);

/// What happened first.
enum Event {
    Over,
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
            screen: Screen::new(session.out.json),
        }
    }

    async fn until_ended(self, mut signals: Signals) -> Result<u8> {
        let mut worker: Option<Worker> = None;
        let mut waiting = Waiting::new(self.session, &self.id);
        let code = loop {
            let server = Self::server(self.session);
            if server.is_none() && worker.is_none() {
                let screen = self.screen.clone();
                worker = Some(Worker::start(self.session, &self.id, screen).await?);
            }
            let left = match (&server, &worker) {
                (Some(door), _) => {
                    self.attend(self.follow(door), &mut waiting, &mut signals).await?
                }
                (None, Some(worker)) => {
                    self.attend(worker.wait(), &mut waiting, &mut signals).await?
                }
                (None, None) => None,
            };
            if let Some(code) = left {
                break code;
            }
            if let Some(code) = self.ended(&mut waiting, &mut signals).await? {
                break code;
            }
            tokio::time::sleep(LOOK).await;
        };
        if let Some(worker) = worker {
            worker.stop().await;
        }
        Ok(code)
    }

    /// Shows what a server's run writes, until the attempt has ended or the server is gone:
    /// whoever comes after it is found by the next look.
    async fn follow(&self, door: &Door) {
        let show = |stream, bytes: &[u8]| {
            self.screen.put(stream, bytes);
            Ok(())
        };
        let _ = follow::attempt(door, &self.id, None, show).await;
    }

    /// Who runs it, if somebody else does.
    fn server(session: &Session) -> Option<Door> {
        match &session.door {
            Door::Http(door) => Some(Door::Http(door.clone())),
            Door::Local(door) => door.live_server().map(Door::Http),
        }
    }

    /// Until `work` is over, or somebody loses patience: then with an exit code.
    async fn attend(
        &self,
        work: impl Future<Output = ()>,
        waiting: &mut Waiting<'_>,
        signals: &mut Signals,
    ) -> Result<Option<u8>> {
        let id = &self.id;
        let mut work = std::pin::pin!(work);
        let mut patience = std::pin::pin!(tokio::time::sleep(WHY_AFTER));
        let mut said = false;
        loop {
            let event = tokio::select! {
                () = &mut work => Event::Over,
                _ = signals.interrupt.recv() => Event::Interrupt,
                _ = signals.terminate.recv() => Event::Terminate,
                () = &mut patience, if !said => Event::Waited,
            };
            match event {
                Event::Over => return Ok(None),
                Event::Waited => {
                    said = true;
                    waiting.say_why().await;
                }
                Event::Interrupt if self.others => {
                    output::note(&format!("left; it goes on: matins output -f {id}"));
                    return Ok(Some(SIGNALLED + 2));
                }
                Event::Interrupt if self.cancelled.get() => return Ok(Some(SIGNALLED + 2)),
                Event::Interrupt => {
                    self.cancelled.set(true);
                    output::note("cancelling; once more to leave it");
                    let request = Request::post(&["tasks", id, "cancel"]).body(&json!({}))?;
                    // It may have ended in this moment, which is seen next.
                    let _ = self.session.door.ask(request).await?;
                }
                Event::Terminate => return Ok(Some(SIGNALLED + 15)),
            }
        }
    }

    /// The exit code of a task that has ended.
    async fn ended(&self, waiting: &mut Waiting<'_>, signals: &mut Signals) -> Result<Option<u8>> {
        let Some(answer) = waiting.look().await? else { return Ok(None) };
        let task: Task = answer.decode()?;
        if !task.has_ended() {
            return Ok(None);
        }
        if self.session.out.json {
            answer.print()?;
        } else if !self.screen.is_used() && task.attempt.is_some_and(|attempt| attempt > 0) {
            // Whoever ran it could not be listened to.
            let request = Request::get(&["tasks", &self.id, "output"]);
            self.screen.put(follow::Stream::Out, &self.session.ask(request).await?.body);
        }
        // A reader that does not read is waited for, but not against somebody's will.
        tokio::select! {
            () = self.screen.flush() => {}
            _ = signals.interrupt.recv() => {}
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
