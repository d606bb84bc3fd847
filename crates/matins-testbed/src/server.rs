//! A server that ends with the process that started it.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};

/// Runs a command until this end of its pipe is closed, by whatever end of this process.
///
/// A shell stands between, because the server must be told, and its folder removed, also after
/// this process was killed.
#[derive(Debug)]
pub(crate) struct Server {
    _shell: Child,
    leash: ChildStdin,
}

/// `$0` is the signal that ends the server, `$1` the folder that goes with it, the rest its
/// command. Each line that comes starts it again: it must have been ended before.
const KEEPER: &str = r#"
signal=$0; folder=$1; shift
trap '' INT TERM HUP
begin() {
    (trap - INT TERM HUP; exec "$@") >>"$folder/log" 2>&1 </dev/null &
    server=$!
    echo $server >"$folder/pid"
}
begin "$@"
while read -r _; do
    wait "$server"
    begin "$@"
done
kill -CONT "$server" 2>/dev/null
kill -"$signal" "$server" 2>/dev/null
wait "$server"
rm -rf "$folder"
"#;

impl Server {
    pub(crate) fn start(signal: &str, folder: &str, command: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", KEEPER, signal, folder]).args(command);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut shell = shell.spawn().expect("a shell");
        let leash = shell.stdin.take().expect("its input");
        Self { _shell: shell, leash }
    }

    /// Starts it again after it has ended.
    pub(crate) fn start_again(&mut self) {
        self.leash.write_all(b"again\n").expect("the keeper listens");
    }
}

/// Runs a command when this process is gone, by whatever end.
#[derive(Debug)]
pub(crate) struct Leash {
    _shell: Child,
    _end: ChildStdin,
}

impl Leash {
    pub(crate) fn new(at_the_end: &str) -> Self {
        let script = format!("trap '' INT TERM HUP; read -r _; {at_the_end}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        let mut shell = shell.spawn().expect("a shell");
        let end = shell.stdin.take().expect("its input");
        Self { _shell: shell, _end: end }
    }
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id");
    id.stdout.trim_ascii() == b"0"
}

pub(crate) fn must(output: std::io::Result<Output>) -> Output {
    let output = output.expect("a program that tests need");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output
}

/// PostgreSQL refuses to run as root; this is who Debian's package makes for it.
pub(crate) const POSTGRES: &str = "postgres";

/// Makes a file one that only the database server reads.
pub(crate) fn give_to_postgres(file: &Path) {
    if is_root() {
        must(Command::new("chown").arg(POSTGRES).arg(file).output());
    }
    must(Command::new("chmod").arg("600").arg(file).output());
}
