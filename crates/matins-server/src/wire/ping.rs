//! Jobs that others run and that report.

use matins_core::duration::Span;
use matins_runtime::client::pings::Ping;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Time, schema, seconds};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Ping")]
pub struct PingView<'a> {
    name: &'a str,
    #[schemars(with = "f64")]
    period: Span,
    #[schemars(with = "f64")]
    grace: Span,
    /// The last report; null: there was none.
    last: Option<Time>,
    /// Seconds by which a report is overdue; null: it is not.
    #[schemars(schema_with = "schema::optional_seconds")]
    overdue: Option<Span>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PingList")]
pub struct PingList<'a> {
    pings: Vec<PingView<'a>>,
}

impl<'a> PingList<'a> {
    pub fn new(pings: &'a [Ping], now: jiff::Timestamp) -> Self {
        let view = |ping: &'a Ping| PingView {
            name: &ping.name,
            period: Span(ping.expected.period),
            grace: Span(ping.expected.grace),
            last: ping.heard.reported.then_some(Time(ping.heard.at)),
            overdue: ping.expected.overdue(ping.heard, now).map(seconds),
        };
        Self { pings: pings.iter().map(view).collect() }
    }
}
