//! What a command that talks to Matins works with: a door and a way to show answers.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use crate::config::{Config, Sources};
use crate::door::{Answer, Door, HttpDoor, LocalDoor, Request};
use crate::failure::{Failure, Result};
use crate::output::{self, Output, text};

const HEADING: &str = "Global options";

/// Options that stand before or after the subcommand.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    #[arg(short = 'c', long, global = true, value_name = "FILE", help_heading = HEADING)]
    #[arg(help = "Configuration file [default: $MATINS_CONFIG, ./matins.yaml or the nearest one \
                  above]")]
    config: Option<PathBuf>,

    #[arg(long, global = true, value_name = "STORE", help_heading = HEADING)]
    #[arg(help = "Store to work on, such as sqlite:PATH [default: $MATINS_STORE, else the \
                  configuration's]")]
    store: Option<String>,

    #[arg(long, global = true, value_name = "URL", help_heading = HEADING)]
    #[arg(help = "Go through a running server instead of the store [default: $MATINS_SERVER]; \
                  its token is taken from $MATINS_TOKEN")]
    server: Option<String>,

    /// Print exactly what the API answers
    #[arg(long, global = true, help_heading = HEADING)]
    pub(crate) json: bool,
}

impl Global {
    pub(crate) fn sources(&self) -> Sources {
        let flags = self.store.iter().map(|store| ("store", "--store", store.clone())).collect();
        Sources { file: self.config.clone(), flags, need_secrets: false }
    }

    /// The configuration, without asking for the secrets that only a server needs.
    pub(crate) fn whole_config(&self) -> Result<Config> {
        Ok(self.sources().load()?)
    }

    /// The same for what needs little more of it than the place of the store: somebody who names
    /// that gets on with a broken file, too. At 3 a.m. it may be what somebody just broke.
    pub(crate) fn config(&self) -> Result<Config> {
        self.config_or_around(self.store.is_some() || variable("MATINS_STORE").is_some())
    }

    /// `named`: what to work on is known without the file.
    fn config_or_around(&self, named: bool) -> Result<Config> {
        let sources = self.sources();
        let error = match sources.load() {
            Ok(config) => return Ok(config),
            Err(error) => error,
        };
        let Some(file) = error.file.clone() else { return Err(error.into()) };
        if !named {
            let hint = "to look at a store all the same, name it: --store STORE, or --server URL";
            return Err(Failure::from(error).hint(hint));
        }
        // What is wrong may stand outside of the file.
        let config = sources.around(&file)?;
        output::note(&format!("warning: {}", text::block(&error.to_string())));
        output::note("warning: this goes on without the file; repair it: matins check");
        Ok(config)
    }

    /// The server that is asked for, if one is.
    pub(crate) fn server(&self) -> Result<Option<String>> {
        if self.server.is_some() && self.store.is_some() {
            return Err(Failure::usage("--server and --store exclude each other")
                .hint("a command goes to a server or to a store"));
        }
        if self.store.is_some() {
            return Ok(None);
        }
        let from_env = || variable("MATINS_SERVER");
        Ok(self.server.clone().or_else(from_env))
    }

    /// Whether a server was asked for; commands that need a store of their own refuse it.
    pub(crate) fn refuse_server(&self, command: &str) -> Result<()> {
        match self.server {
            Some(_) => {
                Err(Failure::usage(format!("{command} works on a store, not through --server")))
            }
            None => Ok(()),
        }
    }
}

/// A variable that is set to something.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub(crate) struct Session {
    pub(crate) door: Door,
    pub(crate) out: Output,
}

impl Session {
    pub(crate) fn open(global: &Global) -> Result<Self> {
        Self::open_with(global, Global::config)
    }

    /// For what brings work in by the words of the file: it must be right.
    pub(crate) fn by_the_file(global: &Global) -> Result<Self> {
        Self::open_with(global, Global::whole_config)
    }

    fn open_with(global: &Global, config: fn(&Global) -> Result<Config>) -> Result<Self> {
        let mut out = Output::new(global.json);
        let door = if let Some(url) = global.server()? {
            // The file only says in which zone to show times here, and where a token may lie: one
            // that is broken, or belongs to another server, must not get in the way.
            let config = global.config_or_around(true).ok();
            let token = variable("MATINS_TOKEN").or_else(|| token_of(config.as_ref(), &url));
            if let Some(config) = config {
                out.zone = config.display_timezone;
            }
            Door::Http(HttpDoor::new(&url, token)?)
        } else {
            let config = config(global)?;
            out.zone = config.display_timezone.clone();
            Door::Local(Box::new(LocalDoor::new(&config)))
        };
        Ok(Self { door, out })
    }

    /// A session that opens no store and needs no configuration, unless a server is named.
    pub(crate) fn detached(global: &Global) -> Result<Self> {
        if global.server()?.is_some() {
            return Self::open(global);
        }
        let door = Door::Local(Box::new(LocalDoor::detached()));
        Ok(Self { door, out: Output::new(global.json) })
    }

    /// The answer to a request that is not refused. With `--json` a refusal is printed too.
    pub(crate) async fn ask(&self, request: Request) -> Result<Answer> {
        let answer = self.door.ask(request).await?;
        if self.out.json && answer.status >= 400 {
            answer.print()?;
        }
        answer.accepted()
    }

    /// Asks, and shows the answer: as it is with `--json`, else for people.
    pub(crate) async fn show(
        &self,
        request: Request,
        people: impl FnOnce(&Answer, &Output) -> Result<()>,
    ) -> Result<Answer> {
        let answer = self.ask(request).await?;
        if self.out.json {
            answer.print()?;
        } else {
            people(&answer, &self.out)?;
        }
        Ok(answer)
    }
}

/// The admin token of a server on this machine, which lies beside its store. Never sent anywhere
/// else.
fn token_of(config: Option<&Config>, url: &str) -> Option<String> {
    let url = reqwest::Url::parse(url).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    let loopback = host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if !loopback {
        return None;
    }
    let usual = || PathBuf::from(".matins/token");
    let path = config.map_or_else(usual, crate::place::token_path);
    std::fs::read_to_string(path).ok().map(|token| token.trim().to_owned())
}

/// Now, for ages.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
