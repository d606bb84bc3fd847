//! Schedules: set, removed, paused, triggered, looked at.

use matins_core::operation::Operation;

use super::operations::Step;
use super::{Client, Result};

impl Client {
    pub(super) async fn step_backfill(&self, _operation: &mut Operation) -> Result<Step> {
        Ok(Step::Finished)
    }
}
