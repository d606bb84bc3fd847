//! What a run says at its end: a table for people, everything for machines.

use serde::Serialize;

use super::Size;
use super::figures::{Against, Figure, Figures, Unit, least, median, most};
use super::machine::Machine;
use crate::failure::{Failure, Result};
use crate::output::table::Value;
use crate::output::{self, Output, Tone};

pub(super) struct Report<'a> {
    pub(super) machine: &'a Machine,
    pub(super) size: &'a Size,
    pub(super) figures: &'a Figures,
}

#[derive(Serialize)]
struct Answer<'a> {
    machine: &'a Machine,
    settings: Settings,
    figures: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Settings {
    store: &'static str,
    synchronous: &'static str,
    tasks: usize,
    rounds: usize,
    quick: bool,
    large: bool,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    what: &'a str,
    unit: Unit,
    #[serde(flatten)]
    values: Spread,
    rounds: &'a [f64],
    against: Vec<Side<'a>>,
}

#[derive(Serialize)]
struct Side<'a> {
    what: &'a str,
    #[serde(flatten)]
    values: Spread,
    rounds: &'a [f64],
    ratio: Spread,
}

#[derive(Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        Self { median: median(values), min: least(values), max: most(values) }
    }
}

impl<'a> Entry<'a> {
    fn of(figure: &'a Figure) -> Self {
        let side = |against: &'a Against| Side {
            what: against.what,
            values: Spread::of(&against.values),
            rounds: &against.values,
            ratio: Spread::of(&figure.ratios(against)),
        };
        Self {
            name: figure.spec.name,
            what: figure.spec.what,
            unit: figure.spec.unit,
            values: Spread::of(&figure.values),
            rounds: &figure.values,
            against: figure.against.iter().map(side).collect(),
        }
    }
}

impl Report<'_> {
    pub(super) fn show(&self, out: &Output) -> Result<()> {
        if out.json { self.machine_readable() } else { self.people(out) }
    }

    fn machine_readable(&self) -> Result<()> {
        let Size { tasks, rounds, quick, large } = *self.size;
        let (store, synchronous) = match (&self.machine.postgres, &self.machine.redis) {
            (Some(_), Some(_)) => ("postgres+redis", "on"),
            (Some(_), None) => ("postgres", "on"),
            (None, _) => ("sqlite", "full"),
        };
        let answer = Answer {
            machine: self.machine,
            settings: Settings { store, synchronous, tasks, rounds, quick, large },
            figures: self.figures.list.iter().map(Entry::of).collect(),
        };
        let text = serde_json::to_string_pretty(&answer);
        output::line(&text.map_err(|error| Failure::failed(error.to_string()))?)
    }

    fn people(&self, out: &Output) -> Result<()> {
        let Machine { time, cores, cpu, kernel, file_system, version, sqlite, .. } = self.machine;
        let load = self.machine.load.map_or(String::new(), |load| format!(" · load {load:.1}"));
        let memory = self.machine.memory_mib.map_or(0, |mib| mib >> 10);
        let Size { tasks, rounds, .. } = *self.size;
        let store = match (&self.machine.postgres, &self.machine.redis) {
            (Some(version), Some(redis)) => format!("PostgreSQL {version} + Redis {redis}"),
            (Some(version), None) => format!("PostgreSQL {version}"),
            (None, _) => format!("SQLite {sqlite}, WAL, synchronous=FULL"),
        };
        let mut text = format!(
            "matins {version} · {store} · {time}\n\
             {cores} × {cpu} · {memory} GiB · Linux {kernel} · {file_system}{load}\n\
             {tasks} tasks a round, {rounds} rounds; medians (min–max), ratios round by round\n\n"
        );
        let mut grid = out.grid(["", "", "", "compared with", "", "ratio", ""]);
        for figure in &self.figures.list {
            for n in 0..figure.against.len().max(1) {
                grid.row(row(figure, n));
            }
        }
        text.push_str(&grid.to_string());
        output::line(&text)?;
        if !self.machine.optimized {
            let what = "this is a debug build: its figures say nothing about a release";
            output::note(&out.tinted(Tone::Warning, what));
        }
        Ok(())
    }
}

/// The row of a figure's `n`th comparison; the first one has the figure itself.
fn row(figure: &Figure, n: usize) -> [Value; 7] {
    let mut row = std::array::from_fn(|_| Value::from(""));
    if n == 0 {
        let value = number(median(&figure.values));
        row[0] = figure.spec.what.into();
        row[1] = Value::number(format!("{value} {}", figure.spec.unit.as_str()));
        row[2] = range(&figure.values);
    }
    if let Some(against) = figure.against.get(n) {
        let ratios = figure.ratios(against);
        row[3] = against.what.into();
        row[4] = Value::number(number(median(&against.values)));
        row[5] = Value::number(number(median(&ratios)));
        row[6] = range(&ratios);
    }
    row
}

fn range(values: &[f64]) -> Value {
    match values.len() {
        0 | 1 => Value::from(""),
        _ => Value::toned(
            Tone::Faint,
            &format!("{}–{}", number(least(values)), number(most(values))),
        ),
    }
}

/// Three digits that mean something, thousands apart.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1_000.0 => grouped(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn grouped(value: f64) -> String {
    // The last digits of a rate are noise.
    let step = if value.abs() >= 10_000.0 { 100.0 } else { 1.0 };
    let digits = format!("{:.0}", (value / step).round() * step);
    let first = digits.len() % 3;
    let groups = digits.char_indices().map(|(n, digit)| match n {
        n if n > 0 && n % 3 == first => format!(" {digit}"),
        _ => digit.to_string(),
    });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.123, "0.12"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1_234.4, "1 234"),
            (123_456.0, "123 500"),
            (1_234_567.0, "1 234 600"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
