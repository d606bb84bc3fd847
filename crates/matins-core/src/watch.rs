//! What an independent monitor makes of a heartbeat that it reads from outside.
//!
//! It compares the value with the one it read before, on its own clock: neither its clock nor that
//! of the writer has to be right. A heartbeat that cannot be read says nothing of the scheduler.

use std::time::Duration;

/// One look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// The heartbeat; `None`: there is none.
    Value(Option<String>),
    /// Where it is kept cannot be reached.
    Away(String),
}

/// What the monitor does about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// The scheduler has not beaten for so long.
    Lost(Duration),
    /// It beats again, after so long.
    Back(Duration),
    /// The place of the heartbeat has been out of reach for so long.
    Unreachable(Duration, String),
    Reachable,
    Restart,
    /// Restarts did not help: nothing more is tried until it beats again.
    GaveUp,
}

/// Between two restarts.
pub const RESTART_EVERY: Duration = Duration::from_secs(300);
/// Restarts in a row without a heartbeat.
pub const RESTARTS_MAX: u32 = 3;
/// How long the place of the heartbeat may be out of reach before that is told.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Monitor {
    limit: Duration,
    restarts: bool,
    value: Option<String>,
    changed: Option<Duration>,
    lost: bool,
    away: Option<Away>,
    restarted: Option<Duration>,
    in_a_row: u32,
    gave_up: bool,
}

#[derive(Debug, Clone, Copy)]
struct Away {
    since: Duration,
    told: bool,
}

impl Monitor {
    /// `restarts`: there is something that a restart can be done with.
    pub fn new(limit: Duration, restarts: bool) -> Self {
        Self {
            limit,
            restarts,
            value: None,
            changed: None,
            lost: false,
            away: None,
            restarted: None,
            in_a_row: 0,
            gave_up: false,
        }
    }

    /// Takes in one look, at `now` on a clock that only grows.
    pub fn look(&mut self, sight: Sight, now: Duration) -> Vec<Act> {
        match sight {
            Sight::Away(why) => self.unreachable(why, now),
            Sight::Value(value) => self.seen(value, now),
        }
    }

    fn unreachable(&mut self, why: String, now: Duration) -> Vec<Act> {
        let away = self.away.get_or_insert(Away { since: now, told: false });
        let time = now.saturating_sub(away.since);
        if away.told || time < UNREACHABLE_AFTER {
            return Vec::new();
        }
        away.told = true;
        vec![Act::Unreachable(time, why)]
    }

    fn seen(&mut self, value: Option<String>, now: Duration) -> Vec<Act> {
        let mut acts = Vec::new();
        if let Some(away) = self.away.take() {
            if away.told {
                acts.push(Act::Reachable);
            }
            // Nobody could beat meanwhile.
            self.changed = Some(now);
        }
        let changed = *self.changed.get_or_insert(now);
        let silent = now.saturating_sub(changed);
        if value.is_some() && value != self.value {
            self.value = value;
            self.changed = Some(now);
            if std::mem::take(&mut self.lost) {
                acts.push(Act::Back(silent));
            }
            (self.in_a_row, self.gave_up) = (0, false);
            return acts;
        }
        if silent < self.limit {
            return acts;
        }
        if !std::mem::replace(&mut self.lost, true) {
            acts.push(Act::Lost(silent));
        }
        acts.extend(self.restart(now));
        acts
    }

    fn restart(&mut self, now: Duration) -> Option<Act> {
        if !self.restarts || self.gave_up {
            return None;
        }
        if self.restarted.is_some_and(|then| now.saturating_sub(then) < RESTART_EVERY) {
            return None;
        }
        if self.in_a_row == RESTARTS_MAX {
            self.gave_up = true;
            return Some(Act::GaveUp);
        }
        self.in_a_row += 1;
        self.restarted = Some(now);
        Some(Act::Restart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(90);

    fn value(text: &str) -> Sight {
        Sight::Value(Some(text.to_owned()))
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_value_that_stands_still_is_lost_and_one_that_moves_is_back() {
        let mut monitor = Monitor::new(LIMIT, true);
        assert_eq!(monitor.look(value("1700000000"), at(0)), []);
        assert_eq!(monitor.look(value("1700000000"), at(89)), []);
        assert_eq!(monitor.look(value("1700000000"), at(90)), [Act::Lost(LIMIT), Act::Restart]);
        assert_eq!(monitor.look(value("1700000000"), at(95)), [], "told once");
        // Whatever its clock says, it moves.
        assert_eq!(monitor.look(value("1600000000"), at(100)), [Act::Back(at(100))]);
    }

    #[test]
    fn a_missing_value_is_a_silent_scheduler() {
        let mut monitor = Monitor::new(LIMIT, false);
        assert_eq!(monitor.look(Sight::Value(None), at(10)), []);
        assert_eq!(monitor.look(Sight::Value(None), at(100)), [Act::Lost(LIMIT)]);
        assert_eq!(monitor.look(value("1"), at(110)), [Act::Back(at(100))]);
        assert_eq!(monitor.look(Sight::Value(None), at(200)), [Act::Lost(LIMIT)]);
    }

    #[test]
    fn restarts_are_rare_and_end() {
        let mut monitor = Monitor::new(LIMIT, true);
        let mut restarts = Vec::new();
        let mut gave_up = 0;
        for second in (0..7_200).step_by(5) {
            for act in monitor.look(value("x"), at(second)) {
                match act {
                    Act::Restart => restarts.push(second),
                    Act::GaveUp => gave_up += 1,
                    _ => {}
                }
            }
        }
        assert_eq!(restarts, [90, 390, 690]);
        assert_eq!(gave_up, 1);
        assert!(monitor.look(value("y"), at(7_200)).contains(&Act::Back(at(7_200))));
        assert!(monitor.look(value("y"), at(7_290)).contains(&Act::Restart), "it has beaten since");
    }

    #[test]
    fn a_store_out_of_reach_is_told_and_restarts_nobody() {
        let mut monitor = Monitor::new(LIMIT, true);
        assert_eq!(monitor.look(value("1"), at(0)), []);
        let away = || Sight::Away("refused".to_owned());
        assert_eq!(monitor.look(away(), at(10)), []);
        let told = Act::Unreachable(at(30), "refused".to_owned());
        assert_eq!(monitor.look(away(), at(40)), [told]);
        assert_eq!(monitor.look(away(), at(1_000)), []);
        assert_eq!(monitor.look(value("1"), at(1_010)), [Act::Reachable]);
        assert_eq!(monitor.look(value("1"), at(1_099)), [], "it is given its time");
        assert_eq!(monitor.look(value("1"), at(1_100)), [Act::Lost(LIMIT), Act::Restart]);
    }
}
