//! The slots of a pool on this node. May be resized while tasks run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Slots {
    size: AtomicU32,
    busy: AtomicU32,
    freed: Notify,
}

/// A taken slot; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Slots>);

impl Slots {
    pub(crate) fn new(size: u32) -> Self {
        Self { size: AtomicU32::new(size), busy: AtomicU32::new(0), freed: Notify::new() }
    }

    pub(crate) fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    pub(crate) fn busy(&self) -> u32 {
        self.busy.load(Ordering::Relaxed)
    }

    pub(crate) fn resize(&self, size: u32) {
        self.size.store(size, Ordering::Relaxed);
        self.freed.notify_one();
    }

    pub(crate) fn free(&self) -> u32 {
        self.size().saturating_sub(self.busy())
    }

    /// Waits until at least one slot is free.
    pub(crate) async fn wait_free(&self) {
        while self.free() == 0 {
            self.freed.notified().await;
        }
    }

    /// Only the pool's producer takes slots, so what it saw free is still free.
    pub(crate) fn take(self: &Arc<Self>) -> Slot {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Slot(self.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.freed.notify_one();
    }
}
