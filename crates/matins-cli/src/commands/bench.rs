//! `matins bench`: how fast this build is on this machine, each figure beside the limit of the
//! store underneath.
//!
//! A figure alone says more about the disk than about Matins: one fsync may take 0.1 ms now and
//! 4 ms a minute later. So whatever can be is measured in rounds, Matins and bare SQLite
//! transactions by turns, and reported as a ratio: to transactions of the same shape (the same
//! tables and statements without the store around them), and to the floor of a narrow table.
//! Everything happens in a folder of its own that is removed afterwards, with
//! `--store postgres://…` in databases of its own on that server, with `--redis` under prefixes of
//! its own; the user's store is never opened.

mod claim;
mod e2e;
mod enqueue;
mod figures;
mod floor;
mod idle;
mod latency;
mod machine;
mod node;
mod postgres;
mod report;
mod schedules;
mod served;
mod views;
mod workbench;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::config::StoreLocation;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::session::Global;

use figures::Figures;
use machine::Machine;
use postgres::Server;
use report::Report;
use workbench::Workbench;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// What to measure
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// Tasks of one throughput round [default: 50000, with --quick 5000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    tasks: Option<u32>,
    /// Rounds of each comparison [default: 7, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// Where to put the folder of the run [default: beside data_dir]
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// Put Redis in front of PostgreSQL, under prefixes that are cleared afterwards
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Small samples: under 15 seconds, rough figures
    #[arg(long, conflicts_with = "large")]
    quick: bool,
    /// Claims against 2 million pending (PostgreSQL: 5 million), 1 million later and 5 million
    /// finished tasks, views of 6 million: minutes more and gigabytes on disk
    #[arg(long)]
    large: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Enqueue,
    E2e,
    Latency,
    Claim,
    Views,
    Schedules,
    Idle,
    // PostgreSQL alone: throughput while a snapshot is held open elsewhere
    Snapshot,
    // PostgreSQL alone: throughput while history is pruned
    Prune,
    All,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Size {
    tasks: usize,
    rounds: usize,
    quick: bool,
    large: bool,
}

impl Size {
    /// One of two amounts.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

impl Bench {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        global.refuse_server("bench")?;
        let out = Output::new(global.json);
        let config = global.config()?;
        if let Some(Err(error)) = self.redis.as_deref().map(matins_store::redis::location) {
            return Err(Failure::usage(format!("--redis: {error}")));
        }
        let bench = Workbench::new(self.dir.as_deref(), &config.data_dir, &out)?;
        let mut machine = Machine::look(bench.folder());
        let mut figures = Figures::default();
        match &config.store {
            StoreLocation::Postgres(url) if config.store_is_asked_for => {
                let (connections, redis) = (config.store_connections, self.redis.clone());
                let server = Server::new(&url.0, connections, redis, bench.folder());
                (machine.postgres, machine.redis) = server.versions().await?;
                let measured = tokio::select! {
                    measured = self.measure_postgres(&bench, &server, &mut figures) => measured,
                    _ = tokio::signal::ctrl_c() => Err(Failure::silent(130)),
                };
                server.clear().await?;
                measured?;
            }
            _ if self.redis.is_some() => {
                return Err(Failure::usage("--redis: stands in front of PostgreSQL")
                    .hint("name a server: --store postgres://USER@HOST/DATABASE"));
            }
            // The folder is removed when `bench` goes, by Ctrl-C too.
            _ => tokio::select! {
                measured = self.measure(&bench, &mut figures) => measured?,
                _ = tokio::signal::ctrl_c() => return Err(Failure::silent(130)),
            },
        }
        bench.done();
        Report { machine: &machine, size: &self.size(), figures: &figures }.show(&out)
    }

    fn size(&self) -> Size {
        let Self { quick, large, .. } = *self;
        let mut size = Size { tasks: 0, rounds: 0, quick, large };
        size.tasks = self.tasks.map_or(size.pick(50_000, 5_000), |tasks| tasks as usize);
        size.rounds = self.rounds.map_or(size.pick(7, 2), |rounds| rounds as usize);
        size
    }

    async fn measure(&self, bench: &Workbench, figures: &mut Figures) -> Result<()> {
        let size = self.size();
        let wants = |what: What| self.what == what || self.what == What::All;
        if wants(What::Enqueue) {
            enqueue::measure(bench, &size, figures).await?;
        }
        if wants(What::E2e) {
            e2e::measure(bench, &size, figures).await?;
        }
        if wants(What::Latency) {
            latency::measure(bench, &size, figures).await?;
        }
        if wants(What::Claim) {
            claim::measure(bench, &size, figures).await?;
        }
        if wants(What::Views) {
            views::measure(bench, &size, figures).await?;
        }
        if wants(What::Schedules) {
            schedules::measure(bench, &size, figures).await?;
        }
        if wants(What::Idle) {
            idle::measure(bench, &size, figures).await?;
        }
        if matches!(self.what, What::Snapshot | What::Prune) {
            return Err(Failure::usage("this is measured on PostgreSQL alone")
                .hint("name a server: --store postgres://USER@HOST/DATABASE"));
        }
        Ok(())
    }

    async fn measure_postgres(
        &self,
        bench: &Workbench,
        server: &Server,
        figures: &mut Figures,
    ) -> Result<()> {
        let size = self.size();
        let wants = |what: What| self.what == what || self.what == What::All;
        if wants(What::Enqueue) || wants(What::E2e) {
            postgres::throughput::measure(bench, server, &size, figures).await?;
        }
        if wants(What::Latency) {
            postgres::measure_latency(bench, server, &size, figures).await?;
        }
        if wants(What::Claim) {
            postgres::measure_claims(bench, server, &size, figures).await?;
        }
        if wants(What::Views) {
            postgres::measure_views(bench, server, &size, figures).await?;
        }
        if wants(What::Prune) {
            postgres::pressure::prune(bench, server, &size, figures).await?;
        }
        if wants(What::Snapshot) {
            postgres::pressure::snapshot(bench, server, &size, figures).await?;
        }
        if matches!(self.what, What::Schedules | What::Idle) {
            return Err(Failure::usage("this is measured on SQLite alone")
                .hint("leave out --store postgres://…"));
        }
        Ok(())
    }
}
