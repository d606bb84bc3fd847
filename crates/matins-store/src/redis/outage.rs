//! PostgreSQL away: what is promised meanwhile is journalled, and replayed when it is back.
//!
//! ```text
//!   normal ── a round trip fails ──▶ doubtful ── none for `outage_after` ──▶ outage
//!      ▲ ◀──── one succeeds ────────────┘                                     │
//!      └──── it answers, and both spool and stream are in it ─────────────────┘
//! ```
//!
//! Enqueues that come while it is doubtful wait until that is decided. In an outage they are
//! journalled ([`super::journal`]); nothing is dispatched and nothing fires from the journal.
//! Everything in it is written into PostgreSQL by whoever reaches that, under ids that make twice
//! as good as once: the node's own spool by the node, the stream by any.
//!
//! # Failure
//!
//! | what happens | what follows |
//! |---|---|
//! | Redis is away, too | enqueues are refused: an entry needs two places |
//! | Redis may forget | refused with `redis_not_durable`, unless the operator accepts it |
//! | a node begins meanwhile | it goes by what it wrote down of the database, and journals |
//! | the node dies | others replay the stream; the node its spool when it comes back |
//! | Redis comes back empty | the nodes replay their spools |
//! | an entry is no entry, or PostgreSQL will not have it | it is put aside and told; the rest goes on |

mod replay;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::outage::{Change, Contact, Entry, Mode, Seal, durability};
use matins_core::store::{Enqueued, Result, Store as _, StoreError};
use matins_core::task::{Durability, NewTask, Task, TaskId};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::journal::{Journal, persistence};
use super::known::{self, Known};
use super::link::Link;
use super::mirror::Mirror;
use super::spool::Spool;
use crate::own_thread::OwnThread;
use crate::postgres::{Accepted, PostgresStore};

/// What a node does when PostgreSQL is away.
#[derive(Debug, Clone)]
pub struct OutageOptions {
    /// The file of this node's entries.
    pub spool: PathBuf,
    /// How long no round trip must have succeeded.
    pub after: Duration,
    pub accept_volatile: bool,
    pub seal: Seal,
}

/// A call that takes longer makes somebody look whether the database answers at all.
const SLOW: Duration = Duration::from_secs(1);

/// How long an answer to that look may take.
const PROBE: Duration = Duration::from_secs(1);

/// Between two looks while it is doubtful, or away.
const PROBE_EVERY: Duration = Duration::from_millis(400);

/// Between two looks for entries to replay, and for how many there are.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Outage {
    store: Arc<PostgresStore>,
    link: Arc<Link>,
    journal: Journal,
    after: Duration,
    origin: Instant,
    contact: Mutex<Contact>,
    mode: watch::Sender<Mode>,
    look: Notify,
    /// Rung when replayed tasks have come in.
    pub(super) replayed: Notify,
    /// In the stream, or where that cannot be seen, known to this node alone.
    entries: AtomicU64,
    known: Arc<Known>,
    file: known::File,
    /// What Redis takes in now is kept, as far as this node asks for.
    keeps: AtomicBool,
    accept_volatile: bool,
    /// This process began without the database: it is looked at before anything is written.
    unchecked: AtomicBool,
    closed: watch::Sender<bool>,
    /// One replay at a time: each goes by where the last one left the spool.
    turn: tokio::sync::Mutex<()>,
    /// What lets tasks run meanwhile.
    mirror: OnceLock<Weak<Mirror>>,
}

