//! What a refused request is answered: an RFC 9457 problem document with a stable code.
//!
//! Must never carry a secret, nor the text of a panic.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use matins_core::request::FieldError;
use matins_core::store::StoreError;
use matins_core::task::TaskId;
use matins_runtime::ClientError;
use schemars::JsonSchema;
use serde::Serialize;

/// The stable words that scripts may branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    InvalidJson,
    InvalidField,
    TooLarge,
    DuplicateKey,
    NotFound,
    WrongState,
    Fenced,
    Unauthorized,
    Forbidden,
    ManagedByFile,
    CronInvalid,
    NeverFires,
    UnknownTimezone,
    StoreUnavailable,
    StoreFull,
    RedisNotDurable,
    RateLimited,
    MethodNotAllowed,
    UnsupportedMediaType,
    RequestTimeout,
    Internal,
}

impl Code {
    pub const ALL: [Self; 21] = [
        Self::InvalidJson,
        Self::InvalidField,
        Self::TooLarge,
        Self::DuplicateKey,
        Self::NotFound,
        Self::WrongState,
        Self::Fenced,
        Self::Unauthorized,
        Self::Forbidden,
        Self::ManagedByFile,
        Self::CronInvalid,
        Self::NeverFires,
        Self::UnknownTimezone,
        Self::StoreUnavailable,
        Self::StoreFull,
        Self::RedisNotDurable,
        Self::RateLimited,
        Self::MethodNotAllowed,
        Self::UnsupportedMediaType,
        Self::RequestTimeout,
        Self::Internal,
    ];

    pub const fn as_str(self) -> &'static str {
        self.describe().0
    }

    pub const fn status(self) -> u16 {
        self.describe().1
    }

    pub const fn title(self) -> &'static str {
        self.describe().2
    }

    const fn describe(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::InvalidJson => ("invalid_json", 400, "The body is not JSON"),
            Self::InvalidField => ("invalid_field", 422, "A field cannot be accepted"),
            Self::TooLarge => ("too_large", 413, "A named limit is exceeded"),
            Self::DuplicateKey => ("duplicate_key", 409, "The key is taken"),
            Self::NotFound => ("not_found", 404, "There is no such thing"),
            Self::WrongState => ("wrong_state", 409, "Its state does not allow that"),
            Self::Fenced => ("fenced", 409, "The claim no longer stands"),
            Self::Unauthorized => ("unauthorized", 401, "A valid token is needed"),
            Self::Forbidden => ("forbidden", 403, "That is not allowed"),
            Self::ManagedByFile => ("managed_by_file", 409, "A file manages it"),
            Self::CronInvalid => ("cron_invalid", 422, "The expression is not valid"),
            Self::NeverFires => ("never_fires", 422, "The schedule can never fire"),
            Self::UnknownTimezone => ("unknown_timezone", 422, "The time zone is not known"),
            Self::StoreUnavailable => ("store_unavailable", 503, "The store cannot be reached"),
            Self::StoreFull => ("store_full", 507, "The store has no room"),
            Self::RedisNotDurable => {
                ("redis_not_durable", 503, "Nothing here could keep it until the store is back")
            }
            Self::RateLimited => ("rate_limited", 429, "Too many at once"),
            Self::MethodNotAllowed => ("method_not_allowed", 405, "Not with this method"),
            Self::UnsupportedMediaType => {
                ("unsupported_media_type", 415, "Another content type is expected")
            }
            Self::RequestTimeout => ("request_timeout", 408, "The body came too slowly"),
            Self::Internal => ("internal", 500, "Something broke inside Matins"),
        }
    }

    fn from_word(word: &str) -> Self {
        Self::ALL.into_iter().find(|code| code.as_str() == word).unwrap_or(Self::Internal)
    }
}

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub code: Code,
    /// For people: what was wrong with this very request.
    pub detail: String,
    /// The field at fault, as a path such as `items[3].fence`.
    pub field: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// The task that is in the way.
    pub task_id: Option<TaskId>,
    /// When it is worth asking again.
    pub retry_after: Option<Duration>,
}

