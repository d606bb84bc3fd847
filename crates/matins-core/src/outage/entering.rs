//! When PostgreSQL counts as away.
//!
//! ```text
//!             a round trip fails                 none succeeded for `outage_after`
//!   Normal ───────────────────────▶ Doubtful ─────────────────────────────────────▶ Outage
//!      ▲ ◀──── one succeeds ────────────┘                                             │
//!      └────────────────────── replayed, announcement withdrawn ──────────────────────┘
//! ```
//!
//! An enqueue that comes while it is doubtful waits until that is decided. It never waits for
//! longer than `outage_after` and a little.

/// What a node does about enqueues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// They go to PostgreSQL.
    Normal,
    /// They wait.
    Doubtful,
    /// They are journalled.
    Outage,
}

/// What is known of the way to PostgreSQL, on a monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Contact {
    mode: Mode,
    /// When the first round trip failed since the last one that succeeded.
    failing_since_ns: u64,
}

impl Default for Contact {
    fn default() -> Self {
        Self { mode: Mode::Normal, failing_since_ns: 0 }
    }
}

impl Contact {
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// A process that starts while PostgreSQL is away.
    pub fn away(now_ns: u64) -> Self {
        Self { mode: Mode::Outage, failing_since_ns: now_ns }
    }

    /// A round trip failed. `true`: from now on it is an outage.
    pub fn failed(&mut self, now_ns: u64, outage_after_ns: u64) -> bool {
        match self.mode {
            Mode::Normal => {
                self.mode = Mode::Doubtful;
                self.failing_since_ns = now_ns;
                false
            }
            Mode::Doubtful if now_ns.saturating_sub(self.failing_since_ns) >= outage_after_ns => {
                self.mode = Mode::Outage;
                true
            }
            Mode::Doubtful | Mode::Outage => false,
        }
    }

    /// A round trip succeeded. An outage is over only when it has been replayed.
    pub fn succeeded(&mut self) {
        if self.mode == Mode::Doubtful {
            self.mode = Mode::Normal;
        }
    }

    /// Everything journalled is in PostgreSQL.
    pub fn replayed(&mut self) {
        self.mode = Mode::Normal;
    }
}
