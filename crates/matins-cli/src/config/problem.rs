//! What is wrong with a configuration: which key, where it stands, what was expected.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use unicode_width::UnicodeWidthChar;

use super::yaml::Place;

/// Problems shown at once; a file with more is mostly another kind of file.
const SHOWN_MAX: usize = 20;

/// Longest piece of a source line shown.
const LINE_CHARS_MAX: usize = 160;

#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) place: Place,
    /// Dotted path of the key, such as `task_pools.io_pool.max_workers`.
    pub(crate) path: String,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Another place that belongs to it.
    pub(crate) other: Option<(Place, &'static str)>,
}

impl Problem {
    pub(crate) fn new(place: Place, path: impl Into<String>, message: impl Into<String>) -> Self {
        let (path, message) = (path.into(), message.into());
        Self { place, path, message, hint: None, other: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Outside of the file first, then from its top.
    fn rank(&self) -> usize {
        match &self.place {
            Place::Outside(_) => 0,
            Place::File(bytes) => bytes.start + 1,
        }
    }

    pub(crate) fn and_at(mut self, place: &Place, what: &'static str) -> Self {
        self.other = Some((place.clone(), what));
        self
    }
}

/// A configuration that cannot be used.
#[derive(Debug)]
pub(crate) struct ConfigError {
    pub(crate) file: Option<PathBuf>,
    pub(crate) source: String,
    /// Bytes of the source that nobody is shown, in order: a message ends in a log.
    pub(crate) hidden: Vec<Range<usize>>,
    pub(crate) problems: Vec<Problem>,
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    pub(crate) fn new(file: Option<&Path>, source: String, mut problems: Vec<Problem>) -> Self {
        // Parts of a file are read side by side, and a merged mapping is read once for each that
        // it is merged into: at one place the order of their names decides.
        problems.sort_by(|a, b| (a.rank(), &a.path).cmp(&(b.rank(), &b.path)));
        Self { file: file.map(Path::to_owned), source, hidden: Vec::new(), problems }
    }

    pub(crate) fn hide(mut self, mut hidden: Vec<Range<usize>>) -> Self {
        hidden.sort_by_key(|range| range.start);
        self.hidden = hidden;
        self
    }

    fn file_name(&self) -> String {
        self.file.as_ref().map_or_else(|| "matins.yaml".to_owned(), |f| f.display().to_string())
    }

    fn write_problem(&self, f: &mut fmt::Formatter<'_>, problem: &Problem) -> fmt::Result {
        let what = if problem.path.is_empty() {
            problem.message.clone()
        } else {
            format!("{}: {}", problem.path, problem.message)
        };
        match &problem.place {
            Place::Outside(origin) => write!(f, "{origin}: {what}")?,
            Place::File(bytes) => {
                let spot = Spot::find(&self.source, bytes.start);
                write!(f, "{}:{}:{}: {what}", self.file_name(), spot.line, spot.column)?;
                write!(f, "\n{}", spot.snippet(bytes.len(), &self.hidden))?;
            }
        }
        if let Some((Place::File(bytes), what)) = &problem.other {
            let spot = Spot::find(&self.source, bytes.start);
            write!(f, "\n  = {what} in line {}", spot.line)?;
        }
        match &problem.hint {
            Some(hint) => write!(f, "\n  = hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.problems.iter().take(SHOWN_MAX).enumerate() {
            if n > 0 {
                f.write_str("\n\nerror: ")?;
            }
            self.write_problem(f, problem)?;
        }
        let more = self.problems.len().saturating_sub(SHOWN_MAX);
        if more > 0 { write!(f, "\n\nand {more} more") } else { Ok(()) }
    }
}

/// A position in a text, for people: lines and columns count from 1, columns in characters.
struct Spot<'a> {
    /// Byte at which the line begins.
    begin: usize,
    line: usize,
    column: usize,
    text: &'a str,
}

impl<'a> Spot<'a> {
    fn find(source: &'a str, byte: usize) -> Self {
        let mut byte = byte.min(source.len());
        while !source.is_char_boundary(byte) {
            byte -= 1;
        }
        let begin = source[..byte].rfind('\n').map_or(0, |at| at + 1);
        let end = source[byte..].find('\n').map_or(source.len(), |at| byte + at);
        Self {
            begin,
            line: source[..begin].matches('\n').count() + 1,
            column: source[begin..byte].chars().count() + 1,
            text: source[begin..end].trim_end_matches('\r'),
        }
    }

    /// The line with a caret below: as wide as the value, on this line.
    fn snippet(&self, bytes: usize, hidden: &[Range<usize>]) -> String {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        let is_hidden = |byte: usize| {
            let after = hidden.partition_point(|range| range.start <= byte);
            after.checked_sub(1).is_some_and(|last| hidden[last].contains(&byte))
        };
        let line = self.text.char_indices().take(LINE_CHARS_MAX);
        let line = line.map(|(at, c)| match is_hidden(self.begin + at) {
            true => (c.len_utf8(), '*'),
            false => (c.len_utf8(), visible(c)),
        });
        let line: Vec<(usize, char)> = line.collect();
        let shown: String = line.iter().map(|(_, c)| *c).collect();
        let mut text = format!("{gutter} |\n{number} | {shown}\n{gutter} | ");
        let width = |c: char| c.width().unwrap_or(1);
        let (before, from) = line.split_at((self.column - 1).min(line.len()));
        text.push_str(&" ".repeat(before.iter().map(|(_, c)| width(*c)).sum()));
        let mut left = bytes;
        let mut marked = 0;
        for (bytes, c) in from {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(*bytes);
            marked += width(*c);
        }
        text.push_str(&"^".repeat(marked.max(1)));
        text
    }
}

/// Tabs and control characters take one column, and cannot move the cursor.
fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// Words of other schedulers for what is meant here.
const WORDS_OF_OTHERS: [(&str, &str); 14] = [
    ("cron", "schedule"),
    ("tz", "timezone"),
    ("zone", "timezone"),
    ("args", "payload"),
    ("workers", "max_workers"),
    ("size", "max_workers"),
    ("concurrency_limit", "concurrency"),
    ("database", "store"),
    ("db", "store"),
    ("port", "listen"),
    ("bind", "listen"),
    ("retries", "max_retries"),
    ("attempts", "max_retries"),
    ("cmd", "command"),
];

/// The known word that was probably meant.
pub(crate) fn nearest<'a>(
    word: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let folded = word.to_lowercase().replace(['-', ' '], "_");
    let other = WORDS_OF_OTHERS.iter().find(|(theirs, _)| *theirs == folded).map(|(_, ours)| *ours);
    if let Some(ours) = other
        && let Some(found) = known.clone().find(|k| *k == ours)
    {
        return Some(found);
    }
    let within = (word.chars().count() / 3).max(1);
    known
        .map(|candidate| (edits(&folded, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= within)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edit distance in which a swap of neighbours is one edit.
fn edits(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().take(80).collect();
    let right: Vec<char> = right.chars().collect();
    let mut before = vec![0; right.len() + 1];
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for i in 1..=left.len() {
        let mut row = vec![i; right.len() + 1];
        for j in 1..=right.len() {
            let changed = usize::from(left[i - 1] != right[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + changed);
            let swapped =
                i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
            if swapped {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}
