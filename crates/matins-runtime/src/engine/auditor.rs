//! Looks now and then whether the store keeps its invariants, and tells what does not hold. What
//! is found once may be in the middle of a change of somebody else's: it is told when it is found
//! twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use matins_core::alert::{Alert, Rule};
use matins_core::audit::{Invariant, Violation};

use super::Core;
use super::producer::Trouble;
use crate::ClientError;

/// Between two looks at a store that is quickly looked at.
const EVERY: Duration = Duration::from_secs(60);
/// Between two signs of life while it waits.
const NAP: Duration = Duration::from_secs(5);
/// Share of its time that the auditor takes at most.
const SHARE: u32 = 100;

pub(super) async fn run(core: Arc<Core>) {
    let beat = core.progress.watch("auditor", NAP);
    let mut trouble = Trouble::of(&core, &beat);
    let mut before: BTreeSet<Violation> = BTreeSet::new();
    let mut pause = EVERY;
    core.client.inner.metrics.violations(&before);
    loop {
        let until = tokio::time::Instant::now() + pause;
        while tokio::time::Instant::now() < until {
            tokio::select! {
                () = core.quiet.cancelled() => return,
                () = tokio::time::sleep(NAP.min(pause)) => beat.round().await,
            }
        }
        let began = tokio::time::Instant::now();
        beat.doing("look");
        match core.client.certify(core.config.lease, || beat.turn()).await {
            Ok(certificate) => {
                trouble.over("auditor");
                let found: BTreeSet<Violation> = certificate.violations.into_iter().collect();
                tell(&core, &before, &found);
                core.client.inner.metrics.violations(&found);
                before = found;
            }
            Err(ClientError::Store(error)) => {
                trouble.again("auditor", &error);
            }
            Err(error) => tracing::error!(%error, "the auditor cannot look"),
        }
        pause = EVERY.max(began.elapsed() * SHARE);
    }
}

fn subject(violation: &Violation) -> String {
    format!("{}/{}", violation.invariant, violation.subject)
}

fn tell(core: &Core, before: &BTreeSet<Violation>, now: &BTreeSet<Violation>) {
    let (alerts, at) = (core.client.alerts(), core.client.now());
    let known: BTreeSet<String> = before.iter().map(subject).collect();
    // What is overdue has a rule of its own.
    let told = |violation: &&Violation| violation.invariant != Invariant::Overdue;
    for violation in now.iter().filter(told).filter(|one| known.contains(&subject(one))) {
        let alert = Alert::new(Rule::Invariant, subject(violation), at);
        let alert = alert.fact("invariant", violation.invariant);
        alerts.raise(alert.fact("detail", &violation.detail));
    }
    let holds: BTreeSet<String> = now.iter().map(subject).collect();
    for gone in alerts.standing(Rule::Invariant) {
        if !holds.contains(&gone) {
            alerts.raise(Alert::resolved(Rule::Invariant, gone, at));
        }
    }
}
