//! What the other side's answer means. A chat robot answers 200 to what it does not deliver: the
//! code in the body counts.

use std::time::Duration;

use super::channel::Kind;

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Sent,
    /// The same message may get through later.
    Later {
        after: Option<Duration>,
        why: String,
    },
    /// This message never will; others may.
    Refused {
        why: String,
    },
    /// Nothing will, until somebody changes the channel.
    Off {
        why: String,
    },
}

/// DingTalk's pause for a robot that spoke too often.
const DINGTALK_BLOCK: Duration = Duration::from_secs(600);

const MINUTE: Duration = Duration::from_secs(60);

/// Longest `Retry-After` that is obeyed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// Bytes of an answer that are quoted.
const QUOTED: usize = 200;

fn quoted(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(QUOTED).map(clean).collect::<String>().trim().to_owned()
}

/// Judges an HTTP answer.
pub fn judge(kind: Kind, status: u16, retry_after: Option<Duration>, body: &[u8]) -> Verdict {
    let why = || {
        let said = quoted(body);
        let colon = if said.is_empty() { "" } else { ": " };
        format!("HTTP {status}{colon}{said}")
    };
    match status {
        200..=299 => match kind {
            Kind::Wecom => robot(body, "errcode", "errmsg", wecom),
            Kind::Dingtalk => robot(body, "errcode", "errmsg", dingtalk),
            Kind::Feishu => robot(body, "code", "msg", feishu),
            _ => Verdict::Sent,
        },
        408 | 425 | 429 | 500..=599 => {
            let usual = (status == 429).then_some(MINUTE);
            let after = retry_after.map(|after| after.min(RETRY_AFTER_MAX)).or(usual);
            Verdict::Later { after, why: why() }
        }
        300..=399 | 401 | 402 | 403 | 404 | 405 | 407 | 410 => Verdict::Off { why: why() },
        // Feishu says so of some of its codes with the status, too.
        _ if kind == Kind::Feishu => match robot(body, "code", "msg", feishu) {
            Verdict::Sent | Verdict::Later { after: None, .. } => Verdict::Refused { why: why() },
            verdict => verdict,
        },
        _ => Verdict::Refused { why: why() },
    }
}

