//! Bodies at random on every route that takes one: an answer with a documented status, always.

use axum::body::Body;

use crate::harness::{ADMIN, Server};

const ROUTES: [(&str, &str); 10] = [
    ("POST", "/tasks"),
    ("POST", "/tasks/batch"),
    ("POST", "/dead_letters/replay"),
    ("POST", "/dead_letters/dismiss"),
    ("PUT", "/schedules/s"),
    ("POST", "/schedules/preview"),
    ("POST", "/schedules/s/backfill"),
    ("POST", "/workers/claim"),
    ("POST", "/workers/heartbeat"),
    ("POST", "/workers/settle"),
];

#[test]
fn bodies_at_random_are_answered() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::new();
    let seeds: [&[u8]; 8] = [
        br#"{"type":"sync","payload":{"a":1e400,"s":"\ud800"},"execution_key":"k","delay":"5m","priority":5,"tags":["a"],"max_retries":2,"backoff":{"initial":"1s"},"timeout":"none"}"#,
        br#"[{"type":"sync","payload":null},{"type":"","run_at":"2027-01-01T00:00:00Z"}]"#,
        br#"{"filter":{"type":"sync","failed_after":"2026-01-01T00:00:00Z"},"dry_run":true,"rate":"10/m","reason":"r"}"#,
        br#"{"schedule":"0 2 * * *","timezone":"Asia/Shanghai","type":"sync","payload":{"d":"{{ occurrence.date }}"},"overlap":"skip","dst":{"gap":"run"}}"#,
        br#"{"schedule":"*/5 * * * * *","timezone":"UTC","after":"2026-01-01T00:00:00Z","count":3}"#,
        br#"{"from":"2026-01-01T00:00:00Z","to":"2026-01-02T00:00:00Z","mode":"missing","concurrency":2,"dry_run":true}"#,
        br#"{"worker":"w","types":["sync"],"max":1,"wait":0}"#,
        br#"{"items":[{"id":"01a228ae-5693-716a-92d7-414a76c47436","fence":1,"token":"0123456789abcdef","outcome":"completed","result":{"a":1}}]}"#,
    ];
    matins_fuzz::fuzz(&seeds, |body| {
        // A claim must not wait, or one run would take as long as the whole test.
        let waits = body.windows(4).any(|word| word == b"wait");
        let route = ROUTES[body.len() % ROUTES.len()];
        if waits && route.1 == "/workers/claim" && !body.windows(8).any(|w| w == b"\"wait\":0") {
            return;
        }
        let request = Server::request(ADMIN, route.0, route.1)
            .header("content-type", "application/json")
            .body(Body::from(body.to_vec()))
            .unwrap();
        let answer = runtime.block_on(server.send(request));
        let text = || String::from_utf8_lossy(body).into_owned();
        assert!(answer.status != 500, "{route:?} {}: {}", answer.status, text());
    });
}
