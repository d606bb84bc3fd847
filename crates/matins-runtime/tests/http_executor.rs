//! HTTP calls against real servers on this host.

#[path = "http_executor/address.rs"]
mod address;
#[path = "http_executor/answer.rs"]
mod answer;
#[path = "http_executor/limits.rs"]
mod limits;
#[path = "http_executor/request.rs"]
mod request;
#[path = "http_executor/stub.rs"]
mod stub;
