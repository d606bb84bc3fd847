//! A text in the form that each kind of channel takes. Values alone: nothing is sent here.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::channel::{Channel, Kind, Lang, Mailbox, Secret, To};
use super::digest::Digest;
use super::policy::Policy;
use super::text::{Text, compose, cut, time};
use super::{Severity, sign};

/// What goes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wire {
    Http { url: Secret, headers: Vec<(String, Secret)>, body: String },
    Mail { mailbox: Mailbox, subject: String, body: String },
    Run { argv: Vec<String>, env: Vec<(&'static str, String)>, stdin: String },
}

/// Writes a message about `digests` for `channel`, signed for `now`.
pub fn render(channel: &Channel, digests: &[Digest], policy: &Policy, now: Timestamp) -> Wire {
    let kind = channel.to.kind();
    let text = compose(digests, channel.lang, kind, policy.public_url.as_deref());
    let most = kind.text_bytes();
    let lang = channel.lang;
    let post = |url: &Secret, body: Value| Wire::Http {
        url: url.clone(),
        headers: Vec::new(),
        body: body.to_string(),
    };
    match &channel.to {
        To::Wecom { url, mentions } => post(url, wecom(&text, mentions, lang)),
        To::Dingtalk { url, secret, keyword, at_mobiles } => {
            let url = match secret {
                Some(secret) => dingtalk_url(url, secret, now),
                None => url.clone(),
            };
            post(&url, dingtalk(&text, keyword.as_deref(), at_mobiles, lang))
        }
        To::Feishu { url, secret, keyword } => {
            post(url, feishu(&text, keyword.as_deref(), secret.as_ref(), lang, now))
        }
        To::Slack { url } => {
            let said = text.plain(most, lang);
            let said = said.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            post(url, json!({ "text": said }))
        }
        To::Pagerduty { url, routing_key } => {
            post(url, pagerduty(&text, digests, routing_key, policy))
        }
        To::Email(mailbox) => Wire::Mail {
            mailbox: mailbox.clone(),
            subject: text.title.clone(),
            body: text.rest(most, lang),
        },
        To::Webhook { url, secret, headers } => {
            let body = document(&text, digests, policy, lang, most).to_string();
            let seconds = now.as_second();
            let mut headers: Vec<_> = headers.clone().into_iter().collect();
            if let Some(secret) = secret {
                let signature = sign::webhook(secret.reveal(), seconds, body.as_bytes());
                headers.push(("X-Matins-Timestamp".into(), Secret::new(seconds.to_string())));
                headers.push(("X-Matins-Signature".into(), Secret::new(signature)));
            }
            Wire::Http { url: url.clone(), headers, body }
        }
        To::Command { argv } => Wire::Run {
            argv: argv.clone(),
            env: vec![
                ("MATINS_ALERT_TITLE", text.title.clone()),
                ("MATINS_ALERT_SEVERITY", text.severity.to_string()),
                ("MATINS_ALERT_RESOLVED", text.resolved.to_string()),
            ],
            stdin: document(&text, digests, policy, lang, most).to_string(),
        },
    }
}

fn colour(text: &Text) -> &'static str {
    match (text.resolved, text.severity) {
        (true, _) => "green",
        (false, Severity::Critical) => "red",
        (false, Severity::Warning) => "orange",
        (false, Severity::Info) => "blue",
    }
}

fn wecom(text: &Text, mentions: &[String], lang: Lang) -> Value {
    let colour = if text.resolved { "info" } else { "warning" };
    let mut mentioned = String::new();
    for user in mentions.iter().filter(|_| !text.resolved) {
        let _ = write!(mentioned, "<@{user}>");
    }
    let frame = format!("<font color=\"{colour}\"></font>\n\n{mentioned}").len();
    let room = Kind::Wecom.text_bytes().saturating_sub(frame);
    let whole = text.plain(room, lang);
    let (title, rest) = whole.split_once('\n').unwrap_or((&whole, ""));
    let mut content = format!("<font color=\"{colour}\">{title}</font>");
    for part in [rest, &mentioned] {
        if !part.is_empty() {
            content.push('\n');
            content.push_str(part);
        }
    }
    json!({ "msgtype": "markdown", "markdown": { "content": content } })
}

fn dingtalk_url(url: &Secret, secret: &Secret, now: Timestamp) -> Secret {
    let millis = now.as_millisecond();
    let sign = sign::query_encoded(&sign::dingtalk(secret.reveal(), millis));
    let url = url.reveal();
    let separator = if url.contains('?') { '&' } else { '?' };
    Secret::new(format!("{url}{separator}timestamp={millis}&sign={sign}"))
}

