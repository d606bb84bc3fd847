//! Keys of alert channels and rules.

use super::{Section, key};

pub(crate) static ALERTS: Section = Section {
    title: "alerts",
    about: "Who is told when something is wrong. See the guide on alerts.",
    keys: &[
        key("channels", "mapping by name", "none", "Ways to reach people. None: nobody is told."),
        key(
            "rules",
            "mapping by rule",
            "every rule, to every channel",
            "`dead_letter`, `dead_letters`, `heartbeat`, `stalled`, `restarted`, `crash_loop`, \
             `missed`, `overdue`, `backlog`, `store`, `redis`, `outage`, `worker_lost`, \
             `no_worker`, `clock_step`, `canary`, `invariant`, `ping`, `channel`.",
        ),
    ],
};

pub(crate) static CHANNEL: Section = Section {
    title: "alerts.channels.NAME",
    about: "What belongs to which kind: `wecom` has `url, mentions`; `dingtalk` has `url, secret, \
            keyword, at_mobiles`; `feishu` has `url, secret, keyword`; `slack` has `url`; \
            `pagerduty` has `routing_key, url`; `email` has `server, security, user, password, \
            from, to`; `webhook` has `url, secret, headers`; `command` has `command`.",
    keys: &[
        key(
            "kind",
            "`wecom`, `dingtalk`, `feishu`, `slack`, `pagerduty`, `email`, `webhook`, `command`",
            "required",
            "What it is.",
        ),
        key("url", "URL", "required", "Where it is reached. A credential: give it by reference."),
        key("secret", "text", "none", "Signs each message (`dingtalk`, `feishu`, `webhook`)."),
        key("keyword", "text", "none", "A word that the robot wants in every message."),
        key("at_mobiles", "list", "none", "Mobile numbers that DingTalk calls."),
        key("mentions", "list", "none", "User ids that WeCom mentions."),
        key("routing_key", "text", "required", "Integration key of PagerDuty."),
        key("headers", "mapping", "none", "Further headers of a webhook."),
        key("command", "list", "required", "Program and arguments; the alert comes on stdin."),
        key("server", "`HOST` or `HOST:PORT`", "required", "The mail server."),
        key("security", "`tls`, `starttls`, `none`", "`starttls`", "How its line is kept private."),
        key("user", "text", "none", "Name at the mail server."),
        key("password", "text", "none", "Its password."),
        key("from", "mail address", "required", "Who writes."),
        key("to", "list of mail addresses", "required", "Who is written to."),
        key("lang", "`en`, `zh-CN`", "`en`", "Language of the texts."),
        key(
            "severity",
            "`info`, `warning`, `critical`",
            "`info`",
            "What matters less is not told here.",
        ),
        key("quiet", "mapping", "none", "Hours in which only what is grave is told."),
        key("per_minute", "1 to 600", "what the kind bears", "Most messages in a minute."),
    ],
};

pub(crate) static QUIET: Section = Section {
    title: "quiet",
    about: "What comes in these hours is told together when they are over.",
    keys: &[
        key("from", "`HH:MM`", "required", "Where they begin."),
        key("to", "`HH:MM`", "required", "Where they end; over midnight when not after `from`."),
        key("timezone", "IANA name", "`UTC`", "Whose clock it is."),
        key("except", "severity", "`critical`", "What matters this much is told all the same."),
    ],
};

pub(crate) static RULE: Section = Section {
    title: "alerts.rules.NAME",
    about: "",
    keys: &[
        key("enabled", "`true`, `false`", "`true`", "Whether anybody is told."),
        key("channels", "list of channels", "all but those of `fallback`", "Who is told."),
        key(
            "fallback",
            "list of channels",
            "none",
            "A channel that cannot be told passes what it has to the first of these that can.",
        ),
        key(
            "after",
            "duration",
            "`backlog` 15m, `heartbeat` 90s, `canary`, `no_worker` and `overdue` 60s",
            "How long it must last.",
        ),
        key("above", "number", "`dead_letters` 100, others 0", "From which number on it is told."),
        key(
            "digest",
            "duration",
            "`5m`",
            "Later events of the kind wait so long, to be told together.",
        ),
        key("severity", "`info`, `warning`, `critical`", "the rule's own", "How grave it is."),
    ],
};
