//! Redis servers: one, a cluster of three, a pair under Sentinels.
//!
//! `MATINS_TEST_REDIS` names another server with the same options, such as `valkey-server`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::Authority;
use crate::server::{Server, free_port};

/// How long a server may take to answer.
const START: Duration = Duration::from_secs(30);

/// One server.
#[derive(Debug)]
pub struct Redis {
    folder: PathBuf,
    port: u16,
    prefixes: AtomicU32,
    server: Server,
    tls_port: Option<u16>,
}

fn program() -> String {
    std::env::var("MATINS_TEST_REDIS").unwrap_or_else(|_| "redis-server".to_owned())
}

fn folder() -> PathBuf {
    let folder = tempfile::Builder::new().prefix("matins-redis-").tempdir();
    folder.expect("a folder").keep()
}

impl Redis {
    /// The one that all tests of a process share: each takes a prefix of its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[]))
    }

    /// A new one, with options in the form `--name`, `value`. It keeps nothing on disk unless
    /// they say so.
    pub fn start(options: &[&str]) -> Self {
        Self::start_as(&program(), &[&["--save", ""], options].concat(), free_port())
    }

    fn start_as(program: &str, options: &[&str], port: u16) -> Self {
        let folder = folder();
        let text = folder.to_str().expect("a path in UTF-8").to_owned();
        let port_text = port.to_string();
        let mut words = vec![program, "--port", &port_text, "--bind", "127.0.0.1", "--dir", &text];
        words.extend(options);
        let server = Server::start("TERM", &text, &words);
        let redis = Self { folder, port, prefixes: AtomicU32::new(0), server, tls_port: None };
        redis.wait_ready();
        redis
    }

    /// A new one that also speaks TLS, as `localhost`.
    pub fn start_with_tls(authority: &Authority) -> Self {
        let issued = authority.issue("redis", "DNS:localhost");
        let text = |file: &Path| file.to_str().expect("a path in UTF-8").to_owned();
        let (cert, key, ca) = (text(&issued.cert), text(&issued.key), text(&authority.cert()));
        let port = free_port();
        let port_text = port.to_string();
        let options = ["--tls-port", &port_text, "--tls-cert-file", &cert, "--tls-key-file", &key];
        let more = ["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"];
        Self { tls_port: Some(port), ..Self::start(&[&options[..], &more].concat()) }
    }

    /// Where it speaks TLS.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port.expect("it was started with TLS"))
    }

    fn wait_ready(&self) {
        let end = Instant::now() + START;
        while !self.answers() {
            let log = || std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "no Redis (package redis-server): {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn answers(&self) -> bool {
        let ping = self.client().arg("ping").output().expect("redis-cli: package redis-tools");
        ping.stdout.starts_with(b"PONG")
    }

    fn client(&self) -> Command {
        let mut client = Command::new("timeout");
        client.args(["10", "redis-cli", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        client
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A prefix that nobody else uses.
    pub fn prefix(&self) -> String {
        format!("t{}:", self.prefixes.fetch_add(1, Ordering::Relaxed))
    }

    /// What a command is answered, line by line; panics with what the server says against it.
    pub fn ask(&self, words: &[&str]) -> String {
        self.try_ask(words).unwrap_or_else(|said| panic!("{words:?}: {said}"))
    }

    /// As [`Self::ask`], of a server that may be down or say no.
    pub fn try_ask(&self, words: &[&str]) -> Result<String, String> {
        let output = self.client().arg("-e").args(words).output().expect("redis-cli");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        let (said, error) = (text(&output.stdout), text(&output.stderr));
        if output.status.success() { Ok(said) } else { Err(format!("{said} {error}")) }
    }

    fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.folder.join("pid")).expect("its pid");
        let sent = Command::new("kill").args([signal, pid.trim()]).status().expect("kill");
        assert!(sent.success(), "kill {signal} {pid}");
    }

    /// `kill -9`.
    pub fn kill(&self) {
        self.signal("-KILL");
    }

    /// It keeps its connections and answers nothing.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// After it was killed; empty, unless its options say that it keeps things.
    pub fn start_again(&mut self) {
        self.server.start_again();
        self.wait_ready();
    }
}

/// Three masters that share the slots.
#[derive(Debug)]
pub struct RedisCluster {
    pub nodes: Vec<Redis>,
}

impl RedisCluster {
    pub fn start(options: &[&str]) -> Self {
        let own = ["--save", "", "--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let options = [&own, options].concat();
        // The bus of a node listens on its port + 10000.
        let port = || std::iter::repeat_with(free_port).find(|port| *port < 50_000);
        let node = || Redis::start_as(&program(), &options, port().expect("a low port"));
        let nodes: Vec<Redis> = std::iter::repeat_with(node).take(3).collect();
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]);
        create.args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
        let made = create.args(["--cluster-replicas", "0", "--cluster-yes"]).output();
        let made = made.expect("redis-cli");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let end = Instant::now() + START;
        let is_whole = |node: &Redis| node.ask(&["cluster", "info"]).contains("cluster_state:ok");
        while !nodes.iter().all(is_whole) {
            assert!(Instant::now() < end, "the cluster does not come together");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { nodes }
    }

    pub fn url(&self) -> String {
        let nodes = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        format!("redis+cluster://{}", nodes.collect::<Vec<_>>().join(","))
    }
}

/// A master and a replica, watched by three Sentinels that call them `matins`.
#[derive(Debug)]
pub struct RedisSentinel {
    pub servers: Vec<Redis>,
    sentinels: Vec<Redis>,
}

impl RedisSentinel {
    pub fn start(options: &[&str]) -> Self {
        let master = Redis::start(options);
        let port = master.port.to_string();
        let replica = Redis::start(&[&["--replicaof", "127.0.0.1", &port], options].concat());
        let end = Instant::now() + START;
        while !master.ask(&["info", "replication"]).contains("state=online") {
            assert!(Instant::now() < end, "the replica does not follow");
            std::thread::sleep(Duration::from_millis(50));
        }
        let sentinels = (0..3).map(|_| sentinel(&port)).collect();
        let pair = Self { servers: vec![master, replica], sentinels };
        while !pair.sentinels.iter().all(Self::knows_all) {
            assert!(Instant::now() < end, "the sentinels do not find each other");
            std::thread::sleep(Duration::from_millis(100));
        }
        pair
    }

    fn knows_all(sentinel: &Redis) -> bool {
        let said = sentinel.ask(&["sentinel", "master", "matins"]);
        let lines: Vec<&str> = said.lines().collect();
        let value = |name: &str| {
            lines.iter().position(|line| *line == name).and_then(|at| lines.get(at + 1).copied())
        };
        value("num-slaves") == Some("1") && value("num-other-sentinels") == Some("2")
    }

    pub fn url(&self) -> String {
        let nodes = self.sentinels.iter().map(|node| format!("127.0.0.1:{}", node.port));
        format!("redis+sentinel://{}/matins", nodes.collect::<Vec<_>>().join(","))
    }
}

fn sentinel(master: &str) -> Redis {
    let folder = folder();
    let config = folder.join("sentinel.conf");
    let text = format!(
        "sentinel monitor matins 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds matins 1000\nsentinel failover-timeout matins 5000\n"
    );
    std::fs::write(&config, text).expect("the configuration can be written");
    let config = config.to_str().expect("a path in UTF-8").to_owned();
    let (port, place) = (free_port(), folder.to_str().expect("a path in UTF-8").to_owned());
    let port_text = port.to_string();
    let program = program();
    let words = [
        program.as_str(),
        &config,
        "--sentinel",
        "--port",
        &port_text,
        "--bind",
        "127.0.0.1",
        "--dir",
        &place,
    ];
    let server = Server::start("TERM", &place, &words);
    let redis = Redis { folder, port, prefixes: AtomicU32::new(0), server, tls_port: None };
    redis.wait_ready();
    redis
}
