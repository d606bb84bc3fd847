//! What goes to the terminal. Data of others is shown as text and can never move the cursor,
//! change a colour or set a title; a reader that goes away ends the program in silence.

pub(crate) mod facts;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod time;

use std::io::{IsTerminal as _, Write as _};

use matins_core::cron::Zone;

use crate::failure::{Failure, Result};

/// How to write: colours only for people, times in the zone they chose.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) zone: Zone,
    /// Standard output is a terminal.
    pub(crate) terminal: bool,
    pub(crate) colour: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
    Faint,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { json, zone: Zone::utc(), terminal, colour: terminal && !unwanted }
    }

    pub(crate) fn tinted(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            _ if !self.colour => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Writes to standard output as it is.
pub(crate) fn bytes(data: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(data).and_then(|()| out.flush());
    written.map_err(|error| Failure::from_write(&error))
}

/// Writes text, with a line break at its end.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut text = text.to_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    bytes(text.as_bytes())
}

/// Something beside the answer: for people, on standard error.
pub(crate) fn note(text: &str) {
    // Nobody reading it is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{text}");
}
