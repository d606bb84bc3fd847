//! Keeping a bounded part of unbounded output.

use super::spec::{ResultBytes, ResultFrom};

/// The first quarter of a limit and the rest from the end, of bytes in order of arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
    /// All bytes that were written, kept or not.
    pub total: u64,
}

impl Captured {
    /// Bytes between head and tail that were not kept.
    pub fn dropped(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    /// What was kept, byte for byte.
    pub fn bytes(&self) -> Vec<u8> {
        [self.head.as_slice(), &self.tail].concat()
    }
}

/// A [`Captured`] that is still growing.
pub(super) struct Capture {
    kept: Captured,
    head_max: usize,
    tail_max: usize,
}

impl Capture {
    pub(super) fn new(limit: usize) -> Self {
        let head_max = limit / 4;
        Self { kept: Captured::default(), head_max, tail_max: limit - head_max }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.kept.total += bytes.len() as u64;
        let room = (self.head_max - self.kept.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.kept.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.tail_max)..];
        self.kept.tail.extend_from_slice(rest);
        // Trimmed at twice the size only, so that a byte is moved once on average.
        if self.kept.tail.len() > self.tail_max * 2 {
            self.trim();
        }
    }

    /// Counts bytes that were lost on the way.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.kept.total += bytes;
    }

    fn trim(&mut self) {
        let excess = self.kept.tail.len().saturating_sub(self.tail_max);
        self.kept.tail.drain(..excess);
    }

    pub(super) fn finish(mut self) -> Captured {
        self.trim();
        self.kept
    }
}

/// Finds the result in standard output while it passes by.
pub(super) struct ResultCapture {
    from: ResultFrom,
    limit: usize,
    /// The line being written, or all of the output.
    open: Bounded,
    /// The last complete line that is not blank.
    line: Bounded,
}

#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    total: u64,
}

impl Bounded {
    fn push(&mut self, bytes: &[u8], limit: usize) {
        self.total += bytes.len() as u64;
        if self.total <= limit as u64 {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.bytes.clear();
        }
    }

    fn set(&mut self, bytes: &[u8], limit: usize) {
        self.bytes.clear();
        self.total = 0;
        self.push(bytes, limit);
    }

    /// A line too long to keep is not blank either.
    fn is_blank(&self) -> bool {
        self.bytes.len() as u64 == self.total && self.bytes.trim_ascii().is_empty()
    }

    fn result(self) -> ResultBytes {
        let dropped = if self.bytes.len() as u64 == self.total { 0 } else { self.total };
        ResultBytes { bytes: self.bytes, dropped }
    }
}

impl ResultCapture {
    pub(super) fn new(from: ResultFrom, limit: usize) -> Self {
        Self { from, limit, open: Bounded::default(), line: Bounded::default() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self.from {
            ResultFrom::None => {}
            ResultFrom::Stdout => self.open.push(bytes, self.limit),
            ResultFrom::LastJsonLine => self.push_lines(bytes),
        }
    }

    /// Looks at the chunk from its end, so that a flood of short lines costs one line per chunk.
    fn push_lines(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.iter().rposition(|&byte| byte == b'\n') else {
            self.open.push(bytes, self.limit);
            return;
        };
        let (complete, open) = (&bytes[..last], &bytes[last + 1..]);
        let first_end = complete.iter().position(|&byte| byte == b'\n').unwrap_or(last);
        let (first, others) = complete.split_at(first_end);
        let later = others.rsplit(|&byte| byte == b'\n').find(|line| !blank(line));
        if let Some(line) = later {
            self.line.set(line, self.limit);
        } else {
            self.open.push(first, self.limit);
            if !self.open.is_blank() {
                std::mem::swap(&mut self.line, &mut self.open);
            }
        }
        self.open.set(open, self.limit);
    }

    pub(super) fn finish(self) -> ResultBytes {
        match self.from {
            ResultFrom::LastJsonLine if self.open.is_blank() => self.line.result(),
            _ => self.open.result(),
        }
    }
}

fn blank(line: &[u8]) -> bool {
    line.trim_ascii().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(limit: usize, chunks: &[&[u8]]) -> Captured {
        let mut capture = Capture::new(limit);
        for chunk in chunks {
            capture.push(chunk);
        }
        capture.finish()
    }

    #[test]
    fn output_within_the_limit_is_kept_whole() {
        let kept = captured(8, &[b"abc", b"", b"defgh"]);
        assert_eq!(kept.bytes(), b"abcdefgh");
        assert_eq!(kept.dropped(), 0);
    }

    #[test]
    fn longer_output_keeps_a_quarter_from_the_start_and_the_rest_from_the_end() {
        let all: Vec<u8> = (0..=255).collect();
        for size in [1, 3, 7, 100, 256] {
            let kept = captured(16, &all.chunks(size).collect::<Vec<_>>());
            assert_eq!(kept.head, [0, 1, 2, 3], "chunks of {size}");
            assert_eq!(kept.tail, all[244..], "chunks of {size}");
            assert_eq!(kept.dropped(), 240);
        }
    }

    fn last_line(limit: usize, text: &[u8], size: usize) -> ResultBytes {
        let mut capture = ResultCapture::new(ResultFrom::LastJsonLine, limit);
        for chunk in text.chunks(size) {
            capture.push(chunk);
        }
        capture.finish()
    }

    #[test]
    fn the_last_line_that_is_not_blank_is_found_whatever_the_reads() {
        let cases: [(&[u8], &[u8]); 7] = [
            (b"one\ntwo\n{\"a\":1}\n", b"{\"a\":1}"),
            (b"one\n{\"a\":1}", b"{\"a\":1}"),
            (b"{\"a\":1}\n\n \r\n\t\n", b"{\"a\":1}"),
            (b"{\"a\":1}\r\n", b"{\"a\":1}\r"),
            (b"\n\n\n", b""),
            (b"", b""),
            (b"only\n   ", b"only"),
        ];
        for (text, expected) in cases {
            for size in 1..=text.len().max(1) {
                let result = last_line(100, text, size);
                let shown = String::from_utf8_lossy(text);
                assert_eq!(result.bytes, expected, "{shown:?} in reads of {size}");
                assert_eq!(result.dropped, 0);
            }
        }
    }

    #[test]
    fn a_line_over_the_limit_is_reported_by_its_size() {
        for size in [1, 5, 64] {
            let result = last_line(8, b"short\n123456789\n", size);
            assert_eq!(result, ResultBytes { bytes: vec![], dropped: 9 }, "reads of {size}");
        }
        assert_eq!(last_line(8, b"123456789\nshort\n", 4).bytes, b"short");
    }
}
