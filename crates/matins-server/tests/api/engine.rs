//! The API before a working engine: live output, events, health.

use std::sync::Arc;
use std::time::Duration;

use matins_core::executor::{Executor, Finished, Run};
use matins_core::lifecycle::Outcome;
use matins_core::memory::MemoryStore;
use matins_runtime::engine::{EngineConfig, Executors};
use matins_runtime::{Client, Engine};
use matins_server::Settings;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{ADMIN, Server, rules, soon};

/// Writes a line with a split character, waits to be told, writes the rest.
struct Talker(Arc<tokio::sync::Notify>);

#[async_trait::async_trait]
impl Executor for Talker {
    async fn run(&self, run: Run) -> Finished {
        run.supervision.output("caf\u{e9}".as_bytes().split_at(4).0);
        tokio::select! {
            () = self.0.notified() => {
                run.supervision.output("\u{e9}\n".as_bytes().split_at(1).1);
                Outcome::Completed { result: None, result_dropped_bytes: None }.into()
            }
            _ = run.supervision.stopped() => Outcome::Cancelled.into(),
        }
    }
}

async fn follow(address: std::net::SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn read_until(stream: &mut TcpStream, seen: &mut String, text: &str) {
    let mut buffer = [0; 4096];
    while !seen.contains(text) {
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(n > 0, "closed before {text:?}: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_and_events_are_seen_as_they_happen() {
    let client = Client::new(Arc::new(MemoryStore::new(uuid::Uuid::now_v7())), rules());
    let go_on = Arc::new(tokio::sync::Notify::new());
    let mut executors = Executors::new();
    executors.insert("sync".into(), Arc::new(Talker(go_on.clone())));
    let config = EngineConfig { node_id: "n1".to_owned(), ..EngineConfig::default() };
    let engine = Arc::new(Engine::start(client.clone(), config, executors).await.unwrap());
    let server = Server::over(client, engine.clone(), &Settings::default());
    let listening = server.listen();

    let mut events = follow(listening.address, "/api/v1/events").await;
    let mut happened = String::new();
    soon(read_until(&mut events, &mut happened, "listening")).await;
    let id = server.enqueue(r#"{"type":"sync"}"#).await;
    let path = format!("/api/v1/tasks/{id}/output?follow=1");
    let mut output = follow(listening.address, &path).await;
    let mut seen = String::new();
    // The first half of the split character is not shown yet.
    soon(read_until(&mut output, &mut seen, r#"{"chunk":"caf","encoding":"utf-8"}"#)).await;
    let so_far = server.get(&format!("/tasks/{id}/output")).await.is(200);
    assert_eq!(so_far.bytes, [b'c', b'a', b'f', 0xc3]);
    let running = server.get(&format!("/tasks/{id}")).await.is(200).json();
    assert_eq!(
        (&running["state"], &running["attempts"][0]["outcome"]),
        (&json!("running"), &json!(null))
    );
    go_on.notify_one();
    soon(read_until(&mut output, &mut seen, r#"{"chunk":"é\n","encoding":"utf-8"}"#)).await;
    soon(read_until(&mut output, &mut seen, r#"{"state":"completed","attempt":1"#)).await;
    soon(read_until(&mut events, &mut happened, "task.settled")).await;
    for event in ["event: task.enqueued", "event: task.started", r#""state":"completed""#, &id] {
        assert!(happened.contains(event), "{event}: {happened}");
    }

    let status = server.get("/status").await.is(200).json();
    assert_eq!((&status["node_id"], &status["workers"]), (&json!("n1"), &json!(1)));
    assert_eq!(server.get("/healthz").await.is(200).json(), json!({"status":"ok","stalled":[]}));
    let metrics = server.get("/metrics").await.is(200);
    assert!(metrics.text().contains(r#"matins_attempts_total{type="sync",outcome="completed"} 1"#));
    engine.shutdown().await;
    let drained = async {
        while server.get("/readyz").await.status != 503 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(drained).await;
}
