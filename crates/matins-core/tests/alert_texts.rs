//! What goes out over each kind of channel, to the byte where it matters.

use std::collections::BTreeMap;

use jiff::Timestamp;
use matins_core::alert::channel::{Channel, Lang, Secret, To};
use matins_core::alert::digest::Digest;
use matins_core::alert::policy::Policy;
use matins_core::alert::render::{Wire, render};
use matins_core::alert::text::cut;
use matins_core::alert::{Alert, Rule, Severity};
use serde_json::Value;

fn now() -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000).unwrap()
}

fn channel(to: To, lang: Lang) -> Channel {
    let name = "ops".to_owned();
    Channel { name, to, lang, at_least: Severity::Info, quiet: None, per_minute: 20 }
}

fn all_kinds() -> Vec<To> {
    let url = || Secret::new("https://example.test/hook?key=S3CRET");
    vec![
        To::Wecom { url: url(), mentions: vec!["zhang".to_owned()] },
        To::Dingtalk {
            url: url(),
            secret: Some(Secret::new("SECmatins0005")),
            keyword: Some("Matins".to_owned()),
            at_mobiles: vec!["13800000000".to_owned()],
        },
        To::Feishu { url: url(), secret: Some(Secret::new("S")), keyword: None },
        To::Slack { url: url() },
        To::Pagerduty { url: url(), routing_key: Secret::new("KEY") },
        To::Webhook { url: url(), secret: Some(Secret::new("S")), headers: BTreeMap::new() },
    ]
}

fn policy() -> Policy {
    let public_url = Some("https://matins.example".to_owned());
    Policy { public_url, source: "node-1".to_owned(), ..Policy::default() }
}

fn digest(count: usize, error: &str) -> Digest {
    let alert = |n: usize| {
        Alert::new(Rule::DeadLetter, "订单同步", now())
            .fact("task", format!("0192-{n}"))
            .fact("attempt", 4)
            .fact("error", error)
    };
    let mut digest = Digest::of(&alert(0), Severity::Warning);
    (1..count).for_each(|n| digest.add(&alert(n), Severity::Warning));
    digest
}

fn http(wire: Wire) -> (String, Vec<(String, Secret)>, Value) {
    match wire {
        Wire::Http { url, headers, body } => {
            (url.reveal().to_owned(), headers, serde_json::from_str(&body).unwrap())
        }
        wire => panic!("{wire:?}"),
    }
}

#[test]
fn dingtalk_is_signed_for_the_moment_and_encoded_once() {
    let to = all_kinds().remove(1);
    let (url, _, body) = http(render(&channel(to, Lang::En), &[digest(1, "x")], &policy(), now()));
    assert!(url.ends_with(
        "key=S3CRET&timestamp=1700000000000&sign=%2FdcdI%2Fgq9WasmD%2BjHgPpV9DzdXtF1PwFRtTqRFD3a68%3D"
    ));
    let text = body["markdown"]["text"].as_str().unwrap();
    assert!(text.contains("Matins") && text.contains("@13800000000"), "{text}");
    assert_eq!(body["at"]["atMobiles"][0], "13800000000");
}

#[test]
fn feishu_carries_time_and_sign_in_the_body() {
    let to = all_kinds().remove(2);
    let (_, _, body) = http(render(&channel(to, Lang::ZhCn), &[digest(1, "x")], &policy(), now()));
    assert_eq!(body["timestamp"], "1700000000");
    assert_eq!(body["sign"], matins_core::alert::sign::feishu("S", 1_700_000_000));
    assert_eq!(body["card"]["header"]["template"], "orange");
    let url = &body["card"]["elements"][1]["actions"][0]["url"];
    assert_eq!(url, "https://matins.example/api/v1/tasks/0192-0");
}

#[test]
fn webhooks_are_signed_over_time_and_body() {
    let to = all_kinds().remove(5);
    let wire = render(&channel(to, Lang::En), &[digest(3, "x")], &policy(), now());
    let Wire::Http { headers, body, .. } = wire else { panic!() };
    let find = |name| headers.iter().find(|(n, _)| n == name).unwrap().1.reveal();
    assert_eq!(find("X-Matins-Timestamp"), "1700000000");
    let sign = matins_core::alert::sign::webhook("S", 1_700_000_000, body.as_bytes());
    assert_eq!(find("X-Matins-Signature"), sign);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["alerts"][0]["count"], &body["alerts"][0]["rule"]),
        (&3.into(), &"dead_letter".into())
    );
}

#[test]
fn a_text_says_what_why_and_what_to_do_in_both_languages() {
    let one = digest(1, "http_4xx: 403 Forbidden");
    let said = |lang, digest: &Digest| {
        let to = To::Slack { url: Secret::new("x") };
        let (_, _, body) =
            http(render(&channel(to, lang), std::slice::from_ref(digest), &policy(), now()));
        body["text"].as_str().unwrap().to_owned()
    };
    let en = said(Lang::En, &one);
    for part in [
        "[warning] 订单同步: a task gave up",
        "attempt 4: http_4xx: 403 Forbidden",
        "$ matins dead replay 0192-0",
        "https://matins.example/api/v1/tasks/0192-0",
    ] {
        assert!(en.contains(part), "{part}: {en}");
    }
    let zh = said(Lang::ZhCn, &one);
    for part in [
        "【警告】订单同步：有任务已放弃",
        "第 4 次尝试：http_4xx: 403 Forbidden",
        "$ matins dead replay",
    ] {
        assert!(zh.contains(part), "{part}: {zh}");
    }
    let many = said(Lang::En, &digest(1_000, "boom"));
    for part in ["1000 tasks gave up", "… and 995 more", "--canary"] {
        assert!(many.contains(part), "{part}: {many}");
    }
}

