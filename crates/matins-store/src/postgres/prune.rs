//! Deleting what nobody has to keep any longer.

use std::time::Duration;

use jiff::Timestamp;
use matins_core::store::{Pruned, Retention};

use super::PostgresStore;
use super::error::{Failure, Res};
use super::row::get;
use super::sql::Sql;
use super::time::At;

/// How long the turns of an idle concurrency_key are remembered: they matter only to tasks that
/// were due before the last one.
const TURNS_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// How long it is remembered that an entry of the outage journal was applied. An older one is not
/// applied any more.
pub(crate) const ENTRIES_KEPT: Duration = Duration::from_secs(400 * 86_400);

impl PostgresStore {
    pub(super) async fn delete_old(
        &self,
        retention: &Retention,
        now: Timestamp,
        limit: usize,
    ) -> Res<Pruned> {
        let before = |kept: Duration| {
            let kept = i64::try_from(kept.as_micros()).ok()?;
            Timestamp::from_microsecond(now.as_microsecond().checked_sub(kept)?).ok().map(At)
        };
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let row = self
            .work
            .one(
                Sql::Prune,
                &[
                    &before(retention.completed),
                    &before(retention.cancelled),
                    &before(retention.failed),
                    &retention.ledger.and_then(before),
                    &before(retention.occurrences),
                    &before(retention.audit),
                    &before(TURNS_KEPT),
                    &limit,
                ],
            )
            .await?;
        let row = row.ok_or_else(|| Failure::broken("no answer to pruning"))?;
        let count = |index| Ok::<_, Failure>(get::<i64>(&row, index)?.cast_unsigned());
        let cutoff = before(retention.alerts).map(|At(cutoff)| cutoff);
        self.work.rows(Sql::JournalPrune, &[&before(ENTRIES_KEPT), &limit]).await?;
        let (alerts, more) = self.prune_alerts(cutoff, limit as usize).await?;
        Ok(Pruned {
            alerts,
            tasks: count(0)?,
            ledger: count(1)?,
            occurrences: count(2)?,
            audit: count(3)?,
            operations: count(4)?,
            workers: count(5)?,
            more: get::<bool>(&row, 6)? || more,
        })
    }
}
