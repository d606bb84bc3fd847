//! Reading a tree value by value. A value that cannot be used is noted as a problem and reading
//! goes on, so that one look shows everything that is wrong.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use matins_core::duration::{self, Timeout};
use matins_runtime::executors::Setting;

use super::problem::{Problem, nearest};
use super::reference::Section;
use super::yaml::{Key, Node, Place, Value};

/// Largest file that `file:PATH` may name.
const SECRET_FILE_BYTES_MAX: u64 = 64 << 10;

/// Looks a variable up.
pub(crate) type Env<'a> = dyn Fn(&str) -> Option<String> + Sync + 'a;

/// What reading needs to know beyond the tree.
pub(crate) struct Reader<'a> {
    pub(crate) env: &'a Env<'a>,
    /// Folder that relative paths of the file start from.
    pub(crate) base: PathBuf,
    /// Whether `env:` and `file:` must be there. Commands that only look at the store read a
    /// file whose secrets belong to the server alone.
    pub(crate) need_secrets: bool,
    pub(crate) problems: Mutex<Vec<Problem>>,
    /// Where the file has what may be a secret.
    pub(crate) hidden: Mutex<Vec<Range<usize>>>,
}

impl Reader<'_> {
    fn hide(&self, place: &Place) {
        if let Place::File(bytes) = place {
            self.hidden.lock().unwrap_or_else(PoisonError::into_inner).push(bytes.clone());
        }
    }

    pub(crate) fn note(&self, problem: Problem) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }
}

