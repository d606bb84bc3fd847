//! Groups failures that differ only in numbers, ids and paths.

use crate::task::ErrorClass;

/// Sixteen hexadecimal digits, equal for errors of one kind.
pub fn fingerprint(class: ErrorClass, message: &str) -> String {
    // FNV-1a, 64 bits: stable over versions and platforms, which a std hasher does not promise.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in class.as_str().bytes().chain(*b"\0").chain(normalize(message).bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// Replaces what varies between equal failures: words with digits become `#`, paths `/…`. The number
/// of an exit code, a signal or a status is the cause itself, and stays.
fn normalize(message: &str) -> String {
    let mut text = String::with_capacity(message.len().min(400));
    let mut names_a_cause = false;
    for word in message.split_whitespace().take(60) {
        if !text.is_empty() {
            text.push(' ');
        }
        let core = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '/');
        if core.contains('/') {
            text.push_str("/…");
        } else if names_a_cause && core.len() <= 3 && core.parse::<u16>().is_ok() {
            text.push_str(core);
        } else if core.chars().any(|c| c.is_ascii_digit()) {
            text.push('#');
        } else {
            text.extend(core.chars().flat_map(char::to_lowercase));
        }
        names_a_cause = matches!(core, "code" | "signal" | "status" | "HTTP");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ids_and_paths_do_not_split_a_group() {
        let of = |message| fingerprint(ErrorClass::Exit, message);
        assert_eq!(
            of("exit 1: cannot open /tmp/a/17.csv: order 4711 (id 01890a5d-ac96-774b)"),
            of("exit 2: cannot open /var/x.csv: order 9 (id 77890a5d-ac96-0000)"),
        );
        assert_ne!(of("permission denied"), of("connection refused"));
        assert_ne!(of("exit code 1"), of("exit code 78"));
        assert_eq!(of("exit code 1: order 12"), of("exit code 1: order 13"));
        assert_ne!(of("x"), fingerprint(ErrorClass::Signal, "x"));
    }
}
