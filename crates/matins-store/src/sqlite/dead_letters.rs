//! Dead letters: lists and groups, from a table of their own that holds what filters ask for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use matins_core::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use matins_core::page::{Page, PageRequest};
use matins_core::store::Order;
use matins_core::task::Task;
use rusqlite::{Row, params};

use super::error::{Failure, Res};
use super::reader::Reader;
use super::row::{self, word};
use super::sql::Sql;
use super::time::{opt_us, ts};
use crate::cursor;

/// Rows that one page looks at.
const WALK_MAX: usize = 100_000;

/// A filter in terms of stored numbers. Pool, type and schedule are compared once per lane.
struct Wanted<'f> {
    filter: &'f DeadLetterFilter,
    lanes: HashMap<i64, bool>,
    schedule: Option<i64>,
    after: Option<i64>,
    before: Option<i64>,
}

/// A row of `dead_letter`.
struct Letter<'r> {
    failed_at: i64,
    seq: i64,
    lane: i64,
    schedule: Option<i64>,
    fingerprint: &'r str,
    tags: Option<&'r str>,
}

fn letter<'r>(row: &'r Row<'_>) -> rusqlite::Result<Letter<'r>> {
    Ok(Letter {
        failed_at: row.get(0)?,
        seq: row.get(1)?,
        lane: row.get(2)?,
        schedule: row.get(3)?,
        fingerprint: row.get_ref(4)?.as_str()?,
        tags: row.get_ref(5)?.as_str_or_null()?,
    })
}

impl<'f> Wanted<'f> {
    fn new(reader: &mut Reader, filter: &'f DeadLetterFilter) -> Res<Self> {
        let mut lanes = HashMap::new();
        for lane in reader.all(Sql::LaneLoad, params![], |row| row.get::<_, i64>(0))? {
            let (pool, kind) = reader.catalog.lane(&reader.conn, lane)?;
            let is = |wanted: &Option<String>, value: &str| {
                wanted.as_deref().is_none_or(|wanted| wanted == value)
            };
            lanes.insert(lane, is(&filter.pool, &pool) && is(&filter.kind, &kind));
        }
        let schedule = match &filter.schedule {
            Some(name) => Some(reader.known_name(name)?.unwrap_or(-1)),
            None => None,
        };
        let (after, before) = (opt_us(filter.failed_after), opt_us(filter.failed_before));
        Ok(Self { filter, lanes, schedule, after, before })
    }

    fn wants(&self, letter: &Letter<'_>) -> Res<bool> {
        if !self.lanes.get(&letter.lane).is_some_and(|wanted| *wanted)
            || self.schedule.is_some_and(|schedule| letter.schedule != Some(schedule))
            || self.filter.fingerprint.as_ref().is_some_and(|own| own != letter.fingerprint)
            || self.after.is_some_and(|after| letter.failed_at < after)
            || self.before.is_some_and(|before| letter.failed_at >= before)
        {
            return Ok(false);
        }
        let Some(tag) = &self.filter.tag else { return Ok(true) };
        let tags = letter.tags.map_or_else(|| Ok(Vec::new()), row::read_tags)?;
        Ok(tags.contains(tag))
    }
}

impl Reader {
    pub(super) fn dead_letters(
        &mut self,
        filter: &DeadLetterFilter,
        order: Order,
        page: &PageRequest,
    ) -> Res<Page<Task>> {
        let start = match order {
            Order::NewestFirst => (i64::MAX, i64::MAX),
            Order::OldestFirst => (i64::MIN, i64::MIN),
        };
        let mut at = cursor::pair("dead_letters", page)?.unwrap_or(start);
        let limit = cursor::limit(page);
        let (numbers, more) = self.walk_letters(filter, order, limit, &mut at)?;
        let tasks = numbers.into_iter().map(|seq| Ok(self.stored_by_seq(seq)?.task));
        let items = tasks.collect::<Res<Vec<Task>>>()?;
        let next = more.then(|| cursor::write("dead_letters", &format!("{},{}", at.0, at.1)));
        Ok(Page { items, next })
    }

