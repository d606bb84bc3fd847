//! Where calls may go, over real resolution and real redirects.

use matins_core::executor::Finished;
use matins_core::task::ErrorClass;
use matins_runtime::executors::{AddressPolicy, Setting};

use crate::stub::{
    Answer, Stub, ad_hoc, call_with, config, failure, ok, open, redirect, result, task,
};

fn get(url: &str) -> String {
    format!(r#"{{"url":"{url}"}}"#)
}

#[track_caller]
fn assert_refused(finished: &Finished, expected: &str) {
    let (error, permanent) = failure(finished);
    assert_eq!((error.class, permanent), (ErrorClass::Permanent, true), "{}", error.message);
    assert!(error.message.contains(expected), "{}", error.message);
}

#[tokio::test]
async fn a_payload_reaches_this_host_only_where_the_file_allows_it() {
    let stub = Stub::saying(ok("[]")).await;
    let port = stub.port;
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "2130706433",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "a@127.0.0.1",
    ] {
        let payload = get(&format!("http://{host}:{port}/"));
        let refused = ad_hoc(AddressPolicy::default(), &payload).await;
        assert_refused(&refused, "is refused: not a public address, and not in http.allow");
    }
    assert!(stub.requests().is_empty());
    for host in ["127.0.0.1", "localhost", "2130706433"] {
        let finished = ad_hoc(open(0), &get(&format!("http://{host}:{port}/"))).await;
        assert_eq!(result(&finished), Some("[]"), "{host}");
    }
}

#[tokio::test]
async fn the_file_reaches_this_host_but_never_metadata() {
    let stub = Stub::saying(ok("[]")).await;
    let finished =
        call_with(&config(stub.url("/").replace("127.0.0.1", "localhost")), task("x", "1")).await;
    assert_eq!(result(&finished), Some("[]"));
    for url in [
        "http://169.254.169.254/",
        "http://2852039166/",
        "http://0xA9FEA9FE/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/",
        "http://a@169.254.169.254/",
        "http://metadata.google.internal/",
    ] {
        let finished = call_with(&config(url.to_owned()), task("x", "1")).await;
        assert_refused(&finished, "link-local and metadata addresses are never called");
        let finished = ad_hoc(open(0), &get(url)).await;
        assert_refused(&finished, "link-local and metadata addresses are never called");
    }
    for url in ["file:///etc/passwd", "gopher://127.0.0.1/"] {
        assert_refused(&ad_hoc(open(0), &get(url)).await, "expected http or https");
    }
}

#[tokio::test]
async fn every_redirect_is_judged() {
    for (to, expected) in [
        ("http://169.254.169.254/latest", "redirect: 169.254.169.254 is refused: link-local"),
        ("http://0xA9FEA9FE/", "redirect: 169.254.169.254 is refused: link-local"),
        ("http://metadata.google.internal/", "redirect: metadata.google.internal is refused"),
        ("http://10.0.0.1/", "redirect: 10.0.0.1 is refused: not a public address"),
        ("http://[::1]/", "redirect: ::1 is refused: not a public address"),
        ("file:///etc/passwd", "redirect: scheme \"file\" is refused"),
    ] {
        let stub = Stub::saying(redirect(302, to)).await;
        assert_refused(&ad_hoc(open(5), &get(&stub.url("/"))).await, expected);
        let mut config = config(stub.url("/"));
        config.redirects = 5;
        assert_refused(&call_with(&config, task("x", "1")).await, expected);
    }
}

/// A server that the operator trusts does not decide where else this host is sent.
#[tokio::test]
async fn a_redirect_to_another_port_of_this_host_needs_permission() {
    let inner = Stub::saying(ok("[\"inner\"]")).await;
    for host in ["127.0.0.1", "localhost"] {
        let outer = Stub::saying(redirect(307, &format!("http://{host}:{}/", inner.port))).await;
        let mut config = config(outer.url("/"));
        config.redirects = 1;
        config.headers.insert("X-Token".into(), Setting::secret("S3KR1T"));
        assert_refused(&call_with(&config, task("x", "1")).await, "not a public address");
        assert!(inner.requests().is_empty());
    }
}

#[tokio::test]
async fn redirects_are_off_unless_asked_for_and_then_counted() {
    let stub = Stub::start(Answer::Routes(vec![
        ("/1", redirect(301, "/2")),
        ("/2", redirect(307, "/3")),
        ("/3", ok("[3]")),
        ("/loop", redirect(302, "/loop?token=S3KR1T")),
        ("/loop?token=S3KR1T", redirect(302, "/loop")),
        ("/bad", redirect(302, "http://[")),
        ("/nowhere", b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n".to_vec()),
    ]))
    .await;
    let go = |path: &'static str, redirects| {
        let mut config = config(stub.url(path));
        config.redirects = redirects;
        async move { call_with(&config, task("x", "{\"p\":1}")).await }
    };
    for (path, redirects, expected) in [
        ("/1", 0, "/2, and redirects are not followed"),
        ("/1", 1, "/3, and 1 redirects have been followed"),
        ("/loop", 4, "/loop, and 4 redirects have been followed"),
        ("/bad", 3, "redirected to an invalid address"),
        ("/nowhere", 3, "answered 302"),
    ] {
        let finished = go(path, redirects).await;
        let (error, permanent) = failure(&finished);
        assert_eq!((error.class, permanent), (ErrorClass::Http3xx, true), "{path}");
        assert!(error.message.contains(expected), "{path}: {}", error.message);
        assert!(!error.message.contains("S3KR1T"), "{}", error.message);
        assert!(matches!(finished.trace.http_status, Some(301 | 302 | 307)));
    }
    assert_eq!(result(&go("/1", 2).await), Some("[3]"));
    let requests = stub.requests();
    let last: Vec<&str> =
        requests[requests.len() - 3..].iter().map(|r| r.split_once(' ').unwrap().0).collect();
    // A moved POST becomes a GET, as every client has it; 307 keeps what it is.
    assert_eq!(last, ["POST", "GET", "GET"]);
    assert_eq!(result(&go("/2", 2).await), Some("[3]"));
    assert!(stub.requests().last().unwrap().ends_with("{\"p\":1}"));
}
