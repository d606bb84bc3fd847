//! Tasks that call a URL: the types of the worker's file, and the ad-hoc type `http_call`.
//!
//! ```text
//!  request (file or payload) ─▶ judge the URL ─▶ connect (addresses judged after resolution)
//!        ▲                                          │
//!        └── next hop, judged anew ◀── 3xx, while hops are left ──▶ status class, result
//! ```
//!
//! Redirects are followed here and not by the client below, because each hop is a new decision
//! about where this host may be sent. Where that is, `address` alone says.
//!
//! Must never: use a proxy that the environment names, put a header's or a secret URL's value
//! into an error, or keep more of an answer than the limits allow.

mod address;
mod client;
mod operator;
mod request;
mod response;
mod retry_after;

use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use matins_core::Json;
use matins_core::executor::{Executor, Finished, Run, StopReason};
use matins_core::lifecycle::Outcome;
use matins_core::limits::Limits;
use matins_core::task::{ErrorClass, Task, TaskError};
use reqwest::{StatusCode, Url, header};

use super::{AddressPolicy, HttpConfig};
use crate::clock::Clock;
use crate::process::Masker;
use address::Refused;
use client::Clients;
use request::{Call, Template};

pub(crate) use operator::OperatorCalls;
pub use request::HttpConfigError;

/// What calls of all types share on a node.
#[derive(Clone)]
pub struct HttpHost {
    clients: Clients,
    policy: Arc<AddressPolicy>,
    limits: Limits,
    clock: Arc<dyn Clock>,
}

/// The HTTP client cannot be made, for want of certificates for instance.
#[derive(Debug, thiserror::Error)]
#[error("cannot make an HTTP client: {0}")]
pub struct HttpHostError(String);

impl HttpHost {
    pub fn new(
        policy: AddressPolicy,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, HttpHostError> {
        let policy = Arc::new(policy);
        let clients = Clients::new(&policy, None).map_err(HttpHostError)?;
        Ok(Self { clients, policy, limits, clock })
    }
}

/// Whether a payload of the built-in type `http_call` can be called.
pub(super) fn check_payload(payload: &Json) -> Result<(), String> {
    Call::from_payload(payload).map(drop)
}

/// Who wrote a URL decides how far it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The operator, in the file: private and loopback addresses too.
    Private,
    /// Anybody: public addresses, and what `http.allow` adds.
    Public,
}

enum Source {
    File(Box<Template>),
    Payload,
}

pub struct HttpExecutor {
    host: HttpHost,
    source: Source,
    redirects: u32,
}

impl HttpExecutor {
    /// A type of the worker's own file.
    pub fn of_type(mut host: HttpHost, config: &HttpConfig) -> Result<Self, HttpConfigError> {
        let template = Template::new(config)?;
        host.clients = Clients::new(&host.policy, Some(config.connect_timeout))
            .map_err(|message| HttpConfigError { field: "executor".to_owned(), message })?;
        Ok(Self { host, source: Source::File(Box::new(template)), redirects: config.redirects })
    }

    /// The built-in type `http_call`: its payload says what to call.
    pub fn ad_hoc(host: HttpHost) -> Self {
        let redirects = host.policy.redirects;
        Self { host, source: Source::Payload, redirects }
    }

    fn call(&self, task: &Task) -> Result<Call, String> {
        let mut call = match &self.source {
            Source::File(template) => template.call(&task.payload),
            Source::Payload => Call::from_payload(&task.payload)?,
        };
        let name = header::HeaderName::from_static("idempotency-key");
        let value = header::HeaderValue::try_from(idempotency_key(task));
        if let (false, Ok(value)) = (call.headers.contains_key(&name), value) {
            call.headers.insert(name, value);
        }
        Ok(call)
    }

    async fn answer(&self, mut call: Call) -> Finished {
        let mut hops = 0;
        loop {
            if let Err(refused) = address::judge_url(&call.url, call.reach, &self.host.policy) {
                return refusal(&call, hops, &refused);
            }
            let sent = self.host.clients.send(&call).await;
            let response = match sent {
                Ok(response) => response,
                Err(error) => {
                    return match client::refusal(&error) {
                        Some(refused) => refusal(&call, hops, refused),
                        None => response::broken(&call, &error),
                    };
                }
            };
            let status = response.status();
            let location = response.headers().get(header::LOCATION);
            let next = location.filter(|_| is_redirect(status)).map(|to| next_hop(&call, to));
            match next {
                Some(Ok(next)) if hops < self.redirects => {
                    hops += 1;
                    call = call.redirected(status, next);
                }
                Some(Err(message)) => return response::odd(&call, status, &message),
                Some(Ok(next)) => {
                    let mut text = format!("redirected to {}, ", shown(&next));
                    let _ = match self.redirects {
                        0 => write!(text, "and redirects are not followed"),
                        most => write!(text, "and {most} redirects have been followed"),
                    };
                    return response::odd(&call, status, &text);
                }
                None => {
                    let now = self.host.clock.now();
                    return response::finished(&call, response, &self.host.limits, now).await;
                }
            }
        }
    }
}

#[async_trait]
impl Executor for HttpExecutor {
    async fn run(&self, run: Run) -> Finished {
        let call = match self.call(&run.claimed.task) {
            Ok(call) => call,
            Err(message) => return permanent(message),
        };
        let limit = async {
            match run.timeout.limit() {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        // The connection is dropped with the future that holds it.
        let reason = tokio::select! {
            finished = self.answer(call) => return finished,
            reason = run.supervision.stopped() => reason,
            () = limit => StopReason::Timeout,
        };
        let failed = |class, text: String| TaskError::new(class, text);
        match reason {
            StopReason::Timeout => {
                let text = format!("did not end within {}", run.timeout);
                Outcome::TimedOut { error: failed(ErrorClass::Timeout, text) }
            }
            StopReason::Cancel => Outcome::Cancelled,
            StopReason::Shutdown => Outcome::Interrupted,
            StopReason::LeaseLost => {
                let text = "the claim was lost".to_owned();
                Outcome::Lost { error: failed(ErrorClass::WorkerLost, text) }
            }
        }
        .into()
    }
}

fn permanent(message: String) -> Finished {
    let error = TaskError::new(ErrorClass::Permanent, message);
    Outcome::Failed { error, permanent: true, retry_after: None }.into()
}

fn refusal(call: &Call, hops: u32, refused: &Refused) -> Finished {
    let what = if hops == 0 { "url" } else { "redirect" };
    permanent(call.masked(&format!("{what}: {refused}")))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn next_hop(call: &Call, location: &header::HeaderValue) -> Result<Url, String> {
    let text = location.to_str().map_err(|_| "redirected to an unreadable address".to_owned())?;
    call.url.join(text).map_err(|error| format!("redirected to an invalid address: {error}"))
}

/// A URL without what may be secret in it: credentials, query, fragment.
fn shown(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

/// The same over all attempts and replays of a task.
fn idempotency_key(task: &Task) -> String {
    match &task.execution_key {
        Some(key) => format!("{}/{}", percent_encoded(&task.kind), percent_encoded(key)),
        None => task.id.to_string(),
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

impl Call {
    /// A text for people without any of the call's secrets.
    fn masked(&self, text: &str) -> String {
        Masker::new(&self.secrets).mask(text)
    }
}
