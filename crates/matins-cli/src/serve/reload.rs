//! SIGHUP: the file is read again. What can change while everything runs changes at once; a file
//! with a mistake changes nothing.

use std::time::Duration;

use matins_runtime::Client;
use matins_server::auth::hash_hex;

use super::Running;
use super::engine::EngineThreads;
use crate::config::{Config, next_fires};
use crate::failure::{Exit, Failure, Result};

impl Running {
    pub(super) async fn reload(&mut self) {
        match self.try_reload().await {
            Ok(()) => tracing::info!("the configuration is read again"),
            Err(failure) => {
                let error = failure.message.unwrap_or_default();
                tracing::error!(error, "the configuration stays as it was");
            }
        }
    }

    async fn try_reload(&mut self) -> Result<()> {
        let config = self.sources.load()?;
        for key in needs_restart(&self.config, &config) {
            tracing::warn!(key, "this key takes effect with the next start");
        }
        let executors = self.engine.executors(&config.rules)?;
        // First what can still be refused: all of the schedules are checked before any is written.
        if self.engine.engine().config().roles.scheduler {
            apply_schedules(&self.client, &config, &self.node_id).await?;
        }
        self.engine.reload(config.rules.clone(), executors).await?;
        if let Some(tls) = &self.tls {
            let reloaded = tls.reload().await;
            reloaded.map_err(|error| Failure::failed(format!("tls: {error}")))?;
        }
        // What needs a restart is still what this process runs with.
        let Config { rules, schedules, source, .. } = config;
        self.config = Config { source, rules, schedules, ..self.config.clone() };
        Ok(())
    }
}

/// Keys whose new value waits for a restart.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let tokens = |config: &Config| {
        let token = |t: &crate::config::StaticToken| {
            (t.name.clone(), t.secret.clone(), t.role.as_str(), t.types.clone())
        };
        config.auth.tokens.iter().map(token).collect::<Vec<_>>()
    };
    [
        ("store", old.store != new.store),
        ("listen", old.listen != new.listen),
        ("public_url", old.public_url != new.public_url),
        ("allowed_hosts", old.allowed_hosts != new.allowed_hosts),
        ("data_dir", old.data_dir != new.data_dir),
        ("node_id", old.node_id != new.node_id),
        ("lease", old.lease != new.lease),
        ("heartbeat", old.heartbeat != new.heartbeat),
        ("heartbeat_url", old.heartbeat_url != new.heartbeat_url),
        ("traces", old.traces != new.traces),
        ("canary", old.canary != new.canary),
        ("stall_after", old.stall_after != new.stall_after),
        ("poll", old.poll != new.poll),
        ("drain_timeout", old.drain_timeout != new.drain_timeout),
        ("log", old.log != new.log),
        ("tls", old.tls != new.tls),
        ("auth", tokens(old) != tokens(new) || old.auth.metrics != new.auth.metrics),
    ]
    .into_iter()
    .filter_map(|(key, changed)| changed.then_some(key))
    .collect()
}

/// When the store, which is away, is back. A file that it refuses then changes nothing.
pub(super) fn apply_schedules_later(
    engine: &EngineThreads,
    client: &Client,
    config: &Config,
    node_id: &str,
) {
    let (engine, client) = (engine.engine().clone(), client.clone());
    let (config, node_id) = (config.clone(), node_id.to_owned());
    tokio::spawn(async move {
        engine.joined().await;
        while let Err(failure) = apply_schedules(&client, &config, &node_id).await {
            let error = failure.message.unwrap_or_default();
            tracing::error!(error, "the file's schedules could not be applied");
            if failure.code != Exit::Unreachable as u8 {
                return;
            }
            tokio::time::sleep(APPLY_EVERY).await;
        }
    });
}

/// Between two tries to apply the file's schedules to a store that has just come back.
const APPLY_EVERY: Duration = Duration::from_secs(5);

/// Makes the file's schedules the store's, if the file has changed since this node last did:
/// what somebody changed by hand meanwhile is not undone by a restart. A node that is new and names
/// none has taken none away, and leaves those of the others alone.
pub(super) async fn apply_schedules(client: &Client, config: &Config, node_id: &str) -> Result<()> {
    if config.file.is_none() {
        return Ok(());
    }
    let failed = |error: matins_core::store::StoreError| Failure::unreachable(error.to_string());
    let digest = hash_hex(&config.source);
    let key = format!("schedules_file:{node_id}");
    let store = client.store();
    let before = store.note(&key).await.map_err(failed)?;
    if before.as_deref() == Some(&digest) {
        return Ok(());
    }
    if before.is_none() && config.schedules.is_empty() {
        return store.put_note(&key, &digest).await.map_err(failed);
    }
    let applied = client.apply_file(&config.schedules).await;
    let (written, disabled) =
        applied.map_err(|error| Failure::usage(format!("schedules: {error}")))?;
    tracing::info!(written, disabled, "the file's schedules are applied");
    let now = client.now();
    for spec in config.schedules.iter().filter(|spec| next_fires(config, spec, now, 1).is_empty()) {
        tracing::warn!(schedule = spec.name, "will never fire again: it starts nothing");
    }
    store.put_note(&key, &digest).await.map_err(failed)
}
