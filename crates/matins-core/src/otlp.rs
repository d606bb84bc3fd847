//! A task that has ended as a trace in the form of OpenTelemetry (OTLP, JSON): one span from
//! enqueue to finish, and below it one for each attempt.
//!
//! It is made of what the store knows, so it is whole however many nodes, restarts and days the
//! task went through, and ids follow from the task's own: whoever writes it twice writes the same.
//! Payloads, results and output are nobody's business here.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::alert::ERROR_CHARS_MAX;
use crate::task::{Attempt, AttemptOutcome, State, Task, TaskError, TaskId};

/// Words of the protocol.
const SPAN_KIND_PRODUCER: u8 = 4;
const SPAN_KIND_CONSUMER: u8 = 5;
const STATUS_OK: u8 = 1;
const STATUS_ERROR: u8 = 2;

/// Whether a task's trace is among those that are kept: every node says the same of it.
pub fn is_sampled(id: TaskId, share: f64) -> bool {
    // Of ids that begin with the time the end is random.
    f64::from(id.0.as_u128() as u32) < share * (f64::from(u32::MAX) + 1.0)
}

/// The spans of a task.
pub fn spans(task: &Task, attempts: &[Attempt]) -> Vec<Value> {
    let end = task.finished_at.unwrap_or(task.created_at);
    let root = json!({
        "traceId": trace_id(task.id),
        "spanId": span_id(task.id, 0),
        "name": &*task.kind,
        "kind": SPAN_KIND_PRODUCER,
        "startTimeUnixNano": nanos(task.created_at),
        "endTimeUnixNano": nanos(end.max(task.created_at)),
        "attributes": attributes(task),
        "status": status(task.state == State::Completed, task.error.as_ref()),
    });
    let mut spans = vec![root];
    spans.extend(attempts.iter().map(|attempt| {
        let end = attempt.finished_at.unwrap_or(end);
        let worked = attempt.outcome == Some(AttemptOutcome::Completed);
        json!({
            "traceId": trace_id(task.id),
            "spanId": span_id(task.id, attempt.number),
            "parentSpanId": span_id(task.id, 0),
            "name": format!("{} attempt", task.kind),
            "kind": SPAN_KIND_CONSUMER,
            "startTimeUnixNano": nanos(attempt.started_at),
            "endTimeUnixNano": nanos(end.max(attempt.started_at)),
            "attributes": attributes_of(attempt),
            "status": status(worked, attempt.error.as_ref()),
        })
    }));
    spans
}

/// What is posted to a collector.
pub fn request(node: &str, version: &str, spans: &[Value]) -> Value {
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            text("service.name", "matins"),
            text("service.version", version),
            text("service.instance.id", node),
        ] },
        "scopeSpans": [{ "scope": { "name": "matins", "version": version }, "spans": spans }],
    }] })
}

fn attributes(task: &Task) -> Vec<Value> {
    let mut all = vec![
        text("matins.task.id", &task.id.to_string()),
        text("matins.task.type", &task.kind),
        text("matins.task.state", task.state.as_str()),
        text("matins.pool", &task.pool),
        number("matins.priority", i64::from(task.priority)),
        number("matins.retries", i64::from(task.retries)),
        number("matins.losses", i64::from(task.losses)),
        text("matins.created_by", &task.created_by),
    ];
    let key = task.execution_key.as_deref();
    all.extend(key.map(|key| text("matins.execution_key", key)));
    if let Some(origin) = &task.origin {
        all.push(text("matins.schedule", &origin.schedule));
        all.push(text("matins.label", &origin.label));
    }
    all
}

fn attributes_of(attempt: &Attempt) -> Vec<Value> {
    let mut all = vec![
        number("matins.attempt", i64::from(attempt.number)),
        text("matins.worker", &attempt.worker),
    ];
    all.extend(attempt.outcome.map(|outcome| text("matins.outcome", outcome.as_str())));
    all.extend(attempt.exit_code.map(|code| number("process.exit.code", i64::from(code))));
    let status = attempt.http_status;
    all.extend(status.map(|status| number("http.response.status_code", i64::from(status))));
    all
}

fn status(worked: bool, error: Option<&TaskError>) -> Value {
    match error {
        _ if worked => json!({ "code": STATUS_OK }),
        Some(error) => {
            let message: String = error.to_string().chars().take(ERROR_CHARS_MAX).collect();
            json!({ "code": STATUS_ERROR, "message": message })
        }
        None => json!({ "code": STATUS_ERROR }),
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Numbers of 64 bits are texts in its JSON.
fn number(key: &str, value: i64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

fn nanos(at: Timestamp) -> String {
    at.as_nanosecond().max(0).to_string()
}

fn trace_id(id: TaskId) -> String {
    format!("{:032x}", id.0.as_u128().max(1))
}

/// One of all zeros would be none.
fn span_id(id: TaskId, nth: u32) -> String {
    let own = id.0.as_u128() as u64;
    format!("{:016x}", own.wrapping_add(u64::from(nth)).max(1))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_share_of_all_traces_is_kept() {
        let ids: Vec<TaskId> = (0..4_000).map(|_| TaskId(Uuid::new_v4())).collect();
        let kept = |share| ids.iter().filter(|id| is_sampled(**id, share)).count();
        assert_eq!((kept(0.0), kept(1.0)), (0, 4_000));
        assert!((300..500).contains(&kept(0.1)), "{}", kept(0.1));
    }

    #[test]
    fn no_id_is_all_zeros() {
        for id in [TaskId(Uuid::nil()), TaskId(Uuid::max())] {
            assert!(trace_id(id).contains(|c| c != '0'));
            for nth in [0, 1, 2] {
                assert!(span_id(id, nth).contains(|c| c != '0'));
            }
        }
    }
}
