//! `alerts:`: channels and rules. Addresses of channels are credentials, so nothing here shows one.

use std::collections::BTreeMap;
use std::str::FromStr;

use jiff::civil::Time;
use matins_core::alert::channel::{Channel, Kind, Lang, Mailbox, Quiet, Secret, Security, To};
use matins_core::alert::policy::{Policy, RuleSpec};
use matins_core::alert::{Rule, Severity};
use matins_core::cron::Zone;
use matins_core::request::check_name;
use matins_runtime::alerts::courier;

use super::cursor::{Cursor, Table};
use super::problem::{Problem, nearest};
use super::{reference, schedules};

const PAGERDUTY: &str = "https://events.pagerduty.com/v2/enqueue";

/// Keys that every kind has.
const COMMON: [&str; 5] = ["kind", "lang", "severity", "quiet", "per_minute"];

/// Keys of each kind beside those.
const fn keys(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Wecom => &["url", "mentions"],
        Kind::Dingtalk => &["url", "secret", "keyword", "at_mobiles"],
        Kind::Feishu => &["url", "secret", "keyword"],
        Kind::Slack => &["url"],
        Kind::Pagerduty => &["url", "routing_key"],
        Kind::Email => &["server", "security", "user", "password", "from", "to"],
        Kind::Webhook => &["url", "secret", "headers"],
        Kind::Command => &["command"],
    }
}

/// Rules and channels, and the paths of secrets that stand in the file itself.
pub(crate) fn alerts(at: &Cursor<'_>) -> Option<(Policy, Vec<String>)> {
    let table = at.table(&reference::ALERTS)?;
    let mut bare = Vec::new();
    let mut policy = Policy::default();
    for (key, entry) in table.get("channels", Cursor::named).unwrap_or_default() {
        if let Err(error) = check_name("channel", &key.text) {
            let problem = Problem::new(key.place.clone(), entry.path.clone(), error.message);
            at.reader.note(problem);
        } else if let Some(channel) = channel(&entry, &key.text, &mut bare) {
            policy.channels.insert(key.text.clone(), channel);
        }
    }
    // A channel with a mistake is named by rules all the same.
    let named = table.get("channels", Cursor::named).unwrap_or_default();
    let names: Vec<String> = named.iter().map(|(key, _)| key.text.clone()).collect();
    for (key, entry) in table.get("rules", Cursor::named).unwrap_or_default() {
        match Rule::from_str(&key.text) {
            Ok(name) => {
                if let Some(spec) = rule(&entry, &names) {
                    policy.rules.insert(name, spec);
                }
            }
            Err(_) => {
                let known = || Rule::ALL.iter().map(|rule| rule.as_str());
                let problem = Problem::new(key.place.clone(), entry.path.clone(), "unknown rule");
                at.reader.note(problem.hint(match nearest(&key.text, known()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("known here: {}", known().collect::<Vec<_>>().join(", ")),
                }));
            }
        }
    }
    Some((policy, bare))
}

fn channel(at: &Cursor<'_>, name: &str, bare: &mut Vec<String>) -> Option<Channel> {
    let table = at.table(&reference::CHANNEL)?;
    let kinds = Kind::ALL.map(|kind| (kind.as_str(), kind));
    let kind = table.need("kind", "what it is: wecom, dingtalk, …", |c| c.word(&kinds))?;
    for key in reference::CHANNEL.keys.iter().map(|key| key.name) {
        if !COMMON.contains(&key) && !keys(kind).contains(&key) {
            let known = keys(kind).join(", ");
            table.refuse(key, &format!("a channel of kind {kind} has no such key; it has {known}"));
        }
    }
    let to = to(&table, kind, bare);
    let languages = Lang::ALL.map(|lang| (lang.as_str(), lang));
    let severities = Severity::ALL.map(|severity| (severity.as_str(), severity));
    Some(Channel {
        name: name.to_owned(),
        lang: table.get("lang", |c| c.word(&languages)).unwrap_or_default(),
        at_least: table.get("severity", |c| c.word(&severities)).unwrap_or(Severity::Info),
        quiet: table.get("quiet", quiet),
        per_minute: table.get("per_minute", |c| c.count(1..=600)).unwrap_or(kind.per_minute()),
        to: to?,
    })
}

fn to(table: &Table<'_>, kind: Kind, bare: &mut Vec<String>) -> Option<To> {
    let texts = |name| table.get(name, |c| c.list(Cursor::filled)).unwrap_or_default();
    let needed_url =
        |bare: &mut Vec<String>| table.need("url", "the address it gave you", |c| address(c, bare));
    let secret = |bare: &mut Vec<String>| table.get("secret", |c| secret(c, bare));
    let keyword = || table.get("keyword", Cursor::filled);
    Some(match kind {
        Kind::Wecom => To::Wecom { url: needed_url(bare)?, mentions: texts("mentions") },
        Kind::Dingtalk => To::Dingtalk {
            url: needed_url(bare)?,
            secret: secret(bare),
            keyword: keyword(),
            at_mobiles: texts("at_mobiles"),
        },
        Kind::Feishu => {
            To::Feishu { url: needed_url(bare)?, secret: secret(bare), keyword: keyword() }
        }
        Kind::Slack => To::Slack { url: needed_url(bare)? },
        Kind::Pagerduty => {
            let own = table.get("url", |c| address(c, &mut Vec::new()));
            let key = table.need("routing_key", "the integration's key", |c| self::secret(c, bare));
            To::Pagerduty { url: own.unwrap_or_else(|| Secret::new(PAGERDUTY)), routing_key: key? }
        }
        Kind::Email => To::Email(mailbox(table, bare)?),
        Kind::Webhook => {
            let headers = table.get("headers", |c| c.settings(|_| Ok(()))).unwrap_or_default();
            let headers = headers.into_iter().map(|(name, s)| (name, Secret::new(s.value)));
            let headers: BTreeMap<_, _> = headers.collect();
            To::Webhook { url: needed_url(bare)?, secret: secret(bare), headers }
        }
        Kind::Command => {
            let argv = table.need("command", "a list such as [notify-send, Matins]", |c| {
                c.list(Cursor::filled)
            })?;
            if argv.is_empty() {
                table.missing("command", "a program and its arguments");
                return None;
            }
            To::Command { argv }
        }
    })
}

