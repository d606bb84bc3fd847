//! The table of everything that can be asked. Router, `OpenAPI` document and references
//! are made of it, so that none of them can know an operation that the others do not.

mod batch;
mod dead_letters;
mod node;
mod output;
mod pings;
mod pools;
mod records;
mod schedules;
mod tasks;
mod tokens;
mod workers;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::Method;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use crate::api::Api;
use crate::auth::{Access, Caller};
use crate::call::body::{Input, Shape};
use crate::call::{Call, Params, read_query};
use crate::problem::{Code, Problem, Result};

pub use schedules::preview;

type Serve = Arc<dyn Fn(Api, Request) -> BoxFuture<'static, Response> + Send + Sync>;
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What an answer is made of.
#[derive(Clone, Copy)]
pub(crate) enum Content {
    Json(SchemaOf),
    /// Server-sent events.
    Events,
    Bytes,
    Text,
    Empty,
}

/// One thing that can be asked.
pub struct Operation {
    /// Stable name, such as `task.cancel`.
    pub id: &'static str,
    pub method: Method,
    pub path: &'static str,
    pub summary: &'static str,
    pub access: Access,
    pub(crate) query: SchemaOf,
    pub(crate) body: fn(&mut SchemaGenerator) -> Option<Shape>,
    pub(crate) answers: Vec<(u16, &'static str, Content)>,
    /// Codes beside those that every operation of its kind has.
    pub codes: &'static [Code],
    pub(crate) serve: Serve,
}

/// The part of an operation that is said before its handler.
pub(crate) struct Draft {
    id: &'static str,
    method: Method,
    path: &'static str,
    summary: &'static str,
    access: Access,
    answers: Vec<(u16, &'static str, Content)>,
    codes: &'static [Code],
}

/// No query parameters.
#[derive(serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoQuery {}

pub(crate) fn operation(
    id: &'static str,
    method: Method,
    path: &'static str,
    access: Access,
    summary: &'static str,
) -> Draft {
    Draft { id, method, path, summary, access, answers: Vec::new(), codes: &[] }
}

impl Draft {
    pub(crate) fn answers<T: JsonSchema>(mut self, status: u16, what: &'static str) -> Self {
        let schema: SchemaOf = |generator| generator.subschema_for::<T>();
        self.answers.push((status, what, Content::Json(schema)));
        self
    }

    pub(crate) fn answers_with(
        mut self,
        status: u16,
        what: &'static str,
        content: Content,
    ) -> Self {
        self.answers.push((status, what, content));
        self
    }

    pub(crate) fn fails(mut self, codes: &'static [Code]) -> Self {
        self.codes = codes;
        self
    }

    /// Query and body are what the handler takes: they cannot be described otherwise.
    pub(crate) fn by<Q, B, F, Fut>(self, handler: F) -> Operation
    where
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        B: Input,
        F: Fn(Api, Call<Q, B>) -> Fut + Copy + Send + Sync + 'static,
        Fut: Future<Output = Result<Response>> + Send + 'static,
    {
        let Self { id, method, path, summary, access, answers, codes } = self;
        let serve: Serve = Arc::new(move |api, request| {
            Box::pin(async move {
                let done = async {
                    let (parts, body) = request.into_parts();
                    let caller = admit(&api, access, &parts).await?;
                    let params = Params::read(path, parts.uri.path())?;
                    let query: Q = read_query(&parts)?;
                    let limits = api.client().rules().limits;
                    let body = {
                        // A client that sends slowly may be made to give way.
                        let connection = parts.extensions.get::<crate::serve::Connection>();
                        let _waiting = connection.map(crate::serve::Connection::waiting);
                        B::read(&parts, body, &limits).await?
                    };
                    handler(api, Call::new(caller, params, query, body, &parts)).await
                };
                done.await.unwrap_or_else(Problem::into_response)
            })
        });
        Operation {
            id,
            method,
            path,
            summary,
            access,
            query: |generator| generator.subschema_for::<Q>(),
            body: B::shape,
            answers,
            codes,
            serve,
        }
    }
}

/// Who asks, if they may.
async fn admit(api: &Api, access: Access, parts: &Parts) -> Result<Caller> {
    if let Some(caller) = parts.extensions.get::<Caller>() {
        return Ok(caller.clone());
    }
    let open = match access {
        Access::Open => true,
        Access::Metrics => api.settings().open_metrics,
        _ => false,
    };
    if open {
        return Ok(Caller {
            who: "anybody".to_owned(),
            role: crate::auth::Role::Viewer,
            types: None,
        });
    }
    let Some(secret) = bearer(parts) else {
        return Err(Problem::new(Code::Unauthorized, "a token is needed")
            .hint("send Authorization: Bearer TOKEN"));
    };
    let Some(caller) = api.auth().identify(secret).await else {
        return Err(Problem::new(Code::Unauthorized, "the token is not known"));
    };
    if !access.permits(caller.role) {
        let needed = access.as_str();
        let detail =
            format!("token {} has the role {}; this needs {needed}", caller.who, caller.role);
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(caller)
}

fn bearer(parts: &Parts) -> Option<&str> {
    let mut given = parts.headers.get_all(axum::http::header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// Every operation, by subject.
pub fn table() -> Vec<Operation> {
    let subjects = [
        tasks::operations(),
        dead_letters::operations(),
        schedules::operations(),
        pools::operations(),
        workers::operations(),
        records::operations(),
        pings::operations(),
        tokens::operations(),
        node::operations(),
    ];
    subjects.into_iter().flatten().collect()
}
