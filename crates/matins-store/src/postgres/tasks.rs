//! Lists of tasks. A page looks at a bounded range of them, so it may be short, or empty, and
//! still have a next one.

use std::collections::{BTreeSet, HashMap};

use matins_core::page::{Page, PageRequest};
use matins_core::store::TaskFilter;
use matins_core::task::{Attempt, State, Task, TaskId};
use uuid::Uuid;

use super::PostgresStore;
use super::error::Res;
use super::link::Param;
use super::row::{self, get};
use super::sql::Sql;
use super::text::Text;
use crate::{cursor, form};

/// How many numbers, or failed tasks, back one page looks when a filter may match few tasks.
const RANGE_MAX: i64 = 200_000;

/// A position in the list: everything from `seq` on has been looked at; `hits`: those found by
/// their id or key have been given out already.
#[derive(Clone, Copy)]
struct Position {
    seq: i64,
    hits: bool,
}

/// A line of tasks, by its number.
pub(super) struct Lane {
    pub(super) id: i32,
    pub(super) pool: String,
    pub(super) kind: String,
}

impl PostgresStore {
    pub(super) async fn find(&self, id: TaskId) -> Res<Option<Task>> {
        match self.work.one(Sql::TaskById, &[&id.0]).await? {
            Some(row) => row::task(&row),
            None => Ok(None),
        }
    }

    /// Some tasks, by id.
    pub(super) async fn find_all(&self, ids: &[Uuid]) -> Res<HashMap<Uuid, Task>> {
        let rows = self.work.rows(Sql::TasksByIds, &[&ids]).await?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            if let Some(task) = row::task(row)? {
                found.insert(task.id.0, task);
            }
        }
        Ok(found)
    }

    pub(super) async fn attempts_of(&self, id: TaskId) -> Res<Vec<Attempt>> {
        let rows = self.work.rows(Sql::AttemptList, &[&id.0]).await?;
        let mut attempts: Vec<Attempt> = rows.iter().map(row::attempt).collect::<Res<_>>()?;
        let Some(row) = self.work.one(Sql::TaskById, &[&id.0]).await? else {
            return Ok(attempts);
        };
        let (task, worker) = (row::task(&row)?, row::opt_text(&row, row::col::RUN_WORKER)?);
        if let (Some(task), Some(worker)) = (task, worker)
            && task.state == State::Running
        {
            attempts.push(Attempt {
                number: task.attempt,
                worker: worker.into(),
                started_at: task.started_at.unwrap_or(task.created_at),
                finished_at: None,
                outcome: None,
                error: None,
                exit_code: None,
                http_status: None,
                output: matins_core::task::Output::default(),
            });
        }
        Ok(attempts)
    }

    pub(super) async fn lanes(&self) -> Res<Vec<Lane>> {
        let rows = self.work.rows(Sql::LaneLoad, &[]).await?;
        let lane = |row: &tokio_postgres::Row| {
            Ok(Lane { id: get(row, 0)?, pool: row::text(row, 1)?, kind: row::text(row, 2)? })
        };
        rows.iter().map(lane).collect()
    }

    /// Numbers of the lanes of a pool and a type; `None`: all of them.
    pub(super) async fn lanes_of(
        &self,
        pool: Option<&str>,
        kind: Option<&str>,
    ) -> Res<Option<Vec<i32>>> {
        if pool.is_none() && kind.is_none() {
            return Ok(None);
        }
        let is = |wanted: Option<&str>, value: &str| wanted.is_none_or(|wanted| wanted == value);
        let lanes = self.lanes().await?.into_iter();
        let lanes = lanes.filter(|lane| is(pool, &lane.pool) && is(kind, &lane.kind));
        Ok(Some(lanes.map(|lane| lane.id).collect()))
    }

    pub(super) async fn page_of_tasks(
        &self,
        filter: &TaskFilter,
        page: &PageRequest,
    ) -> Res<Page<Task>> {
        let limit = cursor::limit(page);
        let found = cursor::pair("tasks", page)?.unwrap_or((i64::MAX, 0));
        let mut at = Position { seq: found.0, hits: found.1 != 0 };
        let walk = Walk::new(self, filter).await?;
        let hits = self.hits(filter).await?;
        let floor = self.floor(filter, at.seq).await?;
        let wanted = limit + 1;
        let mut numbers: Vec<(i64, Uuid)> =
            walk.range(self, at.seq, floor, wanted + hits.len()).await?;
        if at.hits {
            numbers.retain(|(seq, _)| !hits.contains(seq));
        }
        let mut more = numbers.len() > limit || floor > i64::MIN;
        if numbers.len() > limit {
            numbers.truncate(limit);
            at.seq = numbers.last().map_or(at.seq, |(seq, _)| *seq);
        } else {
            at.seq = floor;
            // What is already known to lie behind is given now, if there is room for all of it.
            let behind: Vec<i64> = hits.range(..floor).copied().collect();
            if more && !at.hits && !behind.is_empty() && behind.len() <= limit - numbers.len() {
                at.hits = true;
                for seq in behind.into_iter().rev() {
                    numbers.extend(walk.range(self, seq + 1, seq, 1).await?);
                }
            }
            more = more && self.is_anything_before(floor).await?;
        }
        let ids: Vec<Uuid> = numbers.iter().map(|(_, id)| *id).collect();
        let mut found = self.find_all(&ids).await?;
        let items = ids.iter().filter_map(|id| found.remove(id)).collect();
        let next =
            more.then(|| cursor::write("tasks", &format!("{},{}", at.seq, i64::from(at.hits))));
        Ok(Page { items, next })
    }

    /// Where this page stops looking. Without a filter every row is one of the page.
    async fn floor(&self, filter: &TaskFilter, before: i64) -> Res<i64> {
        if *filter == TaskFilter::default() || filter.schedule.is_some() {
            return Ok(i64::MIN);
        }
        match *filter.states {
            [State::Running] => return Ok(i64::MIN),
            [State::Failed] => {
                let row = self.work.one(Sql::DeadFloor, &[&before, &(RANGE_MAX - 1)]).await?;
                return row.map_or(Ok(i64::MIN), |row| get(&row, 0));
            }
            _ => {}
        }
        if before < i64::MAX {
            return Ok(before.saturating_sub(RANGE_MAX));
        }
        let last: i64 = match self.work.one(Sql::TaskLast, &[]).await? {
            Some(row) => get::<Option<i64>>(&row, 0)?.unwrap_or(0),
            None => 0,
        };
        Ok(last.saturating_sub(RANGE_MAX))
    }

    async fn is_anything_before(&self, floor: i64) -> Res<bool> {
        let row = self.work.one(Sql::TaskBounds, &[]).await?;
        let first = row.map(|row| get::<Option<i64>>(&row, 0)).transpose()?.flatten();
        Ok(first.is_some_and(|first| first < floor))
    }

    /// Tasks that an index knows, wherever they are: by the beginning of their id; by their key,
    /// or its beginning, while they have it or are dead letters.
    async fn hits(&self, filter: &TaskFilter) -> Res<BTreeSet<i64>> {
        let q = filter.q.as_deref().filter(|q| !q.is_empty());
        let key = filter.execution_key.as_deref();
        if q.is_none() && key.is_none() {
            return Ok(BTreeSet::new());
        }
        let range = q.and_then(form::id_range);
        let (low, high) = (range.map(|range| range.0), range.map(|range| range.1));
        let rows =
            self.work.rows(Sql::TaskHits, &[&key.map(Text), &q.map(Text), &low, &high]).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }
}

