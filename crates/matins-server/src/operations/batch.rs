//! Many tasks in one request: a JSON array, or one JSON object per line. A line that cannot be
//! read is refused alone; the others are stored in one commit.

use axum::body::Body;
use axum::http::request::Parts;
use axum::response::Response;
use matins_core::limits::Limits;
use matins_core::request::EnqueueRequest;
use matins_runtime::client::Answer;
use schemars::SchemaGenerator;
use serde::Serialize;

use super::NoQuery;
use super::tasks::{sight, status_of};
use crate::api::{Api, json};
use crate::call::Call;
use crate::call::body::{Incoming, Input, Limit, Shape, decode, parse};
use crate::gate::{JSON, NDJSON, content_type};
use crate::problem::{Code, Problem, ProblemView, Result};
use crate::wire::task::{AnswerView, EnqueueBody};

/// The items of a batch, each read or refused by itself.
pub(super) struct Batch(Vec<Result<EnqueueRequest>>);

impl Input for Batch {
    fn shape(generator: &mut SchemaGenerator) -> Option<Shape> {
        let array = generator.subschema_for::<Vec<EnqueueBody>>();
        let line = generator.subschema_for::<EnqueueBody>();
        Some(Shape { required: true, content: vec![(JSON, array), (NDJSON, line)] })
    }

    async fn read(parts: &Parts, body: Body, limits: &Limits) -> Result<Self> {
        let kind = content_type(&parts.headers, &[JSON, NDJSON])?;
        let incoming = Incoming::new(parts, body, Limit::batch(limits)).await?;
        match kind {
            Some(NDJSON) => read_lines(incoming, limits).await,
            _ => read_array(&incoming.all().await?, limits),
        }
    }
}

fn read_array(bytes: &[u8], limits: &Limits) -> Result<Batch> {
    if bytes.is_empty() {
        return Err(Problem::new(Code::InvalidJson, "a body is required: a JSON array of tasks"));
    }
    let items = parse(bytes)?.items()?;
    check_count(items.len(), limits)?;
    let read = |item: crate::call::strict::Value<'_>| -> Result<EnqueueRequest> {
        Ok(item.decode::<EnqueueBody>()?.into())
    };
    Ok(Batch(items.into_iter().map(read).collect()))
}

/// Reads lines while they come in: what is kept is the tasks, not the text.
async fn read_lines(mut incoming: Incoming, limits: &Limits) -> Result<Batch> {
    let mut items = Vec::new();
    let mut line: Vec<u8> = Vec::new();
    while let Some(chunk) = incoming.next().await? {
        let mut rest = &chunk[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            read_line(&line, &mut items);
            line.clear();
            check_count(items.len(), limits)?;
        }
        line.extend_from_slice(rest);
    }
    read_line(&line, &mut items);
    check_count(items.len(), limits)?;
    Ok(Batch(items))
}

fn read_line(line: &[u8], items: &mut Vec<Result<EnqueueRequest>>) {
    if !line.iter().all(u8::is_ascii_whitespace) {
        items.push(decode::<EnqueueBody>(line).map(EnqueueRequest::from));
    }
}

fn check_count(count: usize, limits: &Limits) -> Result<()> {
    if count <= limits.batch_items {
        return Ok(());
    }
    let detail = format!("the batch has more than {} items: limit batch_items", limits.batch_items);
    Err(Problem::new(Code::TooLarge, detail))
}

#[derive(Serialize)]
struct Item<'a> {
    index: usize,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<AnswerView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ProblemView<'a>>,
}

#[derive(Serialize)]
struct Items<'a> {
    items: Vec<Item<'a>>,
}

pub(super) async fn enqueue_many(api: Api, call: Call<NoQuery, Batch>) -> Result<Response> {
    let client = api.client();
    let mut accepted = Vec::new();
    let mut slots: Vec<Result<()>> = Vec::new();
    for item in call.body.0 {
        let checked = item.and_then(|request| {
            call.caller.check_enqueue(&request.kind)?;
            Ok(request)
        });
        slots.push(checked.map(|request| accepted.push(Ok(request))));
    }
    let mut stored = client.enqueue_many(accepted, &call.caller.who).await?.into_iter();
    let answers: Vec<Result<Answer>> = slots
        .into_iter()
        .map(|slot| {
            slot?;
            let missing = || Problem::new(Code::Internal, "the store gave no answer for the item");
            Ok(stored.next().ok_or_else(missing)??)
        })
        .collect();
    let eye = api.eye(&call.caller);
    let sight = sight(&call.caller);
    let items = answers.iter().enumerate().map(|(index, answer)| match answer {
        Ok(answer) => {
            let view = AnswerView { answer, eye: &eye, sight };
            Item { index, status: status_of(answer), task: Some(view), error: None }
        }
        Err(problem) => {
            let error = Some(problem.view());
            Item { index, status: problem.code.status(), task: None, error }
        }
    });
    json(200, &Items { items: items.collect() })
}
