//! `Retry-After`: seconds or an HTTP date.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use matins_core::retry::RETRY_AFTER_MAX;

/// The three forms of RFC 9110; two are obsolete and still sent.
const DATES: [&str; 3] =
    ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];

/// How long to wait: at most an hour, and nothing for what is past or not understood.
pub(super) fn parse(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than a number holds is a long time.
        value.parse().map_or(RETRY_AFTER_MAX, Duration::from_secs)
    } else {
        let date = DATES.iter().find_map(|form| DateTime::strptime(form, value).ok())?;
        let at = Offset::UTC.to_timestamp(date).ok()?;
        Duration::try_from(at.duration_since(now)).ok()?
    };
    Some(wait.min(RETRY_AFTER_MAX)).filter(|wait| !wait.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates() {
        let now: Timestamp = "2026-11-29T02:00:00Z".parse().unwrap();
        for (value, seconds) in [
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("0", None),
            ("-5", None),
            ("1.5", None),
            ("abc", None),
            ("", None),
            ("86400000", Some(3600)),
            ("99999999999999999999999", Some(3600)),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None),
            ("Sun, 29 Nov 2026 02:01:30 GMT", Some(90)),
            ("Sunday, 29-Nov-26 02:01:30 GMT", Some(90)),
            ("Sun Nov 29 02:01:30 2026", Some(90)),
            ("Tue, 29 Nov 2036 02:01:30 GMT", None),
            ("Sat, 29 Nov 2036 02:01:30 GMT", Some(3600)),
            ("Sun, 29 Nov 2026 02:01:30 +0800", None),
        ] {
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(parse(value, now), expected, "{value:?}");
        }
    }
}
