//! `matins serve`: store, engine and HTTP API in one process.
//!
//! Start: read the file, take the lock, open the store, listen, sweep what a dead predecessor
//! left running, start the engine, apply the file's schedules, say ready. The lock comes before
//! the store, the port before the engine: whoever cannot serve must not begin to work.
//!
//! End, with SIGTERM or SIGINT: the engine drains while the API goes on to answer, then the API
//! closes. A second signal ends what runs at once; its tasks are given back, none is lost.

mod banner;
pub(crate) mod engine;
pub(crate) mod logs;
mod reload;
mod watching;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use matins_core::store::Store;
use matins_runtime::Client;
use matins_runtime::engine::Roles;
use matins_runtime::lock::{LockError, NodeLock};
use matins_server::{Api, Auth, GivenToken, Hosts, Settings, Tls};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Metrics, Sources};
use crate::failure::{Failure, Result};
use crate::place::{self, ServerFile};
use crate::session::Global;
use crate::storage;
use crate::supervise::leash::Leash;
use engine::EngineThreads;
use matins_runtime::sentry::Sentry;
use watching::Teller;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Start without claiming or firing anything, until matins thaw
    #[arg(long)]
    paused: bool,
    /// Run without the supervising parent process
    #[arg(long)]
    no_supervise: bool,
    /// What this node does: api, scheduler, worker
    #[arg(
        long,
        value_name = "ROLES",
        value_delimiter = ',',
        default_value = "api,scheduler,worker"
    )]
    role: Vec<Role>,
    /// Name of this node [default: HOSTNAME-PORT]
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
    /// Where to listen [default: 127.0.0.1:6284]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Ties this process to the parent that watches it.
    #[arg(skip)]
    leash: Option<Leash>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    Api,
    Scheduler,
    Worker,
}

impl Serve {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let began = Instant::now();
        global.refuse_server("serve")?;
        let sources = self.sources(global);
        let config = sources.load()?;
        logs::start(config.log);
        // Before anybody can know that this process is there to be told something.
        let signals = Signals::new(self.leash.clone())?;
        let node = Starting::new(&config, &self).await?;
        let mut running = node.start(&self, config, sources, began).await?;
        running.until_told(signals).await
    }

    fn sources(&self, global: &Global) -> Sources {
        let mut sources = Sources { need_secrets: true, ..global.sources() };
        let own = [("node_id", "--node-id", &self.node_id), ("listen", "--listen", &self.listen)];
        for (key, flag, value) in own {
            sources.flags.extend(value.clone().map(|value| (key, flag, value)));
        }
        sources
    }

    pub(crate) fn wants_a_parent(&self) -> bool {
        !self.no_supervise
    }

    pub(crate) fn put_on(&mut self, leash: Leash) {
        self.leash = Some(leash);
    }

    fn does(&self, role: Role) -> bool {
        self.role.contains(&role)
    }
}

/// What a server is told by signals.
struct Signals {
    end: End,
    hangup: Signal,
}

/// Told to end: by SIGTERM or SIGINT, or by the supervising parent, which was told itself.
struct End {
    terminate: Signal,
    interrupt: Signal,
    leash: Option<Leash>,
    by_signal: u32,
    by_parent: u32,
    heard: u32,
}

impl End {
    /// Resolves each time it is told. A signal that the parent got, too, and hands on is one.
    async fn recv(&mut self) {
        while self.heard >= self.by_signal.max(self.by_parent) {
            tokio::select! {
                _ = self.terminate.recv() => self.by_signal += 1,
                _ = self.interrupt.recv() => self.by_signal += 1,
                times = stopped_more_than(self.leash.as_ref(), self.by_parent) => {
                    self.by_parent = times;
                }
            }
        }
        self.heard += 1;
    }
}

async fn stopped_more_than(leash: Option<&Leash>, times: u32) -> u32 {
    match leash {
        Some(leash) => leash.stopped_more_than(times).await,
        None => std::future::pending().await,
    }
}

impl Signals {
    fn new(leash: Option<Leash>) -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Failure::io("cannot listen to signals", &e));
        let end = End {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            leash,
            by_signal: 0,
            by_parent: 0,
            heard: 0,
        };
        Ok(Self { end, hangup: listen(SignalKind::hangup())? })
    }
}

/// What must be had before any work begins.
struct Starting {
    lock: NodeLock,
    store: Arc<dyn Store>,
    listener: Option<(TcpListener, SocketAddr)>,
    node_id: String,
}

