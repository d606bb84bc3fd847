//! Remote workers over HTTP: claims, leases, fences. A worker that was away too long can change
//! nothing, whatever it believes.

use std::collections::HashSet;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::seconds_of;
use matins_e2e::clock::unix_now;
use matins_e2e::wait::seconds;
use matins_e2e::{Api, Server, Task, Value, eventually, json};
use rand::RngExt;

/// No executor here knows the type `remote`, so only remote workers run it.
const QUICK_LEASE: &str =
    "lease: 2s\npoll: 100ms\ndefaults:\n  backoff: {initial: 100ms, max: 1s}\n";

fn claim(api: &Api, worker: &str, max: usize, wait: f64) -> Vec<Value> {
    let body = json!({"worker": worker, "types": ["remote"], "max": max, "wait": wait});
    let answer = api.post("/workers/claim", &body).expect(200).json();
    answer["tasks"].as_array().expect("a claim answers tasks").clone()
}

/// The proof that a worker has of its claim.
fn proof(task: &Value) -> Value {
    assert!(task["fence"].is_number(), "{task}");
    assert!(task["token"].is_string(), "{task}");
    assert!(seconds_of(task["lease_until"].as_str().expect("lease_until")) > unix_now(), "{task}");
    json!({"id": task["id"], "fence": task["fence"], "token": task["token"]})
}

fn settled(proof: &Value, fields: &Value) -> Value {
    let mut item = proof.clone();
    for (name, value) in fields.as_object().expect("fields") {
        item[name] = value.clone();
    }
    item
}

/// Settles one item: its status, and the code of its refusal.
fn settle(api: &Api, proof: &Value, fields: &Value) -> (i64, String) {
    let body = json!({"items": [settled(proof, fields)]});
    let answer = api.post("/workers/settle", &body).expect(200).json();
    let item = &answer["items"][0];
    assert_eq!(item["index"], 0, "{answer}");
    let code = item["error"]["code"].as_str().unwrap_or("").to_owned();
    (item["status"].as_i64().expect("a status"), code)
}

fn heartbeat(api: &Api, worker: &str, proofs: &[Value]) -> Value {
    let body = json!({"worker": worker, "tasks": proofs});
    api.post("/workers/heartbeat", &body).expect(200).json()
}

fn remote(api: &Api) -> String {
    api.enqueue(&json!({"type": "remote", "payload": {"n": 1}})).id().to_owned()
}

/// A08.
#[test]
fn a_worker_paused_past_its_lease_is_fenced() {
    let server = Server::with(QUICK_LEASE);
    let api = server.api();
    let id = remote(&api);
    let by_w = claim(&api, "w", 1, 5.0);
    let w = proof(&by_w[0]);
    assert_eq!(by_w[0]["attempt"], 1);
    assert_eq!(by_w[0]["payload"], json!({"n": 1}));

    // W stands still. X asks all the time and gets the task when the lease is over, not before.
    let paused = Instant::now();
    let by_x = eventually("x takes over", seconds(10.0), || claim(&api, "x", 1, 1.0).pop());
    assert!(paused.elapsed() > seconds(1.5), "taken away within its lease: {:?}", paused.elapsed());
    let x = proof(&by_x);
    assert_eq!((by_x["id"].as_str(), by_x["attempt"].as_i64()), (Some(id.as_str()), Some(2)));
    assert!(x["fence"].as_u64() > w["fence"].as_u64(), "fences grow: {w} {x}");
    assert_ne!(w["token"], x["token"]);

    // W wakes while X runs: no word of its counts any more, also in a mixture with X's proof.
    let told = heartbeat(&api, "w", std::slice::from_ref(&w));
    assert_eq!(told["lost"], json!([id]), "{told}");
    let mut forged_token = x.clone();
    forged_token["token"] = w["token"].clone();
    let mut forged_fence = w.clone();
    forged_fence["fence"] = x["fence"].clone();
    let outcomes = [
        json!({"outcome": "completed", "result": "from w"}),
        json!({"outcome": "failed", "error": {"message": "from w"}}),
        json!({"outcome": "snooze", "delay": 5}),
        json!({"outcome": "release"}),
    ];
    for stale in [&w, &forged_token, &forged_fence] {
        for outcome in &outcomes {
            assert_eq!(settle(&api, stale, outcome), (409, "fenced".to_owned()), "{outcome}");
        }
    }
    assert_eq!(heartbeat(&api, "x", std::slice::from_ref(&x))["lost"], json!([]));
    let (status, _) = settle(&api, &x, &json!({"outcome": "completed", "result": "from x"}));
    assert_eq!(status, 200);
    assert_eq!(settle(&api, &w, &outcomes[0]), (409, "fenced".to_owned()));
    let task = api.task(&id);
    assert_eq!((task.state(), &task.0["result"]), ("completed", &json!("from x")));
    assert_eq!(task.attempts()[0]["error"]["class"], "worker_lost", "{:#}", task.0);
    assert_eq!(task.attempts()[0]["worker"], "w");
    assert_eq!(task.attempts()[1]["worker"], "x");
    let fenced = api.metric("matins_fenced_writes_total", "").expect("the metric exists");
    assert!(fenced >= 13.0, "matins_fenced_writes_total {fenced}");
}

