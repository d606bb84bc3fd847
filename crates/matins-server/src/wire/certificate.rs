//! What the auditor found of a store.

use matins_core::audit::{Certificate, Violation};
use schemars::JsonSchema;
use serde::Serialize;

use super::Time;

/// The invariants of a store, judged just now.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Certificate")]
pub struct CertificateView<'a> {
    time: Time,
    /// Whether every invariant holds.
    clean: bool,
    /// Schedules looked at.
    schedules: u64,
    /// Decided occurrences that their balances account for.
    occurrences: u64,
    /// Running tasks looked at.
    running: u64,
    violations: Vec<ViolationView<'a>>,
}

/// What does not hold.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Violation")]
pub struct ViolationView<'a> {
    /// `armed`, `overdue`, `balance`, `running` or `redis`.
    invariant: &'static str,
    /// The schedule or the task.
    subject: &'a str,
    detail: &'a str,
}

impl<'a> From<&'a Certificate> for CertificateView<'a> {
    fn from(certificate: &'a Certificate) -> Self {
        let view = |violation: &'a Violation| ViolationView {
            invariant: violation.invariant.as_str(),
            subject: &violation.subject,
            detail: &violation.detail,
        };
        Self {
            time: Time(certificate.at),
            clean: certificate.is_clean(),
            schedules: certificate.schedules,
            occurrences: certificate.occurrences,
            running: certificate.running,
            violations: certificate.violations.iter().map(view).collect(),
        }
    }
}
