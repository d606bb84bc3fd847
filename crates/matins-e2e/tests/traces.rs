//! Traces as a collector of OpenTelemetry gets them: read by the types of the protocol itself.

use matins_e2e::alerts::die;
use matins_e2e::stub::{Answer, Call};
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Stub, eventually, holds_for, json, together};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};

const TOKEN: &str = "T0P-S3CRET-COLLECTOR-TOKEN";

#[test]
fn traces() {
    together(&[
        ("from enqueue to finish", whole),
        ("a collector that is away, and one that refuses", away),
        ("a share of them, and none by default", sampled),
    ]);
}

fn config(stub: &Stub, more: &str) -> String {
    format!("traces: {{url: \"{}\"{more}}}\n", stub.url("/v1/traces"))
}

fn spans(calls: &[Call]) -> Vec<Span> {
    let mut spans = Vec::new();
    for call in calls {
        let request: ExportTraceServiceRequest =
            serde_json::from_slice(&call.body).expect("a request of the protocol");
        for resource in request.resource_spans {
            let about = resource.resource.expect("a resource").attributes;
            assert_eq!(text(&about, "service.name"), "matins");
            assert!(!text(&about, "service.instance.id").is_empty());
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    spans
}

fn find<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|one| one.key == key)?;
    found.value.as_ref()?.value.as_ref()
}

#[track_caller]
fn text(attributes: &[KeyValue], key: &str) -> String {
    match find(attributes, key) {
        Some(Value::StringValue(text)) => text.clone(),
        other => panic!("{key}: {other:?} in {attributes:?}"),
    }
}

#[track_caller]
fn number(attributes: &[KeyValue], key: &str) -> i64 {
    match find(attributes, key) {
        Some(Value::IntValue(number)) => *number,
        other => panic!("{key}: {other:?} in {attributes:?}"),
    }
}

/// The spans of one task: the whole, and its attempts.
fn of_task(stub: &Stub, id: &str) -> Option<(Span, Vec<Span>)> {
    let bytes = id.replace('-', "");
    let own = |span: &Span| {
        span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat() == bytes
    };
    let all: Vec<Span> = spans(&stub.calls()).into_iter().filter(own).collect();
    let root = all.iter().find(|span| span.parent_span_id.is_empty())?.clone();
    let attempts = all.into_iter().filter(|span| span.parent_span_id == root.span_id);
    Some((root.clone(), attempts.collect()))
}

fn whole() {
    let stub = Stub::start(|_| Answer::new(200, "{}"));
    let headers = ", headers: {Authorization: env:COLLECTOR}";
    let mut server = Server::builder()
        .config(&config(&stub, headers))
        .variable("COLLECTOR", &format!("Bearer {TOKEN}"))
        .start();
    let api = server.api();
    let fields = json!({"max_retries": 1, "backoff": {"initial": 0}, "execution_key": "k-1"});
    let id =
        api.shell("test $MATINS_ATTEMPT = 2 || { echo 密码; exit 7; }", &fields).id().to_owned();
    let task = api.wait_state(&id, "completed", seconds(20.0));
    let (root, attempts) =
        eventually("its trace", seconds(20.0), || of_task(&stub, &id).filter(|t| t.1.len() == 2));
    assert_eq!((root.name.as_str(), root.kind()), ("command", SpanKind::Producer));
    assert_eq!(root.status.as_ref().expect("a status").code(), StatusCode::Ok);
    assert_eq!(text(&root.attributes, "matins.execution_key"), "k-1");
    assert_eq!(text(&root.attributes, "matins.task.state"), "completed");
    assert_eq!(number(&root.attributes, "matins.retries"), 1);
    let is = |nanos: u64, field: &str| (nanos as f64 / 1e9 - task.time(field)).abs() < 0.002;
    assert!(is(root.start_time_unix_nano, "created_at"), "{root:?}");
    assert!(is(root.end_time_unix_nano, "finished_at"), "{root:?}");
    let codes: Vec<_> = attempts
        .iter()
        .map(|span| {
            let code = span.status.as_ref().expect("a status").code();
            let inside = span.start_time_unix_nano >= root.start_time_unix_nano
                && span.end_time_unix_nano <= root.end_time_unix_nano + 1_000_000;
            assert!(inside && span.kind() == SpanKind::Consumer, "{span:?}");
            (number(&span.attributes, "matins.attempt"), code)
        })
        .collect();
    assert_eq!(codes, [(1, StatusCode::Error), (2, StatusCode::Ok)]);
    assert_eq!(number(&attempts[0].attributes, "process.exit.code"), 7);
    let ids: std::collections::HashSet<_> = attempts.iter().map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), 2, "each has an id of its own");

    // One that a remote worker settles, and one that is cancelled before it ran.
    die(&api, "remote", 1);
    let dead = api.list("type=remote").pop().expect("it is there");
    let (root, attempts) = eventually("its trace", seconds(20.0), || of_task(&stub, dead.id()));
    let status = root.status.as_ref().expect("a status");
    assert_eq!((status.code(), attempts.len()), (StatusCode::Error, 1));
    assert!(status.message.contains("403 Forbidden"), "{}", status.message);
    let later = api.shell("true", &json!({"delay": 600})).id().to_owned();
    api.post(&format!("/tasks/{later}/cancel"), &json!({})).expect(200);
    let (root, attempts) = eventually("its trace", seconds(20.0), || of_task(&stub, &later));
    assert_eq!(text(&root.attributes, "matins.task.state"), "cancelled");
    assert!(attempts.is_empty());

    // What ends last is sent before the process does, and a killed one resumes with what it ran.
    let id = api.shell(&server.witness.shell("sleep 2"), &json!({})).id().to_owned();
    server.witness.wait_begin(&id, 1, seconds(10.0));
    server.stop(seconds(30.0));
    assert!(of_task(&stub, &id).is_some(), "the last one was not sent");
    let call = &stub.calls()[0];
    assert_eq!(call.headers["authorization"], format!("Bearer {TOKEN}"));
    assert!(call.headers["content-type"].starts_with("application/json"), "{:?}", call.headers);
    let log = server.log_text();
    assert!(!log.contains(TOKEN) && !log.contains("are dropped"), "{log}");
}

