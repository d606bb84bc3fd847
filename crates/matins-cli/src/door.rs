//! The one way from a command to Matins: a request of the HTTP API, sent to a server or
//! answered in this process by the same router over the opened store. So every command exists
//! once, and `--json` prints the same bytes whichever way was taken.

mod http;
mod local;

use std::fmt::Write as _;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{Exit, Failure, Result};

pub(crate) use http::HttpDoor;
pub(crate) use local::LocalDoor;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Put,
    Post,
    Delete,
}

impl Method {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// One request of the API.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: Method,
    /// With its query, percent-encoded.
    path: String,
    body: Option<String>,
    /// It brings work in, so it makes a store where there is none.
    makes_store: bool,
}

impl Request {
    /// `parts` follow `/api/v1`; each is one segment of the path, whatever it contains.
    pub(crate) fn new(method: Method, parts: &[&str]) -> Self {
        let mut path = "/api/v1".to_owned();
        for part in parts {
            path.push('/');
            encode(part, &mut path);
        }
        let makes_store = matches!(
            (method, parts),
            (Method::Post, ["tasks"] | ["tasks", "batch"]) | (Method::Put, ["schedules", _])
        );
        Self { method, path, body: None, makes_store }
    }

    pub(crate) fn get(parts: &[&str]) -> Self {
        Self::new(Method::Get, parts)
    }

    pub(crate) fn post(parts: &[&str]) -> Self {
        Self::new(Method::Post, parts)
    }

    /// Outside `/api/v1`.
    pub(crate) fn plain(path: &str) -> Self {
        let path = path.to_owned();
        Self { method: Method::Get, path, body: None, makes_store: false }
    }

    pub(crate) fn query(mut self, name: &str, value: Option<impl AsRef<str>>) -> Self {
        if let Some(value) = value {
            self.path.push(if self.path.contains('?') { '&' } else { '?' });
            encode(name, &mut self.path);
            self.path.push('=');
            encode(value.as_ref(), &mut self.path);
        }
        self
    }

    pub(crate) fn body(mut self, body: &impl Serialize) -> Result<Self> {
        let text = serde_json::to_string(body);
        self.body = Some(text.map_err(|e| Failure::failed(format!("cannot write JSON: {e}")))?);
        Ok(self)
    }
}

fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// What came back, whatever it says.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

const NEEDS_TOKEN: &str = "set MATINS_TOKEN to a token of that server: its admin token lies in \
                           the file token of its data_dir (.matins/token), others are made by \
                           matins token create";

/// The parts of a problem document that are shown.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Problem {
    detail: String,
    hint: Option<String>,
}

impl Answer {
    /// Prints exactly what was answered.
    pub(crate) fn print(&self) -> Result<()> {
        if self.body.is_empty() {
            return Ok(());
        }
        crate::output::line(&String::from_utf8_lossy(&self.body))
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Failure::failed(format!("the answer is not what this version expects: {error}"))
                .hint("are client and server of the same version? matins version")
        })
    }

    /// The answer, or the failure that its status is.
    pub(crate) fn accepted(self) -> Result<Self> {
        if self.status < 400 {
            return Ok(self);
        }
        let problem: Problem = serde_json::from_slice(&self.body).unwrap_or_default();
        let exit = match self.status {
            400 | 413 | 415 | 422 => Exit::Usage,
            404 => Exit::NotFound,
            502..=504 => Exit::Unreachable,
            _ => Exit::Failed,
        };
        let message = if problem.detail.is_empty() {
            format!("the server answered with status {}", self.status)
        } else {
            problem.detail
        };
        let mut failure = Failure::new(exit, message);
        // What the server says is about its protocol; this is what a person at a shell can do.
        let token = (self.status == 401).then(|| NEEDS_TOKEN.to_owned());
        failure.hint = token.or(problem.hint);
        Err(failure)
    }
}

/// Bytes as they come, for output that is followed.
pub(crate) type Chunks = BoxStream<'static, Result<Bytes>>;

pub(crate) enum Door {
    Http(HttpDoor),
    Local(Box<LocalDoor>),
}

impl Door {
    /// The answer to a request, also one that refuses it.
    pub(crate) async fn ask(&self, request: Request) -> Result<Answer> {
        match self {
            Self::Http(door) => door.ask(request).await,
            Self::Local(door) => door.ask(request).await,
        }
    }

    pub(crate) async fn stream(&self, request: Request) -> Result<(u16, Chunks)> {
        match self {
            Self::Http(door) => door.stream(request).await,
            Self::Local(door) => door.stream(request).await,
        }
    }

    /// Whether this is a store that nobody works on.
    pub(crate) async fn has_no_server(&self) -> bool {
        match self {
            Self::Http(_) => false,
            Self::Local(door) => door.has_no_server().await,
        }
    }

    /// What names the store of this machine, while there is none.
    pub(crate) fn missing(&self) -> Option<&crate::config::Config> {
        match self {
            Self::Http(_) => None,
            Self::Local(door) => door.missing(),
        }
    }

    /// Carries an operation on where no server does. How long to wait before looking again.
    pub(crate) async fn step_operation(&self, id: &str) -> Result<std::time::Duration> {
        match self {
            Self::Http(_) => Ok(std::time::Duration::from_millis(200)),
            Self::Local(door) => door.step_operation(id).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_kind_are_one_segment() {
        let request = Request::get(&["schedules", "a/b c?é"]).query("q", Some("x&y"));
        assert_eq!(request.path, "/api/v1/schedules/a%2Fb%20c%3F%C3%A9?q=x%26y");
        let request = request.query("none", None::<&str>).query("n", Some("1"));
        assert!(request.path.ends_with("?q=x%26y&n=1"));
    }
}
