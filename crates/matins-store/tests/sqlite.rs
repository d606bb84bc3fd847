//! What the SQLite store promises beyond the contracts of the port: crashes, locks, full disks,
//! other processes, damaged files, and the cost of a claim.

#![cfg(feature = "sqlite")]

#[path = "sqlite/bed.rs"]
mod bed;
#[path = "sqlite/cases.rs"]
mod cases;
#[path = "sqlite/child.rs"]
mod child;
#[path = "sqlite/cost.rs"]
mod cost;
#[path = "sqlite/crash.rs"]
mod crash;
#[path = "sqlite/files.rs"]
mod files;
#[path = "sqlite/full.rs"]
mod full;
#[path = "sqlite/library.rs"]
mod library;
#[path = "sqlite/locks.rs"]
mod locks;
#[path = "sqlite/others.rs"]
mod others;
