//! The door to a server.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};

use super::{Answer, Chunks, Request};
use crate::failure::{Failure, Result};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the server may be silent in an answer that is not followed.
const SILENCE: Duration = Duration::from_secs(90);

#[derive(Clone)]
pub(crate) struct HttpDoor {
    client: reqwest::Client,
    base: String,
    token: Option<String>,
}

impl HttpDoor {
    /// `url` may end in a slash or in `/api/v1`.
    pub(crate) fn new(url: &str, token: Option<String>) -> Result<Self> {
        let base = url.trim_end_matches('/').trim_end_matches("/api/v1").to_owned();
        let parsed = reqwest::Url::parse(&base).ok();
        if !parsed.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
            let message = format!("the server {url:?} is no http or https URL");
            return Err(Failure::usage(message).hint("--server http://127.0.0.1:6284"));
        }
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("matins/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::failed(format!("cannot make an HTTP client: {error}")))?;
        Ok(Self { client, base, token })
    }

    async fn send(&self, request: Request) -> Result<reqwest::Response> {
        let method = reqwest::Method::from_bytes(request.method.as_str().as_bytes());
        let method = method.map_err(|error| Failure::failed(error.to_string()))?;
        let mut sent = self.client.request(method, format!("{}{}", self.base, request.path));
        if let Some(token) = &self.token {
            sent = sent.bearer_auth(token);
        }
        if let Some(body) = request.body {
            sent = sent.header("content-type", "application/json").body(body);
        }
        sent.send().await.map_err(|error| self.unreachable(&error))
    }

    pub(crate) async fn ask(&self, request: Request) -> Result<Answer> {
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        Ok(Answer { status, body })
    }

    pub(super) async fn stream(&self, request: Request) -> Result<(u16, Chunks)> {
        let base = self.base.clone();
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let chunks = response.bytes_stream().map_err(move |error| broken(&base, &error));
        Ok((status, chunks.boxed()))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        broken(&self.base, error)
            .hint("does it run? start one with matins serve, or leave out --server")
    }
}

fn broken(base: &str, error: &reqwest::Error) -> Failure {
    // The innermost cause says what a person can act on: refused, no such host, timed out.
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Failure::unreachable(format!("cannot reach the server {base}: {cause}"))
}
