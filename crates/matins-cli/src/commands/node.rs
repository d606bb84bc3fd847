//! `matins node`: who works on the store.

use clap::Subcommand;
use matins_runtime::ClientError;

use crate::door::{Answer, Door, Request};
use crate::failure::{Exit, Failure, Result};
use crate::output::table::Value;
use crate::output::{self, Output, Tone, text, time};
use crate::session::{Global, Session, now};

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// List workers
    List,
    // What it claims is given to others, and nobody waits for what it may do without PostgreSQL.
    /// Say that a node is dead; works on a store, not through --server
    Forget {
        /// A node or one of its workers, as `node list` shows it
        #[arg(value_name = "NODE")]
        name: String,
    },
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Workers {
    workers: Vec<Worker>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Worker {
    id: String,
    node_id: String,
    started_at: String,
    seen_at: String,
    draining: bool,
    remote: bool,
    alive: Option<bool>,
}

impl Node {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        match self {
            Self::List => {
                let request = Request::get(&["workers"]);
                session.show(request, workers).await.map(|_| ())
            }
            Self::Forget { name } => forget(&session, &name).await,
        }
    }
}

async fn forget(session: &Session, name: &str) -> Result<()> {
    let Door::Local(door) = &session.door else {
        return Err(Failure::usage("node forget works on a store, not through --server"));
    };
    let forgotten = door.client().await?.forget_node(name, door.who()).await;
    forgotten.map_err(refused)?;
    output::line(&format!("{} is forgotten", text::line(name)))
}

fn refused(error: ClientError) -> Failure {
    match error {
        ClientError::NotFound { .. } => {
            Failure::new(Exit::NotFound, error.to_string()).hint("matins node list")
        }
        ClientError::WrongState { message, hint } => {
            hint.into_iter().fold(Failure::failed(message), Failure::hint)
        }
        error => Failure::failed(error.to_string()),
    }
}

fn workers(answer: &Answer, out: &Output) -> Result<()> {
    let list: Workers = answer.decode()?;
    let now = now();
    let mut grid = out.grid(["WORKER", "NODE", "STATE", "STARTED", "SEEN"]);
    for worker in &list.workers {
        let (word, tone) = match (worker.alive, worker.draining, worker.remote) {
            (Some(false), ..) => ("lost", Tone::Bad),
            (_, true, _) => ("draining", Tone::Warning),
            (.., true) => ("remote", Tone::Good),
            _ => ("live", Tone::Good),
        };
        grid.row([
            worker.id.as_str().into(),
            worker.node_id.as_str().into(),
            Value::toned(tone, word),
            time::age_of(Some(&worker.started_at), now).into(),
            time::age_of(Some(&worker.seen_at), now).into(),
        ]);
    }
    if grid.is_empty() {
        output::note("no workers: matins serve starts one");
        return Ok(());
    }
    output::line(&grid.to_string())
}
