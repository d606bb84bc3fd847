//! Over a real socket: slow clients, streams, large bodies, TLS, shutdown.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use matins_server::{Settings, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{ADMIN, Listening, Server, rules, soon};

const CLOSE: &str = "connection: close\r\n";

fn head(method: &str, path: &str, more: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {ADMIN}\r\n{more}\r\n"
    )
}

/// Sends raw bytes and reads until the server closes.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads from a stream until it has said `text`.
async fn read_until(stream: &mut TcpStream, seen: &mut String, text: &str) {
    let mut buffer = [0; 4096];
    while !seen.contains(text) {
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(n > 0, "closed before {text:?}: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
}

fn small(connections_max: usize) -> Server {
    Server::with(rules(), &Settings { connections_max, ..Settings::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_slow_clients_keep_nobody_out() {
    let server = small(64);
    let listening = server.listen();
    let address = listening.address;
    let mut slow = Vec::new();
    for n in 0..1_000 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // A third each: say nothing, half a head, half a body.
        let part = match n % 3 {
            0 => String::new(),
            1 => "GET /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ".to_owned(),
            _ => {
                head(
                    "POST",
                    "/api/v1/tasks",
                    "content-type: application/json\r\ncontent-length: 50\r\n",
                ) + "{"
            }
        };
        // One that has already given way cannot be written to.
        let _ = stream.write_all(part.as_bytes()).await;
        slow.push(stream);
        if n % 100 == 99 {
            let start = Instant::now();
            let answer = soon(raw(address, &head("GET", "/api/v1/tasks", CLOSE))).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        }
    }
    // They are still there, and each goes on sending a byte at a time.
    for stream in &mut slow {
        let _ = stream.write_all(b" ").await;
    }
    let body = r#"{"type":"sync"}"#;
    let more =
        format!("content-type: application/json\r\ncontent-length: {}\r\n{CLOSE}", body.len());
    let answer = soon(raw(address, &(head("POST", "/api/v1/tasks", &more) + body))).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_not_cut_off_for_newcomers() {
    let server = small(8);
    let listening = server.listen();
    let mut events = TcpStream::connect(listening.address).await.unwrap();
    events.write_all(head("GET", "/api/v1/events", "").as_bytes()).await.unwrap();
    let mut seen = String::new();
    soon(read_until(&mut events, &mut seen, "listening")).await;
    let mut idle = Vec::new();
    for _ in 0..50 {
        idle.push(TcpStream::connect(listening.address).await.unwrap());
    }
    let id = server.enqueue(r#"{"type":"sync"}"#).await;
    soon(read_until(&mut events, &mut seen, &id)).await;
    assert!(seen.contains("event: task.enqueued") && seen.contains("id: "), "{seen}");
    assert!(seen.to_lowercase().contains("content-type: text/event-stream"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_in_number() {
    let server = Server::with(rules(), &Settings { streams_max: 2, ..Settings::default() });
    let listening = server.listen();
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(listening.address).await.unwrap();
        stream.write_all(head("GET", "/api/v1/events", "").as_bytes()).await.unwrap();
        soon(read_until(&mut stream, &mut String::new(), "listening")).await;
        open.push(stream);
    }
    let third = soon(raw(listening.address, &head("GET", "/api/v1/events", CLOSE))).await;
    assert!(third.starts_with("HTTP/1.1 429") && third.contains("rate_limited"), "{third}");
    assert!(third.to_lowercase().contains("retry-after: 5"), "{third}");
    drop(open.pop());
    // Its place is free as soon as the server has noticed.
    let mut stream = soon(async {
        loop {
            server.enqueue(r#"{"type":"sync"}"#).await;
            let mut stream = TcpStream::connect(listening.address).await.unwrap();
            stream.write_all(head("GET", "/api/v1/events", "").as_bytes()).await.unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).await.unwrap();
            if first.ends_with(b"200") {
                return stream;
            }
        }
    })
    .await;
    soon(read_until(&mut stream, &mut String::new(), "listening")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_answered_although_it_is_being_sent() {
    let limits = matins_core::limits::Limits { payload_bytes: 1_000, ..Default::default() };
    let server = Server::with_limits(limits);
    let listening = server.listen();
    let size = 8 << 20;
    let more = format!("content-type: application/json\r\ncontent-length: {size}\r\n{CLOSE}");
    let announced = head("POST", "/api/v1/tasks", &more) + &"x".repeat(size);
    let answer = soon(raw(listening.address, &announced)).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("payload_bytes"), "{answer}");
    let chunked =
        format!("content-type: application/json\r\ntransfer-encoding: chunked\r\n{CLOSE}");
    let chunk = format!("{size:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(size));
    let answer =
        soon(raw(listening.address, &(head("POST", "/api/v1/tasks", &chunked) + &chunk))).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("payload_bytes"), "{answer}");
    // One that waits for leave is told before it has sent anything.
    let polite = format!("{more}expect: 100-continue\r\n");
    let answer = soon(raw(listening.address, &head("POST", "/api/v1/tasks", &polite))).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_on_the_wire_is_refused() {
    let server = Server::new();
    let listening = server.listen();
    for bytes in [
        "\0\0\0\0\r\n\r\n".to_owned(),
        "GET\r\n\r\n".to_owned(),
        "GET /healthz HTTP/9.9\r\n\r\n".to_owned(),
        format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(200_000)),
        format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(200_000)),
        "POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n12345".to_owned(),
    ] {
        let answer = soon(raw(listening.address, &bytes)).await;
        let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(refused, "{bytes:.60}: {answer}");
    }
    let absolute = format!(
        "GET http://evil.example/api/v1/tasks HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN}\r\n{CLOSE}\r\n"
    );
    let answer = soon(raw(listening.address, &absolute)).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let health =
        soon(raw(listening.address, &format!("GET /healthz HTTP/1.1\r\nhost: lb\r\n{CLOSE}\r\n")))
            .await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shutdown_ends_streams_and_waits_and_lets_requests_finish() {
    let server = Server::new();
    let mut listening = server.listen();
    let address = listening.address;
    let mut events = TcpStream::connect(address).await.unwrap();
    events.write_all(head("GET", "/api/v1/events", "").as_bytes()).await.unwrap();
    let mut seen = String::new();
    soon(read_until(&mut events, &mut seen, "listening")).await;
    let body = r#"{"worker":"w","types":["sync"],"wait":60}"#;
    let more = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let claim = head("POST", "/api/v1/workers/claim", &more) + body;
    let claim = tokio::spawn(async move { raw(address, &claim).await });
    let mut idle = TcpStream::connect(address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = Instant::now();
    listening.shutdown.cancel();
    let answer = soon(claim).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#"{"tasks":[]}"#), "{answer}");
    soon(&mut listening.served).await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
    let mut rest = Vec::new();
    let _ = soon(events.read_to_end(&mut rest)).await;
    assert_eq!(soon(idle.read(&mut [0; 10])).await.unwrap_or(0), 0);
    assert!(TcpStream::connect(address).await.is_err());
    assert_eq!(server.get("/readyz").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_followed_to_the_end_of_its_attempt() {
    let server = Server::new();
    let listening = server.listen();
    let id = server.enqueue(r#"{"type":"sync"}"#).await;
    let path = format!("/api/v1/tasks/{id}/output?follow=1");
    let follow = head("GET", &path, CLOSE);
    let address = listening.address;
    let following = tokio::spawn(async move { raw(address, &follow).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let end = r#""outcome":"failed","error":{"message":"x"},"output":"one é\ntwo""#;
    server.settle("sync", end).await;
    let stream = soon(following).await.unwrap();
    assert!(stream.contains(r#"data: {"chunk":"one é\ntwo","encoding":"utf-8"}"#), "{stream}");
    assert!(
        stream.contains(r#"data: {"state":"pending","attempt":1,"dropped_bytes":0}"#),
        "{stream}"
    );
    // The ended one by its number, while the task waits for its next.
    let first = head("GET", &format!("{path}&attempt=1"), CLOSE);
    let stream = soon(raw(address, &first)).await;
    assert!(stream.contains("event: output") && stream.contains("event: end"), "{stream}");
    server.settle("sync", r#""outcome":"completed""#).await;
    let stream = soon(raw(address, &head("GET", &path, CLOSE))).await;
    assert!(
        stream.contains(r#"data: {"state":"completed","attempt":2,"dropped_bytes":0}"#),
        "{stream}"
    );
    let never = server.enqueue(r#"{"type":"sync","delay":60}"#).await;
    server.post(&format!("/tasks/{never}/cancel"), "").await.is(200);
    let path = format!("/api/v1/tasks/{never}/output?follow=true");
    let stream = soon(raw(address, &head("GET", &path, CLOSE))).await;
    assert!(
        stream.contains(r#"data: {"state":"cancelled","attempt":0,"dropped_bytes":0}"#),
        "{stream}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_too_slow_is_told_so() {
    let server = Server::new();
    let listening = server.listen();
    let mut events = TcpStream::connect(listening.address).await.unwrap();
    events.write_all(head("GET", "/api/v1/events", "").as_bytes()).await.unwrap();
    let mut seen = String::new();
    soon(read_until(&mut events, &mut seen, "listening")).await;
    // More than every buffer on the way holds, while nobody reads.
    let item = format!(r#"{{"type":"{}"}}"#, "t".repeat(200));
    let batch = format!("[{}]", vec![item; 10_000].join(","));
    for _ in 0..4 {
        server.post("/tasks/batch", &batch).await.is(200);
    }
    soon(read_until(&mut events, &mut seen, "event: lagged")).await;
    assert!(seen.contains("\"missed\":"), "{:.300}", &seen[seen.len().saturating_sub(300)..]);
}

/// A certificate for `localhost` and 127.0.0.1, made for this test alone.
fn certificate(folder: &std::path::Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args(["-subj", "/CN=localhost", "-days", "2"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (cert, key)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_certificate_it_speaks_tls_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(folder.path());
    let server = Server::new();
    let tls = Tls::load(cert.clone(), key).await.unwrap();
    let listening: Listening = server.listen_with(Some(tls.clone()));
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let root = reqwest::Certificate::from_pem(&std::fs::read(&cert).unwrap()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([root]).build().unwrap();
    let url = format!("https://localhost:{}/api/v1/tasks", listening.address.port());
    let request = client.post(&url).bearer_auth(ADMIN).json(&serde_json::json!({"type": "sync"}));
    let answer = soon(request.send()).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (201, reqwest::Version::HTTP_2));
    tls.reload().await.unwrap();
    let answer = soon(client.get(&url).bearer_auth(ADMIN).send()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let plain = soon(raw(listening.address, &head("GET", "/healthz", CLOSE))).await;
    assert!(!plain.contains("HTTP/1.1 200"), "{plain}");
    assert!(Tls::load(folder.path().join("none"), cert).await.is_err());
}
