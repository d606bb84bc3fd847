//! `matins watch`: the independent monitor. It reads the heartbeat from Redis or the store, or asks
//! a server, and judges it by a clock of its own; it shares no process, and need share no machine,
//! with what it watches.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use matins_core::alert::{Alert, Rule};
use matins_core::store::HEARTBEAT;
use matins_core::store::Store;
use matins_core::watch::{Act, Monitor, Sight};
use matins_runtime::alerts::{Alerts, office};
use matins_store::redis::Glance;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::duration;
use crate::config::{Config, RedisPlace, Sources};
use crate::failure::{Failure, Result};
use crate::session::Global;
use crate::storage;

/// Longest time for one look.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// Longest time for the restart command.
const RESTART_LIMIT: Duration = Duration::from_secs(120);
/// Longest time for what is being told when it ends.
const STOP_LIMIT: Duration = Duration::from_secs(4);

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// A heartbeat that stands still for so long is lost [default: 90s, or what
    /// alerts.rules.heartbeat says]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    after: Option<Duration>,
    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    every: Duration,
    /// Shell command that starts the scheduler again: at most once in 5 minutes, three times in a
    /// row
    #[arg(long, value_name = "COMMAND")]
    restart_command: Option<String>,
}

impl Watch {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let config = Sources { need_secrets: true, ..global.sources() }.load()?;
        crate::serve::logs::start(config.log);
        let teller = Teller::start(&config)?;
        let after = self.after.unwrap_or_else(|| config.rules.alerts.after(Rule::Heartbeat));
        let mut place = match global.server()? {
            Some(url) => Place::server(&url)?,
            None => Place::store(config, after)?,
        };
        let listen = |kind| signal(kind).map_err(|e| Failure::io("cannot listen to signals", &e));
        let (mut end, mut interrupt) =
            (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let mut monitor = Monitor::new(after, self.restart_command.is_some());
        let began = Instant::now();
        tracing::info!(place = place.shown(), after = after.as_secs(), "watching");
        let watching = async {
            loop {
                let sight = match tokio::time::timeout(LOOK_LIMIT, place.look()).await {
                    Ok(sight) => sight,
                    Err(_) => place.unanswered(),
                };
                for act in monitor.look(sight, began.elapsed()) {
                    self.carry_out(act, &place, &teller.alerts).await;
                }
                tokio::time::sleep(self.every).await;
            }
        };
        // Also in the middle of a look, or of a restart command that takes long.
        tokio::select! {
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
            () = watching => {}
        }
        teller.stop().await
    }

    async fn carry_out(&self, act: Act, place: &Place, alerts: &Alerts) {
        let (now, subject) = (Timestamp::now(), place.shown());
        match act {
            Act::Lost(silent) => alerts.raise(
                Alert::new(Rule::Heartbeat, subject, now).fact("silent_seconds", silent.as_secs()),
            ),
            Act::Back(silent) => alerts.raise(
                Alert::resolved(Rule::Heartbeat, subject, now)
                    .fact("silent_seconds", silent.as_secs()),
            ),
            Act::Unreachable(time, why) => alerts.raise(
                Alert::new(Rule::Store, subject, now)
                    .fact("seconds", time.as_secs())
                    .fact("why", why),
            ),
            Act::Reachable => alerts.raise(Alert::resolved(Rule::Store, subject, now)),
            Act::GaveUp => tracing::error!("three restarts did not help; nothing more is tried"),
            Act::Restart => self.restart().await,
        }
    }

    async fn restart(&self) {
        let Some(line) = &self.restart_command else { return };
        tracing::warn!(command = line, "restarting the scheduler");
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(RESTART_LIMIT, command.status()).await {
            Ok(Ok(status)) if status.success() => tracing::info!("the restart command is done"),
            Ok(Ok(status)) => tracing::error!(%status, "the restart command failed"),
            Ok(Err(error)) => tracing::error!(%error, "the restart command cannot be started"),
            Err(_) => tracing::error!("the restart command took too long and is ended"),
        }
    }
}

