//! Tasks: accepted, looked at, cancelled, tried again.

use axum::http::Method;
use axum::response::Response;
use matins_core::Task;
use matins_core::request::EnqueueRequest;
use matins_core::store::{Cancelled, Retried, TaskFilter};
use matins_core::task::State;
use matins_runtime::client::Answer;

use super::{Content, NoQuery, Operation, batch, operation, output};
use crate::api::{Api, json};
use crate::auth::{Access, Caller, Role};
use crate::call::body::{Json, Maybe, Nothing, Object};
use crate::call::{Call, page};
use crate::problem::{Code, Problem, Result};
use crate::wire::task::{
    AnswerView, AttemptView, BatchShape, CancelBody, EnqueueBody, Existing, RetryBody, Sight,
    TaskDetail, TaskList, TaskQuery, TaskView, WhyView,
};

impl Object for EnqueueBody {}
impl Object for CancelBody {}
impl Object for RetryBody {}

pub(super) fn operations() -> Vec<Operation> {
    let taken_in_and_shown = vec![
        operation("task.enqueue", Method::POST, "/api/v1/tasks", Access::Enqueue, "Accept a task")
            .answers::<TaskView<'_>>(201, "Accepted, durably.")
            .answers::<Existing>(
                200,
                "The key, or the client's id, is taken: the task that has it, with \
                 `deduplicated: true`; or the pending holder, replaced as asked. A token of the \
                 role `enqueue` sees id and state only.",
            )
            .fails(&[Code::DuplicateKey, Code::StoreFull, Code::RedisNotDurable])
            .by(enqueue),
        operation(
            "task.enqueue_many",
            Method::POST,
            "/api/v1/tasks/batch",
            Access::Enqueue,
            "Accept many tasks in one commit, each by itself",
        )
        .answers::<BatchShape>(200, "One item per item of the request, in its order.")
        .fails(&[Code::StoreFull, Code::RedisNotDurable])
        .by(batch::enqueue_many),
        operation(
            "task.list",
            Method::GET,
            "/api/v1/tasks",
            Access::Viewer,
            "List tasks, the last accepted first",
        )
        .answers::<TaskList<'_>>(200, "A page; it may be short and still have a next one.")
        .by(list),
        operation(
            "task.show",
            Method::GET,
            "/api/v1/tasks/{id}",
            Access::Viewer,
            "Show a task with every attempt",
        )
        .answers::<TaskDetail<'_>>(200, "The task.")
        .fails(&[Code::NotFound])
        .by(show),
        operation(
            "task.output",
            Method::GET,
            "/api/v1/tasks/{id}/output",
            Access::Viewer,
            "Give the output of an attempt, or follow it",
        )
        .answers_with(
            200,
            "The bytes kept, in order of arrival. `Matins-Dropped-Bytes` tells \
                 how many are missing after byte `Matins-Gap-At`.",
            Content::Bytes,
        )
        .answers_with(
            200,
            "With `follow=1`: events `output` with `{\"chunk\", \"encoding\": \
                 \"utf-8\"|\"base64\", \"stream\"?: \"stderr\"}`, `lagged` with \
                 `{\"missed\"}` chunks, and one `end` with `{\"state\", \"attempt\", \"dropped_bytes\"}`.",
            Content::Events,
        )
        .fails(&[Code::NotFound, Code::RateLimited])
        .by(output::output),
        operation(
            "task.why",
            Method::GET,
            "/api/v1/tasks/{id}/why",
            Access::Viewer,
            "Tell why a task is where it is",
        )
        .answers::<WhyView<'_>>(200, "The first thing that has to change.")
        .fails(&[Code::NotFound])
        .by(why),
    ];
    taken_in_and_shown.into_iter().chain(acts()).collect()
}

/// What people do to a task.
fn acts() -> Vec<Operation> {
    vec![
        operation(
            "task.cancel",
            Method::POST,
            "/api/v1/tasks/{id}/cancel",
            Access::Operator,
            "Cancel a task",
        )
        .answers::<TaskView<'_>>(200, "It was pending and is cancelled.")
        .answers::<TaskView<'_>>(202, "It is running; its worker has been told to end it.")
        .fails(&[Code::NotFound, Code::WrongState])
        .by(cancel),
        operation(
            "task.retry",
            Method::POST,
            "/api/v1/tasks/{id}/retry",
            Access::Operator,
            "Run a waiting task now, or replay a failed one",
        )
        .answers::<TaskView<'_>>(
            200,
            "It is pending. With `deduplicated: true`: it stays failed, its key \
                 belongs to the task in the answer.",
        )
        .fails(&[Code::NotFound, Code::WrongState])
        .by(retry),
        operation(
            "task.rerun",
            Method::POST,
            "/api/v1/tasks/{id}/rerun",
            Access::Operator,
            "Enqueue a copy of a finished task",
        )
        .answers::<TaskView<'_>>(201, "The copy.")
        .answers::<Existing>(200, "Its key is taken: the task that has it.")
        .fails(&[Code::NotFound, Code::WrongState, Code::StoreFull])
        .by(rerun),
    ]
}

