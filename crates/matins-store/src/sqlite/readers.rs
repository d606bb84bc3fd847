//! A few threads that read, each on a connection of its own. Readers never wait for the writer;
//! at most they wait for each other.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use matins_core::store::{Result, StoreError};
use tokio::sync::{Semaphore, oneshot};

use super::connect;
use super::error::Res;
use super::reader::Reader;

/// Most reads that wait for a thread.
const QUEUE: usize = 512;

/// Quiet time after which a connection gives its page cache back.
const IDLE_AFTER: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce(&mut Reader) + Send>;

#[derive(Debug)]
pub(super) struct Readers {
    queue: Mutex<Option<Sender<Job>>>,
    places: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn start(name: &str, count: usize, path: &Path, patience: Duration) -> Res<Self> {
        let (queue, jobs) = std::sync::mpsc::channel::<Job>();
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..count {
            let reader = Reader::new(connect::reader(path, patience)?);
            let jobs = jobs.clone();
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || work(reader, &jobs))
                .map_err(|error| StoreError::Unavailable(format!("no thread: {error}")))?;
        }
        Ok(Self { queue: Mutex::new(Some(queue)), places: Arc::new(Semaphore::new(QUEUE)) })
    }

    pub(super) async fn call<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Reader) -> Res<T> + Send + 'static,
    ) -> Result<T> {
        let _place = self.places.acquire().await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |reader| {
            if !reply.is_closed() {
                // The caller may go away while it is read.
                let _ = reply.send(read(reader));
            }
        });
        let sent = {
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.as_ref().is_some_and(|queue| queue.send(job).is_ok())
        };
        if !sent {
            return Err(closed());
        }
        Ok(answer.await.map_err(|_| closed())??)
    }

    /// The threads end when they have answered what is waiting.
    pub(super) fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.places.close();
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

fn work(mut reader: Reader, jobs: &Mutex<Receiver<Job>>) {
    let mut idle_after = None;
    loop {
        let job = {
            let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            match idle_after {
                Some(wait) => jobs.recv_timeout(wait),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            }
        };
        match job {
            Ok(job) => {
                job(&mut reader);
                idle_after = Some(IDLE_AFTER);
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(error) = reader.conn.execute_batch("PRAGMA shrink_memory") {
                    tracing::debug!(%error, "cannot give back memory");
                }
                idle_after = None;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
