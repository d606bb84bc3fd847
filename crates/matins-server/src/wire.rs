//! The JSON forms of everything that passes the front door: the only place that knows them.
//!
//! Requests are owned and checked for shape here, for meaning further in. Answers borrow what
//! they show. Payloads and results are copied as text, never decoded.

pub mod certificate;
pub mod dead_letter;
pub mod eye;
pub mod node;
pub mod ping;
pub mod pool;
pub mod record;
pub mod schedule;
pub mod schema;
pub mod task;
pub mod time;
pub mod worker;

pub use eye::{Eye, Secrets};
pub use time::{Nominal, Time, seconds};
