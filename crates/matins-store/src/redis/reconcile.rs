//! Reads the lines anew: what is due and Redis does not know is pushed, what it knows and the
//! database does not have is dropped, and how many of both there were is the drift.
//!
//! ```text
//!   stamp ─▶ what Redis has ─▶ what the database has ─▶ differences, looked at twice
//!         ─▶ pushes, drops ─▶ how far each line is known, if the stamp is still the same
//! ```
//!
//! Whoever may have failed to tell Redis something takes the stamp away, and so does whatever
//! empties Redis: then a line does not become known by a reading that began before.
//!
//! One process at a time does it, every few seconds and whenever a line was found unknown. What a
//! reading finds is compared with what Redis had *before* it, so that what others do meanwhile is
//! not undone; a difference that is gone at the second look was only on its way.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use matins_core::task::{Name, TaskId};
use tokio::sync::Notify;
use uuid::Uuid;

use super::hint::Hint;
use super::link::{Link, Miss};
use super::pusher::{LINE_MAX, Trouble, push};
use crate::postgres::PostgresStore;
use crate::postgres::hints::Pools;

/// Most hints of a line that one reading brings.
const WINDOW: usize = LINE_MAX / 2;

/// Most tasks with a changing place that are looked at.
const TIED_MAX: usize = 20_000;

/// Newest dead letters that Redis lists, and how often they are read.
const DEAD_MAX: usize = 1_000;
const DEAD_EVERY: Duration = Duration::from_secs(60);

/// Between two readings when nobody asks for one.
pub(super) const EVERY: Duration = Duration::from_secs(10);

/// Between two looks for whether a reading is due.
const LOOK: Duration = Duration::from_secs(1);

/// Readings that are asked for keep at least this distance.
const PACE: Duration = Duration::from_millis(100);

/// How long something may be on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(300);

/// More differences than this are not looked at twice: Redis was emptied.
const LOOK_TWICE_MAX: usize = 2_000;

/// A line that is known to its end.
const NO_BOUND: &str = "9007199254740991";

/// The field of what is due later, among the pools; no pool is called so.
pub(super) const LATER: &str = "\tlater";

const STEP: usize = 1_000;

pub(super) struct Reconciler {
    link: Arc<Link>,
    store: Arc<PostgresStore>,
    /// Whose lines Redis may have, as of the last reading.
    pools: Mutex<Option<Vec<Name>>>,
    /// When the dead letters were listed.
    listed: Mutex<Option<Instant>>,
    pub(super) drift: Arc<AtomicU64>,
    /// Rung when a line was found unknown or nearly read to its bound.
    pub(super) wanted: Arc<Notify>,
}

/// Members of one line, by their ids, with their scores.
type Line = HashMap<TaskId, (String, i64)>;

impl Reconciler {
    pub(super) fn new(link: &Arc<Link>, store: &Arc<PostgresStore>) -> Self {
        Self {
            link: link.clone(),
            store: store.clone(),
            pools: Mutex::default(),
            listed: Mutex::default(),
            drift: Arc::default(),
            wanted: Arc::default(),
        }
    }

