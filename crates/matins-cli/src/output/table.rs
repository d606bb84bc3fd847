//! Tables: aligned by display width, cut to the terminal, whole when piped.

use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};

use super::{Output, Tone, text};

/// Columns with a heading, rows of text.
pub(crate) struct Grid {
    table: Table,
    colour: bool,
}

/// One value of a row.
pub(crate) struct Value {
    text: String,
    tone: Tone,
    right: bool,
}

impl Value {
    pub(crate) fn toned(tone: Tone, content: &str) -> Self {
        Self { text: text::line(content), tone, right: false }
    }

    pub(crate) fn number(number: impl std::fmt::Display) -> Self {
        Self { text: number.to_string(), tone: Tone::Plain, right: true }
    }
}

impl From<&str> for Value {
    fn from(content: &str) -> Self {
        Self::toned(Tone::Plain, content)
    }
}

impl From<String> for Value {
    fn from(content: String) -> Self {
        Self::toned(Tone::Plain, &content)
    }
}

impl From<&String> for Value {
    fn from(content: &String) -> Self {
        Self::toned(Tone::Plain, content)
    }
}

impl From<Option<&str>> for Value {
    fn from(content: Option<&str>) -> Self {
        Self::toned(Tone::Plain, content.unwrap_or(""))
    }
}

impl Output {
    pub(crate) fn grid<const N: usize>(&self, headings: [&str; N]) -> Grid {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_content_arrangement(if self.terminal {
            ContentArrangement::Dynamic
        } else {
            ContentArrangement::Disabled
        });
        if N > 0 {
            let heading = |heading: &str| {
                let cell = Cell::new(heading);
                if self.colour { cell.fg(Color::DarkGrey) } else { cell }
            };
            table.set_header(headings.map(heading));
        }
        Grid { table, colour: self.colour }
    }
}

impl Grid {
    pub(crate) fn row<const N: usize>(&mut self, values: [Value; N]) {
        let cells = values.map(|value| {
            let cell = Cell::new(value.text);
            let cell = match (self.colour, value.tone) {
                (true, Tone::Good) => cell.fg(Color::Green),
                (true, Tone::Warning) => cell.fg(Color::Yellow),
                (true, Tone::Bad) => cell.fg(Color::Red),
                (true, Tone::Faint) => cell.fg(Color::DarkGrey),
                _ => cell,
            };
            if value.right { cell.set_alignment(CellAlignment::Right) } else { cell }
        });
        self.table.add_row(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.row_count() == 0
    }
}

impl std::fmt::Display for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in self.table.to_string().lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The tone of a task's state or view.
pub(crate) fn tone_of(state: &str) -> Tone {
    match state {
        "completed" | "fired" | "active" | "ok" => Tone::Good,
        "failed" | "missed" | "stalled" => Tone::Bad,
        "retrying" | "running" | "paused" | "skipped" | "degraded" | "held" => Tone::Warning,
        "cancelled" | "disabled" | "exhausted" | "coalesced" => Tone::Faint,
        _ => Tone::Plain,
    }
}
