//! What an answer means.

use std::time::Duration;

use matins_core::lifecycle::{Outcome, RetryAfter};
use matins_core::task::ErrorClass;

use crate::stub::{Stub, call, failure, ok, result, status};

#[tokio::test]
async fn statuses_have_classes() {
    use ErrorClass::{Http3xx, Http4xx, Http5xx};
    for (line, class, permanent) in [
        ("300 Multiple", Http3xx, true),
        ("304 Not Modified", Http3xx, true),
        ("400 Bad", Http4xx, true),
        ("401 Who", Http4xx, true),
        ("403 No", Http4xx, true),
        ("404 Gone", Http4xx, true),
        ("408 Slow", Http4xx, false),
        ("409 Conflict", Http4xx, false),
        ("410 Gone", Http4xx, true),
        ("425 Early", Http4xx, false),
        ("429 Often", Http4xx, false),
        ("499 Odd", Http4xx, true),
        ("500 Oops", Http5xx, false),
        ("501 What", Http5xx, false),
        ("503 Later", Http5xx, false),
        ("599 Odd", Http5xx, false),
        ("999 Odd", Http5xx, false),
    ] {
        let finished = call(&Stub::saying(status(line, "")).await).await;
        let (error, hopeless) = failure(&finished);
        assert_eq!((error.class, hopeless), (class, permanent), "{line}");
        assert_eq!(finished.trace.http_status, line[..3].parse().ok());
        let expected = format!("POST 127.0.0.1 answered {}", &line[..3]);
        assert!(error.message.starts_with(&expected), "{}", error.message);
    }
}

#[tokio::test]
async fn retry_after_is_understood_or_ignored() {
    let date = |seconds: i64| {
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
    };
    let in_an_hour_and_a_half = date(5400);
    let ahead = date(90);
    for (line, header, least, most) in [
        ("429 Often", Some("120"), 120, 120),
        ("429 Often", Some("0"), 0, 0),
        ("429 Often", Some("-5"), 0, 0),
        ("429 Often", Some("86400000"), 3600, 3600),
        ("429 Often", Some("Wed, 21 Oct 2026 07:28:00 GMT"), 0, 0),
        ("429 Often", Some(&ahead), 80, 90),
        ("429 Often", Some(&in_an_hour_and_a_half), 3600, 3600),
        ("429 Often", Some("abc"), 0, 0),
        ("503 Later", Some("30"), 30, 30),
        ("429 Often", None, 0, 0),
    ] {
        let headers = header.map(|value| format!("Retry-After: {value}\r\n")).unwrap_or_default();
        let finished = call(&Stub::saying(status(line, &headers)).await).await;
        let Outcome::Failed { permanent: false, retry_after, .. } = finished.outcome else {
            panic!("{header:?}: {:?}", finished.outcome)
        };
        let wait = match retry_after {
            Some(RetryAfter::In(wait)) => wait,
            None => Duration::ZERO,
            Some(RetryAfter::At(at)) => panic!("{at}"),
        };
        assert!((least..=most).contains(&wait.as_secs()), "{header:?}: {wait:?}");
        assert_eq!(retry_after.is_some(), most > 0, "{header:?}");
    }
    let finished = call(&Stub::saying(status("403 No", "Retry-After: 9\r\n")).await).await;
    assert!(matches!(finished.outcome, Outcome::Failed { permanent: true, retry_after: None, .. }));
}

fn typed(content_type: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\n{content_type}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn results_are_json_or_text_whatever_the_bytes() {
    for (content_type, body, expected) in [
        ("application/json", &b" {\"n\":1E400} "[..], Some("{\"n\":1E400}")),
        ("application/json; charset=utf-8", b"[1]", Some("[1]")),
        ("application/problem+json", b"{}", Some("{}")),
        ("application/json", b"{\"s\":\"\\ud800\\u0000\"}", Some("{\"s\":\"\\ud800\\u0000\"}")),
        ("application/json", b"{broken", Some("\"{broken\"")),
        ("text/plain", b"123", Some("\"123\"")),
        ("text/plain", b"a\0b", Some("\"a\\u0000b\"")),
        ("text/plain", b"\xff\xc3", Some("\"\u{fffd}\u{fffd}\"")),
        ("", b"123", Some("123")),
        ("", b"hello", Some("\"hello\"")),
        ("application/json", b"", None),
    ] {
        let header = match content_type {
            "" => String::new(),
            other => format!("Content-Type: {other}\r\n"),
        };
        let finished = call(&Stub::saying(typed(&header, body)).await).await;
        assert_eq!(result(&finished), expected, "{content_type} {body:?}");
        assert_eq!(finished.trace.http_status, Some(200));
    }
}

#[tokio::test]
async fn a_failure_shows_the_body() {
    let body = b"{\"detail\":\"no \0 such \xff order\"}";
    let head = format!("HTTP/1.1 422 No\r\nContent-Length: {}\r\n\r\n", body.len());
    let finished = call(&Stub::saying([head.as_bytes(), body].concat()).await).await;
    assert!(failure(&finished).1);
    assert_eq!((&finished.trace.output.bytes[..], finished.trace.output.dropped), (&body[..], 0));
    let head = "HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n";
    let long = [head.as_bytes(), &vec![b'x'; 100_000]].concat();
    let finished = call(&Stub::saying(long).await).await;
    let output = finished.trace.output;
    assert_eq!((output.bytes.len(), output.dropped, output.gap_at), (65_536, 34_464, 65_536));
}

#[tokio::test]
async fn odd_answers_are_answers() {
    let no_length = b"HTTP/1.0 200 OK\r\n\r\n[1]".to_vec();
    assert_eq!(result(&call(&Stub::saying(no_length).await).await), Some("[1]"));
    let informed = [b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n".to_vec(), ok("[2]")].concat();
    assert_eq!(result(&call(&Stub::saying(informed).await).await), Some("[2]"));
    let nothing = b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
    assert_eq!(result(&call(&Stub::saying(nothing).await).await), None);
    let chunked =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[3\r\n1\r\n]\r\n0\r\n\r\n";
    assert_eq!(result(&call(&Stub::saying(chunked.to_vec()).await).await), Some("[3]"));
}

#[tokio::test]
async fn what_is_no_answer_is_a_network_failure() {
    for broken in [
        "",
        "HELLO\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "HTTP/1.1 200 O",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ] {
        let finished = call(&Stub::saying(broken).await).await;
        let (error, permanent) = failure(&finished);
        assert_eq!((error.class, permanent), (ErrorClass::Network, false), "{broken:?}");
        assert!(error.message.starts_with("POST 127.0.0.1"), "{}", error.message);
    }
}
