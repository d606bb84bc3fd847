//! When a schedule fires, and what becomes of every occurrence.

pub mod model;

pub use model::*;
