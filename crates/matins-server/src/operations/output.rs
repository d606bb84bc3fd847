//! What a run wrote: the bytes that were kept, or the stream while it runs.

use std::collections::VecDeque;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use matins_core::task::{Attempt, Output, State, TaskId};
use matins_runtime::Client;
use matins_runtime::live::Piece;
use matins_runtime::process::Stream;
use serde::Serialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::api::Api;
use crate::call::Call;
use crate::call::body::Nothing;
use crate::problem::{Code, Problem, Result};
use crate::sse;
use crate::wire::task::OutputQuery;

pub(super) async fn output(api: Api, call: Call<OutputQuery, Nothing>) -> Result<Response> {
    let id = call.task_id()?;
    let task = api.client().task(id).await?;
    if let Some(number) = call.query.attempt.filter(|number| *number == 0 || *number > task.attempt)
    {
        let detail = format!("task {id} has no attempt {number}; it has {}", task.attempt);
        return Err(Problem::new(Code::NotFound, detail));
    }
    if call.query.follow {
        // A task that waits is followed into its next attempt.
        let next = task.attempt + u32::from(task.state == State::Pending);
        let attempt = call.query.attempt.unwrap_or(next);
        let follower = Follower::new(api.client().clone(), id, attempt);
        let events = stream::unfold(follower, Follower::step);
        return sse::stream(&api, call.connection.as_ref(), events);
    }
    let attempts = api.client().attempts(id).await?;
    let wanted = |attempt: &&Attempt| call.query.attempt.is_none_or(|n| n == attempt.number);
    let Some(attempt) = attempts.iter().rfind(wanted) else {
        return match call.query.attempt {
            None => Ok(bytes(id, &Output::default())),
            Some(n) => Err(Problem::new(Code::NotFound, format!("attempt {n} is not kept"))),
        };
    };
    let live = api.client().live().follow(id).filter(|live| live.attempt == attempt.number);
    match live.filter(|_| attempt.outcome.is_none()) {
        Some(live) => {
            let pieces = live.backlog.iter().map(|piece| &piece.bytes[..]);
            let so_far = Output { bytes: pieces.collect::<Vec<_>>().concat(), ..Output::default() };
            Ok(bytes(id, &so_far))
        }
        None => Ok(bytes(id, &attempt.output)),
    }
}

/// The kept bytes as a download that no browser runs.
fn bytes(id: TaskId, output: &Output) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{id}.out\"")),
    ];
    let mut response = (headers, output.bytes.clone()).into_response();
    if output.dropped > 0 {
        let headers = response.headers_mut();
        headers.insert("matins-dropped-bytes", HeaderValue::from(output.dropped));
        headers.insert("matins-gap-at", HeaderValue::from(output.gap_at));
    }
    response
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Chunk {
    chunk: String,
    encoding: &'static str,
}

/// Turns bytes into events: text as text, anything else as base64. A character that is split
/// over two chunks is held back until it is whole.
#[derive(Debug, Default)]
struct Encoder {
    partial: Vec<u8>,
}

impl Encoder {
    fn chunk(&mut self, bytes: &[u8]) -> Option<Chunk> {
        self.partial.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.partial);
        let chunk = match String::from_utf8(bytes) {
            Ok(chunk) => Chunk { chunk, encoding: "utf-8" },
            Err(error) if error.utf8_error().error_len().is_none() => {
                let whole = error.utf8_error().valid_up_to();
                let mut bytes = error.into_bytes();
                self.partial = bytes.split_off(whole);
                Chunk { chunk: String::from_utf8_lossy(&bytes).into_owned(), encoding: "utf-8" }
            }
            Err(error) => Chunk { chunk: STANDARD.encode(error.as_bytes()), encoding: "base64" },
        };
        (!chunk.chunk.is_empty()).then_some(chunk)
    }

    /// What was held back and is never completed.
    fn rest(&mut self) -> Option<Chunk> {
        let bytes = std::mem::take(&mut self.partial);
        (!bytes.is_empty()).then(|| Chunk { chunk: STANDARD.encode(bytes), encoding: "base64" })
    }
}

/// A chunk with its stream, unless that is standard output, as most are.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    chunk: &'a Chunk,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<&'static str>,
}

#[derive(Serialize)]
struct Lagged {
    missed: u64,
}

#[derive(Serialize)]
struct End {
    state: State,
    attempt: u32,
    /// Left out of what the store keeps of the output.
    dropped_bytes: u64,
}

/// How often the store is asked about an attempt that runs elsewhere, or has not begun.
const POLL: Duration = Duration::from_millis(200);
/// How long the store may lag behind the end of a run.
const SETTLE_MAX: Duration = Duration::from_secs(30);

enum Stage {
    /// Waits until the attempt is seen here, or has ended somewhere.
    Seek,
    Live(Receiver<Piece>),
    /// The run is over; its settlement is on the way.
    Settle(tokio::time::Instant),
    Over,
}

/// Follows one attempt from wherever it is to its end.
struct Follower {
    client: Client,
    id: TaskId,
    attempt: u32,
    stage: Stage,
    /// Standard output and standard error: characters are whole in each by itself.
    encoders: [Encoder; 2],
    /// Made already, and to be sent before anything else happens.
    ready: VecDeque<Event>,
}

