//! Whether an occurrence may start while the previous task of its schedule is still live.
//!
//! The holder is the previous task while it is pending, running or backing off; a dead letter does
//! not hold. Tasks started earlier in the same look hold too.

use super::{Live, Overlap, ScheduleSpec};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Start,
    /// Exists at once, and waits for the holder.
    Hold,
    Skip,
}

/// Lets the occurrences of one look pass one by one.
#[derive(Debug)]
pub(super) struct Gate {
    overlap: Overlap,
    held_max: u32,
    active: u32,
    held: u32,
    pub cancel_previous: bool,
}

impl Gate {
    pub(super) fn new(spec: &ScheduleSpec, live: Live) -> Self {
        let held_max = match spec.overlap {
            Overlap::BufferOne => 1,
            _ => spec.overlap_max,
        };
        let (active, held) = (live.active, live.held);
        Self { overlap: spec.overlap, held_max, active, held, cancel_previous: false }
    }

    /// `newest`: no other occurrence follows in this look.
    pub(super) fn enter(&mut self, newest: bool) -> Entry {
        let busy = self.active > 0 || self.held > 0;
        let entry = match self.overlap {
            Overlap::Allow => Entry::Start,
            // Each would only be cancelled by the next.
            Overlap::CancelPrevious if !newest => Entry::Skip,
            Overlap::CancelPrevious if busy => {
                self.cancel_previous = true;
                Entry::Hold
            }
            _ if !busy => Entry::Start,
            Overlap::BufferOne | Overlap::BufferAll if self.held < self.held_max => Entry::Hold,
            _ => Entry::Skip,
        };
        match entry {
            Entry::Start => self.active += 1,
            Entry::Hold => self.held += 1,
            Entry::Skip => {}
        }
        entry
    }
}
