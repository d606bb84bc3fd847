//! Figures of the store, and what stands in a task's way. From counters and heads of lanes;
//! nothing here counts history.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use matins_core::store::Stats;
use matins_core::task::{Name, State, Task, order_key};
use matins_core::why::Surroundings;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Json};

use super::PostgresStore;
use super::error::{Failure, Res};
use super::row::{self, get};
use super::sql::Sql;
use super::text::{Text, decode};
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
        self.follow_clock(now).await?;
        let params: [super::link::Param<'_>; 2] = [&At(now), &At(now - OVERDUE)];
        let read = async || {
            let row = self.work.one(Sql::Figures, &params).await?;
            row.ok_or_else(|| Failure::broken("no figures"))
        };
        let mut row = read().await?;
        if get::<Option<bool>>(&row, 0)?.unwrap_or(false) {
            self.work.rows(Sql::CatchUp, &[&At(now), &CATCH_UP]).await?;
            row = read().await?;
        }
        if get::<i64>(&row, 1)? > i64::from(TALLY_MAX) {
            self.work.rows(Sql::TallyFold, &[&TALLY_MAX]).await?;
        }
        let mut stats = Stats::default();
        for (pool, place, count) in list::<(String, i32, i64)>(&row, 2)? {
            let count = u64::try_from(count).unwrap_or(0);
            let state = match place {
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
                *stats.tasks.entry((decode(&pool).into(), state)).or_default() += count;
            }
        }
        let surplus = self.surplus_of(&list(&row, 3)?).await?;
        look_at_lines(&mut stats, &surplus, list(&row, 4)?);
        stats.schedules_overdue = get::<i64>(&row, 5)?.cast_unsigned();
        Ok(stats)
    }

    async fn surplus(&self) -> Res<Surplus> {
        let rows = self.work.rows(Sql::SlotRivals, &[]).await?;
        let rival = |row: &Row| {
            let (kind, key) = (get::<String>(row, 0)?, get::<String>(row, 1)?);
            Ok((kind, key, get(row, 2)?, get(row, 3)?, get(row, 4)?, get(row, 5)?))
        };
        self.surplus_of(&rows.iter().map(rival).collect::<Res<Vec<Rival>>>()?).await
    }

    async fn surplus_of(&self, rivals: &[Rival]) -> Res<Surplus> {
        let mut surplus = Surplus::new();
        if rivals.is_empty() {
            return Ok(surplus);
        }
        let settings = self.load_settings().await?;
        let per_key = |kind: &str| settings.limits.get(kind).map_or(1, |limit| limit.per_key);
        let mut before: Option<((&str, &str), i32)> = None;
        for (kind, key, lane, ord, seq, running) in rivals {
            let key = (kind.as_str(), key.as_str());
            let used = match &before {
                Some((last, used)) if *last == key => *used,
                _ => *running,
            };
            if i64::from(used) >= i64::from(per_key(&decode(kind))) {
                surplus.insert(*seq, (*lane, *ord));
            }
            before = Some((key, used + 1));
        }
        Ok(surplus)
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
        let figures = figures.ok_or_else(|| Failure::broken("no figures of a type"))?;
        let running = get::<i64>(&figures, 0)? as u32;
        let (quarantine_busy, spent) = (get(&figures, 1)?, row::opt_at(&figures, 2)?);
        let node: Option<String> = get(&figures, 3)?;
        let waits_for = node.map(Name::from).zip(row::opt_at(&figures, 4)?);
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
            waits_for,
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

/// A task in line whose key stands in several lanes: type, key, lane, place, order of acceptance,
/// and how many of the key run.
type Rival = (String, String, i32, i64, i64, i32);

/// One of the first of a lane: lane, pool, place, order of acceptance, when it became due in
/// microseconds, and how many the lane has.
type Head = (i32, String, i64, i64, i64, i64);

fn list<T>(row: &Row, column: usize) -> Res<Vec<T>>
where
    for<'r> Json<Vec<T>>: FromSql<'r>,
{
    Ok(get::<Option<Json<Vec<T>>>>(row, column)?.map_or_else(Vec::new, |json| json.0))
}

/// What counts as ready, and when the foremost of it in each pool became due.
fn look_at_lines(stats: &mut Stats, surplus: &Surplus, heads: Vec<Head>) {
    let mut extra: BTreeMap<i32, i64> = BTreeMap::new();
    for (lane, _) in surplus.values() {
        *extra.entry(*lane).or_default() += 1;
    }
    let mut foremost: BTreeMap<Name, (i64, i64, i64)> = BTreeMap::new();
    let mut counted = None;
    for (lane, pool, ord, seq, run_at, count) in heads {
        let count = count - extra.get(&lane).copied().unwrap_or_default();
        if count <= 0 {
            continue;
        }
        let pool = Name::from(decode(&pool));
        if counted.replace(lane) != Some(lane) {
            *stats.ready.entry(pool.clone()).or_default() += count.cast_unsigned();
        }
        if !surplus.contains_key(&seq) {
            let first = foremost.entry(pool).or_insert((ord, seq, run_at));
            *first = (*first).min((ord, seq, run_at));
        }
    }
    for (pool, (.., run_at)) in foremost {
        if let Ok(run_at) = Timestamp::from_microsecond(run_at) {
            stats.oldest_ready.insert(pool, run_at);
        }
    }
}

#[derive(Debug, Default)]
struct Line {
    ahead: u64,
    parked: bool,
    worker: Option<Name>,
}
