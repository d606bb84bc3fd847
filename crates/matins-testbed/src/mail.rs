//! A mail server that wants TLS and a login: aiosmtpd, of Debian's `python3-aiosmtpd`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use tempfile::TempDir;

use crate::authority::Issued;
use crate::server::free_port;

/// Debian's own, which has its packages.
const PYTHON: &str = "/usr/bin/python3";

/// How the line is kept private, in the words of Matins.
pub const SECURITIES: [&str; 2] = ["tls", "starttls"];

#[derive(Debug)]
pub struct Mail {
    child: Child,
    /// It ends when this does.
    _life: ChildStdin,
    folder: TempDir,
    port: u16,
}

impl Mail {
    /// Takes mail from whoever knows the password of `user`.
    pub fn start(security: &str, issued: &Issued, user: &str, password: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("matins-mail-").tempdir().expect("a folder");
        let port = free_port();
        let mut child = Command::new(PYTHON)
            .args(["-c", include_str!("mail.py"), &port.to_string(), security])
            .arg(&issued.cert)
            .arg(&issued.key)
            .arg(folder.path())
            .args([user, password])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 can be started");
        let life = child.stdin.take().expect("stdin is a pipe");
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        out.read_line(&mut said).expect("it speaks");
        assert_eq!(said.trim(), "ready", "install the package `python3-aiosmtpd`");
        Self { child, _life: life, folder, port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What came, decoded: From, To, Subject, an empty line, the text.
    pub fn mails(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path()).expect("its folder");
        let mut files: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "mail"));
        files.sort();
        files.iter().map(|file| std::fs::read_to_string(file).expect("a mail")).collect()
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
