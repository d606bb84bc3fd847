//! Who is told what, and when: the state of one sender, and every decision about it.
//!
//! ```text
//!  alert ─▶ topic (rule, subject) ─ gather, dedup ─▶ digest ─▶ post of each channel ─▶ order
//!                                                     ▲   rate, quiet hours, retry    │
//!                                                     └──── fallback, again ◀── verdict
//! ```
//!
//! The desk is stored as a whole with every step, together with the mark that its alerts were
//! read. An order is stored before it is sent and struck off afterwards: whoever is killed in
//! between sends it once more. It holds digests, never single alerts, so its size is bounded
//! whatever comes in.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::answer::Verdict;
use super::channel::Channel;
use super::digest::Digest;
use super::policy::Policy;
use super::{Alert, Rule, Severity};
use crate::lifecycle::later;

/// Events are waited for this long after the last of a burst, and after its first at most.
const GATHER: Duration = Duration::from_secs(1);
const GATHER_MAX: Duration = Duration::from_secs(5);

/// More matters than this at once go in one message, where a channel allows it.
const SINGLE_MAX: usize = 3;
/// Matters of one message.
const COMBINED_MAX: usize = 50;

/// Matters that wait for a channel; beyond that they are counted under a common subject.
const WAITING_MAX: usize = 200;
const TOPICS_MAX: usize = 1_000;
/// The common subject.
pub const OTHERS: &str = "…";

/// Waits between tries; the last one for ever.
const RETRIES: [u64; 6] = [5, 15, 45, 120, 300, 600];
/// Failures in a row after which others are told, and told instead.
const FAILURES_MAX: u32 = 4;

const MINUTE: Duration = Duration::from_secs(60);
/// How long a matter that is over, or of which nothing more comes, is remembered.
const TOPIC_KEPT: Duration = Duration::from_secs(3_600);
/// The same, while nobody has said that it is over.
const STANDING_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// How long a state that was told before a restart may go unconfirmed.
const CONFIRM: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Desk {
    topics: Vec<Topic>,
    posts: BTreeMap<String, Post>,
}

/// One rule about one subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Topic {
    rule: Rule,
    subject: String,
    /// It lasts since then.
    standing: Option<Timestamp>,
    /// It was told before a restart, and nobody has said since that it lasts.
    #[serde(default)]
    unconfirmed: Option<Timestamp>,
    told_at: Option<Timestamp>,
    touched: Timestamp,
    gathering: Option<Gathering>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Gathering {
    digest: Digest,
    since: Timestamp,
    due_at: Timestamp,
}

/// What waits for a channel.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Post {
    waiting: Vec<Digest>,
    /// Handed to a sender.
    sending: Vec<Digest>,
    next_at: Option<Timestamp>,
    failures: u32,
    /// Why nothing is sent any more.
    off: Option<String>,
    /// Messages of the last minute.
    sent: VecDeque<Timestamp>,
}

/// A message to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    pub channel: String,
    pub digests: Vec<Digest>,
}

/// A channel as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelState {
    pub name: String,
    pub waiting: usize,
    pub failures: u32,
    pub off: Option<String>,
}

/// Whether each alert of a rule stands for itself, rather than for the beginning of a state that
/// lasts until it is resolved.
pub const fn is_event(rule: Rule) -> bool {
    matches!(
        rule,
        Rule::DeadLetter | Rule::Missed | Rule::WorkerLost | Rule::ClockStep | Rule::Restarted
    )
}

impl Desk {
    pub fn read(state: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(state)
    }

