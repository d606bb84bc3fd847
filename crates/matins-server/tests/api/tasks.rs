//! Tasks over their whole life, and payloads that must come back byte for byte.

use axum::body::Body;
use matins_core::limits::Limits;
use serde_json::{Value, json};

use crate::harness::{ADMIN, OPERATOR, SHOP, Server, WORKER};

/// Numbers that a double cannot hold, a lone surrogate, NUL, order, repeats, inner blanks.
const PAYLOAD: &str = r#"{"id":1970670598291982290,"m":9007199254740993,"n":-9223372036854775808,"u":18446744073709551615,"d":0.1,"e":1E400,"z":-0, "s":"x\u0000y\ud800","k":1,"k":2,"":[]}"#;

#[track_caller]
fn holds(text: &str, name: &str, raw: &str) {
    assert!(text.contains(&format!("\"{name}\":{raw}")), "{name} was changed in {text}");
}

#[tokio::test]
async fn payloads_and_results_come_back_byte_for_byte_through_every_route() {
    let server = Server::new();
    let body = format!(r#"{{"type":"sync","payload": {PAYLOAD} }}"#);
    let created = server.post("/tasks", &body).await.is(201);
    holds(created.text(), "payload", PAYLOAD);
    let id = created.json()["id"].as_str().unwrap().to_owned();
    for path in [format!("/tasks/{id}"), "/tasks?state=pending".to_owned()] {
        holds(server.get(&path).await.is(200).text(), "payload", PAYLOAD);
    }
    let claim = server.post("/workers/claim", r#"{"worker":"w","types":["sync"]}"#).await.is(200);
    holds(claim.text(), "payload", PAYLOAD);
    let task = &claim.json()["tasks"][0];
    let proof = format!(r#""id":"{id}","fence":{},"token":{}"#, task["fence"], task["token"]);
    let end = r#""outcome":"failed","permanent":true,"error":{"message":"a\u0000b"}"#;
    let settled =
        server.post("/workers/settle", &format!(r#"{{"items":[{{{proof},{end}}}]}}"#)).await;
    assert_eq!(settled.is(200).json()["items"][0]["state"], "failed");
    let dead = server.get("/dead_letters").await.is(200);
    holds(dead.text(), "payload", PAYLOAD);
    assert_eq!(dead.json()["dead_letters"][0]["error"]["message"], "a\0b");
    let dry = r#"{"filter":{},"dry_run":true}"#;
    holds(server.post("/dead_letters/replay", dry).await.is(200).text(), "payload", PAYLOAD);

    // Edited, replayed, completed with the same text as result, and copied.
    let edited = PAYLOAD.replace("0.1", "1.10");
    let retry = format!(r#"{{"payload":{edited},"reason":"repaired"}}"#);
    let retried = server.post(&format!("/tasks/{id}/retry"), &retry).await.is(200);
    holds(retried.text(), "payload", &edited);
    server.settle("sync", &format!(r#""outcome":"completed","result":{PAYLOAD}"#)).await;
    let done = server.get(&format!("/tasks/{id}")).await.is(200);
    holds(done.text(), "payload", &edited);
    holds(done.text(), "result", PAYLOAD);
    let copy = server.post(&format!("/tasks/{id}/rerun"), "").await.is(201);
    holds(copy.text(), "payload", &edited);
    let batch = format!(r#"[{{"type":"sync","payload":{PAYLOAD}}}]"#);
    holds(server.post("/tasks/batch", &batch).await.is(200).text(), "payload", PAYLOAD);
    let schedule = format!(r#"{{"schedule":"@daily","type":"sync","payload":{PAYLOAD}}}"#);
    holds(server.put("/schedules/nightly", &schedule).await.is(201).text(), "payload", PAYLOAD);
    holds(server.get("/schedules").await.is(200).text(), "payload", PAYLOAD);
}

#[tokio::test]
async fn a_task_shows_every_field_and_the_policy_that_holds() {
    let server = Server::new();
    let task = server.post("/tasks", r#"{"type":"sync","delay":"1h"}"#).await.is(201).json();
    let at = task["run_at"].as_str().unwrap();
    assert!(at.ends_with('Z') && at.len() == "2026-11-29T18:00:00.123456Z".len(), "{at}");
    for (name, value) in [
        ("type", json!("sync")),
        ("state", json!("pending")),
        ("view", json!("scheduled")),
        ("payload", Value::Null),
        ("pool", json!("io_pool")),
        ("priority", json!(0)),
        ("tags", json!([])),
        ("attempt", json!(0)),
        ("max_retries", json!(1)),
        ("timeout", json!(600)),
        ("schedule", Value::Null),
        ("occurrence", Value::Null),
        ("created_by", json!("admin")),
        ("result", Value::Null),
        ("error", Value::Null),
        ("deduplicated", json!(false)),
        ("dismissed", Value::Null),
        ("durability", json!("store")),
        ("expires_at", Value::Null),
        ("execution_key", Value::Null),
        ("started_at", Value::Null),
        ("finished_at", Value::Null),
        ("cancel_requested_at", Value::Null),
    ] {
        assert_eq!(task.get(name), Some(&value), "{name}");
    }
    let own = r#"{"type":"sync","timeout":"none","max_retries":0,"priority":-100,"tags":["a"]}"#;
    let own = server.post("/tasks", own).await.is(201).json();
    assert_eq!((&own["timeout"], &own["max_retries"]), (&json!("none"), &json!(0)));
    assert_eq!(own["view"], "ready");
}

#[tokio::test]
async fn keys_are_compared_byte_by_byte_and_answer_for_their_task() {
    let server = Server::new();
    let with = |key: &str| format!(r#"{{"type":"sync","execution_key":{key}}}"#);
    let first = server.post("/tasks", &with("\"orders\"")).await.is(201).json();
    let again = server.post("/tasks", &with("\"orders\"")).await.is(200).json();
    assert_eq!((&again["id"], &again["deduplicated"]), (&first["id"], &json!(true)));
    for other in [
        "\"Orders\"",
        "\"orders \"",
        "\"\\u006frders2\"",
        "\"caf\\u00e9\"",
        "\"cafe\\u0301\"",
        "\"0\"",
    ] {
        server.post("/tasks", &with(other)).await.is(201);
    }
    for none in ["null"] {
        server.post("/tasks", &with(none)).await.is(201);
        server.post("/tasks", &with(none)).await.is(201);
    }
    for (bad, field) in
        [("\"\"", "execution_key"), ("\"a\\u0000b\"", "execution_key"), ("0", "execution_key")]
    {
        assert_eq!(
            server.post("/tasks", &with(bad)).await.refused(422, "invalid_field")["field"],
            field
        );
    }
    let long = format!("\"{}\"", "k".repeat(300));
    let problem = server.post("/tasks", &with(&long)).await.refused(413, "too_large");
    assert!(problem["detail"].as_str().unwrap().contains("key_bytes"));

    let reject = r#"{"type":"sync","execution_key":"orders","on_duplicate":"reject"}"#;
    let problem = server.post("/tasks", reject).await.refused(409, "duplicate_key");
    assert_eq!(problem["task_id"], first["id"]);
    let replace =
        r#"{"type":"sync","execution_key":"orders","on_duplicate":"replace","payload":7}"#;
    let replaced = server.post("/tasks", replace).await.is(200).json();
    assert_eq!((&replaced["id"], &replaced["payload"]), (&first["id"], &json!(7)));
    assert_eq!(replaced["deduplicated"], false);

    // A failure lets go of the key; a completion never does.
    let with = r#"{"type":"other","execution_key":"orders"}"#;
    let failed = server.enqueue(with).await;
    server.fail("other", "no").await;
    let second = server.enqueue(with).await;
    assert_ne!(second, failed);
    server.settle("other", r#""outcome":"completed""#).await;
    let third = server.post("/tasks", with).await.is(200).json();
    assert_eq!((&third["id"], &third["state"]), (&json!(second), &json!("completed")));
}

#[tokio::test]
async fn a_clients_own_id_makes_a_repeat_harmless() {
    let server = Server::new();
    let id = uuid::Uuid::now_v7();
    let body = format!(r#"{{"type":"sync","id":"{id}"}}"#);
    server.post("/tasks", &body).await.is(201);
    assert_eq!(server.post("/tasks", &body).await.is(200).json()["deduplicated"], true);
    let both = format!(r#"{{"type":"sync","id":"{id}","execution_key":"k"}}"#);
    assert_eq!(server.post("/tasks", &both).await.refused(422, "invalid_field")["field"], "id");
}

#[tokio::test]
async fn batches_answer_item_by_item() {
    let server = Server::new();
    let array = r#"[{"type":"sync","execution_key":"a"},{"type":"sync","execution_key":"a"},{"typ":"x"},7,{"type":"sync","priority":101},{"type":"sync"}]"#;
    let answer = server.post("/tasks/batch", array).await.is(200).json();
    let statuses: Vec<u64> =
        answer["items"].as_array().unwrap().iter().map(|i| i["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 200, 422, 422, 422, 201]);
    assert_eq!(answer["items"][1]["task"]["deduplicated"], true);
    assert_eq!(answer["items"][2]["error"]["field"], "typ");
    assert_eq!(answer["items"][4]["error"]["field"], "priority");

    let lines =
        "{\"type\":\"sync\"}\n\n{broken\r\n \u{00ff}\n{\"type\":\"sync\",\"execution_key\":\"b\"}";
    let mut lines = lines.as_bytes().to_vec();
    lines.extend_from_slice(b"\n{\"type\":\"\xff\"}\n");
    let request = Server::request(ADMIN, "POST", "/tasks/batch")
        .header("content-type", "application/x-ndjson")
        .body(Body::from(lines))
        .unwrap();
    let answer = server.send(request).await.is(200).json();
    let items = answer["items"].as_array().unwrap();
    let of = |n: usize| (items[n]["status"].as_u64().unwrap(), items[n]["error"]["code"].as_str());
    assert_eq!(items.len(), 5);
    assert_eq!(of(0), (201, None));
    assert_eq!(of(1), (400, Some("invalid_json")));
    assert_eq!(of(2), (400, Some("invalid_json")));
    assert_eq!(of(3), (201, None));
    assert_eq!(of(4), (400, Some("invalid_json")));
    assert_eq!(server.get("/tasks?limit=1000").await.json()["tasks"].as_array().unwrap().len(), 4);

    server.post("/tasks/batch", "[{},").await.refused(400, "invalid_json");
    server.post("/tasks/batch", "{}").await.refused(422, "invalid_field");
    server.post("/tasks/batch", "").await.refused(400, "invalid_json");
    assert_eq!(server.post("/tasks/batch", "[]").await.is(200).json(), json!({ "items": [] }));
}

#[tokio::test]
async fn batches_are_bounded_by_items_and_bytes() {
    let limits = Limits { batch_items: 3, batch_bytes: 200, ..Limits::default() };
    let server = Server::with_limits(limits);
    let item = r#"{"type":"sync"}"#;
    let three = [item; 3].join(",");
    server.post("/tasks/batch", &format!("[{three}]")).await.is(200);
    let four = server.post("/tasks/batch", &format!("[{three},{item}]")).await;
    assert!(four.refused(413, "too_large")["detail"].as_str().unwrap().contains("batch_items"));
    let long = format!(r#"[{{"type":"sync","payload":"{}"}}]"#, "x".repeat(300));
    let long = server.post("/tasks/batch", &long).await.refused(413, "too_large");
    assert!(long["detail"].as_str().unwrap().contains("batch_bytes"));
    let lines = Server::request(ADMIN, "POST", "/tasks/batch")
        .header("content-type", "application/x-ndjson")
        .body(Body::from([item; 4].join("\n")))
        .unwrap();
    server.send(lines).await.refused(413, "too_large");
    assert_eq!(server.get("/tasks").await.json()["tasks"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn large_batches_are_cheap() {
    let server = Server::new();
    let item = r#"{"type":"sync","payload":{"order":12345,"lines":[1,2,3]},"tags":["a","b"]}"#;
    let body = format!("[{}]", vec![item; 10_000].join(","));
    let start = std::time::Instant::now();
    let answer = server.post("/tasks/batch", &body).await.is(200);
    let spent = start.elapsed();
    assert_eq!(answer.json()["items"].as_array().unwrap().len(), 10_000);
    // The model store and an unoptimised build are in this figure; it catches what is quadratic.
    assert!(spent < std::time::Duration::from_secs(20), "{spent:?}");
}

#[tokio::test]
async fn lists_filter_page_and_search() {
    let server = Server::new();
    for n in 0..5 {
        let kind = if n % 2 == 0 { "sync" } else { "other" };
        server
            .enqueue(&format!(r#"{{"type":"{kind}","execution_key":"k{n}","tags":["t{n}"]}}"#))
            .await;
    }
    let count = async |query: &str| {
        let list = server.get(&format!("/tasks?{query}")).await.is(200).json();
        list["tasks"].as_array().unwrap().len()
    };
    assert_eq!(count("type=sync").await, 3);
    assert_eq!(count("type=sync&state=pending,failed").await, 3);
    assert_eq!(count("state=failed").await, 0);
    assert_eq!(count("tag=t1").await, 1);
    assert_eq!(count("execution_key=k2&pool=io_pool").await, 1);
    assert_eq!(count("q=oth").await, 2);
    assert_eq!(count("state=&type=&limit=&cursor=").await, 5);
    let mut seen = std::collections::BTreeSet::new();
    let mut path = "/tasks?limit=2".to_owned();
    loop {
        let page = server.get(&path).await.is(200).json();
        for task in page["tasks"].as_array().unwrap() {
            assert!(seen.insert(task["id"].to_string()));
        }
        match page["next_cursor"].as_str() {
            Some(next) => path = format!("/tasks?limit=2&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
}

#[tokio::test]
async fn cancel_answers_by_state() {
    let server = Server::new();
    let waiting = server.enqueue(r#"{"type":"sync"}"#).await;
    let path = format!("/tasks/{waiting}/cancel");
    let cancelled = server.post(&path, r#"{"reason":"not needed"}"#).await.is(200).json();
    assert_eq!(cancelled["state"], "cancelled");
    server.post(&path, "").await.refused(409, "wrong_state");
    let running = server.enqueue(r#"{"type":"sync"}"#).await;
    let (_, proof) = server.claim("sync").await;
    let asked = server.post(&format!("/tasks/{running}/cancel"), "").await.is(202).json();
    assert_eq!(asked["state"], "running");
    assert!(asked["cancel_requested_at"].is_string());
    let beat = format!(r#"{{"worker":"w1","tasks":[{{{proof}}}]}}"#);
    let beat = server.post("/workers/heartbeat", &beat).await.is(200).json();
    assert_eq!((&beat["cancel"], &beat["lost"]), (&json!([running]), &json!([])));
    let audit = server.get("/audit").await.is(200).json();
    assert_eq!(audit["audit"][1]["action"], "task.cancel");
    assert_eq!(audit["audit"][1]["reason"], "not needed");
    server
        .post(&format!("/tasks/{}/cancel", uuid::Uuid::now_v7()), "")
        .await
        .refused(404, "not_found");
}

#[tokio::test]
async fn retry_rerun_and_why() {
    let server = Server::new();
    let later = server.enqueue(r#"{"type":"sync","delay":3600}"#).await;
    let why = server.get(&format!("/tasks/{later}/why")).await.is(200).json();
    assert_eq!((&why["state"], &why["reason"]), (&json!("pending"), &json!("due_later")));
    let now = server.post(&format!("/tasks/{later}/retry"), "").await.is(200).json();
    assert_eq!(now["view"], "ready");
    server.post(&format!("/tasks/{later}/rerun"), "").await.refused(409, "wrong_state");
    server.settle("sync", r#""outcome":"completed""#).await;
    server.post(&format!("/tasks/{later}/retry"), "").await.refused(409, "wrong_state");
    let copy = server.post(&format!("/tasks/{later}/rerun"), "").await.is(201).json();
    assert_ne!(copy["id"], json!(later));

    // A dead letter whose key was taken meanwhile stays one; the holder is shown.
    let dead = server.enqueue(r#"{"type":"other","execution_key":"k"}"#).await;
    server.fail("other", "broken").await;
    let holder = server.enqueue(r#"{"type":"other","execution_key":"k"}"#).await;
    let answer = server.post(&format!("/tasks/{dead}/retry"), "{}").await.is(200).json();
    assert_eq!((&answer["id"], &answer["deduplicated"]), (&json!(holder), &json!(true)));
    assert_eq!(server.get(&format!("/tasks/{dead}")).await.json()["state"], "failed");
}

#[tokio::test]
async fn output_is_given_as_bytes_that_nothing_runs() {
    let server = Server::new();
    let id = server.enqueue(r#"{"type":"sync"}"#).await;
    assert_eq!(server.get(&format!("/tasks/{id}/output")).await.is(200).bytes, b"");
    server
        .settle(
            "sync",
            r#""outcome":"completed","output":"<script>alert(1)</script>\n\u001b[31mred""#,
        )
        .await;
    let output = server.get(&format!("/tasks/{id}/output")).await.is(200);
    assert_eq!(output.text(), "<script>alert(1)</script>\n\u{1b}[31mred");
    assert_eq!(output.header("content-type"), "application/octet-stream");
    assert_eq!(output.header("x-content-type-options"), "nosniff");
    assert!(output.header("content-security-policy").contains("default-src 'none'"));
    assert!(output.header("content-disposition").starts_with("attachment"));
    let detail = server.get(&format!("/tasks/{id}")).await.is(200).json();
    assert_eq!(detail["attempts"][0]["outcome"], "completed");
    assert_eq!(detail["attempts"][0]["output"], "<script>alert(1)</script>\n\u{1b}[31mred");
    assert_eq!(
        server.get(&format!("/tasks/{id}/output?attempt=1")).await.is(200).text().len(),
        output.bytes.len()
    );
    for attempt in ["0", "2"] {
        let path = format!("/tasks/{id}/output?attempt={attempt}");
        server.get(&path).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn an_enqueue_only_token_enqueues_its_types_and_sees_nothing_else() {
    let server = Server::new();
    let secret = r#"{"type":"sync","execution_key":"k","payload":"private"}"#;
    server.post("/tasks", secret).await.is(201);
    let seen = server.ask(SHOP, "POST", "/tasks", secret).await;
    let seen = seen.is(200).json();
    let names: Vec<&String> = seen.as_object().unwrap().keys().collect();
    assert_eq!(names, ["deduplicated", "id", "state"]);
    let own = server.ask(SHOP, "POST", "/tasks", r#"{"type":"sync","payload":1}"#).await.is(201);
    assert_eq!(own.json()["created_by"], "shop");
    server.ask(SHOP, "POST", "/tasks", r#"{"type":"other"}"#).await.refused(403, "forbidden");
    server.ask(SHOP, "POST", "/tasks", r#"{"type":"command"}"#).await.refused(403, "forbidden");
    let batch = r#"[{"type":"sync"},{"type":"command","payload":{"argv":["id"]}}]"#;
    let batch = server.ask(SHOP, "POST", "/tasks/batch", batch).await.is(200).json();
    assert_eq!(
        (&batch["items"][0]["status"], &batch["items"][1]["status"]),
        (&json!(201), &json!(403))
    );
    server.ask(SHOP, "GET", "/tasks", "").await.refused(403, "forbidden");
    server.ask(WORKER, "POST", "/tasks", r#"{"type":"sync"}"#).await.refused(403, "forbidden");
    server.ask(OPERATOR, "POST", "/tasks", r#"{"type":"command"}"#).await.is(201);
}

#[tokio::test]
async fn what_an_ad_hoc_type_runs_is_changed_by_an_admin_only() {
    let server = Server::new();
    let id = server.enqueue(r#"{"type":"command","payload":{"argv":["false"]}}"#).await;
    server.fail("command", "exit 1").await;
    let edit = r#"{"payload":{"argv":["id"]}}"#;
    let path = format!("/tasks/{id}/retry");
    server.ask(OPERATOR, "POST", &path, edit).await.refused(403, "forbidden");
    for body in [
        format!(r#"{{"ids":["{id}"],"payload":{{"argv":["id"]}}}}"#),
        r#"{"filter":{},"payload":1}"#.to_owned(),
        r#"{"filter":{"type":"command"},"payload":1}"#.to_owned(),
    ] {
        server.ask(OPERATOR, "POST", "/dead_letters/replay", &body).await.refused(403, "forbidden");
    }
    let other = r#"{"filter":{"type":"sync"},"payload":1}"#;
    server.ask(OPERATOR, "POST", "/dead_letters/replay", other).await.is(202);
    server.ask(OPERATOR, "POST", &path, "{}").await.is(200);
    server.fail("command", "exit 1").await;
    server.ask(ADMIN, "POST", &path, edit).await.is(200);
}
