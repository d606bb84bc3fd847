//! Claims through hints: ids out of Redis, in order, then the fenced claim of those ids in the
//! database, which judges each of them by all the rules.
//!
//! The answer is what a claim without Redis would have been, as far as the line is *known*: then
//! Redis has everything that stands in it, and whatever it does not have is not there. Where a
//! line is not known, where the place of a task depends on other tasks, and where a task is
//! refused although it stands there (a limit, a pause, a hint that is not true any more), the
//! database is asked for the rest as if there were no Redis.
//!
//! A line that is known and empty is believed, but not for longer than [`PLAIN_EVERY`]: what no
//! hint tells of, because it was lost on its way, is found after that.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::store::{ClaimBatch, ClaimRequest, Result, Types};
use matins_core::task::{Name, TaskId};

use super::RedisStore;
use super::hint::Hint;
use super::link::Miss;
use super::pusher::Note;

/// How long a line that is known may be believed without a look at the database.
const PLAIN_EVERY: Duration = Duration::from_secs(1);

/// How long a pool is claimed from without hints after some were refused, because what stands in
/// their way does not go away at once, and after many tasks were handed out in one call, because
/// reading hints for the smaller calls in between costs more than they save.
const WITHOUT: Duration = Duration::from_secs(1);

/// From this many tasks on a call is better off with the database alone: it hands out a thousand in
/// one go as fast as hints of them could be read, and nobody need have written these.
pub(super) const BULK: usize = 128;

/// Members that are passed over to find some of the right types.
const LOOK_AHEAD: usize = 256;

/// Most types of a claim through hints.
const TYPES_MAX: usize = 500;

/// Fewer hints than this before the bound of a line, and it is read on.
const LOW: usize = 500;

/// What is remembered of a pool.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    /// When the database was last asked for all that there is.
    plain: Option<Instant>,
    /// When hints were last of no use.
    useless: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<HashMap<Name, Look>>);

impl Looks {
    fn with<T>(&self, pool: &Name, change: impl FnOnce(&mut Look) -> T) -> T {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(looks.entry(pool.clone()).or_default())
    }

    /// Something may be there in a pool that no hint tells of.
    pub(super) fn doubt(&self, pool: &Name) {
        self.with(pool, |look| look.plain = None);
    }

    /// Something may be there, in any pool.
    pub(super) fn doubt_all(&self) {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.values_mut().for_each(|look| look.plain = None);
    }
}

/// What Redis said.
struct Said {
    /// With their attempts.
    tasks: Vec<(TaskId, u32)>,
    taken: Vec<String>,
    word: Word,
    /// When something is due next, in any pool.
    next_at: Option<Timestamp>,
    left: usize,
}

/// Where a claim begins.
pub(super) enum Line {
    /// The database must be asked.
    Unknown,
    /// There is nothing; when something is due next.
    Empty(Option<Timestamp>),
    Head(Head),
}

/// The foremost of a pool, out of its line.
pub(super) struct Head {
    pub(super) pool: Name,
    /// With their attempts.
    pub(super) tasks: Vec<(TaskId, u32)>,
    /// What became of each in the mirror.
    pub(super) taken: Vec<String>,
    /// There is no more, or as many as were asked for.
    is_all: bool,
    /// When something is due next, in any pool.
    next_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// As many as asked for.
    Full,
    /// There is no more.
    All,
    /// There may be more that cannot be told.
    Short,
}

impl RedisStore {
    pub(super) async fn hand_out(&self, request: ClaimRequest) -> Result<ClaimBatch> {
        let head = match self.head(&request).await {
            Line::Unknown => return self.plain(&request).await,
            Line::Empty(next_at) => return Ok(ClaimBatch { claimed: Vec::new(), next_at }),
            Line::Head(head) => head,
        };
        let ids: Vec<TaskId> = head.tasks.iter().map(|(id, _)| *id).collect();
        let named = ClaimRequest { ids: Some(ids.clone()), ..request.clone() };
        let (mut batch, _) = match self.store.claim_told(&named).await {
            Ok(answer) => answer,
            Err(error) => {
                // It may have been done or not.
                self.pusher.say(Note::Ask(ids));
                return Err(error);
            }
        };
        match self.heed_claimed(&head, &mut batch) {
            true => Ok(batch),
            false => self.rest(&request, batch).await,
        }
    }

    /// The foremost of its pool, as far as hints tell of them.
    async fn head(&self, request: &ClaimRequest) -> Line {
        let Some(pool) = self.pool_for_hints(request) else { return Line::Unknown };
        let mut script = self.link.scripts.take.prepare_invoke();
        script.key(self.link.key(&format!("task:pending:{pool}")));
        script.key(self.link.key("task:delayed")).key(self.link.key("task:known"));
        script.arg(&self.link.prefix);
        ask_for_hints(&mut script, &pool, request);
        let said = self.link.script(self.link.times.patience, &script).await;
        self.line(pool, said, 1)
    }

    /// What Redis said of the line of a pool, in so many words for each hint.
    pub(super) fn line(
        &self,
        pool: Name,
        said: std::result::Result<Vec<String>, Miss>,
        words: usize,
    ) -> Line {
        let said = match said {
            Ok(said) => read(&said, words),
            Err(Miss::Away) => return Line::Unknown,
            Err(Miss::Refused(error)) => {
                // Such as a key of another kind: the reconciler clears it away.
                tracing::debug!(%error, "Redis refuses to give hints");
                None
            }
        };
        let Some(said) = said else {
            self.wanted.notify_one();
            return Line::Unknown;
        };
        if said.word == Word::Short && said.left < LOW {
            self.wanted.notify_one();
        }
        let is_all = said.word == Word::All && self.is_believed(&pool);
        match (said.tasks.is_empty(), is_all) {
            (true, true) => Line::Empty(said.next_at),
            (true, false) => Line::Unknown,
            (false, _) => Line::Head(Head {
                pool,
                tasks: said.tasks,
                taken: said.taken,
                is_all: is_all || said.word == Word::Full,
                next_at: said.next_at,
            }),
        }
    }

