//! Fires what is due.
use std::sync::Arc;
use super::Core;
pub(super) async fn run(_core: Arc<Core>) {}
