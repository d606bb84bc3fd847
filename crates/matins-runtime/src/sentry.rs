//! The sentry: a plain thread of its own that asks whether the loops turn, says so to whoever
//! watches the process, and, when one hangs, writes down what hangs and ends the process.
//!
//! ```text
//!  fresh ── stall_after ──▶ stalled: dump, alert, word to the parent
//!    ▲                          │
//!    └──── it turns again ──────┤
//!                               └─ HARD_AFTER, and somebody restarts us ─▶ notice, abort
//! ```
//!
//! It must never wait for the runtime that it watches, nor for the store. A loop that may be
//! stuck is not mended from within: the process ends, and its successor finds everything in the
//! store.

mod stacks;

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use matins_core::alert::{Alert, Rule};
use tokio::runtime::Handle;

use crate::engine::{Engine, Status};

/// Between the first word about a hang and the end.
const HARD_AFTER: Duration = Duration::from_secs(4);
/// How long the store may take to note that what dies now is no fault of the tasks.
const NOTICE_LIMIT: Duration = Duration::from_secs(2);
/// Longest time between two looks.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Whoever could not look for so long did not run: nor did the loops.
const AWAY: Duration = Duration::from_secs(5);

/// Who is told how the loops are.
pub trait Watcher: Send + 'static {
    /// Every loop turns, or waits for a store that is away.
    fn fresh(&mut self);

    /// These do not.
    fn stalled(&mut self, loops: &[String]);

    /// Whether the process is started again when it ends.
    fn is_restarted(&self) -> bool;
}

/// Ends the watch when it is dropped.
pub struct Sentry {
    _stop: Sender<()>,
}

impl Sentry {
    /// Watches `engine`, whose loops run on `handle`.
    pub fn start(
        engine: Engine,
        handle: Handle,
        watcher: Box<dyn Watcher>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let every = (engine.config().stall_after / 10).min(LOOK_MAX);
        let mut watch = Watch { engine, handle, watcher, stalled_since: None };
        thread::Builder::new().name("matins-sentry".to_owned()).spawn(move || {
            let mut looked = Instant::now();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                // The clock of the loops counts suspension, this one does not: both tell.
                if looked.elapsed() > every + AWAY {
                    watch.engine.excuse();
                }
                looked = Instant::now();
                if watch.engine.is_stopping() {
                    return;
                }
                watch.look();
            }
        })?;
        Ok(Self { _stop: stop })
    }
}

struct Watch {
    engine: Engine,
    handle: Handle,
    watcher: Box<dyn Watcher>,
    stalled_since: Option<Instant>,
}

impl Watch {
    fn look(&mut self) {
        let health = self.engine.health();
        if health.status != Status::Stalled {
            if self.stalled_since.take().is_some() {
                tracing::warn!("every loop turns again");
                self.resolve();
            }
            return self.watcher.fresh();
        }
        self.watcher.stalled(&health.stalled);
        match self.stalled_since {
            None => {
                self.stalled_since = Some(Instant::now());
                self.dump(&health.stalled);
            }
            Some(since) if since.elapsed() >= HARD_AFTER && self.watcher.is_restarted() => {
                self.end();
            }
            Some(_) => {}
        }
    }

    /// What hangs, for whoever looks for the cause.
    fn dump(&self, stalled: &[String]) {
        let loops = self.engine.loops();
        let found = |name: &String| loops.iter().find(|report| report.name == *name);
        for report in stalled.iter().filter_map(found) {
            let (name, age) = (&report.name, report.age.as_secs());
            tracing::error!(
                r#loop = name,
                age,
                doing = report.doing,
                "a loop has not turned for {age} s; it began last: {}",
                report.doing
            );
        }
        for thread in stacks::threads() {
            tracing::error!(
                thread = thread.name,
                tid = thread.id,
                state = thread.state,
                waits_in = thread.wchan,
                stack = thread.stack,
                "thread"
            );
        }
        let (client, node) = (self.engine.client(), &self.engine.config().node_id);
        for report in stalled.iter().filter_map(found) {
            let alert = Alert::new(Rule::Stalled, subject(node, &report.name), client.now());
            let alert = alert.fact("node", node).fact("loop", &report.name);
            let alert = alert.fact("age_seconds", report.age.as_secs());
            client.alerts().raise(alert.fact("doing", report.doing));
        }
    }

    fn resolve(&self) {
        let client = self.engine.client();
        for subject in client.alerts().standing(Rule::Stalled) {
            client.alerts().raise(Alert::resolved(Rule::Stalled, subject, client.now()));
        }
    }

    fn end(&self) {
        let (noted, told) = channel();
        let engine = self.engine.clone();
        self.handle.spawn(async move {
            engine.give_notice().await;
            let _ = noted.send(());
        });
        let _ = told.recv_timeout(NOTICE_LIMIT);
        tracing::error!("the process ends itself, to be started again");
        std::process::abort();
    }
}

fn subject(node: &str, name: &str) -> String {
    format!("{node}/{name}")
}
