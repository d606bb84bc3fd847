//! The line to Redis: who is on the other end, whether it answers, and that nobody waits for it.
//!
//! ```text
//!           connected, ours            a call fails or is late
//!   away ──────────────────▶ up ──────────────────────────────▶ in doubt
//!     ▲                       ▲   it answers; what we owe is said   │
//!     │                       └─────────────────────────────────────┤
//!     └──────────── it does not answer: the connection is given up ─┘
//! ```
//!
//! Calls are made while the line is up only, each with a limit of its own; one that fails puts
//! the line in doubt, so the next ones do not even begin. A silently dead connection is found by
//! a question every [`Times::watch`], and by the keepalive of its socket.
//!
//! A Redis that carries another store's id is not ours: nothing is read from it or written to it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_core::Stream as _;
use matins_core::store::{Result, StoreError};
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, RedisError, ScriptInvocation};
use tokio::sync::Notify;
use tokio::time::timeout;
use uuid::Uuid;

use super::address::{self, Address};
use super::script::Scripts;
use crate::own_thread::OwnThread;

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// A call that somebody waits for. Later, and the database is asked instead.
    pub patience: Duration,
    /// A call that nobody waits for, or that only Redis can answer: one that writes each entry to
    /// its disk may be held up there.
    pub background: Duration,
    /// Opening a connection.
    pub connect: Duration,
    /// Between two tries to connect.
    pub retry: Duration,
    /// How often an idle line is asked whether it is alive, and how long the answer may take.
    pub watch: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            patience: Duration::from_millis(50),
            background: Duration::from_secs(4),
            connect: Duration::from_secs(1),
            retry: Duration::from_millis(500),
            watch: Duration::from_secs(2),
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Miss {
    /// The line is not up, or it is not any more.
    Away,
    /// It is up, and Redis will not: a key of another kind, no room, no right.
    Refused(RedisError),
}

impl Miss {
    pub(super) fn is_wrong_type(&self) -> bool {
        matches!(self, Self::Refused(error) if error.to_string().contains("WRONGTYPE"))
    }
}

/// Which Redis it is: another process, or one that came back empty, has another `run_id`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    pub run_id: String,
    pub version: String,
}

#[derive(Clone)]
pub(super) enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    pub(super) async fn command<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
    ) -> redis::RedisResult<T> {
        match self {
            Self::One(line) => command.query_async(line).await,
            Self::Cluster(line) => command.query_async(line).await,
        }
    }

    async fn pipeline<T: FromRedisValue>(&mut self, all: &Pipeline) -> redis::RedisResult<T> {
        match self {
            Self::One(line) => all.query_async(line).await,
            Self::Cluster(line) => all.query_async(line).await,
        }
    }

    pub(super) async fn script<T: FromRedisValue>(
        &mut self,
        script: &ScriptInvocation<'_>,
    ) -> redis::RedisResult<T> {
        match self {
            Self::One(line) => script.invoke_async(line).await,
            Self::Cluster(line) => script.invoke_async(line).await,
        }
    }
}

/// One process's line to one Redis.
pub(super) struct Link {
    address: Address,
    location: String,
    pub(super) prefix: String,
    store_id: Uuid,
    pub(super) times: Times,
    pub(super) scripts: Scripts,
    /// What this process is called among those who listen.
    pub(super) name: String,
    connection: Mutex<Option<Connection>>,
    identity: Mutex<Identity>,
    up: AtomicBool,
    /// Hints may have been lost since the line was last up.
    owes: AtomicBool,
    doubt: Notify,
    /// Rung when the line comes up.
    pub(super) returned: Notify,
    /// Rung when another process has said something.
    pub(super) heard: Notify,
}

