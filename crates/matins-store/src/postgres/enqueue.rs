//! Taking tasks in. A batch that nothing can stand in the way of goes in all at once; any other is
//! decided task by task, in the database, where two batches meet.

use jiff::Timestamp;
use matins_core::store::{Enqueued, LedgerEntry};
use matins_core::task::{NewTask, OnDuplicate, State, Task, TaskId};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::error::{Failure, Res};
use super::link::{Param, Pool, Speaks};
use super::row::{self, col, get};
use super::sql::Sql;
use super::text::{Text, encode};
use super::time::{At, opt_at};
use crate::form;

/// New id, no key, no schedule: it cannot meet anything.
pub(super) fn is_plain(task: &NewTask) -> bool {
    !task.client_id
        && task.execution_key.is_none()
        && task.concurrency_key.is_none()
        && task.origin.is_none()
        && !task.held
}

/// A list of texts in the form of an array literal.
pub(super) fn array_literal(texts: &[String]) -> Option<String> {
    if texts.is_empty() {
        return None;
    }
    let mut literal = String::from("{");
    for (index, text) in texts.iter().enumerate() {
        literal.push_str(if index == 0 { "\"" } else { ",\"" });
        for c in encode(text).chars() {
            if matches!(c, '"' | '\\') {
                literal.push('\\');
            }
            literal.push(c);
        }
        literal.push('"');
    }
    literal.push('}');
    Some(literal)
}

/// Tasks as columns.
struct Columns<'t> {
    ids: Vec<Uuid>,
    pools: Vec<Text<'t>>,
    kinds: Vec<Text<'t>>,
    payloads: Vec<&'t str>,
    priorities: Vec<i16>,
    run_at: Vec<At>,
    expires_at: Vec<Option<At>>,
    tags: Vec<Option<String>>,
    max_retries: Vec<Option<i64>>,
    backoff: Vec<Option<String>>,
    timeout_us: Vec<Option<i64>>,
    created_by: Vec<Text<'t>>,
}

impl<'t> Columns<'t> {
    fn of(tasks: &'t [NewTask]) -> Self {
        fn column<'t, T>(tasks: &'t [NewTask], of: impl Fn(&'t NewTask) -> T) -> Vec<T> {
            tasks.iter().map(of).collect()
        }
        Self {
            ids: column(tasks, |task| task.id.0),
            pools: column(tasks, |task| Text(&task.pool)),
            kinds: column(tasks, |task| Text(&task.kind)),
            payloads: column(tasks, |task| task.payload.as_str()),
            priorities: column(tasks, |task| task.priority),
            run_at: column(tasks, |task| At(task.run_at)),
            expires_at: column(tasks, |task| opt_at(task.expires_at)),
            tags: column(tasks, |task| array_literal(&task.tags)),
            max_retries: column(tasks, |task| task.max_retries.map(i64::from)),
            backoff: column(tasks, |task| task.backoff.as_ref().map(form::write_backoff)),
            timeout_us: column(tasks, |task| task.timeout.map(form::write_timeout)),
            created_by: column(tasks, |task| Text(&task.created_by)),
        }
    }
}

/// What came of an enqueue.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) answer: Enqueued,
    /// The order of acceptance of one that waits where its own values say; of any other it is not
    /// told.
    pub(crate) seq: Option<i64>,
}

pub(super) async fn accept(pool: &Pool, tasks: &[NewTask], now: Timestamp) -> Res<Vec<Accepted>> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let c = Columns::of(tasks);
    if tasks.iter().all(is_plain) {
        let plain = pool
            .rows(
                Sql::EnqueueTold,
                &[
                    &c.ids,
                    &c.pools,
                    &c.kinds,
                    &c.payloads,
                    &c.priorities,
                    &c.run_at,
                    &c.expires_at,
                    &c.tags,
                    &c.max_retries,
                    &c.backoff,
                    &c.timeout_us,
                    &c.created_by,
                    &At(now),
                ],
            )
            .await;
        match plain {
            Ok(rows) => return told(&rows, tasks.len()),
            // An id is stored already: nothing was written, and each is looked at.
            Err(failure) if failure.is_unique_violation() => {}
            Err(failure) => return Err(failure),
        }
    }
    let answers = accept_each(pool, tasks, c, now).await?;
    Ok(answers.into_iter().map(|answer| Accepted { answer, seq: None }).collect())
}

fn told(rows: &[Row], count: usize) -> Res<Vec<Accepted>> {
    let row = rows.first().ok_or_else(|| Failure::broken("no answer to an enqueue"))?;
    let seqs: Vec<i64> = get(row, 0)?;
    if seqs.len() != count {
        return Err(Failure::broken(format!("{} answers for {count}", seqs.len())));
    }
    let created = |seq| Accepted { answer: Enqueued::Created, seq: Some(seq) };
    Ok(seqs.into_iter().map(created).collect())
}

/// Takes one in as part of somebody's transaction.
pub(super) async fn accept_one(
    through: &impl Speaks,
    task: &NewTask,
    now: Timestamp,
) -> Res<Enqueued> {
    let one = std::slice::from_ref(task);
    let answers = accept_each(through, one, Columns::of(one), now).await?;
    answers.into_iter().next().ok_or_else(|| Failure::broken("no answer to an enqueue"))
}

/// Tasks as columns, with what may stand in their way.
pub(super) struct Each<'t> {
    columns: Columns<'t>,
    client_ids: Vec<bool>,
    keys: Vec<Option<Text<'t>>>,
    on_duplicate: Vec<i16>,
    concurrency_keys: Vec<Option<Text<'t>>>,
    schedules: Vec<Option<Text<'t>>>,
    uids: Vec<Option<Uuid>>,
    labels: Vec<Option<Text<'t>>>,
    times: Vec<Option<At>>,
    held: Vec<bool>,
}

