//! What is wrong with an expression, where, and what would be right.

use std::fmt;
use std::ops::Range;

use super::Field;

/// Longest piece of the offending text that is shown.
const SHOWN_CHARS_MAX: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CronErrorKind {
    /// The text is not an expression of the dialect.
    Invalid,
    /// It is, but no day of any year satisfies it.
    NeverFires,
}

/// Why an expression was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronError {
    pub kind: CronErrorKind,
    pub field: Field,
    /// Byte range of the fault in the text given to `parse`.
    pub span: Range<usize>,
    /// The text in that range, cut and escaped for a single line.
    pub found: String,
    pub problem: String,
    pub hint: Option<String>,
}

impl CronError {
    pub(super) fn invalid(
        field: Field,
        span: Range<usize>,
        found: &str,
        problem: impl Into<String>,
    ) -> Self {
        Self {
            kind: CronErrorKind::Invalid,
            field,
            span,
            found: shown(found),
            problem: problem.into(),
            hint: None,
        }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The stable code of the wire.
    pub fn code(&self) -> &'static str {
        match self.kind {
            CronErrorKind::Invalid => "cron_invalid",
            CronErrorKind::NeverFires => "never_fires",
        }
    }

    /// Where the fault begins, counted in bytes from 1.
    pub fn position(&self) -> usize {
        self.span.start + 1
    }
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at position {}", self.field.name(), self.position())?;
        if !self.found.is_empty() {
            write!(f, " ({})", self.found)?;
        }
        write!(f, ": {}", self.problem)?;
        if let Some(hint) = &self.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CronError {}

fn shown(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let mut cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}
