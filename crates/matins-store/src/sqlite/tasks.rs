//! Lists of tasks. A page looks at a bounded number of rows, so it may be short, or empty, and
//! still have a next one.

use std::collections::BTreeSet;

use matins_core::page::{Page, PageRequest};
use matins_core::store::TaskFilter;
use matins_core::task::{Attempt, State, Task, TaskId};
use rusqlite::params;
use uuid::Uuid;

use super::error::Res;
use super::reader::Reader;
use super::row::{self, Glance};
use super::sql::Sql;
use crate::{cursor, form};

/// Rows that one page looks at when it walks the table.
const WALK_MAX: usize = 50_000;

/// Tasks that one page looks at when it goes by a list of numbers.
const LISTED_MAX: usize = 5_000;

/// A state with more tasks than this is found by walking: collecting their numbers would take
/// longer.
const COLLECT_MAX: i64 = 500_000;

/// Tasks found by the beginning of their id or key beyond the rows that a page walks.
const HITS_MAX: i64 = 200;

/// Where to look for the tasks of a filter.
enum Source {
    Walk(Sql, Option<i64>),
    Numbers(Vec<i64>),
    Nowhere,
}

/// A position in the list: everything from `seq` on has been looked at; `hits`: those found by
/// their id or key have been given out already.
#[derive(Clone, Copy)]
struct Position {
    seq: i64,
    hits: bool,
}

impl Position {
    fn read(page: &PageRequest) -> Res<Self> {
        let found = cursor::pair("tasks", page)?;
        let (seq, hits) = found.unwrap_or((i64::MAX, 0));
        Ok(Self { seq, hits: hits != 0 })
    }

    fn write(self) -> String {
        cursor::write("tasks", &format!("{},{}", self.seq, i64::from(self.hits)))
    }
}

/// A page while it is being filled.
struct Sheet {
    limit: usize,
    items: Vec<Task>,
    /// The last row that was looked at.
    at: Position,
    /// There may be more behind it.
    more: bool,
}

impl Reader {
    pub(super) fn task(&mut self, id: TaskId) -> Res<Option<Task>> {
        Ok(self.stored_by_id(id)?.map(|stored| stored.task))
    }

    pub(super) fn attempts(&mut self, id: TaskId) -> Res<Vec<Attempt>> {
        let Some(stored) = self.stored_by_id(id)? else { return Ok(Vec::new()) };
        let Self { conn, catalog } = &mut *self;
        let mut attempts = Vec::new();
        for sql in [Sql::AttemptList, Sql::AttemptLast] {
            let mut statement = conn.prepare_cached(sql.text())?;
            let mut rows = statement.query(params![stored.seq])?;
            while let Some(row) = rows.next()? {
                attempts.push(row::attempt(row, conn, catalog)?);
            }
        }
        if stored.task.state == State::Running {
            attempts.extend(self.running_attempt(stored.seq, &stored.task)?);
        }
        Ok(attempts)
    }

    fn running_attempt(&self, seq: i64, task: &Task) -> Res<Option<Attempt>> {
        let worker: Option<String> =
            self.one(Sql::RunningOfTask, params![seq], |row| row.get(0))?;
        Ok(worker.map(|worker| Attempt {
            number: task.attempt,
            worker: worker.into(),
            started_at: task.started_at.unwrap_or(task.created_at),
            finished_at: None,
            outcome: None,
            error: None,
            exit_code: None,
            http_status: None,
            output: matins_core::task::Output::default(),
        }))
    }

    pub(super) fn tasks(&mut self, filter: &TaskFilter, page: &PageRequest) -> Res<Page<Task>> {
        let at = Position::read(page)?;
        let wanted = Wanted::new(self, filter)?;
        let hits = self.hits(filter)?;
        let limit = cursor::limit(page);
        let mut sheet = Sheet { limit, items: Vec::new(), at, more: false };
        match self.source(filter, at)? {
            Source::Nowhere => {}
            Source::Walk(sql, bound) => {
                self.walk(sql, bound, &wanted, &hits, &mut sheet)?;
            }
            Source::Numbers(numbers) => self.pick(&numbers, &wanted, &hits, &mut sheet)?,
        }
        if sheet.more && !sheet.at.hits && sheet.items.len() < limit {
            self.add_hits(&hits, &wanted, &mut sheet)?;
        }
        let next = sheet.more.then(|| sheet.at.write());
        Ok(Page { items: sheet.items, next })
    }

