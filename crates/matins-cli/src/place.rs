//! The folder of a node: `data_dir`, its admin token, and the files by which a running server
//! is found.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use matins_runtime::lock::NodeLock;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::failure::{Failure, Result};

pub(crate) fn token_path(config: &Config) -> PathBuf {
    config.data_dir.join("token")
}

/// The name of a node that listens on this port.
pub(crate) fn node_name(config: &Config, port: u16) -> String {
    config.node_id.clone().unwrap_or_else(|| format!("{}-{port}", crate::serve::hostname()))
}

/// The lock that says that a server runs. Of a file there is one server: the lock lies beside
/// it, not in `data_dir`, because two configurations may name the same file. Of a database there
/// are many: each node has its own.
pub(crate) fn server_lock(config: &Config) -> PathBuf {
    match crate::storage::file(config) {
        Some(path) => suffixed(&true_name(path), ".lock"),
        None => node_lock(config, &node_name(config, config.listen.port())),
    }
}

pub(crate) fn node_lock(config: &Config, node: &str) -> PathBuf {
    config.data_dir.join(format!("{node}.lock"))
}

/// Alerts of a node that nothing could take at the time.
pub(crate) fn alert_spool(config: &Config, node: &str) -> PathBuf {
    config.data_dir.join(format!("{node}.alerts"))
}

/// What a node has promised while the database was away.
pub(crate) fn journal_spool(config: &Config, node: &str) -> PathBuf {
    config.data_dir.join(format!("{node}.journal"))
}

/// What tells this folder's nodes from others of the same name elsewhere; made once.
pub(crate) fn home(config: &Config) -> Result<String> {
    let path = config.data_dir.join("home");
    let failed = |error: io::Error| Failure::io(format!("the file {}", path.display()), &error);
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    match file {
        Ok(mut file) => {
            let id = uuid::Uuid::new_v4().to_string();
            file.write_all(id.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            Ok(id)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::read_to_string(&path).map(|id| id.trim().to_owned()).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Another name for the same file must meet the same lock.
fn true_name(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let beside = || Some(folder?.join(path.file_name()?));
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Whether a server runs on this store.
pub(crate) fn is_served(config: &Config) -> bool {
    NodeLock::holder(&server_lock(config)).is_some()
}

/// Makes `data_dir`, closed to others and ignored by git.
pub(crate) fn make(data_dir: &Path) -> Result<()> {
    let failed =
        |error: io::Error| Failure::io(format!("cannot make {}", data_dir.display()), &error);
    if data_dir.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(failed)?;
    fs::write(data_dir.join(".gitignore"), "*\n").map_err(failed)
}

/// The admin token: read, or made once with 0600. The second value tells whether it is new.
pub(crate) fn admin_token(config: &Config) -> Result<(String, bool)> {
    let path = token_path(config);
    let failed = |error: &io::Error| Failure::io(format!("the token {}", path.display()), error);
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok((text.trim().to_owned(), false)),
        Ok(_) => {
            let message = format!("the token file {} is empty", path.display());
            return Err(Failure::failed(message).hint("remove it, and a new one is made"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&error)),
    }
    let token = matins_server::auth::new_secret();
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    match file {
        Ok(mut file) => {
            let written = writeln!(file, "{token}").and_then(|()| file.sync_all());
            written.map_err(|error| failed(&error))?;
            Ok((token, true))
        }
        // Another node of the same folder was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
            Ok((text.trim().to_owned(), false))
        }
        Err(error) => Err(failed(&error)),
    }
}

/// What a running server says of itself, for commands on the same machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServerFile {
    pub(crate) url: String,
    pub(crate) pid: u32,
}

impl ServerFile {
    pub(crate) fn path(config: &Config) -> PathBuf {
        match crate::storage::file(config) {
            Some(path) => suffixed(&true_name(path), ".server"),
            None => {
                let node = node_name(config, config.listen.port());
                config.data_dir.join(format!("{node}.server"))
            }
        }
    }

    /// Written whole or not at all.
    pub(crate) fn write(&self, config: &Config) -> Result<()> {
        let path = Self::path(config);
        let failed =
            |error: io::Error| Failure::io(format!("cannot write {}", path.display()), &error);
        let text = serde_json::to_string(self).map_err(|error| failed(error.into()))?;
        let draft = suffixed(&path, ".new");
        fs::write(&draft, text).map_err(failed)?;
        fs::rename(&draft, &path).map_err(failed)
    }

    /// The server that holds the lock of this store, if one does.
    pub(crate) fn live(config: &Config) -> Option<Self> {
        let holder = NodeLock::holder(&server_lock(config))?;
        let text = fs::read_to_string(Self::path(config)).ok()?;
        let file: Self = serde_json::from_str(&text).ok()?;
        // A file that an earlier server left behind is not about this one.
        (file.pid == holder).then_some(file)
    }
}
