//! Jobs of others, such as lines of a crontab, that report when they have run: what is expected
//! of them, and when their silence is too long.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::task::until;

/// How often a job reports, and how late it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expectation {
    pub period: Duration,
    pub grace: Duration,
}

/// What is known of a job, as it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The last report; before the first one, when it began to be expected.
    pub at: Timestamp,
    /// Whether it ever reported.
    pub reported: bool,
}

impl Expectation {
    /// By how much a report is overdue; `None`: it is not.
    pub fn overdue(&self, heard: Heard, now: Timestamp) -> Option<Duration> {
        let silent = until(now, heard.at);
        silent.checked_sub(self.period + self.grace).filter(|late| !late.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_last_report_or_from_the_first_look() {
        let daily =
            Expectation { period: Duration::from_secs(86_400), grace: Duration::from_secs(3_600) };
        let heard = Heard { at: Timestamp::UNIX_EPOCH, reported: false };
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        assert_eq!(daily.overdue(heard, at(90_000)), None);
        assert_eq!(daily.overdue(heard, at(90_060)), Some(Duration::from_secs(60)));
        assert_eq!(daily.overdue(Heard { at: at(90_000), reported: true }, at(90_060)), None);
        assert_eq!(daily.overdue(heard, at(-5)), None, "a clock that was set back");
    }
}
