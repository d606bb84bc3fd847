//! The real binary, in folders of its own.

mod bench;
mod commands;
mod configuration;
mod doors;
mod postgres;
mod run;
mod sandbox;
mod serve;
