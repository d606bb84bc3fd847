//! What may be asked for: a request is checked against the limits and completed with defaults
//! here, whichever front door it came through.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::Json;
use crate::duration::Timeout;
use crate::lifecycle::later;
use crate::limits::{Limits, NAME_BYTES_MAX, PRIORITY_MAX, RETRIES_MAX, TAG_BYTES_MAX, TAGS_MAX};
use crate::retry::Backoff;
use crate::task::{Name, NewTask, OnDuplicate, TaskId};

/// A field that cannot be accepted: which one, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    pub field: String,
    pub message: String,
    /// The value is well-formed but exceeds a named limit.
    pub too_large: bool,
}

impl FieldError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into(), too_large: false }
    }

    pub fn too_large(field: impl Into<String>, limit: &str, max: usize, got: usize) -> Self {
        Self {
            field: field.into(),
            message: format!("is {got} bytes long; the limit {limit} is {max}"),
            too_large: true,
        }
    }
}

/// A request for a task, as every front door words it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EnqueueRequest {
    pub kind: String,
    pub payload: Option<Json>,
    pub id: Option<TaskId>,
    pub execution_key: Option<String>,
    pub run_at: Option<Timestamp>,
    pub delay: Option<Duration>,
    pub expires_at: Option<Timestamp>,
    pub pool: Option<String>,
    pub priority: Option<i16>,
    pub max_retries: Option<u32>,
    pub backoff: Option<Backoff>,
    pub timeout: Option<Timeout>,
    pub concurrency_key: Option<String>,
    pub tags: Vec<String>,
    pub on_duplicate: OnDuplicate,
}

impl EnqueueRequest {
    pub fn new(kind: impl Into<String>, payload: Json) -> Self {
        Self { kind: kind.into(), payload: Some(payload), ..Self::default() }
    }
}

/// What a type brings to a request that leaves it open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeDefaults {
    pub pool: Name,
    /// JSON pointer that yields the `concurrency_key`.
    pub concurrency_key: Option<String>,
}

impl EnqueueRequest {
    /// Checks every field and fills in the defaults. `fresh` is used when the client gave no id.
    pub fn resolve(
        self,
        limits: &Limits,
        defaults: &TypeDefaults,
        fresh: TaskId,
        created_by: Name,
        now: Timestamp,
    ) -> Result<NewTask, FieldError> {
        check_name("type", &self.kind)?;
        let payload = self.payload.unwrap_or_else(Json::null);
        check_payload(&payload, limits)?;
        let execution_key = self
            .execution_key
            .map(|key| check_key("execution_key", &key, limits).map(|()| Arc::from(key)))
            .transpose()?;
        if self.id.is_some() && execution_key.is_some() {
            return Err(FieldError::new(
                "id",
                "cannot be combined with execution_key: the key already makes a repeat harmless",
            ));
        }
        let run_at = match (self.run_at, self.delay) {
            (Some(_), Some(_)) => {
                return Err(FieldError::new("delay", "cannot be combined with run_at"));
            }
            (Some(at), None) => at,
            (None, Some(delay)) => later(now, delay),
            (None, None) => now,
        };
        if self.expires_at.is_some_and(|at| at <= run_at) {
            return Err(FieldError::new("expires_at", "must lie after run_at"));
        }
        let priority = self.priority.unwrap_or(0);
        check_priority(priority)?;
        check_retry(self.max_retries, self.backoff.as_ref())?;
        check_tags(&self.tags)?;
        let pool = match self.pool {
            Some(pool) => {
                check_name("pool", &pool)?;
                pool.into()
            }
            None => defaults.pool.clone(),
        };
        let concurrency_key = match self.concurrency_key {
            Some(key) => {
                check_key("concurrency_key", &key, limits)?;
                Some(Arc::from(key))
            }
            None => match &defaults.concurrency_key {
                Some(pointer) => key_at(&payload, pointer, limits)?,
                None => None,
            },
        };
        Ok(NewTask {
            id: self.id.unwrap_or(fresh),
            client_id: self.id.is_some(),
            kind: self.kind.into(),
            payload,
            pool,
            priority,
            run_at,
            expires_at: self.expires_at,
            execution_key,
            on_duplicate: self.on_duplicate,
            concurrency_key,
            tags: self.tags,
            max_retries: self.max_retries,
            backoff: self.backoff,
            timeout: self.timeout,
            origin: None,
            held: false,
            created_by,
        })
    }
}

