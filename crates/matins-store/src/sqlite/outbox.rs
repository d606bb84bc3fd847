//! Alerts on their way to people.

use matins_core::alert::{Alert, of_dead_letter, of_occurrence};
use matins_core::page::{Page, PageRequest};
use matins_core::schedule::Occurrence;
use matins_core::store::{Tray, Turn};
use rusqlite::{Row, params};

use super::error::{Failure, Res};
use super::reader::Reader;
use super::row::word;
use super::sql::Sql;
use super::time::{ts, us};
use super::tx::Tx;
use crate::cursor;

type Read = (u64, Alert, String);

/// A row of `alert_page` or `alert_unread`; the facts are read by [`whole`].
fn read(row: &Row<'_>) -> rusqlite::Result<Read> {
    let missing = |index| rusqlite::Error::InvalidColumnIndex(index);
    let alert = Alert {
        rule: word(row, 2)?.ok_or_else(|| missing(2))?,
        subject: row.get(3)?,
        severity: word(row, 4)?.ok_or_else(|| missing(4))?,
        facts: Vec::new(),
        at: ts(row.get(1)?),
        resolved: row.get(5)?,
    };
    Ok((row.get::<_, i64>(0)?.cast_unsigned(), alert, row.get(6)?))
}

fn whole((number, alert, facts): Read) -> Res<(u64, Alert)> {
    Ok((number, Alert { facts: serde_json::from_str(&facts)?, ..alert }))
}

impl Reader {
    pub(super) fn alerts(&self, page: &PageRequest) -> Res<Page<Alert>> {
        let before = cursor::number("alerts", page)?.unwrap_or(i64::MAX);
        let limit = cursor::limit(page);
        let rows = self.all(Sql::AlertPage, params![before, limit as i64 + 1], read)?;
        let more = rows.len() > limit;
        let mut rows = rows.into_iter().map(whole).collect::<Res<Vec<_>>>()?;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|(number, _)| cursor::write("alerts", number));
        Ok(Page { items: rows.into_iter().map(|(_, alert)| alert).collect(), next })
    }
}

impl Tx<'_> {
    pub(super) fn raise(&mut self, alert: &Alert, read: bool) -> Res<()> {
        let facts = serde_json::to_string(&alert.facts)?;
        let Alert { rule, subject, severity, at, resolved, .. } = alert;
        let (rule, severity) = (rule.as_str(), severity.as_str());
        let row = params![us(*at), read, rule, subject, severity, resolved, facts];
        self.run(Sql::AlertInsert, row)?;
        Ok(())
    }

    /// A task has just become a dead letter.
    pub(super) fn raise_dead_letter(&mut self, seq: i64) -> Res<()> {
        let task = self.stored_by_seq(seq)?.task;
        self.raise(&of_dead_letter(&task), false)
    }

    pub(super) fn raise_missed(&mut self, occurrence: &Occurrence, now: i64) -> Res<()> {
        of_occurrence(occurrence, ts(now)).map_or(Ok(()), |alert| self.raise(&alert, false))
    }

    pub(super) fn tray(&mut self, turn: &Turn) -> Res<Option<Tray>> {
        let desk: Option<(String, i64, Option<String>)> =
            self.one(Sql::DeskGet, params![], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let (now, until) = (us(turn.now), us(turn.until));
        let own = match &desk {
            Some((teller, until, _)) if *teller == turn.teller => Some(*until),
            Some((_, until, _)) if *until >= now => return Ok(None),
            _ => None,
        };
        // Written seldom: whoever has nothing to tell costs no commit.
        if own.is_none_or(|own| own - now <= (until - now) / 2) {
            self.run(Sql::DeskTurn, params![turn.teller, until])?;
        }
        let unread = self.all(Sql::AlertUnread, params![turn.limit as i64], read)?;
        let unread = unread.into_iter().map(whole).collect::<Res<_>>()?;
        Ok(Some(Tray { state: desk.and_then(|(.., state)| state), unread }))
    }

    pub(super) fn file(&mut self, teller: &str, read: &[u64], state: &str) -> Res<bool> {
        if self.run(Sql::DeskFile, params![teller, state])? == 0 {
            return Ok(false);
        }
        for number in read {
            let number = i64::try_from(*number)
                .map_err(|_| Failure::broken(format!("{number} is no number of an alert")))?;
            self.run(Sql::AlertRead, params![number])?;
        }
        Ok(true)
    }
}
