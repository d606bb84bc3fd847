//! What the command writes, shown as it comes, standard error apart from standard output.
//!
//! A reader that is slow or gone must hold up neither the command nor the worker: what waits for
//! it is bounded, and what does not fit is counted and told.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::sync::oneshot;

use super::super::follow::Stream;
use crate::output;

/// Bytes that may wait for the reader.
const WAITING_MAX: usize = 64 << 20;

#[derive(Clone)]
pub(super) struct Screen(Arc<Inner>);

struct Inner {
    /// Nothing is shown: the answer will be JSON.
    quiet: bool,
    sender: Sender<Message>,
    waiting: Arc<AtomicUsize>,
    dropped: AtomicU64,
    used: AtomicBool,
}

enum Message {
    Piece(Stream, Vec<u8>),
    Flush(oneshot::Sender<()>),
}

impl Screen {
    pub(super) fn new(quiet: bool) -> Self {
        let (sender, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = waiting.clone();
        std::thread::spawn(move || show(&receiver, &count));
        let (dropped, used) = (AtomicU64::new(0), AtomicBool::new(false));
        Self(Arc::new(Inner { quiet, sender, waiting, dropped, used }))
    }

    /// Never waits.
    pub(super) fn put(&self, stream: Stream, bytes: &[u8]) {
        let inner = &self.0;
        inner.used.store(true, Ordering::Relaxed);
        if inner.quiet {
            return;
        }
        let length = bytes.len();
        if inner.waiting.fetch_add(length, Ordering::Relaxed) + length > WAITING_MAX {
            inner.waiting.fetch_sub(length, Ordering::Relaxed);
            inner.dropped.fetch_add(length as u64, Ordering::Relaxed);
            return;
        }
        // The thread lives as long as a sender does.
        let _ = inner.sender.send(Message::Piece(stream, bytes.to_vec()));
    }

    /// Whether anything came to be shown.
    pub(super) fn is_used(&self) -> bool {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Resolves when everything is written that can be.
    pub(super) async fn flush(&self) {
        let (reply, done) = oneshot::channel();
        if self.0.sender.send(Message::Flush(reply)).is_ok() {
            let _ = done.await;
        }
        let dropped = self.0.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            output::note(&format!("… {dropped} bytes of output came too fast to be shown"));
        }
    }
}

fn show(receiver: &Receiver<Message>, waiting: &AtomicUsize) {
    // A reader that went away is no reason to end the command, nor to try again.
    let mut open = (true, true);
    while let Ok(message) = receiver.recv() {
        match message {
            Message::Piece(stream, bytes) => {
                match stream {
                    Stream::Out => open.0 = open.0 && output::bytes(&bytes).is_ok(),
                    Stream::Err => open.1 = open.1 && std::io::stderr().write_all(&bytes).is_ok(),
                }
                waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
            Message::Flush(reply) => {
                let _ = reply.send(());
            }
        }
    }
}
