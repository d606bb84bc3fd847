//! `matins serve` as a process of its own, in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::door::HttpDoor;
use crate::failure::{Failure, Result};
use crate::place::ServerFile;

const PATIENCE: Duration = Duration::from_secs(60);

/// Ended when dropped.
pub(super) struct Served {
    child: Child,
    folder: PathBuf,
}

impl Served {
    /// With lines of a configuration beside those that put everything into the folder.
    pub(super) fn start(folder: &Path, more: &str) -> Result<Self> {
        let failed = |error| Failure::io("cannot start matins serve", &error);
        let config = folder.join("matins.yaml");
        let lines = format!("data_dir: .\nlisten: 127.0.0.1:0\nnode_id: bench\n{more}");
        fs::write(&config, lines).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("-c").arg(&config).arg("serve").stdin(Stdio::null());
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "PATH"));
        let log = fs::File::create(folder.join("log")).map_err(failed)?;
        command.stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, folder: folder.to_owned() })
    }

    /// It says where it listens as the last act of its start.
    pub(super) async fn until_ready(&self) -> Result<ServerFile> {
        let begin = Instant::now();
        loop {
            if let Some(file) = self.file() {
                return Ok(file);
            }
            if begin.elapsed() > PATIENCE {
                return Err(self.failed(&format!("matins serve is not ready in {PATIENCE:?}")));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// It lies beside the store that is a file, and bears the node's name where that is none.
    fn file(&self) -> Option<ServerFile> {
        let mut files = fs::read_dir(&self.folder).ok()?.flatten().map(|entry| entry.path());
        let file = files.find(|path| path.extension().is_some_and(|end| end == "server"))?;
        serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
    }

    /// What went wrong, with what the server said last.
    pub(super) fn failed(&self, what: &str) -> Failure {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let last = log.lines().last().unwrap_or("nothing");
        Failure::failed(format!("{what}; it said last: {last}"))
    }

    /// The way to it, for whoever may do anything.
    pub(super) async fn door(&self) -> Result<HttpDoor> {
        let file = self.until_ready().await?;
        let token = fs::read_to_string(self.folder.join("token"));
        let token = token.map_err(|error| Failure::io("cannot read its token", &error))?;
        HttpDoor::new(&file.url, Some(token.trim().to_owned()))
    }

    /// Of the process and whatever it has started.
    fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.child.id()];
        let mut next = 0;
        while let Some(pid) = all.get(next) {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let children = tasks.filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
            let children = children.collect::<String>();
            all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            next += 1;
        }
        all
    }

    pub(super) fn cpu_time(&self) -> Result<Duration> {
        self.processes().into_iter().map(cpu_time).sum()
    }

    pub(super) fn memory(&self) -> Result<f64> {
        self.processes().into_iter().map(resident).sum()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It owns nothing but what goes away with the run.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unreadable(pid: u32, error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot read about process {pid}: {error}"))
}

/// What the kernel counts in towards programs, on every architecture that matters.
const USER_HZ: u64 = 100;

/// User and system time of a process so far.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(path).map_err(|error| unreadable(pid, error))?;
    // The name in parentheses may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    Ok(Duration::from_millis(ticks * 1_000 / USER_HZ))
}

fn resident(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(path).map_err(|error| unreadable(pid, error))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok());
    Ok(kib.ok_or_else(|| unreadable(pid, "no VmRSS"))? / 1_024.0)
}
