//! Time and size.

use std::time::{Duration, Instant};

use matins_core::duration::Timeout;
use matins_core::executor::{Executor as _, StopReason};
use matins_core::lifecycle::Outcome;
use matins_core::task::ErrorClass;
use matins_runtime::executors::AddressPolicy;
use matins_runtime::executors::http::HttpExecutor;

use crate::stub::{Answer, Engine, Stub, call, call_with, config, failure, host, task};

const HALF: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf";

#[tokio::test]
async fn a_silent_server_is_left_at_the_timeout() {
    for begun in [b"".to_vec(), HALF.to_vec()] {
        let mut stub = Stub::start(Answer::ThenSilence(begun)).await;
        let mut task = task("x", "{}");
        task.timeout = Some(Timeout::After(Duration::from_millis(300)));
        let started = Instant::now();
        let finished = call_with(&config(stub.url("/")), task).await;
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(2), "{took:?}");
        let Outcome::TimedOut { error } = &finished.outcome else { panic!("{finished:?}") };
        assert_eq!(error.class, ErrorClass::Timeout);
        stub.sees_peer_leave().await;
    }
}

#[tokio::test]
async fn a_stopped_run_drops_its_connection() {
    for reason in
        [StopReason::Cancel, StopReason::Shutdown, StopReason::LeaseLost, StopReason::Timeout]
    {
        let mut stub = Stub::start(Answer::ThenSilence(HALF.to_vec())).await;
        let config = config(stub.url("/"));
        let executor = HttpExecutor::of_type(host(AddressPolicy::default()), &config).unwrap();
        let engine = Engine::new();
        let stop = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            engine.stop(reason);
        };
        let (finished, ()) = tokio::join!(executor.run(engine.run(task("x", "{}"))), stop);
        let as_expected = match reason {
            StopReason::Cancel => finished.outcome == Outcome::Cancelled,
            StopReason::Shutdown => finished.outcome == Outcome::Interrupted,
            StopReason::LeaseLost => matches!(finished.outcome, Outcome::Lost { .. }),
            StopReason::Timeout => matches!(finished.outcome, Outcome::TimedOut { .. }),
        };
        assert!(as_expected, "{reason:?} {finished:?}");
        stub.sees_peer_leave().await;
    }
}

#[tokio::test]
async fn connecting_has_a_limit_of_its_own() {
    // It accepts and then says nothing, so that the TLS handshake hangs.
    let stub = Stub::start(Answer::ThenSilence(Vec::new())).await;
    let mut config = config(stub.url("/").replace("http:", "https:"));
    config.connect_timeout = Duration::from_millis(300);
    let started = Instant::now();
    let finished = call_with(&config, task("x", "{}")).await;
    assert!(started.elapsed() < Duration::from_secs(2));
    let (error, permanent) = failure(&finished);
    assert_eq!((error.class, permanent), (ErrorClass::Network, false));
    assert!(error.message.starts_with("POST 127.0.0.1: cannot connect"), "{}", error.message);
}

#[tokio::test]
async fn a_closed_port_is_a_network_failure() {
    let finished = call_with(&config("http://127.0.0.1:1/".into()), task("x", "{}")).await;
    let (error, permanent) = failure(&finished);
    assert_eq!((error.class, permanent), (ErrorClass::Network, false));
    assert!(error.message.contains("refused"), "{}", error.message);
}

#[tokio::test]
async fn a_huge_answer_is_neither_kept_nor_read_to_its_end() {
    let announced = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n".to_vec();
    let endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for (head, least, most) in
        [(announced, 10_000_000_000, 10_000_000_000), (endless, 16 << 20, 17 << 20)]
    {
        let stub = Stub::start(Answer::ThenZeros(head)).await;
        let started = Instant::now();
        let finished = call(&stub).await;
        assert!(started.elapsed() < Duration::from_secs(5));
        let Outcome::Completed { result: None, result_dropped_bytes: Some(dropped) } =
            finished.outcome
        else {
            panic!("{finished:?}")
        };
        assert!((least..=most).contains(&dropped), "{dropped}");
    }
}

#[tokio::test]
async fn an_answer_just_over_the_limit_is_counted_exactly() {
    let limit = 256 << 10;
    for (size, dropped) in [(limit - 2, None), (limit - 1, Some(limit as u64 + 1))] {
        let body = "x".repeat(size);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n{body}");
        let finished = call(&Stub::saying(answer).await).await;
        let Outcome::Completed { result, result_dropped_bytes } = finished.outcome else {
            panic!("no success")
        };
        assert_eq!((result.is_some(), result_dropped_bytes), (dropped.is_none(), dropped));
    }
}
