//! What a channel is, and what is known of each kind: sizes, rates, what may be merged.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::civil::Time;
use jiff::{Timestamp, civil};

use super::Severity;
use crate::cron::Zone;
use crate::words::words;

/// A text that is never shown: addresses of chat robots are credentials too.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// For whoever sends it. Must not be put into a text, a log or an error.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The language of a channel's texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lang {
    #[default]
    En,
    ZhCn,
}

words!(Lang, "language", En = "en", ZhCn = "zh-CN");

/// A way to reach people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channel {
    pub name: String,
    pub to: To,
    pub lang: Lang,
    /// What matters less is not told here.
    pub at_least: Severity,
    pub quiet: Option<Quiet>,
    /// Most messages in a minute.
    pub per_minute: u32,
}

/// Whom it reaches, and with what proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    Wecom {
        url: Secret,
        /// User ids to mention.
        mentions: Vec<String>,
    },
    Dingtalk {
        url: Secret,
        secret: Option<Secret>,
        keyword: Option<String>,
        at_mobiles: Vec<String>,
    },
    Feishu {
        url: Secret,
        secret: Option<Secret>,
        keyword: Option<String>,
    },
    Slack {
        url: Secret,
    },
    Pagerduty {
        url: Secret,
        routing_key: Secret,
    },
    Email(Mailbox),
    Webhook {
        url: Secret,
        secret: Option<Secret>,
        headers: BTreeMap<String, Secret>,
    },
    Command {
        argv: Vec<String>,
    },
}

/// A mail server, and who writes to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox {
    pub host: String,
    pub port: u16,
    pub security: Security,
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub from: String,
    pub to: Vec<String>,
}

/// How the line to a mail server is kept private.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    Tls,
    Starttls,
    None,
}

words!(Security, "security", Tls = "tls", Starttls = "starttls", None = "none");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Wecom,
    Dingtalk,
    Feishu,
    Slack,
    Pagerduty,
    Email,
    Webhook,
    Command,
}

words!(
    Kind,
    "kind of channel",
    Wecom = "wecom",
    Dingtalk = "dingtalk",
    Feishu = "feishu",
    Slack = "slack",
    Pagerduty = "pagerduty",
    Email = "email",
    Webhook = "webhook",
    Command = "command",
);

impl To {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Wecom { .. } => Kind::Wecom,
            Self::Dingtalk { .. } => Kind::Dingtalk,
            Self::Feishu { .. } => Kind::Feishu,
            Self::Slack { .. } => Kind::Slack,
            Self::Pagerduty { .. } => Kind::Pagerduty,
            Self::Email(_) => Kind::Email,
            Self::Webhook { .. } => Kind::Webhook,
            Self::Command { .. } => Kind::Command,
        }
    }
}

impl Kind {
    /// Messages a minute that the other side bears. DingTalk shuts a robot out for ten minutes
    /// after the twentieth, so it gets some distance.
    pub const fn per_minute(self) -> u32 {
        match self {
            Self::Dingtalk => 15,
            Self::Wecom => 18,
            Self::Email | Self::Command | Self::Slack => 30,
            Self::Feishu | Self::Pagerduty | Self::Webhook => 60,
        }
    }

    /// Bytes of UTF-8 that a text may have.
    pub const fn text_bytes(self) -> usize {
        match self {
            Self::Wecom => 4_096,
            Self::Dingtalk | Self::Feishu => 16_000,
            Self::Slack => 12_000,
            Self::Pagerduty => 1_024,
            Self::Email | Self::Webhook | Self::Command => 64_000,
        }
    }

    /// Whether several matters may go in one message. An incident tool keeps one of each.
    pub const fn merges(self) -> bool {
        !matches!(self, Self::Pagerduty)
    }
}

/// Hours of the day in which only what is grave enough is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quiet {
    pub from: Time,
    /// Over midnight when it is not later than `from`.
    pub to: Time,
    pub zone: Zone,
    /// What matters this much is told all the same.
    pub except: Severity,
}

impl Quiet {
    /// When the quiet that `now` lies in is over; `None`: it is not quiet.
    pub fn until(&self, now: Timestamp) -> Option<Timestamp> {
        let local = self.zone.rules().to_datetime(now);
        let time = local.time();
        let over_midnight = self.to <= self.from;
        let inside = match over_midnight {
            true => time >= self.from || time < self.to,
            false => time >= self.from && time < self.to,
        };
        if !inside {
            return None;
        }
        let date = match over_midnight && time >= self.from {
            true => local.date().tomorrow().ok()?,
            false => local.date(),
        };
        let end = civil::DateTime::from_parts(date, self.to);
        let end = self.zone.rules().to_ambiguous_timestamp(end).compatible().ok()?;
        // A gap of the zone may have swallowed the end.
        Some(end.max(crate::lifecycle::later(now, Duration::from_secs(1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(from: i8, to: i8, zone: &str) -> Quiet {
        let zone = Zone::parse(zone).unwrap();
        let (from, to) = (Time::constant(from, 0, 0, 0), Time::constant(to, 0, 0, 0));
        Quiet { from, to, zone, except: Severity::Critical }
    }

    #[test]
    fn a_night_ends_in_the_morning_of_its_own_zone() {
        let night = quiet(22, 7, "Asia/Shanghai");
        let until = |text: &str| night.until(text.parse().unwrap()).map(|at| at.to_string());
        assert_eq!(until("2026-11-30T13:59:59Z"), None);
        assert_eq!(until("2026-11-30T14:00:00Z").as_deref(), Some("2026-11-30T23:00:00Z"));
        assert_eq!(until("2026-11-30T22:59:59Z").as_deref(), Some("2026-11-30T23:00:00Z"));
        assert_eq!(until("2026-11-30T23:00:00Z"), None);
        let noon = quiet(12, 13, "UTC");
        assert!(noon.until("2026-11-30T12:30:00Z".parse().unwrap()).is_some());
        assert!(noon.until("2026-11-30T13:00:00Z".parse().unwrap()).is_none());
    }

    #[test]
    fn a_changing_clock_ends_the_quiet_once() {
        // 02:00 to 03:00 does not exist on that day.
        let night = quiet(22, 2, "America/New_York");
        let end = night.until("2026-03-08T06:59:00Z".parse().unwrap()).unwrap();
        assert_eq!(end.to_string(), "2026-03-08T07:00:00Z");
        // 01:00 comes twice; the first is meant.
        let night = quiet(22, 1, "America/New_York");
        let end = night.until("2026-11-01T04:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(end.to_string(), "2026-11-01T05:00:00Z");
    }

    #[test]
    fn nothing_of_a_secret_is_shown() {
        let to = To::Slack { url: Secret::new("https://hooks.example/T0KEN") };
        assert!(!format!("{to:?}").contains("T0KEN"));
    }
}