/// Names of types, pools, schedules and workers: shown on terminals and in labels.
pub fn check_name(field: &str, name: &str) -> Result<(), FieldError> {
    if name.is_empty() {
        return Err(FieldError::new(field, "must not be empty"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(FieldError::too_large(field, "name_bytes", NAME_BYTES_MAX, name.len()));
    }
    if name.contains(|c: char| c.is_control()) {
        return Err(FieldError::new(field, "must not contain control characters"));
    }
    if name.trim() != name {
        return Err(FieldError::new(field, "must not begin or end with white space"));
    }
    Ok(())
}

pub fn check_payload(payload: &Json, limits: &Limits) -> Result<(), FieldError> {
    if payload.byte_len() > limits.payload_bytes {
        let max = limits.payload_bytes;
        return Err(FieldError::too_large("payload", "payload_bytes", max, payload.byte_len()));
    }
    Ok(())
}

pub fn check_key(field: &str, key: &str, limits: &Limits) -> Result<(), FieldError> {
    if key.is_empty() {
        return Err(FieldError::new(field, "must not be empty; leave it out to have no key"));
    }
    if key.len() > limits.key_bytes {
        return Err(FieldError::too_large(field, "key_bytes", limits.key_bytes, key.len()));
    }
    if key.contains('\0') {
        return Err(FieldError::new(field, "must not contain NUL"));
    }
    Ok(())
}

pub fn check_priority(priority: i16) -> Result<(), FieldError> {
    if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority) {
        let message = format!("expected -{PRIORITY_MAX} to {PRIORITY_MAX}, got {priority}");
        return Err(FieldError::new("priority", message));
    }
    Ok(())
}

fn check_retry(max_retries: Option<u32>, backoff: Option<&Backoff>) -> Result<(), FieldError> {
    if max_retries.is_some_and(|n| n > RETRIES_MAX) {
        return Err(FieldError::new("max_retries", format!("expected at most {RETRIES_MAX}")));
    }
    if let Some(Err(error)) = backoff.map(Backoff::validate) {
        let message = format!("expected {}, got {}", error.expected, error.got);
        return Err(FieldError::new(format!("backoff.{}", error.field), message));
    }
    Ok(())
}

pub fn check_tags(tags: &[String]) -> Result<(), FieldError> {
    if tags.len() > TAGS_MAX {
        return Err(FieldError::new("tags", format!("at most {TAGS_MAX}, got {}", tags.len())));
    }
    for (n, tag) in tags.iter().enumerate() {
        let field = format!("tags[{n}]");
        check_name(&field, tag)?;
        if tag.len() > TAG_BYTES_MAX {
            return Err(FieldError::too_large(field, "tag_bytes", TAG_BYTES_MAX, tag.len()));
        }
    }
    Ok(())
}

/// The concurrency key that a type's pointer finds in a payload: text as it is, numbers and
/// booleans as JSON writes them, nothing for `null`, lists, objects and what is not there.
fn key_at(payload: &Json, pointer: &str, limits: &Limits) -> Result<Option<Arc<str>>, FieldError> {
    let Ok(value) = payload.decode::<serde_json::Value>() else { return Ok(None) };
    let key = match value.pointer(pointer) {
        Some(serde_json::Value::String(text)) if !text.is_empty() => text.clone(),
        Some(value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => {
            value.to_string()
        }
        _ => return Ok(None),
    };
    check_key(&format!("payload{pointer}"), &key, limits)?;
    Ok(Some(key.into()))
}
