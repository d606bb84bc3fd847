//! The engine: it claims tasks, runs them, fires schedules, and keeps watch over itself.
//!
//! It knows `dyn Store` and never a backend, `dyn Executor` and never a front door. Nothing in
//! memory here is the truth about a task: whatever is lost with the process is found again in
//! the store.

pub mod alerts;
pub mod client;
pub mod clock;
pub mod cores;
pub mod engine;
pub mod error;
pub mod events;
pub mod executors;
pub mod live;
pub mod lock;
pub mod metrics;
pub mod process;
pub mod progress;
pub mod pruning;
pub mod rules;
pub mod sentry;
pub mod wake;

pub use client::Client;
pub use engine::{Engine, EngineConfig};
pub use error::ClientError;
pub use rules::Rules;
