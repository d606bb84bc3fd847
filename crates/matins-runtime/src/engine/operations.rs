//! Carries long acts of people out, side by side, and picks up those that a restart left.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use matins_core::operation::Operation;
use uuid::Uuid;

use super::Core;
use super::producer::Trouble;
use crate::client::operations::Step;

/// How often the store is asked for operations that nobody rang for.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(20);

pub(super) async fn run(core: Arc<Core>) {
    let beat = core.progress.watch("operations", LOOK_EVERY);
    let carried: Arc<Mutex<HashSet<Uuid>>> = Arc::default();
    let mut trouble = Trouble::of(&core, &beat);
    loop {
        beat.doing("look");
        match core.store().running_operations().await {
            Ok(operations) => {
                trouble.over("operations");
                beat.round().await;
                for operation in operations {
                    let fresh =
                        carried.lock().unwrap_or_else(PoisonError::into_inner).insert(operation.id);
                    if fresh {
                        let (core, carried) = (core.clone(), carried.clone());
                        let id = operation.id;
                        core.clone().loops.spawn(async move {
                            carry(&core, operation).await;
                            carried.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                        });
                    }
                }
            }
            Err(error) => {
                let pause = trouble.again("operations", &error);
                tokio::time::sleep(pause).await;
            }
        }
        tokio::select! {
            () = core.quiet.cancelled() => return,
            () = core.client.inner.wake.operations() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

async fn carry(core: &Core, mut operation: Operation) {
    let mut trouble = Trouble::new(core);
    while !core.quiet.is_cancelled() {
        let pause = match core.client.step_operation(&mut operation).await {
            Ok(Step::Finished) => return,
            Ok(Step::Again) => continue,
            Ok(Step::After(pause)) => pause,
            Err(crate::ClientError::Store(error)) if error.is_transient() => {
                trouble.again("operation", &error)
            }
            Err(error) => {
                tracing::error!(operation = %operation.id, %error, "an operation cannot go on");
                return;
            }
        };
        tokio::select! {
            () = core.quiet.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
