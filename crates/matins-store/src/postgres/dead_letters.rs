//! Dead letters: lists and groups, from a table of their own that holds what filters ask for.

use jiff::Timestamp;
use matins_core::dead_letter::{DeadLetterFilter, DeadLetterGroup};
use matins_core::page::{Page, PageRequest};
use matins_core::store::Order;
use matins_core::task::Task;
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::error::{Failure, Res};
use super::row::{self, get, word};
use super::sql::Sql;
use super::text::Text;
use super::time::{At, opt_at};
use crate::cursor;

impl PostgresStore {
    pub(super) async fn page_of_letters(
        &self,
        filter: &DeadLetterFilter,
        order: Order,
        page: &PageRequest,
    ) -> Res<Page<Task>> {
        let (sql, start) = match order {
            Order::NewestFirst => (Sql::DeadNewest, (Timestamp::MAX, i64::MAX)),
            Order::OldestFirst => (Sql::DeadOldest, (Timestamp::UNIX_EPOCH, i64::MIN)),
        };
        let (from, seq) = match cursor::pair("dead_letters", page)? {
            None => start,
            Some((us, seq)) => {
                let from = Timestamp::from_microsecond(us);
                (from.map_err(|_| cursor::refused("dead_letters"))?, seq)
            }
        };
        let limit = cursor::limit(page);
        let lanes = self.lanes_of(filter.pool.as_deref(), filter.kind.as_deref()).await?;
        let rows = self
            .work
            .rows(
                sql,
                &[
                    &At(from),
                    &seq,
                    &filter.fingerprint.as_deref().map(Text),
                    &lanes,
                    &filter.schedule.as_deref().map(Text),
                    &filter.tag.as_deref().map(Text),
                    &opt_at(filter.failed_after),
                    &opt_at(filter.failed_before),
                    &(limit as i64 + 1),
                ],
            )
            .await?;
        let ids: Vec<Uuid> = rows.iter().take(limit).map(|row| get(row, 2)).collect::<Res<_>>()?;
        let next = match rows.get(limit.wrapping_sub(1)).filter(|_| rows.len() > limit) {
            Some(last) => {
                let position =
                    format!("{},{}", row::at(last, 1)?.as_microsecond(), get::<i64>(last, 0)?);
                Some(cursor::write("dead_letters", &position))
            }
            None => None,
        };
        let mut found = self.find_all(&ids).await?;
        let tasks = ids.iter().filter_map(|id| found.remove(id));
        Ok(Page { items: tasks.filter(Task::is_dead_letter).collect(), next })
    }

    pub(super) async fn groups(&self, filter: &DeadLetterFilter) -> Res<Vec<DeadLetterGroup>> {
        let lanes = self.lanes_of(filter.pool.as_deref(), filter.kind.as_deref()).await?;
        let rows = self
            .work
            .rows(
                Sql::DeadGroups,
                &[
                    &filter.fingerprint.as_deref().map(Text),
                    &lanes,
                    &filter.schedule.as_deref().map(Text),
                    &filter.tag.as_deref().map(Text),
                    &opt_at(filter.failed_after),
                    &opt_at(filter.failed_before),
                ],
            )
            .await?;
        rows.iter().map(group).collect()
    }
}

fn group(row: &Row) -> Res<DeadLetterGroup> {
    let missing = || Failure::broken("a dead letter has no error");
    Ok(DeadLetterGroup {
        fingerprint: row::text(row, 0)?,
        class: word(row, 4)?.ok_or_else(missing)?,
        message: row::opt_text(row, 5)?.ok_or_else(missing)?,
        count: get::<i64>(row, 1)?.cast_unsigned(),
        oldest: row::at(row, 2)?,
        newest: row::at(row, 3)?,
    })
}
