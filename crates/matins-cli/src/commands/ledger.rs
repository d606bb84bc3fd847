//! `matins ledger`: what is remembered of execution keys.

use clap::Subcommand;

use crate::door::{Answer, Method, Request};
use crate::failure::Result;
use crate::output::table::tone_of;
use crate::output::{self, Output, text};
use crate::session::{Global, Session, now};
use crate::views;

#[derive(Debug, Subcommand)]
pub(crate) enum Ledger {
    /// What became of a key
    Show {
        #[arg(value_name = "TYPE")]
        kind: String,
        key: String,
    },
    /// Free a completed key, so that it can be run again
    Forget {
        #[arg(value_name = "TYPE")]
        kind: String,
        key: String,
    },
}

impl Ledger {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global).await?;
        match self {
            Self::Show { kind, key } => {
                let request = Request::get(&["ledger", &kind, &key]);
                session.show(request, |answer, out| entry(answer, out)).await.map(|_| ())
            }
            Self::Forget { kind, key } => {
                let request = Request::new(Method::Delete, &["ledger", &kind, &key]);
                let said = format!("{} of {} is forgotten", text::line(&key), text::line(&kind));
                session.show(request, |_, _| output::line(&said)).await.map(|_| ())
            }
        }
    }
}

fn entry(answer: &Answer, out: &Output) -> Result<()> {
    let entry: views::Ledger = answer.decode()?;
    let mut said = format!(
        "{} {}: {} {}\ntask    {}",
        text::line(&entry.kind),
        text::line(&entry.execution_key),
        out.tinted(tone_of(&entry.state), &entry.state),
        out.moment(&entry.at, now()),
        text::line(&entry.task_id),
    );
    if let Some(result) = entry.result.filter(|result| result.get() != "null") {
        said.push_str(&format!("\nresult  {}", text::line(result.get())));
    }
    output::line(&said)
}
