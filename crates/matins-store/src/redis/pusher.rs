//! Tells Redis what the database has decided: bounded, in batches, never waited for long.
//!
//! Whoever has written something hands in what it was about and waits a moment, so that a wake-up
//! that follows finds the hint. When the buffer is full, or Redis does not take it, hints are
//! missing: the lines are then not known any more ([`Link::owe`]), until they have been read anew.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use matins_core::store::StoreError;
use matins_core::task::TaskId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::hint::Hint;
use super::link::{Link, Miss};
use crate::own_thread::OwnThread;
use crate::postgres::PostgresStore;

/// Most hints of a line that Redis keeps. What comes after them is read when it is needed.
pub(super) const LINE_MAX: usize = 4_000;

/// Most notes that wait.
const QUEUE: usize = 1_024;

/// Most tasks of one step.
const STEP: usize = 1_000;

/// While notes come faster than they are said, they are collected for so long, and nobody waits
/// for them: a call to Redis costs as much as many notes, and whoever is woken asks the database
/// instead of the line.
const COLLECT: Duration = Duration::from_millis(8);

/// Pushes that come closer together than this are told to the others once.
const PACE: Duration = Duration::from_millis(20);

/// What Redis is to know.
#[derive(Debug)]
pub(super) enum Note {
    /// Something happened to these: where they wait now is asked.
    Ask(Vec<TaskId>),
    /// These are new.
    Push(Vec<Hint>),
    /// Many new ones: where each line begins that they stand in.
    Cut(Vec<(String, i64)>),
    /// These do not wait any more.
    Drop(Vec<Hint>),
    Dead(Vec<TaskId>, Timestamp),
    NotDead(Vec<TaskId>),
}

struct Order {
    note: Note,
    done: Option<oneshot::Sender<()>>,
}

pub(super) struct Pusher {
    link: Arc<Link>,
    orders: mpsc::Sender<Order>,
    /// The buffer was full: told once.
    overflowed: AtomicBool,
    /// Notes come faster than they are said.
    crowded: Arc<AtomicBool>,
}

impl Pusher {
    pub(super) fn start(link: &Arc<Link>, store: &Arc<PostgresStore>, thread: &OwnThread) -> Self {
        let (orders, waiting) = mpsc::channel(QUEUE);
        let crowded = Arc::new(AtomicBool::new(false));
        let work = Work {
            link: link.clone(),
            store: store.clone(),
            crowded: crowded.clone(),
            rang: Instant::now(),
            to_ring: false,
        };
        thread.spawn(work.run(waiting));
        Self { link: link.clone(), orders, overflowed: AtomicBool::new(false), crowded }
    }

    /// Hands it in and does not wait.
    pub(super) fn say(&self, note: Note) {
        self.hand_in(note, None);
    }

    /// Hands it in and waits until Redis knows it, for a moment. `false`: it may not know yet.
    pub(super) async fn tell(&self, note: Note) -> bool {
        if self.crowded.load(Ordering::Relaxed) {
            self.hand_in(note, None);
            return false;
        }
        let (done, known) = oneshot::channel();
        self.hand_in(note, Some(done))
            && matches!(timeout(self.link.times.patience, known).await, Ok(Ok(())))
    }

    fn hand_in(&self, note: Note, done: Option<oneshot::Sender<()>>) -> bool {
        if !self.link.is_up() {
            // What it does not hear of now it is told when it comes back: everything.
            self.link.owe();
            return false;
        }
        let taken = self.orders.try_send(Order { note, done }).is_ok();
        if !taken {
            self.link.owe();
        }
        let told = self.overflowed.swap(!taken, Ordering::Relaxed);
        if !taken && !told {
            tracing::warn!("Redis takes hints more slowly than they come; they are read anew");
        }
        taken
    }
}

struct Work {
    link: Arc<Link>,
    store: Arc<PostgresStore>,
    crowded: Arc<AtomicBool>,
    /// When the others were last told.
    rang: Instant,
    to_ring: bool,
}

impl Work {
    async fn run(mut self, mut waiting: mpsc::Receiver<Order>) {
        loop {
            let order = match self.to_ring {
                false => waiting.recv().await,
                true => match timeout_at(self.rang + PACE, waiting.recv()).await {
                    Ok(order) => order,
                    Err(_) => {
                        self.ring().await;
                        continue;
                    }
                },
            };
            let Some(order) = order else { return };
            if self.crowded.load(Ordering::Relaxed) {
                tokio::time::sleep(COLLECT).await;
            }
            let mut orders = vec![order];
            while orders.len() < STEP
                && let Ok(order) = waiting.try_recv()
            {
                orders.push(order);
            }
            self.crowded.store(orders.len() > 1, Ordering::Relaxed);
            let mut done = Vec::new();
            let mut notes = Vec::new();
            for order in orders {
                notes.push(order.note);
                done.extend(order.done);
            }
            if let Err(error) = self.carry_out(notes).await {
                tracing::debug!(?error, "hints were not written");
                self.link.owe();
                continue;
            }
            for done in done {
                let _ = done.send(());
            }
        }
    }

    async fn ring(&mut self) {
        (self.rang, self.to_ring) = (Instant::now(), false);
        let mut ring = redis::cmd("PUBLISH");
        ring.arg(self.link.key("changed")).arg(&self.link.name);
        // Whoever does not hear it polls.
        let _: Result<i64, Miss> = self.link.command(self.link.times.background, &ring).await;
    }

