//! Output of runs while they run, for those who follow. The store gets it when the attempt ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use matins_core::task::TaskId;
use tokio::sync::broadcast;

use crate::process::Stream;

/// Pieces a slow follower may lag behind before it misses some.
const PIECES: usize = 1_024;

/// Written last and not yet in the store, for a follower that joins late.
const BACKLOG_BYTES: usize = 256 << 10;

/// What is written in small bits is kept in pieces of about this size.
const PIECE_BYTES: usize = 4 << 10;

#[derive(Debug, Clone, Default)]
pub struct LiveOutput(Arc<Mutex<HashMap<TaskId, Live>>>);

/// Bytes of one of a run's two streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub stream: Stream,
    pub bytes: Bytes,
}

#[derive(Debug)]
struct Live {
    attempt: u32,
    backlog: VecDeque<(Stream, Vec<u8>)>,
    backlog_bytes: usize,
    /// Pieces that the backlog has lost at its beginning.
    missed: u64,
    stuck: bool,
    sender: broadcast::Sender<Piece>,
}

/// What a follower gets: the last of the bytes so far, then the rest as it comes.
pub struct Follow {
    pub attempt: u32,
    /// Pieces that came before the backlog and are gone.
    pub missed: u64,
    pub backlog: Vec<Piece>,
    pub rest: broadcast::Receiver<Piece>,
}

impl Live {
    fn keep(&mut self, stream: Stream, chunk: &[u8]) {
        match self.backlog.back_mut() {
            Some((last, bytes)) if *last == stream && bytes.len() < PIECE_BYTES => {
                bytes.extend_from_slice(chunk);
            }
            _ => self.backlog.push_back((stream, chunk.to_vec())),
        }
        self.backlog_bytes += chunk.len();
        while self.backlog_bytes > BACKLOG_BYTES {
            let Some((_, gone)) = self.backlog.pop_front() else { break };
            self.backlog_bytes -= gone.len();
            self.missed += 1;
        }
    }
}

impl LiveOutput {
    fn streams(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Live>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, id: TaskId, attempt: u32) {
        let live = Live {
            attempt,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            missed: 0,
            stuck: false,
            sender: broadcast::Sender::new(PIECES),
        };
        self.streams().insert(id, live);
    }

    pub(crate) fn write(&self, id: TaskId, stream: Stream, chunk: &[u8]) {
        let mut streams = self.streams();
        let Some(live) = streams.get_mut(&id) else { return };
        live.keep(stream, chunk);
        if live.sender.receiver_count() > 0 {
            let _ = live.sender.send(Piece { stream, bytes: Bytes::copy_from_slice(chunk) });
        }
    }

    pub(crate) fn set_stuck(&self, id: TaskId) {
        if let Some(stream) = self.streams().get_mut(&id) {
            stream.stuck = true;
        }
    }

    /// Whether the run on this node ignores its end.
    pub fn is_stuck(&self, id: TaskId) -> bool {
        self.streams().get(&id).is_some_and(|stream| stream.stuck)
    }

    /// Followers see the end when the sender is dropped.
    pub(crate) fn close(&self, id: TaskId, attempt: u32) {
        let mut streams = self.streams();
        if streams.get(&id).is_some_and(|stream| stream.attempt == attempt) {
            streams.remove(&id);
        }
    }

    /// `None`: the task does not run on this node.
    pub fn follow(&self, id: TaskId) -> Option<Follow> {
        self.streams().get(&id).map(|live| Follow {
            attempt: live.attempt,
            missed: live.missed,
            backlog: live
                .backlog
                .iter()
                .map(|(stream, bytes)| Piece {
                    stream: *stream,
                    bytes: Bytes::copy_from_slice(bytes),
                })
                .collect(),
            rest: live.sender.subscribe(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn who_joins_late_gets_the_last_of_it_and_knows_that_some_is_missing() {
        let live = LiveOutput::default();
        let id = TaskId(Uuid::from_u128(1));
        live.write(id, Stream::Out, b"nobody runs");
        live.open(id, 1);
        live.write(id, Stream::Out, b"a");
        live.write(id, Stream::Out, b"b");
        live.write(id, Stream::Err, b"c");
        let follow = live.follow(id).unwrap();
        let shown: Vec<_> = follow.backlog.iter().map(|p| (p.stream, &p.bytes[..])).collect();
        assert_eq!(shown, [(Stream::Out, &b"ab"[..]), (Stream::Err, &b"c"[..])]);
        assert_eq!(follow.missed, 0);

        let line = [b'x'; 1_000];
        (0..1_000).for_each(|_| live.write(id, Stream::Out, &line));
        live.write(id, Stream::Err, b"end");
        let follow = live.follow(id).unwrap();
        let kept: usize = follow.backlog.iter().map(|piece| piece.bytes.len()).sum();
        assert!(follow.missed > 0 && (BACKLOG_BYTES - 8_192..=BACKLOG_BYTES).contains(&kept));
        assert_eq!(&follow.backlog.last().unwrap().bytes[..], b"end");
    }
}
