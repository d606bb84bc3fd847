//! Named values, one a line, the values in a column.

use std::fmt;

use super::text;

/// What is absent is left out.
pub(crate) struct Facts {
    width: usize,
    lines: Vec<(&'static str, String)>,
}

impl Facts {
    pub(crate) fn new(width: usize) -> Self {
        Self { width, lines: Vec::new() }
    }

    /// A value that is ready to be shown: checked, tinted.
    pub(crate) fn add(&mut self, name: &'static str, value: impl Into<Option<String>>) {
        self.lines.extend(value.into().map(|value| (name, value)));
    }

    /// Text of others.
    pub(crate) fn plain(&mut self, name: &'static str, value: Option<&str>) {
        self.add(name, value.map(text::line));
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.width;
        self.lines.iter().try_for_each(|(name, value)| writeln!(f, "{name:<width$} {value}"))
    }
}
