//! Numbers of a run: each figure's value of every round, and that of what it is compared with in
//! the same round. Percentiles are exact: samples are few enough to sort.

use std::time::Duration;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Unit {
    #[serde(rename = "tasks/s")]
    PerSecond,
    #[serde(rename = "ms")]
    Millis,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "% of a core")]
    PercentOfCore,
    #[serde(rename = "MiB")]
    Mebibytes,
}

impl Unit {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::PerSecond => "tasks/s",
            Self::Millis => "ms",
            Self::Seconds => "s",
            Self::PercentOfCore => "% of a core",
            Self::Mebibytes => "MiB",
        }
    }
}

/// A figure: its stable name, what it says, and what it is held against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spec {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) unit: Unit,
    /// What the ratios are to; none: the figure stands alone.
    pub(super) against: &'static [&'static str],
}

/// The disk itself, between the rounds of all the others.
pub(super) const FSYNC: Spec = Spec {
    name: "fsync",
    what: "write of one page and fdatasync",
    unit: Unit::Millis,
    against: &[],
};

#[derive(Debug)]
pub(super) struct Figure {
    pub(super) spec: Spec,
    pub(super) values: Vec<f64>,
    pub(super) against: Vec<Against>,
}

/// The other side of a comparison, round by round.
#[derive(Debug)]
pub(super) struct Against {
    pub(super) what: &'static str,
    pub(super) values: Vec<f64>,
}

impl Figure {
    /// Of each round, so that both sides saw the same minutes.
    pub(super) fn ratios(&self, against: &Against) -> Vec<f64> {
        self.values.iter().zip(&against.values).map(|(value, other)| value / other).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) list: Vec<Figure>,
}

impl Figures {
    /// One round: the value, and what it is held against, in the order of its spec.
    pub(super) fn record<const N: usize>(&mut self, spec: Spec, value: f64, against: [f64; N]) {
        debug_assert_eq!(spec.against.len(), N);
        let known = self.list.iter().position(|figure| figure.spec.name == spec.name);
        let index = known.unwrap_or_else(|| {
            let side = |what: &&'static str| Against { what, values: Vec::new() };
            let against = spec.against.iter().map(side).collect();
            self.list.push(Figure { spec, values: Vec::new(), against });
            self.list.len() - 1
        });
        let figure = &mut self.list[index];
        figure.values.push(value);
        for (side, value) in figure.against.iter_mut().zip(against) {
            side.values.push(value);
        }
    }
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

pub(super) fn per_second(tasks: usize, time: Duration) -> f64 {
    tasks as f64 / time.as_secs_f64()
}

/// The smallest sample that `p` percent of them do not exceed; NaN of none.
pub(super) fn percentile(samples: &[f64], p: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (p / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// The middle one, or the mean of the two in the middle.
pub(super) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

pub(super) fn least(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::NAN, f64::min)
}

pub(super) fn most(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::NAN, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        for p in [1.0, 50.0, 99.0, 100.0] {
            assert_eq!(percentile(&samples, p).to_string(), p.to_string());
        }
        assert_eq!(percentile(&[7.0], 1.0).to_string(), "7");
        assert!(percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        for (samples, expected) in
            [(vec![3.0, 1.0, 2.0], "1 2 3"), (vec![4.0, 1.0, 2.0, 3.0], "1 2.5 4")]
        {
            let shown = format!("{} {} {}", least(&samples), median(&samples), most(&samples));
            assert_eq!(shown, expected);
        }
    }
}
