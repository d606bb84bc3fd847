//! The one-task worker: an engine that runs one command and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use matins_core::executor::{Executor, Finished, Run, StopReason, Supervision};
use matins_core::task::{Name, TaskId};
use matins_runtime::engine::{Roles, run_mark};
use matins_runtime::executors::command::{CommandExecutor, CommandHost};
use matins_runtime::process::{Runner, adopt_orphans};
use matins_runtime::rules::AD_HOC_COMMAND;
use matins_runtime::{Engine, EngineConfig};
use uuid::Uuid;

use super::super::follow::Stream;
use super::screen::Screen;
use crate::config::Config;
use crate::door::{Door, LocalDoor};
use crate::failure::{Failure, Result};
use crate::serve::hostname;
use crate::session::Session;

pub(super) struct Worker {
    engine: Engine,
    id: TaskId,
}

/// The store and the configuration that it works by, if it may.
pub(super) fn may_run(session: &Session) -> Result<(&LocalDoor, &Config)> {
    let Door::Local(door) = &session.door else {
        return Err(Failure::unreachable("the server does not answer"));
    };
    let Some(config) = door.config() else {
        return Err(Failure::failed("there is no store to work on"));
    };
    if !config.rules.allow_commands.allows(AD_HOC_COMMAND) {
        let hint = "allow_commands: [command] in matins.yaml lets this process, and each server \
                    that reads it, run them; without it, leave it to a server that may: --detach";
        return Err(
            Failure::failed("allow_commands of this configuration forbids commands").hint(hint)
        );
    }
    Ok((door, config))
}

impl Worker {
    pub(super) async fn start(session: &Session, id: &str, screen: Screen) -> Result<Self> {
        let (door, config) = may_run(session)?;
        let only: TaskId =
            id.parse().map_err(|_| Failure::failed(format!("{id} is no task id")))?;
        let runner = Runner::this_program().map_err(|e| Failure::io("the own program", &e))?;
        // Without this, a process that a killed runner left behind is found by its mark alone.
        let _ = adopt_orphans();
        // No two may have one name: a node's successor takes over what its predecessor claimed.
        let node_id = format!("{}-run-{}", hostname(), std::process::id());
        let client = door.client().await?.clone();
        let mark = run_mark(client.store().info().store_id, None, &node_id);
        let host = CommandHost { runner, node_id: mark, limits: config.rules.limits };
        let inner = CommandExecutor::ad_hoc(host, config.rules.base_dir.clone());
        let executor = Shown { inner, screen };
        let executors: BTreeMap<Name, Arc<dyn Executor>> =
            BTreeMap::from([(AD_HOC_COMMAND.into(), Arc::new(executor) as Arc<dyn Executor>)]);
        let engine = EngineConfig {
            node_id,
            lease: config.lease,
            heartbeat: config.heartbeat,
            heartbeat_url: None,
            traces: None,
            canary: None,
            stall_after: config.stall_after,
            poll: config.poll,
            drain_timeout: config.drain_timeout,
            roles: Roles { scheduler: false, worker: true },
            only: Some(only),
            incarnation: Uuid::new_v4(),
            sole: false,
            home: None,
            alerts_file: None,
            runs_commands: true,
        };
        match Engine::start(client, engine, executors).await {
            Ok(engine) => Ok(Self { engine, id: only }),
            Err(error) => Err(crate::storage::refused(config, &error)),
        }
    }

    /// Until the task has ended, here or elsewhere; for a while at least.
    pub(super) async fn wait(&self) {
        // Whether it has ended is looked at afterwards, also when the store did not answer.
        let _ = self.engine.client().wait(self.id, Some(WAIT)).await;
    }

    /// Ends what still runs, which is then given back, not failed.
    pub(super) async fn stop(self) {
        self.engine.shutdown_now().await;
    }
}

/// Longest wait between two looks for a server that has come meanwhile.
const WAIT: Duration = Duration::from_secs(5);

/// Runs a command and shows what it writes, without a follower's limits.
struct Shown {
    inner: CommandExecutor,
    screen: Screen,
}

#[async_trait]
impl Executor for Shown {
    async fn run(&self, run: Run) -> Finished {
        let heard = Heard { inner: run.supervision, screen: self.screen.clone() };
        self.inner.run(Run { supervision: Arc::new(heard), ..run }).await
    }
}

/// The engine's supervision, listened to.
struct Heard {
    inner: Arc<dyn Supervision>,
    screen: Screen,
}

#[async_trait]
impl Supervision for Heard {
    async fn stopped(&self) -> StopReason {
        self.inner.stopped().await
    }

    fn lease_deadline(&self) -> Option<u64> {
        self.inner.lease_deadline()
    }

    async fn lease_renewed(&self, seen: Option<u64>) -> Option<u64> {
        self.inner.lease_renewed(seen).await
    }

    fn patience(&self, grace: Duration) -> Duration {
        self.inner.patience(grace)
    }

    fn output(&self, chunk: &[u8]) {
        self.screen.put(Stream::Out, chunk);
        self.inner.output(chunk);
    }

    fn error_output(&self, chunk: &[u8]) {
        self.screen.put(Stream::Err, chunk);
        self.inner.error_output(chunk);
    }

    fn stuck(&self) {
        self.inner.stuck();
    }
}
