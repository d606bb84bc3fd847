//! Servers that tests need, each an instance of its own: on a free port, with a folder of its own,
//! gone when the process that asked for it is gone, however it ends.

mod authority;
mod line;
mod mail;
mod network;
mod pgbouncer;
pub mod postgres;
pub mod redis;
mod server;
mod skipped;

pub use authority::{Authority, Issued};
pub use line::{Line, Weather};
pub use mail::{Mail, SECURITIES};
pub use network::{Namespace, Network};
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use redis::{Redis, RedisCluster, RedisSentinel};
pub use skipped::skipped;