fn away() {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let stub = Stub::start(move |_| match next.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => Answer::new(503, ""),
        1 => Answer::new(429, "").header("retry-after", "2"),
        _ => Answer::new(200, ""),
    });
    let server = Server::with(&config(&stub, ""));
    let api = server.api();
    let first = api.shell("true", &json!({})).id().to_owned();
    eventually("it is sent in the end", seconds(40.0), || (stub.count() >= 3).then_some(()));
    let calls = stub.calls();
    assert!(calls[2].at - calls[1].at >= seconds(1.9), "the wish was obeyed");
    assert_eq!(calls[0].body, calls[2].body);
    assert!(of_task(&stub, &first).is_some());
    eventually("that is said", seconds(10.0), || {
        server.log_text().contains("traces are taken again").then_some(())
    });

    // Nobody there, or somebody who never answers: tasks go on as if nothing were.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    for silent in [true, false] {
        let address = port.local_addr().expect("an address");
        let url = match silent {
            true => format!("http://{address}/v1/traces"),
            false => "http://127.0.0.1:9/v1/traces".to_owned(),
        };
        let mut server = Server::with(&format!("traces: {{url: \"{url}\"}}\n"));
        for _ in 0..20 {
            let id = server.api().shell("true", &json!({})).id().to_owned();
            server.api().wait_state(&id, "completed", seconds(10.0));
        }
        let begin = std::time::Instant::now();
        assert_eq!(server.stop(seconds(20.0)).code(), Some(0));
        assert!(begin.elapsed() < seconds(10.0), "{:?}", begin.elapsed());
        server.assert_no_panic();
    }
}

fn sampled() {
    let stub = Stub::start(|_| Answer::new(200, ""));
    let server = Server::with(&config(&stub, ", sample: 0.5"));
    die(&server.api(), "sync", 200);
    eventually("some are sent", seconds(20.0), || (spans(&stub.calls()).len() > 60).then_some(()));
    std::thread::sleep(seconds(3.0));
    let kept = spans(&stub.calls()).iter().filter(|span| span.parent_span_id.is_empty()).count();
    assert!((60..140).contains(&kept), "{kept} of 200");
    let none = Server::with("");
    let id = none.api().shell("true", &json!({})).id().to_owned();
    none.api().wait_state(&id, "completed", seconds(10.0));
    let before = stub.count();
    holds_for("nothing is sent", seconds(2.0), || stub.count() == before);
    let wrong = Server::builder().config("traces: {sample: 2}\n").prepare();
    let said = wrong.cli(&["check"]).expect(2).err();
    for part in ["the key url is missing", "traces.sample"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
