//! What is kept for people: the audit log, the ledger, tokens, events.

use std::collections::BTreeMap;

use matins_core::Json;
use matins_core::alert::Alert;
use matins_core::page::Page;
use matins_core::store::{AuditEntry, LedgerEntry, Token};
use matins_core::task::{State, TaskId};
use matins_runtime::events::{Event, What};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, schema};
use crate::auth::Role;

/// A part of a list.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PageQuery {
    /// 1 to 1000; 50 when absent.
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// An act of a person.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditEntry")]
pub struct AuditView<'a> {
    time: Time,
    who: &'a str,
    action: &'a str,
    target: &'a str,
    reason: Option<&'a str>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditList")]
pub struct AuditList<'a> {
    audit: Vec<AuditView<'a>>,
    next_cursor: Option<&'a str>,
}

impl<'a> From<&'a Page<AuditEntry>> for AuditList<'a> {
    fn from(page: &'a Page<AuditEntry>) -> Self {
        let view = |entry: &'a AuditEntry| AuditView {
            time: Time(entry.time),
            who: &entry.who,
            action: &entry.action,
            target: &entry.target,
            reason: entry.reason.as_deref(),
        };
        Self { audit: page.items.iter().map(view).collect(), next_cursor: page.next.as_deref() }
    }
}

/// Something that a person should know.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Alert")]
pub struct AlertView<'a> {
    time: Time,
    rule: &'static str,
    subject: &'a str,
    severity: &'static str,
    /// What was told before of the same rule and subject is over.
    resolved: bool,
    facts: BTreeMap<&'a str, &'a str>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AlertList")]
pub struct AlertList<'a> {
    alerts: Vec<AlertView<'a>>,
    next_cursor: Option<&'a str>,
}

impl<'a> From<&'a Page<Alert>> for AlertList<'a> {
    fn from(page: &'a Page<Alert>) -> Self {
        let view = |alert: &'a Alert| AlertView {
            time: Time(alert.at),
            rule: alert.rule.as_str(),
            subject: &alert.subject,
            severity: alert.severity.as_str(),
            resolved: alert.resolved,
            facts: alert.facts.iter().map(|fact| (&*fact.name, &*fact.value)).collect(),
        };
        Self { alerts: page.items.iter().map(view).collect(), next_cursor: page.next.as_deref() }
    }
}

/// What is known of a key.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LedgerEntry")]
pub struct LedgerView<'a> {
    r#type: &'a str,
    execution_key: &'a str,
    #[schemars(schema_with = "schema::uuid")]
    task_id: TaskId,
    #[schemars(schema_with = "schema::state")]
    state: State,
    #[schemars(schema_with = "schema::json")]
    result: Option<&'a Json>,
    /// When it completed; while it is live, when it was accepted or started.
    at: Time,
}

impl<'a> From<&'a LedgerEntry> for LedgerView<'a> {
    fn from(entry: &'a LedgerEntry) -> Self {
        Self {
            r#type: &entry.kind,
            execution_key: &entry.execution_key,
            task_id: entry.task_id,
            state: entry.state,
            result: entry.result.as_ref(),
            at: Time(entry.at),
        }
    }
}

/// A new token.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBody {
    pub name: String,
    pub role: Role,
    /// `worker` and `enqueue`: the types it is limited to; any when absent.
    #[serde(default)]
    pub types: Vec<String>,
}

/// A token without its secret, which nobody keeps.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Token")]
pub struct TokenView<'a> {
    name: &'a str,
    role: &'a str,
    types: &'a [String],
    created_at: Time,
    created_by: &'a str,
}

impl<'a> From<&'a Token> for TokenView<'a> {
    fn from(token: &'a Token) -> Self {
        Self {
            name: &token.name,
            role: &token.role,
            types: &token.types,
            created_at: Time(token.created_at),
            created_by: &token.created_by,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TokenList")]
pub struct TokenList<'a> {
    pub tokens: Vec<TokenView<'a>>,
}

/// The one time that a secret is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NewToken")]
pub struct NewTokenView<'a> {
    #[serde(flatten)]
    pub token: TokenView<'a>,
    pub secret: &'a str,
}

/// Something that happened. Hints: a slow listener misses some, and is told so.
#[derive(Debug, Serialize)]
pub struct EventView<'a> {
    time: Time,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<TaskId>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

impl<'a> EventView<'a> {
    pub fn new(event: &'a Event) -> Self {
        let mut view = Self {
            time: Time(event.at),
            event: "",
            id: None,
            kind: None,
            attempt: None,
            state: None,
            schedule: None,
            label: None,
            seconds: None,
        };
        match &event.what {
            What::Enqueued { id, kind } => {
                view.event = "task.enqueued";
                (view.id, view.kind) = (Some(*id), Some(&**kind));
            }
            What::Started { id, kind, attempt } => {
                view.event = "task.started";
                (view.id, view.kind, view.attempt) = (Some(*id), Some(&**kind), Some(*attempt));
            }
            What::Settled { id, kind, attempt, state } => {
                view.event = "task.settled";
                (view.id, view.kind, view.attempt) = (Some(*id), Some(&**kind), Some(*attempt));
                view.state = Some(*state);
            }
            What::Cancelled { id } => {
                view.event = "task.cancelled";
                view.id = Some(*id);
            }
            What::Fired { schedule, label } => {
                view.event = "schedule.fired";
                (view.schedule, view.label) = (Some(&**schedule), Some(label.as_str()));
            }
            What::ClockStep { seconds } => {
                view.event = "clock.stepped";
                view.seconds = Some(*seconds);
            }
            What::Fenced { id } => {
                view.event = "task.fenced";
                view.id = Some(*id);
            }
        }
        view
    }

    pub fn name(&self) -> &'static str {
        self.event
    }
}
