//! What a supervising parent does about its child: whether it is alive, when it is ended, when
//! and how often it is started again.
//!
//! ```text
//!  start ──hello──▶ up ──beat──▶ up          silence ≥ stall_after ─┐
//!    │                 └─stalled──▶ told ── ABORT_GRACE ────────────┼─▶ kill ─▶ ended
//!    └─ START_LIMIT ───────────────────────────────────────────────┘
//!
//!  ended:  asked to stop, or exit 0 ─▶ finish     exit 2, or never up ─▶ finish with its code
//!          else ─▶ start again: at once, then after ever longer pauses
//! ```
//!
//! Time is counted from the parent's own start, on a clock that stands still while the host
//! sleeps: silence during a suspension is none. Must never look at anything but what the child
//! said and when: the parent decides alike on every store.

use std::collections::VecDeque;
use std::time::Duration;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exit(u8),
    Signal(i32),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

impl End {
    /// What a parent that ends for this reason exits with, as shells say it.
    pub const fn code(self) -> u8 {
        match self {
            Self::Exit(code) => code,
            Self::Signal(signal) => 128u8.wrapping_add(signal as u8),
        }
    }
}

/// What the child says of itself when it is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub stall_after: Duration,
    /// Longest graceful stop.
    pub stop_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stall_after: Duration::from_secs(45), stop_within: Duration::from_secs(30) }
    }
}

/// Longest start: opening the store, migrations, ending what a predecessor left.
pub const START_LIMIT: Duration = Duration::from_secs(600);
/// Between a child's word that a loop hangs and its end: time to write down what hangs.
pub const ABORT_GRACE: Duration = Duration::from_secs(10);
/// Beyond its own limit a stop may take so much longer.
pub const STOP_SLACK: Duration = Duration::from_secs(30);

/// Restarts within this time are one crash loop.
pub const LOOP_WINDOW: Duration = Duration::from_secs(600);
/// So many restarts within the window are one.
pub const LOOP_RESTARTS: usize = 3;

const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Exit code of a wrong configuration or usage, which no restart mends.
const WRONG_USAGE: u8 = 2;
/// Exit code of one whose store is out of reach. It is tried on, and is no crash.
const UNREACHABLE: u8 = 4;

/// Why a child must be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hang {
    /// It says itself that these loops do not turn.
    Loops(String),
    /// It has not been heard of for so long.
    Silent(Duration),
    /// It did not come up.
    Start,
    /// It was asked to stop and did not.
    Stop,
}

impl std::fmt::Display for Hang {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loops(loops) => write!(f, "a loop does not turn: {loops}"),
            Self::Silent(time) => write!(f, "no sign of life for {} s", time.as_secs()),
            Self::Start => write!(f, "it did not come up within {} s", START_LIMIT.as_secs()),
            Self::Stop => f.write_str("it was asked to stop and did not"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Finish(u8),
    Restart {
        after: Duration,
        /// It has just become one.
        crash_loop: bool,
    },
}

/// One child, and what is remembered of those before it.
#[derive(Debug, Clone)]
pub struct Supervision {
    limits: Limits,
    started: Duration,
    /// When it was last heard of; `None`: it is not up yet.
    heard: Option<Duration>,
    stalled: Option<(Duration, String)>,
    stopping: Option<Duration>,
    ever_up: bool,
    restarts: VecDeque<Duration>,
    looping: bool,
    /// How often in a row its store was out of reach at its start.
    away: u32,
}

impl Supervision {
    pub fn new(now: Duration) -> Self {
        Self {
            limits: Limits::default(),
            started: now,
            heard: None,
            stalled: None,
            stopping: None,
            ever_up: false,
            restarts: VecDeque::new(),
            looping: false,
            away: 0,
        }
    }

    pub fn started(&mut self, now: Duration) {
        (self.started, self.heard, self.stalled) = (now, None, None);
    }

    pub fn up(&mut self, limits: Limits, now: Duration) {
        (self.limits, self.heard, self.ever_up) = (limits, Some(now), true);
        self.away = 0;
    }