impl Link {
    pub(super) fn new(address: Address, prefix: &str, store_id: Uuid, times: Times) -> Self {
        Self {
            location: address.location(),
            prefix: address::prefix(prefix, address.is_cluster()),
            address,
            store_id,
            times,
            scripts: Scripts::default(),
            name: Uuid::new_v4().simple().to_string(),
            connection: Mutex::default(),
            identity: Mutex::default(),
            up: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            doubt: Notify::new(),
            returned: Notify::new(),
            heard: Notify::new(),
        }
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whose hints and journal these are.
    pub(super) fn store_id(&self) -> String {
        self.store_id.to_string()
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Something that Redis should know was not said: it must not trust its lines until they
    /// have been read anew.
    pub(super) fn owe(&self) {
        self.owes.store(true, Ordering::Release);
        self.put_in_doubt();
    }

    fn put_in_doubt(&self) {
        self.up.store(false, Ordering::Release);
        self.doubt.notify_one();
    }

    fn connection(&self) -> Option<Connection> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().filter(|_| self.is_up()).cloned()
    }

    pub(super) async fn command<T: FromRedisValue>(
        &self,
        limit: Duration,
        command: &Cmd,
    ) -> std::result::Result<T, Miss> {
        let mut line = self.connection().ok_or(Miss::Away)?;
        self.judge(timeout(limit, line.command(command)).await)
    }

    pub(super) async fn pipeline<T: FromRedisValue>(
        &self,
        limit: Duration,
        all: &Pipeline,
    ) -> std::result::Result<T, Miss> {
        let mut line = self.connection().ok_or(Miss::Away)?;
        self.judge(timeout(limit, line.pipeline(all)).await)
    }

    pub(super) async fn script<T: FromRedisValue>(
        &self,
        limit: Duration,
        script: &ScriptInvocation<'_>,
    ) -> std::result::Result<T, Miss> {
        let mut line = self.connection().ok_or(Miss::Away)?;
        self.judge(timeout(limit, line.script(script)).await)
    }

    /// A part of `INFO`, of the server that has our keys.
    pub(super) async fn info(
        &self,
        section: &str,
    ) -> std::result::Result<BTreeMap<String, String>, Miss> {
        let mut script = self.scripts.info.prepare_invoke();
        script.key(self.key("store_id")).arg(section);
        Ok(facts(&self.script::<String>(self.times.background, &script).await?))
    }

    fn judge<T>(
        &self,
        answer: std::result::Result<redis::RedisResult<T>, tokio::time::error::Elapsed>,
    ) -> std::result::Result<T, Miss> {
        let error = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => {
                // It may have been done all the same.
                self.owe();
                return Err(Miss::Away);
            }
        };
        if is_of_the_line(&error) {
            self.owe();
            Err(Miss::Away)
        } else {
            Err(Miss::Refused(error))
        }
    }

    /// A connection beside the one that all share.
    pub(super) async fn another(&self) -> redis::RedisResult<Connection> {
        let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        timeout(self.times.connect * 2, self.connect()).await.map_err(|_| late())?
    }