pub type Result<T> = std::result::Result<T, Problem>;

/// The document on the wire.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub struct ProblemView<'a> {
    /// `urn:matins:problem:` and the code.
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    /// Stable, for scripts to branch on.
    code: &'static str,
    /// The field at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    /// The task that is in the way (`duplicate_key`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    task_id: Option<TaskId>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after = match code {
            Code::StoreUnavailable | Code::RedisNotDurable => Some(Duration::from_secs(1)),
            Code::RateLimited => Some(Duration::from_secs(5)),
            _ => None,
        };
        Self { code, detail: detail.into(), field: None, hint: None, task_id: None, retry_after }
    }

    pub fn field(field: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let field = field.into();
        Self {
            field: Some(field.clone()),
            ..Self::new(Code::InvalidField, format!("{field}: {message}"))
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn not_found(what: &str, id: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {what} {id}"))
    }

    pub fn view(&self) -> ProblemView<'_> {
        ProblemView {
            r#type: format!("urn:matins:problem:{}", self.code.as_str()),
            title: self.code.title(),
            status: self.code.status(),
            detail: &self.detail,
            code: self.code.as_str(),
            field: self.field.as_deref(),
            hint: self.hint.as_deref(),
            task_id: self.task_id,
        }
    }
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        let code = Code::from_word(error.code());
        let mut problem = Self::new(code, error.to_string());
        problem.field = error.field().map(str::to_owned);
        problem.hint = error.hint();
        if let ClientError::DuplicateKey(task) = &error {
            problem.task_id = Some(task.id);
        }
        problem
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        ClientError::from(error).into()
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        ClientError::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(code = self.code.as_str(), detail = self.detail, "request failed");
        }
        let body = serde_json::to_vec(&self.view()).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        if self.code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use matins_core::cron::{Timetable, Zone};

    #[test]
    fn what_may_work_later_says_when() {
        for (code, wait) in [
            (Code::StoreUnavailable, Some("1")),
            (Code::RateLimited, Some("5")),
            (Code::NotFound, None),
        ] {
            let response = Problem::new(code, "x").into_response();
            assert_eq!(response.status().as_u16(), code.status());
            let header = response.headers().get("retry-after").map(|value| value.to_str().unwrap());
            assert_eq!(header, wait);
        }
    }

    #[test]
    fn every_code_of_the_client_keeps_its_word_and_status() {
        let task = matins_core::store::LedgerEntry {
            kind: "t".into(),
            execution_key: "k".into(),
            task_id: TaskId(uuid::Uuid::nil()),
            state: matins_core::State::Running,
            result: None,
            at: jiff::Timestamp::UNIX_EPOCH,
        };
        let errors = [
            ClientError::Field(FieldError::new("a", "b")),
            ClientError::Field(FieldError::too_large("a", "b", 1, 2)),
            ClientError::Spec(Timetable::parse("* *").unwrap_err().into()),
            ClientError::Spec(Timetable::parse("0 0 30 2 *").unwrap_err().into()),
            ClientError::Spec(Zone::parse("CEST").unwrap_err().into()),
            ClientError::DuplicateKey(Box::new(task.task())),
            ClientError::not_found("task", "1"),
            ClientError::WrongState { message: String::new(), hint: None },
            ClientError::ManagedByFile { name: String::new() },
            ClientError::Forbidden { message: String::new() },
            ClientError::Store(StoreError::Unavailable(String::new())),
            ClientError::Store(StoreError::Full(String::new())),
            ClientError::Store(StoreError::NotDurable(String::new())),
            ClientError::Store(StoreError::Broken(String::new())),
            ClientError::Store(StoreError::Invalid { field: "cursor", message: String::new() }),
        ];
        for error in errors {
            let problem = Problem::from(error.clone());
            assert_eq!(problem.code.as_str(), error.code(), "{error:?}");
            assert_eq!(problem.code.status(), error.status(), "{error:?}");
        }
    }
}