impl Starting {
    async fn new(config: &Config, serve: &Serve) -> Result<Self> {
        place::make(&config.data_dir)?;
        // Of a file there is one server, whatever it is called: that is said first.
        let file_lock = match storage::file(config) {
            Some(_) => Some(lock(config).await?),
            None => None,
        };
        let listener =
            if serve.does(Role::Api) { Some(listen(config.listen).await?) } else { None };
        let port = listener.as_ref().map_or(config.listen.port(), |(_, at)| at.port());
        let name = place::node_name(config, port);
        let (lock, node_id) = match file_lock {
            Some(lock) => (lock, name),
            None => lock_node(config, name).await?,
        };
        let spool = place::journal_spool(config, &node_id);
        let node = storage::Node { name: node_id.clone(), spool };
        let store = storage::open_with(config, Some(node)).await?;
        Ok(Self { lock, store, listener, node_id })
    }

    async fn start(
        self,
        serve: &Serve,
        config: Config,
        sources: Sources,
        began: Instant,
    ) -> Result<Running> {
        let client = Client::new(self.store.clone(), config.rules.clone());
        let (given, token) = tokens(&config)?;
        check_bind(&self, &config).await?;
        let roles =
            Roles { scheduler: serve.does(Role::Scheduler), worker: serve.does(Role::Worker) };
        if serve.paused {
            // A restored store must not run anything until somebody says so.
            let frozen = client.freeze("serve --paused", "started with --paused").await;
            frozen.map_err(|error| Failure::failed(error.to_string()))?;
        }
        let engine =
            EngineThreads::start(client.clone(), &config, self.node_id.clone(), roles).await?;
        watching::deliver_spooled(&client, &config, &self.node_id);
        if roles.scheduler && engine.engine().has_joined() {
            reload::apply_schedules(&client, &config, &self.node_id).await?;
        } else if roles.scheduler {
            reload::apply_schedules_later(&engine, &client, &config, &self.node_id);
        }
        let auth = Auth::new(self.store.clone(), given)
            .map_err(|error| Failure::usage(error.to_string()))?;
        let closing = CancellationToken::new();
        let mut running = Running {
            door: None,
            tls: None,
            closing: closing.clone(),
            address: self.listener.as_ref().map(|(_, address)| *address),
            _lock: self.lock,
            _sentry: watching::start(&engine, serve.leash.clone())?,
            teller: Teller::new(serve.leash.clone()),
            engine,
            client,
            node_id: self.node_id,
            config,
            sources,
        };
        if let Some((listener, address)) = self.listener {
            running.open_door(listener, address, auth).await?;
        }
        let url = running.url();
        if running.address.is_some() {
            ServerFile { url: url.clone(), pid: std::process::id() }.write(&running.config)?;
        }
        banner::show(&running, token.as_ref(), serve.paused, began.elapsed()).await;
        running.teller.up(&running.config, &running.node_id, &format!("serving on {url}"));
        Ok(running)
    }
}

/// A node at work.
pub(super) struct Running {
    door: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    tls: Option<Tls>,
    closing: CancellationToken,
    address: Option<SocketAddr>,
    _lock: NodeLock,
    _sentry: Sentry,
    teller: Teller,
    engine: EngineThreads,
    client: Client,
    node_id: String,
    config: Config,
    sources: Sources,
}

impl Running {
    async fn open_door(
        &mut self,
        listener: TcpListener,
        address: SocketAddr,
        auth: Auth,
    ) -> Result<()> {
        let config = &self.config;
        let settings = Settings {
            hosts: Hosts::new(&config.allowed_hosts, config.public_url.as_deref()),
            open_metrics: address.ip().is_loopback() || config.auth.metrics == Metrics::Public,
            ..Settings::default()
        };
        let node = Arc::new(self.engine.engine().clone());
        let api = Api::new(self.client.clone(), node, auth, settings);
        if let Some(tls) = &config.tls {
            let loaded = Tls::load(tls.cert.clone(), tls.key.clone()).await;
            let loaded = loaded.map_err(|e| Failure::failed(format!("tls: {e}")))?;
            self.tls = Some(loaded);
        }
        let (tls, closing) = (self.tls.clone(), self.closing.clone());
        self.door =
            Some(tokio::spawn(
                async move { matins_server::serve(&api, listener, tls, closing).await },
            ));
        Ok(())
    }

    /// How it is reached from this machine.
    pub(super) fn url(&self) -> String {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        match self.address {
            Some(address) if address.ip().is_unspecified() => {
                format!("{scheme}://127.0.0.1:{}", address.port())
            }
            Some(address) => format!("{scheme}://{address}"),
            None => String::new(),
        }
    }

    async fn until_told(&mut self, mut signals: Signals) -> Result<()> {
        loop {
            tokio::select! {
                () = signals.end.recv() => break,
                _ = signals.hangup.recv() => self.reload().await,
                ended = door_ended(&mut self.door) => {
                    self.engine.shutdown().await;
                    return Err(Failure::failed(format!("the HTTP API ended: {ended}")));
                }
            }
        }
        self.stop(signals).await;
        Ok(())
    }

