//! Input that no client of good will sends. Nothing of it may be a 500, nothing may be taken in
//! silence, and every refusal says what was wrong.

use axum::body::Body;
use matins_core::limits::Limits;
use matins_server::operations;

use crate::harness::{ADMIN, Server};

#[tokio::test]
async fn bad_fields_are_refused_by_name() {
    let server = Server::new();
    for (rest, field) in [
        (r#""priority":"high""#, "priority"),
        (r#""priority":1e400"#, "priority"),
        (r#""priority":-1e400"#, "priority"),
        (r#""priority":1.5"#, "priority"),
        (r#""priority":99999999999999999999999"#, "priority"),
        (r#""priority":101"#, "priority"),
        (r#""priority":-32769"#, "priority"),
        (r#""max_retries":-1"#, "max_retries"),
        (r#""max_retries":4294967296"#, "max_retries"),
        (r#""max_retries":1000001"#, "max_retries"),
        (r#""run_at":"tomorrow""#, "run_at"),
        (r#""run_at":"2026-02-30T00:00:00Z""#, "run_at"),
        (r#""run_at":"2026-01-01T00:00:00""#, "run_at"),
        (r#""run_at":1767225600"#, "run_at"),
        (r#""run_at":"9999-99-99T99:99:99Z""#, "run_at"),
        (r#""run_at":"2026-01-01T00:00:00Z","delay":1"#, "delay"),
        (r#""delay":-1"#, "delay"),
        (r#""delay":"5 fortnights""#, "delay"),
        (r#""delay":1e18"#, "delay"),
        (r#""delay":{}"#, "delay"),
        (r#""timeout":0"#, "timeout"),
        (r#""timeout":"never""#, "timeout"),
        (r#""expires_at":"2001-01-01T00:00:00Z""#, "expires_at"),
        (r#""backoff":{"factor":0.5}"#, "backoff.factor"),
        (r#""backoff":{"faktor":2}"#, "backoff.faktor"),
        (r#""backoff":{"initial":"1h","max":"1s"}"#, "backoff.max"),
        (r#""backoff":7"#, "backoff"),
        (r#""tags":"a""#, "tags"),
        (r#""tags":["a",7]"#, "tags[1]"),
        (r#""tags":["a","b\u0000"]"#, "tags[1]"),
        (r#""tags":{}"#, "tags"),
        (r#""id":"42""#, "id"),
        (r#""id":42"#, "id"),
        (r#""on_duplicate":"ignore""#, "on_duplicate"),
        (r#""on_duplicate":{"return":1}"#, "on_duplicate"),
        (r#""pool":"""#, "pool"),
        (r#""pool":"a\nb""#, "pool"),
        (r#""pool":"\ud800""#, "pool"),
        (r#""concurrency_key":"""#, "concurrency_key"),
        (r#""payload":1,"payload":2"#, "payload"),
        (r#""paylaod":1"#, "paylaod"),
        (r#""state":"completed""#, "state"),
        (r#""Type":"x""#, "Type"),
    ] {
        let body = format!(r#"{{"type":"sync",{rest}}}"#);
        let problem = server.post("/tasks", &body).await.refused(422, "invalid_field");
        assert_eq!(problem["field"], field, "{body}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with(&format!("{field}:")), "{detail}");
    }
    for (body, field) in [
        (r#"{"type":""}"#, "type"),
        (r#"{"type":null}"#, "type"),
        (r#"{"type":7}"#, "type"),
        ("{}", "type"),
        (r#"{"type":" x"}"#, "type"),
        ("7", "body"),
        ("[]", "body"),
        ("\"x\"", "body"),
        ("null", "body"),
    ] {
        let problem = server.post("/tasks", body).await.refused(422, "invalid_field");
        assert_eq!(problem["field"], field, "{body}");
    }
    let hint = server.post("/tasks", r#"{"type":"a","paylaod":1}"#).await.json()["hint"].clone();
    assert_eq!(hint, "did you mean payload?");
    assert_eq!(server.get("/tasks").await.json()["tasks"], serde_json::json!([]));
}

#[tokio::test]
async fn what_is_not_json_is_400_whatever_it_is() {
    let server = Server::new();
    let deep = "[".repeat(500_000);
    for bytes in [
        &b"{"[..],
        b"{\"type\":\"a\"",
        b"{\"type\":\"a\"} x",
        b"{'type':'a'}",
        b"{\"type\":NaN}",
        b"{\"type\":\"a\",\"payload\":Infinity}",
        b"{\"type\":\"a\",\"payload\":01}",
        b"{\"type\":\"a\",}",
        b"\xef\xbb\xbf{\"type\":\"a\"}",
        b"{\"type\":\"\xff\"}",
        b"\x00",
        b"\xff\xfe{\x00",
        b"{\"type\":\"a\nb\"}",
        b"{\"type\":\"\\x41\"}",
        deep.as_bytes(),
    ] {
        let request = Server::request(ADMIN, "POST", "/tasks")
            .header("content-type", "application/json")
            .body(Body::from(bytes.to_vec()))
            .unwrap();
        server.send(request).await.refused(400, "invalid_json");
    }
}

#[tokio::test]
async fn every_body_of_the_table_survives_nonsense() {
    let server = Server::new();
    let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let nonsense =
        ["", "{", "[]", "7", "null", "\"\"", r#"{"zzz":1}"#, deep.as_str(), r#"{"":{}}"#, "\u{0}"];
    for operation in operations::table() {
        let path = operation.path.replace("{id}", "x").replace(['{', '}'], "");
        for body in nonsense {
            let request = Server::request(ADMIN, operation.method.as_str(), &path)
                .header("content-type", "application/json")
                .body(Body::from(body.to_owned()))
                .unwrap();
            let answer = server.send(request).await;
            assert!(answer.status < 500, "{} {body:.40}: {}", operation.id, answer.status);
            if answer.status >= 400 {
                let code = answer.json()["code"].as_str().unwrap().to_owned();
                answer.refused(code_status(&code), &code);
            }
        }
    }
}

fn code_status(code: &str) -> u16 {
    matins_server::Code::ALL.into_iter().find(|c| c.as_str() == code).unwrap().status()
}

#[tokio::test]
async fn limits_are_named_when_they_are_exceeded() {
    let limits = Limits { payload_bytes: 100, ..Limits::default() };
    let server = Server::with_limits(limits);
    let fits = format!(r#"{{"type":"sync","payload":"{}"}}"#, "x".repeat(98));
    server.post("/tasks", &fits).await.is(201);
    let over = format!(r#"{{"type":"sync","payload":"{}"}}"#, "x".repeat(99));
    let problem = server.post("/tasks", &over).await.refused(413, "too_large");
    assert_eq!(problem["field"], "payload");
    assert!(problem["detail"].as_str().unwrap().contains("limit payload_bytes is 100"));
    let far = format!(r#"{{"type":"sync","payload":"{}"}}"#, "x".repeat(1 << 20));
    let problem = server.post("/tasks", &far).await.refused(413, "too_large");
    assert!(problem["detail"].as_str().unwrap().contains("payload_bytes"));
    let name = format!(r#"{{"type":"{}"}}"#, "n".repeat(201));
    server.post("/tasks", &name).await.refused(413, "too_large");
    let id = server.enqueue(r#"{"type":"sync"}"#).await;
    let retry = format!("/tasks/{id}/retry");
    let edit = format!(r#"{{"payload":"{}"}}"#, "x".repeat(99));
    server.post(&retry, &edit).await.refused(413, "too_large");
}

#[tokio::test]
async fn deep_payloads_are_kept_as_they_are() {
    let server = Server::new();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let created = server.post("/tasks", &format!(r#"{{"type":"sync","payload":{deep}}}"#)).await;
    // Too deep for the checker of this test, not for the server.
    assert_eq!(created.status, 201);
    assert!(created.text().contains(&deep));
}

#[tokio::test]
async fn queries_are_read_strictly() {
    let server = Server::new();
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("limit=1&limit=2", "limit"),
        ("lim=1", "lim"),
        ("state=done", "state"),
        ("cursor=nonsense", "cursor"),
        ("cursor=%00", "cursor"),
        ("q=%ff", "q"),
        ("q=%", "q"),
    ] {
        let problem = server.get(&format!("/tasks?{query}")).await.refused(422, "invalid_field");
        assert_eq!(problem["field"], field, "{query}");
    }
    for path in ["/audit", "/schedules", "/dead_letters"] {
        let problem = server.get(&format!("{path}?cursor=nonsense")).await;
        assert_eq!(problem.refused(422, "invalid_field")["field"], "cursor", "{path}");
    }
    server.get("/status?x=1").await.refused(422, "invalid_field");
    server.get("/healthz?x=1").await.refused(422, "invalid_field");
}

#[tokio::test]
async fn unknown_routes_methods_and_ids_are_problems_too() {
    let server = Server::new();
    for path in ["/nope", "/tasks/", "/tasks//why", "/api", "/api/v2/tasks", "/tasks/a/b/c"] {
        server.get(path).await.refused(404, "not_found");
    }
    let answer = server.delete("/tasks").await;
    let allowed: Vec<String> =
        answer.header("allow").split(',').map(|method| method.trim().to_owned()).collect();
    assert!(
        allowed.contains(&"GET".to_owned()) && allowed.contains(&"POST".to_owned()),
        "{allowed:?}"
    );
    answer.refused(405, "method_not_allowed");
    server.ask(ADMIN, "TRACE", "/tasks", "").await.refused(405, "method_not_allowed");
    server.ask(ADMIN, "BREW", "/tasks", "").await.refused(405, "method_not_allowed");
    for id in [
        "x",
        "42",
        "%00",
        "%ff",
        "..",
        "0190f6f0",
        "%F0%9F%92%A9",
        "0190f6f0-0000-7000-8000-000000000000",
    ] {
        server.get(&format!("/tasks/{id}")).await.refused(404, "not_found");
        server.post(&format!("/tasks/{id}/cancel"), "").await.refused(404, "not_found");
        server.get(&format!("/operations/{id}")).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn a_panic_is_a_problem_and_says_nothing() {
    use axum::Router;
    use axum::routing::get;
    use tower::ServiceExt;
    // The layers of the real router over a handler that breaks.
    let broken =
        Router::new().route("/x", get(|| async { panic!("the password is S3KR1T-42") as () }));
    let router = matins_server::api::guarded(broken);
    let request = axum::http::Request::get("/x").body(Body::empty()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 500);
    let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
    let problem: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(problem["code"], "internal");
    assert!(!problem.to_string().contains("S3KR1T"));
}