fn dingtalk(text: &Text, keyword: Option<&str>, at_mobiles: &[String], lang: Lang) -> Value {
    let title = with_keyword(&text.title, keyword);
    let at: &[String] = if text.resolved { &[] } else { at_mobiles };
    // A mobile is called only if it stands in the text, too.
    let called = at.iter().fold(String::new(), |called, mobile| called + " @" + mobile);
    let room = Kind::Dingtalk.text_bytes().saturating_sub(title.len() + called.len() + 16);
    // A single line break is none in its markdown.
    let rest = text.rest(room / 2, lang).replace('\n', "  \n");
    let said = format!("#### {title}\n{rest}\n{called}");
    json!({
        "msgtype": "markdown",
        "markdown": { "title": title, "text": said.trim_end() },
        "at": { "atMobiles": at, "isAtAll": false },
    })
}

fn feishu(
    text: &Text,
    keyword: Option<&str>,
    secret: Option<&Secret>,
    lang: Lang,
    now: Timestamp,
) -> Value {
    let title = with_keyword(&text.title, keyword);
    let unlinked = Text { link: None, ..text.clone() };
    let content = unlinked.rest(Kind::Feishu.text_bytes(), lang);
    let mut elements =
        vec![json!({ "tag": "div", "text": { "tag": "plain_text", "content": content } })];
    if let Some(link) = &text.link {
        let label = if lang == Lang::ZhCn { "查看" } else { "Open" };
        let label = json!({ "tag": "plain_text", "content": label });
        elements.push(json!({
            "tag": "action",
            "actions": [{ "tag": "button", "text": label, "url": link, "type": "primary" }],
        }));
    }
    let mut body = json!({
        "msg_type": "interactive",
        "card": {
            "header": {
                "title": { "tag": "plain_text", "content": title },
                "template": colour(text),
            },
            "elements": elements,
        },
    });
    if let Some(secret) = secret {
        let seconds = now.as_second();
        body["timestamp"] = json!(seconds.to_string());
        body["sign"] = json!(sign::feishu(secret.reveal(), seconds));
    }
    body
}

fn with_keyword(title: &str, keyword: Option<&str>) -> String {
    match keyword {
        Some(keyword) if !title.contains(keyword) => format!("{keyword} {title}"),
        _ => title.to_owned(),
    }
}

/// One incident for each matter: it is opened and closed under the same key.
fn pagerduty(text: &Text, digests: &[Digest], key: &Secret, policy: &Policy) -> Value {
    let first = digests.first();
    let matter = first.map(|d| format!("matins:{}:{}", d.rule, d.subject)).unwrap_or_default();
    let severity = match text.severity {
        Severity::Critical => "critical",
        Severity::Warning => "warning",
        Severity::Info => "info",
    };
    let source = if policy.source.is_empty() { "matins" } else { &policy.source };
    let mut body = json!({
        "routing_key": key.reveal(),
        "event_action": if text.resolved { "resolve" } else { "trigger" },
        "dedup_key": key_of(&matter),
        "payload": {
            "summary": cut(&text.title, Kind::Pagerduty.text_bytes(), Lang::En),
            "source": source,
            "severity": severity,
            "timestamp": first.map(|digest| time(digest.first_at)),
            "custom_details": { "text": text.rest(8_000, Lang::En) },
        },
    });
    if let Some(link) = &text.link {
        body["links"] = json!([{ "href": link, "text": "Matins" }]);
    }
    body
}

/// At most 255 bytes, and still one for each matter.
fn key_of(matter: &str) -> String {
    if matter.len() <= 255 {
        return matter.to_owned();
    }
    let mut end = 180;
    while !matter.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}#{}", &matter[..end], &sign::webhook("", 0, matter.as_bytes())[7..47])
}

/// Everything, for programs.
fn document(text: &Text, digests: &[Digest], policy: &Policy, lang: Lang, most: usize) -> Value {
    let alerts: Vec<Value> = digests
        .iter()
        .map(|digest| {
            let samples: Vec<Value> = digest
                .samples
                .iter()
                .map(|sample| {
                    let facts: serde_json::Map<String, Value> =
                        sample.facts.iter().map(|f| (f.name.clone(), json!(f.value))).collect();
                    json!({ "time": sample.at, "facts": facts })
                })
                .collect();
            json!({
                "rule": digest.rule, "subject": digest.subject, "severity": digest.severity,
                "resolved": digest.resolved, "count": digest.count,
                "first_at": digest.first_at, "last_at": digest.last_at,
                "causes": digest.causes, "samples": samples,
            })
        })
        .collect();
    json!({
        "source": policy.source,
        "title": text.title,
        "text": text.plain(most, lang),
        "severity": text.severity,
        "resolved": text.resolved,
        "next": text.next,
        "link": text.link,
        "alerts": alerts,
    })
}
