//! Deletes what nobody has to keep any longer, step by step, so that no writer waits long and
//! work goes on.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_core::store::{Pruned, Retention, Store, StoreError};

/// Rows of one step.
const ROWS: usize = 2_000;

/// After a step it rests for this many times what the step took: a fifth of one connection's time
/// is all it ever has.
const REST: u32 = 4;
const REST_MIN: Duration = Duration::from_millis(50);

/// One step, and how long to rest before the next one.
pub async fn step(
    store: &dyn Store,
    retention: &Retention,
    now: Timestamp,
) -> Result<(Pruned, Duration), StoreError> {
    let began = Instant::now();
    let pruned = store.prune(retention, now, ROWS).await?;
    Ok((pruned, (began.elapsed() * REST).max(REST_MIN)))
}