/// A08 with one name: a restarted worker called the same is not the one that held the claim.
#[test]
fn the_same_worker_name_does_not_revive_a_claim() {
    let server = Server::with(QUICK_LEASE);
    let api = server.api();
    let id = remote(&api);
    let old = proof(&claim(&api, "w", 1, 5.0)[0]);
    let again = eventually("w gets it again", seconds(10.0), || claim(&api, "w", 1, 1.0).pop());
    let new = proof(&again);
    assert_eq!(again["attempt"], 2);
    let lost = heartbeat(&api, "w", &[old.clone(), new.clone()]);
    assert_eq!(lost["lost"], json!([id]), "{lost}");
    assert_eq!(settle(&api, &old, &json!({"outcome": "completed", "result": 1})).0, 409);
    assert_eq!(api.task(&id).state(), "running");
    assert_eq!(settle(&api, &new, &json!({"outcome": "completed", "result": 2})).0, 200);
    assert_eq!(api.task(&id).0["result"], json!(2));
}

/// A05: settlements come in around the instant at which the sweep takes the claims away.
#[test]
fn settling_while_the_sweep_runs() {
    let server = Server::with(
        "lease: 1s\npoll: 20ms\n\
         defaults:\n  max_losses: 1000\n  backoff: {initial: 10ms, max: 10ms}\n",
    );
    let api = server.api();
    let batch: Vec<_> =
        (0..100).map(|n| json!({"type": "remote", "payload": n, "max_retries": 0})).collect();
    api.post("/tasks/batch", &json!(batch)).expect(200);
    let accepted = Mutex::new(Vec::new());
    let refused = Mutex::new(0);
    thread::scope(|scope| {
        for worker in 0..8 {
            let (api, accepted, refused) = (&api, &accepted, &refused);
            scope.spawn(move || {
                let name = format!("w{worker}");
                loop {
                    let tasks = claim(api, &name, 2, 0.5);
                    if tasks.is_empty() {
                        return;
                    }
                    let until = seconds_of(tasks[0]["lease_until"].as_str().expect("lease_until"));
                    for task in tasks {
                        let edge = until + rand::rng().random_range(-0.20..0.20);
                        thread::sleep(Duration::from_secs_f64((edge - unix_now()).max(0.0)));
                        let result = format!("{name} {}", task["attempt"]);
                        let outcome = json!({"outcome": "completed", "result": result});
                        match settle(api, &proof_of_late(&task), &outcome) {
                            (200, _) => {
                                let id = task["id"].as_str().expect("id").to_owned();
                                accepted.lock().expect("lock").push((id, result));
                            }
                            (409, code) => {
                                assert_eq!(code, "fenced");
                                *refused.lock().expect("lock") += 1;
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                }
            });
        }
    });
    let accepted = accepted.into_inner().expect("lock");
    let refused = refused.into_inner().expect("lock");
    eprintln!("{} settlements accepted, {refused} refused", accepted.len());
    let mut seen = HashSet::new();
    for (id, result) in &accepted {
        assert!(seen.insert(id.clone()), "{id} was completed twice");
        let task = api.task(id);
        assert_eq!(task.state(), "completed", "{:#}", task.0);
        assert_eq!(task.0["result"], json!(result), "{:#}", task.0);
        let completed = task.attempts().iter().filter(|a| a["outcome"] == "completed").count();
        assert_eq!(completed, 1, "{:#}", task.0);
    }
    assert!(accepted.len() > 20 && refused > 5, "the race was not run");
    for task in api.list("type=remote") {
        assert_eq!(task.state() == "completed", seen.contains(task.id()), "{:#}", task.0);
    }
}

/// Like [`proof`], for a claim whose lease may be over by now.
fn proof_of_late(task: &Value) -> Value {
    json!({"id": task["id"], "fence": task["fence"], "token": task["token"]})
}

#[test]
fn each_task_is_handed_out_once_and_renewed_claims_stay() {
    let server = Server::with(QUICK_LEASE);
    let api = server.api();
    let batch: Vec<_> = (0..300).map(|n| json!({"type": "remote", "payload": n})).collect();
    api.post("/tasks/batch", &json!(batch)).expect(200);
    let claimed = Mutex::new(Vec::new());
    let begin = Instant::now();
    thread::scope(|scope| {
        for worker in 0..12 {
            let (api, claimed) = (&api, &claimed);
            scope.spawn(move || {
                let name = format!("w{worker}");
                let mut mine = Vec::new();
                loop {
                    let tasks = claim(api, &name, 7, 0.0);
                    if tasks.is_empty() {
                        break;
                    }
                    mine.extend(tasks.iter().map(proof));
                }
                // Renewed for three leases: nobody may get any of them.
                while begin.elapsed() < seconds(6.0) {
                    let told = heartbeat(api, &name, &mine);
                    assert_eq!(told["lost"], json!([]), "{told}");
                    thread::sleep(seconds(0.4));
                }
                claimed.lock().expect("lock").extend(mine);
            });
        }
    });
    let claimed = claimed.into_inner().expect("lock");
    let ids: HashSet<String> = claimed.iter().map(|proof| proof["id"].to_string()).collect();
    assert_eq!((claimed.len(), ids.len()), (300, 300));
    let items: Vec<Value> =
        claimed.iter().map(|proof| settled(proof, &json!({"outcome": "completed"}))).collect();
    let answer = api.post("/workers/settle", &json!({"items": items})).expect(200).json();
    for item in answer["items"].as_array().expect("items") {
        assert_eq!(item["status"], 200, "{item}");
    }
    api.eventually_state("completed", 300, seconds(5.0));
}

#[test]
fn a_waiting_claim_is_answered_when_work_comes() {
    let server = Server::with("");
    let api = server.api();
    let waiter = {
        let api = api.clone();
        thread::spawn(move || (claim(&api, "w", 1, 10.0), Instant::now()))
    };
    thread::sleep(seconds(1.0));
    let enqueued = Instant::now();
    let id = remote(&api);
    let (tasks, answered) = waiter.join().expect("the claim was answered");
    assert_eq!(tasks[0]["id"], json!(id));
    let late = answered.saturating_duration_since(enqueued);
    assert!(late < seconds(0.5), "answered after {late:?}");
    let begin = Instant::now();
    assert!(claim(&api, "w", 1, 1.0).is_empty());
    assert!(begin.elapsed() > seconds(0.8) && begin.elapsed() < seconds(3.0));
}

#[test]
fn a_cancel_reaches_a_remote_worker_within_two_seconds() {
    let server = Server::with("");
    let api = server.api();
    let id = remote(&api);
    let mine = proof(&claim(&api, "w", 1, 5.0)[0]);
    assert_eq!(heartbeat(&api, "w", std::slice::from_ref(&mine))["cancel"], json!([]));
    let answer = api.post(&format!("/tasks/{id}/cancel"), &json!({})).expect(202).json();
    assert!(answer["cancel_requested_at"].is_string(), "{answer}");
    eventually("the heartbeat says so", seconds(2.0), || {
        let told = heartbeat(&api, "w", std::slice::from_ref(&mine));
        (told["cancel"] == json!([id])).then_some(())
    });
    assert_eq!(
        settle(&api, &mine, &json!({"outcome": "failed", "error": {"message": "stopped"}})).0,
        200
    );
    let task = api.task(&id);
    assert_eq!((task.state(), task.number("retries")), ("cancelled", 0), "{:#}", task.0);
}

/// Success that is recorded after the cancel was asked for, and before the run ended, wins.
#[test]
fn success_wins_over_a_cancel_that_came_late() {
    let server = Server::with("");
    let api = server.api();
    let id = remote(&api);
    let mine = proof(&claim(&api, "w", 1, 5.0)[0]);
    api.post(&format!("/tasks/{id}/cancel"), &json!({})).expect(202);
    assert_eq!(settle(&api, &mine, &json!({"outcome": "completed", "result": 7})).0, 200);
    let task = api.task(&id);
    assert_eq!((task.state(), &task.0["result"]), ("completed", &json!(7)), "{:#}", task.0);
}

#[test]
fn every_outcome_a_worker_can_report() {
    let server = Server::with(QUICK_LEASE);
    let api = server.api();
    let enqueue = |retries: u32| {
        let body = json!({
            "type": "remote", "payload": null, "max_retries": retries,
            "backoff": {"initial": 50, "factor": 2, "max": 3600, "jitter": 0}
        });
        api.enqueue(&body).id().to_owned()
    };
    let run = |fields: &Value| -> (Task, f64) {
        let id = enqueue(3);
        let mine = proof(&claim(&api, "w", 1, 5.0)[0]);
        assert_eq!(mine["id"], json!(id));
        assert_eq!(settle(&api, &mine, fields).0, 200, "{fields}");
        let task = api.task(&id);
        let wait = task.0["run_at"].as_str().map_or(0.0, |at| seconds_of(at) - unix_now());
        api.post(&format!("/tasks/{id}/cancel"), &json!({}));
        (task, wait)
    };
    let (task, wait) = run(&json!({"outcome": "failed", "error": {"message": "odd weather"}}));
    assert_eq!((task.state(), task.number("retries")), ("pending", 1), "{:#}", task.0);
    assert!((wait - 50.0).abs() < 2.0, "{wait}");
    assert!(task.0["error"]["message"].as_str().is_some_and(|m| m.contains("odd weather")));

    let (_, wait) =
        run(&json!({"outcome": "failed", "error": {"message": "busy"}, "retry_after": 120}));
    assert!((wait - 120.0).abs() < 2.0, "the later of both: {wait}");

    let (task, _) = run(
        &json!({"outcome": "failed", "error": {"message": "no such order"}, "permanent": true}),
    );
    assert_eq!((task.state(), task.number("retries")), ("failed", 0), "{:#}", task.0);

    for outcome in ["snooze", "release"] {
        let (task, wait) = run(&json!({"outcome": outcome, "delay": 30}));
        assert_eq!((task.state(), task.number("retries")), ("pending", 0), "{:#}", task.0);
        assert_eq!(task.number("losses") + task.number("interruptions"), 0, "{:#}", task.0);
        assert!((wait - 30.0).abs() < 2.0, "{outcome}: {wait}");
    }
}

/// A poison task may not be handed out for ever: with the third lost worker it is a dead letter.
#[test]
fn three_lost_workers_make_a_dead_letter() {
    let server = Server::with("lease: 1s\npoll: 50ms\ndefaults:\n  backoff: {initial: 100ms}\n");
    let api = server.api();
    let id = remote(&api);
    for attempt in 1..=3 {
        let got = eventually("claimed", seconds(10.0), || claim(&api, "w", 1, 1.0).pop());
        assert_eq!(got["attempt"], attempt);
    }
    let task = api.wait_state(&id, "failed", seconds(5.0));
    assert_eq!(task.error_class(), "worker_lost", "{:#}", task.0);
    assert_eq!((task.number("losses"), task.number("retries")), (3, 0), "{:#}", task.0);
    assert!(claim(&api, "w", 1, 0.5).is_empty());
}
