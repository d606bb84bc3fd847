//! Following what a task writes, over the API's event stream.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use serde::Deserialize;

use crate::door::{Answer, Chunks, Door, Request};
use crate::failure::{Failure, Result};
use crate::output;

/// How a followed attempt ended.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct End {
    pub(super) state: String,
    pub(super) attempt: u32,
    /// Left out of what is kept: more than the limit `output_bytes`, written before anybody
    /// listened.
    dropped_bytes: u64,
}

#[derive(Deserialize)]
struct Piece {
    #[serde(rename = "chunk")]
    text: String,
    encoding: String,
    /// `stderr`, or absent.
    stream: Option<String>,
}

/// Where a piece was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

#[derive(Deserialize)]
struct Problem {
    detail: String,
}

/// Hands what one attempt writes to `sink` until it ends. `None`: the stream broke off before.
pub(super) async fn attempt(
    door: &Door,
    id: &str,
    number: Option<u32>,
    mut sink: impl FnMut(Stream, &[u8]) -> Result<()>,
) -> Result<Option<End>> {
    let request = Request::get(&["tasks", id, "output"])
        .query("follow", Some("1"))
        .query("attempt", number.map(|n| n.to_string()));
    let (status, mut chunks) = door.stream(request).await?;
    if status >= 400 {
        return Err(refusal(status, chunks).await);
    }
    let mut events = Events::default();
    let (mut shown, mut lagged) = (0, false);
    while let Some(chunk) = chunks.next().await {
        let Ok(chunk) = chunk else { return Ok(None) };
        for (name, data) in events.push(&chunk) {
            match &*name {
                "output" => {
                    let piece: Piece = decode(&data)?;
                    let stream = match piece.stream.as_deref() {
                        Some("stderr") => Stream::Err,
                        _ => Stream::Out,
                    };
                    let bytes = bytes(&piece);
                    shown += bytes.len() as u64;
                    sink(stream, &bytes)?;
                }
                "lagged" => lagged = true,
                "end" => {
                    let end: End = decode(&data)?;
                    if lagged || end.dropped_bytes > 0 {
                        say_what_is_missing(door, id, &end, shown).await?;
                    }
                    return Ok(Some(end));
                }
                "error" => return Err(Failure::failed(decode::<Problem>(&data)?.detail)),
                _ => {}
            }
        }
    }
    Ok(None)
}

/// Compares what was shown with all that was written, of which the store keeps both ends.
async fn say_what_is_missing(door: &Door, id: &str, end: &End, shown: u64) -> Result<()> {
    let request =
        Request::get(&["tasks", id, "output"]).query("attempt", Some(end.attempt.to_string()));
    let kept = door.ask(request).await?.accepted()?.body.len() as u64;
    let missing = (kept + end.dropped_bytes).saturating_sub(shown);
    if missing > 0 {
        output::note(&format!("… {missing} bytes of output came too fast to be shown"));
    }
    Ok(())
}

async fn refusal(status: u16, mut chunks: Chunks) -> Failure {
    let mut body = Vec::new();
    while let Some(Ok(chunk)) = chunks.next().await {
        body.extend_from_slice(&chunk);
    }
    match (Answer { status, body: body.into() }).accepted() {
        Err(failure) => failure,
        Ok(_) => Failure::failed(format!("the server answered with status {status}")),
    }
}

fn bytes(piece: &Piece) -> Vec<u8> {
    match &*piece.encoding {
        "base64" => STANDARD.decode(&piece.text).unwrap_or_default(),
        _ => piece.text.as_bytes().to_vec(),
    }
}

fn decode<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T> {
    serde_json::from_str(data).map_err(|error| {
        Failure::failed(format!("an event is not what this version expects: {error}"))
    })
}

/// Server-sent events put together from the pieces they come in.
#[derive(Default)]
struct Events {
    line: Vec<u8>,
    name: String,
    data: String,
}

impl Events {
    fn push(&mut self, piece: &[u8]) -> Vec<(String, String)> {
        let mut whole = Vec::new();
        for &byte in piece {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).trim_end_matches('\r').to_owned();
            self.line.clear();
            let value = |rest: &str| rest.strip_prefix(' ').unwrap_or(rest).to_owned();
            if let Some(rest) = line.strip_prefix("event:") {
                self.name = value(rest);
            } else if let Some(rest) = line.strip_prefix("data:") {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(&value(rest));
            } else if line.is_empty() && !self.data.is_empty() {
                whole.push((std::mem::take(&mut self.name), std::mem::take(&mut self.data)));
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_any_pieces() {
        let text = ": ping\n\nevent: output\ndata: {\"a\":\"键\"}\n\n\
                    event: end\r\ndata: 1\r\ndata: 2\r\n\r\n";
        for size in 1..text.len() {
            let mut events = Events::default();
            let found: Vec<_> = text.as_bytes().chunks(size).flat_map(|p| events.push(p)).collect();
            let expected = [("output", "{\"a\":\"键\"}"), ("end", "1\n2")];
            assert_eq!(found.len(), 2);
            for ((name, data), expected) in found.iter().zip(expected) {
                assert_eq!((&**name, &**data), expected);
            }
        }
    }
}
