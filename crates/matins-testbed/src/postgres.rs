//! A PostgreSQL server.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::server::{POSTGRES as USER, Server, free_port, is_root, must};

/// Becomes the program, so that a signal reaches it.
const AS_USER: [&str; 5] =
    ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"];

/// One server. Its databases are made as they are asked for.
#[derive(Debug)]
pub struct Postgres {
    bin: PathBuf,
    folder: PathBuf,
    port: u16,
    databases: AtomicU32,
    server: Mutex<Server>,
}

/// Ends with its value.
#[derive(Debug)]
pub struct Session {
    child: Child,
    _orders: ChildStdin,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Postgres {
    /// The one that all tests of a process share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[]))
    }

    /// A new one, with settings in the form `name=value`.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_in(&[], settings)
    }

    /// The same, with variables in its environment.
    pub fn start_in(environment: &[(String, String)], settings: &[&str]) -> Self {
        let (bin, folder) = place();
        let arguments = ["-N", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C.UTF-8", "-D"];
        must(as_user(&bin.join("initdb")).args(arguments).arg(folder.join("data")).output());
        Self::serve(bin, folder, environment, settings)
    }

    /// A server of its own with all that this one has now.
    pub fn copy(&self) -> Self {
        let (bin, folder) = place();
        let mut copy = as_user(&bin.join("pg_basebackup"));
        copy.args(["-c", "fast", "-h", "127.0.0.1", "-U", USER, "-p", &self.port.to_string()]);
        must(copy.arg("-D").arg(folder.join("data")).output());
        Self::serve(bin, folder, &[], &[])
    }

    fn serve(
        bin: PathBuf,
        folder: PathBuf,
        environment: &[(String, String)],
        settings: &[&str],
    ) -> Self {
        let (data, port) = (folder.join("data"), free_port());
        let mut words = vec!["env".to_owned()];
        words.extend(environment.iter().map(|(name, value)| format!("{name}={value}")));
        words.extend([text(&bin.join("postgres")), "-D".to_owned(), text(&data)]);
        let mut words = words_as_user(&words);
        let own = [
            format!("port={port}"),
            format!("unix_socket_directories={}", text(&folder)),
            "listen_addresses=127.0.0.1".to_owned(),
            "fsync=off".to_owned(),
            "max_connections=300".to_owned(),
            "shared_buffers=64MB".to_owned(),
        ];
        for setting in own.iter().map(String::as_str).chain(settings.iter().copied()) {
            words.extend(["-c".to_owned(), setting.to_owned()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let server = Mutex::new(Server::start("INT", &text(&folder), &words));
        let databases = AtomicU32::new(0);
        let postgres = Self { bin, folder, port, databases, server };
        postgres.wait_ready();
        postgres
    }

    fn wait_ready(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        let mut ready = as_user(&self.bin.join("pg_isready"));
        ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        while !ready.status().expect("pg_isready").success() {
            let log = || std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "no PostgreSQL: {}", log());
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// The address of a new database, a copy of `template`.
    pub fn database(&self, template: &str) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{number}");
        self.sql("postgres", &format!("CREATE DATABASE {name} TEMPLATE {template}"));
        self.url(&name)
    }

    /// Runs statements as the superuser; panics with what the server says against them.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        self.try_sql(database, statements).unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same; `Err` is what the server says against them, with SQLSTATE and hint.
    pub fn try_sql(&self, database: &str, statements: &str) -> Result<String, String> {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]);
        psql.args(["-c", statements]).arg(self.url(database));
        let output = psql.output().expect("psql");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// A session that stays, with what it did: a lock, an open transaction. In a deadlock it is the
    /// other one that gives way.
    pub fn session(&self, database: &str, statements: &str) -> Session {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]).arg(self.url(database));
        let mut child =
            psql.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("psql can be started");
        let mut orders = child.stdin.take().expect("stdin is a pipe");
        writeln!(orders, "SET deadlock_timeout = '1min';\n{statements};\n\\echo ready")
            .expect("psql reads");
        let said = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        assert!(said.lines().map_while(Result::ok).any(|line| line == "ready"), "{statements}");
        Session { child, _orders: orders }
    }

    /// `pg_ctl` with this server's folder.
    pub fn control(&self, arguments: &[&str]) {
        let mut command = as_user(&self.bin.join("pg_ctl"));
        must(command.arg("-D").arg(self.folder.join("data")).args(arguments).output());
    }

    /// Ends the server as `pg_ctl stop -m MODE` does: `fast`, `immediate`, `smart`.
    pub fn stop(&self, mode: &str) {
        self.control(&["stop", "-w", "-m", mode]);
    }

    /// Starts it again after [`stop`](Self::stop).
    pub fn start_again(&self) {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).start_again();
        self.wait_ready();
    }

    /// The process that all others of the server are children of.
    pub fn pid(&self) -> u32 {
        let pid = std::fs::read_to_string(self.folder.join("pid")).expect("the keeper wrote it");
        pid.trim().parse().expect("a number")
    }
}

/// The programs, and a new folder for a server.
fn place() -> (PathBuf, PathBuf) {
    let bin = newest_bin().expect("PostgreSQL's programs: install the package `postgresql`");
    let folder = tempfile::Builder::new().prefix("matins-postgres-").tempdir();
    let folder = folder.expect("a folder").keep();
    if is_root() {
        must(Command::new("chown").arg(USER).arg(&folder).output());
    }
    (bin, folder)
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// A command that is not run as root.
pub(crate) fn words_as_user(words: &[String]) -> Vec<String> {
    let before = if is_root() { AS_USER.as_slice() } else { &[] };
    before.iter().map(|word| (*word).to_owned()).chain(words.iter().cloned()).collect()
}

fn as_user(program: &Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new(AS_USER[0]);
        command.args(&AS_USER[1..]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/");
    command
}

/// Where the newest installed version has its programs.
fn newest_bin() -> Option<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let newest = installed.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    newest.max().map(|(_, bin)| bin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_committed_is_there_after_each_kind_of_stop() {
        let postgres = Postgres::start(&[]);
        postgres.sql("postgres", "CREATE TABLE kept (n int)");
        for (n, mode) in ["fast", "immediate"].iter().enumerate() {
            let before = postgres.pid();
            postgres.sql("postgres", &format!("INSERT INTO kept VALUES ({n})"));
            postgres.stop(mode);
            postgres.start_again();
            assert_ne!(before, postgres.pid(), "another process");
        }
        assert_eq!(postgres.sql("postgres", "SELECT count(*) FROM kept"), "2");
        let folder = postgres.folder.clone();
        drop(postgres);
        let end = Instant::now() + Duration::from_secs(20);
        while folder.exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(30));
        }
        assert!(!folder.exists(), "the folder goes with the server");
    }
}
