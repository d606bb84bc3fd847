//! What an observer from outside sees.

use std::fs;
use std::future::Future;
use std::time::{Duration, Instant};

use matins_runtime::process::{CommandExit, CommandSpec, Program, RunId, Runner};
use uuid::Uuid;

pub(crate) fn runner() -> Runner {
    Runner::this_program().unwrap()
}

pub(crate) fn shell(text: &str) -> CommandSpec {
    CommandSpec::new(RunId::new("test"), Program::Shell(text.into()))
}

pub(crate) fn argv(words: &[&str]) -> CommandSpec {
    let words = words.iter().map(Into::into).collect();
    CommandSpec::new(RunId::new("test"), Program::Argv(words))
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

pub(crate) async fn finish(spec: CommandSpec) -> CommandExit {
    runner().spawn(spec).await.unwrap().wait(|_, _| ()).await
}

pub(crate) fn run(spec: CommandSpec) -> CommandExit {
    block_on(finish(spec))
}

pub(crate) fn text(exit: &CommandExit) -> String {
    String::from_utf8_lossy(&exit.output.bytes()).into_owned()
}

/// A length for `sleep` that occurs nowhere else: processes that carry it in their arguments are
/// found whatever became of their parents, sessions and environments.
pub(crate) struct Token(pub(crate) String);

impl Token {
    pub(crate) fn new() -> Self {
        Self(format!("300.{}", Uuid::now_v7().as_u128() % 1_000_000_000_000_000))
    }

    /// Processes that are alive and carry the token as an argument of their own.
    pub(crate) fn alive(&self) -> Vec<i32> {
        pids()
            .into_iter()
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.split(|&byte| byte == 0).any(|word| word == self.0.as_bytes())
            })
            .collect()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, count: usize) -> Vec<i32> {
        eventually(&format!("{count} processes"), || self.alive().len() == count);
        self.alive()
    }

    #[track_caller]
    pub(crate) fn assert_gone(&self) {
        let alive = self.alive();
        assert!(alive.is_empty(), "still alive: {alive:?}");
    }
}

pub(crate) fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Fields after the name in `/proc/PID/stat`: state first, parent second.
pub(crate) fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_ascii_whitespace().map(str::to_owned).collect())
}

pub(crate) fn children(parent: i32) -> Vec<(i32, String)> {
    pids()
        .into_iter()
        .filter_map(|pid| {
            let fields = stat(pid)?;
            (fields[1].parse() == Ok(parent)).then(|| (pid, fields[0].clone()))
        })
        .collect()
}

pub(crate) fn parent(pid: i32) -> i32 {
    stat(pid).unwrap()[1].parse().unwrap()
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
