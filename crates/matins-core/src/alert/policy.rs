//! What is told to whom: rules over channels.

use std::collections::BTreeMap;
use std::time::Duration;

use super::channel::Channel;
use super::{Rule, Severity};

/// What is configured of a rule; the rest is the rule's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSpec {
    pub enabled: bool,
    /// `None`: every channel.
    pub channels: Option<Vec<String>>,
    /// Told, in this order, what none of the channels could be told.
    pub fallback: Vec<String>,
    /// How long something must last before it is told.
    pub after: Option<Duration>,
    /// From which number on it is told.
    pub above: Option<u64>,
    /// Events after one that was told wait this long to be told together.
    pub digest: Duration,
    pub severity: Option<Severity>,
}

impl Default for RuleSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            channels: None,
            fallback: Vec::new(),
            after: None,
            above: None,
            digest: Duration::from_secs(300),
            severity: None,
        }
    }
}

/// All channels and rules of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    pub channels: BTreeMap<String, Channel>,
    pub rules: BTreeMap<Rule, RuleSpec>,
    /// Where the dashboard is reached, for links.
    pub public_url: Option<String>,
    /// Who speaks: the node.
    pub source: String,
}

impl Policy {
    pub fn rule(&self, rule: Rule) -> RuleSpec {
        self.rules.get(&rule).cloned().unwrap_or_default()
    }

    pub fn severity(&self, rule: Rule, own: Severity) -> Severity {
        self.rules.get(&rule).and_then(|spec| spec.severity).unwrap_or(own)
    }

    /// How long a matter of the rule must last before it is told.
    pub fn after(&self, rule: Rule) -> Duration {
        let own = match rule {
            Rule::Heartbeat => 90,
            Rule::Canary | Rule::NoWorker | Rule::Overdue => 60,
            Rule::Backlog => 900,
            _ => 0,
        };
        self.rule(rule).after.unwrap_or(Duration::from_secs(own))
    }

    /// From which number on it is told.
    pub fn above(&self, rule: Rule) -> u64 {
        let own = if rule == Rule::DeadLetters { 100 } else { 0 };
        self.rule(rule).above.unwrap_or(own)
    }

    /// Channels that are told of something so grave under a rule. A channel is not told over
    /// itself that it fails.
    pub fn targets(&self, rule: Rule, subject: &str, severity: Severity) -> Vec<&Channel> {
        let spec = self.rule(rule);
        if !spec.enabled {
            return Vec::new();
        }
        let wanted = |channel: &&Channel| {
            channel.at_least <= severity
                && spec.channels.as_ref().is_none_or(|names| names.contains(&channel.name))
                && !(rule == Rule::Channel && channel.name == subject)
                // What others fall back to is not told by itself, unless it is named.
                && (spec.channels.is_some() || !spec.fallback.contains(&channel.name))
        };
        self.channels.values().filter(wanted).collect()
    }

    /// Rules that nobody will be told of, because they name no channel that is there.
    pub fn untold(&self) -> Vec<Rule> {
        let told = |rule: &Rule| !self.targets(*rule, "", Severity::Critical).is_empty();
        let on = |rule: &Rule| *rule != Rule::Test && self.rule(*rule).enabled;
        Rule::ALL.into_iter().filter(|rule| on(rule) && !told(rule)).collect()
    }
}
