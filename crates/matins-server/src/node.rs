//! What the front door asks of the process that it stands in.

use std::time::Duration;

use async_trait::async_trait;
use matins_core::lease::LEASE;
use matins_runtime::Client;
use matins_runtime::engine::{Health, Status};

/// A process with a client and, mostly, an engine.
#[async_trait]
pub trait Node: Send + Sync {
    async fn health(&self) -> Health;

    /// Length of the leases that remote workers get.
    fn lease(&self) -> Duration;

    fn node_id(&self) -> Option<&str>;

    /// Brings gauges that age by themselves up to now.
    fn refresh_metrics(&self) {}
}

/// A process without an engine: a command that works on the store by itself.
pub struct Bare {
    client: Client,
}

impl Bare {
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Node for Bare {
    async fn health(&self) -> Health {
        let up = self.client.store().ping().await.is_ok();
        Health {
            status: if up { Status::Ok } else { Status::Degraded },
            stalled: Vec::new(),
            ready: up,
            heartbeat_age: Duration::ZERO,
        }
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn node_id(&self) -> Option<&str> {
        None
    }
}

#[async_trait]
impl Node for matins_runtime::Engine {
    async fn health(&self) -> Health {
        Self::health(self)
    }

    fn lease(&self) -> Duration {
        self.config().lease
    }

    fn node_id(&self) -> Option<&str> {
        Some(&self.config().node_id)
    }

    fn refresh_metrics(&self) {
        Self::refresh_metrics(self);
    }
}
