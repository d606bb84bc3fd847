//! Counters and gauges, kept as things happen. Labels come from bounded sets only.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use matins_core::audit::{Invariant, Violation};
use matins_core::schedule::OccurrenceOutcome;
use matins_core::store::{Figure, Part, Stats};
use matins_core::task::AttemptOutcome;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Types, and pools beside this node's own, that get a label of their own; the rest share `other`.
const NAMES_MAX: usize = 200;
const OTHER: &str = "other";
/// Longest label value.
const LABEL_CHARS_MAX: usize = 100;

type Seconds = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TypeLabel {
    r#type: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TypeOutcome {
    r#type: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolLabel {
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StatePool {
    state: &'static str,
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AlertLabel {
    channel: String,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LoopLabel {
    r#loop: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InvariantLabel {
    invariant: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StoreLabel {
    store: &'static str,
}

/// What the parts of a store count, under names of theirs.
#[derive(Debug, Default)]
struct Figures(Mutex<BTreeMap<&'static str, Figure>>);

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for figure in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let kind = ConstGauge::<i64>::TYPE;
            let metric = encoder.encode_descriptor(figure.name, figure.about, None, kind)?;
            ConstGauge::new(figure.value as i64).encode(metric)?;
        }
        Ok(())
    }
}

/// All metrics of a node.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    /// Held while figures are replaced, so that nobody reads them half.
    replacing: Mutex<()>,
    types: Names,
    pools: Names,
    heartbeat_age: Seconds,
    loop_age: Family<LoopLabel, Seconds>,
    tasks: Family<StatePool, Gauge>,
    ready: Family<PoolLabel, Gauge>,
    oldest_ready: Family<PoolLabel, Seconds>,
    dead_letters: Gauge,
    enqueued: Family<TypeLabel, Counter>,
    deduplicated: Counter,
    attempts: Family<TypeOutcome, Counter>,
    losses: Counter,
    duration: Family<TypeOutcome, Histogram>,
    pickup: Family<PoolLabel, Histogram>,
    occurrences: Family<OutcomeLabel, Counter>,
    fire_lag: Histogram,
    overdue: Gauge,
    pool_busy: Family<PoolLabel, Gauge>,
    pool_size: Family<PoolLabel, Gauge>,
    store_up: Family<StoreLabel, Gauge>,
    fenced: Counter,
    figures: Arc<Figures>,
    alerts: Family<AlertLabel, Counter>,
    violations: Family<InvariantLabel, Gauge>,
}

const DURATION_BUCKETS: [f64; 13] =
    [0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0];
const LATENCY_BUCKETS: [f64; 13] =
    [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0, 3_600.0];

fn durations() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}

fn latencies() -> Histogram {
    Histogram::new(LATENCY_BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut m = Inner {
            registry: Registry::with_prefix("matins"),
            replacing: Mutex::default(),
            types: Names::default(),
            pools: Names::default(),
            heartbeat_age: Seconds::default(),
            loop_age: Family::default(),
            tasks: Family::default(),
            ready: Family::default(),
            oldest_ready: Family::default(),
            dead_letters: Gauge::default(),
            enqueued: Family::default(),
            deduplicated: Counter::default(),
            attempts: Family::default(),
            losses: Counter::default(),
            duration: Family::new_with_constructor(durations),
            pickup: Family::new_with_constructor(latencies),
            occurrences: Family::default(),
            fire_lag: latencies(),
            overdue: Gauge::default(),
            pool_busy: Family::default(),
            pool_size: Family::default(),
            store_up: Family::default(),
            fenced: Counter::default(),
            figures: Arc::default(),
            alerts: Family::default(),
            violations: Family::default(),
        };
        m.register();
        Self(Arc::new(m))
    }
}