    fn source(&mut self, filter: &TaskFilter, at: Position) -> Res<Source> {
        if let Some(schedule) = &filter.schedule {
            return Ok(match self.known_name(schedule)? {
                Some(id) => Source::Walk(Sql::TaskWalkSchedule, Some(id)),
                None => Source::Nowhere,
            });
        }
        let listed = LISTED_MAX as i64;
        match filter.states[..] {
            [State::Failed] => Ok(Source::Walk(Sql::TaskWalkFailed, None)),
            [State::Running] => Ok(Source::Walk(Sql::TaskWalkRunning, None)),
            [State::Pending] if self.count("ready + later + parked + held")? <= COLLECT_MAX => {
                self.numbers(Sql::OpenSeqs, params![at.seq, listed])
            }
            [State::Completed] if self.count("completed")? <= COLLECT_MAX => {
                self.numbers(Sql::EndedSeqs, params![at.seq, listed, row::COMPLETED])
            }
            [State::Cancelled] if self.count("cancelled")? <= COLLECT_MAX => {
                self.numbers(Sql::EndedSeqs, params![at.seq, listed, row::CANCELLED])
            }
            _ => Ok(Source::Walk(Sql::TaskWalk, None)),
        }
    }

    fn numbers(&self, sql: Sql, params: impl rusqlite::Params) -> Res<Source> {
        Ok(Source::Numbers(self.all(sql, params, |row| row.get(0))?))
    }

    /// Tasks in some places, over all lanes.
    fn count(&self, places: &'static str) -> Res<i64> {
        let sql = format!("SELECT coalesce(sum({places}), 0) FROM lane");
        Ok(self.conn.prepare_cached(&sql)?.query_row([], |row| row.get(0))?)
    }

    fn walk(
        &mut self,
        sql: Sql,
        bound: Option<i64>,
        wanted: &Wanted<'_>,
        hits: &BTreeSet<i64>,
        sheet: &mut Sheet,
    ) -> Res<()> {
        let Self { conn, catalog } = self;
        let mut statement = conn.prepare_cached(sql.text())?;
        let mut rows = match bound {
            None => statement.query(params![sheet.at.seq])?,
            Some(bound) => statement.query(params![sheet.at.seq, bound])?,
        };
        let mut visited = 0;
        while let Some(row) = rows.next()? {
            if sheet.items.len() == sheet.limit || visited == WALK_MAX {
                sheet.more = true;
                return Ok(());
            }
            visited += 1;
            let glance = row::glance(row)?;
            sheet.at.seq = glance.seq;
            let given = sheet.at.hits && hits.contains(&glance.seq);
            if !given && wanted.wants(&glance)? {
                sheet.items.push(row::stored(row, conn, catalog)?.task);
            }
        }
        Ok(())
    }

    fn pick(
        &mut self,
        numbers: &[i64],
        wanted: &Wanted<'_>,
        hits: &BTreeSet<i64>,
        sheet: &mut Sheet,
    ) -> Res<()> {
        for seq in numbers {
            if sheet.items.len() == sheet.limit {
                sheet.more = true;
                return Ok(());
            }
            sheet.at.seq = *seq;
            let given = sheet.at.hits && hits.contains(seq);
            if !given {
                self.pick_one(*seq, wanted, &mut sheet.items)?;
            }
        }
        sheet.more = numbers.len() == LISTED_MAX;
        Ok(())
    }

    fn pick_one(&mut self, seq: i64, wanted: &Wanted<'_>, items: &mut Vec<Task>) -> Res<()> {
        let Self { conn, catalog } = self;
        let mut statement = conn.prepare_cached(Sql::TaskBySeq.text())?;
        let mut rows = statement.query(params![seq])?;
        if let Some(row) = rows.next()?
            && wanted.wants(&row::glance(row)?)?
        {
            items.push(row::stored(row, conn, catalog)?.task);
        }
        Ok(())
    }

    /// Tasks that an index knows, wherever they are: by the beginning of their id; by their key,
    /// or its beginning, while they have it or are dead letters.
    fn hits(&mut self, filter: &TaskFilter) -> Res<BTreeSet<i64>> {
        let mut hits = BTreeSet::new();
        if let Some(key) = &filter.execution_key {
            self.hits_by_key(key, &format!("{key}\0"), &mut hits)?;
        }
        let Some(q) = filter.q.as_ref().filter(|q| !q.is_empty()) else { return Ok(hits) };
        if let Some((low, high)) = form::id_range(q) {
            let params = params![low, high, HITS_MAX];
            hits.extend(self.all(Sql::TaskByIdRange, params, |row| row.get::<_, i64>(0))?);
        }
        self.hits_by_key(q, &format!("{q}\u{10ffff}"), &mut hits)?;
        Ok(hits)
    }

