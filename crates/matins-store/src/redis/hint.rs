//! What Redis knows of a task: enough to find it in line, nothing that would be missed.

use jiff::Timestamp;
use matins_core::task::{Name, NewTask, TaskId, order_key};
use uuid::Uuid;

/// A pending task in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) id: TaskId,
    /// How often it has run.
    pub(crate) attempt: u32,
    /// Order of acceptance: which of two with the same place comes first.
    pub(crate) seq: i64,
    pub(crate) priority: i16,
    pub(crate) pool: Name,
    pub(crate) kind: Name,
    pub(crate) run_at: Timestamp,
    /// Its place depends on other tasks, so only the database knows it: a claim through hints
    /// stops in front of it.
    pub(crate) tied: bool,
    /// It was not due yet when this was said.
    pub(crate) later: bool,
}

impl Hint {
    /// Of a task that waits where its own values say; its order of acceptance is still to come.
    pub(super) fn of_new(task: &NewTask, now: Timestamp) -> Self {
        Self {
            id: task.id,
            attempt: 0,
            seq: 0,
            priority: task.priority,
            pool: task.pool.clone(),
            kind: task.kind.clone(),
            run_at: task.run_at,
            tied: false,
            later: task.run_at > now,
        }
    }

    /// The same for as long as the task waits, and in the order of acceptance.
    pub(super) fn member(&self) -> String {
        let Self { id, attempt, seq, priority, pool, kind, .. } = self;
        let mark = if self.tied { '!' } else { '.' };
        format!("{seq:016x}{mark}\t{}\t{attempt}\t{priority}\t{pool}\t{kind}", id.0)
    }

    /// Place in line. Redis keeps it exactly until the year 2255.
    pub(super) fn order(&self) -> i64 {
        order_key(self.run_at, self.priority)
    }

    /// Its place in the line that it stands in.
    pub(super) fn score(&self) -> i64 {
        if self.later { self.run_at.as_microsecond() } else { self.order() }
    }

    pub(super) fn is_tied(member: &str) -> bool {
        member.split('\t').next().is_some_and(|first| first.ends_with('!'))
    }

    pub(super) fn id_in(member: &str) -> Option<TaskId> {
        Self::task_in(member).map(|(id, _)| id)
    }

    /// The id in a member, and how often it had run; `None`: somebody else wrote it.
    pub(super) fn task_in(member: &str) -> Option<(TaskId, u32)> {
        let mut fields = member.split('\t').skip(1);
        let id = Uuid::parse_str(fields.next()?).ok()?;
        Some((TaskId(id), fields.next()?.parse().ok()?))
    }
}
