//! The engine on threads of its own: a handler of the API that spins cannot keep it from
//! renewing its lease.

use std::sync::Arc;

use matins_core::cron::tz_release;
use matins_runtime::clock::HostClock;
use matins_runtime::engine::{Roles, run_mark};
use matins_runtime::executors::command::CommandHost;
use matins_runtime::executors::http::HttpHost;
use matins_runtime::executors::{self, Executors, Hosts};
use matins_runtime::process::{Runner, adopt_orphans};
use matins_runtime::sentry::{Sentry, Watcher};
use matins_runtime::{Client, Engine, EngineConfig, Rules};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::place;

/// Enough that one which is blocked in the kernel does not stop the lease.
const THREADS: usize = 2;

pub(super) struct EngineThreads {
    engine: Engine,
    runtime: Option<Runtime>,
    runner: Runner,
    run_mark: String,
}

impl EngineThreads {
    pub(super) async fn start(
        client: Client,
        config: &Config,
        node_id: String,
        roles: Roles,
    ) -> Result<Self> {
        let runner = Runner::this_program().map_err(|e| Failure::io("the own program", &e))?;
        if let Err(error) = adopt_orphans() {
            tracing::warn!(%error, "processes of a killed runner are found by their mark only");
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("matins-engine")
            .enable_all()
            .build()
            .map_err(|error| Failure::io("cannot start threads", &error))?;
        let home = match crate::storage::file(config) {
            Some(_) => None,
            None => Some(format!("{}:{node_id}", place::home(config)?)),
        };
        let alerts_file = config.data_dir.join(format!("{node_id}.alerts.json"));
        let run_mark = run_mark(client.store().info().store_id, home.as_deref(), &node_id);
        let executors = executors(&config.rules, &runner, &run_mark)?;
        let settings = EngineConfig {
            node_id,
            lease: config.lease,
            heartbeat: config.heartbeat,
            heartbeat_url: config.heartbeat_url.as_ref().map(|url| url.value.clone()),
            traces: config.traces.clone(),
            canary: config.canary,
            stall_after: config.stall_after,
            poll: config.poll,
            drain_timeout: config.drain_timeout,
            roles,
            only: None,
            incarnation: Uuid::new_v4(),
            sole: crate::storage::file(config).is_some(),
            home,
            alerts_file: Some(alerts_file),
            runs_commands: true,
        };
        tracing::debug!(zones = tz_release(), "starting the engine");
        let starting = runtime.spawn(Engine::start(client, settings, executors));
        match starting.await {
            Ok(Ok(engine)) => Ok(Self { engine, runtime: Some(runtime), runner, run_mark }),
            Ok(Err(error)) => {
                runtime.shutdown_background();
                Err(crate::storage::refused(config, &error))
            }
            Err(panic) => {
                runtime.shutdown_background();
                Err(Failure::failed(format!("the engine broke at its start: {panic}")))
            }
        }
    }

    /// A thread that watches the engine's loops and tells `watcher`.
    pub(super) fn watched_by(&self, watcher: Box<dyn Watcher>) -> std::io::Result<Sentry> {
        let Some(runtime) = &self.runtime else {
            return Err(std::io::Error::other("the engine has no threads"));
        };
        Sentry::start(self.engine.clone(), runtime.handle().clone(), watcher)
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Executors for other rules of the same node.
    pub(super) fn executors(&self, rules: &Rules) -> Result<Executors> {
        executors(rules, &self.runner, &self.run_mark)
    }

    pub(super) async fn reload(&self, rules: Rules, executors: Executors) -> Result<()> {
        let engine = self.engine.clone();
        let reloaded = self.on_own_threads(async move { engine.reload(rules, executors).await });
        match reloaded.await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Failure::failed(error.to_string())),
            None => Err(Failure::failed("the engine broke")),
        }
    }

    pub(super) async fn shutdown(&self) {
        let engine = self.engine.clone();
        self.on_own_threads(async move { engine.shutdown().await }).await;
    }

    pub(super) async fn shutdown_now(&self) {
        let engine = self.engine.clone();
        self.on_own_threads(async move { engine.shutdown_now().await }).await;
    }

    /// `None`: it panicked, or the threads are gone.
    async fn on_own_threads<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let done = self.runtime.as_ref()?.spawn(work).await;
        if let Err(panic) = &done {
            tracing::error!(%panic, "the engine broke");
        }
        done.ok()
    }
}

impl Drop for EngineThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Executors for these rules: what the file says of its types is judged here once more.
pub(crate) fn executors(rules: &Rules, runner: &Runner, run_mark: &str) -> Result<Executors> {
    let limits = rules.limits;
    let http = HttpHost::new(rules.http.clone(), limits, Arc::new(HostClock));
    let hosts = Hosts {
        command: CommandHost { runner: runner.clone(), node_id: run_mark.to_owned(), limits },
        http: http.map_err(|error| Failure::failed(error.to_string()))?,
    };
    let refused = |error: String| Failure::usage(error);
    let mut executors =
        executors::executors(rules, &hosts).map_err(|error| refused(error.to_string()))?;
    executors.extend(matins_sql::executors(rules).map_err(|error| refused(error.to_string()))?);
    Ok(executors)
}
