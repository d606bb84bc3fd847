//! A store against the in-memory model: the same random steps are done to both, and after each
//! one both must have answered the same and must look the same.
//!
//! A sequence that tells them apart is made as short as it gets and shown with its seed.
//! `MATINS_MODEL_CASES` sets how many sequences are tried, `MATINS_MODEL_STEPS` how long they
//! are, `MATINS_MODEL_SEED` the first seed; each sequence has the seed after the last one's.

mod chance;
mod dump;
mod side;
mod step;

use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use matins_core::memory::MemoryStore;
use matins_core::store::Store;
use tokio::task::LocalSet;
use uuid::Uuid;

use chance::Chance;
use side::{Answer, Side};
use step::Step;

use crate::Ground;

const STEPS: u64 = 100;
const SEED: u64 = 0x6d61_7469_6e73;

/// Every so many steps everything is looked at, not only what a step usually changes.
const WHOLE_EVERY: usize = 40;

/// How the two were told apart.
struct Difference {
    /// The step after which they differed.
    step: usize,
    what: String,
}

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")),
        Err(_) => default,
    }
}

/// Compares stores that `open` makes with the model, over that many sequences unless the
/// environment says otherwise. Panics with the shortest sequence found that tells them apart.
pub async fn compare<F, G: Ground>(cases: u64, open: impl Fn() -> F)
where
    F: Future<Output = (Arc<dyn Store>, G)>,
{
    let first = setting("MATINS_MODEL_SEED", SEED);
    let count = setting("MATINS_MODEL_STEPS", STEPS);
    for seed in first..first + setting("MATINS_MODEL_CASES", cases) {
        let mut chance = Chance::new(seed);
        let steps: Vec<Step> = (0..count).map(|_| Step::draw(&mut chance)).collect();
        let Err(difference) = trial(&open, &steps).await else { continue };
        // The shortest sequence may take long to find.
        eprintln!("MATINS_MODEL_SEED={seed}, step {}: {}", difference.step, difference.what);
        let (steps, difference) = shrink(&open, steps, difference).await;
        let mut story = String::new();
        for (n, step) in steps.iter().enumerate() {
            writeln!(story, "{n:3}  {step:?}").expect("a string takes it");
        }
        panic!(
            "MATINS_MODEL_SEED={seed}: told apart by\n{story}after step {}:\n{}",
            difference.step, difference.what
        );
    }
}

async fn trial<F, G: Ground>(open: &impl Fn() -> F, steps: &[Step]) -> Result<(), Difference>
where
    F: Future<Output = (Arc<dyn Store>, G)>,
{
    let (subject, ground) = open().await;
    let steps = steps.to_vec();
    // A panic inside a store or a check is a difference, too.
    let local = LocalSet::new();
    let ended = local.spawn_local(async move {
        let model = Arc::new(MemoryStore::new(Uuid::from_u128(1)));
        let doors = [vec![subject.clone()], ground.doors()].concat();
        let mut sides = (Side::new(model), Side::new(subject));
        let ended = walk(&mut sides, &doors, &steps).await;
        ground.inspect().await;
        let mut closed = Ok(());
        for door in doors {
            closed = closed.and(door.close().await);
        }
        ended.and_then(|()| {
            closed.map_err(|error| Difference { step: steps.len(), what: error.to_string() })
        })
    });
    let ended = local.run_until(ended).await;
    ended.unwrap_or_else(|error| {
        let panic = error.into_panic();
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Difference { step: usize::MAX, what: text.unwrap_or_else(|| "a panic".to_owned()) })
    })
}

async fn walk(
    (model, subject): &mut (Side, Side),
    doors: &[Arc<dyn Store>],
    steps: &[Step],
) -> Result<(), Difference> {
    model.begin().await;
    subject.begin().await;
    for (n, step) in steps.iter().enumerate() {
        let differs = |what| Difference { step: n, what };
        subject.store = doors[n % doors.len()].clone();
        let (expected, answer) = (model.apply(step).await, subject.apply(step).await);
        same("the answer", &expected.text, &answer.text).map_err(differs)?;
        same_wish(&expected, &answer, model.now).map_err(differs)?;
        let last = n + 1 == steps.len();
        if last || n % WHOLE_EVERY == WHOLE_EVERY - 1 {
            let (expected, seen) = (dump::whole(model).await, dump::whole(subject).await);
            same("the store", &expected, &seen).map_err(differs)?;
        } else {
            let (expected, seen) = (dump::glance(model).await, dump::glance(subject).await);
            same("the store", &expected, &seen).map_err(differs)?;
        }
    }
    Ok(())
}

/// A claim may ask to be repeated earlier than it need, but not later, and not without end.
fn same_wish(model: &Answer, subject: &Answer, now: Timestamp) -> Result<(), String> {
    let (Some(need), Some(wish)) = (model.next_at, subject.next_at) else { return Ok(()) };
    if wish > need || wish <= now {
        return Err(format!("next_at at {now}: needed {need}, asked for {wish}"));
    }
    Ok(())
}

/// The first lines in which two texts differ.
fn same(what: &str, model: &str, subject: &str) -> Result<(), String> {
    if model == subject {
        return Ok(());
    }
    let (mut expected, mut seen) = (model.lines(), subject.lines());
    loop {
        let (expected, seen) = (expected.next(), seen.next());
        if expected != seen {
            let (expected, seen) = (expected.unwrap_or("nothing"), seen.unwrap_or("nothing"));
            return Err(format!("{what} of the model\n    {expected}\nbut here\n    {seen}"));
        }
    }
}

/// Leaves out whatever does not matter: runs of steps, single steps, parts of a step.
async fn shrink<F, G: Ground>(
    open: &impl Fn() -> F,
    mut steps: Vec<Step>,
    mut difference: Difference,
) -> (Vec<Step>, Difference)
where
    F: Future<Output = (Arc<dyn Store>, G)>,
{
    steps.truncate(difference.step.saturating_add(1));
    let mut length = steps.len() / 2;
    while length > 0 {
        let mut begin = 0;
        while begin < steps.len() {
            let end = (begin + length).min(steps.len());
            let fewer = [&steps[..begin], &steps[end..]].concat();
            match trial(open, &fewer).await {
                Err(smaller) => (steps, difference) = (fewer, smaller),
                Ok(()) => begin = end,
            }
        }
        length /= 2;
    }
    let mut n = 0;
    'step: while n < steps.len() {
        for smaller in steps[n].smaller() {
            let mut fewer = steps.clone();
            fewer[n] = smaller;
            if let Err(smaller) = trial(open, &fewer).await {
                (steps, difference) = (fewer, smaller);
                continue 'step;
            }
        }
        n += 1;
    }
    (steps, difference)
}