    async fn carry_out(&mut self, notes: Vec<Note>) -> Result<(), Trouble> {
        let mut asked = Vec::new();
        let mut new: Vec<Hint> = Vec::new();
        let mut cuts = Vec::new();
        let mut gone: Vec<Hint> = Vec::new();
        let mut dead = redis::pipe();
        for note in notes {
            match note {
                Note::Ask(ids) => asked.extend(ids),
                Note::Push(more) => new.extend(more),
                Note::Cut(more) => cuts.extend(more),
                Note::Drop(more) => gone.extend(more),
                Note::Dead(ids, at) => {
                    let key = self.link.key("task:dead_letter");
                    for id in ids {
                        dead.zadd(&key, id.to_string(), at.as_microsecond()).ignore();
                    }
                }
                Note::NotDead(ids) => {
                    let key = self.link.key("task:dead_letter");
                    let ids: Vec<String> = ids.iter().map(TaskId::to_string).collect();
                    dead.zrem(&key, ids).ignore();
                }
            }
        }
        if !gone.is_empty() {
            // Claimed before anybody was told that it waits.
            let gone: HashSet<TaskId> = gone.iter().map(|hint| hint.id).collect();
            new.retain(|hint| !gone.contains(&hint.id));
        }
        // A hint that comes after its task was claimed costs a look; one that is dropped before it
        // comes would be missed.
        drop_hints(&self.link, &gone).await?;
        let mut moved = Vec::new();
        for ids in asked.chunks(STEP) {
            moved.extend(self.store.places(ids).await?);
        }
        self.to_ring |= !(new.is_empty() && moved.is_empty() && cuts.is_empty());
        let mut ring = self.to_ring && self.rang.elapsed() >= PACE;
        if ring {
            (self.rang, self.to_ring) = (Instant::now(), false);
        }
        // Said with the last of them.
        let mut rings = |last: bool| last && std::mem::take(&mut ring);
        let steps = [(&new, true), (&moved, false)];
        let only = |n: usize| steps[n + 1..].iter().all(|(hints, _)| hints.is_empty());
        for (n, (hints, is_new)) in steps.iter().enumerate() {
            for (m, some) in hints.chunks(STEP).enumerate() {
                let last = (m + 1) * STEP >= hints.len() && only(n) && cuts.is_empty();
                push(&self.link, some, *is_new, rings(last)).await?;
            }
        }
        if !cuts.is_empty() {
            cut(&self.link, &cuts, rings(true)).await?;
        }
        if !dead.is_empty() {
            let () = self.link.pipeline(self.link.times.background, &dead).await?;
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("Redis: {0:?}")]
    Redis(Miss),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Miss> for Trouble {
    fn from(miss: Miss) -> Self {
        Self::Redis(miss)
    }
}

/// Where lines are not told of any more.
async fn cut(link: &Link, cuts: &[(String, i64)], ring: bool) -> Result<(), Miss> {
    let mut script = link.scripts.cut.prepare_invoke();
    script.key(link.key("task:known")).key(link.key("task:cut"));
    script.arg(link.key("changed")).arg(if ring { &*link.name } else { "" });
    for (line, place) in cuts {
        script.arg(line).arg(*place);
    }
    let _: i64 = link.script(link.times.background, &script).await?;
    Ok(())
}

/// Puts hints into their lines; the other processes hear of it when `ring` is set.
pub(super) async fn push(
    link: &Link,
    hints: &[Hint],
    is_new: bool,
    ring: bool,
) -> Result<(), Miss> {
    if hints.is_empty() {
        return Ok(());
    }
    let mut script = link.scripts.push.prepare_invoke();
    script.key(link.key("task:delayed")).key(link.key("task:known"));
    script.arg(&link.prefix).arg(LINE_MAX).arg(link.key("changed"));
    script.arg(if ring { &*link.name } else { "" }).arg(u8::from(is_new));
    for hint in hints {
        let run_at =
            if hint.later { hint.run_at.as_microsecond().to_string() } else { String::new() };
        script.arg(hint.order()).arg(run_at).arg(hint.member());
    }
    let _: i64 = link.script(link.times.background, &script).await?;
    Ok(())
}

async fn drop_hints(link: &Link, hints: &[Hint]) -> Result<(), Miss> {
    let mut lines: BTreeMap<String, Vec<&Hint>> = BTreeMap::new();
    for hint in hints {
        lines.entry(format!("task:pending:{}", hint.pool)).or_default().push(hint);
    }
    if lines.is_empty() {
        return Ok(());
    }
    lines.insert("task:delayed".to_owned(), hints.iter().collect());
    // Mostly there is nothing: what comes in bulk is not told one by one.
    let mut count = redis::pipe();
    for line in lines.keys() {
        count.zcard(link.key(line));
    }
    let counts: Vec<u64> = link.pipeline(link.times.background, &count).await?;
    let mut remove = redis::pipe();
    for ((line, hints), _) in lines.iter().zip(counts).filter(|(_, count)| *count > 0) {
        let both =
            |hint: &&Hint| [false, true].map(|tied| Hint { tied, ..(*hint).clone() }.member());
        let members: Vec<String> = hints.iter().flat_map(both).collect();
        remove.zrem(link.key(line), members).ignore();
    }
    link.pipeline(link.times.background, &remove).await
}
