//! PgBouncer in front of a PostgreSQL server, handing out a session per transaction.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Postgres;
use crate::postgres::words_as_user;
use crate::server::{POSTGRES, Server, free_port, is_root, must};

#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _server: Server,
}

impl PgBouncer {
    /// Every database of the server, whoever asks, in few sessions: clients have to share.
    pub fn start(server: &Postgres) -> Self {
        let program = program().expect("PgBouncer: install the package `pgbouncer`");
        let folder = tempfile::Builder::new().prefix("matins-pgbouncer-").tempdir();
        let folder = folder.expect("a folder").keep();
        let (port, own) = (free_port(), server.port());
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={own} user={POSTGRES}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 4\n\
             server_idle_timeout = 20\n"
        );
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("a file");
        if is_root() {
            must(Command::new("chown").arg("-R").arg(POSTGRES).arg(&folder).output());
        }
        let text = |path: &PathBuf| path.to_str().expect("a path in UTF-8").to_owned();
        let words = words_as_user(&[text(&program), text(&file)]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let running = Server::start("INT", &text(&folder), &words);
        let end = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "no PgBouncer: {}", log());
            std::thread::sleep(Duration::from_millis(30));
        }
        Self { port, _server: running }
    }

    /// The address of a database through it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{POSTGRES}@127.0.0.1:{}/{database}?pgbouncer=true", self.port)
    }
}

fn program() -> Option<PathBuf> {
    let places = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];
    places.iter().map(PathBuf::from).find(|path| path.exists())
}
