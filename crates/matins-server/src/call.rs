//! One request on its way to an operation: its parameters, query and body, read and checked in
//! that order. Nothing here knows what any operation does.

pub(crate) mod body;
pub(crate) mod query;
pub(crate) mod strict;

use std::str::FromStr;

use axum::http::request::Parts;
use matins_core::page::{PAGE_MAX, PageRequest};
use matins_core::task::TaskId;
use serde::de::DeserializeOwned;

use crate::auth::Caller;
use crate::problem::{Code, Problem, Result};

use self::strict::Refusal;

/// A request that may be carried out.
pub(crate) struct Call<Q, B> {
    pub(crate) caller: Caller,
    pub(crate) query: Q,
    pub(crate) body: B,
    params: Vec<(&'static str, String)>,
    /// The connection it came over, if it came over one.
    pub(crate) connection: Option<crate::serve::Connection>,
}

impl<Q, B> Call<Q, B> {
    pub(crate) fn new(caller: Caller, params: Params, query: Q, body: B, parts: &Parts) -> Self {
        let connection = parts.extensions.get().cloned();
        Self { caller, query, body, params: params.0, connection }
    }

    /// A named part of the path.
    pub(crate) fn param(&self, name: &str) -> &str {
        let found = self.params.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// A task's id in the path. What is no id names no task.
    pub(crate) fn task_id(&self) -> Result<TaskId> {
        let text = self.param("id");
        TaskId::from_str(text).map_err(|_| Problem::not_found("task", &shown(text)))
    }

    pub(crate) fn who(&self) -> &str {
        &self.caller.who
    }
}

/// A value of the path as a text for people.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

/// The named parts of a path.
pub(crate) struct Params(Vec<(&'static str, String)>);

impl Params {
    /// Reads `/tasks/0190…/cancel` by `/tasks/{id}/cancel`.
    pub(crate) fn read(pattern: &'static str, path: &str) -> Result<Self> {
        let mut params = Vec::new();
        for (part, given) in pattern.split('/').zip(path.split('/')) {
            let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
                continue;
            };
            let value = query::decode(given, false)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| Problem::new(Code::NotFound, format!("{name} cannot be read")))?;
            params.push((name, value));
        }
        Ok(Self(params))
    }
}

/// Reads the query of a request.
pub(crate) fn read_query<Q: DeserializeOwned>(parts: &Parts) -> Result<Q> {
    Ok(query::read(parts.uri.query().unwrap_or_default())?)
}

/// What part of a list is asked for.
pub(crate) fn page(limit: Option<usize>, cursor: Option<&String>) -> Result<PageRequest> {
    let default = PageRequest::default();
    let limit = limit.unwrap_or(default.limit);
    if limit == 0 || limit > PAGE_MAX {
        return Err(Problem::field("limit", format!("expected 1 to {PAGE_MAX}, got {limit}")));
    }
    Ok(PageRequest { limit, cursor: cursor.cloned() })
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let field = match refusal.field.as_str() {
            "" => "body",
            field => field,
        };
        let mut problem = Self::field(field, &refusal.message);
        problem.hint = refusal.hint;
        problem
    }
}
