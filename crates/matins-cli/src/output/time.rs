//! Times for people: how long ago, and when exactly, with the zone always said.

use std::time::Duration;

use jiff::Timestamp;

use super::Output;

/// `3m ago`, `in 2h`, `now`.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs();
    let text = rough(seconds.unsigned_abs());
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("{text} ago"),
        _ => format!("in {text}"),
    }
}

/// The largest unit, or the two largest while the first is small.
pub(crate) fn rough(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let first = units.iter().position(|(_, size)| seconds >= *size).unwrap_or(3);
    let (unit, size) = units[first];
    let count = seconds / size;
    let rest = seconds % size;
    match units.get(first + 1) {
        Some((next, next_size)) if count < 10 && rest / next_size > 0 && unit != "m" => {
            format!("{count}{unit}{}{next}", rest / next_size)
        }
        _ => format!("{count}{unit}"),
    }
}

/// A length of time as people say it: `1.2s`, `350ms`, `4m`.
pub(crate) fn took(length: Duration) -> String {
    match length.as_millis() {
        0 => format!("{}µs", length.as_micros()),
        millis @ 1..1_000 => format!("{millis}ms"),
        millis @ 1_000..60_000 => format!("{:.1}s", millis as f64 / 1_000.0),
        _ => rough(length.as_secs()),
    }
}

impl Output {
    /// `2026-11-29 18:00:00 UTC`, or in the chosen zone with UTC behind it.
    pub(crate) fn exact(&self, at: Timestamp) -> String {
        let utc = format!("{at:.0}").replace('T', " ").replace('Z', " UTC");
        if self.zone.name() == "UTC" {
            return utc;
        }
        let local = at.to_zoned_datetime(self.zone.rules().clone());
        format!("{} {} ({utc})", local.strftime("%Y-%m-%d %H:%M:%S %:z"), self.zone.name())
    }

    /// A time as the API writes it; shown as it is when it is none.
    pub(crate) fn moment(&self, text: &str, now: Timestamp) -> String {
        match text.parse::<Timestamp>() {
            Ok(at) => format!("{} ({})", self.exact(at), age(at, now)),
            Err(_) => super::text::line(text),
        }
    }
}

/// The age of a time as the API writes it; nothing for none.
pub(crate) fn age_of(text: Option<&str>, now: Timestamp) -> String {
    let at = text.and_then(|text| text.parse::<Timestamp>().ok());
    at.map(|at| age(at, now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now: Timestamp = "2026-11-29T18:00:00Z".parse().unwrap();
        for (seconds, expected) in [
            (0, "now"),
            (1, "1s ago"),
            (75, "1m ago"),
            (3_600, "1h ago"),
            (5_400, "1h30m ago"),
            (90_000, "1d1h ago"),
            (40 * 86_400, "40d ago"),
            (-7_200, "in 2h"),
        ] {
            let at = now - jiff::SignedDuration::from_secs(seconds);
            assert_eq!(age(at, now), expected);
        }
    }

    #[test]
    fn utc_is_said() {
        let at: Timestamp = "2026-11-29T18:00:00.5Z".parse().unwrap();
        let mut output = Output::new(false);
        assert_eq!(output.exact(at), "2026-11-29 18:00:00 UTC");
        output.zone = matins_core::cron::Zone::parse("Asia/Shanghai").unwrap();
        assert_eq!(
            output.exact(at),
            "2026-11-30 02:00:00 +08:00 Asia/Shanghai (2026-11-29 18:00:00 UTC)"
        );
    }
}