    pub(super) async fn run(self) {
        loop {
            let asked = tokio::select! {
                () = self.wanted.notified() => true,
                () = self.link.returned.notified() => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            if self.link.is_up()
                && let Err(error) = self.turn(asked).await
            {
                tracing::debug!(%error, "the lines in Redis were not read anew");
            }
            tokio::time::sleep(PACE).await;
        }
    }

    async fn turn(&self, asked: bool) -> Result<(), Trouble> {
        let limit = self.link.times.background;
        let due: Option<String> = if asked {
            Some(String::new())
        } else {
            let mut mark = redis::cmd("SET");
            mark.arg(self.link.key("reconciled")).arg(&self.link.name).arg("NX");
            self.link.command(limit, mark.arg("PX").arg(EVERY.as_millis() as u64)).await?
        };
        if due.is_none() {
            // Somebody else does it; the figure is for all.
            let mut drift = redis::cmd("GET");
            let found: Option<u64> =
                self.link.command(limit, drift.arg(self.link.key("drift"))).await?;
            self.drift.store(found.unwrap_or(0), Ordering::Relaxed);
            return Ok(());
        }
        let mut lock = redis::cmd("SET");
        lock.arg(self.link.key("reconciling")).arg(&self.link.name).arg("NX").arg("PX").arg(3_000);
        if self.link.command::<Option<String>>(limit, &lock).await?.is_none() {
            return Ok(());
        }
        let read = self.read_anew().await;
        let mut unlock = redis::cmd("DEL");
        let _: i64 = self.link.command(limit, unlock.arg(self.link.key("reconciling"))).await?;
        let drift = read?;
        self.drift.store(drift, Ordering::Relaxed);
        let mut tell = redis::cmd("SET");
        tell.arg(self.link.key("drift")).arg(drift).arg("EX").arg(60);
        if drift > 0 {
            // Whether it is gone now is worth a look soon.
            let mut again = redis::cmd("DEL");
            let _: i64 = self.link.command(limit, again.arg(self.link.key("reconciled"))).await?;
        }
        let () = self.link.command(limit, &tell).await?;
        Ok(())
    }

    /// Answers how much was wrong.
    async fn read_anew(&self) -> Result<u64, Trouble> {
        let stamp = self.stamp().await?;
        let bounds = self.bounds().await?;
        let known = self.pools.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known = match known {
            Some(known) => known,
            None => self.store.pools().await?,
        };
        let had = self.lines(&known).await?;
        let (pools, window) = self.store.window(WINDOW, TIED_MAX).await?;
        let names = pools.all.iter().map(|(pool, _)| pool.clone()).collect();
        *self.pools.lock().unwrap_or_else(PoisonError::into_inner) = Some(names);
        let lines = Lines::of(window);
        let (missing, stale) = lines.differences(&had, &pools);
        let (missing, stale) = match bounds.is_empty() {
            false => self.look_twice(missing, stale).await?,
            true => (missing, stale),
        };
        for some in missing.chunks(STEP) {
            push(&self.link, some, false, some.len() == missing.len()).await?;
        }
        self.drop_stale(&stale).await?;
        self.know(&stamp, &lines, &pools).await?;
        if bounds.is_empty() || self.are_dead_due() {
            self.list_dead().await?;
        }
        // Behind the bound of a line it is not said to be known.
        let behind = |hint: &Hint| bounds.get(&*hint.pool).is_some_and(|at| hint.order() >= *at);
        let due = missing.iter().filter(|hint| !hint.later && !behind(hint)).count();
        Ok((due + stale.len()) as u64)
    }

    async fn stamp(&self) -> Result<String, Trouble> {
        let key = self.link.key("task:stamp");
        let mut pipeline = redis::pipe();
        let fresh = Uuid::new_v4().simple().to_string();
        pipeline.cmd("SET").arg(&key).arg(fresh).arg("NX").ignore();
        let id = self.store_id();
        pipeline.cmd("SET").arg(self.link.key("store_id")).arg(id).arg("NX").ignore();
        pipeline.del(self.link.key("task:cut")).ignore();
        pipeline.get(&key);
        let (stamp,): (String,) = self.link.pipeline(self.link.times.background, &pipeline).await?;
        Ok(stamp)
    }

    /// How far each line is known. When none is, Redis is new or was emptied.
    async fn bounds(&self) -> Result<HashMap<String, i64>, Trouble> {
        let mut all = redis::cmd("HGETALL");
        all.arg(self.link.key("task:known"));
        let found: Result<HashMap<String, f64>, Miss> =
            self.link.command(self.link.times.background, &all).await;
        match found {
            Ok(found) => Ok(found.into_iter().map(|(line, at)| (line, at as i64)).collect()),
            // It is made anew when it is written.
            Err(miss) if miss.is_wrong_type() => Ok(HashMap::new()),
            Err(miss) => Err(miss.into()),
        }
    }

    fn store_id(&self) -> String {
        use matins_core::store::Store as _;
        self.store.info().store_id.to_string()
    }

    /// What Redis has. A key of another kind is removed: somebody else wrote it.
    async fn lines(&self, pools: &[Name]) -> Result<BTreeMap<String, Line>, Trouble> {
        let names = pools.iter().map(|pool| format!("task:pending:{pool}"));
        let names: Vec<String> = names.chain(["task:delayed".to_owned()]).collect();
        let mut lines = BTreeMap::new();
        for name in names {
            let key = self.link.key(&name);
            let mut all = redis::cmd("ZRANGE");
            all.arg(&key).arg(0).arg(-1).arg("WITHSCORES");
            let limit = self.link.times.background;
            let read: Result<Vec<(String, f64)>, Miss> = self.link.command(limit, &all).await;
            let members = match read {
                Ok(members) => members,
                Err(miss) if miss.is_wrong_type() => {
                    tracing::warn!(key, "not a sorted set: removed, and made anew");
                    let mut remove = redis::cmd("DEL");
                    let _: i64 = self.link.command(limit, remove.arg(&key)).await?;
                    Vec::new()
                }
                Err(miss) => return Err(miss.into()),
            };
            let mut line = Line::new();
            let mut garbage = Vec::new();
            for (member, score) in members {
                match Hint::id_in(&member) {
                    // Of an earlier attempt of the same.
                    Some(id) => garbage
                        .extend(line.insert(id, (member, score as i64)).map(|(before, _)| before)),
                    None => garbage.push(member),
                }
            }
            for some in garbage.chunks(STEP) {
                let mut remove = redis::cmd("ZREM");
                let _: i64 = self.link.command(limit, remove.arg(&key).arg(some)).await?;
            }
            lines.insert(name, line);
        }
        Ok(lines)
    }

    /// Leaves out what was only on its way.
    async fn look_twice(
        &self,
        missing: Vec<Hint>,
        stale: Vec<Stale>,
    ) -> Result<(Vec<Hint>, Vec<Stale>), Trouble> {
        let count = missing.len() + stale.len();
        if count == 0 || count > LOOK_TWICE_MAX {
            return Ok((missing, stale));
        }
        tokio::time::sleep(ON_ITS_WAY).await;
        let ids = missing.iter().map(|hint| hint.id).chain(stale.iter().map(|one| one.id));
        let ids: Vec<TaskId> = ids.collect();
        let places = self.store.places(&ids).await?;
        let pending: HashMap<TaskId, Hint> =
            places.into_iter().map(|hint| (hint.id, hint)).collect();
        let mut known = redis::pipe();
        let lines = missing.iter().map(|hint| (line_of(hint), hint.member()));
        let lines = lines.chain(stale.iter().map(|one| (one.line.clone(), one.member.clone())));
        for (line, member) in lines {
            known.cmd("ZSCORE").arg(self.link.key(&line)).arg(member);
        }
        let known: Vec<Option<f64>> =
            self.link.pipeline(self.link.times.background, &known).await?;
        let (known_missing, known_stale) = known.split_at(missing.len());
        let lacks = |hint: &Hint, known: Option<f64>| {
            known.is_none_or(|known| known as i64 != hint.score())
        };
        let missing = missing.iter().zip(known_missing).filter_map(|(hint, known)| {
            let now = pending.get(&hint.id)?;
            (line_of(now) != line_of(hint) || lacks(now, *known)).then(|| now.clone())
        });
        let missing = missing.collect();
        let stale = stale.into_iter().zip(known_stale).filter(|(one, score)| {
            // A task that has gone elsewhere, such as from later to due, leaves its old place.
            let here = pending.get(&one.id).is_some_and(|hint| line_of(hint) == one.line);
            score.is_some() && !here
        });
        Ok((missing, stale.map(|(one, _)| one).collect()))
    }

    async fn drop_stale(&self, stale: &[Stale]) -> Result<(), Trouble> {
        for some in stale.chunks(STEP) {
            let mut pipeline = redis::pipe();
            for one in some {
                pipeline.zrem(self.link.key(&one.line), &one.member).ignore();
            }
            let () = self.link.pipeline(self.link.times.background, &pipeline).await?;
        }
        Ok(())
    }

    async fn know(&self, stamp: &str, lines: &Lines, pools: &Pools) -> Result<(), Trouble> {
        let mut script = self.link.scripts.know.prepare_invoke();
        script.key(self.link.key("task:known")).key(self.link.key("task:stamp"));
        script.key(self.link.key("task:cut")).arg(stamp);
        for (pool, tied) in &pools.all {
            let bound = if *tied { String::new() } else { lines.bound(pool) };
            script.arg(&**pool).arg(bound);
        }
        script.arg(LATER).arg(lines.horizon());
        let known: Result<i64, Miss> = self.link.script(self.link.times.background, &script).await;
        match known {
            Ok(1) => Ok(()),
            Ok(_) => {
                self.wanted.notify_one();
                Ok(())
            }
            Err(miss) if miss.is_wrong_type() => {
                let mut remove = redis::cmd("DEL");
                remove.arg(self.link.key("task:known")).arg(self.link.key("task:stamp"));
                remove.arg(self.link.key("task:cut"));
                let _: i64 = self.link.command(self.link.times.background, &remove).await?;
                self.wanted.notify_one();
                Ok(())
            }
            Err(miss) => Err(miss.into()),
        }
    }

    /// Redis is told of each as it comes: this is for what it was not told of.
    fn are_dead_due(&self) -> bool {
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        listed.is_none_or(|at| at.elapsed() >= DEAD_EVERY)
    }

    async fn list_dead(&self) -> Result<(), Trouble> {
        let dead = self.store.newest_dead(DEAD_MAX).await?;
        let key = self.link.key("task:dead_letter");
        let mut pipeline = redis::pipe();
        pipeline.atomic().del(&key).ignore();
        for (id, failed_at) in dead {
            pipeline.zadd(&key, id.to_string(), failed_at.as_microsecond()).ignore();
        }
        let () = self.link.pipeline(self.link.times.background, &pipeline).await?;
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        *listed = Some(Instant::now());
        Ok(())
    }
}

fn line_of(hint: &Hint) -> String {
    if hint.later { "task:delayed".to_owned() } else { format!("task:pending:{}", hint.pool) }
}

/// A member that the database does not have there.
#[derive(Debug, Clone)]
struct Stale {
    line: String,
    id: TaskId,
    member: String,
}

/// What the database has.
struct Lines {
    pools: BTreeMap<Name, Vec<Hint>>,
    later: Vec<Hint>,
}

impl Lines {
    fn of(window: Vec<Hint>) -> Self {
        let mut lines = Self { pools: BTreeMap::new(), later: Vec::new() };
        for hint in window {
            match hint.later {
                true => lines.later.push(hint),
                false => lines.pools.entry(hint.pool.clone()).or_default().push(hint),
            }
        }
        lines
    }