impl Follower {
    fn new(client: Client, id: TaskId, attempt: u32) -> Self {
        let (encoders, ready) = Default::default();
        Self { client, id, attempt, stage: Stage::Seek, encoders, ready }
    }

    /// The next event, and the follower after it.
    async fn step(mut self) -> Option<(Event, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((event, self));
            }
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Seek => self.seek().await,
                Stage::Live(rest) => self.live(rest).await,
                Stage::Settle(until) => self.settled(until).await,
                Stage::Over => return None,
            }
        }
    }

    async fn seek(&mut self) {
        if let Some(follow) = self.client.live().follow(self.id)
            && follow.attempt == self.attempt
        {
            if follow.missed > 0 {
                self.lagged(follow.missed);
            }
            follow.backlog.iter().for_each(|piece| self.written(piece.stream, &piece.bytes));
            self.stage = Stage::Live(follow.rest);
            return;
        }
        match self.stored().await {
            Ok(Some(output)) => {
                self.stage = Stage::Settle(tokio::time::Instant::now() + SETTLE_MAX);
                self.written(Stream::Out, &output.bytes);
            }
            Ok(None) => {
                tokio::time::sleep(POLL).await;
                self.stage = Stage::Seek;
            }
            Err(problem) => self.failed(&problem),
        }
    }

    async fn live(&mut self, mut rest: Receiver<Piece>) {
        match rest.recv().await {
            Ok(piece) => {
                self.stage = Stage::Live(rest);
                self.written(piece.stream, &piece.bytes);
            }
            Err(RecvError::Lagged(missed)) => {
                self.stage = Stage::Live(rest);
                self.lagged(missed);
            }
            Err(RecvError::Closed) => {
                self.stage = Stage::Settle(tokio::time::Instant::now() + SETTLE_MAX);
            }
        }
    }

    /// What the attempt wrote, once it has ended. One that never comes wrote nothing.
    async fn stored(&self) -> Result<Option<Output>> {
        let task = self.client.task(self.id).await?;
        let attempts = self.client.attempts(self.id).await?;
        let attempt = attempts.into_iter().find(|attempt| attempt.number == self.attempt);
        let over = !task.state.is_live() || task.attempt > self.attempt;
        Ok(match attempt {
            Some(attempt) if attempt.outcome.is_some() => Some(attempt.output),
            None if over => Some(Output::default()),
            _ => None,
        })
    }

    async fn settled(&mut self, until: tokio::time::Instant) {
        let task = match self.client.task(self.id).await {
            Ok(task) => task,
            Err(error) => return self.failed(&error.into()),
        };
        let runs_on = task.state == State::Running && task.attempt == self.attempt;
        if runs_on && tokio::time::Instant::now() < until {
            tokio::time::sleep(POLL).await;
            self.stage = Stage::Settle(until);
            return;
        }
        for stream in [Stream::Out, Stream::Err] {
            let rest = self.encoder(stream).rest();
            self.send(stream, rest);
        }
        let dropped_bytes = match self.stored().await {
            Ok(output) => output.map_or(0, |output| output.dropped),
            Err(problem) => return self.failed(&problem),
        };
        // One that was cancelled before it began had no such attempt.
        let attempt = self.attempt.min(task.attempt);
        let end = End { state: task.state, attempt, dropped_bytes };
        self.ready.push_back(sse::event("end", &end));
    }

    fn encoder(&mut self, stream: Stream) -> &mut Encoder {
        &mut self.encoders[usize::from(stream == Stream::Err)]
    }

    fn written(&mut self, stream: Stream, bytes: &[u8]) {
        let chunk = self.encoder(stream).chunk(bytes);
        self.send(stream, chunk);
    }

    fn send(&mut self, stream: Stream, chunk: Option<Chunk>) {
        let Some(chunk) = &chunk else { return };
        let stream = (stream == Stream::Err).then_some("stderr");
        self.ready.push_back(sse::event("output", &Written { chunk, stream }));
    }

    fn lagged(&mut self, missed: u64) {
        self.ready.push_back(sse::event("lagged", &Lagged { missed }));
    }

    fn failed(&mut self, problem: &Problem) {
        self.ready.push_back(sse::event("error", &problem.view()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_never_split_and_bytes_are_never_lost() {
        let text = "aé€😀\u{1b}[31m";
        let mut encoder = Encoder::default();
        let mut got = String::new();
        for byte in text.as_bytes() {
            if let Some(chunk) = encoder.chunk(&[*byte]) {
                assert_eq!(chunk.encoding, "utf-8");
                got.push_str(&chunk.chunk);
            }
        }
        assert_eq!((got.as_str(), encoder.rest()), (text, None));
        let binary = Chunk { chunk: STANDARD.encode([b'a', 0xff, b'b']), encoding: "base64" };
        assert_eq!(encoder.chunk(&[b'a', 0xff, b'b']), Some(binary));
        assert_eq!(encoder.chunk(&[0xe2, 0x82]), None);
        let cut = Chunk { chunk: STANDARD.encode([0xe2, 0x82]), encoding: "base64" };
        assert_eq!((encoder.rest(), encoder.rest()), (Some(cut), None));
    }
}
