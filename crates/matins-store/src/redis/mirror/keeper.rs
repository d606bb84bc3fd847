//! Keeps this member's entry: what it acknowledges, which Redis it sees, its outage lease.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use matins_core::outage::{OutageLease, may_acknowledge};
use tokio::time::timeout;
use uuid::Uuid;

use super::{FENCE_GAP, MARGIN, Mirror, UNDER_WAY, now_ns};
use crate::postgres::member::Saying;

/// Between two turns: while nothing is to be agreed on, in the dark, and otherwise. Whoever claims
/// or looks finds out before that the regime is another one.
const EVERY: Duration = Duration::from_secs(12);
const IN_THE_DARK: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(250);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

impl Mirror {
    pub(super) async fn keep(self: Arc<Self>) {
        let began = Instant::now();
        loop {
            if began.elapsed() > UNDER_WAY && !self.is_dark() {
                self.take_leave_for_gone().await;
            }
            let dark = self.is_dark();
            let calm = match dark {
                // Redis' clock is needed there too.
                true => self.look().await.is_some() && self.judge_inherited().await,
                false => self.turn().await,
            };
            self.calm.send_replace(calm);
            let pause = match (calm, dark) {
                (false, _) => SOON,
                (true, true) => IN_THE_DARK,
                (true, false) => EVERY,
            };
            let _ = timeout(pause, self.keep.notified()).await;
            if calm {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Which Redis is seen, its clock, and who has announced to work in the dark.
    pub(super) async fn look(&self) -> Option<String> {
        let mut call = self.link.scripts.mirror.look.prepare_invoke();
        call.key(self.link.key("store_id"));
        call.arg(&self.link.prefix).arg(self.link.store_id());
        call.arg(Uuid::new_v4().simple().to_string());
        let answer = self.link.script::<Vec<String>>(self.link.times.background, &call).await;
        if let Err(miss) = &answer {
            self.heed_refusal(miss).await;
        }
        let mut answer = answer.ok()?.into_iter();
        if answer.next()? != "ok" {
            return None;
        }
        let (identity, shown) = (answer.next()?, answer.next()?.parse().ok()?);
        let mut regime = self.regime();
        regime.clock = Some((shown, Instant::now()));
        regime.announced = answer.collect();
        Some(identity)
    }

    /// The Redis that tasks could run from: one that may forget them is as good as none.
    async fn usable(&self) -> Option<String> {
        let sees = self.look().await.filter(|_| !self.is_refused())?;
        let keeps = self.outage.as_ref()?.must_be_durable().await;
        keeps.is_ok().then_some(sees)
    }

    /// `true`: nothing is to be agreed on.
    async fn turn(&self) -> bool {
        let sees = self.usable().await;
        let own_note = format!("{}:", self.id);
        let may_acknowledge = may_acknowledge(self.standing()) && self.give_up_older();
        let (saying, sent) = {
            let regime = &mut *self.regime();
            if regime.acknowledged != regime.generation && may_acknowledge {
                regime.acknowledged = regime.generation;
                regime.acknowledged_redis.clone_from(&regime.redis);
            }
            let announced = regime.announced.iter().any(|note| note.starts_with(&own_note));
            let saying = Saying {
                id: self.id,
                node: self.options.node.clone(),
                acknowledged: regime.acknowledged,
                episode: regime.episode,
                renews: sees.is_some() && !announced && self.held().is_empty(),
                sees,
                window: self.options.window,
            };
            (saying, now_ns())
        };
        let Ok(Ok(turned)) = timeout(PATIENCE, self.store.turn(&saying)).await else {
            if let Some(outage) = &self.outage {
                outage.look_soon();
            }
            return false;
        };
        let announced = {
            let mut regime = self.regime();
            if regime.generation != turned.generation {
                tracing::info!(
                    generation = turned.generation,
                    redis = turned.redis.is_some(),
                    "who may work from Redis alone is agreed on anew"
                );
            }
            if turned.granted && regime.acknowledged == turned.generation {
                let nanos = |span: Duration| span.as_nanos() as u64;
                let window = nanos(self.options.window);
                regime.lease = OutageLease::granted(sent, window, nanos(MARGIN));
                regime.fence_floor = turned.fence + FENCE_GAP;
            }
            regime.generation = turned.generation;
            regime.redis.clone_from(&turned.redis);
            regime.settled = turned.settled;
            regime.announced.clone()
        };
        if !announced.is_empty() {
            self.clear_notes(&announced, &own_note).await;
        }
        let agreed = turned.settled && saying.acknowledged == turned.generation;
        agreed && turned.redis == saying.sees && announced.is_empty()
    }

    /// Nobody need wait for the outage lease of this node's last process: it is gone, and so is
    /// what it had under way.
    async fn take_leave_for_gone(&self) {
        let gone = || self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let replayed = self.outage.as_ref().is_none_or(|outage| outage.is_spool_empty());
        let Some(id) = gone().filter(|_| replayed) else { return };
        if let Ok(Ok(())) = timeout(PATIENCE, self.store.leave(id)).await {
            *gone() = None;
        }
    }

    /// Gives up the right of an earlier generation, also for the process that comes after this one:
    /// before it is said, because the answer may be lost. `false`: it still has it.
    fn give_up_older(&self) -> bool {
        {
            let regime = &mut *self.regime();
            if regime.acknowledged == regime.generation {
                return true;
            }
            regime.lease = OutageLease::NONE;
        }
        self.outage.as_ref().is_none_or(|outage| outage.keep_known())
    }

    /// Takes announcements away that hold nobody up: those of members whose outage leases are
    /// over, and one's own of an earlier time.
    async fn clear_notes(&self, announced: &[String], own: &str) {
        let Ok(found) = self.store.waiting(announced, &[]).await else { return };
        let is_over = |note: &&String| found.gone.contains(note) || note.starts_with(own);
        let over: Vec<&String> = announced.iter().filter(is_over).collect();
        let Some(identity) = found.redis.filter(|_| !over.is_empty() && !self.is_dark()) else {
            return;
        };
        let Some(mut call) = self.begin(&self.link.scripts.mirror.withdraw, &identity) else {
            return;
        };
        call.arg(&over);
        if self.ask(&call).await.is_ok() {
            self.keep.notify_one();
        }
    }

    /// A clean end: others need not wait for this member's outage lease.
    pub(in crate::redis) async fn leave(&self) {
        let clean = may_acknowledge(self.standing()) && !self.is_dark();
        if self.is_member() && clean {
            self.regime().lease = OutageLease::NONE;
            if self.outage.as_ref().is_none_or(|outage| outage.keep_known()) {
                let _ = timeout(PATIENCE, self.store.leave(self.id)).await;
            }
        }
    }
}
