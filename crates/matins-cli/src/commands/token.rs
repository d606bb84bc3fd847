//! `matins token`: who may use the HTTP API.

use clap::Subcommand;
use serde_json::json;

use crate::door::{Answer, Method, Request};
use crate::failure::Result;
use crate::output::{self, Output, text, time};
use crate::session::{Global, Session, now};
use crate::views::{self, Tokens};

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token and show its secret, once
    Create {
        name: String,
        /// viewer, operator, admin, worker or enqueue
        #[arg(long)]
        role: String,
        /// Type that a worker or enqueue token is limited to; may be given several times
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
    },
    /// List tokens, without their secrets
    List,
    /// Make a token useless
    Revoke { name: String },
}

impl Token {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        match self {
            Self::Create { name, role, types } => {
                let body = json!({ "name": name, "role": role, "types": types });
                let request = Request::post(&["tokens"]).body(&body)?;
                session.show(request, |answer, _| created(answer)).await.map(|_| ())
            }
            Self::List => {
                let request = Request::get(&["tokens"]);
                session.show(request, tokens).await.map(|_| ())
            }
            Self::Revoke { name } => {
                let request = Request::new(Method::Delete, &["tokens", &name]);
                let said = format!("{} is revoked", text::line(&name));
                session.show(request, |_, _| output::line(&said)).await.map(|_| ())
            }
        }
    }
}

/// The secret alone on standard output, for scripts.
fn created(answer: &Answer) -> Result<()> {
    let token: views::Token = answer.decode()?;
    output::note(&format!("{} ({}): keep it now, it is shown once", token.name, token.role));
    output::line(token.secret.as_deref().unwrap_or_default())
}

fn tokens(answer: &Answer, out: &Output) -> Result<()> {
    let list: Tokens = answer.decode()?;
    let now = now();
    let mut grid = out.grid(["NAME", "ROLE", "TYPES", "CREATED", "BY"]);
    for token in &list.tokens {
        let types = if token.types.is_empty() { "any".to_owned() } else { token.types.join(", ") };
        grid.row([
            token.name.as_str().into(),
            token.role.as_str().into(),
            types.into(),
            time::age_of(Some(&token.created_at), now).into(),
            token.created_by.as_str().into(),
        ]);
    }
    if grid.is_empty() {
        output::note("no tokens in the store");
        return Ok(());
    }
    output::line(&grid.to_string())
}