/// One value on the way: where it is and what it is called.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) node: &'a Node,
    pub(crate) path: String,
    /// The key it stands behind: what a problem about something missing points at.
    pub(crate) key: Option<&'a Place>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn root(reader: &'a Reader<'a>, node: &'a Node) -> Self {
        Self { reader, node, path: String::new(), key: None }
    }

    fn child(&self, name: &str, node: &'a Node, key: Option<&'a Place>) -> Self {
        let path = if self.path.is_empty() {
            name.to_owned()
        } else if name.starts_with('[') {
            format!("{}{name}", self.path)
        } else {
            format!("{}.{name}", self.path)
        };
        Self { reader: self.reader, node, path, key }
    }

    /// The last part of the path: the name that a person gave.
    pub(crate) fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::new(self.node.place.clone(), self.path.clone(), message)
    }

    pub(crate) fn fail<T>(&self, message: impl Into<String>) -> Option<T> {
        self.reader.note(self.problem(message));
        None
    }

    pub(crate) fn expected<T>(&self, what: &str) -> Option<T> {
        let mut problem = self.problem(format!("expected {what}, got {}", self.node.describe()));
        if self.node.is_null() {
            problem = problem.hint("give a value, or leave the key out to have the default");
        }
        self.reader.note(problem);
        None
    }

    /// The text of a scalar, quoted or not.
    fn scalar(&self, what: &str) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar(scalar) if !self.node.is_null() => Some(&scalar.text),
            _ => self.expected(what),
        }
    }

    pub(crate) fn text(&self) -> Option<String> {
        let text = self.scalar("text")?;
        if text.contains('\0') {
            return self.fail("must not contain NUL");
        }
        Some(text.to_owned())
    }

    pub(crate) fn filled(&self) -> Option<String> {
        let text = self.text()?;
        if text.trim().is_empty() { self.expected("text that is not empty") } else { Some(text) }
    }

    /// `true` and `false` alone: `yes` and `on` are words in one YAML and booleans in another.
    pub(crate) fn boolean(&self) -> Option<bool> {
        match &self.node.value {
            Value::Scalar(scalar) if scalar.plain && scalar.text == "true" => Some(true),
            Value::Scalar(scalar) if scalar.plain && scalar.text == "false" => Some(false),
            _ => self.expected("true or false"),
        }
    }

    pub(crate) fn integer(&self, range: RangeInclusive<i64>) -> Option<i64> {
        let what = || match (*range.start(), *range.end()) {
            (low, i64::MAX) => format!("a whole number of at least {low}"),
            (low, high) => format!("a whole number from {low} to {high}"),
        };
        let Value::Scalar(scalar) = &self.node.value else { return self.expected(&what()) };
        let digits = scalar.text.strip_prefix('-').unwrap_or(&scalar.text);
        let well_formed = scalar.plain
            && !digits.is_empty()
            && digits.bytes().all(|b| b.is_ascii_digit())
            && (digits == "0" || !digits.starts_with('0'));
        match scalar.text.parse::<i64>() {
            Ok(number) if well_formed && range.contains(&number) => Some(number),
            _ => self.expected(&what()),
        }
    }

    pub(crate) fn count(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let wide = i64::from(*range.start())..=i64::from(*range.end());
        self.integer(wide).and_then(|number| u32::try_from(number).ok())
    }

    pub(crate) fn number(&self, range: RangeInclusive<f64>) -> Option<f64> {
        let what = format!("a number from {} to {}", range.start(), range.end());
        let Value::Scalar(scalar) = &self.node.value else { return self.expected(&what) };
        let digits = |b: u8| b.is_ascii_digit() || b == b'.' || b == b'-';
        match scalar.text.parse::<f64>() {
            Ok(number)
                if scalar.plain && scalar.text.bytes().all(digits) && range.contains(&number) =>
            {
                Some(number)
            }
            _ => self.expected(&what),
        }
    }

    pub(crate) fn duration(&self) -> Option<Duration> {
        let what = "a duration such as 300, 0.2, 200ms, 5m or 1h30m";
        let text = self.scalar(what)?;
        match duration::parse(text) {
            Ok(duration) => Some(duration),
            Err(_) => self.expected(what),
        }
    }

    pub(crate) fn duration_in(&self, range: RangeInclusive<Duration>) -> Option<Duration> {
        let duration = self.duration()?;
        if range.contains(&duration) {
            return Some(duration);
        }
        let (low, high) = (duration::format(*range.start()), duration::format(*range.end()));
        self.expected(&format!("a duration from {low} to {high}"))
    }

    pub(crate) fn timeout(&self) -> Option<Timeout> {
        let what = "a duration above zero such as 300 or 5m, or the word none";
        match self.scalar(what)?.parse() {
            Ok(timeout) => Some(timeout),
            Err(_) => self.expected(what),
        }
    }

    /// Bytes: `65536`, `64 KiB`, `1MB`.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let what = "a size in bytes such as 65536, 64KiB or 1GB";
        let text = self.scalar(what)?;
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let factor = match unit.trim() {
            "" | "B" => 1,
            "kB" | "KB" => 1_000,
            "KiB" | "K" => 1 << 10,
            "MB" => 1_000_000,
            "MiB" | "M" => 1 << 20,
            "GB" => 1_000_000_000,
            "GiB" | "G" => 1 << 30,
            _ => return self.expected(what),
        };
        match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)) {
            Some(bytes) => Some(bytes),
            None => self.expected(what),
        }
    }

    /// One of some words.
    pub(crate) fn word<T: Clone>(&self, words: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let what = one_of(&names);
        let text = self.scalar(&what)?;
        if let Some((_, value)) = words.iter().find(|(name, _)| *name == text) {
            return Some(value.clone());
        }
        let mut problem = self.problem(format!("expected {what}, got {}", self.node.describe()));
        if let Some(near) = nearest(text, names.iter().copied()) {
            problem = problem.hint(format!("did you mean {near}?"));
        }
        self.reader.note(problem);
        None
    }

    /// What `FromStr` of the value's own type says.
    pub(crate) fn parsed<T>(&self) -> Option<T>
    where
        T: std::str::FromStr<Err: std::fmt::Display>,
    {
        match self.text()?.parse() {
            Ok(value) => Some(value),
            Err(error) => self.fail(format!("{error}")),
        }
    }

    /// Relative to the file, or to the working directory for what came from outside the file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let text = self.filled()?;
        Some(self.resolve(Path::new(&text)))
    }

    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        match self.node.place {
            Place::File(_) => self.reader.base.join(path),
            Place::Outside(_) => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        }
    }

    /// A value that may be a secret: as written, or by reference (`env:NAME`, `file:PATH`).
    pub(crate) fn setting(&self) -> Option<Setting> {
        self.setting_if(self.reader.need_secrets, |_| true)
    }

    /// The same of an address that every command needs, and that mostly has no secret in it.
    pub(crate) fn needed_setting(&self) -> Option<Setting> {
        self.setting_if(true, has_password)
    }

    fn setting_if(&self, needed: bool, is_hidden: impl Fn(&str) -> bool) -> Option<Setting> {
        let text = self.text()?;
        let (found, hint) = if let Some(name) = text.strip_prefix("env:") {
            let found = (self.reader.env)(name);
            let found = found.ok_or_else(|| format!("the environment has no {name}"));
            (found, format!("set it as the server has it: export {name}=…"))
        } else if let Some(path) = text.strip_prefix("file:") {
            let hint = "may this user read it? Run it as the user of the server";
            (read_secret(&self.resolve(Path::new(path))), hint.to_owned())
        } else {
            if is_hidden(&text) {
                self.reader.hide(&self.node.place);
            }
            return Some(Setting::plain(text));
        };
        match found {
            Ok(value) => Some(Setting::secret(value)),
            Err(_) if !needed => Some(Setting::secret("")),
            Err(message) => {
                self.reader.note(self.problem(message).hint(hint));
                None
            }
        }
    }

    pub(crate) fn list<T>(&self, read: impl Fn(&Self) -> Option<T>) -> Option<Vec<T>> {
        match &self.node.value {
            Value::List(items) => {
                let child = |(n, node)| self.child(&format!("[{n}]"), node, None);
                Some(items.iter().enumerate().map(child).filter_map(|c| read(&c)).collect())
            }
            _ if self.node.is_null() => Some(Vec::new()),
            _ => self.expected("a list such as [a, b]"),
        }
    }

    /// A mapping whose keys are names that people give.
    pub(crate) fn named(&self) -> Option<Vec<(&'a Key, Self)>> {
        match &self.node.value {
            Value::Map(entries) => Some(
                entries
                    .iter()
                    .map(|(key, node)| (key, self.child(&key.text, node, Some(&key.place))))
                    .collect(),
            ),
            _ if self.node.is_null() => Some(Vec::new()),
            _ => self.expected("a mapping of names"),
        }
    }

    /// A mapping of texts: environment, headers.
    pub(crate) fn settings(
        &self,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Option<BTreeMap<String, Setting>> {
        let mut found = BTreeMap::new();
        for (key, entry) in self.named()? {
            if let Err(message) = check(&key.text) {
                let problem = Problem::new(key.place.clone(), entry.path.clone(), message);
                self.reader.note(problem);
            } else if let Some(setting) = entry.setting() {
                found.insert(key.text.clone(), setting);
            }
        }
        Some(found)
    }

    /// A mapping whose keys are words of Matins; unknown ones are problems.
    pub(crate) fn table(&self, section: &'static Section) -> Option<Table<'a>> {
        let empty: &[(Key, Node)] = &[];
        let entries = match &self.node.value {
            Value::Map(entries) => entries.as_slice(),
            _ if self.node.is_null() => empty,
            _ => return self.expected("a mapping of keys"),
        };
        for (key, node) in entries {
            if section.keys.iter().all(|known| known.name != key.text) {
                let child = self.child(&key.text, node, None);
                let message = "unknown key".to_owned();
                let problem = Problem::new(key.place.clone(), child.path, message);
                let known = section.keys.iter().map(|known| known.name);
                let hint = match nearest(&key.text, known.clone()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("known here: {}", known.collect::<Vec<_>>().join(", ")),
                };
                self.reader.note(problem.hint(hint));
            }
        }
        Some(Table { at: self.clone(), entries })
    }
}

/// The entries of a mapping with known keys.
pub(crate) struct Table<'a> {
    at: Cursor<'a>,
    entries: &'a [(Key, Node)],
}

