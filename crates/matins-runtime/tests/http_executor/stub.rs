//! A server that says exactly what a test wants, and the engine's side of a run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use matins_core::Json;
use matins_core::duration::Timeout;
use matins_core::executor::{Executor as _, Finished, Run, StopReason, Supervision};
use matins_core::lifecycle::Outcome;
use matins_core::limits::Limits;
use matins_core::task::{Claim, Claimed, NewTask, Task, TaskError, TaskId};
use matins_runtime::clock::HostClock;
use matins_runtime::executors::http::{HttpExecutor, HttpHost};
use matins_runtime::executors::{AddressPolicy, Cidr, HttpConfig, Setting};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use uuid::Uuid;

/// What the server does once it has read a request.
#[derive(Clone)]
pub(crate) enum Answer {
    /// Sends these bytes and closes.
    Bytes(Vec<u8>),
    /// Sends the first, waits until the peer has gone, and notes that it has.
    ThenSilence(Vec<u8>),
    /// Sends the first, then zeros for as long as they are taken.
    ThenZeros(Vec<u8>),
    /// By path.
    Routes(Vec<(&'static str, Vec<u8>)>),
}

pub(crate) struct Stub {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    gone: watch::Receiver<usize>,
}

impl Stub {
    pub(crate) async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (left, gone) = watch::channel(0);
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen, left) = (answer.clone(), Arc::clone(&seen), left.clone());
                tokio::spawn(async move { serve(stream, answer, &seen, &left).await });
            }
        });
        Self { port, requests, gone }
    }

    pub(crate) async fn saying(answer: impl Into<Vec<u8>>) -> Self {
        Self::start(Answer::Bytes(answer.into())).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until a peer has dropped its connection.
    pub(crate) async fn sees_peer_leave(&mut self) {
        let left = self.gone.wait_for(|gone| *gone > 0);
        tokio::time::timeout(Duration::from_secs(5), left).await.unwrap().unwrap();
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: Answer,
    seen: &Mutex<Vec<String>>,
    left: &watch::Sender<usize>,
) {
    let request = read_request(&mut stream).await;
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    seen.lock().unwrap().push(request);
    match answer {
        Answer::Bytes(bytes) => {
            let _ = stream.write_all(&bytes).await;
        }
        Answer::ThenSilence(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let mut rest = [0; 1024];
            while matches!(stream.read(&mut rest).await, Ok(1..)) {}
            left.send_modify(|left| *left += 1);
        }
        Answer::ThenZeros(bytes) => {
            let _ = stream.write_all(&bytes).await;
            // A chunk header of the same size makes the zeros valid in both framings.
            let mut block = b"10000\r\n".to_vec();
            block.resize(block.len() + 0x10000, 0);
            block.extend(b"\r\n");
            while stream.write_all(&block).await.is_ok() {}
            left.send_modify(|left| *left += 1);
        }
        Answer::Routes(routes) => {
            let found = routes.iter().find(|(route, _)| *route == path);
            let bytes = found.map_or(&b"HTTP/1.1 404 Not Found\r\n\r\n"[..], |(_, bytes)| bytes);
            let _ = stream.write_all(bytes).await;
        }
    }
    let _ = stream.shutdown().await;
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = stream.read(&mut buffer).await.unwrap_or(0);
        request.extend_from_slice(&buffer[..length]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if length == 0 {
                return text;
            }
            continue;
        };
        let wanted = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map_or(0, |(_, length)| length.trim().parse().unwrap());
        if body.len() >= wanted || length == 0 {
            return text;
        }
    }
}

pub(crate) fn ok(body: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ";
    format!("{head}{}\r\n\r\n{body}", body.len()).into_bytes()
}

pub(crate) fn status(line: &str, headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\n{headers}Content-Length: 0\r\n\r\n").into_bytes()
}

pub(crate) fn redirect(code: u16, to: &str) -> Vec<u8> {
    status(&format!("{code} Moved"), &format!("Location: {to}\r\n"))
}

pub(crate) struct Engine {
    stop: watch::Sender<Option<StopReason>>,
}

impl Engine {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { stop: watch::Sender::new(None) })
    }

    pub(crate) fn stop(&self, reason: StopReason) {
        self.stop.send_replace(Some(reason));
    }

    pub(crate) fn run(self: &Arc<Self>, task: Task) -> Run {
        let claim = Claim { id: task.id, fence: 1, token: 1 };
        let timeout = task.timeout.unwrap_or(Timeout::After(Duration::from_secs(10)));
        let supervision = Arc::clone(self) as Arc<dyn Supervision>;
        Run {
            claimed: Arc::new(Claimed { task, claim }),
            timeout,
            grace: Duration::ZERO,
            supervision,
        }
    }
}

#[async_trait]
impl Supervision for Engine {
    async fn stopped(&self) -> StopReason {
        let mut stop = self.stop.subscribe();
        let reason = *stop.wait_for(Option::is_some).await.unwrap();
        reason.unwrap()
    }

    fn lease_deadline(&self) -> Option<u64> {
        None
    }

    async fn lease_renewed(&self, _seen: Option<u64>) -> Option<u64> {
        std::future::pending().await
    }

    fn output(&self, _chunk: &[u8]) {}
}

pub(crate) fn task(kind: &str, payload: &str) -> Task {
    let now = jiff::Timestamp::now();
    let new = NewTask::new(TaskId(Uuid::now_v7()), kind, Json::parse(payload).unwrap(), now);
    Task::from_new(&new, now)
}

pub(crate) fn host(policy: AddressPolicy) -> HttpHost {
    HttpHost::new(policy, Limits::default(), Arc::new(HostClock)).unwrap()
}

/// A policy that lets payloads reach this host.
pub(crate) fn open(redirects: u32) -> AddressPolicy {
    let loopback = Cidr { addr: "127.0.0.0".parse().unwrap(), prefix: 8 };
    AddressPolicy { allow: vec![loopback], redirects }
}

pub(crate) fn config(url: String) -> HttpConfig {
    HttpConfig::new(Setting::plain(url))
}

pub(crate) async fn call_with(config: &HttpConfig, task: Task) -> Finished {
    let executor = HttpExecutor::of_type(host(AddressPolicy::default()), config).unwrap();
    executor.run(Engine::new().run(task)).await
}

/// Calls the stub as a type of the file would.
pub(crate) async fn call(stub: &Stub) -> Finished {
    call_with(&config(stub.url("/")), task("notify", "{}")).await
}

/// Calls what a payload names.
pub(crate) async fn ad_hoc(policy: AddressPolicy, payload: &str) -> Finished {
    let executor = HttpExecutor::ad_hoc(host(policy));
    executor.run(Engine::new().run(task("http_call", payload))).await
}

#[track_caller]
pub(crate) fn failure(finished: &Finished) -> (&TaskError, bool) {
    match &finished.outcome {
        Outcome::Failed { error, permanent, .. } => (error, *permanent),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn result(finished: &Finished) -> Option<&str> {
    match &finished.outcome {
        Outcome::Completed { result, result_dropped_bytes: None } => {
            result.as_ref().map(Json::as_str)
        }
        other => panic!("{other:?}"),
    }
}
