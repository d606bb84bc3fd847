//! One server per test: the API over the model store, asked in the process or over a socket.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use matins_core::duration::Span;
use matins_core::limits::Limits;
use matins_core::memory::MemoryStore;
use matins_core::retry::Backoff;
use matins_runtime::rules::{Policy, PoolRule, TypeExecutor, TypeRule};
use matins_runtime::{Client, Rules};
use matins_server::{Api, Auth, Bare, Caller, GivenToken, Hosts, Node, Role, Settings};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::shape;

pub(crate) const ADMIN: &str = "admin-0123456789abcdefghij";
pub(crate) const OPERATOR: &str = "operator-0123456789abcdefghij";
pub(crate) const VIEWER: &str = "viewer-0123456789abcdefghij";
pub(crate) const WORKER: &str = "worker-0123456789abcdefghij";
pub(crate) const SHOP: &str = "enqueue-0123456789abcdefghij";

pub(crate) struct Server {
    pub(crate) api: Api,
    router: Router,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        // Texts that JSON allows and this reader does not: a number beyond all doubles, half a
        // surrogate pair.
        let text = self.text().replace("1E400", "1").replace("\\ud800", "?");
        serde_json::from_str(&text)
            .unwrap_or_else(|_| panic!("not JSON: {}", String::from_utf8_lossy(&self.bytes)))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The answer, after a look at its status.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.bytes));
        self
    }

    /// A problem document with that code, and every member that it must have.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.bytes));
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status);
        for name in ["type", "title", "detail"] {
            assert!(problem[name].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        problem
    }
}

pub(crate) fn rules() -> Rules {
    let mut rules = Rules::default();
    let mut sync = TypeRule::new(TypeExecutor::Handler);
    sync.policy = Policy {
        timeout: Some("10m".parse().unwrap()),
        max_retries: Some(1),
        backoff: Some(Backoff { initial: Span::secs(0), ..Backoff::default() }),
        ..Policy::default()
    };
    rules.types.insert("sync".into(), sync);
    let types = std::iter::once("sync".into()).collect();
    rules.pools.insert("io_pool".into(), PoolRule { max_workers: 20, types });
    rules
}

pub(crate) fn given(name: &str, role: Role, types: &[&str], secret: &str) -> GivenToken {
    GivenToken {
        name: name.to_owned(),
        role,
        types: types.iter().map(|kind| (*kind).to_owned()).collect(),
        secret: secret.to_owned(),
    }
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with(rules(), &Settings::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::with(Rules { limits, ..rules() }, &Settings::default())
    }

    pub(crate) fn with(rules: Rules, settings: &Settings) -> Self {
        let store = Arc::new(MemoryStore::new(uuid::Uuid::now_v7()));
        let client = Client::new(store, rules);
        let node = Arc::new(Bare::new(client.clone()));
        Self::over(client, node, settings)
    }

    pub(crate) fn over(client: Client, node: Arc<dyn Node>, settings: &Settings) -> Self {
        let tokens = vec![
            given("admin", Role::Admin, &[], ADMIN),
            given("operator", Role::Operator, &[], OPERATOR),
            given("viewer", Role::Viewer, &[], VIEWER),
            given("worker", Role::Worker, &["sync", "other"], WORKER),
            given("shop", Role::Enqueue, &["sync"], SHOP),
        ];
        let auth = Auth::new(client.store().clone(), tokens).unwrap();
        let hosts = Hosts::new(&["matins.test".to_owned()], None);
        let settings = Settings { hosts, ..settings.clone() };
        let api = Api::new(client, node, auth, settings);
        Self { router: api.router(), api }
    }

    pub(crate) fn client(&self) -> &Client {
        self.api.client()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let method = request.method().to_string();
        let path = request.uri().path().to_owned();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let streams = parts
            .headers
            .get("content-type")
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let bytes = if streams {
            Vec::new()
        } else {
            axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec()
        };
        let answer = Answer { status: parts.status.as_u16(), headers: parts.headers, bytes };
        if !streams {
            shape::check(
                &method,
                &path,
                answer.status,
                answer.header("content-type"),
                &answer.bytes,
            );
        }
        answer
    }

    /// A request as the named token's holder would send it.
    pub(crate) fn request(token: &str, method: &str, path: &str) -> axum::http::request::Builder {
        let path = if path.starts_with("/api") || is_outside(path) {
            path.to_owned()
        } else {
            format!("/api/v1{path}")
        };
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1:6284")
            .header("authorization", format!("Bearer {token}"))
    }

    pub(crate) async fn ask(&self, token: &str, method: &str, path: &str, body: &str) -> Answer {
        let mut request = Self::request(token, method, path);
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(ADMIN, "GET", path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        self.ask(ADMIN, "POST", path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &str) -> Answer {
        self.ask(ADMIN, "PUT", path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.ask(ADMIN, "DELETE", path, "").await
    }

    /// As a command does that works on the store by itself.
    pub(crate) async fn locally(&self, method: &str, path: &str, body: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header("content-type", "application/json")
            .extension(Caller::local("ann"))
            .body(Body::from(body.to_owned()));
        self.send(request.unwrap()).await
    }

    /// Enqueues and gives the id.
    pub(crate) async fn enqueue(&self, body: &str) -> String {
        let task = self.post("/tasks", body).await.is(201).json();
        task["id"].as_str().unwrap().to_owned()
    }

    /// Claims one task of a type: id, fence and token as a JSON fragment.
    pub(crate) async fn claim(&self, kind: &str) -> (String, String) {
        let body = format!(r#"{{"worker":"w1","types":["{kind}"]}}"#);
        let claimed = self.post("/workers/claim", &body).await.is(200).json();
        let task = &claimed["tasks"][0];
        let id = task["id"].as_str().expect("a task is there to claim").to_owned();
        (id.clone(), format!(r#""id":"{id}","fence":{},"token":{}"#, task["fence"], task["token"]))
    }

    /// Runs one task of a type to the given end.
    pub(crate) async fn settle(&self, kind: &str, end: &str) -> String {
        let (id, proof) = self.claim(kind).await;
        let body = format!(r#"{{"items":[{{{proof},{end}}}]}}"#);
        let settled = self.post("/workers/settle", &body).await.is(200).json();
        assert_eq!(settled["items"][0]["status"], 200, "{settled}");
        id
    }

    /// A dead letter of a type.
    pub(crate) async fn fail(&self, kind: &str, message: &str) -> String {
        let end = format!(
            r#""outcome":"failed","permanent":true,"error":{{"class":"permanent","message":{message:?}}}"#
        );
        self.settle(kind, &end).await
    }
}

fn is_outside(path: &str) -> bool {
    ["/healthz", "/readyz", "/metrics"].iter().any(|known| path.starts_with(known))
}

/// A server on a socket of its own, closed when dropped.
pub(crate) struct Listening {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) served: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub(crate) fn listen(&self) -> Listening {
        self.listen_with(None)
    }

    pub(crate) fn listen_with(&self, tls: Option<matins_server::Tls>) -> Listening {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let (api, token) = (self.api.clone(), shutdown.clone());
        let served =
            tokio::spawn(async move { matins_server::serve(&api, listener, tls, token).await });
        Listening { address, shutdown, served }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Waits for what must happen soon.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it happens in time")
}