impl<'a> Table<'a> {
    pub(crate) fn cursor(&self, name: &str) -> Option<Cursor<'a>> {
        let (key, node) = self.entries.iter().find(|(key, _)| key.text == name)?;
        Some(self.at.child(name, node, Some(&key.place)))
    }

    /// Whether a flag or the environment gave it, not the file.
    pub(crate) fn is_from_outside(&self, name: &str) -> bool {
        self.cursor(name).is_some_and(|cursor| matches!(cursor.node.place, Place::Outside(_)))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _)| key.text == name)
    }

    /// `None`: not given, or a problem that is noted.
    pub(crate) fn get<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Cursor<'a>) -> Option<T>,
    ) -> Option<T> {
        self.cursor(name).and_then(|cursor| read(&cursor))
    }

    pub(crate) fn need<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Cursor<'a>) -> Option<T>,
    ) -> Option<T> {
        if let Some(cursor) = self.cursor(name) {
            read(&cursor)
        } else {
            self.missing(name, expected);
            None
        }
    }

    pub(crate) fn missing(&self, name: &str, expected: &str) {
        let place = self.at.key.unwrap_or(&self.at.node.place).clone();
        let message = format!("the key {name} is missing: expected {expected}");
        self.at.reader.note(Problem::new(place, self.at.path.clone(), message));
    }

    /// Notes a key that does not belong here.
    pub(crate) fn refuse(&self, name: &str, message: &str) {
        if let Some((key, _)) = self.entries.iter().find(|(key, _)| key.text == name) {
            let path = format!("{}.{name}", self.at.path);
            let path = path.trim_start_matches('.').to_owned();
            self.at.reader.note(Problem::new(key.place.clone(), path, message));
        }
    }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [before @ .., last] => format!("{} or {last}", before.join(", ")),
    }
}

pub(crate) fn has_password(address: &str) -> bool {
    let user = address.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    user.is_some_and(|(user, _)| user.contains(':')) || address.contains("password=")
}

fn read_secret(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let failed = |error: std::io::Error| format!("{shown} cannot be read: {error}");
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > SECRET_FILE_BYTES_MAX {
        return Err(format!("{shown} is larger than {SECRET_FILE_BYTES_MAX} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    // Editors and `echo` end a file with a line break that is not part of the secret.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
