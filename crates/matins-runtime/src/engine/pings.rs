//! Tells when a job that others run has not reported in time, and when it reports again.

use std::sync::Arc;
use std::time::Duration;

use matins_core::alert::{Alert, Rule};

use super::Core;
use super::producer::Trouble;
use crate::ClientError;

const LOOK_EVERY: Duration = Duration::from_secs(5);

pub(super) async fn run(core: Arc<Core>) {
    let beat = core.progress.watch("pings", LOOK_EVERY);
    let mut trouble = Trouble::of(&core, &beat);
    loop {
        beat.doing("look");
        match look(&core).await {
            Ok(()) => {
                trouble.over("pings");
                beat.round().await;
            }
            Err(ClientError::Store(error)) => {
                let pause = trouble.again("pings", &error);
                tokio::time::sleep(pause).await;
            }
            Err(error) => tracing::error!(%error, "pings cannot be read"),
        }
        tokio::select! {
            () = core.quiet.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

async fn look(core: &Core) -> Result<(), ClientError> {
    let alerts = core.client.alerts();
    let pings = core.client.pings().await?;
    for ping in &pings {
        let now = core.client.now();
        match ping.expected.overdue(ping.heard, now) {
            // Nobody could report while the store was away.
            Some(late) if core.counted(late).is_zero() => {}
            None => alerts.raise(Alert::resolved(Rule::Ping, &*ping.name, now)),
            Some(late) => alerts.raise(
                Alert::new(Rule::Ping, &*ping.name, now)
                    .fact("late_seconds", late.as_secs())
                    .fact("last", ping.heard.at)
                    .fact("ever_reported", ping.heard.reported),
            ),
        }
    }
    // One that left the file is waited for no more.
    for subject in alerts.standing(Rule::Ping) {
        if pings.iter().all(|ping| *ping.name != *subject) {
            alerts.raise(Alert::resolved(Rule::Ping, subject, core.client.now()));
        }
    }
    Ok(())
}