    /// Up to which place this is all there is.
    fn bound(&self, pool: &Name) -> String {
        match self.pools.get(pool) {
            Some(line) if line.len() >= WINDOW => {
                line.iter().map(Hint::order).max().unwrap_or_default().to_string()
            }
            _ => NO_BOUND.to_owned(),
        }
    }

    fn horizon(&self) -> String {
        if self.later.len() < WINDOW {
            return NO_BOUND.to_owned();
        }
        let last = self.later.iter().map(|hint| hint.run_at.as_microsecond()).max();
        last.unwrap_or_default().to_string()
    }

    /// What Redis lacks, and what it has too much before the bounds.
    fn differences(&self, had: &BTreeMap<String, Line>, pools: &Pools) -> (Vec<Hint>, Vec<Stale>) {
        let tied: HashSet<&str> =
            pools.all.iter().filter(|(_, tied)| *tied).map(|(pool, _)| &**pool).collect();
        let empty = Line::new();
        let all = self.pools.values().flatten().chain(&self.later);
        let missing = all.filter(|hint| {
            let line = had.get(&line_of(hint)).unwrap_or(&empty);
            // A hint with another place or another mark is not the one.
            let right = |(member, score): &(String, i64)| {
                *score == hint.score() && *member == hint.member()
            };
            !line.get(&hint.id).is_some_and(right)
        });
        let missing = missing.cloned().collect();
        let mut stale = Vec::new();
        for (name, line) in had {
            let pool = name.strip_prefix("task:pending:");
            let (ours, bound) = match pool {
                Some(pool) => {
                    let ours = self.pools.get(pool).map_or(&[][..], Vec::as_slice);
                    (ours, self.bound(&pool.into()))
                }
                None => (self.later.as_slice(), self.horizon()),
            };
            // What is parked or held stands in no line, and its hint says that the line may change.
            let changing = pool.is_some_and(|pool| tied.contains(pool));
            let bound: i64 = bound.parse().unwrap_or(i64::MAX);
            let ids: HashSet<TaskId> = ours.iter().map(|hint| hint.id).collect();
            let gone = line.iter().filter(|(id, (member, score))| {
                *score < bound && !ids.contains(id) && !(changing && Hint::is_tied(member))
            });
            stale.extend(gone.map(|(id, (member, _))| Stale {
                line: name.clone(),
                id: *id,
                member: member.clone(),
            }));
        }
        (missing, stale)
    }
}