impl Inner {
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register(
            "heartbeat_age_seconds",
            "Age of the last heartbeat",
            self.heartbeat_age.clone(),
        );
        r.register("loop_age_seconds", "Age of a loop's last turn", self.loop_age.clone());
        r.register("tasks", "Tasks in the store", self.tasks.clone());
        r.register("ready", "Tasks that are due and wait for a slot", self.ready.clone());
        let help = "How long the foremost ready task has been due";
        r.register("oldest_ready_seconds", help, self.oldest_ready.clone());
        r.register(
            "dead_letters",
            "Dead letters that wait for a person",
            self.dead_letters.clone(),
        );
        r.register("enqueued", "Tasks accepted", self.enqueued.clone());
        let help = "Enqueues answered with a task that was there before";
        r.register("deduplicated", help, self.deduplicated.clone());
        r.register("attempts", "Attempts that have ended", self.attempts.clone());
        r.register("losses", "Attempts lost with their worker or runner", self.losses.clone());
        r.register("task_duration_seconds", "Length of attempts", self.duration.clone());
        r.register("pickup_seconds", "From due to claimed", self.pickup.clone());
        r.register("occurrences", "Decided occurrences of schedules", self.occurrences.clone());
        r.register("fire_lag_seconds", "From nominal time to fired", self.fire_lag.clone());
        r.register(
            "schedules_overdue",
            "Schedules past due without a reason",
            self.overdue.clone(),
        );
        r.register("pool_busy", "Slots in use on this node", self.pool_busy.clone());
        r.register("pool_size", "Slots on this node", self.pool_size.clone());
        r.register("store_up", "Whether the store answers", self.store_up.clone());
        r.register("fenced_writes", "Writes refused for a stale claim", self.fenced.clone());
        let help = "What the auditor found not to hold";
        r.register("invariant_violations", help, self.violations.clone());
        r.register_collector(Box::new(self.figures.clone()));
        let help = "Messages to alert channels, by what became of them";
        r.register("alerts", help, self.alerts.clone());
    }

    fn type_label(&self, kind: &str) -> String {
        self.types.label(kind)
    }

    fn pool_label(&self, pool: &str) -> PoolLabel {
        PoolLabel { pool: self.pools.label(pool) }
    }
}

/// Names from outside that may be labels. Nobody bounds how many of them there are.
#[derive(Default)]
struct Names(Mutex<HashSet<String>>);

impl Names {
    /// The name itself while there are few, else `other`.
    fn label(&self, name: &str) -> String {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(name) {
            return name.to_owned();
        }
        if known.len() >= NAMES_MAX || name.chars().count() > LABEL_CHARS_MAX {
            return OTHER.to_owned();
        }
        known.insert(name.to_owned());
        name.to_owned()
    }

    /// One that the file names, which bounds them.
    fn own(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }
}

