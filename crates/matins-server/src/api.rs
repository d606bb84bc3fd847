//! The API as one value: what its operations need, and the router that is made of them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use matins_runtime::Client;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::catch_panic::CatchPanicLayer;

use crate::auth::{Auth, Caller};
use crate::gate::{Hosts, SAFE};
use crate::node::Node;
use crate::operations::{self, Operation};
use crate::problem::{Code, Problem, Result};
use crate::wire::Eye;

/// What the configuration decides about the front door.
#[derive(Debug, Clone)]
pub struct Settings {
    pub hosts: Hosts,
    /// `/metrics` needs no token: the server listens on loopback, or `auth.metrics: public`.
    pub open_metrics: bool,
    /// Most event and output streams at once.
    pub streams_max: usize,
    /// Most connections at once; the longest-idle one makes room for a new one.
    pub connections_max: usize,
    /// How long requests may go on after the shutdown has begun.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hosts: Hosts::default(),
            open_metrics: false,
            streams_max: 128,
            connections_max: 512,
            drain: Duration::from_secs(5),
        }
    }
}

#[derive(Clone)]
pub struct Api(Arc<Inner>);

struct Inner {
    client: Client,
    node: Arc<dyn Node>,
    auth: Auth,
    settings: Settings,
    streams: Arc<Semaphore>,
    closing: CancellationToken,
    tracker: TaskTracker,
}

impl Api {
    pub fn new(client: Client, node: Arc<dyn Node>, auth: Auth, settings: Settings) -> Self {
        Self(Arc::new(Inner {
            client,
            node,
            auth,
            streams: Arc::new(Semaphore::new(settings.streams_max)),
            settings,
            closing: CancellationToken::new(),
            tracker: TaskTracker::new(),
        }))
    }

    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// What this caller sees with, now.
    pub fn eye(&self, caller: &Caller) -> Eye {
        let client = self.client();
        Eye { rules: client.rules(), now: client.now(), secrets: caller.secrets() }
    }

    pub fn node(&self) -> &dyn Node {
        &*self.0.node
    }

    pub fn auth(&self) -> &Auth {
        &self.0.auth
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Cancelled when the front door closes: whatever waits or streams ends then.
    pub fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// Work that must not be cut off when its caller goes away.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.0.tracker
    }

    /// A place among the streams, held for as long as one lasts.
    pub(crate) fn stream_permit(&self) -> Result<tokio::sync::OwnedSemaphorePermit> {
        self.0.streams.clone().try_acquire_owned().map_err(|_| {
            let max = self.settings().streams_max;
            Problem::new(Code::RateLimited, format!("{max} streams are open, which is the most"))
        })
    }

    /// Every route of the table. In-process callers put a [`Caller`] into the extensions of
    /// their requests; the network cannot.
    pub fn router(&self) -> Router {
        let mut router = Router::new();
        for (path, methods) in routes(self, &operations::table()) {
            router = router.route(path, methods);
        }
        let router = router
            .method_not_allowed_fallback(|request: Request| async move {
                let detail = format!("{} is not possible here", request.method());
                Problem::new(Code::MethodNotAllowed, detail)
            })
            .fallback(|request: Request| async move {
                let path: String = request.uri().path().chars().take(200).collect();
                Problem::new(Code::NotFound, format!("there is nothing at {path}"))
                    .hint("the routes are listed in /api/openapi.json")
            })
            .layer(middleware::from_fn_with_state(self.clone(), gate));
        guarded(router)
    }
}

/// Turns panics into problems, and makes every answer safe to show.
pub fn guarded(router: Router) -> Router {
    router.layer(CatchPanicLayer::custom(panicked)).layer(middleware::map_response(safe))
}

/// Groups the table by path. A fixed path that a variable one would match as well takes over the
/// variable one's other methods, or a schedule named `preview` could not be reached.
fn routes(api: &Api, table: &[Operation]) -> Vec<(&'static str, MethodRouter)> {
    let mut paths: Vec<&'static str> = Vec::new();
    for operation in table {
        if !paths.contains(&operation.path) {
            paths.push(operation.path);
        }
    }
    let route = |path: &'static str| {
        let mut methods = MethodRouter::new();
        let own = table.iter().filter(|operation| operation.path == path);
        let shadowed = table.iter().filter(|operation| shadows(path, operation.path));
        let mut taken = Vec::new();
        for operation in own.chain(shadowed) {
            if taken.contains(&operation.method) {
                continue;
            }
            taken.push(operation.method.clone());
            let Ok(filter) = MethodFilter::try_from(operation.method.clone()) else { continue };
            let (api, serve) = (api.clone(), operation.serve.clone());
            methods = methods.merge(on(filter, move |request: Request| serve(api, request)));
        }
        (path, methods)
    };
    paths.iter().map(|path| route(path)).collect()
}

fn shadows(fixed: &str, variable: &str) -> bool {
    let parts = |path: &str| path.split('/').count();
    fixed != variable
        && !fixed.contains('{')
        && parts(fixed) == parts(variable)
        && fixed.split('/').zip(variable.split('/')).all(|(f, v)| f == v || v.starts_with('{'))
}

/// Judges host and origin before anything else is looked at.
async fn gate(State(api): State<Api>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let inside = request.extensions().get::<Caller>().is_some();
    if inside || matches!(path, "/healthz" | "/readyz") {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    match api.settings().hosts.check(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(problem) => problem.into_response(),
    }
}

/// What is said when an operation breaks: that it did, not how.
#[allow(clippy::needless_pass_by_value, reason = "the signature is tower-http's")]
fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!(panic = text, "a request handler panicked");
    Problem::new(Code::Internal, "the request could not be carried out; the log says more")
        .into_response()
}

async fn safe(mut response: Response) -> Response {
    for (name, value) in SAFE {
        response.headers_mut().entry(name).or_insert(value);
    }
    response
}

/// An answer in JSON.
pub(crate) fn json<T: serde::Serialize + ?Sized>(status: u16, value: &T) -> Result<Response> {
    let body = serde_json::to_vec(value).map_err(|error| {
        Problem::new(Code::Internal, format!("the answer could not be written: {error}"))
    })?;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let kind = axum::http::HeaderValue::from_static(crate::gate::JSON);
    Ok((status, [(axum::http::header::CONTENT_TYPE, kind)], body).into_response())
}