    pub fn write(&self) -> String {
        // Maps have texts as keys, and numbers are finite: there is nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Takes over from whoever had the desk before: what was being sent may not have arrived, and
    /// channels that were given up get another chance. That a state in `doubt` lasts, only a process
    /// said that is gone: it is over unless that is said again.
    pub fn resume(&mut self, doubt: impl Fn(Rule) -> bool, policy: &Policy, now: Timestamp) {
        for post in self.posts.values_mut() {
            let sending = std::mem::take(&mut post.sending);
            post.put_back(sending);
        }
        self.reopen(policy);
        let limit = later(now, CONFIRM);
        let standing = self.topics.iter_mut().filter(|topic| topic.standing.is_some());
        for topic in standing.filter(|topic| doubt(topic.rule)) {
            topic.unconfirmed = Some(limit);
        }
    }

    /// Somebody may have repaired them: every channel gets another chance. What waits for one that
    /// is no longer there goes to those who are.
    pub fn reopen(&mut self, policy: &Policy) {
        for post in self.posts.values_mut() {
            post.off = None;
            post.failures = 0;
            post.next_at = None;
        }
        let names: Vec<String> = self.posts.keys().cloned().collect();
        for name in names {
            self.take_over_from(&name, policy);
        }
    }

    /// Some may be told again what they know: better than that nobody is.
    fn take_over_from(&mut self, channel: &str, policy: &Policy) {
        let is_gone =
            |post: &&mut Post| post.sending.is_empty() && !policy.channels.contains_key(channel);
        let Some(post) = self.posts.get_mut(channel).filter(is_gone) else { return };
        let waiting = std::mem::take(&mut post.waiting);
        self.posts.remove(channel);
        for digest in waiting {
            self.hand_out(digest, policy);
        }
    }

    pub fn take_in(&mut self, alert: &Alert, policy: &Policy, now: Timestamp) {
        let spec = policy.rule(alert.rule);
        if !spec.enabled {
            return;
        }
        let severity = policy.severity(alert.rule, alert.severity);
        let topic = self.topic(alert.rule, &alert.subject, now);
        topic.touched = now;
        if is_event(alert.rule) {
            let told = topic.told_at.map(|at| later(at, spec.digest)).filter(|at| *at > now);
            return topic.gather(alert, severity, now, told);
        }
        if alert.resolved {
            topic.unconfirmed = None;
            if topic.standing.take().is_some() {
                topic.gather(alert, severity, now, Some(now));
            }
            return;
        }
        topic.unconfirmed = None;
        // Whoever has forgotten that it was told says it again: that is told now and then.
        let fresh = topic.told_at.is_some_and(|at| later(at, spec.digest) > now);
        if topic.standing.is_none() || !fresh && topic.gathering.is_none() {
            topic.standing.get_or_insert(alert.at);
            topic.gather(alert, severity, now, Some(now));
        }
    }

    fn topic(&mut self, rule: Rule, subject: &str, now: Timestamp) -> &mut Topic {
        let place = |topics: &[Topic], subject: &str| {
            topics.iter().position(|topic| topic.rule == rule && topic.subject == subject)
        };
        let mut found = place(&self.topics, subject);
        let mut name = subject;
        if found.is_none() && self.topics.len() >= TOPICS_MAX {
            name = OTHERS;
            found = place(&self.topics, OTHERS);
        }
        let index = found.unwrap_or_else(|| {
            self.topics.push(Topic::new(rule, name, now));
            self.topics.len() - 1
        });
        &mut self.topics[index]
    }

    /// Hands out what has been gathered.
    pub fn turn(&mut self, policy: &Policy, now: Timestamp) {
        let mut ready = Vec::new();
        for topic in &mut self.topics {
            if topic.unconfirmed.is_some_and(|limit| limit <= now) {
                topic.unconfirmed = None;
                topic.standing = None;
                let over = Alert::resolved(topic.rule, &*topic.subject, now);
                topic.gather(&over, policy.severity(topic.rule, over.severity), now, Some(now));
            }
            if topic.gathering.as_ref().is_some_and(|gathering| gathering.due_at <= now) {
                topic.told_at = Some(now);
                ready.extend(topic.gathering.take().map(|gathering| gathering.digest));
            }
        }
        self.topics.retain(|topic| {
            let kept = if topic.standing.is_some() { STANDING_KEPT } else { TOPIC_KEPT };
            topic.gathering.is_some()
                || later(topic.touched, kept) > now
                || topic.told_at.is_some_and(|at| later(at, policy.rule(topic.rule).digest) > now)
        });
        for digest in ready {
            self.hand_out(digest, policy);
        }
    }

    fn hand_out(&mut self, digest: Digest, policy: &Policy) {
        let targets = policy.targets(digest.rule, &digest.subject, digest.severity);
        for name in targets.into_iter().map(|channel| &channel.name) {
            let off = self.posts.get(name).is_some_and(|post| post.off.is_some());
            if !off || !self.fall_back(digest.clone(), name, policy) {
                self.posts.entry(name.clone()).or_default().add(digest.clone());
            }
        }
    }

    /// Passes a matter on to the first who can be told instead. `false`: there is nobody.
    fn fall_back(&mut self, mut digest: Digest, from: &str, policy: &Policy) -> bool {
        digest.tried.push(from.to_owned());
        let spec = policy.rule(digest.rule);
        let can = |name: &&String| {
            policy.channels.contains_key(*name)
                && !digest.tried.contains(*name)
                && self.posts.get(*name).is_none_or(|post| post.off.is_none())
        };
        let Some(name) = spec.fallback.iter().find(can) else { return false };
        self.posts.entry(name.clone()).or_default().add(digest);
        true
    }

    /// What may be sent now, one message for each channel.
    pub fn orders(&mut self, policy: &Policy, now: Timestamp) -> Vec<Order> {
        let mut orders = Vec::new();
        for channel in policy.channels.values() {
            let Some(post) = self.posts.get_mut(&channel.name) else { continue };
            if post.off.is_some() || !post.sending.is_empty() || !post.may_send(channel, now) {
                continue;
            }
            let digests = post.pick(channel, now);
            if !digests.is_empty() {
                post.sending.clone_from(&digests);
                orders.push(Order { channel: channel.name.clone(), digests });
            }
        }
        orders
    }

    /// What became of a channel's order. Answers what is to be told of the channel.
    pub fn settled(
        &mut self,
        channel: &str,
        verdict: Verdict,
        policy: &Policy,
        now: Timestamp,
    ) -> Option<Alert> {
        let told = self.judged(channel, verdict, policy, now);
        self.take_over_from(channel, policy);
        told.filter(|_| policy.channels.contains_key(channel))
    }

    fn judged(
        &mut self,
        channel: &str,
        verdict: Verdict,
        policy: &Policy,
        now: Timestamp,
    ) -> Option<Alert> {
        let post = self.posts.entry(channel.to_owned()).or_default();
        let sending = std::mem::take(&mut post.sending);
        let alert = |why: &str| Alert::new(Rule::Channel, channel, now).fact("why", why);
        match verdict {
            Verdict::Sent => {
                post.failures = 0;
                post.next_at = None;
                post.sent.push_back(now);
                Some(Alert::resolved(Rule::Channel, channel, now))
            }
            Verdict::Later { after, why } => {
                let nth = RETRIES.get(post.failures as usize).or(RETRIES.last());
                let own = Duration::from_secs(nth.copied().unwrap_or(60));
                post.failures = post.failures.saturating_add(1);
                post.next_at = Some(later(now, own.max(after.unwrap_or_default())));
                post.put_back(sending);
                (post.failures >= FAILURES_MAX).then(|| {
                    self.pass_on(channel, policy);
                    alert(&why)
                })
            }
            Verdict::Refused { why } => {
                for digest in sending {
                    self.fall_back(digest, channel, policy);
                }
                Some(alert(&why))
            }
            Verdict::Off { why } => {
                post.off = Some(why.clone());
                post.put_back(sending);
                self.pass_on(channel, policy);
                Some(alert(&why))
            }
        }
    }

    /// Whoever can be told instead of a channel gets what waits for it; the rest goes on waiting.
    fn pass_on(&mut self, channel: &str, policy: &Policy) {
        let Some(post) = self.posts.get_mut(channel) else { return };
        let waiting = std::mem::take(&mut post.waiting);
        let mut rest = waiting;
        rest.retain(|digest| !self.fall_back(digest.clone(), channel, policy));
        if let Some(post) = self.posts.get_mut(channel) {
            post.waiting = rest;
        }
    }

    /// Whether something may be due soon without anything new coming in.
    pub fn is_busy(&self) -> bool {
        self.topics.iter().any(|topic| topic.gathering.is_some() || topic.unconfirmed.is_some())
            || self.posts.values().any(|post| post.off.is_none() && !post.waiting.is_empty())
    }

    /// Whether a state was told and is not over.
    pub fn stands(&self, rule: Rule, subject: &str) -> bool {
        let mut topics = self.topics.iter();
        topics.any(|t| t.rule == rule && t.subject == subject && t.standing.is_some())
    }

    /// Subjects of a rule's states that last.
    pub fn standing(&self, rule: Rule) -> Vec<String> {
        let topics = self.topics.iter().filter(|t| t.rule == rule && t.standing.is_some());
        topics.map(|topic| topic.subject.clone()).collect()
    }

    pub fn channels(&self) -> Vec<ChannelState> {
        let state = |(name, post): (&String, &Post)| ChannelState {
            name: name.clone(),
            waiting: post.waiting.len() + post.sending.len(),
            failures: post.failures,
            off: post.off.clone(),
        };
        self.posts.iter().map(state).collect()
    }
}

impl Topic {
    fn new(rule: Rule, subject: &str, now: Timestamp) -> Self {
        Self {
            rule,
            subject: subject.to_owned(),
            standing: None,
            unconfirmed: None,
            told_at: None,
            touched: now,
            gathering: None,
        }
    }

