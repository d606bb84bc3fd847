//! `matins pool`, `freeze`, `thaw`.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::door::{Answer, Request};
use crate::failure::Result;
use crate::output::table::{Grid, Value};
use crate::output::{self, Output, Tone, text, time};
use crate::session::{Global, Session};
use crate::views::Pools;

#[derive(Debug, Subcommand)]
pub(crate) enum Pool {
    /// List pools
    List,
    /// Claim nothing more from a pool; what runs goes on
    Pause {
        name: String,
        /// Why, for whoever finds it paused
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// Undo pause
    Resume { name: String },
    /// Set the workers per node; outlives restarts
    Resize {
        name: String,
        /// Workers per node, or default for what the file says
        #[arg(value_name = "N|default")]
        size: String,
    },
}

impl Pool {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let request = match &self {
            Self::List => {
                let request = Request::get(&["pools"]);
                return session.show(request, pools).await.map(|_| ());
            }
            Self::Pause { name, note } => {
                let body = note.as_ref().map_or_else(|| json!({}), |note| json!({ "note": note }));
                Request::post(&["pools", name, "pause"]).body(&body)?
            }
            Self::Resume { name } => Request::post(&["pools", name, "resume"]).body(&json!({}))?,
            Self::Resize { name, size } => {
                let size = size.parse::<u64>().map_or_else(|_| json!(size), |n| json!(n));
                Request::post(&["pools", name, "resize"]).body(&json!({ "size": size }))?
            }
        };
        session.show(request, |answer, _| setting(answer)).await.map(|_| ())
    }
}

/// Pools as a table.
pub(super) fn grid(pools: &Pools, out: &Output) -> Grid {
    let mut grid = out.grid(["POOL", "STATE", "BUSY", "SIZE", "READY", "WAITED", "NODES", "NOTE"]);
    for pool in &pools.pools {
        let (word, tone) =
            if pool.paused { ("paused", Tone::Warning) } else { ("open", Tone::Good) };
        let mut size = pool.size.map(|n| n.to_string()).unwrap_or_default();
        if pool.resized {
            size.push('*');
        }
        let waited = pool.oldest_ready.map(|seconds| time::rough(seconds.max(0.0) as u64));
        grid.row([
            pool.name.as_str().into(),
            Value::toned(tone, word),
            Value::number(pool.busy),
            Value::number(size),
            Value::number(pool.ready),
            waited.unwrap_or_default().into(),
            Value::number(pool.workers.len()),
            pool.note.as_deref().into(),
        ]);
    }
    grid
}

fn pools(answer: &Answer, out: &Output) -> Result<()> {
    let pools: Pools = answer.decode()?;
    output::line(&grid(&pools, out).to_string())?;
    if pools.pools.iter().any(|pool| pool.resized) {
        output::note("* set by pool resize");
    }
    Ok(())
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Setting {
    name: String,
    paused: bool,
    size: Option<u64>,
}

fn setting(answer: &Answer) -> Result<()> {
    let setting: Setting = answer.decode()?;
    let state = if setting.paused { "paused" } else { "open" };
    let size = setting.size.map_or_else(String::new, |size| format!(", {size} workers per node"));
    output::line(&format!("{} is {state}{size}", text::line(&setting.name)))
}

#[derive(Debug, Args)]
pub(crate) struct Freeze {
    /// Why, for whoever finds it frozen
    #[arg(long, value_name = "TEXT", required = true)]
    reason: String,
}

impl Freeze {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let request = Request::post(&["freeze"]).body(&json!({ "reason": self.reason }))?;
        let told = |_: &Answer, _: &Output| {
            output::line("frozen: nothing is claimed and nothing fires until matins thaw")
        };
        session.show(request, told).await.map(|_| ())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Thaw {}

impl Thaw {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let request = Request::post(&["thaw"]).body(&json!({}))?;
        session.show(request, |_, _| output::line("thawed")).await.map(|_| ())
    }
}