    /// Keys from `from` on, before `to`.
    fn hits_by_key(&mut self, from: &str, to: &str, hits: &mut BTreeSet<i64>) -> Res<()> {
        let kinds = self.all(Sql::LaneLoad, params![], |row| row.get::<_, i64>(2))?;
        for kind in kinds.into_iter().collect::<BTreeSet<i64>>() {
            let params = params![kind, from, to, HITS_MAX];
            let ids = self.all(Sql::KeyRange, params, |row| row.get::<_, Uuid>(0))?;
            for id in ids {
                hits.extend(self.one(Sql::TaskSeq, params![id], |row| row.get::<_, i64>(0))?);
            }
        }
        let params = params![from, to, HITS_MAX];
        hits.extend(self.all(Sql::DeadKeyRange, params, |row| row.get::<_, i64>(0))?);
        Ok(())
    }

    /// The walk has gone as far as it may. What is already known to lie behind is given now, if
    /// the page has room for all of it.
    fn add_hits(
        &mut self,
        hits: &BTreeSet<i64>,
        wanted: &Wanted<'_>,
        sheet: &mut Sheet,
    ) -> Res<()> {
        if hits.range(..sheet.at.seq).count() > sheet.limit - sheet.items.len() {
            return Ok(());
        }
        sheet.at.hits = true;
        for seq in hits.range(..sheet.at.seq).rev() {
            self.pick_one(*seq, wanted, &mut sheet.items)?;
        }
        Ok(())
    }
}

/// A filter in terms of stored numbers.
struct Wanted<'f> {
    filter: &'f TaskFilter,
    /// Lanes of the wanted pool and type; `None`: any.
    lanes: Option<BTreeSet<i64>>,
    /// Lanes whose type begins like the search text.
    lanes_of_q: BTreeSet<i64>,
    schedule: Option<i64>,
    q_lower: String,
}

impl<'f> Wanted<'f> {
    fn new(reader: &mut Reader, filter: &'f TaskFilter) -> Res<Self> {
        let mut lanes = BTreeSet::new();
        let mut lanes_of_q = BTreeSet::new();
        for lane in reader.all(Sql::LaneLoad, params![], |row| row.get::<_, i64>(0))? {
            let (pool, kind) = reader.catalog.lane(&reader.conn, lane)?;
            let is = |wanted: &Option<String>, value: &str| {
                wanted.as_deref().is_none_or(|wanted| wanted == value)
            };
            if is(&filter.pool, &pool) && is(&filter.kind, &kind) {
                lanes.insert(lane);
            }
            if filter.q.as_ref().is_some_and(|q| kind.starts_with(&**q)) {
                lanes_of_q.insert(lane);
            }
        }
        let narrow = filter.pool.is_some() || filter.kind.is_some();
        let schedule = match &filter.schedule {
            Some(name) => Some(reader.known_name(name)?.unwrap_or(-1)),
            None => None,
        };
        let q_lower = filter.q.as_deref().unwrap_or_default().to_lowercase();
        Ok(Self { filter, lanes: narrow.then_some(lanes), lanes_of_q, schedule, q_lower })
    }

    fn wants(&self, task: &Glance<'_>) -> Res<bool> {
        let filter = self.filter;
        let key = filter.execution_key.as_deref();
        if !(filter.states.is_empty() || filter.states.contains(&task.state))
            || self.lanes.as_ref().is_some_and(|lanes| !lanes.contains(&task.lane))
            || self.schedule.is_some_and(|schedule| task.schedule != Some(schedule))
            || key.is_some_and(|key| task.execution_key != Some(key))
        {
            return Ok(false);
        }
        if filter.tag.is_none() && filter.q.is_none() {
            return Ok(true);
        }
        let tags = task.tags.map_or_else(|| Ok(Vec::new()), row::read_tags)?;
        let tagged = filter.tag.as_ref().is_none_or(|tag| tags.contains(tag));
        let found = filter.q.as_ref().is_none_or(|q| {
            self.lanes_of_q.contains(&task.lane)
                || task.execution_key.is_some_and(|key| key.starts_with(&**q))
                || tags.iter().any(|tag| tag.starts_with(&**q))
                || task.id.to_string().starts_with(&self.q_lower)
        });
        Ok(tagged && found)
    }
}
