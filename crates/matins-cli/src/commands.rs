//! Every command: what it takes, what it asks for, how the answer is shown.

mod alert;
mod audit;
mod bench;
mod check;
mod dead;
mod doctor;
mod enqueue;
mod follow;
mod init;
mod ledger;
mod migrate;
mod node;
mod pool;
mod run;
mod schedule;
mod status;
mod task;
mod token;
mod top;
mod version;
mod waiting;
mod watch;

use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::failure::Result;
use crate::serve::Serve;
use crate::session::{Global, Session};
use crate::supervise::leash::Leash;

/// A length of time as an argument.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    match matins_core::duration::parse(text) {
        Ok(Duration::ZERO) => Err("must be longer than nothing".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

/// Durable background tasks and cron schedules.
#[derive(Debug, Parser)]
#[command(
    name = "matins",
    version,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 not found, \
                  4 cannot reach store or server.\n\
                  `run` exits like its command: 124 timed out, 125 own errors, 128+n signal n.\n\
                  Start here: matins serve, then: matins run -- echo hello"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server: schedules, workers, HTTP API
    Serve(Serve),
    /// Write a commented matins.yaml
    Init(init::Init),
    /// Check the configuration and say what its owner may not expect
    Check(check::Check),
    /// Bring the store's schema up to date
    Migrate(migrate::Migrate),
    /// The store at a glance
    Status(status::Status),
    /// Watch the store as it changes
    Top(top::Top),
    /// Look for what could go wrong on this machine
    Doctor(doctor::Doctor),
    /// Judge the store by what must always hold of it
    Audit(audit::Audit),
    /// Watch the scheduler's heartbeat from outside, and restart it when it stops
    Watch(watch::Watch),
    /// Measure throughput and latency on this machine, beside what its disk and SQLite allow
    Bench(bench::Bench),

    /// Enqueue a task and print its id
    Enqueue(enqueue::Enqueue),
    /// Run a command durably: it survives this terminal, and is not run twice for one key
    Run(run::Run),
    /// List tasks
    List(task::List),
    /// A task with its attempts
    Show(task::Show),
    /// What a task wrote
    Output(task::Output),
    /// Why a task is where it is
    Why(task::Why),
    /// Cancel tasks
    Cancel(task::Cancel),
    /// Run waiting tasks now; put dead letters back
    Retry(task::Retry),
    /// Enqueue a copy of a finished task
    Rerun(task::Rerun),

    /// Dead letters: failed tasks that wait for a person
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Alerts and their channels
    #[command(subcommand)]
    Alert(alert::Alert),
    /// Schedules
    #[command(subcommand)]
    Schedule(schedule::Schedule),
    /// Pools
    #[command(subcommand)]
    Pool(pool::Pool),
    /// Stop all claims and fires of the store
    Freeze(pool::Freeze),
    /// Undo freeze
    Thaw(pool::Thaw),
    /// Completed execution keys
    #[command(subcommand)]
    Ledger(ledger::Ledger),
    /// Nodes and workers
    #[command(subcommand)]
    Node(node::Node),
    /// Tokens that open the HTTP API
    #[command(subcommand)]
    Token(token::Token),

    /// Versions of program, time zone table and store schema
    Version(version::Version),
    /// Print a completion script for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    #[command(about = "Print the OpenAPI document of the HTTP API")]
    Openapi,
}

impl Cli {
    /// Whether this is a server that is to be watched by a parent.
    pub(crate) fn wants_a_parent(&self) -> bool {
        matches!(&self.command, Command::Serve(serve) if serve.wants_a_parent())
    }

    /// This process is the child of such a parent.
    pub(crate) fn put_on(&mut self, leash: Leash) {
        if let Command::Serve(serve) = &mut self.command {
            serve.put_on(leash);
        }
    }

    pub(crate) async fn run(self) -> Result<()> {
        let global = &self.global;
        match self.command {
            Command::Serve(serve) => serve.run(global).await,
            Command::Init(init) => init.run(global),
            Command::Check(check) => check.run(global),
            Command::Migrate(migrate) => migrate.run(global).await,
            Command::Status(status) => status.run(global).await,
            Command::Bench(bench) => bench.run(global).await,
            Command::Top(top) => top.run(global).await,
            Command::Doctor(doctor) => doctor.run(global).await,
            Command::Audit(audit) => audit.run(global).await,
            Command::Watch(watch) => watch.run(global).await,
            Command::Enqueue(enqueue) => enqueue.run(global).await,
            Command::Run(run) => run.run(global).await,
            Command::List(list) => list.run(global).await,
            Command::Show(show) => show.run(global).await,
            Command::Output(output) => output.run(global).await,
            Command::Why(why) => why.run(global).await,
            Command::Cancel(cancel) => cancel.run(global).await,
            Command::Retry(retry) => retry.run(global).await,
            Command::Rerun(rerun) => rerun.run(global).await,
            Command::Dead(dead) => dead.run(global).await,
            Command::Alert(alert) => alert.run(global).await,
            Command::Schedule(schedule) => schedule.run(global).await,
            Command::Pool(pool) => pool.run(global).await,
            Command::Freeze(freeze) => freeze.run(global).await,
            Command::Thaw(thaw) => thaw.run(global).await,
            Command::Ledger(ledger) => ledger.run(global).await,
            Command::Node(node) => node.run(global).await,
            Command::Token(token) => token.run(global).await,
            Command::Version(version) => version.run(global),
            Command::Completions { shell } => completions(shell),
            Command::Openapi => openapi(global).await,
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "matins", &mut script);
    crate::output::bytes(&script)
}

async fn openapi(global: &Global) -> Result<()> {
    let session = Session::detached(global)?;
    let answer = session.ask(crate::door::Request::plain("/api/openapi.json")).await?;
    crate::output::line(&String::from_utf8_lossy(&answer.body))
}
