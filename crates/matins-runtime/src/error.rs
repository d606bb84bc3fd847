//! Why an act was refused: a stable code, a text for people, and what to do.

use matins_core::request::FieldError;
use matins_core::schedule::SpecError;
use matins_core::store::StoreError;
use matins_core::task::Task;

#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(transparent)]
    Spec(SpecError),
    #[error("the key is taken by task {} ({})", .0.id, .0.state)]
    DuplicateKey(Box<Task>),
    #[error("there is no {what} {id}")]
    NotFound { what: &'static str, id: String },
    #[error("{message}")]
    WrongState { message: String, hint: Option<String> },
    #[error("schedule {name} comes from a file: edit the file and reload")]
    ManagedByFile { name: String },
    #[error("{message}")]
    Forbidden { message: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ClientError {
    pub fn not_found(what: &'static str, id: impl Into<String>) -> Self {
        Self::NotFound { what, id: id.into() }
    }

    /// The code on the wire.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Field(error) if error.too_large => "too_large",
            Self::Field(_) | Self::Store(StoreError::Invalid { .. }) => "invalid_field",
            Self::Spec(error) => error.code,
            Self::DuplicateKey(_) => "duplicate_key",
            Self::NotFound { .. } => "not_found",
            Self::WrongState { .. } => "wrong_state",
            Self::ManagedByFile { .. } => "managed_by_file",
            Self::Forbidden { .. } => "forbidden",
            Self::Store(StoreError::Full(_)) => "store_full",
            Self::Store(StoreError::NotDurable(_)) => "redis_not_durable",
            Self::Store(_) => "store_unavailable",
        }
    }

    /// The HTTP status that belongs to the code.
    pub fn status(&self) -> u16 {
        match self.code() {
            "too_large" => 413,
            "duplicate_key" | "wrong_state" | "managed_by_file" => 409,
            "not_found" => 404,
            "forbidden" => 403,
            "store_full" => 507,
            "store_unavailable" | "redis_not_durable" => 503,
            _ => 422,
        }
    }

    /// The field at fault, if one is.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Field(error) => Some(&error.field),
            Self::Spec(error) => Some(&error.field),
            Self::Store(StoreError::Invalid { field, .. }) => Some(field),
            _ => None,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::WrongState { hint, .. } => hint.clone(),
            Self::DuplicateKey(task) => Some(format!("matins show {}", task.id)),
            Self::Store(StoreError::Full(_)) => {
                Some("free some room on the file system of the store; nothing was lost".to_owned())
            }
            _ => None,
        }
    }
}
