//! The outside switch: an address that is called with every heartbeat, so that somebody else
//! notices when the calls stop. It must never hold a loop up, and nothing depends on its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A call that takes longer is given up; the next one follows anyway.
const LIMIT: Duration = Duration::from_secs(10);

pub(super) struct Switch {
    url: String,
    client: Option<reqwest::Client>,
    calling: Arc<AtomicBool>,
    failing: Arc<AtomicBool>,
}

impl Switch {
    pub(super) fn new(url: &str) -> Self {
        let built = reqwest::Client::builder().timeout(LIMIT).build();
        let client = built
            .inspect_err(|error| tracing::error!(%error, "heartbeat_url cannot be called"))
            .ok();
        Self { url: url.to_owned(), client, calling: Arc::default(), failing: Arc::default() }
    }

    /// Calls it, unless a call is under way. The address may hold a secret: it is not logged.
    pub(super) fn ping(&self) {
        let Some(client) = &self.client else { return };
        if self.calling.swap(true, Ordering::SeqCst) {
            return;
        }
        let call = client.get(&self.url).send();
        let (calling, failing) = (self.calling.clone(), self.failing.clone());
        tokio::spawn(async move {
            let answer = call.await.and_then(reqwest::Response::error_for_status);
            let failed = answer.map_err(|error| error.without_url().to_string()).err();
            let before = failing.swap(failed.is_some(), Ordering::Relaxed);
            match failed {
                Some(error) if !before => tracing::warn!(error, "heartbeat_url does not answer"),
                None if before => tracing::info!("heartbeat_url answers again"),
                _ => {}
            }
            calling.store(false, Ordering::SeqCst);
        });
    }
}
