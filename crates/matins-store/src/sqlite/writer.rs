//! The one writer: a thread that gathers whatever is waiting into one transaction, commits once,
//! and answers all.
//!
//! There is no waiting for company: a job that comes alone is committed alone. While a commit is
//! on its way to the disk others queue up, and the next transaction takes them together. A group
//! in which something fails is rolled back, and its jobs are tried one by one, so that one that
//! finds no room, or contradicts the file, takes no other with it.
//!
//! An answer is given only after the commit. The thread must never panic on input and never wait
//! for anything but its queue, the lock and the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use matins_core::store::{Result, StoreError};
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::error::{Failure, Res};
use super::place::is_set_back;
use super::sql::Sql;
use super::tx::{Memory, Tx};

/// Most rows and bytes that one transaction gathers.
const GROUP_ROWS: usize = 20_000;
const GROUP_BYTES: usize = 16 << 20;

/// Most jobs that wait.
const QUEUE: usize = 512;

/// How often another process's writes are looked for, when somebody wants to know.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// The same where the kernel tells of writes.
const WATCH_ANYWAY: Duration = Duration::from_secs(1);

/// Quiet time after which the log is written back and memory is returned.
const IDLE_AFTER: Duration = Duration::from_secs(2);

/// Longest that SQLite itself sleeps on a lock; the rest of the patience is here.
const LOCK_SLEEP: Duration = Duration::from_millis(250);

/// Something to be done in a transaction. May be run again after a rollback.
pub(super) trait Job: Send {
    fn run(&mut self, tx: &mut Tx<'_>) -> Res<()>;

    /// Tells the caller. What must be done because nobody listens any more is answered.
    fn answer(self: Box<Self>, fate: Result<()>) -> Option<Box<dyn Job>>;

    /// Nobody waits for it, so it need not begin.
    fn is_abandoned(&self) -> bool;
}

/// Makes good an answer that nobody got.
type Undo<T> = fn(T) -> Option<Box<dyn Job>>;

struct Call<T, F> {
    work: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T>>,
    /// For a caller that went away while its answer was on the way.
    undo: Option<Undo<T>>,
}

impl<T, F> Job for Call<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut Tx<'_>) -> Res<T> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Res<()> {
        self.value = Some((self.work)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, fate: Result<()>) -> Option<Box<dyn Job>> {
        let Self { value, reply, undo, .. } = *self;
        let lost = StoreError::Unavailable("the writer lost an answer".to_owned());
        let answer = fate.and_then(|()| value.ok_or(lost));
        match (reply.send(answer), undo) {
            (Err(Ok(value)), Some(undo)) => undo(value),
            _ => None,
        }
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

/// Work without a caller.
pub(super) struct Errand<F>(pub(super) F);

impl<F: FnMut(&mut Tx<'_>) -> Res<()> + Send> Job for Errand<F> {
    fn run(&mut self, tx: &mut Tx<'_>) -> Res<()> {
        (self.0)(tx)
    }

    fn answer(self: Box<Self>, fate: Result<()>) -> Option<Box<dyn Job>> {
        if let Err(error) = fate {
            tracing::warn!(%error, "a claim that nobody waits for stays until its lease ends");
        }
        None
    }

    fn is_abandoned(&self) -> bool {
        false
    }
}

/// What a job weighs in a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weight {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Weight {
    pub(super) const fn rows(rows: usize) -> Self {
        Self { rows, bytes: 0 }
    }
}

struct Queued {
    job: Box<dyn Job>,
    weight: Weight,
    since: Instant,
    _place: Option<OwnedSemaphorePermit>,
}

enum Message {
    Job(Queued),
    /// Begin to look for other processes' writes.
    Watch(Duration),
    /// Somebody has written, perhaps another process.
    Look,
    /// Everything before it has been answered; the thread ends.
    Close(oneshot::Sender<Result<()>>),
}

/// The way to the writer's thread.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Sender<Message>,
    places: Arc<Semaphore>,
    watching: AtomicBool,
    changes: watch::Receiver<u64>,
    patience: Duration,
    clock: Arc<AtomicI64>,
    path: PathBuf,
    /// Whoever listens to the kernel for this store does so as long as it is there.
    alive: Arc<()>,
}

impl Writer {
    /// `conn` is ready for use, its schema up to date.
    pub(super) fn start(conn: Connection, path: &Path, patience: Duration) -> Res<Self> {
        let (queue, jobs) = std::sync::mpsc::channel();
        let (changed, changes) = watch::channel(0);
        conn.busy_timeout(LOCK_SLEEP.min(patience))?;
        let memory = Memory::default();
        let clock = memory.clock.clone();
        let thread = Thread {
            conn,
            memory,
            jobs,
            changed,
            watching: None,
            patience,
            path: path.display().to_string(),
        };
        std::thread::Builder::new()
            .name("matins-writer".to_owned())
            .spawn(move || thread.work())
            .map_err(|error| StoreError::Unavailable(format!("no thread: {error}")))?;
        let places = Arc::new(Semaphore::new(QUEUE));
        let watching = AtomicBool::new(false);
        let (path, alive) = (path.to_owned(), Arc::new(()));
        Ok(Self { queue, places, watching, changes, patience, clock, path, alive })
    }

