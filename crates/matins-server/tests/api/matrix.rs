//! Every route of the table against everybody who may not use it, and every page that may not
//! ask. The table is the source, so a new route is covered by being there.

use axum::body::Body;
use axum::http::Method;
use matins_server::operations::{self, Operation};
use matins_server::{Access, AuthError, Role, Settings};

use crate::harness::{ADMIN, OPERATOR, SHOP, Server, VIEWER, WORKER, given, rules};

fn path(operation: &Operation) -> String {
    let id = uuid::Uuid::nil().to_string();
    operation
        .path
        .replace("{id}", &id)
        .replace("{name}", "n")
        .replace("{type}", "t")
        .replace("{key}", "k")
}

fn request(operation: &Operation) -> axum::http::request::Builder {
    let builder =
        axum::http::Request::builder().method(operation.method.clone()).uri(path(operation));
    match operation.method {
        Method::GET => builder,
        _ => builder.header("content-type", "application/json"),
    }
}

/// A body that fails loudly when it is read before the caller was judged.
fn unread() -> Body {
    Body::from_stream(futures_util::stream::once(async {
        panic!("the body was read");
        #[allow(unreachable_code, reason = "gives the stream its type")]
        Ok::<axum::body::Bytes, std::convert::Infallible>(axum::body::Bytes::new())
    }))
}

#[tokio::test]
async fn nobody_gets_in_without_a_known_token() {
    let server = Server::new();
    for operation in operations::table().iter().filter(|o| o.access != Access::Open) {
        for header in [
            None,
            Some(String::new()),
            Some("Bearer".to_owned()),
            Some("Bearer ".to_owned()),
            Some("Bearer  ".to_owned()),
            Some("Bearer null".to_owned()),
            Some("Bearer default_token".to_owned()),
            Some(format!("Bearer {}", &ADMIN[..ADMIN.len() - 1])),
            Some(format!("Bearer {ADMIN}x")),
            Some(format!("Bearer {}", ADMIN.to_uppercase())),
            Some(format!("Basic {ADMIN}")),
            Some(ADMIN.to_owned()),
        ] {
            let mut request = request(operation).header("host", "localhost");
            if let Some(header) = &header {
                request = request.header("authorization", header);
            }
            let answer = server.send(request.body(unread()).unwrap()).await;
            assert_eq!(answer.header("www-authenticate"), "Bearer", "{} {header:?}", operation.id);
            answer.refused(401, "unauthorized");
        }
        let twice = request(operation)
            .header("host", "localhost")
            .header("authorization", "Bearer x")
            .header("authorization", format!("Bearer {ADMIN}"));
        server.send(twice.body(unread()).unwrap()).await.refused(401, "unauthorized");
    }
}

#[tokio::test]
async fn every_role_gets_exactly_its_routes() {
    let server = Server::new();
    let roles = [
        (Role::Viewer, VIEWER),
        (Role::Operator, OPERATOR),
        (Role::Admin, ADMIN),
        (Role::Worker, WORKER),
        (Role::Enqueue, SHOP),
    ];
    for operation in operations::table() {
        for (role, token) in roles {
            let request = request(&operation)
                .header("host", "localhost")
                .header("authorization", format!("Bearer {token}"));
            let answer = server.send(request.body(Body::empty()).unwrap()).await;
            if operation.access.permits(role) {
                assert!(![401, 403].contains(&answer.status), "{} {role}", operation.id);
            } else {
                answer.refused(403, "forbidden");
            }
        }
        // Nothing that changes anything is open to those who may only look.
        let changes = operation.method != Method::GET && operation.id != "schedule.preview";
        assert!(!(changes && operation.access.permits(Role::Viewer)), "{}", operation.id);
    }
}

#[tokio::test]
async fn pages_of_other_sites_are_refused_before_their_body_is_read() {
    let server = Server::new();
    let cases: [(&str, &[(&str, &str)]); 9] = [
        ("host", &[("host", "evil.example")]),
        ("port", &[("host", "evil.example:6284")]),
        ("no host", &[]),
        ("two hosts", &[("host", "localhost"), ("host", "evil.example")]),
        ("origin", &[("host", "localhost"), ("origin", "https://evil.example")]),
        ("null", &[("host", "localhost"), ("origin", "null")]),
        ("other port", &[("host", "localhost:6284"), ("origin", "http://localhost:3000")]),
        ("empty", &[("host", "localhost"), ("origin", "")]),
        ("suffix", &[("host", "localhost"), ("origin", "http://localhost.evil.example")]),
    ];
    for operation in operations::table() {
        if ["/healthz", "/readyz"].contains(&operation.path) {
            continue;
        }
        for (what, headers) in cases {
            let mut request =
                request(&operation).header("authorization", format!("Bearer {ADMIN}"));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let answer = server.send(request.body(unread()).unwrap()).await;
            assert_eq!(answer.status, 403, "{} {what}", operation.id);
            assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("access-control")));
            answer.refused(403, "forbidden");
        }
    }
}

