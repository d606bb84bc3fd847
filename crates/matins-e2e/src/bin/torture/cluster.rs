//! Who is tortured: one server, or several on one PostgreSQL, each over a line of its own.

use std::path::Path;
use std::process::Command;

use matins_e2e::{Api, Server};
use matins_testbed::{Line, Postgres};

pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    pub(crate) services: Option<Services>,
}

/// What several servers share.
pub(crate) struct Services {
    pub(crate) postgres: Postgres,
    pub(crate) database: String,
    /// Of each server, to the database.
    pub(crate) lines: Vec<Line>,
}

impl Cluster {
    /// One server; its store is what `MATINS_E2E_STORE` says.
    pub(crate) fn one(binary: &Path, supervised: bool) -> Self {
        let builder = Server::builder().binary(binary).config(CONFIGURATION);
        let builder = if supervised { builder.supervised() } else { builder };
        let server = builder.start();
        Self { servers: vec![server], services: None }
    }

    pub(crate) fn several(binary: &Path, nodes: usize) -> Self {
        let postgres = Postgres::start(&[]);
        let url = postgres.database("template1");
        let database = url.rsplit('/').next().expect("a name").to_owned();
        let lines: Vec<Line> = (0..nodes).map(|_| Line::to(postgres.port())).collect();
        let begin = |line: &Line| {
            let store = url.replace(&postgres.port().to_string(), &line.port().to_string());
            let config = format!("store: {store}\nallow_commands: any\n{CONFIGURATION}");
            Server::builder().binary(binary).config(&config).start()
        };
        let servers = lines.iter().map(begin).collect();
        Self { servers, services: Some(Services { postgres, database, lines }) }
    }

    pub(crate) fn apis(&self) -> Vec<Api> {
        self.servers.iter().map(Server::api).collect()
    }

    /// A command on the store itself, over no line that is cut.
    pub(crate) fn command_line(&self) -> Vec<String> {
        let words = |command: &Command| {
            let mut words = vec![command.get_program().to_string_lossy().into_owned()];
            words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
            words
        };
        let mut line = words(&self.servers[0].command());
        if let Some(services) = &self.services {
            line.extend(["--store".to_owned(), services.postgres.url(&services.database)]);
        }
        line
    }
}

/// Losses and interruptions are what this is about: no number of them gives a task up.
const CONFIGURATION: &str = "\
lease: 5s
drain_timeout: 3s
task_pools:
  web: {max_workers: 6, task_types: [http_call]}
  default: {max_workers: 8}
http: {allow: [127.0.0.0/8]}
defaults:
  grace: 500ms
  max_retries: 2
  max_losses: 1000
  max_interruptions: 100000
  backoff: {initial: 50ms, factor: 2, max: 400ms}
";
