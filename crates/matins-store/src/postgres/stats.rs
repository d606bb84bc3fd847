//! Figures of the store, and what stands in a task's way. From counters and heads of lanes;
//! nothing here counts history.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use matins_core::store::Stats;
use matins_core::task::{Name, State, Task, order_key};
use matins_core::why::Surroundings;

use super::PostgresStore;
use super::error::Res;
use super::row::{self, get};
use super::sql::Sql;
use super::text::Text;
use super::time::At;

/// How late a schedule must be to count as overdue.
const OVERDUE: SignedDuration = SignedDuration::from_secs(60);

/// Most tasks of a lane that are counted as standing before another one.
const AHEAD_MAX: i64 = 100_000;

/// Changes in figures that are kept before they are summed up.
const TALLY_MAX: i32 = 2_000;

/// Due tasks that a look at the store may put in line.
const CATCH_UP: i32 = 5_000;

/// Tasks that stand in `ready` although others of their concurrency_key, in other lanes, come
/// first and leave no room for them: their lanes and places.
type Surplus = BTreeMap<i64, (i32, i64)>;

impl PostgresStore {
    /// Figures are exact when everything due is in line. Normally claims see to that; where
    /// nobody claims, whoever looks does.
    pub(super) async fn catch_up(&self, now: Timestamp) -> Res<()> {
        self.follow_clock(now).await?;
        if self.work.one(Sql::IsBehind, &[&At(now)]).await?.is_some() {
            self.work.rows(Sql::CatchUp, &[&At(now), &CATCH_UP]).await?;
        }
        Ok(())
    }

    pub(super) async fn figures(&self, now: Timestamp) -> Res<Stats> {
        self.work.rows(Sql::TallyFold, &[&TALLY_MAX]).await?;
        let mut stats = Stats::default();
        for row in self.work.rows(Sql::TallyRead, &[]).await? {
            let count = u64::try_from(get::<i64>(&row, 2)?).unwrap_or(0);
            let state = match get::<i32>(&row, 1)? {
                1..=4 => State::Pending,
                5 => State::Running,
                6 => State::Completed,
                7 => State::Failed,
                8 => State::Cancelled,
                _ => {
                    stats.dead_letters += count;
                    continue;
                }
            };
            if count > 0 {
                *stats.tasks.entry((row::name(&row, 0)?, state)).or_default() += count;
            }
        }
        self.look_at_lines(&mut stats).await?;
        let overdue = self.work.one(Sql::ScheduleOverdue, &[&At(now - OVERDUE)]).await?;
        stats.schedules_overdue =
            overdue.map(|row| get::<i64>(&row, 0)).transpose()?.unwrap_or(0).cast_unsigned();
        Ok(stats)
    }

    async fn surplus(&self) -> Res<Surplus> {
        let mut surplus = Surplus::new();
        let rivals = self.work.rows(Sql::SlotRivals, &[]).await?;
        if rivals.is_empty() {
            return Ok(surplus);
        }
        let settings = self.load_settings().await?;
        let per_key = |kind: &str| settings.limits.get(kind).map_or(1, |limit| limit.per_key);
        let mut before: Option<((String, String), i32)> = None;
        for row in &rivals {
            let key = (row::text(row, 0)?, row::text(row, 1)?);
            let (lane, ord, seq): (i32, i64, i64) = (get(row, 2)?, get(row, 3)?, get(row, 4)?);
            let used = match &before {
                Some((last, used)) if *last == key => *used,
                _ => get(row, 5)?,
            };
            if i64::from(used) >= i64::from(per_key(&key.0)) {
                surplus.insert(seq, (lane, ord));
            }
            before = Some((key, used + 1));
        }
        Ok(surplus)
    }

    /// What counts as ready, and when the foremost of it in each pool became due.
    async fn look_at_lines(&self, stats: &mut Stats) -> Res<()> {
        let surplus = self.surplus().await?;
        let most_extra = i64::try_from(surplus.len()).unwrap_or(i64::MAX - 1) + 1;
        let mut heads: BTreeMap<i32, Head> = BTreeMap::new();
        for row in self.work.rows(Sql::ReadyHeads, &[&most_extra]).await? {
            let lane = get(&row, 0)?;
            let place: (i64, i64) = (get(&row, 2)?, get(&row, 3)?);
            let pool = row::name(&row, 1)?;
            let count = get(&row, 4)?;
            let head = heads.entry(lane).or_insert(Head { pool, count, first: None });
            if head.first.is_none() && !surplus.contains_key(&place.1) {
                head.first = Some(place);
            }
        }
        let mut foremost: BTreeMap<Name, (i64, i64)> = BTreeMap::new();
        for (lane, Head { pool, count, first: head }) in heads {
            let extra = surplus.values().filter(|(own, _)| *own == lane).count() as i64;
            if count - extra <= 0 {
                continue;
            }
            *stats.ready.entry(pool.clone()).or_default() += (count - extra).cast_unsigned();
            if let Some(head) = head {
                let first = foremost.entry(pool).or_insert(head);
                *first = (*first).min(head);
            }
        }
        let seqs: Vec<i64> = foremost.values().map(|(_, seq)| *seq).collect();
        let mut times: HashMap<i64, Timestamp> = HashMap::new();
        for row in self.work.rows(Sql::TaskRunAt, &[&seqs]).await? {
            times.insert(get(&row, 0)?, row::at(&row, 1)?);
        }
        for (pool, (_, seq)) in foremost {
            if let Some(run_at) = times.get(&seq) {
                stats.oldest_ready.insert(pool, *run_at);
            }
        }
        Ok(())
    }

