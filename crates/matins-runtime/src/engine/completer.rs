//! Writes finished attempts in batches. A write that cannot be made waits; it is never dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use matins_core::lifecycle::{Next, Settlement};
use matins_core::store::Settled;
use matins_core::task::{AttemptOutcome, Name, State, TaskId};
use tokio::sync::mpsc;

use super::Core;
use super::producer::Trouble;
use crate::events::What;
use crate::progress::Beat;

/// A finished attempt on its way to the store.
pub(crate) struct Done {
    pub(crate) settlement: Settlement,
    pub(crate) kind: Name,
    /// Absent when it never ran.
    pub(crate) length: Option<Duration>,
    /// Its end may set other tasks free.
    pub(crate) releases: bool,
    /// The run says that it has written its completion itself.
    pub(crate) by_run: bool,
}

impl Done {
    fn run(&self) -> (TaskId, u32) {
        (self.settlement.claim.id, self.settlement.attempt)
    }
}

/// Most attempts of one write.
const BATCH: usize = 1_000;

pub(super) async fn run(core: Arc<Core>, mut finished: mpsc::Receiver<Done>) {
    let beat = core.progress.watch("completer", core.config.poll);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        beat.round().await;
        tokio::select! {
            biased;
            n = finished.recv_many(&mut batch, BATCH) => {
                if n == 0 {
                    return;
                }
            }
            () = core.stop.cancelled() => {
                finished.close();
                while let Ok(done) = finished.try_recv() {
                    batch.push(done);
                }
                if !batch.is_empty() {
                    write(&core, &mut batch, &beat).await;
                }
                return;
            }
            () = tokio::time::sleep(core.config.poll) => continue,
        }
        beat.doing("settle");
        write(&core, &mut batch, &beat).await;
    }
}

/// Writes until it is written. A batch is repeated as it is: what the lost answer of a first try
/// did write is fenced in the second, and its state is read back.
async fn write(core: &Core, batch: &mut Vec<Done>, beat: &Beat) {
    let mut trouble = Trouble::of(core, beat);
    let mut repeated = false;
    loop {
        let items = batch.iter().map(|done| done.settlement.clone()).collect();
        match core.client.wrote(core.store().settle(items).await) {
            Ok(answers) => {
                trouble.over("completer");
                core.client.inner.live.close(batch.iter().map(Done::run));
                let mut tally = Tally::default();
                for (done, answer) in batch.drain(..).zip(answers) {
                    settled(core, done, answer, repeated, &mut tally);
                }
                tally.record(core);
                return;
            }
            Err(error) if error.is_transient() => {
                let pause = trouble.again("completer", &error);
                tokio::time::sleep(pause).await;
                repeated = true;
                if core.stop.is_cancelled() {
                    tracing::error!(
                        tasks = batch.len(),
                        "finished attempts could not be written before the end"
                    );
                    batch.clear();
                    return;
                }
            }
            // One that cannot be written must not take the others with it.
            Err(error) if batch.len() > 1 => {
                tracing::error!(%error, "the store refused a batch; its attempts are written singly");
                for done in std::mem::take(batch) {
                    Box::pin(write(core, &mut vec![done], beat)).await;
                }
                return;
            }
            Err(error) => {
                tracing::error!(%error, "the store refused a settlement; its claim is given up");
                core.client.inner.live.close(batch.drain(..).map(|done| done.run()));
                core.lapsed.store(true, Ordering::SeqCst);
                return;
            }
        }
    }
}

/// Attempts for the metrics, those in a row that are of one type and outcome together.
#[derive(Default)]
struct Tally(Vec<(Name, AttemptOutcome, u64, Vec<Duration>)>);

impl Tally {
    fn add(&mut self, kind: &Name, outcome: AttemptOutcome, length: Option<Duration>) {
        match self.0.last_mut() {
            Some((last, same, n, lengths)) if last == kind && *same == outcome => {
                *n += 1;
                lengths.extend(length);
            }
            _ => self.0.push((kind.clone(), outcome, 1, length.into_iter().collect())),
        }
    }

    fn record(self, core: &Core) {
        for (kind, outcome, n, lengths) in self.0 {
            core.client.inner.metrics.settled_many(&kind, outcome, n, &lengths);
        }
    }
}

fn settled(core: &Core, done: Done, answer: Settled, repeated: bool, tally: &mut Tally) {
    let (id, attempt) = done.run();
    let Done { settlement, kind, length, releases, by_run } = done;
    match answer {
        Settled::Done(state) => {
            tally.add(&kind, settlement.outcome, length);
            if state == State::Failed {
                core.client.inner.wake.ring_alerts();
            }
            let what = || What::Settled { id, kind, attempt, state };
            core.client.inner.events.send(settlement.finished_at, what);
            if releases || matches!(settlement.next, Next::Again { .. }) {
                core.client.inner.wake.ring_pools();
            }
        }
        Settled::Fenced if by_run => {
            tally.add(&kind, AttemptOutcome::Completed, length);
            let what = || What::Settled { id, kind, attempt, state: State::Completed };
            core.client.inner.events.send(settlement.finished_at, what);
            core.client.inner.wake.ring_pools();
        }
        Settled::Fenced if repeated => {
            tracing::debug!(task = %id, "already written by a try whose answer was lost");
        }
        Settled::Fenced => core.client.fenced(id),
    }
}