    /// Heeds what was claimed of a head. Whether the database need not be asked for more.
    pub(super) fn heed_claimed(&self, head: &Head, batch: &mut ClaimBatch) -> bool {
        self.counts.hinted(batch.claimed.len());
        let got: HashSet<TaskId> = batch.claimed.iter().map(|claimed| claimed.task.id).collect();
        let refused: Vec<TaskId> =
            head.tasks.iter().map(|(id, _)| *id).filter(|id| !got.contains(id)).collect();
        if !refused.is_empty() {
            self.looks.with(&head.pool, |look| look.useless = Some(Instant::now()));
            // Those that still wait come back.
            self.pusher.say(Note::Ask(refused));
            return false;
        }
        if head.is_all {
            batch.next_at = head.next_at;
        }
        head.is_all
    }

    fn is_believed(&self, pool: &Name) -> bool {
        self.looks.with(pool, |look| look.plain.is_some_and(|at| at.elapsed() < PLAIN_EVERY))
    }

    /// The database is asked for what is left of a batch.
    async fn rest(&self, request: &ClaimRequest, mut batch: ClaimBatch) -> Result<ClaimBatch> {
        let max = request.max - batch.claimed.len();
        // Whoever hears of an error asks for all again, by the token: also for what this one may
        // have claimed before its answer was lost.
        let more = self.plain(&ClaimRequest { max, ..request.clone() }).await?;
        batch.claimed.extend(more.claimed);
        batch.next_at = more.next_at;
        Ok(batch)
    }

    /// The pool, when hints can serve the request.
    pub(super) fn pool_for_hints(&self, request: &ClaimRequest) -> Option<Name> {
        let pool = request.pool.as_ref()?;
        let few_types = match &request.types {
            Types::Any => true,
            Types::Only(kinds) => kinds.len() <= TYPES_MAX && !kinds.is_empty(),
        };
        let few = (1..BULK).contains(&request.max);
        let fits = request.ids.is_none() && !request.repeated && few && few_types;
        let useless =
            || self.looks.with(pool, |look| look.useless.is_some_and(|at| at.elapsed() < WITHOUT));
        (fits && self.link.is_up() && !useless()).then(|| pool.clone())
    }

    /// As if there were no Redis; but it hears what it need not know any more.
    pub(super) async fn plain(&self, request: &ClaimRequest) -> Result<ClaimBatch> {
        let (batch, seqs) = self.store.claim_told(request).await?;
        self.looked(request, batch.claimed.len());
        self.counts.plain(batch.claimed.len());
        self.heard_of(&batch, seqs);
        Ok(batch)
    }

    /// The database was asked for all there is, and handed out so many.
    pub(super) fn looked(&self, request: &ClaimRequest, claimed: usize) {
        if let Some(pool) = &request.pool
            && request.ids.is_none()
        {
            let now = Some(Instant::now());
            self.looks.with(pool, |look| {
                look.plain = now;
                look.useless = if claimed >= BULK { now } else { look.useless };
            });
        }
    }

    /// Redis need not know of them any more.
    pub(super) fn heard_of(&self, batch: &ClaimBatch, seqs: Vec<i64>) {
        if !batch.claimed.is_empty() && self.link.is_up() {
            let gone = batch.claimed.iter().zip(seqs).map(|(claimed, seq)| Hint {
                id: claimed.task.id,
                attempt: claimed.task.attempt.saturating_sub(1),
                seq,
                priority: claimed.task.priority,
                pool: claimed.task.pool.clone(),
                kind: claimed.task.kind.clone(),
                run_at: claimed.task.run_at,
                tied: false,
                later: false,
            });
            self.pusher.say(Note::Drop(gone.collect()));
        }
    }
}

/// What a script needs to find the foremost hints of a pool.
pub(super) fn ask_for_hints(
    script: &mut redis::ScriptInvocation<'_>,
    pool: &Name,
    request: &ClaimRequest,
) {
    script.arg(&**pool).arg(request.now.as_microsecond());
    script.arg(request.max).arg(request.max + LOOK_AHEAD);
    if let Types::Only(kinds) = &request.types {
        for kind in kinds.iter() {
            script.arg(&**kind);
        }
    }
}

/// `None`: it is not known.
fn read(said: &[String], words: usize) -> Option<Said> {
    let [word, next_at, left, hints @ ..] = said else { return None };
    let word = match word.as_str() {
        "full" => Word::Full,
        "all" => Word::All,
        "short" => Word::Short,
        _ => return None,
    };
    let next_at = next_at.parse::<f64>().ok();
    let next_at = next_at.and_then(|us| Timestamp::from_microsecond(us as i64).ok());
    let left = left.parse().ok()?;
    let one = |words: &[String]| Some((Hint::task_in(&words[0])?, words.get(1).cloned()));
    let (tasks, taken): (_, Vec<_>) = hints.chunks_exact(words).filter_map(one).unzip();
    Some(Said { tasks, taken: taken.into_iter().flatten().collect(), word, next_at, left })
}
