//! The child's end: what it says to its parent, and that it ends with it.
//!
//! The kernel is asked to end this process when the parent dies; where it cannot, the closed
//! socket does. Neither asks the rest of the process, which may hang.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use matins_runtime::sentry::Watcher;
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::watch;

pub(crate) use super::line::Up;
use super::line::{Order, Said, encoded};

/// A parent that does not read must not hold its child up.
const WRITE_LIMIT: Duration = Duration::from_millis(500);

/// Held by a supervised server. Clones speak to the same parent.
#[derive(Debug, Clone)]
pub(crate) struct Leash {
    stream: Arc<UnixStream>,
    stops: watch::Receiver<u32>,
    quiet: Arc<AtomicBool>,
}

impl Leash {
    /// Takes the socket that stands in for standard input, and ties this process to its parent.
    pub(crate) fn take() -> io::Result<Self> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let nothing = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let (tell, stops) = watch::channel(0);
        let orders = BufReader::new(stream.try_clone()?);
        std::thread::Builder::new()
            .name("matins-leash".to_owned())
            .spawn(move || obey(orders, &tell))?;
        Ok(Self { stream: Arc::new(stream), stops, quiet: Arc::default() })
    }

    pub(crate) fn up(&self, up: Up) {
        self.say(&Said::Up(up));
    }

    pub(crate) fn status(&self, text: &str) {
        self.say(&Said::Status { text: text.to_owned() });
    }

    /// How often the parent was told to stop, once that is more than `times` times.
    pub(crate) async fn stopped_more_than(&self, times: u32) -> u32 {
        let mut stops = self.stops.clone();
        match stops.wait_for(|told| *told > times).await {
            Ok(told) => *told,
            Err(_) => std::future::pending().await,
        }
    }

    fn say(&self, said: &Said) {
        let written = encoded(said).and_then(|line| (&*self.stream).write_all(&line));
        if let Err(error) = written
            && !self.quiet.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "the supervising parent does not listen");
        }
    }
}

fn obey(orders: BufReader<UnixStream>, tell: &watch::Sender<u32>) {
    for line in orders.lines().map_while(Result::ok) {
        if let Ok(Order::Stop(times)) = serde_json::from_str(&line) {
            tell.send_replace(times);
        }
    }
    // Nobody would start this process again or end it: the parent is gone.
    let _ = kill_process(getpid(), Signal::KILL);
}

impl Watcher for Leash {
    fn fresh(&mut self) {
        self.say(&Said::Beat);
    }

    fn stalled(&mut self, loops: &[String]) {
        self.say(&Said::Stalled { loops: loops.join(", ") });
    }

    fn is_restarted(&self) -> bool {
        true
    }
}
