//! What those hear who are told: webhooks that keep what came.

use serde_json::{Value, json};

use crate::Api;
use crate::stub::{Answer, Call, Stub};

/// Makes `count` dead letters of a type at once, as a remote worker that gives up.
pub fn die(api: &Api, kind: &str, count: usize) {
    let tasks: Vec<Value> = (0..count).map(|n| json!({"type": kind, "payload": n})).collect();
    api.post("/tasks/batch", &Value::from(tasks)).expect(200);
    let mut left = count;
    while left > 0 {
        let body = json!({"worker": "w", "types": [kind], "max": left.min(1_000), "wait": 5});
        let claimed = api.post("/workers/claim", &body).expect(200).json();
        let claimed = claimed["tasks"].as_array().expect("tasks").clone();
        let items: Vec<Value> = claimed
            .iter()
            .map(|task| {
                json!({"id": task["id"], "fence": task["fence"], "token": task["token"],
                    "outcome": "failed", "permanent": true,
                    "error": {"class": "permanent", "message": "密码 403 Forbidden"}})
            })
            .collect();
        left -= items.len();
        let settled = api.post("/workers/settle", &json!({"items": items})).expect(200).json();
        let items = settled["items"].as_array().expect("items");
        assert!(items.iter().all(|item| item["status"] == 200), "{settled}");
    }
}

pub fn body(call: &Call) -> Value {
    serde_json::from_slice(&call.body).expect("JSON")
}

/// Rule, subject, count and end of everything that a webhook was told.
pub fn told(stub: &Stub) -> Vec<(String, String, u64, bool)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = stub.calls();
    let bodies: Vec<Value> = calls.iter().map(body).collect();
    let alerts = bodies.iter().flat_map(|body| body["alerts"].as_array().expect("alerts"));
    alerts
        .map(|alert| {
            let count = alert["count"].as_u64().expect("a count");
            (text(&alert["rule"]), text(&alert["subject"]), count, alert["resolved"] == true)
        })
        .collect()
}

pub fn dead_letters_told(stub: &Stub) -> u64 {
    told(stub).iter().filter(|told| told.0 == "dead_letter").map(|told| told.2).sum()
}

pub fn webhook(stub: &Stub) -> String {
    format!("{{kind: webhook, url: \"{}\"}}", stub.url("/hook"))
}

pub fn ok() -> Stub {
    Stub::start(|_| Answer::new(200, ""))
}
