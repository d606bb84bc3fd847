//! What a server costs that has nothing to do: `matins serve` as a process of its own.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Size;
use super::figures::{Figures, Spec, Unit};
use super::workbench::Workbench;
use crate::failure::{Failure, Result};

const CPU: Spec = Spec {
    name: "idle_cpu",
    what: "matins serve, nothing to do",
    unit: Unit::PercentOfCore,
    against: &[],
};
const MEMORY: Spec = Spec {
    name: "idle_memory",
    what: "matins serve, nothing to do, resident",
    unit: Unit::Mebibytes,
    against: &[],
};
const READY: Spec = Spec {
    name: "serve_ready",
    what: "matins serve, fresh store, until ready",
    unit: Unit::Seconds,
    against: &[],
};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn measure(bench: &Workbench, size: &Size, figures: &mut Figures) -> Result<()> {
    bench.says("idle server");
    let place = bench.place("server")?;
    let begin = Instant::now();
    let server = Server::start(place.path())?;
    server.until_ready(place.path()).await?;
    figures.record(READY, begin.elapsed().as_secs_f64(), []);
    // What a start leaves behind is written back and given back after a few seconds.
    tokio::time::sleep(Duration::from_millis(size.pick(6_000, 1_000))).await;
    let (begin, before) = (Instant::now(), server.cpu_time()?);
    tokio::time::sleep(Duration::from_secs(size.pick(30, 1))).await;
    let used = server.cpu_time()?.saturating_sub(before);
    figures.record(CPU, used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0, []);
    figures.record(MEMORY, server.memory()?, []);
    Ok(())
}

/// Ended when dropped.
struct Server(Child);

impl Server {
    fn start(folder: &Path) -> Result<Self> {
        let failed = |error| Failure::io("cannot start matins serve", &error);
        let config = folder.join("matins.yaml");
        fs::write(&config, "data_dir: .\nlisten: 127.0.0.1:0\n").map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("-c").arg(&config).arg("serve").stdin(Stdio::null());
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "PATH"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self).map_err(failed)
    }

    /// It says where it listens as the last act of its start.
    async fn until_ready(&self, folder: &Path) -> Result<()> {
        let begin = Instant::now();
        let file = folder.join("matins.db.server");
        while !file.exists() {
            if begin.elapsed() > PATIENCE {
                return Err(Failure::failed(format!("matins serve is not ready in {PATIENCE:?}")));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Of the process and whatever it has started.
    fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.0.id()];
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

    fn cpu_time(&self) -> Result<Duration> {
        self.processes().into_iter().map(cpu_time).sum()
    }

    fn memory(&self) -> Result<f64> {
        self.processes().into_iter().map(resident).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It owns nothing but the folder that goes away with the run.
        let _ = self.0.kill();
        let _ = self.0.wait();
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
