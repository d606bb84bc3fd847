//! What people do at three in the morning: dead letters, pools, freeze, ledger, tokens, status.

use std::collections::BTreeMap;

use jiff::Timestamp;
use matins_core::alert::channel::{Channel, Lang, Secret, To};
use matins_core::alert::digest::Digest;
use matins_core::alert::policy::Policy;
use matins_core::alert::render::{Wire, render};
use matins_core::alert::{Alert, Rule, Severity};
use serde_json::{Value, json};

use crate::harness::{ADMIN, OPERATOR, Server, VIEWER};

#[tokio::test]
async fn dead_letters_are_listed_grouped_replayed_and_dismissed() {
    let server = Server::new();
    for n in 0..3 {
        server.enqueue(&format!(r#"{{"type":"sync","payload":{n}}}"#)).await;
        server.fail("sync", &format!("cannot open order {n}")).await;
    }
    server.enqueue(r#"{"type":"other"}"#).await;
    let other = server.fail("other", "permission denied").await;
    let list = server.get("/dead_letters?type=sync&limit=2").await.is(200).json();
    assert_eq!(list["dead_letters"].as_array().unwrap().len(), 2);
    assert!(list["next_cursor"].is_string());
    let groups = server.get("/dead_letters?group_by=error").await.is(200).json();
    assert_eq!(groups["groups"][0]["count"], 3);
    assert_eq!(groups["groups"][0]["class"], "permanent");
    let fingerprint = groups["groups"][0]["fingerprint"].as_str().unwrap();
    let dry = format!(r#"{{"filter":{{"fingerprint":"{fingerprint}"}},"dry_run":true}}"#);
    let dry = server.post("/dead_letters/replay", &dry).await.is(200).json();
    assert_eq!((&dry["count"], dry["sample"].as_array().unwrap().len()), (&json!(3), 3));
    assert_eq!(dry["oldest"], groups["groups"][0]["oldest"]);

    let replay = format!(
        r#"{{"filter":{{"fingerprint":"{fingerprint}"}},"canary":true,"rate":"30/m","reason":"fixed"}}"#
    );
    let operation = server.post("/dead_letters/replay", &replay).await.is(202).json();
    assert_eq!((&operation["kind"], &operation["total"]), (&json!("replay"), &json!(3)));
    let path = format!("/operations/{}", operation["id"].as_str().unwrap());
    assert_eq!(server.get(&path).await.is(200).json()["reason"], "fixed");

    let dismiss = format!(r#"{{"ids":["{other}"],"reason":"gone"}}"#);
    let dismissed = server.post("/dead_letters/dismiss", &dismiss).await.is(200).json();
    assert_eq!(dismissed, json!({ "dismissed": 1, "refused": [] }));
    let again = server.post("/dead_letters/dismiss", &dismiss).await.is(200).json();
    assert_eq!(again["refused"], json!([other]));
    let shown = server.get(&format!("/tasks/{other}")).await.is(200).json();
    assert_eq!(shown["dismissed"]["by"], "admin");
    assert_eq!(shown["dismissed"]["reason"], "gone");
}

#[tokio::test]
async fn acts_on_dead_letters_must_say_which() {
    let server = Server::new();
    let field = async |path: &str, body: &str| {
        server.post(path, body).await.refused(422, "invalid_field")["field"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let replay = "/dead_letters/replay";
    assert_eq!(field(replay, "{}").await, "filter");
    assert_eq!(field(replay, r#"{"ids":[]}"#).await, "ids");
    assert_eq!(field(replay, r#"{"ids":["x"]}"#).await, "ids[0]");
    assert_eq!(
        field(replay, r#"{"ids":["0190f6f0-0000-7000-8000-000000000000"],"filter":{}}"#).await,
        "filter"
    );
    assert_eq!(field(replay, r#"{"filter":{"typ":"x"}}"#).await, "filter.typ");
    assert_eq!(field(replay, r#"{"filter":{},"rate":"1/h"}"#).await, "rate");
    assert_eq!(field(replay, r#"{"filter":{},"rate":10}"#).await, "rate");
    assert_eq!(field("/dead_letters/dismiss", r#"{"filter":{}}"#).await, "reason");
    assert_eq!(field("/dead_letters/dismiss", r#"{"filter":{},"reason":" "}"#).await, "reason");
    server.get("/dead_letters?group_by=type").await.refused(422, "invalid_field");
    let unknown = r#"{"ids":["0190f6f0-0000-7000-8000-000000000000"]}"#;
    server.post(replay, unknown).await.refused(404, "not_found");
}

#[tokio::test]
async fn pools_are_listed_paused_resumed_and_resized() {
    let server = Server::new();
    server.enqueue(r#"{"type":"sync"}"#).await;
    server.enqueue(r#"{"type":"sync"}"#).await;
    server.claim("sync").await;
    let pool = async |name: &str| {
        let pools = server.get("/pools").await.is(200).json();
        pools["pools"].as_array().unwrap().iter().find(|p| p["name"] == name).unwrap().clone()
    };
    let io = pool("io_pool").await;
    assert_eq!((&io["size"], &io["busy"], &io["ready"]), (&json!(20), &json!(1), &json!(1)));
    assert_eq!(pool("default").await["size"], 10);
    server.post("/pools/io_pool/pause", r#"{"note":"vendor is down"}"#).await.is(200);
    let io = pool("io_pool").await;
    assert_eq!((&io["paused"], &io["note"]), (&json!(true), &json!("vendor is down")));
    let set = server.post("/pools/io_pool/resize", r#"{"size":3}"#).await.is(200).json();
    assert_eq!(set, json!({"name":"io_pool","paused":true,"note":"vendor is down","size":3}));
    server.post("/pools/io_pool/resume", "").await.is(200);
    assert_eq!(pool("io_pool").await["size"], 3);
    server.post("/pools/io_pool/resize", r#"{"size":"default"}"#).await.is(200);
    assert_eq!(pool("io_pool").await["size"], 20);
    for bad in
        [r#"{"size":0}"#, r#"{"size":-1}"#, r#"{"size":"many"}"#, r#"{"size":5000000000}"#, "{}"]
    {
        let problem = server.post("/pools/io_pool/resize", bad).await.refused(422, "invalid_field");
        assert_eq!(problem["field"], "size");
    }
    server.post("/pools/nowhere/pause", "").await.refused(404, "not_found");
    server.ask(VIEWER, "POST", "/pools/io_pool/pause", "").await.refused(403, "forbidden");
}

#[tokio::test]
async fn freeze_thaw_and_status() {
    let server = Server::new();
    let frozen = server.post("/freeze", r#"{"reason":"restore"}"#).await.is(200).json();
    assert_eq!(
        (&frozen["frozen"]["by"], &frozen["frozen"]["reason"]),
        (&json!("admin"), &json!("restore"))
    );
    server.post("/freeze", "").await.refused(400, "invalid_json");
    server.post("/freeze", "{}").await.refused(422, "invalid_field");
    server.enqueue(r#"{"type":"sync"}"#).await;
    let status = server.ask(VIEWER, "GET", "/status", "").await.is(200).json();
    assert_eq!((&status["mode"], &status["health"]), (&json!("normal"), &json!("ok")));
    assert_eq!(status["tasks"]["pending"], 1);
    assert_eq!(status["tasks"]["running"], 0);
    assert_eq!(status["frozen"]["reason"], "restore");
    assert_eq!(status["store"]["kind"], "memory");
    assert_eq!(server.post("/thaw", "").await.is(200).json(), json!({ "frozen": null }));
    assert_eq!(server.get("/healthz").await.is(200).json(), json!({"status":"ok","stalled":[]}));
    assert_eq!(server.get("/readyz").await.is(200).json()["status"], "ready");
    let metrics = server.ask(VIEWER, "GET", "/metrics", "").await.is(200);
    assert!(
        metrics.text().contains("matins_enqueued_total{type=\"sync\"} 1"),
        "{}",
        metrics.text()
    );
}

#[tokio::test]
async fn the_ledger_shows_and_forgets_keys() {
    let server = Server::new();
    server.enqueue(r#"{"type":"sync","execution_key":"a/b c"}"#).await;
    let path = "/ledger/sync/a%2Fb%20c";
    assert_eq!(server.get(path).await.is(200).json()["state"], "pending");
    server.delete(path).await.refused(409, "wrong_state");
    let id = server.settle("sync", r#""outcome":"completed","result":18446744073709551615"#).await;
    let entry = server.get(path).await.is(200);
    assert!(entry.text().contains(r#""result":18446744073709551615"#));
    assert_eq!(entry.json()["task_id"], id);
    server.ask(OPERATOR, "DELETE", path, "").await.refused(403, "forbidden");
    assert_eq!(server.delete(path).await.is(204).bytes, b"");
    server.get(path).await.refused(404, "not_found");
    server.enqueue(r#"{"type":"sync","execution_key":"a/b c"}"#).await;
}

#[tokio::test]
async fn tokens_are_made_used_and_revoked() {
    let server = Server::new();
    let made = server
        .post("/tokens", r#"{"name":"ci","role":"enqueue","types":["sync"]}"#)
        .await
        .is(201)
        .json();
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert!(secret.len() > 40);
    server.ask(&secret, "POST", "/tasks", r#"{"type":"sync"}"#).await.is(201);
    server.ask(&secret, "POST", "/tasks", r#"{"type":"other"}"#).await.refused(403, "forbidden");
    let list = server.get("/tokens").await.is(200);
    assert!(!list.text().contains(&secret) && !list.text().contains("hash"));
    assert_eq!(list.json()["tokens"][0]["name"], "ci");
    server.post("/tokens", r#"{"name":"ci","role":"viewer"}"#).await.refused(409, "duplicate_key");
    for (bad, field) in [
        (r#"{"name":"x","role":"root"}"#, "role"),
        (r#"{"name":"x","role":"viewer","types":["a"]}"#, "types"),
        (r#"{"name":"","role":"viewer"}"#, "name"),
        (r#"{"role":"viewer"}"#, "name"),
    ] {
        assert_eq!(server.post("/tokens", bad).await.refused(422, "invalid_field")["field"], field);
    }
    server.delete("/tokens/ci").await.is(204);
    server.ask(&secret, "POST", "/tasks", r#"{"type":"sync"}"#).await.refused(401, "unauthorized");
    server.delete("/tokens/ci").await.refused(404, "not_found");
    // One made by another process is known as soon as it is used.
    let secret = matins_server::new_secret();
    let token = matins_core::store::Token {
        name: "cli".to_owned(),
        role: "viewer".to_owned(),
        types: Vec::new(),
        hash: matins_server::auth::hash_hex(&secret),
        created_at: server.client().now(),
        created_by: "local:ann".to_owned(),
    };
    server.client().put_token(&token, "local:ann").await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    server.ask(&secret, "GET", "/tasks", "").await.is(200);
}

#[tokio::test]
async fn a_local_caller_needs_no_token_and_is_named_in_the_audit_log() {
    let server = Server::new();
    let task = server.locally("POST", "/tasks", r#"{"type":"command"}"#).await.is(201).json();
    assert_eq!(task["created_by"], "local:ann");
    let path = format!("/tasks/{}/cancel", task["id"].as_str().unwrap());
    server.locally("POST", &path, "").await.is(200);
    let audit = server.ask(ADMIN, "GET", "/audit?limit=1", "").await.is(200).json();
    assert_eq!(audit["audit"][0]["who"], "local:ann");
}

/// K07: a secret that a command gets is for those who work, not for those who look.
#[tokio::test]
async fn a_viewer_does_not_see_the_secrets_in_payloads() {
    let server = Server::new();
    let payload = r#"{"argv":["x"],"env":{"PASSWORD":"S3KR1T-42"}}"#;
    let task = format!(r#"{{"type":"command","payload":{payload}}}"#);
    server.enqueue(&task).await;
    let failed = server.fail("command", "no").await;
    let id = server.enqueue(&task).await;
    let schedule = format!(r#"{{"schedule":"0 2 * * *","type":"command","payload":{payload}}}"#);
    server.put("/schedules/s", &schedule).await.is(201);
    for path in [
        "/tasks".to_owned(),
        format!("/tasks/{id}"),
        format!("/tasks/{failed}"),
        "/dead_letters".to_owned(),
        "/schedules".to_owned(),
        "/schedules/s".to_owned(),
    ] {
        let seen = server.ask(VIEWER, "GET", &path, "").await.is(200);
        assert!(!seen.text().contains("S3KR1T-42"), "{path}: {}", seen.text());
        assert!(seen.text().contains(r#""env":{"PASSWORD":"***"}"#), "{path}: {}", seen.text());
        for token in [OPERATOR, ADMIN] {
            let seen = server.ask(token, "GET", &path, "").await.is(200);
            assert!(seen.text().contains("S3KR1T-42"), "{path}: {}", seen.text());
        }
    }
    let claim = r#"{"worker":"w1","types":["command"]}"#;
    let claimed = server.post("/workers/claim", claim).await.is(200);
    assert!(claimed.text().contains(payload), "whoever runs it gets it: {}", claimed.text());
}

/// Wherever an alert sends people to, there is something.
#[tokio::test]
async fn links_of_alerts_lead_somewhere() {
    let server = Server::new();
    server.enqueue(r#"{"type":"sync"}"#).await;
    let task = server.fail("sync", "boom").await;
    server.put("/schedules/nightly", r#"{"schedule":"@daily","type":"sync"}"#).await.is(201);
    let url = "https://matins.example/";
    let policy = Policy { public_url: Some(url.to_owned()), ..Policy::default() };
    let channel = Channel {
        name: "ops".to_owned(),
        to: To::Webhook { url: Secret::new("http://x"), secret: None, headers: BTreeMap::new() },
        lang: Lang::En,
        at_least: Severity::Info,
        quiet: None,
        per_minute: 60,
    };
    let now = Timestamp::UNIX_EPOCH;
    let link = |digests: &[Digest]| {
        let Wire::Http { body, .. } = render(&channel, digests, &policy, now) else { panic!() };
        let body: Value = serde_json::from_str(&body).unwrap();
        let link = body["link"].as_str().unwrap();
        link.strip_prefix("https://matins.example/api/v1").expect("of this API").to_owned()
    };
    for rule in Rule::ALL {
        for count in [1, 2] {
            let alert = Alert::new(rule, "nightly", now).fact("task", &task);
            let mut digest = Digest::of(&alert, Severity::Warning);
            (1..count).for_each(|_| digest.add(&alert, Severity::Warning));
            let one = link(std::slice::from_ref(&digest));
            server.get(&one).await.is(200);
            let many = link(&[digest.clone(), digest]);
            server.get(&many).await.is(200);
        }
    }
}
