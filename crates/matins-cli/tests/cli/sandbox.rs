//! A folder of its own for each test, and the binary in it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Long enough for a machine that does other things too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Sandbox {
    folder: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    #[track_caller]
    pub(crate) fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn fails_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.out.contains(text), "{text:?} is not in {self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn complains(self, text: &str) -> Self {
        assert!(self.err.contains(text), "{text:?} is not in {self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// The one line it printed.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        let line = self.out.trim_end();
        assert!(!line.is_empty() && !line.contains('\n'), "{self:#?}");
        line.to_owned()
    }
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// With a `matins.yaml` that listens on a free port.
    pub(crate) fn with_config(text: &str) -> Self {
        let sandbox = Self::new();
        sandbox.write("matins.yaml", text);
        sandbox
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_matins"));
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MATINS_") {
                command.env_remove(name);
            }
        }
        command.env("USER", "tester");
        command
    }

    pub(crate) fn matins(&self, args: &[&str]) -> Done {
        done(&self.command(args).output().unwrap())
    }

    /// Starts a server and waits until it is ready.
    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
        all.extend_from_slice(args);
        let mut child = self
            .command(&all)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(self.file("serve.log")).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = String::new();
        while !said.contains("alerts ") {
            let line = lines.next().unwrap_or_else(|| panic!("{}", self.log())).unwrap();
            said.push_str(&line);
            said.push('\n');
        }
        let url = said.lines().find_map(|line| line.trim().strip_prefix("address"));
        Server { url: url.unwrap().trim().to_owned(), said, child: Some(child) }
    }

    /// The process that serves: the child of the one that was started.
    pub(crate) fn served_by(&self) -> u64 {
        let text = std::fs::read_to_string(self.file(".matins/matins.db.server")).unwrap();
        let server: Value = serde_json::from_str(&text).unwrap();
        server["pid"].as_u64().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.file("serve.log")).unwrap()
    }

    #[track_caller]
    pub(crate) fn enqueue(&self, args: &[&str]) -> String {
        let mut all = vec!["enqueue"];
        all.extend_from_slice(args);
        self.matins(&all).succeeds().line()
    }

    pub(crate) fn task(&self, id: &str) -> Value {
        self.matins(&["show", id, "--json"]).succeeds().json()
    }

    #[track_caller]
    pub(crate) fn until_state(&self, id: &str, state: &str) -> Value {
        until(|| {
            let task = self.task(id);
            (task["state"] == state).then_some(task)
        })
    }
}

pub(crate) fn done(output: &std::process::Output) -> Done {
    Done {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Looks until there is something.
#[track_caller]
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "it did not come about");
        std::thread::sleep(Duration::from_millis(30));
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    /// What it said when it was ready.
    pub(crate) said: String,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        kill(self.pid(), signal);
    }

    /// Asks it to end, and how it did.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        self.child.take().unwrap().wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn kill(pid: u32, signal: &str) {
    let killed = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status();
    assert!(killed.unwrap().success());
}
