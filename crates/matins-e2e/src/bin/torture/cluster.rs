//! Who is tortured: one server, or several on one PostgreSQL, with or without Redis in front of it.
//! Each has lines of its own to them and, where that is allowed, a network of its own.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use matins_e2e::{Api, Server, Witness, json};
use matins_testbed::{Line, Namespace, Network, Postgres, Redis};

pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    pub(crate) services: Option<Services>,
    /// Work goes on without the database, for the types that [`NAMED`] lists.
    pub(crate) mirror: bool,
}

/// What several servers share.
pub(crate) struct Services {
    pub(crate) database: Database,
    pub(crate) redis: Option<Dispatch>,
    _network: Option<Network>,
}

pub(crate) struct Database {
    pub(crate) postgres: Postgres,
    pub(crate) name: String,
    /// Of each server.
    pub(crate) lines: Vec<Line>,
    /// Of each server, where networks of their own are allowed.
    pub(crate) cables: Vec<Namespace>,
}

pub(crate) struct Dispatch {
    pub(crate) redis: Redis,
    /// Of each server.
    pub(crate) lines: Vec<Line>,
}

impl Cluster {
    /// One server; its store is what `MATINS_E2E_STORE` says.
    pub(crate) fn one(binary: &Path, supervised: bool) -> Self {
        let builder = Server::builder().binary(binary).config(CONFIGURATION);
        let builder = if supervised { builder.supervised() } else { builder };
        let server = builder.start();
        Self { servers: vec![server], services: None, mirror: false }
    }

    pub(crate) fn several(binary: &Path, nodes: usize, redis: bool, mirror: bool) -> Self {
        let postgres = Postgres::start(&[]);
        let url = postgres.database("template1");
        let name = url.rsplit('/').next().expect("a name").to_owned();
        let network = Network::new();
        if let Err(why) = &network {
            println!("no networks of their own, lines alone go dead: {why}");
        }
        let network = network.ok();
        let host = network.as_ref().map_or(Ipv4Addr::LOCALHOST, Network::host);
        let lines_to = |port: u16| (0..nodes).map(|_| Line::at(host, port)).collect();
        let lines: Vec<Line> = lines_to(postgres.port());
        let on = |network: &Network| Namespace::on(&[network]).expect("a namespace");
        let cables: Vec<Namespace> =
            network.iter().flat_map(|network| (0..nodes).map(|_| on(network))).collect();
        let redis = redis.then(|| {
            // So that it may take tasks in for a database that is away.
            let redis = Redis::start(&["--appendonly", "yes"]);
            Dispatch { lines: lines_to(redis.port()), redis }
        });
        let prepare = |node: usize| {
            let builder = Server::builder().binary(binary);
            match cables.get(node) {
                Some(own) => builder.namespace(own.clone()).prepare(),
                None => builder.prepare(),
            }
        };
        let mut servers: Vec<Server> = (0..nodes).map(prepare).collect();
        let named = match mirror {
            true => named(&servers[0].witness),
            false if redis.is_some() => "redis_mirror: off\n".to_owned(),
            false => String::new(),
        };
        for (node, server) in servers.iter_mut().enumerate() {
            let store = format!("postgres://postgres@{host}:{}/{name}", lines[node].port());
            let redis = redis.as_ref().map_or(String::new(), |redis| {
                format!("redis: redis://{host}:{}\noutage_after: 1s\n", redis.lines[node].port())
            });
            let config =
                format!("store: {store}\n{redis}allow_commands: any\n{CONFIGURATION}{named}");
            server.configure(&config);
            server.start();
        }
        let database = Database { postgres, name, lines, cables };
        let services = Some(Services { database, redis, _network: network });
        Self { servers, services, mirror }
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
            let Database { postgres, name, .. } = &services.database;
            line.extend(["--store".to_owned(), postgres.url(name)]);
        }
        line
    }
}

/// Types that a server's own file defines, and what they do: these alone run without the database.
pub(crate) const NAMED: [(&str, &str); 5] = [
    ("command", "sleep 0.02"),
    ("slow", "sleep 1.3"),
    ("flaky", "[ $MATINS_ATTEMPT != 1 ] || exit 1"),
    ("quick", "true"),
    ("long", "sleep 1.5"),
];

/// All servers have the same witness.
fn named(witness: &Witness) -> String {
    let one = |(name, work): &(&str, &str)| {
        format!(
            "  own_{name}: {{executor: command, shell: {}}}\n",
            json!(witness.quick_shell(work))
        )
    };
    let types: String = NAMED.iter().map(one).collect();
    format!("outage_window: 1m\ntasks:\n{types}")
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