    /// Adds to what will be told: at `due`, or when the burst is over.
    fn gather(
        &mut self,
        alert: &Alert,
        severity: Severity,
        now: Timestamp,
        due: Option<Timestamp>,
    ) {
        // Many under one subject keep it.
        let alert = Alert { subject: self.subject.clone(), ..alert.clone() };
        match &mut self.gathering {
            Some(gathering) => {
                gathering.digest.add(&alert, severity);
                let burst = later(now, GATHER).min(later(gathering.since, GATHER_MAX));
                gathering.due_at = due.unwrap_or(burst);
            }
            empty => {
                let due_at = due.unwrap_or_else(|| later(now, GATHER));
                let digest = Digest::of(&alert, severity);
                *empty = Some(Gathering { digest, since: now, due_at });
            }
        }
    }
}

impl Post {
    fn add(&mut self, digest: Digest) {
        let same = |known: &Digest| known.is_about(digest.rule, &digest.subject);
        if let Some(known) = self.waiting.iter_mut().find(|known| same(known)) {
            return known.merge(digest);
        }
        if self.waiting.len() < WAITING_MAX {
            return self.waiting.push(digest);
        }
        let others = Digest { subject: OTHERS.to_owned(), ..digest };
        let known = self.waiting.iter_mut().find(|known| known.is_about(others.rule, OTHERS));
        match known {
            Some(known) => known.merge(others),
            // One for each rule at most.
            None => self.waiting.push(others),
        }
    }

