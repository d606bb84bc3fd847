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
}

#[derive(Deserialize)]
struct Chunk {
    chunk: String,
    encoding: String,
}

#[derive(Deserialize)]
struct Lagged {
    missed: u64,
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
    mut sink: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Option<End>> {
    let request = Request::get(&["tasks", id, "output"])
        .query("follow", Some("1"))
        .query("attempt", number.map(|n| n.to_string()));
    let (status, mut chunks) = door.stream(request).await?;
    if status >= 400 {
        return Err(refusal(status, chunks).await);
    }
    let mut events = Events::default();
    while let Some(chunk) = chunks.next().await {
        let Ok(chunk) = chunk else { return Ok(None) };
        for (name, data) in events.push(&chunk) {
            match &*name {
                "output" => sink(&bytes(&decode::<Chunk>(&data)?))?,
                "lagged" => {
                    let Lagged { missed } = decode(&data)?;
                    output::note(&format!("… {missed} pieces of output came too fast to be shown"));
                }
                "end" => return decode(&data).map(Some),
                "error" => return Err(Failure::failed(decode::<Problem>(&data)?.detail)),
                _ => {}
            }
        }
    }
    Ok(None)
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

fn bytes(chunk: &Chunk) -> Vec<u8> {
    match &*chunk.encoding {
        "base64" => STANDARD.decode(&chunk.chunk).unwrap_or_default(),
        _ => chunk.chunk.as_bytes().to_vec(),
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