/// Tells people by itself: what it watches may be what would tell otherwise.
struct Teller {
    alerts: Alerts,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Teller {
    fn start(config: &Config) -> Result<Self> {
        let teller = Self {
            alerts: Alerts::default(),
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let policy = config.rules.alerts.clone();
        if policy.channels.is_empty() {
            tracing::warn!("no alert channel: nobody will be told");
            return Ok(teller);
        }
        crate::place::make(&config.data_dir)?;
        let file = Some(config.data_dir.join("watch.alerts.json"));
        office::start_alone(&teller.alerts, policy, file, &teller.tracker, &teller.stop);
        Ok(teller)
    }

    async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(STOP_LIMIT, self.tracker.wait()).await;
        Ok(())
    }
}

/// Where the heartbeat is looked for.
enum Place {
    Store { config: Box<Config>, opened: Option<Arc<dyn Store>>, redis: Option<Box<InRedis>> },
    Server { url: String, client: reqwest::Client, answers: u64 },
}

impl Place {
    fn store(config: Config, after: Duration) -> Result<Self> {
        let redis = config.redis.as_ref().map(|place| InRedis::new(place, after)).transpose()?;
        let redis = redis.map(Box::new);
        Ok(Self::Store { config: Box::new(config), opened: None, redis })
    }

    fn server(url: &str) -> Result<Self> {
        let client = reqwest::Client::builder().timeout(LOOK_LIMIT).build();
        let client = client.map_err(|error| Failure::failed(error.to_string()))?;
        let url = format!("{}/healthz", url.trim_end_matches('/'));
        Ok(Self::Server { url, client, answers: 0 })
    }

    fn shown(&self) -> String {
        match self {
            Self::Store { config, .. } => storage::shown(config),
            Self::Server { url, .. } => url.clone(),
        }
    }

    /// What an answer that did not come in time means: a store is out of reach, a server hangs.
    fn unanswered(&self) -> Sight {
        match self {
            Self::Store { .. } => Sight::Away("no answer in time".to_owned()),
            Self::Server { .. } => Sight::Value(None),
        }
    }

    async fn look(&mut self) -> Sight {
        match self {
            Self::Store { config, opened, redis } => {
                if let Some(redis) = redis
                    && let Some(value) = redis.look().await
                {
                    return Sight::Value(Some(value));
                }
                let read = read(config, opened).await;
                if read.is_err() {
                    *opened = None;
                }
                read.map_or_else(Sight::Away, Sight::Value)
            }
            Self::Server { url, client, answers } => {
                *answers += 1;
                ask(client, url, *answers).await
            }
        }
    }
}

/// The heartbeat as Redis shows it. It is cheap to look at, and it is not the truth: when it is
/// missing, or stands still, the store is asked.
struct InRedis {
    glance: Glance,
    value: Option<String>,
    moved: Instant,
    /// How long a value that stands still is taken for one that moves.
    patience: Duration,
}

impl InRedis {
    fn new(place: &RedisPlace, after: Duration) -> Result<Self> {
        let glance = Glance::new(&place.url.0, &place.prefix);
        let glance = glance.map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Self { glance, value: None, moved: Instant::now(), patience: after / 2 })
    }

    async fn look(&mut self) -> Option<String> {
        let value = match self.glance.heartbeat().await {
            Ok(value) => value?,
            Err(error) => {
                tracing::debug!(%error, "no heartbeat can be read from Redis");
                return None;
            }
        };
        if self.value.as_ref() != Some(&value) {
            (self.value, self.moved) = (Some(value.clone()), Instant::now());
        }
        (self.moved.elapsed() < self.patience).then_some(value)
    }
}

async fn read(
    config: &Config,
    opened: &mut Option<Arc<dyn Store>>,
) -> std::result::Result<Option<String>, String> {
    if opened.is_none() {
        let reading = Config { migrate_by_itself: false, ..config.clone() };
        if !storage::exists(&reading) {
            return Err(format!("no store at {}", storage::shown(config)));
        }
        let store = storage::open(&reading).await;
        *opened = Some(store.map_err(|failure| failure.message.unwrap_or_default())?);
    }
    let Some(store) = opened else { return Err("no store".to_owned()) };
    store.note(HEARTBEAT).await.map_err(|error| error.to_string())
}

/// A server speaks for its loops itself: while it says that they turn, the value moves.
async fn ask(client: &reqwest::Client, url: &str, count: u64) -> Sight {
    let Ok(answer) = client.get(url).send().await else { return Sight::Value(None) };
    let healthy = answer.status().is_success();
    let body: serde_json::Value = answer.json().await.unwrap_or_default();
    match body["status"].as_str() {
        Some("ok") if healthy => Sight::Value(Some(count.to_string())),
        Some("degraded") if healthy => Sight::Away("the server says that its store is away".into()),
        _ => Sight::Value(None),
    }
}
