//! The protocol of workers in any language.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Server, WORKER, soon};

#[tokio::test]
async fn a_worker_claims_renews_and_settles_each_run_by_itself() {
    let server = Server::new();
    for _ in 0..3 {
        server.enqueue(r#"{"type":"sync"}"#).await;
    }
    let claim = r#"{"worker":"w","types":["sync"],"pools":["io_pool"],"max":10}"#;
    let claimed = server.ask(WORKER, "POST", "/workers/claim", claim).await.is(200).json();
    let tasks = claimed["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 3);
    assert!(tasks[0]["lease_until"].is_string() && tasks[0]["attempt"] == 1);
    let proof = |n: usize| {
        let task = &tasks[n];
        format!(r#""id":{},"fence":{},"token":{}"#, task["id"], task["fence"], task["token"])
    };
    let items = format!(
        r#"{{"items":[
            {{{},"outcome":"completed","result":{{"rows":1}}}},
            {{{},"outcome":"failed","error":{{"class":"network","message":"reset"}},"retry_after":"1m"}},
            {{{},"outcome":"snooze","delay":60}},
            {{{},"outcome":"completed"}},
            {{{},"outcome":"completed","fence":7}},
            {{{},"outcome":"finished"}},
            7
        ]}}"#,
        proof(0),
        proof(1),
        proof(2),
        proof(0),
        proof(1),
        proof(2),
    );
    let settled = server.ask(WORKER, "POST", "/workers/settle", &items).await.is(200).json();
    let settled = settled["items"].as_array().unwrap();
    let statuses: Vec<u64> = settled.iter().map(|i| i["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 200, 200, 409, 422, 422, 422]);
    assert_eq!(settled[0]["state"], "completed");
    assert_eq!(settled[1]["state"], "pending");
    assert_eq!(settled[3]["error"]["code"], "fenced");
    assert_eq!(settled[4]["error"]["field"], "fence");
    assert_eq!(settled[5]["error"]["field"], "outcome");
    let failed = tasks[1]["id"].as_str().unwrap();
    let failed = server.get(&format!("/tasks/{failed}")).await.is(200).json();
    assert_eq!((&failed["view"], &failed["retries"]), (&json!("retrying"), &json!(1)));
    assert_eq!(failed["attempts"][0]["worker"], "w");
    assert_eq!(failed["error"]["class"], "network");

    let beat = format!(r#"{{"worker":"w","tasks":[{{{}}}]}}"#, proof(0));
    let beat = server.ask(WORKER, "POST", "/workers/heartbeat", &beat).await.is(200).json();
    assert_eq!(beat["lost"], json!([tasks[0]["id"]]));
}

#[tokio::test]
async fn a_forged_claim_changes_nothing() {
    let server = Server::new();
    let id = server.enqueue(r#"{"type":"sync"}"#).await;
    let (_, proof) = server.claim("sync").await;
    for token in
        ["\"0000000000000000\"", "\"\"", "\"zz\"", "\"00000000000000001\"", "\"+000000000000001\""]
    {
        let forged = proof.split("\"token\"").next().unwrap();
        let body = format!(r#"{{"items":[{{{forged}"token":{token},"outcome":"completed"}}]}}"#);
        let settled = server.post("/workers/settle", &body).await.is(200).json();
        assert_eq!(settled["items"][0]["status"], 409, "{token}");
    }
    assert_eq!(server.get(&format!("/tasks/{id}")).await.json()["state"], "running");
}

#[tokio::test]
async fn fields_that_belong_to_another_outcome_are_refused() {
    let server = Server::new();
    let proof = r#""id":"0190f6f0-0000-7000-8000-000000000000","fence":1,"token":"00""#;
    for (rest, field) in [
        (r#""outcome":"failed""#, "error"),
        (r#""outcome":"failed","error":{"message":"x"},"result":1"#, "result"),
        (r#""outcome":"failed","error":{"message":"x","class":"sad"}"#, "error.class"),
        (r#""outcome":"failed","error":{"message":"x"},"retry_after":"soon"#, "retry_after"),
        (r#""outcome":"completed","permanent":true"#, "permanent"),
        (r#""outcome":"completed","delay":1"#, "run_at"),
        (r#""outcome":"snooze""#, "run_at"),
        (r#""outcome":"snooze","delay":1,"run_at":"2026-01-01T00:00:00Z""#, "delay"),
        (r#""outcome":"release","delay":-1"#, "delay"),
    ] {
        let rest = if rest.ends_with("soon") { format!("{rest}\"") } else { rest.to_owned() };
        let body = format!(r#"{{"items":[{{{proof},{rest}}}]}}"#);
        let settled = server.post("/workers/settle", &body).await.is(200).json();
        assert_eq!(settled["items"][0]["error"]["field"], field, "{settled}");
    }
    let release = format!(r#"{{"items":[{{{proof},"outcome":"release"}}]}}"#);
    let settled = server.post("/workers/settle", &release).await.is(200).json();
    assert_eq!(settled["items"][0]["error"]["code"], "fenced");
    server.post("/workers/settle", r#"{"items":7}"#).await.refused(422, "invalid_field");
}

#[tokio::test]
async fn a_worker_token_keeps_to_its_types() {
    let server = Server::new();
    server.enqueue(r#"{"type":"secret"}"#).await;
    let ask = async |body: &str| server.ask(WORKER, "POST", "/workers/claim", body).await;
    ask(r#"{"worker":"w","types":["secret"]}"#).await.refused(403, "forbidden");
    ask(r#"{"worker":"w","types":["sync","secret"]}"#).await.refused(403, "forbidden");
    assert_eq!(ask(r#"{"worker":"w"}"#).await.is(200).json(), json!({ "tasks": [] }));
    server.ask(WORKER, "GET", "/tasks", "").await.refused(403, "forbidden");
    for (bad, field) in [
        (r#"{"types":["sync"]}"#, "worker"),
        (r#"{"worker":"","types":["sync"]}"#, "worker"),
        (r#"{"worker":"w","types":["sync"],"max":0}"#, "max"),
        (r#"{"worker":"w","types":["sync"],"max":1001}"#, "max"),
        (r#"{"worker":"w","types":["sync"],"wait":"long"}"#, "wait"),
    ] {
        assert_eq!(ask(bad).await.refused(422, "invalid_field")["field"], field);
    }
    server.post("/workers/claim", r#"{"worker":"w"}"#).await.refused(422, "invalid_field");
}

#[tokio::test]
async fn a_claim_waits_for_the_first_task() {
    let server = Server::new();
    let waiting = async {
        let start = std::time::Instant::now();
        let body = r#"{"worker":"w","types":["sync"],"wait":10}"#;
        let claimed = server.ask(WORKER, "POST", "/workers/claim", body).await.is(200).json();
        (claimed, start.elapsed())
    };
    let enqueue = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.enqueue(r#"{"type":"sync"}"#).await
    };
    let ((claimed, waited), id) = soon(async { tokio::join!(waiting, enqueue) }).await;
    assert_eq!(claimed["tasks"][0]["id"], id);
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    let workers = server.get("/workers").await.is(200).json();
    assert_eq!(workers["workers"][0]["id"], "w");
    assert_eq!(
        (&workers["workers"][0]["remote"], &workers["workers"][0]["alive"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(workers["workers"][0]["types"], json!(["sync"]));
}

#[tokio::test]
async fn what_a_caller_that_hung_up_had_claimed_is_given_back() {
    let server = Server::new();
    let body = r#"{"worker":"w","types":["sync"],"wait":5}"#;
    let claim = server.ask(WORKER, "POST", "/workers/claim", body);
    let hung_up = tokio::time::timeout(Duration::from_millis(300), claim).await;
    assert!(hung_up.is_err());
    let id = server.enqueue(r#"{"type":"sync"}"#).await;
    let back = async {
        loop {
            let task = server.get(&format!("/tasks/{id}")).await.is(200).json();
            if task["attempts"][0]["outcome"] == "released" {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let task = soon(back).await;
    assert_eq!((&task["state"], &task["losses"]), (&json!("pending"), &json!(0)));
}
