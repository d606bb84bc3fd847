//! The binary under test: built once per process, and kept under a name of its own so that a
//! build that happens meanwhile does not swap it under a running test.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate lies in crates/").to_owned()
}

fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The debug build of `matins`, brought up to date first. `MATINS_E2E_BINARY` names another one.
pub fn matins() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = env::var_os("MATINS_E2E_BINARY") {
            return PathBuf::from(path);
        }
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--quiet", "-p", "matins-cli"])
            .current_dir(workspace())
            .status()
            .expect("cargo can be started");
        assert!(status.success(), "cargo build -p matins-cli: {status}");
        pinned(&target_dir().join("debug/matins"))
    })
}

/// The release build when there is one, else the debug build.
pub fn matins_release_or_debug() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let release = target_dir().join("release/matins");
        if env::var_os("MATINS_E2E_BINARY").is_none() && release.exists() {
            pinned(&release)
        } else {
            matins().to_owned()
        }
    })
}

/// A second name for the file, in a folder that this process alone uses.
fn pinned(built: &Path) -> PathBuf {
    let folder = target_dir().join("tmp/e2e").join(std::process::id().to_string());
    fs::create_dir_all(&folder).expect("the target folder can be written");
    let copy = folder.join("matins");
    let _ = fs::remove_file(&copy);
    if fs::hard_link(built, &copy).is_err() {
        fs::copy(built, &copy).expect("the binary can be copied");
    }
    forget_others(&target_dir().join("tmp/e2e"));
    copy
}

/// Removes what ended test processes left there.
fn forget_others(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !Path::new("/proc").join(&name).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
