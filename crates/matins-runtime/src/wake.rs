//! Wake-ups between the front doors and the loops. Hints: a loop that misses one polls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use matins_core::task::Name;
use tokio::sync::Notify;

#[derive(Debug, Clone, Default)]
pub struct Wake(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    pools: Mutex<HashMap<Name, Arc<Notify>>>,
    /// Schedules changed: the scheduler looks again.
    schedules: Notify,
    /// Somebody cancelled a running task.
    cancels: Notify,
    /// A long act of a person waits to be carried out.
    operations: Notify,
    /// Somebody may have to be told something.
    alerts: Notify,
    /// Claims may have lapsed.
    lapses: Notify,
    /// Pending tasks may have expired.
    expiries: Notify,
}

impl Wake {
    /// The bell of one pool. `notify_one` stores a permit, so a ring between a look at the store
    /// and the wait is not lost.
    pub fn pool(&self, name: &str) -> Arc<Notify> {
        let mut pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = pools.get(name) {
            return bell.clone();
        }
        pools.entry(name.into()).or_default().clone()
    }

    pub fn ring_pool(&self, name: &str) {
        let pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = pools.get(name) {
            bell.notify_one();
        }
    }

    pub fn ring_pools(&self) {
        let pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.values().for_each(|bell| bell.notify_one());
    }

    pub fn ring_schedules(&self) {
        self.0.schedules.notify_one();
    }

    pub async fn schedules(&self) {
        self.0.schedules.notified().await;
    }

    pub fn ring_cancels(&self) {
        self.0.cancels.notify_one();
    }

    pub async fn cancels(&self) {
        self.0.cancels.notified().await;
    }

    pub fn ring_operations(&self) {
        self.0.operations.notify_one();
    }

    pub async fn operations(&self) {
        self.0.operations.notified().await;
    }

    pub fn ring_alerts(&self) {
        self.0.alerts.notify_one();
    }

    pub async fn alerts(&self) {
        self.0.alerts.notified().await;
    }

    pub fn ring_lapses(&self) {
        self.0.lapses.notify_one();
    }

    pub async fn lapses(&self) {
        self.0.lapses.notified().await;
    }

    pub fn ring_expiries(&self) {
        self.0.expiries.notify_one();
    }

    pub async fn expiries(&self) {
        self.0.expiries.notified().await;
    }

    /// The store may have changed in any way.
    pub fn ring_all(&self) {
        self.ring_pools();
        self.ring_schedules();
        self.ring_cancels();
        self.ring_operations();
    }
}