/// What a code means: how, and what its owner may look at.
enum Meaning {
    Later(Option<Duration>),
    Refused,
    Off(&'static str),
}

fn robot(body: &[u8], code: &str, text: &str, meaning: fn(i64, &str) -> Meaning) -> Verdict {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let number = answer.get(code).or_else(|| answer.get("StatusCode"));
    let Some(number) = number.and_then(serde_json::Value::as_i64) else {
        // Whoever stands in between, it was not the robot.
        let why = format!("an answer without {code}: {}", quoted(body));
        return Verdict::Later { after: None, why };
    };
    if number == 0 {
        return Verdict::Sent;
    }
    let said = answer.get(text).and_then(serde_json::Value::as_str).unwrap_or_default();
    let why = format!("{code} {number}: {}", quoted(said.as_bytes()));
    match meaning(number, said) {
        Meaning::Later(after) => Verdict::Later { after, why },
        Meaning::Refused => Verdict::Refused { why },
        Meaning::Off("") => Verdict::Off { why },
        Meaning::Off(hint) => Verdict::Off { why: format!("{why}; hint: {hint}") },
    }
}

fn wecom(code: i64, _: &str) -> Meaning {
    match code {
        45009 => Meaning::Later(Some(MINUTE)),
        93000 => Meaning::Off("the key in the URL is not (or no longer) that of a robot"),
        40008 | 40058 => Meaning::Refused,
        _ => Meaning::Later(None),
    }
}

fn dingtalk(code: i64, said: &str) -> Meaning {
    match code {
        410_100 | 130_101 => Meaning::Later(Some(DINGTALK_BLOCK)),
        310_000 if said.contains("timestamp") => {
            Meaning::Off("check the clock of this machine: it may be off by an hour at most")
        }
        310_000 => Meaning::Off("secret, keyword or IP list of the robot do not fit"),
        300_005 | 400_101 => Meaning::Off("the access_token in the URL is wrong"),
        400_102 => Meaning::Off("the robot is disabled"),
        400_106 | 400_013 => Meaning::Off("the robot's group is gone"),
        400_105 | 40_035 | 430_100..=430_199 => Meaning::Refused,
        _ => Meaning::Later(None),
    }
}

fn feishu(code: i64, _: &str) -> Meaning {
    match code {
        11_232 => Meaning::Later(Some(MINUTE)),
        19_021 => Meaning::Off("check the secret, and the clock of this machine"),
        19_022 => Meaning::Off("this machine's address is not in the robot's IP list"),
        19_024 => Meaning::Off("the robot wants a keyword: set `keyword`"),
        9_499 => Meaning::Refused,
        _ => Meaning::Later(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Sent => "sent",
            Verdict::Later { .. } => "later",
            Verdict::Refused { .. } => "refused",
            Verdict::Off { .. } => "off",
        }
    }

    #[test]
    fn a_robots_code_counts_and_not_its_status() {
        let cases = [
            (Kind::Wecom, r#"{"errcode":0,"errmsg":"ok"}"#, "sent"),
            (Kind::Wecom, r#"{"errcode":40058}"#, "refused"),
            (Kind::Wecom, r#"{"errcode":45009}"#, "later"),
            (Kind::Wecom, r#"{"errcode":-1}"#, "later"),
            (Kind::Wecom, r#"{"errcode":93000}"#, "off"),
            (Kind::Wecom, "<html>log in</html>", "later"),
            (Kind::Dingtalk, r#"{"errcode":0}"#, "sent"),
            (Kind::Dingtalk, r#"{"errcode":310000,"errmsg":"sign not match"}"#, "off"),
            (Kind::Dingtalk, r#"{"errcode":410100}"#, "later"),
            (Kind::Dingtalk, r#"{"errcode":430101}"#, "refused"),
            (Kind::Feishu, r#"{"code":0}"#, "sent"),
            (Kind::Feishu, r#"{"StatusCode":0,"StatusMessage":"success"}"#, "sent"),
            (Kind::Feishu, r#"{"code":19021,"msg":"sign match fail"}"#, "off"),
            (Kind::Feishu, r#"{"code":11232}"#, "later"),
            (Kind::Feishu, r#"{"code":9499}"#, "refused"),
            (Kind::Slack, "ok", "sent"),
        ];
        for (kind, body, expected) in cases {
            let verdict = judge(kind, 200, None, body.as_bytes());
            assert_eq!(word(&verdict), expected, "{kind} {body}");
        }
    }

    #[test]
    fn a_clock_that_is_off_is_named() {
        let body = br#"{"errcode":310000,"errmsg":"invalid timestamp"}"#;
        let Verdict::Off { why } = judge(Kind::Dingtalk, 200, None, body) else { panic!() };
        assert!(why.contains("check the clock"), "{why}");
    }

    #[test]
    fn rate_blocks_are_waited_for() {
        let after =
            |kind, status, asked, body: &str| match judge(kind, status, asked, body.as_bytes()) {
                Verdict::Later { after, .. } => after.map(|after| after.as_secs()),
                verdict => panic!("{verdict:?}"),
            };
        let secs = Duration::from_secs;
        assert_eq!(after(Kind::Dingtalk, 200, None, r#"{"errcode":130101}"#), Some(600));
        assert_eq!(after(Kind::Slack, 429, Some(secs(30)), ""), Some(30));
        assert_eq!(after(Kind::Slack, 429, Some(secs(86_400)), ""), Some(3_600));
        assert_eq!(after(Kind::Webhook, 429, None, ""), Some(60));
        assert_eq!(after(Kind::Webhook, 503, None, ""), None);
    }

    #[test]
    fn statuses_of_http() {
        let cases = [(202, "sent"), (400, "refused"), (404, "off"), (410, "off"), (500, "later")];
        for (status, expected) in cases {
            assert_eq!(word(&judge(Kind::Pagerduty, status, None, b"")), expected, "{status}");
        }
    }
}
