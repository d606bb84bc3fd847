//! Hiding known secret values in a stream, also when one is split over two reads.
//!
//! Every byte that belongs to any occurrence of any secret is hidden, so that of overlapping
//! secrets no rest shows. Must never delay output that cannot be the start of a secret.

const MASK: &[u8] = b"***";
/// A shorter value occurs by chance everywhere; hiding it would make the output unreadable.
pub(super) const SECRET_BYTES_MIN: usize = 4;

/// A part of a secret shorter than this is more likely a common word.
const PART_BYTES_MIN: usize = 8;

/// A secret value and those parts of it that are secret by themselves: the token behind
/// `Bearer`, a URL's password, the tokens in its path and query.
pub(crate) fn with_parts(secret: &str) -> Vec<String> {
    let mut parts = vec![secret.to_owned()];
    let is_part = |part: &&str| part.len() >= PART_BYTES_MIN;
    parts.extend(secret.split_ascii_whitespace().filter(is_part).map(str::to_owned));
    if let Some((_, rest)) = secret.split_once("://") {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let password = authority.rsplit_once('@').and_then(|(user, _)| user.split_once(':'));
        parts.extend(password.map(|(_, password)| password.to_owned()));
        let tokens = path.split(['/', '?', '&', '=', '#']).filter(is_part);
        parts.extend(tokens.map(str::to_owned));
    }
    parts
}

pub(crate) struct Masker {
    secrets: Vec<Vec<u8>>,
    starts: [bool; 256],
    /// Bytes that may be the start of a secret, not passed on yet.
    held: Vec<u8>,
    /// How many of `held` are covered by a secret that began before them.
    covered: usize,
    /// Whether the last byte passed on was a hidden one.
    hiding: bool,
}

impl Masker {
    pub(crate) fn new(secrets: &[String]) -> Self {
        let secrets: Vec<Vec<u8>> = secrets
            .iter()
            .filter(|secret| secret.len() >= SECRET_BYTES_MIN)
            .map(|secret| secret.as_bytes().to_vec())
            .collect();
        let mut starts = [false; 256];
        for secret in &secrets {
            starts[usize::from(secret[0])] = true;
        }
        Self { secrets, starts, held: Vec::new(), covered: 0, hiding: false }
    }

    pub(crate) fn is_needed(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// Takes what was read, returns what may be shown.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pass(bytes, false)
    }

    /// Returns what was held back, at the end of the stream.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.pass(&[], true)
    }

    /// A text that is complete.
    pub(crate) fn mask(&mut self, text: &str) -> String {
        let mut shown = self.push(text.as_bytes());
        shown.extend(self.finish());
        String::from_utf8_lossy(&shown).into_owned()
    }

    fn pass(&mut self, bytes: &[u8], last: bool) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.held);
        input.extend_from_slice(bytes);
        let mut shown = Vec::with_capacity(input.len());
        let mut covered = self.covered;
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            if self.starts[usize::from(rest[0])] {
                if !last && self.secrets.iter().any(|s| s.len() > rest.len() && s.starts_with(rest))
                {
                    break;
                }
                let found = self.secrets.iter().filter(|secret| rest.starts_with(secret));
                covered = covered.max(at + found.map(Vec::len).max().unwrap_or(0));
            }
            if at < covered {
                if !self.hiding {
                    shown.extend_from_slice(MASK);
                }
                self.hiding = true;
                at += 1;
                continue;
            }
            self.hiding = false;
            let plain = rest[1..].iter().position(|&byte| self.starts[usize::from(byte)]);
            let length = plain.map_or(rest.len(), |until| until + 1);
            shown.extend_from_slice(&rest[..length]);
            at += length;
        }
        self.covered = covered.saturating_sub(at);
        self.held = input.split_off(at);
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(secrets: &[&str], text: &str, size: usize) -> String {
        let secrets: Vec<String> = secrets.iter().map(|&secret| secret.to_owned()).collect();
        let mut masker = Masker::new(&secrets);
        let mut shown = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            shown.extend(masker.push(chunk));
        }
        shown.extend(masker.finish());
        String::from_utf8(shown).unwrap()
    }

    #[test]
    fn secrets_are_hidden_however_the_reads_fall() {
        let cases: [(&[&str], &str, &str); 8] = [
            (&["S3KR1T-42"], "token=S3KR1T-42;", "token=***;"),
            (&["S3KR1T-42"], "S3KR1T-4 S3KR1T-42", "S3KR1T-4 ***"),
            (&["aaab"], "aaaaaab", "aaa***"),
            (&["abcd", "abcdefgh"], "abcdefgx abcdefgh", "***efgx ***"),
            (&["abcd1234", "1234wxyz"], "-abcd1234wxyz-", "-***-"),
            (&["abcdef", "cdef"], "cdef abcde", "*** abcde"),
            (&["abab"], "ababab!", "***!"),
            (&["abc", ""], "abc", "abc"),
        ];
        for (secrets, text, expected) in cases {
            for size in 1..=text.len() {
                let shown = masked(secrets, text, size);
                assert_eq!(shown, expected, "{secrets:?} in {text:?}, reads of {size}");
            }
        }
    }

    #[test]
    fn parts_of_a_secret_are_secret() {
        for (secret, part) in [
            ("Bearer S3KR1T-42", "S3KR1T-42"),
            ("postgres://app:pw-42@db.internal/orders", "pw-42"),
            ("https://hooks.test/send?access_token=0123456789", "0123456789"),
            ("https://hooks.test/services/T0123456", "T0123456"),
        ] {
            assert!(with_parts(secret).iter().any(|found| found == part), "{secret}");
        }
        let url = with_parts("postgres://app:pw-42@db.internal/orders");
        assert!(!url.iter().any(|part| part == "orders" || part == "app"), "{url:?}");
    }

    #[test]
    fn only_a_possible_secret_is_held_back() {
        let mut masker = Masker::new(&["password".to_owned()]);
        assert_eq!(masker.push(b"prompt> "), b"prompt> ");
        assert_eq!(masker.push(b"pass"), b"");
        assert_eq!(masker.push(b"port"), b"passport");
        assert_eq!(masker.push(b"pass"), b"");
        assert_eq!(masker.finish(), b"pass");
    }
}
