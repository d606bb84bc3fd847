//! The decisions of Matins, and the ports through which they meet the world.
//!
//! This crate must never perform I/O, read a clock, draw a random number or write a log: the
//! time is handed in as `now`, chance as a number. So every rule here can be tested by calling
//! it, and every store and every executor obeys the same one.

pub mod alert;
pub mod audit;
pub mod canary;
pub mod cron;
pub mod dead_letter;
pub mod duration;
pub mod executor;
pub mod fingerprint;
pub mod idempotency;
pub mod json;
pub mod lease;
pub mod lifecycle;
pub mod limits;
pub mod memory;
pub mod operation;
pub mod otlp;
pub mod outage;
pub mod page;
pub mod ping;
pub mod rate;
pub mod request;
pub mod retry;
pub mod schedule;
pub mod store;
pub mod supervision;
pub mod task;
pub mod template;
pub mod watch;
pub mod why;
pub mod words;

pub use json::Json;
pub use task::{NewTask, State, Task, TaskId};