    pub(super) async fn call<T: Send + 'static>(
        &self,
        weight: Weight,
        work: impl FnMut(&mut Tx<'_>) -> Res<T> + Send + 'static,
    ) -> Result<T> {
        self.send(weight, work, None).await
    }

    /// Like `call`; `undo` makes good when the caller has gone away meanwhile.
    pub(super) async fn call_or_undo<T: Send + 'static>(
        &self,
        weight: Weight,
        work: impl FnMut(&mut Tx<'_>) -> Res<T> + Send + 'static,
        undo: Undo<T>,
    ) -> Result<T> {
        self.send(weight, work, Some(undo)).await
    }

    async fn send<T: Send + 'static>(
        &self,
        weight: Weight,
        work: impl FnMut(&mut Tx<'_>) -> Res<T> + Send + 'static,
        undo: Option<Undo<T>>,
    ) -> Result<T> {
        let since = Instant::now();
        let place = tokio::time::timeout(self.patience, self.places.clone().acquire_owned());
        let place = place.await.map_err(|_| {
            StoreError::Unavailable(format!("{QUEUE} writes have been waiting for too long"))
        })?;
        let place = place.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Call { work, value: None, reply, undo });
        let queued = Queued { job, weight, since, _place: Some(place) };
        self.queue.send(Message::Job(queued)).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Resolves with the next write of somebody else.
    pub(super) async fn changed(&self) {
        let mut changes = self.changes.clone();
        changes.mark_unchanged();
        if !self.watching.swap(true, Ordering::Relaxed) {
            self.watch();
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn watch(&self) {
        let queue = self.queue.clone();
        let told =
            super::watch::start(&self.path, &self.alive, move || queue.send(Message::Look).is_ok());
        let every = if told { WATCH_ANYWAY } else { WATCH_EVERY };
        // Whoever has closed the store hears of nothing.
        let _ = self.queue.send(Message::Watch(every));
    }

    /// Whether the line was made by a clock that has been set back since.
    pub(super) fn is_set_back(&self, now: i64) -> bool {
        is_set_back(&self.clock, now)
    }

    pub(super) async fn close(&self) -> Result<()> {
        self.places.close();
        let (reply, answer) = oneshot::channel();
        if self.queue.send(Message::Close(reply)).is_err() {
            return Ok(());
        }
        answer.await.unwrap_or(Ok(()))
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

struct Thread {
    conn: Connection,
    memory: Memory,
    jobs: Receiver<Message>,
    changed: watch::Sender<u64>,
    /// How often to look for other processes' writes.
    watching: Option<Duration>,
    patience: Duration,
    path: String,
}

/// What the queue had.
enum Next {
    Job(Queued),
    Quiet,
    Close(Option<oneshot::Sender<Result<()>>>),
}

impl Thread {
    fn work(mut self) {
        let mut worked_at = None;
        loop {
            match self.next(worked_at) {
                Next::Job(first) => {
                    let close = self.serve(first);
                    self.tell_of_changes();
                    if close.is_some() {
                        return self.end(close);
                    }
                    worked_at = Some(Instant::now());
                }
                Next::Quiet => {
                    if worked_at.is_some_and(|at: Instant| at.elapsed() >= IDLE_AFTER) {
                        self.rest();
                        worked_at = None;
                    }
                    self.look_around();
                }
                Next::Close(reply) => return self.end(reply),
            }
        }
    }

    fn end(self, reply: Option<oneshot::Sender<Result<()>>>) {
        let answer = self.checkpoint().map_err(StoreError::from);
        drop(self);
        if let Some(reply) = reply {
            // Whoever closed the store may have gone as well.
            let _ = reply.send(answer);
        }
    }

    fn next(&mut self, worked_at: Option<Instant>) -> Next {
        loop {
            let wait = match (self.watching, worked_at) {
                (Some(every), _) => Some(every),
                (None, Some(at)) => Some(IDLE_AFTER.saturating_sub(at.elapsed())),
                (None, None) => None,
            };
            let message = match wait {
                Some(wait) => self.jobs.recv_timeout(wait),
                None => self.jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match message {
                Ok(Message::Job(job)) => return Next::Job(job),
                Ok(Message::Watch(every)) => self.watching = Some(every),
                Ok(Message::Close(reply)) => return Next::Close(Some(reply)),
                Ok(Message::Look) | Err(RecvTimeoutError::Timeout) => return Next::Quiet,
                Err(RecvTimeoutError::Disconnected) => return Next::Close(None),
            }
        }
    }

    /// Takes what else is waiting, runs it, answers. `Some`: it is time to end.
    fn serve(&mut self, first: Queued) -> Option<oneshot::Sender<Result<()>>> {
        let Weight { mut rows, mut bytes } = first.weight;
        let mut group = vec![first];
        while rows < GROUP_ROWS && bytes < GROUP_BYTES {
            match self.jobs.try_recv() {
                Ok(Message::Job(job)) => {
                    rows += job.weight.rows;
                    bytes += job.weight.bytes;
                    group.push(job);
                }
                Ok(Message::Watch(every)) => self.watching = Some(every),
                Ok(Message::Look) => {}
                Ok(Message::Close(reply)) => {
                    self.finish(group);
                    return Some(reply);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        self.finish(group);
        None
    }

    fn finish(&mut self, mut group: Vec<Queued>) {
        loop {
            group.retain(|queued| !queued.job.is_abandoned());
            match self.transaction(&mut group) {
                Ok(()) => return self.answer(group, &Ok(())),
                Err(failure) if failure.is_busy() => {
                    // Whoever came later may still be in time.
                    let patience = self.patience;
                    let (late, rest): (Vec<_>, Vec<_>) =
                        group.into_iter().partition(|queued| queued.since.elapsed() >= patience);
                    self.answer(late, &Err(failure.into()));
                    group = rest;
                }
                Err(failure) if group.len() == 1 => {
                    return self.answer(group, &Err(failure.into()));
                }
                Err(_) => return self.one_by_one(group),
            }
        }
    }

    fn one_by_one(&mut self, group: Vec<Queued>) {
        for queued in group {
            let mut alone = vec![queued];
            let fate = self.transaction(&mut alone).map_err(StoreError::from);
            self.answer(alone, &fate);
        }
    }

    fn transaction(&mut self, group: &mut [Queued]) -> Res<()> {
        let Some(since) = group.iter().map(|queued| queued.since).min() else { return Ok(()) };
        self.in_transaction(since, |tx| group.iter_mut().try_for_each(|queued| queued.job.run(tx)))
    }

    fn answer(&mut self, group: Vec<Queued>, fate: &Result<()>) {
        let undo: Vec<_> =
            group.into_iter().filter_map(|queued| queued.job.answer(fate.clone())).collect();
        for mut job in undo {
            let fate = self.in_transaction(Instant::now(), |tx| job.run(tx));
            job.answer(fate.map_err(StoreError::from));
        }
    }

    /// `since`: when the caller who waits longest began to.
    fn in_transaction(
        &mut self,
        since: Instant,
        work: impl FnOnce(&mut Tx<'_>) -> Res<()>,
    ) -> Res<()> {
        self.begin(since)?;
        let run = || -> Res<()> {
            let mut tx = Tx::new(&self.conn, &mut self.memory)?;
            work(&mut tx)?;
            tx.finish()?;
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            Ok(())
        };
        let outcome = run();
        if outcome.is_err() {
            self.memory.forget();
            // What went wrong first says more than a rollback that fails, too; `begin` tries again.
            let _ = self.roll_back();
        }
        outcome
    }

    fn roll_back(&self) -> Res<()> {
        // SQLite has done so by itself after some errors.
        if !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK")?;
        }
        Ok(())
    }

    /// Gets the lock, for which a caller waits no longer than it has patience.
    fn begin(&self, since: Instant) -> Res<()> {
        self.roll_back()?;
        loop {
            let begun = self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([]);
            match begun.map_err(Failure::from) {
                Ok(_) => return Ok(()),
                Err(failure) if failure.is_busy() && since.elapsed() < self.patience => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Has somebody else written?
    fn look_around(&mut self) {
        if self.watching.is_none() {
            return;
        }
        let statement = self.conn.prepare_cached(Sql::DataVersion.text());
        let version = statement.and_then(|mut look| look.query_row([], |row| row.get(0)));
        match version {
            Ok(version) => self.memory.observe(version),
            Err(error) => tracing::debug!(%error, "cannot look for changes of {}", self.path),
        }
        self.tell_of_changes();
    }

    fn tell_of_changes(&mut self) {
        if self.memory.take_foreign() {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Nothing to do: the log goes back into the file, memory to the system.
    fn rest(&mut self) {
        if let Err(Failure::Sqlite(error)) = self.checkpoint() {
            tracing::debug!(%error, "cannot write back the log of {}", self.path);
        }
        if let Err(error) = self.conn.execute_batch("PRAGMA shrink_memory") {
            tracing::debug!(%error, "cannot give back memory of {}", self.path);
        }
    }

    fn checkpoint(&self) -> Res<()> {
        // Whoever is at the file now may finish; there will be another quiet moment.
        self.conn.busy_timeout(Duration::ZERO)?;
        let outcome = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        self.conn.busy_timeout(LOCK_SLEEP.min(self.patience))?;
        match outcome.map_err(Failure::from) {
            Err(failure) if !failure.is_busy() => Err(failure),
            _ => Ok(()),
        }
    }
}
