//! The front door from outside: every route, in the process and over the network, over the
//! store that is the model of all stores. Every JSON answer is held against its description.

#[path = "api/engine.rs"]
mod engine;
#[path = "api/fuzz.rs"]
mod fuzz;
#[path = "api/harness.rs"]
mod harness;
#[path = "api/hostile.rs"]
mod hostile;
#[path = "api/matrix.rs"]
mod matrix;
#[path = "api/network.rs"]
mod network;
#[path = "api/openapi.rs"]
mod openapi;
#[path = "api/people.rs"]
mod people;
#[path = "api/schedules.rs"]
mod schedules;
#[path = "api/shape.rs"]
mod shape;
#[path = "api/tasks.rs"]
mod tasks;
#[path = "api/workers.rs"]
mod workers;
