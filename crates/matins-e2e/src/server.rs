//! A `matins serve` of a test's own: in a temporary folder, on a free port, to be stopped, killed,
//! paused and started again at will.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use matins_testbed::{Line, Namespace, PgBouncer, Postgres};
use tempfile::TempDir;

use crate::api::Api;
use crate::clock::FakeClock;
use crate::http::Request;
use crate::process::{self, Process, Signal};
use crate::wait::wait_for;
use crate::witness::Witness;

/// How long a start may take before it counts as failed.
const START: Duration = Duration::from_secs(20);

/// Ports below those that the kernel gives to outgoing connections.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = (std::process::id() % 300) as u16 * 40;
    loop {
        let port = 12_000 + (own + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[derive(Default)]
pub struct ServerBuilder {
    config: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    wrapper: Vec<String>,
    binary: Option<PathBuf>,
    home: Option<PathBuf>,
    supervised: bool,
    namespace: Option<Namespace>,
    clock: Option<String>,
}

impl ServerBuilder {
    /// With the parent that watches it: then [`Server::pid`] is the parent's, and
    /// [`Server::served_by`] the server's own.
    pub fn supervised(mut self) -> Self {
        self.supervised = true;
        self
    }

    /// YAML that follows `listen`.
    pub fn config(mut self, yaml: &str) -> Self {
        yaml.clone_into(&mut self.config);
        self
    }

    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A command that starts the server, such as `prlimit --fsize=…`.
    pub fn wrapper(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Under a wall clock of the test's, which begins with this, as does its database.
    pub fn clock(mut self, spec: &str) -> Self {
        self.clock = Some(spec.to_owned());
        self
    }

    /// On a network of its own, as if it were a machine of its own. Its API is reached all the
    /// same, whatever becomes of its cables.
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.wrapper = namespace.wrapper();
        self.namespace = Some(namespace);
        self
    }

    pub fn binary(mut self, binary: &Path) -> Self {
        self.binary = Some(binary.to_owned());
        self
    }

    /// The folder to live in, instead of a temporary one.
    pub fn home(mut self, home: &Path) -> Self {
        self.home = Some(home.to_owned());
        self
    }

    /// Everything but the start.
    pub fn prepare(mut self) -> Server {
        let folder = tempfile::Builder::new()
            .prefix("matins-e2e-")
            .tempdir()
            .expect("a temporary folder can be made");
        let clock = self.clock.as_ref().map(|spec| {
            // The database runs as somebody else.
            let open = fs::Permissions::from_mode(0o711);
            fs::set_permissions(folder.path(), open).expect("a folder of our own");
            FakeClock::new(folder.path(), spec)
        });
        self.environment.extend(clock.iter().flat_map(FakeClock::environment));
        let (store, database) = self.store(clock.as_ref());
        let home = self.home.unwrap_or_else(|| folder.path().join("home"));
        fs::create_dir_all(&home).expect("the home can be made");
        let port = free_port();
        let way_in = self.namespace.as_ref().map(|namespace| Line::into(namespace, port));
        let server = Server {
            port,
            namespace: self.namespace,
            _way_in: way_in,
            clock,
            _database: database,
            log: folder.path().join("log"),
            witness: Witness::new(folder.path()),
            binary: self.binary.unwrap_or_else(|| crate::binary::matins().to_owned()),
            arguments: self.arguments,
            environment: self.environment,
            wrapper: self.wrapper,
            supervised: self.supervised,
            child: None,
            folder,
            home,
            store,
        };
        server.configure(&self.config);
        server
    }

    /// `MATINS_E2E_STORE=postgres` puts the stores of servers that name none into databases,
    /// `postgres+redis` also puts Redis in front of them: what the file of such a server begins
    /// with. A database under another clock is one of its own.
    fn store(&self, clock: Option<&FakeClock>) -> (String, Option<Postgres>) {
        let names_one = self.config.contains("store:")
            || self.environment.iter().any(|(name, _)| name == "MATINS_STORE")
            || self.arguments.iter().any(|argument| argument.starts_with("--store"));
        let wanted = std::env::var("MATINS_E2E_STORE").unwrap_or_default();
        if names_one || !matches!(&*wanted, "postgres" | "pgbouncer" | "postgres+redis") {
            return (String::new(), None);
        }
        let own = clock.map(|clock| Postgres::start_in(&clock.environment(), &[]));
        let url = own.as_ref().unwrap_or_else(|| Postgres::shared()).database("template1");
        let text = match &*wanted {
            "pgbouncer" if own.is_none() => format!("store: {}\n", pooled(&url)),
            "postgres+redis" => {
                let redis = matins_testbed::Redis::shared();
                let (address, prefix) = (redis.url(), redis.prefix());
                format!("store: {url}\nredis: {address}\nredis_prefix: '{prefix}'\n")
            }
            _ => format!("store: {url}\n"),
        };
        (text, own)
    }

    #[track_caller]
    pub fn start(self) -> Server {
        let mut server = self.prepare();
        server.start();
        server
    }
}

/// The same database through PgBouncer.
fn pooled(url: &str) -> String {
    static SHARED: OnceLock<PgBouncer> = OnceLock::new();
    let bouncer = SHARED.get_or_init(|| PgBouncer::start(Postgres::shared()));
    bouncer.url(url.rsplit('/').next().expect("the name of a database"))
}

pub struct Server {
    pub home: PathBuf,
    pub port: u16,
    pub witness: Witness,
    pub log: PathBuf,
    binary: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    wrapper: Vec<String>,
    supervised: bool,
    child: Option<Child>,
    folder: TempDir,
    /// Where its store is, as lines of its file; empty: in its folder.
    store: String,
    namespace: Option<Namespace>,
    _way_in: Option<Line>,
    clock: Option<FakeClock>,
    /// One that nobody else uses.
    _database: Option<Postgres>,
}

impl Server {
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// A server with this YAML after `listen`.
    #[track_caller]
    pub fn with(config: &str) -> Server {
        Server::builder().config(config).start()
    }

    /// The temporary folder around `home`: for what tests want to lie outside of it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The clock that it was built with.
    pub fn clock(&self) -> &FakeClock {
        self.clock.as_ref().expect("it was built with one")
    }

    /// The network of its own that it is on.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    pub fn config_file(&self) -> PathBuf {
        self.home.join("matins.yaml")
    }

    /// Writes the configuration file anew.
    pub fn configure(&self, yaml: &str) {
        let store = if yaml.contains("store:") { "" } else { &self.store };
        let allow = if yaml.contains("allow_commands:") || store.is_empty() {
            ""
        } else {
            "allow_commands: any\n"
        };
        let text = format!("listen: 127.0.0.1:{}\n{store}{allow}{yaml}\n", self.port);
        fs::write(self.config_file(), text).expect("the configuration can be written");
    }

    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// `matins -c FILE`, with a clean environment.
    pub fn command(&self) -> Command {
        self.command_of(&[])
    }

    fn command_of(&self, wrapper: &[String]) -> Command {
        let mut command = match wrapper.split_first() {
            None => Command::new(&self.binary),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&self.binary);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MATINS_") {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.home).arg("-c").arg(self.config_file());
        command
    }

    /// Starts the process without waiting until it is ready.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the server runs already");
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File = log.expect("the log can be opened");
        let mut command = self.command_of(&self.wrapper);
        command
            .arg("serve")
            .args(if self.supervised { &[][..] } else { &["--no-supervise"] })
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log has two ends"))
            .stderr(log);
        self.child = Some(command.spawn().expect("matins can be started"));
        fs::write(self.folder.path().join("pid"), self.pid().to_string()).expect("pid is written");
    }

    /// Starts the process and waits until it is ready.
    #[track_caller]
    pub fn start(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    #[track_caller]
    pub fn wait_ready(&mut self) {
        if let Err(error) = self.become_ready() {
            panic!("{error}");
        }
    }

    /// Starts the process; says why when it does not become ready, and is gone then.
    pub fn try_start(&mut self) -> Result<(), String> {
        self.spawn();
        self.become_ready().inspect_err(|_| self.kill())
    }

    fn become_ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < START {
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                let log = self.log_tail();
                return Err(format!("matins ended with {status} instead of serving:\n{log}"));
            }
            if self.ready() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(format!("not ready within {START:?}:\n{}", self.log_tail()))
    }

    pub fn ready(&self) -> bool {
        Request::new("GET", "/readyz")
            .timeout(Duration::from_secs(2))
            .send(self.address())
            .is_ok_and(|response| response.status == 200)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    pub fn is_supervised(&self) -> bool {
        self.supervised
    }

    /// The process that holds the store and answers: the parent's child, where there is a parent.
    pub fn served_by(&self) -> Option<u32> {
        if !self.supervised {
            return Some(self.pid());
        }
        let children = process::descendants(self.pid());
        children.iter().find(|child| child.parent == self.pid()).map(|child| child.pid)
    }

    pub fn running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn signal(&self, signal: Signal) {
        process::signal(self.pid(), signal);
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.reap();
    }

    fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }

    /// Waits until the process has ended by itself.
    #[track_caller]
    pub fn wait_exit(&mut self, within: Duration) -> ExitStatus {
        let child = self.child.as_mut().expect("the server runs");
        let ended = wait_for(within, || child.try_wait().expect("a child can be waited for"));
        let Some(status) = ended else {
            panic!("matins did not end within {within:?}:\n{}", self.log_tail());
        };
        self.child = None;
        status
    }

    /// SIGTERM, and the exit status.
    #[track_caller]
    pub fn stop(&mut self, within: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_exit(within)
    }

    /// `kill -9` and a new start.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        self.start();
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    pub fn data_dir(&self) -> PathBuf {
        self.home.join(".matins")
    }

    pub fn database(&self) -> PathBuf {
        self.data_dir().join("matins.db")
    }

    pub fn token(&self) -> String {
        let text = fs::read_to_string(self.data_dir().join("token")).unwrap_or_default();
        text.trim().to_owned()
    }

    pub fn api(&self) -> Api {
        Api::new(self.address(), &self.token())
    }

    pub fn log_text(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = File::open(&self.log) {
            let mut bytes = Vec::new();
            let _ = file.read_to_end(&mut bytes);
            text = String::from_utf8_lossy(&bytes).into_owned();
        }
        text
    }

    pub fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Leaves the folder where it is when the server goes; its path.
    pub fn keep(&mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder.path().to_owned()
    }

    /// What tasks of this server have running.
    pub fn workers(&self) -> Vec<Process> {
        process::workers(&self.home)
    }

    #[track_caller]
    pub fn assert_no_workers(&self, within: Duration) {
        let mut left = Vec::new();
        let gone = wait_for(within, || {
            left = self.workers();
            left.is_empty().then_some(())
        });
        assert!(gone.is_some(), "still alive after {within:?}: {left:#?}");
    }

    /// Fails when the log tells of a panic.
    #[track_caller]
    pub fn assert_no_panic(&self) {
        let log = self.log_text();
        let found: Vec<&str> = log.lines().filter(|line| line.contains("panicked")).collect();
        assert!(found.is_empty(), "panics in the log:\n{}", found.join("\n"));
    }

    /// A command on the store itself.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> CliOutput {
        let mut command = self.command();
        command.args(arguments);
        run(command, b"")
    }

    /// The same command over HTTP.
    #[track_caller]
    pub fn cli_over_http(&self, arguments: &[&str]) -> CliOutput {
        let mut command = self.command();
        command.args(["--server", &self.url()]).args(arguments);
        command.env("MATINS_TOKEN", self.token());
        run(command, b"")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
        for worker in self.workers() {
            process::signal(worker.pid, Signal::KILL);
        }
        if thread::panicking() {
            eprintln!("--- the end of the log of {}:\n{}\n---", self.url(), self.log_tail());
        }
    }
}