    /// What was not sent goes first again, with what came of the same meanwhile.
    fn put_back(&mut self, sending: Vec<Digest>) {
        let later = std::mem::replace(&mut self.waiting, sending);
        for digest in later {
            self.add(digest);
        }
    }

    fn may_send(&mut self, channel: &Channel, now: Timestamp) -> bool {
        while self.sent.front().is_some_and(|at| later(*at, MINUTE) <= now) {
            self.sent.pop_front();
        }
        self.next_at.is_none_or(|at| at <= now) && self.sent.len() < channel.per_minute as usize
    }

    /// Takes what one message is made of.
    fn pick(&mut self, channel: &Channel, now: Timestamp) -> Vec<Digest> {
        let quiet = channel.quiet.as_ref().filter(|quiet| quiet.until(now).is_some());
        let loud = |digest: &Digest| quiet.is_none_or(|quiet| digest.severity >= quiet.except);
        let ready = self.waiting.iter().filter(|digest| loud(digest)).count();
        let most = match channel.to.kind().merges() && ready > SINGLE_MAX {
            true => COMBINED_MAX,
            false => 1,
        };
        let mut picked = Vec::new();
        let mut rest = Vec::new();
        for digest in std::mem::take(&mut self.waiting) {
            match loud(&digest) && picked.len() < most {
                true => picked.push(digest),
                false => rest.push(digest),
            }
        }
        self.waiting = rest;
        picked
    }
}