#[tokio::test]
async fn forms_and_plain_texts_are_refused_before_they_are_read() {
    let server = Server::new();
    for operation in operations::table().iter().filter(|o| o.method != Method::GET) {
        for (kind, status, code) in [
            ("text/plain", 403, "forbidden"),
            ("text/plain;charset=UTF-8", 403, "forbidden"),
            ("application/x-www-form-urlencoded", 403, "forbidden"),
            ("multipart/form-data; boundary=x", 403, "forbidden"),
            ("application/xml", 415, "unsupported_media_type"),
            ("application/json; charset=utf-16", 415, "unsupported_media_type"),
            ("", 415, "unsupported_media_type"),
        ] {
            let request = axum::http::Request::builder()
                .method(operation.method.clone())
                .uri(path(operation))
                .header("host", "localhost")
                .header("authorization", format!("Bearer {ADMIN}"))
                .header("content-type", kind);
            server.send(request.body(unread()).unwrap()).await.refused(status, code);
        }
        let untyped = axum::http::Request::builder()
            .method(operation.method.clone())
            .uri(path(operation))
            .header("host", "localhost")
            .header("authorization", format!("Bearer {ADMIN}"))
            .header("content-length", "2");
        server.send(untyped.body(unread()).unwrap()).await.refused(415, "unsupported_media_type");
    }
}

#[tokio::test]
async fn the_servers_own_pages_and_clients_that_are_no_browsers_pass() {
    let server = Server::new();
    for (host, origin) in [
        ("127.0.0.1:6284", None),
        ("matins.test", None),
        ("localhost:6284", Some("http://localhost:6284")),
        ("matins.test", Some("https://matins.test")),
    ] {
        let mut request = axum::http::Request::get("/api/v1/tasks")
            .header("host", host)
            .header("authorization", format!("bearer {VIEWER}"));
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        server.send(request.body(Body::empty()).unwrap()).await.is(200);
    }
}

#[tokio::test]
async fn every_answer_is_safe_to_show() {
    let server = Server::new();
    for path in ["/tasks", "/nope", "/healthz", "/tasks/x", "/api/openapi.json"] {
        let answer = server.get(path).await;
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert!(answer.header("content-security-policy").contains("default-src 'none'"), "{path}");
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
    }
}

#[tokio::test]
async fn metrics_are_open_only_where_the_settings_say_so() {
    let closed = Server::new();
    let ask = |builder: axum::http::request::Builder| {
        builder.header("host", "localhost").body(Body::empty()).unwrap()
    };
    closed.send(ask(axum::http::Request::get("/metrics"))).await.refused(401, "unauthorized");
    let open = Server::with(rules(), &Settings { open_metrics: true, ..Settings::default() });
    open.send(ask(axum::http::Request::get("/metrics"))).await.is(200);
    let rebound = axum::http::Request::get("/metrics").header("host", "evil.example");
    open.send(rebound.body(Body::empty()).unwrap()).await.refused(403, "forbidden");
}

#[tokio::test]
async fn nothing_but_loopback_is_listened_on_without_a_strong_token() {
    let store = Server::new().client().store().clone();
    let auth = |tokens| matins_server::Auth::new(store.clone(), tokens);
    let everywhere = "0.0.0.0:6284".parse().unwrap();
    let loopback = "127.0.0.1:6284".parse().unwrap();
    let none = auth(Vec::new()).unwrap();
    assert_eq!(none.check_bind(everywhere).await, Err(AuthError::NoToken(everywhere)));
    assert_eq!(none.check_bind(loopback).await, Ok(()));
    assert_eq!(none.check_bind("[::1]:1".parse().unwrap()).await, Ok(()));
    assert!(none.check_bind("[::]:1".parse().unwrap()).await.is_err());
    let weak = auth(vec![given("a", Role::Admin, &[], "hunter2")]).unwrap();
    assert!(matches!(weak.check_bind(everywhere).await, Err(AuthError::WeakSecret { .. })));
    assert_eq!(weak.check_bind(loopback).await, Ok(()));
    let strong = auth(vec![given("a", Role::Admin, &[], &matins_server::new_secret())]).unwrap();
    assert_eq!(strong.check_bind(everywhere).await, Ok(()));
    for secret in ["", " ", "\n"] {
        let empty = auth(vec![given("a", Role::Admin, &[], secret)]);
        assert_eq!(empty.err(), Some(AuthError::EmptySecret("a".to_owned())));
    }
    let twice = vec![given("a", Role::Admin, &[], "x"), given("a", Role::Viewer, &[], "y")];
    assert_eq!(auth(twice).err(), Some(AuthError::Twice("a".to_owned())));
    assert!(auth(vec![given("a", Role::Viewer, &["t"], "x")]).is_err());
}