    async fn connect(&self) -> redis::RedisResult<Connection> {
        if self.address.uses_tls() && rustls::crypto::CryptoProvider::get_default().is_none() {
            // Somebody else may be first, which is as good.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let limit = self.times.connect;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limit))
            .set_response_timeout(Some(self.times.background));
        match &self.address {
            Address::One(info) => {
                let client = redis::Client::open((**info).clone())?;
                client.get_multiplexed_async_connection_with_config(&config).await
            }
            Address::Sentinel(sentinel) => {
                sentinel.client()?.get_async_connection_with_config(&config).await
            }
            Address::Cluster(nodes) => {
                let client = redis::cluster::ClusterClientBuilder::new(nodes.clone())
                    .connection_timeout(limit)
                    .response_timeout(self.times.background)
                    .retries(2)
                    .tcp_settings(address::tcp_settings())
                    .build()?;
                return client.get_async_connection().await.map(Connection::Cluster);
            }
        }
        .map(Connection::One)
    }

    /// Whether it is ours; makes it ours when it is nobody's.
    async fn greet(&self, line: &mut Connection) -> std::result::Result<(), Greeting> {
        let key = self.key("store_id");
        let id = self.store_id.to_string();
        let _: Option<String> =
            line.command(redis::cmd("SET").arg(&key).arg(&id).arg("NX")).await?;
        let known: Option<String> = line.command(redis::cmd("GET").arg(&key)).await?;
        if known.as_deref() != Some(&id) {
            return Err(Greeting::Stranger(known.unwrap_or_default()));
        }
        let mut script = self.scripts.info.prepare_invoke();
        script.key(&key).arg("server");
        let facts = facts(&line.script::<String>(&script).await?);
        let fact = |name: &str| facts.get(name).cloned().unwrap_or_default();
        let version = if facts.contains_key("valkey_version") {
            format!("valkey {}", fact("valkey_version"))
        } else {
            fact("redis_version")
        };
        let identity = Identity { run_id: fact("run_id"), version };
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = identity;
        if self.owes.swap(false, Ordering::AcqRel) {
            let mut forget = redis::cmd("DEL");
            forget.arg(self.key("task:known")).arg(self.key("task:stamp"));
            if let Err(error) = line.command::<i64>(&forget).await {
                self.owes.store(true, Ordering::Release);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// One try. What somebody who waits for it is told.
    async fn come_up(&self, line: Option<Connection>) -> std::result::Result<(), Greeting> {
        let limit = self.times.connect;
        let line = match line {
            Some(line) => Ok(line),
            None => timeout(limit * 2, self.connect()).await.map_err(|_| Greeting::Late)?,
        };
        let mut line = line?;
        timeout(limit, self.greet(&mut line)).await.map_err(|_| Greeting::Late)??;
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        self.up.store(true, Ordering::Release);
        // Something may have failed between the greeting and now.
        if self.owes.load(Ordering::Acquire) {
            self.put_in_doubt();
        }
        self.returned.notify_one();
        Ok(())
    }

    async fn keep_up(self: Arc<Self>, first: tokio::sync::oneshot::Sender<Result<()>>) {
        let mut first = Some(first);
        // Why it is away: each reason is said once, as the first may not be the one that lasts.
        let mut told = BTreeSet::new();
        let mut line = None;
        loop {
            let kept = line.is_some();
            match self.come_up(line.take()).await {
                Ok(()) => {
                    if !std::mem::take(&mut told).is_empty() {
                        tracing::info!(place = self.location, "Redis answers again");
                    }
                    if let Some(first) = first.take() {
                        let _ = first.send(Ok(()));
                    }
                    self.stay_up().await;
                    let mut connection =
                        self.connection.lock().unwrap_or_else(PoisonError::into_inner);
                    line = connection.take();
                }
                Err(_) if kept => {}
                Err(error) => {
                    let is_stranger = matches!(error, Greeting::Stranger(_));
                    let refusal = error.said(self.store_id, &self.location);
                    if told.insert(refusal.to_string()) {
                        tracing::warn!(error = %refusal, "working without Redis; trying on");
                    }
                    if let Some(first) = first.take() {
                        let _ = first.send(if is_stranger { Err(refusal) } else { Ok(()) });
                    }
                    tokio::time::sleep(self.times.retry).await;
                }
            }
        }
    }

    /// Until it is in doubt.
    async fn stay_up(&self) {
        let mut alive = redis::cmd("GET");
        alive.arg(self.key("store_id"));
        loop {
            if !self.is_up() {
                return;
            }
            if timeout(self.times.watch, self.doubt.notified()).await.is_err() {
                match self.command::<Option<String>>(self.times.watch, &alive).await {
                    // Emptied, or somebody else's by now: it is greeted anew.
                    Ok(id) if id != Some(self.store_id.to_string()) => self.owe(),
                    _ => {}
                }
            }
        }
    }

    /// Hears what other processes say.
    async fn listen(self: Arc<Self>) {
        let mut turn = 0;
        loop {
            if self.is_up() {
                // A line that ends is opened again; a hint missed costs a poll.
                let _ = self.hear(turn).await;
            }
            turn += 1;
            tokio::time::sleep(self.times.retry).await;
        }
    }

    async fn hear(&self, turn: usize) -> redis::RedisResult<()> {
        let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let client = match &self.address {
            Address::One(info) => redis::Client::open((**info).clone())?,
            Address::Sentinel(sentinel) => {
                let mut sentinels = sentinel.client()?;
                let client = timeout(self.times.connect * 2, sentinels.async_get_client()).await;
                client.map_err(|_| late())??
            }
            // Whatever is said to one node of a cluster all of them repeat.
            Address::Cluster(nodes) => redis::Client::open(nodes[turn % nodes.len()].clone())?,
        };
        let line = timeout(self.times.connect * 2, client.get_async_pubsub()).await;
        let (mut sink, mut said) = line.map_err(|_| late())??.split();
        sink.subscribe(self.key("changed")).await?;
        let mut said = Pin::new(&mut said);
        loop {
            let next = poll_fn(|context| said.as_mut().poll_next(context));
            match timeout(self.times.watch, next).await {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => {
                    if message.get_payload_bytes() != self.name.as_bytes() {
                        self.heard.notify_waiters();
                    }
                }
                // Nobody says anything, or the line is dead.
                Err(_) => {
                    timeout(self.times.connect, sink.ping::<redis::Value>())
                        .await
                        .map_err(|_| late())??;
                }
            }
        }
    }
}

/// Starts to keep the line up. An error when Redis is another store's; one that is away may come.
pub(super) async fn open(link: &Arc<Link>, thread: &OwnThread) -> Result<()> {
    let (first, answer) = tokio::sync::oneshot::channel();
    thread.spawn(link.clone().keep_up(first));
    thread.spawn(link.clone().listen());
    answer.await.unwrap_or(Ok(()))
}

/// Why a line did not come up.
#[derive(Debug)]
enum Greeting {
    Late,
    Failed(RedisError),
    /// It carries the id of another store.
    Stranger(String),
}

impl From<RedisError> for Greeting {
    fn from(error: RedisError) -> Self {
        Self::Failed(error)
    }
}

impl Greeting {
    fn said(self, ours: Uuid, location: &str) -> StoreError {
        match self {
            Self::Late => StoreError::Unavailable(format!("{location} does not answer in time")),
            Self::Failed(error) => StoreError::Unavailable(format!("{location}: {error}")),
            Self::Stranger(theirs) => StoreError::Broken(format!(
                "{location} holds the hints of another store ({theirs}; this one is {ours}): give \
                 each store a redis_prefix or a Redis of its own, or remove the old store's keys"
            )),
        }
    }
}

/// Whether the line is to blame, or the other end is none that takes orders.
fn is_of_the_line(error: &RedisError) -> bool {
    use redis::{ErrorKind, ServerErrorKind};
    match error.kind() {
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
        ),
        ErrorKind::Io
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel => true,
        _ => error.is_connection_dropped() || error.is_timeout(),
    }
}

pub(super) fn facts(info: &str) -> BTreeMap<String, String> {
    let lines = info.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}