impl Outage {
    pub(super) fn start(
        store: &Arc<PostgresStore>,
        link: &Arc<Link>,
        thread: &OwnThread,
        known: &Arc<Known>,
        options: OutageOptions,
        is_away: bool,
    ) -> Result<Arc<Self>> {
        let OutageOptions { spool, after, accept_volatile, seal } = options;
        let failed = |error: std::io::Error| {
            StoreError::Unavailable(format!("the spool {}: {error}", spool.display()))
        };
        let file = known::File::beside(&spool);
        let spool = Spool::open(&spool).map_err(failed)?;
        let (contact, mode) = match is_away {
            true => (Contact::away(0), Mode::Outage),
            false => (Contact::default(), Mode::Normal),
        };
        let outage = Arc::new(Self {
            store: store.clone(),
            link: link.clone(),
            journal: Journal::open(link, thread, spool, seal, accept_volatile),
            after,
            origin: Instant::now(),
            contact: Mutex::new(contact),
            mode: watch::channel(mode).0,
            look: Notify::new(),
            replayed: Notify::new(),
            entries: AtomicU64::new(0),
            known: known.clone(),
            file,
            keeps: AtomicBool::new(false),
            accept_volatile,
            unchecked: AtomicBool::new(is_away),
            closed: watch::channel(false).0,
            turn: tokio::sync::Mutex::new(()),
            mirror: OnceLock::new(),
        });
        thread.spawn(outage.clone().run());
        Ok(outage)
    }

    pub(super) fn goes_on_with(&self, mirror: &Arc<Mirror>) {
        let _ = self.mirror.set(Arc::downgrade(mirror));
    }

    fn mirror(&self) -> Option<Arc<Mirror>> {
        self.mirror.get().and_then(Weak::upgrade)
    }

    pub(super) fn look_soon(&self) {
        self.look.notify_one();
    }

    pub(super) fn is_spool_empty(&self) -> bool {
        self.spool().end() == 0
    }

    pub(super) fn seal(&self, entry: &Entry) -> Result<String> {
        self.journal.seal.close(entry).map_err(|error| StoreError::Broken(error.to_string()))
    }

    /// A text that only who has the journal's key can have written.
    pub(super) fn seal_text(&self, text: &str) -> String {
        self.journal.seal.close_text(text)
    }

