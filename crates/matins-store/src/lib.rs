//! Stores of Matins: adapters of the port in [`matins_core::store`].
//!
//! A store decides nothing beyond atomicity and order; what a task's fate is, the core says. No
//! code here may judge a retry, a schedule or a limit in a way of its own.

mod cursor;
mod form;
mod migration;
#[cfg(feature = "redis")]
mod own_thread;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use migration::{Migrate, Migration};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use redis::RedisStore;

#[cfg(feature = "sqlite")]
pub use sqlite::{Options, SqliteStore};