    async fn stop(&mut self, mut signals: Signals) {
        tracing::info!("draining; a second signal ends what runs at once");
        self.teller.stopping();
        let now = tokio::select! {
            () = self.engine.shutdown() => false,
            () = signals.end.recv() => true,
        };
        if now {
            tracing::warn!("ending at once");
            self.engine.shutdown_now().await;
        }
        self.closing.cancel();
        if let Some(door) = self.door.take() {
            let patience = if now { Duration::from_millis(100) } else { Duration::from_secs(6) };
            let _ = tokio::time::timeout(patience, door).await;
        }
        let _ = std::fs::remove_file(ServerFile::path(&self.config));
        tracing::info!("stopped");
    }
}

async fn door_ended(door: &mut Option<tokio::task::JoinHandle<std::io::Result<()>>>) -> String {
    match door {
        Some(handle) => match handle.await {
            Ok(Ok(())) => "it closed by itself".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic.to_string(),
        },
        None => std::future::pending().await,
    }
}

async fn acquire(path: PathBuf) -> Result<std::result::Result<NodeLock, LockError>> {
    let acquired = tokio::task::spawn_blocking(move || NodeLock::acquire(&path)).await;
    acquired.map_err(|error| Failure::failed(error.to_string()))
}

/// The lock of a node. A live holder of its name is no predecessor: then this one is another node.
async fn lock_node(config: &Config, name: String) -> Result<(NodeLock, String)> {
    match acquire(place::node_lock(config, &name)).await? {
        Ok(lock) => Ok((lock, name)),
        Err(LockError::Held { .. }) => {
            let own = format!("{name}-{}", std::process::id());
            tracing::warn!(node_id = own, "a node called {name} runs here already");
            let lock = acquire(place::node_lock(config, &own)).await?;
            Ok((lock.map_err(|error| Failure::failed(error.to_string()))?, own))
        }
        Err(error) => Err(Failure::failed(error.to_string())),
    }
}

async fn lock(config: &Config) -> Result<NodeLock> {
    match acquire(place::server_lock(config)).await? {
        Ok(lock) => Ok(lock),
        Err(LockError::Held { pid, .. }) => {
            let store = storage::shown(config);
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            let message = format!("a server runs on {store} already: process {pid}");
            let hint = "stop that one first, or give this one another store";
            Err(Failure::failed(message).hint(hint))
        }
        Err(error) => Err(Failure::failed(error.to_string())),
    }
}

/// How long a process that was killed may still have its port.
const DYING: Duration = Duration::from_secs(1);

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let failed = |error: std::io::Error| {
        let failure = Failure::io(format!("cannot listen on {address}"), &error);
        match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                failure.hint("something else listens there; choose another with --listen")
            }
            _ => failure,
        }
    };
    let began = Instant::now();
    let listener = loop {
        match TcpListener::bind(address) {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse && began.elapsed() < DYING =>
            {
                tokio::time::sleep(DYING / 20).await;
            }
            bound => break bound.map_err(failed)?,
        }
    };
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// The admin token beside the store, and whether it was made just now.
pub(super) struct AdminToken {
    pub(super) secret: String,
    pub(super) is_new: bool,
}

/// The tokens of the file, or one that is made.
fn tokens(config: &Config) -> Result<(Vec<GivenToken>, Option<AdminToken>)> {
    if config.auth.tokens.is_empty() {
        let (secret, is_new) = place::admin_token(config)?;
        let given = GivenToken {
            name: "admin".to_owned(),
            role: matins_server::Role::Admin,
            types: Vec::new(),
            secret: secret.clone(),
        };
        return Ok((vec![given], Some(AdminToken { secret, is_new })));
    }
    Ok((given(config), None))
}

fn given(config: &Config) -> Vec<GivenToken> {
    let given = config.auth.tokens.iter().map(|token| GivenToken {
        name: token.name.clone(),
        role: token.role,
        types: token.types.clone(),
        secret: token.secret.value.clone(),
    });
    given.collect()
}

/// Where others can reach it, somebody must have decided about tokens: the one that is made by
/// itself does not count.
async fn check_bind(starting: &Starting, config: &Config) -> Result<()> {
    let Some((_, address)) = &starting.listener else { return Ok(()) };
    let refused = |error: matins_server::AuthError| {
        Failure::usage(error.to_string())
            .hint("give auth.tokens in the configuration, or listen on 127.0.0.1 behind a proxy")
    };
    let auth = Auth::new(starting.store.clone(), given(config)).map_err(refused)?;
    auth.check_bind(*address).await.map_err(refused)
}

/// The name of this host.
pub(crate) fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let known = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    let name: String = name.chars().map(|c| if known(c) { c } else { '-' }).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}