/// How much of a task its enqueuer may see.
pub(super) fn sight(caller: &Caller) -> Sight<'_> {
    match caller.role {
        Role::Enqueue => Sight::Own(&caller.who),
        _ => Sight::Full,
    }
}

/// 201 for a new task, 200 for one that was there.
pub(super) fn status_of(answer: &Answer) -> u16 {
    if answer.deduplicated || answer.replaced { 200 } else { 201 }
}

fn answered(api: &Api, caller: &Caller, answer: &Answer) -> Result<Response> {
    let view = AnswerView { answer, eye: &api.eye(caller), sight: sight(caller) };
    json(status_of(answer), &view)
}

fn task(api: &Api, caller: &Caller, status: u16, task: &Task) -> Result<Response> {
    json(status, &TaskView::new(task, &api.eye(caller)))
}

async fn enqueue(api: Api, call: Call<NoQuery, Json<EnqueueBody>>) -> Result<Response> {
    let request = EnqueueRequest::from(call.body.0);
    call.caller.check_enqueue(&request.kind)?;
    let answer = api.client().enqueue(request, &call.caller.who).await?;
    answered(&api, &call.caller, &answer)
}

async fn list(api: Api, call: Call<TaskQuery, Nothing>) -> Result<Response> {
    let page = page(call.query.limit, call.query.cursor.as_ref())?;
    let query = call.query;
    let filter = TaskFilter {
        states: query.state,
        kind: query.kind,
        pool: query.pool,
        tag: query.tag,
        schedule: query.schedule,
        execution_key: query.execution_key,
        q: query.q,
    };
    let tasks = api.client().tasks(&filter, &page).await?;
    json(200, &TaskList::new(&tasks, &api.eye(&call.caller)))
}

async fn show(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    let client = api.client();
    let task = client.task(call.task_id()?).await?;
    let attempts = client.attempts(task.id).await?;
    json(
        200,
        &TaskDetail {
            task: TaskView::new(&task, &api.eye(&call.caller)),
            attempts: attempts.iter().map(AttemptView::from).collect(),
        },
    )
}

async fn why(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    let why = api.client().why(call.task_id()?).await?;
    json(200, &WhyView::from(&why))
}

async fn cancel(api: Api, call: Call<NoQuery, Maybe<CancelBody>>) -> Result<Response> {
    let id = call.task_id()?;
    let reason = call.body.0.reason;
    let answers = api.client().cancel(&[id], &call.caller.who, reason).await?;
    match answers.into_iter().next() {
        Some(Cancelled::Done(cancelled)) => task(&api, &call.caller, 200, &cancelled),
        Some(Cancelled::Requested(running)) => task(&api, &call.caller, 202, &running),
        Some(Cancelled::AlreadyEnded(ended)) => Err(wrong_state(&ended, "it has ended")),
        Some(Cancelled::NotFound) | None => Err(Problem::not_found("task", &id.to_string())),
    }
}

fn wrong_state(task: &Task, why: &str) -> Problem {
    let detail = format!("task {} is {}: {why}", task.id, task.state);
    let problem = Problem::new(Code::WrongState, detail);
    match task.state {
        State::Completed | State::Cancelled => problem.hint(format!("matins rerun {}", task.id)),
        State::Failed => problem.hint(format!("matins dead dismiss {} --reason …", task.id)),
        State::Pending | State::Running => problem.hint(format!("matins why {}", task.id)),
    }
}

async fn retry(api: Api, call: Call<NoQuery, Maybe<RetryBody>>) -> Result<Response> {
    let id = call.task_id()?;
    let RetryBody { payload, reason } = call.body.0;
    if payload.is_some() {
        call.caller.check_edit(&api.client().task(id).await?.kind)?;
    }
    let answers = api.client().retry(&[id], payload, &call.caller.who, reason).await?;
    match answers.into_iter().next() {
        Some(Retried::Replayed(pending) | Retried::DueNow(pending)) => {
            task(&api, &call.caller, 200, &pending)
        }
        Some(Retried::Deduplicated(holder)) => {
            task(&api, &call.caller, 200, &Task { deduplicated: true, ..*holder })
        }
        Some(Retried::WrongState(other)) => {
            Err(wrong_state(&other, "only a waiting or failed task can be retried"))
        }
        Some(Retried::NotFound) | None => Err(Problem::not_found("task", &id.to_string())),
    }
}

async fn rerun(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    let answer = api.client().rerun(call.task_id()?, &call.caller.who).await?;
    answered(&api, &call.caller, &answer)
}
