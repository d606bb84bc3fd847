//! What was journalled while the database was away, written into it. An entry is applied once,
//! whoever brings it and whenever: its id is remembered in the transaction that applies it.

use matins_core::outage::{Change, Entry};
use matins_core::store::Result;
use matins_core::task::{NewTask, TaskId};
use uuid::Uuid;

use super::PostgresStore;
use super::enqueue::Each;
use super::error::Res;
use super::row::get;
use super::sql::Sql;
use super::time::At;

impl PostgresStore {
    /// Applies entries in their order, all in one transaction; those that were applied before are
    /// passed over. Answers the tasks that were taken in.
    ///
    /// A key that somebody else has by now is judged here: the task gets a row of its own that
    /// has ended, as completed when its key has, else as cancelled (`duplicate_key`), because
    /// somebody was given its id.
    pub(crate) async fn replay(&self, entries: &[Entry]) -> Result<Vec<TaskId>> {
        Ok(self.replay_enqueues(entries).await?)
    }

    async fn replay_enqueues(&self, entries: &[Entry]) -> Res<Vec<TaskId>> {
        let ids: Vec<Uuid> = entries.iter().map(|entry| entry.id).collect();
        let at: Vec<At> = entries.iter().map(|entry| At(entry.at)).collect();
        let task = |entry: &Entry| match &entry.change {
            // Whoever journalled it may have written it before, and lost the answer.
            Change::Enqueue(task) => NewTask { client_id: true, ..(**task).clone() },
        };
        let tasks: Vec<NewTask> = entries.iter().map(task).collect();
        let each = Each::of(&tasks);
        let mut params = each.params();
        params.extend_from_slice(&[&ids, &at]);
        let rows = self.work.rows(Sql::ReplayEnqueues, &params).await?;
        if let Some(first) = tasks.iter().map(NewTask::order).min() {
            self.floors.lower(first);
        }
        self.ear.ring();
        rows.iter().map(|row| Ok(TaskId(get(row, 0)?))).collect()
    }
}
