//! Another process: this test binary once more, doing one of the jobs below. It speaks line by
//! line on stdout, and is told what to do by its environment.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use matins_core::lifecycle::Settlement;
use matins_core::store::{Queue, Store, StoreError};
use matins_store::{Options, SqliteStore};

use super::bed::{at, done, ended, keyed, new, request, worker};

pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) lines: BufReader<ChildStdout>,
}

impl Process {
    /// `before`: shell commands that set the process up.
    pub(crate) fn start(job: &str, path: &Path, before: &str) -> Self {
        let own = std::env::current_exe().unwrap();
        let script = format!(
            "{before}\nexec '{}' --exact child::works --ignored --nocapture",
            own.display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .env("MATINS_CHILD_JOB", job)
            .env("MATINS_CHILD_PATH", path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The rest of the next line that begins with `word`.
    pub(crate) fn expect(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "it ended without {word}");
            if let Some(rest) = line.trim_end().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.lines.lines().map_while(Result::ok).collect()
    }
}

/// Not a test of its own: the body of the processes that other tests start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by other tests as a process of its own"]
async fn works() {
    let path = std::env::var("MATINS_CHILD_PATH").expect("MATINS_CHILD_PATH");
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    match std::env::var("MATINS_CHILD_JOB").expect("MATINS_CHILD_JOB").as_str() {
        "torture" => torture(store).await,
        "fill" => fill(store).await,
        "one" => {
            let id = store.enqueue(vec![new("other", at(0))], at(0)).await.unwrap();
            say(&format!("enqueued {}", id.len()));
        }
        job => panic!("no job {job}"),
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// Accepts, hands out and ends as fast as it can, and says what has been promised.
async fn torture(store: SqliteStore) {
    let store = std::sync::Arc::new(store);
    store.register(worker("w")).await.unwrap();
    say("ready");
    let accepting = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0_u64.. {
                let plain = (0..7).map(|_| new("plain", at(0)));
                let mut batch: Vec<_> = plain.collect();
                batch.push(keyed("keyed", &format!("{}-{n}", std::process::id())));
                batch.push(new("later", at(1_000_000)));
                let ids: Vec<String> = batch.iter().map(|task| task.id.to_string()).collect();
                store.enqueue(batch, at(0)).await.unwrap();
                say(&format!("accepted {}", ids.join(" ")));
            }
        })
    };
    let working = tokio::spawn(async move {
        loop {
            let claimed = store.claim(request(20)).await.unwrap().claimed;
            let items: Vec<Settlement> =
                claimed.iter().map(|claimed| ended(claimed, done("1"))).collect();
            let ids: Vec<String> = claimed.iter().map(|c| c.task.id.to_string()).collect();
            store.settle(items).await.unwrap();
            say(&format!("completed {}", ids.join(" ")));
        }
    });
    let _ = tokio::join!(accepting, working);
}

/// Enqueues until there is no room, then tries until there is.
async fn fill(store: SqliteStore) {
    let mut accepted = 0;
    let mut refused = 0;
    let mut last = 200_000;
    while accepted < last {
        let batch: Vec<_> = (0..50).map(|_| new("fill", at(0))).collect();
        match store.enqueue(batch, at(0)).await {
            Ok(answers) => accepted += answers.len(),
            Err(StoreError::Full(_)) => {
                refused += 1;
                if refused == 1 {
                    say(&format!("full {accepted}"));
                    last = accepted + 5_000;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    say(&format!("accepted {accepted} refused {refused}"));
    let found = store.check_invariants().await.unwrap();
    say(&format!("found {found:?}"));
    store.close().await.unwrap();
}
