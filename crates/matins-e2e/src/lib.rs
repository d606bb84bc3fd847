//! What the tests of the real binary share.
//!
//! A test here starts `matins` as people do, in a folder of its own on a free port, and judges it
//! from outside: by its answers over HTTP, by its exit codes, by what `/proc` shows, and above all
//! by a [`witness`]: a file to which each run of a task appends. The program's own word is compared
//! with the witness, never taken for it. Nothing here links against the product.

pub mod alerts;
pub mod api;
pub mod binary;
pub mod clock;
pub mod http;
pub mod parallel;
pub mod process;
pub mod server;
pub mod smtp;
pub mod stub;
pub mod wait;
pub mod witness;

pub use api::{Api, Task};
pub use http::{Request, Response};
pub use parallel::together;
pub use server::{CliOutput, Server, ServerBuilder};
pub use smtp::Smtp;
pub use stub::Stub;
pub use wait::{eventually, holds_for, wait_for};
pub use witness::{Event, Mark, Witness};

pub use serde_json::{Value, json};
