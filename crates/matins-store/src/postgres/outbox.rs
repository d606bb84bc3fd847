//! Alerts on their way to people.

use jiff::Timestamp;
use matins_core::alert::{Alert, Fact};
use matins_core::page::{Page, PageRequest};
use matins_core::store::{Tray, Turn};
use tokio_postgres::Row;

use super::PostgresStore;
use super::error::{Failure, Res};
use super::link::{Param, Speaks};
use super::row::{self, get};
use super::sql::Sql;
use super::text::{Text, decode};
use super::time::At;
use crate::cursor;

fn alert(row: &Row) -> Res<Alert> {
    let unknown = |error: matins_core::words::UnknownWord| Failure::broken(error.to_string());
    // Written by functions too, which put stored texts into JSON: its values are decoded, not
    // the whole.
    let facts: Vec<Fact> = serde_json::from_str(get(row, 6)?)?;
    let decoded = |fact: Fact| Fact {
        name: decode(&fact.name).into_owned(),
        value: decode(&fact.value).into_owned(),
    };
    Ok(Alert {
        at: row::at(row, 1)?,
        rule: get::<&str>(row, 2)?.parse().map_err(unknown)?,
        subject: row::text(row, 3)?,
        severity: get::<&str>(row, 4)?.parse().map_err(unknown)?,
        resolved: get(row, 5)?,
        facts: facts.into_iter().map(decoded).collect(),
    })
}

fn numbered(row: &Row) -> Res<(u64, Alert)> {
    Ok((get::<i64>(row, 0)?.cast_unsigned(), alert(row)?))
}

/// As a transaction of its own, or as part of one.
pub(super) async fn add_alerts(through: &impl Speaks, alerts: &[Alert], read: bool) -> Res<()> {
    let encoded = |fact: &Fact| Fact {
        name: super::text::encode(&fact.name).into_owned(),
        value: super::text::encode(&fact.value).into_owned(),
    };
    let mut facts = Vec::with_capacity(alerts.len());
    for alert in alerts {
        let encoded: Vec<Fact> = alert.facts.iter().map(encoded).collect();
        facts.push(serde_json::to_string(&encoded)?);
    }
    let at: Vec<At> = alerts.iter().map(|alert| At(alert.at)).collect();
    let rules: Vec<&str> = alerts.iter().map(|alert| alert.rule.as_str()).collect();
    let subjects: Vec<Text<'_>> = alerts.iter().map(|alert| Text(&alert.subject)).collect();
    let severities: Vec<&str> = alerts.iter().map(|alert| alert.severity.as_str()).collect();
    let resolved: Vec<bool> = alerts.iter().map(|alert| alert.resolved).collect();
    let params: [Param<'_>; 7] = [&at, &rules, &subjects, &severities, &resolved, &facts, &read];
    through.rows(Sql::AlertRaise, &params).await?;
    Ok(())
}

impl PostgresStore {
    pub(super) async fn take_tray(&self, turn: &Turn) -> Res<Option<Tray>> {
        let limit = i64::try_from(turn.limit).unwrap_or(i64::MAX);
        let params: [Param<'_>; 4] = [&Text(&turn.teller), &At(turn.now), &At(turn.until), &limit];
        let rows = self.work.rows(Sql::TurnTake, &params).await?;
        let Some(taken) = rows.first().filter(|row| matches!(get(row, 7), Ok(true))) else {
            return Ok(None);
        };
        let state = row::opt_text(taken, 8)?;
        let waits = |row: &&Row| matches!(get::<Option<i64>>(row, 0), Ok(Some(_)));
        let unread = rows.iter().filter(waits).map(numbered).collect::<Res<_>>()?;
        Ok(Some(Tray { state, unread }))
    }

    pub(super) async fn file_read(&self, teller: &str, read: &[u64], state: &str) -> Res<bool> {
        let read: Vec<i64> = read.iter().map(|number| number.cast_signed()).collect();
        let row = self.work.one(Sql::AlertFile, &[&Text(teller), &read, &Text(state)]).await?;
        Ok(row.map(|row| get(&row, 0)).transpose()?.unwrap_or(false))
    }

    pub(super) async fn page_of_alerts(&self, page: &PageRequest) -> Res<Page<Alert>> {
        let before = cursor::number("alerts", page)?.unwrap_or(i64::MAX);
        let limit = cursor::limit(page);
        let rows = self.work.rows(Sql::AlertPage, &[&before, &(limit as i64 + 1)]).await?;
        let items = rows.iter().take(limit).map(alert).collect::<Res<Vec<_>>>()?;
        let last = rows.get(limit.wrapping_sub(1)).filter(|_| rows.len() > limit);
        let next = match last {
            Some(row) => Some(cursor::write("alerts", &get::<i64>(row, 0)?)),
            None => None,
        };
        Ok(Page { items, next })
    }

    /// How many went, and whether there are more.
    pub(super) async fn prune_alerts(
        &self,
        cutoff: Option<Timestamp>,
        limit: usize,
    ) -> Res<(u64, bool)> {
        let Some(cutoff) = cutoff else { return Ok((0, false)) };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX - 1);
        let row = self.work.one(Sql::AlertPrune, &[&At(cutoff), &limit]).await?;
        let row = row.ok_or_else(|| Failure::broken("no answer to pruning"))?;
        Ok((get::<i64>(&row, 0)?.cast_unsigned(), get(&row, 1)?))
    }
}