    /// What was sealed; `None`: others wrote it.
    pub(super) fn unseal<'t>(&self, sealed: &'t str) -> Option<&'t str> {
        let opened = self.journal.seal.open_text(sealed);
        opened.inspect_err(|why| tracing::error!(%why, "refused what lies in Redis")).ok()
    }

    /// Safe on this node's disk when it returns.
    pub(super) async fn spool_these(&self, texts: Vec<String>) -> Result<()> {
        match texts.is_empty() {
            true => Ok(()),
            false => self.journal.write_down(texts).await,
        }
    }

    /// Whether what is written to Redis now stays there.
    pub(super) async fn must_be_durable(&self) -> Result<()> {
        let mut said = BTreeMap::new();
        for section in ["persistence", "memory"] {
            let part = self.link.info(section).await;
            let away =
                |_| StoreError::Unavailable("PostgreSQL is away, and so is Redis".to_owned());
            said.extend(part.map_err(away)?);
        }
        let kept = durability(persistence(&said), self.accept_volatile);
        kept.map(drop).ok_or_else(|| {
            let text =
                format!("PostgreSQL is away, and {} may forget what runs", self.link.location());
            StoreError::Unavailable(text)
        })
    }

    pub(super) fn is_on(&self) -> bool {
        *self.mode.borrow() == Mode::Outage
    }

    pub(super) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    fn contact(&self) -> MutexGuard<'_, Contact> {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spool(&self) -> MutexGuard<'_, Spool> {
        self.journal.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of a round trip.
    pub(super) fn heed<T>(&self, answer: &Result<T>) {
        let now = self.origin.elapsed().as_nanos() as u64;
        let mut contact = self.contact();
        match answer {
            Err(StoreError::Unavailable(_)) => {
                if contact.failed(now, self.after.as_nanos() as u64) {
                    tracing::error!(
                        "PostgreSQL has been away for {:?}: tasks are journalled until it is back",
                        self.after
                    );
                    if let Some(mirror) = self.mirror() {
                        mirror.enter();
                    }
                }
                self.look.notify_one();
            }
            _ => contact.succeeded(),
        }
        let mode = contact.mode();
        self.mode.send_if_modified(|now| std::mem::replace(now, mode) != mode);
    }

    /// An error when the store is closed before it is.
    async fn decided(&self) -> Result<Mode> {
        let (mut mode, mut closed) = (self.mode.subscribe(), self.closed.subscribe());
        tokio::select! {
            Ok(mode) = mode.wait_for(|mode| *mode != Mode::Doubtful) => Ok(*mode),
            _ = closed.wait_for(|closed| *closed) => {
                Err(StoreError::Unavailable("the store is closed".to_owned()))
            }
        }
    }

    /// Nobody is to wait any more.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    async fn began(&self) {
        let mut mode = self.mode.subscribe();
        if mode.wait_for(|mode| *mode == Mode::Outage).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// In PostgreSQL, or in the journal while that is away.
    pub(super) async fn enqueue(
        &self,
        tasks: Vec<NewTask>,
        now: Timestamp,
    ) -> Result<Vec<Accepted>> {
        let mut again = false;
        loop {
            if self.decided().await? == Mode::Outage {
                return self.write_down(tasks, now).await;
            }
            // What became of a call that is given up is unknown: its ids make the second time the
            // same one, also when what the first stored has been run and ended since.
            let same =
                |task: &NewTask| NewTask { client_id: task.client_id || again, ..task.clone() };
            let call = self.store.enqueue_told(tasks.iter().map(same).collect(), now);
            match self.meanwhile(call).await {
                Ok(mut answers) => {
                    if again {
                        let pairs = tasks.iter().zip(&mut answers);
                        pairs.for_each(|(task, accepted)| own(task, &mut accepted.answer));
                    }
                    return Ok(answers);
                }
                Err(StoreError::Unavailable(_)) if !again || self.is_on() => again = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Into the journal. One that brings an id which is there is that task.
    async fn write_down(&self, tasks: Vec<NewTask>, now: Timestamp) -> Result<Vec<Accepted>> {
        let named = tasks.iter().filter(|task| task.client_id).map(|task| task.id);
        let mut known = self.tasks(&named.collect::<Vec<_>>()).await?;
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        let new: Vec<NewTask> =
            tasks.into_iter().filter(|task| !known.contains_key(&task.id)).collect();
        let mut durability = Durability::Redis;
        if !new.is_empty() {
            let mirror = self.mirror();
            let to_run = mirror.as_ref().map(|_| new.clone());
            let count = new.len() as u64;
            durability = self.journal.accept(new, now).await?;
            self.entries.fetch_add(count, Ordering::Relaxed);
            if let (Some(mirror), Some(tasks)) = (mirror, to_run) {
                mirror.journalled(&tasks, now).await;
                self.replayed.notify_waiters();
            }
        }
        let answer = |id: TaskId| match known.remove(&id) {
            Some(task) => Enqueued::Existing(Box::new(task)),
            None => Enqueued::Journalled(durability),
        };
        let answers = ids.into_iter().map(answer);
        Ok(answers.map(|answer| Accepted { answer, seq: None }).collect())
    }

    /// A call to the database, given up when that is found to be away.
    pub(super) async fn meanwhile<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = tokio::select! {
            biased;
            () = self.began() => return Err(late()),
            answer = self.watched(call) => answer,
        };
        self.heed(&answer);
        answer
    }

    /// Has somebody look when it takes long.
    async fn watched<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let mut call = std::pin::pin!(call);
        match timeout(SLOW, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                self.look.notify_one();
                call.await
            }
        }
    }

    /// A task that only the journal knows.
    pub(super) async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        Ok(self.tasks(&[id]).await?.remove(&id))
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<HashMap<TaskId, Task>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let mut get = redis::cmd("HMGET");
        get.arg(self.link.key("journal:tasks"));
        get.arg(ids.iter().map(TaskId::to_string).collect::<Vec<_>>());
        let limit = self.link.times.background;
        let found = self.link.command::<Vec<Option<String>>>(limit, &get).await;
        let away = || StoreError::Unavailable("PostgreSQL is away, and so is Redis".to_owned());
        let found = found.map_err(|_| away())?;
        let mut tasks = HashMap::new();
        for (id, text) in ids.iter().zip(found).filter_map(|(id, text)| Some((id, text?))) {
            let entry = self.journal.seal.open(&text);
            let entry = entry.map_err(|error| StoreError::Broken(format!("task {id}: {error}")))?;
            if let Change::Enqueue(task) = entry.change {
                let task = Task::from_new(&task, entry.at);
                tasks.insert(*id, Task { durability: Durability::Redis, ..task });
            }
        }
        Ok(tasks)
    }

    async fn run(self: Arc<Self>) {
        let mut told = false;
        loop {
            let asked = timeout(LOOK, self.look.notified()).await.is_ok();
            let mut mode = *self.mode.borrow();
            if asked || mode != Mode::Normal {
                let ping = timeout(PROBE, self.store.ping()).await;
                self.heed(&ping.unwrap_or_else(|_| Err(late())));
                mode = *self.mode.borrow();
            }
            let replayed = match mode {
                Mode::Doubtful => Ok(()),
                Mode::Outage if !self.answers().await => Err(late()),
                Mode::Normal | Mode::Outage => match self.check().await {
                    Ok(()) => self.replay().await,
                    Err(error) => Err(error),
                },
            };
            let replayed = match replayed {
                Ok(()) if mode == Mode::Outage => self.come_back().await,
                other => other.map(|()| true),
            };
            match replayed {
                Ok(true) if mode == Mode::Outage => {
                    tracing::info!("PostgreSQL is back, and the journal is in it");
                    told = false;
                    self.contact().replayed();
                    self.mode.send_replace(Mode::Normal);
                    // For what has come in since.
                    self.look.notify_one();
                }
                Ok(_) => told = false,
                Err(error) if mode == Mode::Normal => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%error, "the journal could not be replayed; trying on");
                    }
                    self.heed::<()>(&Err(error));
                }
                Err(_) => {}
            }
            self.count().await;
            self.keep_known();
            if mode != Mode::Normal {
                tokio::time::sleep(PROBE_EVERY).await;
            }
        }
    }

    /// `true`: nothing runs from the journal any more.
    async fn come_back(&self) -> Result<bool> {
        match self.mirror() {
            Some(mirror) => mirror.come_back().await,
            None => Ok(true),
        }
    }

    /// Whether it is the database this node worked for, and one that it can work with.
    async fn check(&self) -> Result<()> {
        if self.unchecked.load(Ordering::Relaxed) {
            self.store.check().await.inspect_err(|error| {
                tracing::error!(%error, "PostgreSQL answers, and cannot be used; trying on");
            })?;
            self.unchecked.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes down what the next process will have to know. `false`: it could not be.
    pub(super) fn keep_known(&self) -> bool {
        let info = self.store.info();
        let member = self.mirror().and_then(|mirror| mirror.membership());
        let Some(kept) = self.known.keep(info.store_id, &info.location, member) else {
            return true;
        };
        let written = self.file.write(kept).inspect_err(|error| {
            tracing::warn!(%error, "what is known of the database could not be written down");
        });
        written.is_ok()
    }

    async fn answers(&self) -> bool {
        matches!(timeout(PROBE, self.store.ping()).await, Ok(Ok(())))
    }

    async fn count(&self) {
        if self.is_on() {
            let mut said = self.link.info("persistence").await.unwrap_or_default();
            said.extend(self.link.info("memory").await.unwrap_or_default());
            let keeps = durability(persistence(&said), self.accept_volatile).is_some();
            self.keeps.store(keeps, Ordering::Relaxed);
        }
        let mut length = redis::cmd("XLEN");
        length.arg(self.link.key("journal"));
        let length: std::result::Result<u64, _> =
            self.link.command(self.link.times.background, &length).await;
        if let Ok(length) = length {
            self.entries.store(length, Ordering::Relaxed);
        }
    }
}

fn late() -> StoreError {
    StoreError::Unavailable("no answer from the database".to_owned())
}

/// What a call whose answer was lost has written is what this one would have written.
fn own(task: &NewTask, answer: &mut Enqueued) {
    if let Enqueued::Existing(found) = answer
        && found.id == task.id
        && !task.client_id
    {
        *answer = Enqueued::Created;
    }
}
