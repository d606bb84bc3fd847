//! What is sent.

use matins_runtime::executors::Setting;

use crate::stub::{Stub, ad_hoc, call_with, config, failure, ok, open, result, task};

#[tokio::test]
async fn a_type_sends_its_payload_with_an_idempotency_key() {
    let stub = Stub::saying(ok("{}")).await;
    let mut config = config(stub.url("/hook?a=1"));
    config.headers.insert("Authorization".into(), Setting::secret("Bearer S3KR1T"));
    let mut task = task("sync orders", r#"{"n": 1E400}"#);
    task.execution_key = Some("orders/2026 ü".into());
    assert_eq!(result(&call_with(&config, task).await), Some("{}"));
    let request = stub.requests()[0].to_ascii_lowercase();
    assert!(request.starts_with("post /hook?a=1 http/1.1\r\n"), "{request}");
    for line in [
        "idempotency-key: sync%20orders/orders%2f2026%20%c3%bc\r\n",
        "authorization: bearer s3kr1t\r\n",
        "content-type: application/json\r\n",
        "user-agent: matins/",
    ] {
        assert!(request.contains(line), "{line} {request}");
    }
    assert!(request.ends_with("\r\n\r\n{\"n\": 1e400}"), "{request}");
}

#[tokio::test]
async fn a_task_without_a_key_is_known_by_its_id() {
    let stub = Stub::saying(ok("")).await;
    let task = task("x", "null");
    let line = format!("idempotency-key: {}\r\n", task.id);
    call_with(&config(stub.url("/")), task).await;
    assert!(stub.requests()[0].to_ascii_lowercase().contains(&line));
}

#[tokio::test]
async fn a_type_may_have_a_body_of_its_own_or_none() {
    let stub = Stub::saying(ok("")).await;
    let mut with_body = config(stub.url("/"));
    with_body.body = Some(Setting::plain("text=hello"));
    call_with(&with_body, task("x", "{}")).await;
    let mut get = config(stub.url("/"));
    get.method = "get".into();
    call_with(&get, task("x", "{}")).await;
    let requests = stub.requests();
    assert!(requests[0].ends_with("\r\n\r\ntext=hello"), "{}", requests[0]);
    assert!(requests[1].starts_with("GET / ") && requests[1].ends_with("\r\n\r\n"));
}

#[tokio::test]
async fn a_payload_says_it_all() {
    let stub = Stub::saying(ok("[1]")).await;
    let payload = format!(
        r#"{{"url":"{}","method":"PATCH","headers":{{"X-One":"1"}},"body":{{"a":"\u0000"}}}}"#,
        stub.url("/p")
    );
    assert_eq!(result(&ad_hoc(open(0), &payload).await), Some("[1]"));
    let request = &stub.requests()[0];
    assert!(request.starts_with("PATCH /p "), "{request}");
    assert!(request.contains("x-one: 1\r\n"), "{request}");
    assert!(request.ends_with(r#"{"a":"\u0000"}"#), "{request}");
}

#[tokio::test]
async fn secrets_are_in_no_error_and_no_output() {
    let stub = Stub::saying(
        b"HTTP/1.1 500 Oops\r\nContent-Length: 29\r\n\r\nyour token was S3KR1T-42, ok?".to_vec(),
    )
    .await;
    let mut config = config(String::new());
    config.headers.insert("X-Token".into(), Setting::secret("S3KR1T-42"));
    let closed = "http://127.0.0.1:1/hook/S3KR1T-URL".to_owned();
    for url in
        [stub.url("/hook/S3KR1T-URL"), closed, "http://no.such.host.invalid/S3KR1T-URL".into()]
    {
        config.url = Setting::secret(url);
        let finished = call_with(&config, task("x", "{}")).await;
        let shown = format!("{finished:?} {}", finished.trace.output.text());
        assert!(!shown.contains("S3KR1T"), "{shown}");
        assert!(!failure(&finished).1, "{shown}");
    }
    assert!(stub.requests()[0].contains("S3KR1T-42"));
}

/// The environment's proxy would see every call and reach what this host may not.
#[tokio::test]
async fn the_proxy_of_the_environment_is_not_used() {
    if std::env::var_os("http_proxy").is_none() {
        let name = "request::the_proxy_of_the_environment_is_not_used";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .envs(["http_proxy", "HTTP_PROXY", "all_proxy"].map(|v| (v, "http://127.0.0.1:1")))
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let stub = Stub::saying(ok("{}")).await;
    let url = format!("http://localhost:{}/", stub.port);
    assert_eq!(result(&call_with(&config(url), task("x", "{}")).await), Some("{}"));
}

/// Slim images have none.
#[tokio::test]
async fn a_host_without_certificates_still_calls_plain_http() {
    if std::env::var_os("SSL_CERT_FILE").is_none() {
        let name = "request::a_host_without_certificates_still_calls_plain_http";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .envs(["SSL_CERT_FILE", "SSL_CERT_DIR"].map(|name| (name, "/no/such/path")))
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let stub = Stub::saying(ok("{}")).await;
    assert_eq!(result(&call_with(&config(stub.url("/")), task("x", "{}")).await), Some("{}"));
}
