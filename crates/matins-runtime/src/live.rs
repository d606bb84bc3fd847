//! Output of runs while they run, for those who follow. The store gets it when the attempt ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// How long, and for how many, the output of a run that has ended is kept for a follower who was
/// told of it just now: the store's copy no longer tells the streams apart.
const LINGER: Duration = Duration::from_secs(5);
const LINGERING: usize = 64;

#[derive(Debug, Clone, Default)]
pub struct LiveOutput(Arc<Mutex<Runs>>);

#[derive(Debug, Default)]
struct Runs {
    runs: HashMap<TaskId, Live>,
    /// Those that linger, by their end.
    ended: VecDeque<(Instant, TaskId)>,
}

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
    ended: bool,
    /// Made for the first follower: its ring is far larger than the rest of a run, and most runs
    /// are never followed.
    sender: Option<broadcast::Sender<Piece>>,
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

impl Runs {
    fn forget_old(&mut self) {
        while let Some((at, id)) = self.ended.front().copied() {
            if self.ended.len() <= LINGERING && at.elapsed() < LINGER {
                return;
            }
            self.ended.pop_front();
            // A later attempt may run under the same id, or linger by itself.
            let again = self.ended.iter().any(|(_, other)| *other == id);
            if !again && self.runs.get(&id).is_some_and(|live| live.ended) {
                self.runs.remove(&id);
            }
        }
    }
}

impl LiveOutput {
    fn lock(&self) -> std::sync::MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tasks and their attempts.
    pub(crate) fn open(&self, begun: impl IntoIterator<Item = (TaskId, u32)>) {
        let live = |attempt| Live {
            attempt,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            missed: 0,
            stuck: false,
            ended: false,
            sender: None,
        };
        let mut runs = self.lock();
        runs.forget_old();
        runs.runs.extend(begun.into_iter().map(|(id, attempt)| (id, live(attempt))));
    }

    pub(crate) fn write(&self, id: TaskId, attempt: u32, stream: Stream, chunk: &[u8]) {
        let mut runs = self.lock();
        let live = runs.runs.get_mut(&id).filter(|live| !live.ended && live.attempt == attempt);
        let Some(live) = live else { return };
        if let Some(sender) = live.sender.as_ref().filter(|sender| sender.receiver_count() > 0) {
            let _ = sender.send(Piece { stream, bytes: Bytes::copy_from_slice(chunk) });
        }
        live.keep(stream, chunk);
    }

    pub(crate) fn set_stuck(&self, id: TaskId, attempt: u32) {
        let mut runs = self.lock();
        if let Some(live) = runs.runs.get_mut(&id).filter(|live| live.attempt == attempt) {
            live.stuck = true;
        }
    }

    /// Whether the run on this node ignores its end.
    pub fn is_stuck(&self, id: TaskId) -> bool {
        self.lock().runs.get(&id).is_some_and(|live| live.stuck)
    }

    /// Followers see the end when the sender is dropped.
    pub(crate) fn close(&self, ended: impl IntoIterator<Item = (TaskId, u32)>) {
        let mut runs = self.lock();
        for (id, attempt) in ended {
            let live = runs.runs.get_mut(&id).filter(|live| live.attempt == attempt);
            let Some(live) = live else { continue };
            (live.ended, live.sender, live.stuck) = (true, None, false);
            if live.backlog.is_empty() {
                runs.runs.remove(&id);
            } else {
                runs.ended.push_back((Instant::now(), id));
            }
        }
        runs.forget_old();
    }

    /// `None`: the task does not run on this node, nor did it just now.
    pub fn follow(&self, id: TaskId) -> Option<Follow> {
        self.lock().runs.get_mut(&id).map(|live| Follow {
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
            rest: match live.ended {
                false => {
                    live.sender.get_or_insert_with(|| broadcast::Sender::new(PIECES)).subscribe()
                }
                true => broadcast::channel(1).1,
            },
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
        live.write(id, 1, Stream::Out, b"nobody runs");
        live.open([(id, 1)]);
        live.write(id, 1, Stream::Out, b"a");
        live.write(id, 1, Stream::Out, b"b");
        live.write(id, 1, Stream::Err, b"c");
        let follow = live.follow(id).unwrap();
        let shown: Vec<_> = follow.backlog.iter().map(|p| (p.stream, &p.bytes[..])).collect();
        assert_eq!(shown, [(Stream::Out, &b"ab"[..]), (Stream::Err, &b"c"[..])]);
        assert_eq!(follow.missed, 0);

        let line = [b'x'; 1_000];
        (0..1_000).for_each(|_| live.write(id, 1, Stream::Out, &line));
        live.write(id, 1, Stream::Err, b"end");
        let follow = live.follow(id).unwrap();
        let kept: usize = follow.backlog.iter().map(|piece| piece.bytes.len()).sum();
        assert!(follow.missed > 0 && (BACKLOG_BYTES - 8_192..=BACKLOG_BYTES).contains(&kept));
        assert_eq!(&follow.backlog.last().unwrap().bytes[..], b"end");
    }

    #[test]
    fn a_run_that_has_ended_lingers_but_not_all_of_them() {
        let live = LiveOutput::default();
        let id = |n: u128| TaskId(Uuid::from_u128(n));
        let many = LINGERING as u128 + 10;
        for n in 0..many {
            live.open([(id(n), 1)]);
            live.write(id(n), 1, Stream::Err, b"x");
            live.close([(id(n), 1)]);
            live.write(id(n), 1, Stream::Err, b"nobody runs");
        }
        let mut follow = live.follow(id(many - 1)).unwrap();
        assert_eq!(follow.backlog.len(), 1);
        assert_eq!(follow.backlog[0].bytes, "x");
        assert_eq!(follow.rest.try_recv(), Err(broadcast::error::TryRecvError::Closed));
        assert!(live.follow(id(0)).is_none());
        // Another attempt takes its place, and what wrote nothing is gone at once.
        live.open([(id(many - 1), 2)]);
        live.close([(id(many - 1), 1)]);
        assert_eq!(live.follow(id(many - 1)).unwrap().attempt, 2);
        live.close([(id(many - 1), 2)]);
        assert!(live.follow(id(many - 1)).is_none());
    }
}
