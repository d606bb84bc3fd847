//! Servers that tests need, each an instance of its own: on a free port, with a folder of its own,
//! gone when the process that asked for it is gone, however it ends.

pub mod postgres;
mod server;

pub use postgres::Postgres;
