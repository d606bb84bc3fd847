//! `matins ledger`: what is remembered of execution keys.

use clap::Subcommand;

use crate::door::{Answer, Method, Request};
use crate::failure::Result;
use crate::output::facts::Facts;
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
        let session = Session::open(global)?;
        match self {
            Self::Show { kind, key } => {
                let request = Request::get(&["ledger", &kind, &key]);
                session.show(request, entry).await.map(|_| ())
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
    let mut facts = Facts::new(8);
    facts.plain("type", Some(&entry.kind));
    facts.plain("key", Some(&entry.execution_key));
    facts.add("state", out.tinted(tone_of(&entry.state), &entry.state));
    facts.add("since", out.moment(&entry.at, now()));
    facts.plain("task", Some(&entry.task_id));
    let result = entry.result.as_ref().map(|result| result.get());
    facts.plain("result", result.filter(|result| *result != "null"));
    output::line(&facts.to_string())
}
