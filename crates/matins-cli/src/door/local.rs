//! The door without a server: the API's own router, in this process, over the opened store.
//!
//! The store is opened with the first request. One that does not exist yet is made by whoever
//! writes. To whoever looks it is empty in its usual place, and an error where somebody named it:
//! a mistyped path leaves no file behind, and passes for no empty queue.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::{StreamExt as _, TryStreamExt as _};
use matins_core::memory::MemoryStore;
use matins_core::store::Store;
use matins_runtime::client::operations::Step;
use matins_runtime::{Client, Rules};
use matins_server::{Api, Auth, Bare, Caller, Settings};
use tokio::sync::OnceCell;
use tower::ServiceExt as _;
use uuid::Uuid;

use super::{Answer, Chunks, HttpDoor, Request};
use crate::config::{Config, StoreLocation};
use crate::failure::{Failure, Result};
use crate::place::{self, ServerFile};
use crate::storage;

pub(crate) struct LocalDoor {
    /// `None`: no store at all, for what needs none.
    config: Option<Config>,
    opened: OnceCell<Opened>,
    caller: Caller,
}

#[derive(Clone)]
struct Opened {
    client: Client,
    router: Router,
}

impl Opened {
    fn over(store: Arc<dyn Store>, rules: Rules) -> Result<Self> {
        let client = Client::new(store.clone(), rules);
        let auth =
            Auth::new(store, Vec::new()).map_err(|error| Failure::failed(error.to_string()))?;
        let node = Arc::new(Bare::new(client.clone()));
        let api = Api::new(client.clone(), node, auth, Settings::default());
        Ok(Self { client, router: api.router() })
    }

    fn empty() -> Result<Self> {
        Self::over(Arc::new(MemoryStore::new(Uuid::nil())), Rules::default())
    }
}

impl LocalDoor {
    pub(crate) fn new(config: &Config) -> Self {
        Self { config: Some(config.clone()), opened: OnceCell::new(), caller: caller() }
    }

    pub(crate) fn detached() -> Self {
        Self { config: None, opened: OnceCell::new(), caller: caller() }
    }

    /// The client over a store that is there.
    pub(crate) async fn client(&self) -> Result<&Client> {
        match self.missing() {
            Some(config) => Err(storage::missing(config)),
            None => Ok(&self.opened(false).await?.client),
        }
    }

    /// Whose acts they are, in the audit log.
    pub(crate) fn who(&self) -> &str {
        &self.caller.who
    }

    pub(crate) fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// `makes_store`: where there is none.
    async fn opened(&self, makes_store: bool) -> Result<&Opened> {
        let open = || async {
            match &self.config {
                Some(config) => {
                    let store = match makes_store {
                        true => storage::open(config).await?,
                        false => storage::open_existing(config).await?,
                    };
                    let opened = Opened::over(store, config.rules.clone())?;
                    let clock = opened.client.follow_clock().await;
                    clock.map_err(|error| storage::refused(config, &error))?;
                    Ok(opened)
                }
                None => Opened::empty(),
            }
        };
        self.opened.get_or_try_init(open).await
    }

    /// In the wrong folder there is no store: then only what brings work in makes one, and nobody is
    /// told that all is quiet, or frozen.
    async fn router(&self, request: &Request) -> Result<Router> {
        match self.missing() {
            Some(config) if !request.makes_store => Err(storage::missing(config)),
            _ => Ok(self.opened(request.makes_store).await?.router.clone()),
        }
    }

    /// What names the store, while there is none.
    pub(crate) fn missing(&self) -> Option<&Config> {
        let config = self.config.as_ref().filter(|_| self.opened.get().is_none())?;
        (!storage::exists(config)).then_some(config)
    }

    async fn answer(&self, request: Request) -> Result<axum::response::Response> {
        let router = self.router(&request).await?;
        let mut built = axum::http::Request::builder()
            .method(request.method.as_str())
            .uri(&request.path)
            .extension(self.caller.clone());
        let body = match request.body {
            Some(body) => {
                built = built.header("content-type", "application/json");
                Body::from(body)
            }
            None => Body::empty(),
        };
        let request = built.body(body).map_err(|error| Failure::usage(error.to_string()))?;
        match router.oneshot(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }

    pub(super) async fn ask(&self, request: Request) -> Result<Answer> {
        let response = self.answer(request).await?;
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        let body = body.map_err(|error| Failure::failed(error.to_string()))?;
        Ok(Answer { status, body })
    }

    pub(super) async fn stream(&self, request: Request) -> Result<(u16, Chunks)> {
        let response = self.answer(request).await?;
        let status = response.status().as_u16();
        let chunks = response.into_body().into_data_stream();
        let chunks = chunks.map_err(|error| Failure::failed(error.to_string()));
        Ok((status, chunks.boxed()))
    }

    /// The server that runs on the same store, if one does and can be asked.
    pub(crate) fn live_server(&self) -> Option<HttpDoor> {
        let config = self.config.as_ref()?;
        let server = ServerFile::live(config)?;
        let token = crate::session::variable("MATINS_TOKEN").or_else(|| {
            let text = std::fs::read_to_string(place::token_path(config)).ok()?;
            Some(text.trim().to_owned())
        });
        HttpDoor::new(&server.url, Some(token?)).ok()
    }

    /// Whether nobody works on the store. Servers of other folders and machines are known by their
    /// workers.
    pub(crate) async fn has_no_server(&self) -> bool {
        let Some(config) = &self.config else { return false };
        if place::is_served(config) {
            return false;
        }
        if let StoreLocation::Sqlite(_) = config.store {
            return true;
        }
        let Ok(client) = self.client().await else { return true };
        let workers = client.store().workers().await.unwrap_or_default();
        !workers.iter().any(|worker| worker.lease_until >= client.now())
    }

    /// Carries an operation one step on, unless a server does. How long to wait for the next.
    pub(super) async fn step_operation(&self, id: &str) -> Result<Duration> {
        const LOOK: Duration = Duration::from_millis(100);
        if !self.has_no_server().await {
            return Ok(LOOK);
        }
        let client = self.client().await?;
        let failed = |error: matins_runtime::ClientError| Failure::failed(error.to_string());
        let id: Uuid = id.parse().map_err(|_| Failure::failed(format!("{id} is no operation")))?;
        let mut operation = client.operation(id).await.map_err(failed)?;
        Ok(match client.step_operation(&mut operation).await.map_err(failed)? {
            Step::Again | Step::Finished => Duration::ZERO,
            Step::After(pause) => pause,
        })
    }
}

/// Whoever can open the file may do everything with it; the name is for the audit log.
fn caller() -> Caller {
    let user = ["USER", "LOGNAME"].into_iter().find_map(crate::session::variable);
    let user = user.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()));
    Caller::local(&user)
}