/// A filter in terms of stored numbers.
struct Walk<'f> {
    filter: &'f TaskFilter,
    states: Option<Vec<i32>>,
    /// Lanes of the wanted pool and type; `None`: any.
    lanes: Option<Vec<i32>>,
    /// Lanes whose type begins like the search text.
    lanes_of_q: Vec<i32>,
}

impl<'f> Walk<'f> {
    async fn new(store: &PostgresStore, filter: &'f TaskFilter) -> Res<Self> {
        let lanes = store.lanes_of(filter.pool.as_deref(), filter.kind.as_deref()).await?;
        let lanes_of_q = match &filter.q {
            Some(q) => {
                let all = store.lanes().await?.into_iter();
                all.filter(|lane| lane.kind.starts_with(&**q)).map(|lane| lane.id).collect()
            }
            None => Vec::new(),
        };
        let number = |state: &State| match state {
            State::Pending => 0,
            State::Running => 1,
            State::Completed => i32::from(row::COMPLETED),
            State::Failed => i32::from(row::FAILED),
            State::Cancelled => i32::from(row::CANCELLED),
        };
        let states =
            (!filter.states.is_empty()).then(|| filter.states.iter().map(number).collect());
        Ok(Self { filter, states, lanes, lanes_of_q })
    }

    /// Those that match with numbers in `[floor, before)`, the last first.
    async fn range(
        &self,
        store: &PostgresStore,
        before: i64,
        floor: i64,
        limit: usize,
    ) -> Res<Vec<(i64, Uuid)>> {
        let filter = self.filter;
        let (schedule, key) = (filter.schedule.as_deref(), filter.execution_key.as_deref());
        let (schedule, key) = (schedule.map(Text), key.map(Text));
        let (tag, q) = (filter.tag.as_deref().map(Text), filter.q.as_deref().map(Text));
        let limit = limit as i64;
        let mut values: Vec<Param<'_>> =
            vec![&before, &floor, &self.lanes, &schedule, &key, &tag, &q, &self.lanes_of_q, &limit];
        // Where those of a state lie by themselves, the others need not be passed over.
        let walk = match *filter.states {
            [State::Running] => Sql::TaskWalkRunning,
            [State::Failed] => Sql::TaskWalkFailed,
            _ => {
                values.push(&self.states);
                Sql::TaskWalk
            }
        };
        let rows = store.work.rows(walk, &values).await?;
        rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
    }
}
