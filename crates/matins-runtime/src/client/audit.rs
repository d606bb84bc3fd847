//! Reads what the auditor judges. A page at a time, so that a large store is never held up.

use std::time::Duration;

use matins_core::State;
use matins_core::audit::{self, Certificate};
use matins_core::lease::sweep_every;
use matins_core::page::{PAGE_MAX, PageRequest};
use matins_core::store::TaskFilter;
use matins_core::task::{Task, WorkerId};

use super::{Client, Result};

/// Running tasks that are looked at: more than any sane set of nodes has slots.
const RUNNING_MAX: usize = 10_000;

impl Client {
    /// Judges the store by its invariants. `lease` is how long the word of a worker counts; `turned`
    /// is called with every step.
    pub async fn certify(&self, lease: Duration, turned: impl Fn() + Sync) -> Result<Certificate> {
        let limits = self.rules().limits;
        let mut certificate = Certificate {
            at: self.now(),
            schedules: 0,
            occurrences: 0,
            running: 0,
            violations: Vec::new(),
        };
        let mut page = PageRequest { limit: PAGE_MAX, cursor: None };
        loop {
            let found = self.inner.store.schedules(&page).await?;
            turned();
            let now = self.now();
            for due in &found.items {
                certificate.schedules += 1;
                certificate.occurrences += due.state.balance.expected;
                certificate.violations.extend(audit::schedule(due, &limits, now));
            }
            match found.next {
                Some(next) => page.cursor = Some(next),
                None => break,
            }
        }
        let running = self.running_with_workers(&turned).await?;
        certificate.running = running.len() as u64;
        let workers = self.inner.store.workers().await?;
        // Whoever died is judged after its lease, by the next sweep.
        let patience = lease + sweep_every(lease) * 2;
        let found = audit::running(&running, &workers, patience, self.now());
        certificate.violations.extend(found);
        let strays = self.inner.store.strays().await?;
        certificate.violations.extend(strays.iter().map(audit::stray));
        certificate.violations.sort();
        Ok(certificate)
    }

    /// Running tasks and the worker that each one's latest attempt names. One that ends meanwhile
    /// is left out.
    async fn running_with_workers(
        &self,
        turned: &(impl Fn() + Sync),
    ) -> Result<Vec<(Task, Option<WorkerId>)>> {
        let filter = TaskFilter { states: vec![State::Running], ..TaskFilter::default() };
        let mut page = PageRequest { limit: PAGE_MAX, cursor: None };
        let mut running = Vec::new();
        loop {
            let found = self.inner.store.tasks(&filter, &page).await?;
            for task in found.items {
                turned();
                let attempts = self.inner.store.attempts(task.id).await?;
                let open = attempts.into_iter().rev().find(|attempt| attempt.outcome.is_none());
                let worker = open.map(|attempt| WorkerId(attempt.worker));
                // It may have ended between the two reads.
                let still = self.inner.store.task(task.id).await?;
                if still
                    .is_some_and(|now| (now.state, now.attempt) == (State::Running, task.attempt))
                {
                    running.push((task, worker));
                }
            }
            match found.next.filter(|_| running.len() < RUNNING_MAX) {
                Some(next) => page.cursor = Some(next),
                None => return Ok(running),
            }
        }
    }
}