impl<'t> Each<'t> {
    pub(super) fn of(tasks: &'t [NewTask]) -> Self {
        Self::with(Columns::of(tasks), tasks)
    }

    fn with(columns: Columns<'t>, tasks: &'t [NewTask]) -> Self {
        let origins = || tasks.iter().map(|task| task.origin.as_ref());
        Self {
            columns,
            client_ids: tasks.iter().map(|task| task.client_id).collect(),
            keys: tasks.iter().map(|task| task.execution_key.as_deref().map(Text)).collect(),
            on_duplicate: tasks.iter().map(|task| wish(task.on_duplicate)).collect(),
            concurrency_keys: tasks
                .iter()
                .map(|task| task.concurrency_key.as_deref().map(Text))
                .collect(),
            schedules: origins().map(|origin| origin.map(|o| Text(&o.schedule))).collect(),
            uids: origins().map(|origin| origin.map(|o| o.schedule_uid)).collect(),
            labels: origins().map(|origin| origin.map(|o| Text(&o.label))).collect(),
            times: origins().map(|origin| origin.map(|o| At(o.time))).collect(),
            held: tasks.iter().map(|task| task.held).collect(),
        }
    }

    /// In the order of `new_task`.
    pub(super) fn params(&self) -> Vec<Param<'_>> {
        let c = &self.columns;
        vec![
            &c.ids,
            &self.client_ids,
            &c.pools,
            &c.kinds,
            &c.payloads,
            &c.priorities,
            &c.run_at,
            &c.expires_at,
            &self.keys,
            &self.on_duplicate,
            &self.concurrency_keys,
            &c.tags,
            &c.max_retries,
            &c.backoff,
            &c.timeout_us,
            &self.schedules,
            &self.uids,
            &self.labels,
            &self.times,
            &self.held,
            &c.created_by,
        ]
    }
}

async fn accept_each(
    through: &impl Speaks,
    tasks: &[NewTask],
    columns: Columns<'_>,
    now: Timestamp,
) -> Res<Vec<Enqueued>> {
    let (each, now) = (Each::with(columns, tasks), At(now));
    let mut params = each.params();
    params.push(&now);
    let rows = through.rows(Sql::EnqueueEach, &params).await?;
    if rows.len() != tasks.len() {
        return Err(Failure::broken(format!("{} answers for {}", rows.len(), tasks.len())));
    }
    tasks.iter().zip(&rows).map(|(task, row)| answer(task, row)).collect()
}

/// `on_duplicate` as the database knows it.
pub(super) fn wish(on_duplicate: OnDuplicate) -> i16 {
    match on_duplicate {
        OnDuplicate::Return => 0,
        OnDuplicate::Reject => 1,
        OnDuplicate::Replace => 2,
    }
}

fn answer(new: &NewTask, row: &Row) -> Res<Enqueued> {
    let outcome: i32 = get(row, col::COUNT)?;
    if outcome == 0 {
        return Ok(Enqueued::Created);
    }
    let id: Uuid = get(row, col::COUNT + 1)?;
    let stored = row::task(row)?;
    let completed_at = row::opt_at(row, col::COUNT + 2)?;
    let task = match (completed_at, &new.execution_key) {
        (Some(at), Some(key)) => {
            let entry = LedgerEntry {
                kind: new.kind.clone(),
                execution_key: key.clone(),
                task_id: TaskId(id),
                state: State::Completed,
                result: row::kept_json(row, col::COUNT + 3)?,
                at,
            };
            holder(stored, &entry)
        }
        _ => stored.ok_or_else(|| Failure::broken(format!("task {id} has no row")))?,
    };
    let task = Box::new(task);
    Ok(match outcome {
        1 => Enqueued::Existing(task),
        2 => Enqueued::Replaced(task),
        _ => Enqueued::Rejected(task),
    })
}

/// The task that completed a key: its row, or what the ledger knows of it when that has gone and
/// perhaps another task has its id.
pub(super) fn holder(stored: Option<Task>, entry: &LedgerEntry) -> Task {
    let own = stored.filter(|task| {
        task.state == State::Completed
            && task.kind == entry.kind
            && task.execution_key.as_ref() == Some(&entry.execution_key)
            && task.finished_at == Some(entry.at)
    });
    own.unwrap_or_else(|| entry.task())
}

impl PostgresStore {
    pub(super) async fn key_entry(&self, kind: &str, key: &str) -> Res<Option<LedgerEntry>> {
        let found = self.work.one(Sql::KeyGet, &[&Text(kind), &Text(key)]).await?;
        let Some(found) = found else { return Ok(None) };
        let task_id = TaskId(get(&found, 0)?);
        let mut entry = LedgerEntry {
            kind: kind.into(),
            execution_key: key.into(),
            task_id,
            state: State::Completed,
            result: row::kept_json(&found, 2)?,
            at: Timestamp::MIN,
        };
        if let Some(at) = row::opt_at(&found, 1)? {
            entry.at = at;
            return Ok(Some(entry));
        }
        let Some(task) = self.find(task_id).await? else { return Ok(None) };
        entry.state = task.state;
        entry.at = match task.state {
            State::Running => task.started_at.unwrap_or(task.created_at),
            _ => task.finished_at.unwrap_or(task.created_at),
        };
        Ok(Some(entry))
    }
}