impl Metrics {
    pub fn enqueued(&self, kind: &str, count: u64) {
        let label = TypeLabel { r#type: self.0.type_label(kind) };
        self.0.enqueued.get_or_create(&label).inc_by(count);
    }

    pub fn deduplicated(&self) {
        self.0.deduplicated.inc();
    }

    pub fn settled(&self, kind: &str, outcome: AttemptOutcome) {
        self.settled_many(kind, outcome, 1, &[]);
    }

    /// `n` attempts of a type, and how long those took that ran here.
    pub(crate) fn settled_many(
        &self,
        kind: &str,
        outcome: AttemptOutcome,
        n: u64,
        lengths: &[Duration],
    ) {
        let label = TypeOutcome { r#type: self.0.type_label(kind), outcome: outcome.as_str() };
        self.0.attempts.get_or_create(&label).inc_by(n);
        if outcome == AttemptOutcome::Lost {
            self.0.losses.inc_by(n);
        }
        if !lengths.is_empty() {
            let duration = self.0.duration.get_or_create_owned(&label);
            for length in lengths {
                duration.observe(length.as_secs_f64());
            }
        }
    }

    pub fn picked_up(&self, pool: &str, after: impl Iterator<Item = Duration>) {
        let pickup = self.0.pickup.get_or_create_owned(&self.0.pool_label(pool));
        after.for_each(|after| pickup.observe(after.as_secs_f64()));
    }

    pub fn occurrences(&self, outcome: OccurrenceOutcome, count: u64) {
        let label = OutcomeLabel { outcome: outcome.as_str() };
        self.0.occurrences.get_or_create(&label).inc_by(count);
    }

    pub fn fired_late_by(&self, lag: Duration) {
        self.0.fire_lag.observe(lag.as_secs_f64());
    }

    /// A message to a channel: `sent`, `failed`, `refused` or `off`.
    pub(crate) fn alert(&self, channel: &str, result: &'static str) {
        let channel = channel.chars().take(LABEL_CHARS_MAX).collect();
        self.0.alerts.get_or_create(&AlertLabel { channel, result }).inc();
    }

    pub fn fenced(&self) {
        self.0.fenced.inc();
    }

    /// What the auditor found at its last look.
    pub fn violations<'a>(&self, found: impl IntoIterator<Item = &'a Violation> + Copy) {
        for invariant in Invariant::ALL {
            let count = found.into_iter().filter(|one| one.invariant == invariant).count();
            let label = InvariantLabel { invariant: invariant.as_str() };
            self.0.violations.get_or_create(&label).set(count as i64);
        }
    }

    pub fn pool(&self, pool: &str, busy: u32, size: u32) {
        self.0.pools.own(pool);
        let label = self.0.pool_label(pool);
        self.0.pool_busy.get_or_create(&label).set(i64::from(busy));
        self.0.pool_size.get_or_create(&label).set(i64::from(size));
    }

    pub fn store_up(&self, store: &'static str, up: bool) {
        self.0.store_up.get_or_create(&StoreLabel { store }).set(i64::from(up));
    }

    /// Parts of the store that may be away by themselves.
    pub fn parts(&self, parts: &[Part]) {
        let mut figures = self.0.figures.0.lock().unwrap_or_else(PoisonError::into_inner);
        for part in parts {
            self.store_up(part.kind, part.up);
            figures.extend(part.figures.iter().map(|figure| (figure.name, *figure)));
        }
    }

    pub fn ages(&self, heartbeat: Duration, loops: impl IntoIterator<Item = (String, Duration)>) {
        self.0.heartbeat_age.set(heartbeat.as_secs_f64());
        for (name, age) in loops {
            self.0.loop_age.get_or_create(&LoopLabel { r#loop: name }).set(age.as_secs_f64());
        }
    }

    /// Store-wide figures. Pools that have become empty read zero, not their last value.
    pub fn stats(&self, stats: &Stats, now: jiff::Timestamp) {
        let label = |pool: &str| self.0.pools.label(pool);
        let mut tasks: BTreeMap<(&'static str, String), i64> = BTreeMap::new();
        for ((pool, state), n) in &stats.tasks {
            *tasks.entry((state.as_str(), label(pool))).or_default() += *n as i64;
        }
        let mut ready: BTreeMap<String, i64> = BTreeMap::new();
        let mut oldest: BTreeMap<String, f64> = BTreeMap::new();
        for (pool, n) in &stats.ready {
            *ready.entry(label(pool)).or_default() += *n as i64;
            let since = stats.oldest_ready.get(pool).copied().unwrap_or(now);
            let age = matins_core::task::until(now, since).as_secs_f64();
            let known = oldest.entry(label(pool)).or_default();
            *known = known.max(age);
        }
        let _replacing = self.0.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.tasks.clear();
        for ((state, pool), n) in tasks {
            self.0.tasks.get_or_create_owned(&StatePool { state, pool }).set(n);
        }
        self.0.ready.clear();
        for (pool, n) in ready {
            self.0.ready.get_or_create_owned(&PoolLabel { pool }).set(n);
        }
        self.0.oldest_ready.clear();
        for (pool, age) in oldest {
            self.0.oldest_ready.get_or_create_owned(&PoolLabel { pool }).set(age);
        }
        self.0.dead_letters.set(stats.dead_letters as i64);
        self.0.overdue.set(stats.schedules_overdue as i64);
    }

    /// The text that Prometheus scrapes.
    pub fn render(&self) -> String {
        let _whole = self.0.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        if encode(&mut text, &self.0.registry).is_err() {
            text.clear();
            let _ = writeln!(text, "# the metrics could not be written");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use matins_core::State;

    use super::*;

    /// Whoever enqueues may name any type and any pool.
    #[test]
    fn a_hundred_thousand_names_are_few_series_and_none_is_uncounted() {
        let metrics = Metrics::default();
        metrics.pool("late", 1, 4);
        let round = |n: usize| {
            let mut stats = Stats::default();
            for one in 0..n {
                let name = match one % 3 {
                    0 => format!("type-{one}"),
                    1 => format!("a\"b\\c\n{one}"),
                    _ => format!("{one}-{}", "长".repeat(10_000 / (one % 1_000 + 1))),
                };
                metrics.enqueued(&name, 1);
                metrics.settled_many(&name, AttemptOutcome::Completed, 1, &[Duration::ZERO]);
                metrics.picked_up(&name, std::iter::once(Duration::ZERO));
                stats.tasks.insert((name.as_str().into(), State::Pending), 1);
                stats.ready.insert(name.as_str().into(), 1);
            }
            stats.tasks.insert(("late".into(), State::Pending), 7);
            metrics.stats(&stats, jiff::Timestamp::UNIX_EPOCH);
            let text = metrics.render();
            assert!(text.len() < 1 << 20, "{} bytes", text.len());
            let sum = |name: &str| -> u64 {
                let lines = text.lines().filter(|line| line.starts_with(name));
                lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
            };
            assert_eq!(sum("matins_tasks{"), n as u64 + 7);
            assert_eq!(sum("matins_ready{"), n as u64);
            assert!(text.contains("matins_tasks{state=\"pending\",pool=\"late\"} 7"), "{text}");
            let is_whole = |line: &str| line.starts_with('#') || line.starts_with("matins_");
            assert!(text.lines().all(is_whole), "a name broke a line");
            (text.lines().count(), sum("matins_enqueued_total{"))
        };
        let (series, counted) = round(100_000);
        let (again, counted_again) = round(100_000);
        assert_eq!((series, counted, counted_again), (again, 100_000, 200_000));
    }
}
