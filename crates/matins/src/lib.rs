//! Durable background tasks and cron schedules inside your own program.
//!
//! ```no_run
//! use matins::{Context, Matins, Pool, Task, TaskError};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Report {
//!     day: String,
//! }
//!
//! impl Task for Report {
//!     const TYPE: &'static str = "report_generation";
//! }
//!
//! async fn render(report: Report, _context: Context) -> Result<usize, TaskError> {
//!     Ok(report.day.len())
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let matins = Matins::open("sqlite:matins.db")
//!     .pool(Pool::new("cpu_pool", 4).types(["report_generation"]))
//!     .handler(render)
//!     .start()
//!     .await?;
//! let report = Report { day: "2026-11-29".into() };
//! matins.enqueue(report).execution_key("report-2026-11-29").await?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod context;
mod enqueue;
mod error;
mod handler;
mod pool;
pub mod testing;
mod transaction;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use builder::{Matins, MatinsBuilder, OpenError};
pub use context::Context;
pub use enqueue::{Enqueue, EnqueueMany};
pub use error::TaskError;
pub use matins_core::duration::Timeout;
pub use matins_core::retry::Backoff;
pub use matins_core::schedule::ScheduleSpec;
pub use matins_core::task::OnDuplicate;
pub use matins_core::{Json, State, TaskId};
pub use matins_runtime::client::Answer;
pub use matins_runtime::clock::Clock;
pub use matins_runtime::rules::{OnStuck, Policy};
pub use matins_runtime::{Client, ClientError};
pub use pool::Pool;
pub use transaction::Transaction;

/// The versions of the drivers whose transactions [`Transaction`] is implemented for.
pub use matins_store::postgres::tokio_postgres;
pub use matins_store::sqlite::rusqlite;

/// The payload of a type of task.
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// Name of the type: what the store, the API and the configuration call it.
    const TYPE: &'static str;
}