    /// All its loops turn, or wait for a store that is away.
    pub fn beat(&mut self, now: Duration) {
        if self.heard.is_some() {
            self.heard = Some(now);
        }
        self.stalled = None;
    }

    pub fn stalled(&mut self, loops: String, now: Duration) {
        self.heard = self.heard.map(|_| now);
        self.stalled.get_or_insert((now, loops));
    }

    pub fn asked_to_stop(&mut self, now: Duration) {
        self.stopping.get_or_insert(now);
    }

    pub fn is_up(&self) -> bool {
        self.heard.is_some()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Whether the parent may vouch for it: it turns, or it is on its way up or down.
    pub fn is_sound(&self, now: Duration) -> bool {
        self.hangs(now).is_none() && self.stalled.is_none()
    }

    /// Why it must be ended now.
    pub fn hangs(&self, now: Duration) -> Option<Hang> {
        let since = |then: Duration| now.saturating_sub(then);
        if let Some(asked) = self.stopping {
            let late = since(asked) > self.limits.stop_within + STOP_SLACK;
            return late.then_some(Hang::Stop);
        }
        if let Some((when, loops)) = &self.stalled
            && since(*when) >= ABORT_GRACE
        {
            return Some(Hang::Loops(loops.clone()));
        }
        match self.heard {
            None => (since(self.started) >= START_LIMIT).then_some(Hang::Start),
            Some(heard) if since(heard) >= self.limits.stall_after => {
                Some(Hang::Silent(since(heard)))
            }
            Some(_) => None,
        }
    }

    /// What follows the end of a child.
    pub fn ended(&mut self, end: End, now: Duration) -> Next {
        let was_asked = self.stopping.is_some();
        let wrong = end == End::Exit(WRONG_USAGE);
        // Whoever starts a server that cannot start wants to be told, not to be kept waiting.
        let never_up = !self.ever_up && matches!(end, End::Exit(_));
        if was_asked || wrong || never_up || end == End::Exit(0) {
            return Next::Finish(end.code());
        }
        if end == End::Exit(UNREACHABLE) {
            self.away = self.away.saturating_add(1);
            return Next::Restart { after: pause(self.away), crash_loop: false };
        }
        while self.restarts.front().is_some_and(|then| now.saturating_sub(*then) > LOOP_WINDOW) {
            self.restarts.pop_front();
        }
        let after = pause(self.restarts.len() as u32);
        self.restarts.push_back(now);
        let crash_loop = self.restarts.len() >= LOOP_RESTARTS && !self.looping;
        self.looping |= crash_loop;
        Next::Restart { after, crash_loop }
    }

    /// Whether a crash loop has just ended: nothing was restarted for a whole window.
    pub fn has_calmed(&mut self, now: Duration) -> bool {
        let quiet = |then: &Duration| now.saturating_sub(*then) > LOOP_WINDOW;
        let calmed = self.looping && self.is_up() && self.restarts.back().is_none_or(quiet);
        self.looping &= !calmed;
        calmed
    }

    pub fn recent_restarts(&self) -> usize {
        self.restarts.len()
    }
}

/// After `n` others.
fn pause(n: u32) -> Duration {
    match n {
        0 => Duration::ZERO,
        n => PAUSE_FIRST.saturating_mul(1 << (n - 1).min(10)).min(PAUSE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: Limits =
        Limits { stall_after: Duration::from_secs(45), stop_within: Duration::from_secs(30) };

    fn up(at: Duration) -> Supervision {
        let mut it = Supervision::new(at);
        it.up(LIMITS, at);
        it
    }

    #[test]
    fn silence_and_a_stalled_loop_end_it_and_a_beat_does_not() {
        let mut it = up(Duration::ZERO);
        assert_eq!(it.hangs(SECOND * 44), None);
        it.beat(SECOND * 44);
        assert_eq!(it.hangs(SECOND * 88), None);
        assert_eq!(it.hangs(SECOND * 89), Some(Hang::Silent(SECOND * 45)));
        it.stalled("scheduler".into(), SECOND * 90);
        assert!(!it.is_sound(SECOND * 90));
        it.stalled("scheduler".into(), SECOND * 99);
        assert_eq!(it.hangs(SECOND * 99), None, "it still writes down what hangs");
        assert_eq!(it.hangs(SECOND * 100), Some(Hang::Loops("scheduler".into())));
        it.beat(SECOND * 100);
        assert!(it.is_sound(SECOND * 100), "it went on by itself");
    }

    #[test]
    fn a_start_has_a_limit_of_its_own() {
        let mut it = Supervision::new(Duration::ZERO);
        assert_eq!(it.hangs(SECOND * 599), None);
        assert_eq!(it.hangs(START_LIMIT), Some(Hang::Start));
        it.started(START_LIMIT);
        assert_eq!(it.hangs(START_LIMIT + SECOND), None);
    }

    #[test]
    fn a_stop_that_was_asked_for_is_final() {
        for end in [End::Exit(0), End::Exit(1), End::Signal(9)] {
            let mut it = up(Duration::ZERO);
            it.asked_to_stop(SECOND);
            assert_eq!(it.ended(end, SECOND * 2), Next::Finish(end.code()));
        }
        let mut it = up(Duration::ZERO);
        it.asked_to_stop(SECOND);
        assert_eq!(it.hangs(SECOND * 61), None, "nothing beats while it ends");
        assert_eq!(it.hangs(SECOND * 62), Some(Hang::Stop));
        assert_eq!(End::Signal(9).code(), 137);
    }

    #[test]
    fn what_cannot_start_is_not_started_for_ever() {
        let mut it = Supervision::new(Duration::ZERO);
        assert_eq!(it.ended(End::Exit(4), SECOND), Next::Finish(4), "never up");
        let mut it = up(Duration::ZERO);
        assert_eq!(it.ended(End::Exit(2), SECOND), Next::Finish(2), "wrong configuration");
        let mut it = Supervision::new(Duration::ZERO);
        let again = Next::Restart { after: Duration::ZERO, crash_loop: false };
        assert_eq!(it.ended(End::Signal(9), SECOND), again, "killed while it started");
        let mut it = up(Duration::ZERO);
        assert_eq!(it.ended(End::Exit(1), SECOND), again, "its door closed meanwhile");
    }

    #[test]
    fn a_store_that_is_away_is_waited_for_and_no_crash_loop() {
        let mut it = up(Duration::ZERO);
        let mut pauses = Vec::new();
        for n in 1..=10 {
            it.started(SECOND * n);
            let Next::Restart { after, crash_loop } = it.ended(End::Exit(4), SECOND * n) else {
                panic!()
            };
            assert!(!crash_loop);
            pauses.push(after.as_millis());
        }
        assert_eq!((pauses[0], pauses[9]), (500, 30_000));
        it.up(LIMITS, SECOND * 20);
        let again = Next::Restart { after: Duration::ZERO, crash_loop: false };
        assert_eq!(it.ended(End::Signal(6), SECOND * 21), again, "as at first");
    }

    #[test]
    fn pauses_grow_and_a_crash_loop_is_told_once_until_it_calms() {
        let mut it = up(Duration::ZERO);
        let mut told = Vec::new();
        let mut pauses = Vec::new();
        for n in 1..=10u32 {
            it.up(LIMITS, SECOND * n);
            let Next::Restart { after, crash_loop } = it.ended(End::Signal(6), SECOND * n) else {
                panic!()
            };
            pauses.push(after.as_millis());
            told.push(crash_loop);
            it.started(SECOND * n);
        }
        assert_eq!(pauses[..5], [0, 500, 1_000, 2_000, 4_000]);
        assert_eq!(pauses[9], 30_000);
        assert_eq!(told.iter().filter(|told| **told).count(), 1);
        assert!(told[LOOP_RESTARTS - 1]);
        assert!(!it.has_calmed(SECOND * 20));
        it.up(LIMITS, SECOND * 20);
        let later = SECOND * 12 + LOOP_WINDOW;
        assert!(it.has_calmed(later));
        assert!(!it.has_calmed(later), "once");
        let calm = Next::Restart { after: Duration::ZERO, crash_loop: false };
        assert_eq!(it.ended(End::Signal(6), later), calm, "as at first");
    }
}
