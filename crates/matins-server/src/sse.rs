//! Server-sent events: bounded in number, kept alive, ended when the front door closes.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde::Serialize;

use crate::api::Api;
use crate::problem::Result;
use crate::serve::Connection;

/// Longest silence; proxies cut what says nothing for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An event with a JSON body.
pub(crate) fn event<T: Serialize>(name: &str, data: &T) -> Event {
    match Event::default().event(name).json_data(data) {
        Ok(event) => event,
        Err(error) => Event::default().event("error").data(error.to_string()),
    }
}

/// Answers with a stream, which holds a place among the streams and its connection.
pub(crate) fn stream<S>(api: &Api, connection: Option<&Connection>, events: S) -> Result<Response>
where
    S: Stream<Item = Event> + Send + 'static,
{
    let permit = api.stream_permit()?;
    let busy = connection.map(Connection::busy);
    let closing = api.closing().clone();
    let events = events.take_until(async move { closing.cancelled().await }).map(move |event| {
        let _held = (&permit, &busy);
        Ok::<_, Infallible>(event)
    });
    let response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Proxies that collect answers before they pass them on are asked not to.
    Ok(([("x-accel-buffering", "no")], response).into_response())
}
