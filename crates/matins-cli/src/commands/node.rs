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
    /// Take a dead worker's entry away; works on a store, not through --server
    Forget {
        /// As `node list` shows it
        id: String,
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
            Self::Forget { id } => forget(&session, &id).await,
        }
    }
}

/// What the dead worker still claimed is given to others at once.
async fn forget(session: &Session, id: &str) -> Result<()> {
    let Door::Local(door) = &session.door else {
        return Err(Failure::usage("node forget works on a store, not through --server"));
    };
    let client = door.client().await?;
    let failed = |error: ClientError| Failure::failed(error.to_string());
    let known = client.workers().await.map_err(failed)?;
    let Some(worker) = known.iter().find(|worker| worker.id.to_string() == id) else {
        return Err(Failure::new(Exit::NotFound, format!("there is no worker {id}"))
            .hint("matins node list"));
    };
    if worker.lease_until >= client.now() {
        return Err(Failure::failed(format!("the worker {id} lives: its lease has not lapsed"))
            .hint("stop it, or wait until its lease has lapsed"));
    }
    let retired = client.store().retire(&worker.id, client.now()).await;
    retired.map_err(|error| failed(error.into()))?;
    output::line(&format!("{} is forgotten", text::line(id)))
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
