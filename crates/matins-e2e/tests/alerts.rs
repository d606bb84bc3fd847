//! Who is told, as seen by those who are told: servers that answer as the real ones do.
//!
//! That nobody is told twice of one thing, nor of what is being caught up, is in `alert_calm`.
//!
//! The failures that people met with alerts and metrics, and where each is tried:
//!
//! | case | where |
//! |---|---|
//! | J01 a signature made once | here; vectors in `alert/sign.rs`, per message in `alert_texts` of `matins-core` |
//! | J03 an error with status 200, a text too long | here; codes in `alert/answer.rs`, sizes in `alert_texts` |
//! | J05 mails by the thousand | here; 2 520 in an hour in `alerts` of `matins-core` |
//! | J07 labels without bound | `metrics.rs` of `matins-runtime`: 100 000 names, long and hostile |
//! | J08 pages that count millions of rows | lists, first and last pages, and figures in `postgres_cost` of `matins-store`; plans of all statements there; times by `matins bench views` |

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use matins_e2e::alerts::{body, dead_letters_told, die, ok, told, webhook};
use matins_e2e::stub::Answer;
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Smtp, Stub, Value, eventually, holds_for, json};

const TOKEN: &str = "T0P-S3CRET-ACCESS-TOKEN";

#[test]
fn a_thousand_dead_letters_at_once_are_one_message_with_each_counted_once() {
    let stub = ok();
    let url = stub.url("/hook");
    let server = Server::with(&format!(
        "public_url: https://matins.example\nalerts:\n  channels:\n    ops: {{kind: webhook, \
         url: \"{url}\", secret: \"{TOKEN}\"}}\n  rules: {{dead_letters: {{enabled: false}}}}\n",
    ));
    let api = server.api();
    die(&api, "sync", 1_000);
    eventually("the message", seconds(40.0), || (dead_letters_told(&stub) >= 1_000).then_some(()));
    holds_for("nothing is told twice", seconds(7.0), || stub.count() == 1);
    assert_eq!(told(&stub), [("dead_letter".to_owned(), "sync".to_owned(), 1_000, false)]);
    let call = &stub.calls()[0];
    let message = body(call);
    let text = message["text"].as_str().expect("a text");
    for part in [
        "1000 tasks gave up",
        "403 Forbidden",
        "… and 995 more",
        "--canary",
        "https://matins.example/api/v1/dead_letters?type=sync",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(call.headers["x-matins-signature"].starts_with("sha256="));
    // Another kind is told at once, one more of the same is not.
    die(&api, "sync", 1);
    die(&api, "other", 1);
    eventually("the other", seconds(20.0), || (stub.count() == 2).then_some(()));
    assert_eq!(told(&stub)[1], ("dead_letter".to_owned(), "other".to_owned(), 1, false));
    let listed = api.get("/alerts?limit=1000").expect(200).json();
    assert_eq!(listed["alerts"].as_array().map(Vec::len), Some(1_000));
    assert!(listed["next_cursor"].is_string());
    assert_eq!(listed["alerts"][0]["facts"]["error"], "permanent: 密码 403 Forbidden");
    let sent = api.metric("matins_alerts_total", "channel=\"ops\",result=\"sent\"");
    assert_eq!(sent, Some(2.0));
    assert!(!server.log_text().contains(TOKEN));
}

#[test]
fn killed_between_sending_and_recording_it_is_told_once_more_and_no_more() {
    // The answer comes late, so that the kill falls between the two.
    static SLOW: AtomicUsize = AtomicUsize::new(1);
    let stub = Stub::start(|_| {
        let slow = SLOW.swap(0, Ordering::SeqCst);
        Answer::new(200, "").after(seconds(slow as f64 * 8.0))
    });
    // What is read twice would soon be told twice.
    let rules = "rules: {dead_letter: {digest: 2s}}";
    let config = format!("alerts: {{channels: {{ops: {}}}, {rules}}}\n", webhook(&stub));
    let mut server = Server::with(&config);
    die(&server.api(), "sync", 3);
    eventually("it is being sent", seconds(20.0), || (stub.count() == 1).then_some(()));
    server.restart();
    eventually("once more", seconds(60.0), || (stub.count() == 2).then_some(()));
    holds_for("and no more", seconds(10.0), || stub.count() == 2);
    assert!(told(&stub).iter().all(|told| told.2 == 3), "{:?}", told(&stub));
}

#[test]
fn killed_before_anything_was_sent_it_is_told_after_the_restart() {
    let stub = ok();
    let mut server = Server::with(&format!("alerts: {{channels: {{ops: {}}}}}\n", webhook(&stub)));
    for n in 0..5 {
        die(&server.api(), &format!("type-{n}"), 2);
        server.restart();
    }
    eventually("all are told", seconds(60.0), || (dead_letters_told(&stub) >= 10).then_some(()));
    thread::sleep(seconds(3.0));
    let mut told = told(&stub);
    told.sort();
    told.dedup();
    assert_eq!(told.iter().map(|told| told.2).sum::<u64>(), 10, "none is lost: {told:?}");
}

#[test]
fn a_robot_that_says_no_with_status_200_is_shut_off_and_others_are_told() {
    let robot =
        Stub::start(|_| Answer::new(200, r#"{"errcode":310000,"errmsg":"sign not match"}"#));
    let chat = ok();
    let config = format!(
        "alerts:\n  channels:\n    ding: {{kind: dingtalk, url: env:DING_URL, secret: env:DING, \
         lang: zh-CN}}\n    chat: {}\n",
        webhook(&chat)
    );
    let server = Server::builder()
        .config(&config)
        .variable("DING_URL", &robot.url(&format!("/robot/send?access_token={TOKEN}")))
        .variable("DING", "SECmatins0005")
        .start();
    let api = server.api();
    die(&api, "sync", 1);
    eventually("the robot is asked", seconds(20.0), || (robot.count() == 1).then_some(()));
    let query = robot.calls()[0].target.clone();
    assert!(query.contains("&timestamp=1") && query.contains("&sign="), "{query}");
    assert!(!query.contains("%25"), "encoded once: {query}");
    let message = body(&robot.calls()[0])["markdown"]["text"].to_string();
    assert!(message.contains("有任务已放弃") && message.contains("密码"), "{message}");
    eventually("the others hear of it", seconds(30.0), || {
        told(&chat).iter().any(|told| told.0 == "channel" && told.1 == "ding").then_some(())
    });
    die(&api, "other", 1);
    eventually("chat goes on", seconds(20.0), || (dead_letters_told(&chat) == 2).then_some(()));
    assert_eq!(robot.count(), 1, "it is left alone");
    assert_eq!(api.metric("matins_alerts_total", "channel=\"ding\",result=\"off\""), Some(1.0));
    let shown = api.get("/alerts").expect(200).text() + &api.outside("/metrics").text();
    for text in [shown, server.log_text()] {
        assert!(!text.contains(TOKEN) && !text.contains("SECmatins"), "no secret is shown: {text}");
    }
}

#[test]
fn a_rate_limit_is_waited_for_and_a_bad_moment_is_tried_again() {
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    let stub = Stub::start(|_| match FIRST.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::new(429, "").header("retry-after", "9"),
        _ => Answer::new(200, ""),
    });
    let server = Server::with(&format!("alerts: {{channels: {{ops: {}}}}}\n", webhook(&stub)));
    die(&server.api(), "sync", 1);
    eventually("it gets through", seconds(60.0), || (stub.count() == 2).then_some(()));
    let calls = stub.calls();
    assert!(calls[1].at - calls[0].at >= seconds(8.5), "the wish was obeyed");
    assert_eq!(told(&stub)[0], told(&stub)[1]);
}

#[test]
fn slow_and_dead_channels_hold_up_nobody() {
    let slow = Stub::start(|_| Answer::new(200, "").after(seconds(300.0)));
    let good = ok();
    // Nobody listens there.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let dead_port = dead.local_addr().expect("its address").port();
    drop(dead);
    let server = Server::with(&format!(
        "alerts:\n  channels:\n    slow: {}\n    dead: {{kind: slack, url: \
         \"http://127.0.0.1:{dead_port}/x\"}}\n    metadata: {{kind: slack, url: \
         \"http://169.254.169.254/x\"}}\n    good: {}\n",
        webhook(&slow),
        webhook(&good)
    ));
    let api = server.api();
    die(&api, "sync", 1);
    eventually("the good one is told", seconds(20.0), || (good.count() == 1).then_some(()));
    // The engine goes on as if nothing were.
    for _ in 0..20 {
        let id = api.shell("true", &json!({})).id().to_owned();
        api.wait_state(&id, "completed", seconds(10.0));
    }
    die(&api, "other", 1);
    eventually("and again", seconds(20.0), || (dead_letters_told(&good) == 2).then_some(()));
    assert!(slow.count() <= 2, "one at a time");
    let failed = |channel: &str| {
        api.metric("matins_alerts_total", &format!("channel=\"{channel}\",result=\"failed\""))
    };
    assert!(failed("dead").is_some_and(|n| n >= 1.0));
    assert!(failed("metadata").is_some_and(|n| n >= 1.0));
    server.assert_no_panic();
}

#[test]
fn a_mail_is_the_fallback_of_a_chat_that_is_gone() {
    let gone = Stub::start(|_| Answer::new(404, "no such hook"));
    let (mail, phone) = (Smtp::start("250 ok"), ok());
    let server = Server::with(&format!(
        "alerts:\n  channels:\n    chat: {{kind: slack, url: \"{}\"}}\n    mail: {{kind: email, \
         server: \"{}\", security: none, from: Matins <matins@example.com>, to: \
         [ops@example.com]}}\n    phone: {}\n  rules:\n    dead_letter: {{channels: [chat], \
         fallback: [mail, phone]}}\n    channel: {{enabled: false}}\n",
        gone.url("/x"),
        mail.address,
        webhook(&phone)
    ));
    die(&server.api(), "sync", 2);
    eventually("the mail", seconds(30.0), || (mail.mails().len() == 1).then_some(()));
    let mail = &mail.mails()[0];
    for part in ["From: Matins <matins@example.com>", "To: ops@example.com", "Subject: "] {
        assert!(mail.contains(part), "{part}: {mail}");
    }
    assert_eq!((gone.count(), phone.count()), (1, 0));
}

#[test]
fn a_state_is_told_and_its_end_too() {
    let stub = ok();
    let server = Server::with(&format!(
        "alerts:\n  channels: {{ops: {}}}\n  rules:\n    dead_letters: {{above: 2}}\n    \
         dead_letter: {{enabled: false}}\n",
        webhook(&stub)
    ));
    let api = server.api();
    die(&api, "sync", 3);
    eventually("it begins", seconds(40.0), || (stub.count() == 1).then_some(()));
    let dismissal = json!({"filter": {"type": "sync"}, "reason": "known"});
    api.post("/dead_letters/dismiss", &dismissal);
    eventually("it ends", seconds(40.0), || (stub.count() == 2).then_some(()));
    let expected = [false, true]
        .map(|over| ("dead_letters".to_owned(), "store".to_owned(), u64::from(!over), over));
    assert_eq!(told(&stub), expected);
}

#[test]
fn a_type_that_nobody_runs_is_told() {
    let stub = ok();
    let server = Server::with(&format!(
        "alerts:\n  channels: {{ops: {}}}\n  rules:\n    no_worker: {{after: 2s}}\n",
        webhook(&stub)
    ));
    let api = server.api();
    let id = api.enqueue(&json!({"type": "nobody_runs_this"})).id().to_owned();
    eventually("it is told", seconds(40.0), || (stub.count() == 1).then_some(()));
    assert_eq!(told(&stub)[0].0, "no_worker");
    assert_eq!(told(&stub)[0].1, "nobody_runs_this");
    api.post(&format!("/tasks/{id}/cancel"), &json!({}));
    eventually("and its end", seconds(40.0), || (stub.count() == 2).then_some(()));
    assert!(told(&stub)[1].3);
}

#[test]
fn the_independent_monitor_tells_that_the_server_is_gone_and_back() {
    let stub = ok();
    let mut server = Server::with(&format!(
        "heartbeat: 1s\nalerts: {{channels: {{ops: {}}}}}\n",
        webhook(&stub)
    ));
    let mut watch = server
        .command()
        .args(["watch", "--after", "5s", "--every", "200ms"])
        .spawn()
        .expect("the monitor can be started");
    thread::sleep(seconds(3.0));
    server.kill();
    let beats = |over| told(&stub).iter().any(|t| t.0 == "heartbeat" && t.3 == over).then_some(());
    eventually("it is told", seconds(60.0), || beats(false));
    server.start();
    eventually("its return, too", seconds(60.0), || beats(true));
    watch.kill().expect("ended");
    let _ = watch.wait();
}

#[test]
fn a_channel_can_be_tried_by_hand() {
    let (good, bad) = (ok(), Stub::start(|_| Answer::new(200, r#"{"errcode":93000}"#)));
    let config = format!(
        "alerts:\n  channels:\n    good: {}\n    bad: {{kind: wecom, url: \"{}\"}}\n    run: \
         {{kind: command, command: [sh, -c, 'cat > told.json']}}\n",
        webhook(&good),
        bad.url(&format!("/send?key={TOKEN}"))
    );
    let server = Server::builder().config(&config).prepare();
    let tried = server.cli(&["alert", "test", "good"]);
    assert_eq!(tried.code, 0, "{}", tried.err());
    assert_eq!(told(&good)[0].0, "test");
    let tried = server.cli(&["alert", "test", "bad", "--json"]);
    assert_eq!(tried.code, 1, "{}", tried.out());
    assert!(tried.out().contains("\"off\"") && tried.err().contains("93000"), "{}", tried.err());
    assert!(!(tried.out() + &tried.err()).contains(TOKEN));
    assert_eq!(server.cli(&["alert", "test", "run"]).code, 0);
    let told = std::fs::read_to_string(server.home.join("told.json")).expect("it was told");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["alerts"][0]["rule"], "test");
    let tried = server.cli(&["alert", "test", "nobody"]);
    assert_eq!(tried.code, 3);
    assert!(tried.err().contains("bad, good, run"), "{}", tried.err());
}

#[test]
fn whoever_has_no_channel_is_told_that_nobody_will_be_told() {
    let server = Server::with("");
    let checked = server.cli(&["check"]);
    assert!(checked.out().contains("nobody will be told"), "{}", checked.out());
    assert!(server.log_text().contains("nobody will be told"));
    // What happens is listed all the same.
    let api = server.api();
    die(&api, "sync", 2);
    let listed = api.get("/alerts").expect(200).json();
    assert_eq!(listed["alerts"].as_array().map(Vec::len), Some(2));
    let shown = server.cli(&["alert", "list"]);
    assert!(shown.out().contains("dead_letter"), "{}", shown.out());
}