    pub(super) async fn surroundings_of(&self, task: &Task, now: Timestamp) -> Res<Surroundings> {
        let settings = self.load_settings().await?;
        let limit = settings.limits.get(&task.kind);
        let workers: Vec<_> = self
            .list_workers()
            .await?
            .into_iter()
            .filter(|worker| worker.lease_until >= now && worker.types.contains(&task.kind))
            .collect();
        let mut pool_busy = 0;
        for row in self.work.rows(Sql::RunningByWorker, &[&Text(&task.pool)]).await? {
            let name = row::name(&row, 0)?;
            if workers.iter().any(|worker| worker.id.0 == name) {
                pool_busy += get::<i64>(&row, 1)? as u32;
            }
        }
        let slots = workers.iter().flat_map(|worker| &worker.pools);
        let figures = self.work.one(Sql::Surroundings, &[&Text(&task.kind)]).await?;
        let (running, quarantine_busy, spent) = match &figures {
            Some(row) => (get::<i64>(row, 0)? as u32, get(row, 1)?, row::opt_at(row, 2)?),
            None => (0, false, None),
        };
        let line = self.line(task, now).await?;
        Ok(Surroundings {
            frozen: settings.frozen.as_ref().map(|frozen| frozen.reason.clone()),
            pool_paused: settings.pools.get(&task.pool).is_some_and(|pool| pool.paused),
            ahead: line.ahead,
            workers_for_type: workers.len() as u32,
            pool_busy,
            pool_size: slots.filter(|(pool, _)| *pool == task.pool).map(|(_, n)| n).sum(),
            rate_limited_until: limit
                .and_then(|limit| limit.rate_limit)
                .filter(|rate| rate.available(spent, now) == 0)
                .map(|rate| rate.next_at(spent, now)),
            concurrency: limit.and_then(|limit| limit.concurrency).map(|most| (running, most)),
            key_parked: line.parked,
            quarantine_busy,
            cancel_requested: task.cancel_requested_at.is_some(),
            stuck: false,
            worker: line.worker,
        })
    }

    /// Where a task stands.
    async fn line(&self, task: &Task, now: Timestamp) -> Res<Line> {
        let Some(found) = self.work.one(Sql::TaskById, &[&task.id.0]).await? else {
            return Ok(Line::default());
        };
        let Some(task) = row::task(&found)? else { return Ok(Line::default()) };
        let worker = row::opt_text(&found, row::col::RUN_WORKER)?.map(Into::into);
        let mut line = Line { worker, ..Line::default() };
        if task.state != State::Pending || task.held || task.run_at > now {
            return Ok(line);
        }
        let surplus = self.surplus().await?;
        let seq: i64 = get(&found, row::col::SEQ)?;
        let mut ord = order_key(task.run_at, task.priority);
        if let Some(key) = &task.concurrency_key {
            let lane: i32 = get(&found, row::col::LANE)?;
            let own: [super::link::Param<'_>; 4] = [&Text(&task.kind), &Text(key), &lane, &seq];
            if let Some(place) = self.work.one(Sql::PlaceOfTask, &own).await? {
                line.parked = get::<i16>(&place, 0)? > 0 || surplus.contains_key(&seq);
                ord = get(&place, 1)?;
            }
        }
        let params: [super::link::Param<'_>; 4] = [&Text(&task.pool), &ord, &seq, &AHEAD_MAX];
        for row in self.work.rows(Sql::LaneAhead, &params).await? {
            let lane: i32 = get(&row, 0)?;
            let before = get::<i64>(&row, 1)?.cast_unsigned();
            let extra = surplus
                .iter()
                .filter(|(other, (own, place))| *own == lane && (*place, **other) < (ord, seq));
            line.ahead += before.saturating_sub(extra.count() as u64);
        }
        Ok(line)
    }
}

/// A lane that has tasks in line, and the place of the first that could start.
struct Head {
    pool: Name,
    count: i64,
    first: Option<(i64, i64)>,
}

#[derive(Debug, Default)]
struct Line {
    ahead: u64,
    parked: bool,
    worker: Option<Name>,
}