/// Every rule has a sentence for its beginning and its end, in both languages, and nothing is
/// promised that the other language does not say.
#[test]
fn every_rule_has_its_sentences() {
    for rule in Rule::ALL {
        for lang in Lang::ALL {
            let to = To::Slack { url: Secret::new("x") };
            let channel = channel(to, lang);
            let begun = Digest::of(&Alert::new(rule, "s-1", now()), Severity::Critical);
            let over = Digest::of(&Alert::resolved(rule, "s-1", now()), Severity::Critical);
            let text = |digest: Digest| {
                http(render(&channel, &[digest], &policy(), now())).2["text"].clone()
            };
            assert_ne!(text(begun), text(over), "{rule} {lang}");
        }
    }
}

#[test]
fn no_text_is_longer_than_its_channel_takes() {
    let digests: Vec<Digest> = (0..50)
        .map(|n| Digest {
            subject: format!("告警类型{n}"), ..digest(500, &"告警".repeat(2_000))
        })
        .collect();
    for to in all_kinds() {
        for lang in Lang::ALL {
            for digests in [&digests[..1], &digests[..]] {
                let channel = channel(to.clone(), lang);
                let kind = channel.to.kind();
                let (_, _, body) = http(render(&channel, digests, &policy(), now()));
                if let Some(content) = body["markdown"]["content"].as_str() {
                    assert!(content.len() <= 4_096, "{kind}: {}", content.len());
                    assert!(content.contains("matins"), "what to do is still there");
                }
                assert!(body.to_string().len() < 512 << 10, "{kind}");
                if matches!(channel.to, To::Dingtalk { .. } | To::Feishu { .. }) {
                    assert!(body.to_string().len() < 20_000, "{kind}: {}", body.to_string().len());
                }
            }
        }
    }
}

#[test]
fn a_cut_falls_between_characters() {
    let text = "告警".repeat(683);
    assert_eq!(text.len(), 4_098);
    for bytes in 30..120 {
        for lang in Lang::ALL {
            let cut = cut(&text, bytes, lang);
            assert!(cut.len() <= bytes && cut.len() + 4 > bytes, "{bytes}: {}", cut.len());
        }
    }
    assert_eq!(cut(&text, 4_098, Lang::En), text);
}

/// Error texts come from outside. They must not call people, link, or hide what follows.
#[test]
fn a_hostile_error_is_shown_as_text() {
    let hostile =
        "<at user_id=\"all\"></at> <@all> [x](http://evil) `#*`\u{202e}\u{0}\u{1b}[31m\nnext";
    for to in all_kinds() {
        let kind = to.kind();
        let (_, _, body) =
            http(render(&channel(to, Lang::En), &[digest(1, hostile)], &policy(), now()));
        let body = body.to_string();
        if kind.as_str() != "webhook" && kind.as_str() != "pagerduty" {
            assert!(!body.contains("<at ") && !body.contains("<@all"), "{kind}: {body}");
        }
        if matches!(kind.as_str(), "wecom" | "dingtalk") {
            assert!(!body.contains("](http"), "{kind}: {body}");
        }
    }
}

/// A name that is typed into a shell must not become another command.
#[test]
fn commands_are_quoted() {
    let alert = Alert::new(Rule::DeadLetter, "a b'; rm -rf /", now());
    let mut digest = Digest::of(&alert, Severity::Warning);
    digest.add(&alert, Severity::Warning);
    let to = To::Slack { url: Secret::new("x") };
    let (_, _, body) = http(render(&channel(to, Lang::En), &[digest], &policy(), now()));
    let text = body["text"].as_str().unwrap();
    assert!(text.contains(r"--type 'a b'\''; rm -rf /'"), "{text}");
}

#[test]
fn an_incident_is_opened_and_closed_under_one_key() {
    let to = || all_kinds().remove(4);
    let body = |alert: Alert| {
        let digest = Digest::of(&alert, Severity::Critical);
        http(render(&channel(to(), Lang::En), &[digest], &policy(), now())).2
    };
    let open = body(Alert::new(Rule::Store, "sqlite", now()));
    let close = body(Alert::resolved(Rule::Store, "sqlite", now()));
    assert_eq!(
        (&open["event_action"], &close["event_action"]),
        (&"trigger".into(), &"resolve".into())
    );
    assert_eq!(open["dedup_key"], close["dedup_key"]);
    let long = body(Alert::new(Rule::Store, "名".repeat(400), now()));
    assert!(long["dedup_key"].as_str().unwrap().len() <= 255);
}
