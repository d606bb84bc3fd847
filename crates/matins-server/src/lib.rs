//! The front doors of Matins. The HTTP API is one table of operations
//! ([`operations::table`]), from which its router and its description are made.
//!
//! The same router serves the network ([`serve`]) and, within a process, commands that work on
//! a store by themselves: they put [`Caller::local`] into the extensions of their requests, and
//! print exactly what the API answers.
//!
//! Must never hold anything that a restart loses, nor decide anything about a task.

pub mod api;
pub mod auth;
mod call;
pub mod gate;
pub mod node;
pub mod openapi;
pub mod operations;
pub mod problem;
mod serve;
mod sse;
pub mod wire;

pub use api::{Api, Settings};
pub use auth::{Access, Auth, AuthError, Caller, GivenToken, Role, new_secret};
pub use gate::Hosts;
pub use node::{Bare, Node};
pub use operations::preview;
pub use problem::{Code, Problem};
pub use serve::{Tls, serve};
pub use wire::schedule::{PreviewAnswer, PreviewBody};
