//! Tells a stepped wall clock, and a pause of this process, from time that passed.

use jiff::Timestamp;

use super::Core;

/// Difference of the clocks that counts as a step.
const STEP_SECONDS: f64 = 2.0;

/// Both clocks at one moment.
pub(super) struct Clocks {
    wall: Timestamp,
    boot_ns: u64,
}

/// What happened between two readings.
pub(super) struct Passed {
    /// By how much the wall clock moved against the monotonic one, if that is a step. The boot
    /// clock counts suspension, so waking up is none.
    pub(super) step: Option<f64>,
    /// Real time, with suspension.
    pub(super) seconds: f64,
}

impl Clocks {
    pub(super) fn read(core: &Core) -> Self {
        Self { wall: core.client.now(), boot_ns: core.client.inner.clock.boot_ns() }
    }

    /// What happened since the last call.
    pub(super) fn passed(&mut self, core: &Core) -> Passed {
        let now = Self::read(core);
        let wall = now.wall.duration_since(self.wall).as_secs_f64();
        let seconds = now.boot_ns.saturating_sub(self.boot_ns) as f64 / 1e9;
        *self = now;
        let step = wall - seconds;
        Passed { step: (step.abs() >= STEP_SECONDS).then_some(step), seconds }
    }
}
