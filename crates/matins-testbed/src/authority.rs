//! A certificate authority of one's own, by `openssl`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::server::{give_to_postgres, must};

/// Issues certificates that nobody else trusts; its files go with it.
#[derive(Debug)]
pub struct Authority {
    folder: TempDir,
}

/// Certificate and key, in PEM.
#[derive(Debug, Clone)]
pub struct Issued {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("matins-authority-").tempdir();
        let folder = folder.expect("a folder");
        // A server that runs as somebody else finds its files here.
        let open = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(folder.path(), open).expect("a folder of our own");
        let authority = Self { folder };
        let subject = format!("/CN={name}");
        authority.openssl(&[
            &["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"][..],
            &["-nodes", "-days", "2", "-subj", &subject, "-keyout", "ca.key", "-out", "ca.pem"],
            &["-addext", "basicConstraints=critical,CA:TRUE"],
        ]);
        authority
    }

    /// Its own certificate.
    pub fn cert(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// A certificate for `name`, valid for `hosts` such as `DNS:localhost,IP:127.0.0.1`.
    pub fn issue(&self, name: &str, hosts: &str) -> Issued {
        let (subject, key) = (format!("/CN={name}"), format!("{name}.key"));
        let (request, cert) = (format!("{name}.csr"), format!("{name}.pem"));
        self.openssl(&[
            &["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"][..],
            &["-subj", &subject, "-keyout", &key, "-out", &request],
        ]);
        let extensions = self.file(&format!("{name}.ext"));
        std::fs::write(&extensions, format!("subjectAltName={hosts}\n")).expect("a file");
        let extensions = extensions.to_str().expect("a path in UTF-8");
        self.openssl(&[
            &["x509", "-req", "-in", &request, "-CA", "ca.pem", "-CAkey", "ca.key"][..],
            &["-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", &cert],
        ]);
        let issued = Issued { cert: self.file(&cert), key: self.file(&key) };
        give_to_postgres(&issued.key);
        issued
    }

    /// A text in a file beside the certificates, for the server to read.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.file(name);
        std::fs::write(&file, text).expect("a file");
        give_to_postgres(&file);
        file
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, arguments: &[&[&str]]) {
        let folder: &Path = self.folder.path();
        must(Command::new("openssl").args(arguments.concat()).current_dir(folder).output());
    }
}