#[derive(Clone, Debug)]
pub struct CliOutput {
    /// The exit code; 128 + n after signal n, as shells say it.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl CliOutput {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> CliOutput {
        assert!(
            self.code == code,
            "expected exit code {code}, got {}\nstdout: {}\nstderr: {}",
            self.code,
            self.out(),
            self.err()
        );
        self
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_slice(&self.stdout) {
            Ok(value) => value,
            Err(error) => panic!("{error} in {:?}, stderr {:?}", self.out(), self.err()),
        }
    }
}

pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Runs a command to its end; one that hangs is killed and fails the test.
#[track_caller]
pub fn run(mut command: Command, stdin: &[u8]) -> CliOutput {
    const LIMIT: Duration = Duration::from_secs(60);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command can be started");
    let mut input = child.stdin.take().expect("stdin is a pipe");
    let stdin = stdin.to_vec();
    let feeder = thread::spawn(move || {
        // A command may end without reading its input.
        let _ = input.write_all(&stdin);
    });
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let ended = wait_for(LIMIT, || child.try_wait().expect("a child can be waited for"));
    let Some(status) = ended else {
        let _ = child.kill();
        let _ = child.wait();
        panic!("{command:?} did not end within {LIMIT:?}");
    };
    feeder.join().expect("the input was written");
    CliOutput {
        code: exit_code(status),
        stdout: stdout.join().expect("stdout was read"),
        stderr: stderr.join().expect("stderr was read"),
    }
}

fn collect(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    let mut from = from.expect("the stream is a pipe");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}
