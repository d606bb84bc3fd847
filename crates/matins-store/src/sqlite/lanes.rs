//! The lines of tasks (pool × type × quarantine) and how many tasks each has in which place.
//!
//! The figures live in the file; here is the copy that a write transaction works on. It is
//! reloaded whenever somebody else has written.

use std::collections::HashMap;

use matins_core::task::Name;
use rusqlite::params;

use super::error::{Failure, Res};
use super::sql::Sql;
use super::tx::Tx;

/// Where a task can be. `Dead` counts those of the failed that wait for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Ready,
    Later,
    Parked,
    Held,
    Running,
    Completed,
    Failed,
    Cancelled,
    Dead,
}

pub(super) const PLACES: usize = 9;

#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) id: i64,
    pub(super) pool: Name,
    pub(super) kind: Name,
    /// Number of the type's name.
    pub(super) kind_id: i64,
    pub(super) pool_id: i64,
    pub(super) quarantine: bool,
    pub(super) counts: [i64; PLACES],
    dirty: bool,
}

impl Lane {
    pub(super) fn count(&self, place: Place) -> i64 {
        self.counts[place as usize]
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// By id: new ones have higher ids than all before.
    list: Vec<Lane>,
    by_names: HashMap<(i64, i64, bool), usize>,
    /// The lane that the last task was put into: most batches have one.
    last: Option<(Name, Name, bool, i64)>,
}

impl Lanes {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.list.iter()
    }

    pub(super) fn get(&self, id: i64) -> Res<&Lane> {
        Ok(&self.list[self.index(id)?])
    }

    fn index(&self, id: i64) -> Res<usize> {
        let found = self.list.binary_search_by_key(&id, |lane| lane.id);
        found.map_err(|_| Failure::broken(format!("no lane {id}")))
    }

    pub(super) fn add(&mut self, id: i64, place: Place, delta: i64) -> Res<()> {
        let index = self.index(id)?;
        let lane = &mut self.list[index];
        lane.counts[place as usize] += delta;
        lane.dirty = true;
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn push(&mut self, lane: Lane) {
        let index = self.list.len();
        self.by_names.insert((lane.pool_id, lane.kind_id, lane.quarantine), index);
        self.list.push(lane);
    }

    /// Running tasks of a type.
    pub(super) fn running(&self, kind: &str) -> i64 {
        let of_kind = self.list.iter().filter(|lane| &*lane.kind == kind);
        of_kind.map(|lane| lane.count(Place::Running)).sum()
    }

    pub(super) fn quarantine_busy(&self) -> bool {
        self.list.iter().any(|lane| lane.quarantine && lane.count(Place::Running) > 0)
    }
}

impl Tx<'_> {
    pub(super) fn load_lanes(&mut self) -> Res<()> {
        self.mem.lanes.clear();
        let rows = self.all(Sql::LaneLoad, params![], |row| {
            let mut counts = [0; PLACES];
            for (index, count) in counts.iter_mut().enumerate() {
                *count = row.get(4 + index)?;
            }
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, counts))
        })?;
        for (id, pool_id, kind_id, quarantine, counts) in rows {
            let pool = self.name(pool_id)?;
            let kind = self.name(kind_id)?;
            let dirty = false;
            let lane = Lane { id, pool, kind, kind_id, pool_id, quarantine, counts, dirty };
            self.mem.lanes.push(lane);
        }
        Ok(())
    }

    /// The number of a lane, made when it is new.
    pub(super) fn lane(&mut self, pool: &Name, kind: &Name, quarantine: bool) -> Res<i64> {
        if let Some((last_pool, last_kind, last_quarantine, id)) = &self.mem.lanes.last
            && *last_quarantine == quarantine
            && last_pool == pool
            && last_kind == kind
        {
            return Ok(*id);
        }
        let pool_id = self.name_id(pool)?;
        let kind_id = self.name_id(kind)?;
        let id = match self.mem.lanes.by_names.get(&(pool_id, kind_id, quarantine)) {
            Some(index) => self.mem.lanes.list[*index].id,
            None => self.add_lane(pool, pool_id, kind, kind_id, quarantine)?,
        };
        self.mem.lanes.last = Some((pool.clone(), kind.clone(), quarantine, id));
        Ok(id)
    }

    fn add_lane(
        &mut self,
        pool: &Name,
        pool_id: i64,
        kind: &Name,
        kind_id: i64,
        quarantine: bool,
    ) -> Res<i64> {
        self.run(Sql::LaneAdd, params![pool_id, kind_id, quarantine])?;
        let id = self.conn.last_insert_rowid();
        self.mem.lanes.push(Lane {
            id,
            pool: pool.clone(),
            kind: kind.clone(),
            kind_id,
            pool_id,
            quarantine,
            counts: [0; PLACES],
            dirty: false,
        });
        Ok(id)
    }

    /// The lane of the same pool and type, in or out of quarantine.
    pub(super) fn sibling_lane(&mut self, lane: i64, quarantine: bool) -> Res<i64> {
        let own = self.mem.lanes.get(lane)?;
        if own.quarantine == quarantine {
            return Ok(lane);
        }
        let (pool, kind) = (own.pool.clone(), own.kind.clone());
        self.lane(&pool, &kind, quarantine)
    }

    pub(super) fn save_lanes(&mut self) -> Res<()> {
        let Self { mem, stmts, .. } = self;
        for lane in mem.lanes.list.iter_mut().filter(|lane| lane.dirty) {
            let statement = stmts.get(Sql::LaneSave)?;
            statement.raw_bind_parameter(1, lane.id)?;
            for (index, count) in lane.counts.iter().enumerate() {
                statement.raw_bind_parameter(index + 2, count)?;
            }
            statement.raw_execute()?;
            lane.dirty = false;
        }
        Ok(())
    }
}