fn mailbox(table: &Table<'_>, bare: &mut Vec<String>) -> Option<Mailbox> {
    let words = Security::ALL.map(|security| (security.as_str(), security));
    let security = table.get("security", |c| c.word(&words)).unwrap_or(Security::Starttls);
    let usual = match security {
        Security::Tls => 465,
        Security::Starttls => 587,
        Security::None => 25,
    };
    let server = table.need("server", "the mail server, HOST or HOST:PORT", |c| {
        let text = c.filled()?;
        match text.rsplit_once(':') {
            None => Some((text, usual)),
            Some((host, port)) => match port.parse::<u16>() {
                Ok(port) if !host.is_empty() => Some((host.to_owned(), port)),
                _ => c.expected("HOST or HOST:PORT"),
            },
        }
    });
    let mail = |c: &Cursor<'_>| {
        let text = c.filled()?;
        if courier::is_mail_address(&text) { Some(text) } else { c.expected("a mail address") }
    };
    let from = table.need("from", "the sender's mail address", mail);
    let to = table.need("to", "a list of mail addresses", |c| c.list(mail));
    let user = table.get("user", Cursor::filled);
    let password = table.get("password", |c| secret(c, bare));
    // One that is there and wrong is told as that.
    let given = |key| table.get(key, |_| Some(())).is_some();
    if given("user") != given("password") {
        let (have, lack) = if given("user") { ("user", "password") } else { ("password", "user") };
        table.missing(lack, &format!("what goes with {have}"));
    }
    let (host, port) = server?;
    Some(Mailbox { host, port, security, user, password, from: from?, to: to? })
}

/// A text that is nobody's business, best given by reference.
fn secret(at: &Cursor<'_>, bare: &mut Vec<String>) -> Option<Secret> {
    let setting = at.setting()?;
    if setting.value.trim().is_empty() && at.reader.need_secrets {
        return at.fail("is empty");
    }
    if !setting.secret {
        bare.push(at.path.clone());
    }
    Some(Secret::new(setting.value))
}

/// A URL that is a credential, too.
fn address(at: &Cursor<'_>, bare: &mut Vec<String>) -> Option<Secret> {
    let url = secret(at, bare)?;
    if url.reveal().is_empty() {
        return Some(url);
    }
    match reqwest::Url::parse(url.reveal()) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => Some(url),
        // The value itself stays out of the message.
        _ => at.fail("expected an http or https URL"),
    }
}

fn quiet(at: &Cursor<'_>) -> Option<Quiet> {
    let table = at.table(&reference::QUIET)?;
    let time = |c: &Cursor<'_>| {
        let text = c.filled()?;
        match Time::strptime("%H:%M", &text) {
            Ok(time) => Some(time),
            Err(_) => c.expected("a time of day such as 22:00"),
        }
    };
    let from = table.need("from", "HH:MM", time);
    let to = table.need("to", "HH:MM", time);
    let zone = table.get("timezone", schedules::timezone);
    let severities = Severity::ALL.map(|severity| (severity.as_str(), severity));
    Some(Quiet {
        from: from?,
        to: to?,
        zone: zone.and_then(|name| Zone::parse(&name).ok()).unwrap_or_else(Zone::utc),
        except: table.get("except", |c| c.word(&severities)).unwrap_or(Severity::Critical),
    })
}

fn rule(at: &Cursor<'_>, channels: &[String]) -> Option<RuleSpec> {
    let table = at.table(&reference::RULE)?;
    let usual = RuleSpec::default();
    let known = |c: &Cursor<'_>| {
        let name = c.filled()?;
        if channels.contains(&name) {
            return Some(name);
        }
        let problem = c.problem(format!("there is no channel {name}"));
        let names = channels.iter().map(String::as_str);
        c.reader.note(match nearest(&name, names) {
            Some(near) => problem.hint(format!("did you mean {near}?")),
            None => problem.hint("name it under alerts.channels"),
        });
        None
    };
    let severities = Severity::ALL.map(|severity| (severity.as_str(), severity));
    Some(RuleSpec {
        enabled: table.get("enabled", Cursor::boolean).unwrap_or(usual.enabled),
        channels: table.get("channels", |c| c.list(known)),
        fallback: table.get("fallback", |c| c.list(known)).unwrap_or_default(),
        after: table.get("after", Cursor::duration),
        above: table.get("above", |c| c.integer(0..=i64::MAX)).map(i64::unsigned_abs),
        digest: table.get("digest", Cursor::duration).unwrap_or(usual.digest),
        severity: table.get("severity", |c| c.word(&severities)),
    })
}
