//! When PostgreSQL is back and has everything that was written meanwhile: runs are handed over,
//! what was claimed without an answer is given back, and the announcement is withdrawn.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use matins_core::lifecycle::{Outcome, Trace, later, settle};
use matins_core::outage::{Standing, may_withdraw};
use matins_core::retry::RetryPolicy;
use matins_core::store::{Queue as _, Result, StoreError};

use super::{Mirror, now_ns};

impl Mirror {
    /// `true`: nothing of the dark is left, and this node is connected again.
    pub(in crate::redis) async fn come_back(&self) -> Result<bool> {
        // Nothing is claimed, renewed or ended in the dark while this is done.
        let _alone = self.dark.write().await;
        if let Some(outage) = &self.outage {
            // What comes in meanwhile are new tasks alone.
            outage.replay().await?;
        }
        self.hand_over().await?;
        self.give_back_owed().await?;
        let standing = Standing { spooled: false, scripts: false, ..self.standing() };
        if !may_withdraw(standing) {
            return Ok(false);
        }
        // What was claimed until now and is not known to have ended is over.
        self.regime().episode += 1;
        self.open.store(false, Ordering::SeqCst);
        self.keep.notify_one();
        Ok(true)
    }

    /// First out of Redis, then as ordinary runs into the database.
    async fn hand_over(&self) -> Result<()> {
        let runs: Vec<_> = {
            let held = self.held();
            let stands = held.values().filter(|held| !held.given_up);
            stands.map(|held| held.claimed.claim).collect()
        };
        if runs.is_empty() {
            return Ok(());
        }
        let away = || {
            StoreError::Unavailable("Redis does not answer: runs are not handed over".to_owned())
        };
        let identity = self.regime().acknowledged_redis.clone().ok_or_else(away)?;
        let script = &self.link.scripts.mirror.finish;
        let mut call = self.begin(script, &identity).ok_or_else(away)?;
        for claim in &runs {
            call.arg(claim.id.to_string()).arg(claim.fence).arg("").arg("");
        }
        let Ok(said) = self.ask(&call).await else {
            // They end, and what they ran is judged by the database.
            let (now, for_good) = (now_ns(), self.lost_for_good(&identity));
            for held in self.held().values_mut() {
                held.given_up |= for_good || held.until_ns <= now;
            }
            return Err(away());
        };
        let stood: HashSet<u64> = runs
            .iter()
            .zip(&said)
            .filter(|(_, word)| *word == "1")
            .map(|(claim, _)| claim.fence)
            .collect();
        // Whatever becomes of the next step, who did not stand now does not stand.
        for held in self.held().values_mut() {
            held.given_up |= !stood.contains(&held.claimed.claim.fence);
        }
        let fences: Vec<u64> = stood.iter().copied().collect();
        let lease_until = later(Timestamp::now(), self.lease());
        self.store.attach(&fences, lease_until).await?;
        self.held().retain(|fence, _| !stood.contains(fence));
        tracing::info!(runs = fences.len(), "runs that began without PostgreSQL are in it");
        Ok(())
    }

    /// Its Redis is another one by now, so nothing can be handed over.
    fn lost_for_good(&self, identity: &str) -> bool {
        let run_id = identity.split(':').next().unwrap_or_default();
        self.link.is_up() && self.link.identity().run_id != run_id
    }

    /// What PostgreSQL claimed for this node without its hearing of it never started.
    async fn give_back_owed(&self) -> Result<()> {
        let owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (worker, token) in owed {
            let claimed = self.store.claimed_before(&worker, token).await?;
            let now = Timestamp::now();
            let policy = RetryPolicy::default();
            let release = |one| {
                let outcome = Outcome::Released { at: now };
                settle(one, outcome, Trace::default(), &policy, now, 0.0)
            };
            let items: Vec<_> = claimed.iter().map(release).collect();
            if !items.is_empty() {
                self.store.settle(items).await?;
            }
            let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
            owed.retain(|one| *one != (worker.clone(), token));
        }
        Ok(())
    }
}
