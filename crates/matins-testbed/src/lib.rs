//! Servers that tests need, each an instance of its own: on a free port, with a folder of its own,
//! gone when the process that asked for it is gone, however it ends.

mod line;
pub mod postgres;
mod server;

pub use line::{Line, Weather};
pub use postgres::Postgres;
