//! The one-task worker: an engine that runs one command and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use matins_core::executor::Executor;
use matins_core::task::{Name, TaskId};
use matins_runtime::engine::{Roles, run_mark};
use matins_runtime::executors::command::{CommandExecutor, CommandHost};
use matins_runtime::process::{Runner, adopt_orphans};
use matins_runtime::rules::AD_HOC_COMMAND;
use matins_runtime::{Engine, EngineConfig};
use uuid::Uuid;

use crate::door::Door;
use crate::failure::{Failure, Result};
use crate::serve::hostname;
use crate::session::Session;

pub(super) struct Worker(Engine);

impl Worker {
    pub(super) async fn start(session: &Session, id: &str) -> Result<Self> {
        let Door::Local(door) = &session.door else {
            return Err(Failure::unreachable("the server does not answer"));
        };
        let Some(config) = door.config() else {
            return Err(Failure::failed("there is no store to work on"));
        };
        if !config.rules.allow_commands.allows(AD_HOC_COMMAND) {
            return Err(Failure::failed("allow_commands of this configuration forbids commands"));
        }
        let only: TaskId =
            id.parse().map_err(|_| Failure::failed(format!("{id} is no task id")))?;
        let runner = Runner::this_program().map_err(|e| Failure::io("the own program", &e))?;
        // Without this, a process that a killed runner left behind is found by its mark alone.
        let _ = adopt_orphans();
        // No two may have one name: a node's successor takes over what its predecessor claimed.
        let node_id = format!("{}-run-{}", hostname(), std::process::id());
        let client = door.client().await?.clone();
        let mark = run_mark(client.store().info().store_id, &node_id);
        let host = CommandHost { runner, node_id: mark, limits: config.rules.limits };
        let executor = CommandExecutor::ad_hoc(host, config.rules.base_dir.clone());
        let executors: BTreeMap<Name, Arc<dyn Executor>> =
            BTreeMap::from([(AD_HOC_COMMAND.into(), Arc::new(executor) as Arc<dyn Executor>)]);
        let engine = EngineConfig {
            node_id,
            lease: config.lease,
            heartbeat: config.heartbeat,
            stall_after: config.stall_after,
            poll: config.poll,
            drain_timeout: config.drain_timeout,
            roles: Roles { scheduler: false, worker: true },
            only: Some(only),
            incarnation: Uuid::new_v4(),
            sole: false,
            runs_commands: true,
        };
        match Engine::start(client, engine, executors).await {
            Ok(engine) => Ok(Self(engine)),
            Err(error) => Err(crate::storage::refused(config, &error)),
        }
    }

    /// Ends what still runs, which is then given back, not failed.
    pub(super) async fn stop(self) {
        self.0.shutdown_now().await;
    }
}