    /// Numbers of the tasks of one page; whether there may be more behind `at`.
    fn walk_letters(
        &mut self,
        filter: &DeadLetterFilter,
        order: Order,
        limit: usize,
        at: &mut (i64, i64),
    ) -> Res<(Vec<i64>, bool)> {
        let wanted = Wanted::new(self, filter)?;
        let sql = match (order, &filter.fingerprint) {
            (Order::NewestFirst, None) => Sql::DeadNewest,
            (Order::OldestFirst, None) => Sql::DeadOldest,
            (Order::NewestFirst, Some(_)) => Sql::DeadNewestAlike,
            (Order::OldestFirst, Some(_)) => Sql::DeadOldestAlike,
        };
        let mut statement = self.conn.prepare_cached(sql.text())?;
        let mut rows = match &filter.fingerprint {
            None => statement.query(params![at.0, at.1])?,
            Some(fingerprint) => statement.query(params![at.0, at.1, fingerprint])?,
        };
        let mut numbers = Vec::new();
        let mut visited = 0;
        while let Some(row) = rows.next()? {
            if numbers.len() == limit || visited == WALK_MAX {
                return Ok((numbers, true));
            }
            visited += 1;
            let letter = letter(row)?;
            *at = (letter.failed_at, letter.seq);
            if wanted.wants(&letter)? {
                numbers.push(letter.seq);
            }
        }
        Ok((numbers, false))
    }

    pub(super) fn dead_letter_groups(
        &mut self,
        filter: &DeadLetterFilter,
    ) -> Res<Vec<DeadLetterGroup>> {
        let wanted = Wanted::new(self, filter)?;
        let mut found: BTreeMap<String, Group> = BTreeMap::new();
        {
            let tagged = filter.tag.is_some();
            let sql = if tagged { Sql::DeadGroupRowsTagged } else { Sql::DeadGroupRows };
            let mut statement = self.conn.prepare_cached(sql.text())?;
            let mut rows = statement.query(params![])?;
            while let Some(row) = rows.next()? {
                let letter = letter(row)?;
                if letter.fingerprint.is_empty() || !wanted.wants(&letter)? {
                    continue;
                }
                match found.get_mut(letter.fingerprint) {
                    Some(group) => group.add(&letter),
                    None => {
                        found.insert(letter.fingerprint.to_owned(), Group::of(&letter));
                    }
                }
            }
        }
        let groups = found.into_iter().map(|(fingerprint, group)| self.group(fingerprint, &group));
        let mut groups = groups.collect::<Res<Vec<_>>>()?;
        groups.sort_by_key(|group| Reverse(group.count));
        Ok(groups)
    }

    fn group(&self, fingerprint: String, group: &Group) -> Res<DeadLetterGroup> {
        let error = self.one(Sql::DeadError, params![group.newest_seq], |row| {
            Ok((word(row, 0)?, row.get(1)?))
        })?;
        let Some((Some(class), message)) = error else {
            return Err(Failure::broken(format!("dead letter {} has no error", group.newest_seq)));
        };
        Ok(DeadLetterGroup {
            fingerprint,
            class,
            message,
            count: group.count,
            oldest: ts(group.oldest),
            newest: ts(group.newest),
        })
    }
}

/// A group while it is counted, its rows in the order of time.
struct Group {
    count: u64,
    oldest: i64,
    newest: i64,
    newest_seq: i64,
}

impl Group {
    fn of(letter: &Letter<'_>) -> Self {
        let at = letter.failed_at;
        Self { count: 1, oldest: at, newest: at, newest_seq: letter.seq }
    }

    fn add(&mut self, letter: &Letter<'_>) {
        self.count += 1;
        self.newest = letter.failed_at;
        self.newest_seq = letter.seq;
    }
}
