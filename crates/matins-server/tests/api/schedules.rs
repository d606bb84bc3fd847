//! Schedules over the API.

use serde_json::{Value, json};

use crate::harness::{Server, VIEWER};

const TICK: &str =
    r#"{"schedule":"0 2 * * *","timezone":"Asia/Shanghai","type":"sync","payload":{"n":1}}"#;

#[tokio::test]
async fn a_schedule_is_created_replaced_read_back_and_removed() {
    let server = Server::new();
    let made = server.put("/schedules/nightly", TICK).await.is(201).json();
    assert_eq!(made["name"], "nightly");
    assert_eq!(made["state"], "active");
    assert_eq!(made["managed_by"], "api");
    assert_eq!(made["grace"], 60);
    let next = made["next_fire"].as_str().unwrap();
    assert!(next.ends_with("T18:00:00Z"), "{next}");
    // What was answered may be sent back as it is.
    let again = server.put("/schedules/nightly", &made.to_string()).await.is(200).json();
    assert_eq!(again["created_at"], made["created_at"]);
    let utc = server.put("/schedules/utc", r#"{"schedule":"@daily","type":"sync"}"#).await.is(201);
    assert_eq!(utc.json()["timezone"], "UTC");
    let list = server.ask(VIEWER, "GET", "/schedules", "").await.is(200).json();
    assert_eq!(list["schedules"].as_array().unwrap().len(), 2);
    assert_eq!(list["next_cursor"], Value::Null);
    server.delete("/schedules/nightly").await.is(204);
    server.get("/schedules/nightly").await.refused(404, "not_found");
    server.delete("/schedules/nightly").await.refused(404, "not_found");
    server.get("/schedules/nowhere/occurrences").await.refused(404, "not_found");
}

#[tokio::test]
async fn bad_schedules_are_refused_by_field() {
    let server = Server::new();
    for (body, code, field) in [
        (r#"{"schedule":"* * * *","type":"sync"}"#, "cron_invalid", "schedule"),
        (r#"{"schedule":"0 0 30 2 *","type":"sync"}"#, "never_fires", "schedule"),
        (
            r#"{"schedule":"@daily","timezone":"CEST","type":"sync"}"#,
            "unknown_timezone",
            "timezone",
        ),
        (r#"{"schedule":"@daily"}"#, "invalid_field", "type"),
        (r#"{"schedule":"@daily","type":"sync","overlap":"maybe"}"#, "invalid_field", "overlap"),
        (r#"{"schedule":"@daily","type":"sync","dst":{"gap":"jump"}}"#, "invalid_field", "dst.gap"),
        (r#"{"schedule":"@daily","type":"sync","grase":1}"#, "invalid_field", "grase"),
        (r#"{"schedule":"@daily","type":"sync","name":"other"}"#, "invalid_field", "name"),
        (
            r#"{"schedule":"@daily","type":"sync","catch_up_window":"soon"}"#,
            "invalid_field",
            "catch_up_window",
        ),
        (
            r#"{"schedule":"@daily","type":"sync","blackout":[{"from":"22:00"}]}"#,
            "invalid_field",
            "blackout[0].to",
        ),
        (
            r#"{"schedule":"@daily","type":"sync","execution_key":"{{ nope }}"}"#,
            "invalid_field",
            "execution_key",
        ),
    ] {
        let problem = server.put("/schedules/s", body).await.refused(422, code);
        assert_eq!(problem["field"], field, "{body}: {problem}");
    }
    server.get("/schedules/s").await.refused(404, "not_found");
}

#[tokio::test]
async fn pause_resume_trigger_and_history() {
    let server = Server::new();
    server.put("/schedules/nightly", TICK).await.is(201);
    let paused =
        server.post("/schedules/nightly/pause", r#"{"note":"holiday"}"#).await.is(200).json();
    assert_eq!(paused["state"], "paused");
    assert_eq!(
        server.post("/schedules/nightly/resume", "").await.is(200).json()["state"],
        "active"
    );
    let fired = server.post("/schedules/nightly/trigger", "").await.is(200).json();
    assert_eq!((&fired["kind"], &fired["outcome"]), (&json!("manual"), &json!("fired")));
    let task =
        server.get(&format!("/tasks/{}", fired["task_id"].as_str().unwrap())).await.is(200).json();
    assert_eq!(task["schedule"], "nightly");
    assert_eq!(task["occurrence"], fired["label"]);
    let labelled = server
        .post("/schedules/nightly/trigger", r#"{"for":"2026-01-15T02:00:00"}"#)
        .await
        .is(200)
        .json();
    assert_eq!(labelled["time"], "2026-01-14T18:00:00Z");
    server
        .post("/schedules/nightly/trigger", r#"{"for":"last tuesday"}"#)
        .await
        .refused(422, "invalid_field");
    let history = server.get("/schedules/nightly/occurrences?limit=1").await.is(200).json();
    assert_eq!(history["occurrences"][0]["label"], labelled["label"]);
    for act in ["pause", "resume", "trigger"] {
        server.post(&format!("/schedules/none/{act}"), "").await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn backfills_are_planned_and_started() {
    let server = Server::new();
    server.put("/schedules/nightly", TICK).await.is(201);
    let range = r#""from":"2026-01-01T00:00:00Z","to":"2026-01-04T00:00:00Z""#;
    let path = "/schedules/nightly/backfill";
    let plan = server.post(path, &format!(r#"{{{range},"dry_run":true}}"#)).await.is(200).json();
    assert_eq!(plan["count"], 3);
    assert_eq!(
        plan["labels"],
        json!(["2026-01-02T02:00:00", "2026-01-03T02:00:00", "2026-01-04T02:00:00"])
    );
    let started = server
        .post(path, &format!(r#"{{{range},"mode":"missing+failed","concurrency":2}}"#))
        .await
        .is(202)
        .json();
    assert_eq!((&started["kind"], &started["total"]), (&json!("backfill"), &json!(3)));
    for (bad, field) in [
        (format!(r#"{{{range},"mode":"some"}}"#), "mode"),
        (format!(r#"{{{range},"concurrency":0}}"#), "concurrency"),
        (r#"{"from":"2026-01-04T00:00:00Z","to":"2026-01-04T00:00:00Z"}"#.to_owned(), "to"),
        (r#"{"from":"2026-01-04","to":"2026-01-05T00:00:00Z"}"#.to_owned(), "from"),
    ] {
        assert_eq!(server.post(path, &bad).await.refused(422, "invalid_field")["field"], field);
    }
}

#[tokio::test]
async fn previews_need_no_store_and_a_schedule_may_be_named_preview() {
    let server = Server::new();
    let body = r#"{"schedule":"30 2 * * *","timezone":"America/New_York","after":"2026-03-07T12:00:00Z","count":2}"#;
    let preview = server.ask(VIEWER, "POST", "/schedules/preview", body).await.is(200).json();
    assert_eq!(preview["fires"][0]["utc"], "2026-03-08T07:00:00Z");
    assert_eq!(preview["fires"][0]["notes"], json!(["dst_gap"]));
    assert_eq!(preview["timezone"], "America/New_York");
    let plain = server.post("/schedules/preview", r#"{"schedule":"@hourly"}"#).await.is(200).json();
    assert_eq!((plain["fires"].as_array().unwrap().len(), &plain["timezone"]), (10, &json!("UTC")));
    for (bad, code) in [
        (r#"{"schedule":"61 * * * *"}"#, "cron_invalid"),
        (r#"{"schedule":"@daily","timezone":"EST"}"#, "unknown_timezone"),
        (r#"{"schedule":"@daily","count":1001}"#, "invalid_field"),
        (r#"{"schedule":"@daily","count":0}"#, "invalid_field"),
    ] {
        server.post("/schedules/preview", bad).await.refused(422, code);
    }
    server.put("/schedules/preview", TICK).await.is(201);
    assert_eq!(server.get("/schedules/preview").await.is(200).json()["name"], "preview");
    server.put("/schedules/a%2Fb%20%E2%82%AC", TICK).await.is(201);
    assert_eq!(server.get("/schedules/a%2Fb%20%E2%82%AC").await.is(200).json()["name"], "a/b €");
}

#[tokio::test]
async fn a_file_keeps_its_schedules() {
    let server = Server::new();
    let spec = matins_core::schedule::ScheduleSpec::new("filed", "@daily", "sync");
    server.client().apply_file(&[spec]).await.unwrap();
    assert_eq!(server.get("/schedules/filed").await.is(200).json()["managed_by"], "file");
    server.put("/schedules/filed", TICK).await.refused(409, "managed_by_file");
    server.delete("/schedules/filed").await.refused(409, "managed_by_file");
    server.post("/schedules/filed/trigger", "").await.is(200);
    server.post("/schedules/filed/pause", "").await.is(200);
}

#[tokio::test]
async fn a_trigger_says_when_its_key_is_taken() {
    let server = Server::new();
    let keyed = r#"{"schedule":"0 2 * * *","type":"sync","execution_key":"{{ schedule.name }}"}"#;
    server.put("/schedules/once", keyed).await.is(201);
    let trigger = async || server.post("/schedules/once/trigger", "").await.is(200).json();
    let first = trigger().await;
    assert_eq!(first["deduplicated"], false);
    let live = trigger().await;
    assert_eq!((&live["deduplicated"], &live["task_id"]), (&json!(true), &first["task_id"]));
    assert_ne!(live["label"], first["label"], "two triggers are two occurrences");
    server.settle("sync", r#""outcome":"completed","result":1"#).await;
    let completed = trigger().await;
    assert_eq!(completed["deduplicated"], true);
    assert_eq!(completed["task_id"], first["task_id"]);
    let metrics = server.get("/metrics").await.is(200);
    assert!(metrics.text().contains("matins_deduplicated_total 2"), "{}", metrics.text());
    assert!(metrics.text().contains("matins_enqueued_total{type=\"sync\"} 1"));
}
